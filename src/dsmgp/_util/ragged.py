"""Lists of different lengths in one array: the row numbers of many leaves, one leaf after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp._util.arrays import Index

__all__ = ["Ragged"]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of numbers, of different lengths.

    Attributes
    ----------
    flat : ndarray of shape (n_entries,)
        All entries, list after list.
    ends : ndarray of shape (n_lists + 1,)
        List k is ``flat[ends[k]:ends[k + 1]]``.

    Examples
    --------
    >>> lists = Ragged.of([[4, 5], [], [6]])
    >>> lists[0], len(lists), lists.sizes
    (array([4, 5]), 3, array([2, 0, 1]))
    >>> lists.owner
    array([0, 0, 2])
    """

    flat: Index
    ends: Index

    @classmethod
    def of(cls, lists: Iterable[ArrayLike]) -> Ragged:
        """Concatenate lists."""
        arrays = [np.asarray(values, dtype=np.int64) for values in lists]
        flat = np.concatenate([np.empty(0, np.int64), *arrays])
        return cls.of_sizes(flat, [len(array) for array in arrays])

    @classmethod
    def of_sizes(cls, flat: Index, sizes: Sequence[int] | Index) -> Ragged:
        """Cut ``flat`` into consecutive lists of these lengths."""
        return cls(flat, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getstate__(self) -> dict[str, Index]:
        # Not ``__dict__`` itself: another thread may add the cached sizes to it while it is pickled.
        return {"flat": self.flat, "ends": self.ends}

    def __getitem__(self, k: int) -> Index:
        return self.flat[self.ends[k] : self.ends[k + 1]]

    @cached_property
    def sizes(self) -> Index:
        """Length of each list, (n_lists,)."""
        return np.diff(self.ends)

    @property
    def owner(self) -> Index:
        """The list of each entry, (n_entries,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def positions(self, chosen: Sequence[int] | Index) -> Index:
        """Return the positions in ``flat`` of the entries of the chosen lists, one list after the other."""
        sizes = self.sizes[chosen]
        starts = self.ends[:-1][chosen]
        before = np.cumsum(sizes) - sizes
        return np.repeat(starts - before, sizes) + np.arange(sizes.sum())

    def take(self, chosen: Sequence[int] | Index) -> Ragged:
        """Return the chosen lists."""
        return Ragged.of_sizes(self.flat[self.positions(chosen)], self.sizes[chosen])

    def padded(self, chosen: Sequence[int] | Index) -> tuple[Index, NDArray[np.bool_]]:
        """Return the chosen lists as rows of a rectangle.

        Returns
        -------
        positions : ndarray of shape (n_chosen, longest)
            Positions in ``flat``; zero where a list has ended.
        real : ndarray of bool, of the same shape
            Which of them are entries.
        """
        sizes = self.sizes[chosen][:, None]
        column = np.arange(sizes.max(initial=0))
        real = column < sizes
        return np.where(real, self.ends[:-1][chosen][:, None] + column, 0), real
