"""Row numbers of many leaves, one leaf after the other: what is said of all of them fits in one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Ragged"]

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of numbers, of different lengths: list k is ``flat[ends[k]:ends[k + 1]]``.

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
        arrays = [np.asarray(one, dtype=np.int64) for one in lists]
        ends = np.concatenate([[0], np.cumsum([len(a) for a in arrays])]).astype(np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *arrays]), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, k: int) -> Index:
        return self.flat[self.ends[k] : self.ends[k + 1]]

    @cached_property
    def sizes(self) -> Index:
        return np.diff(self.ends)

    @property
    def owner(self) -> Index:
        """Which list each entry stands in."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def positions(self, chosen: Sequence[int] | Index) -> Index:
        """Where the entries of some lists lie in ``flat``, one list after the other."""
        sizes = self.sizes[chosen]
        starts = self.ends[:-1][chosen]
        before = np.cumsum(sizes) - sizes
        return np.repeat(starts - before, sizes) + np.arange(sizes.sum())

    def take(self, chosen: Sequence[int] | Index) -> Ragged:
        """Some of the lists."""
        ends = np.concatenate([[0], np.cumsum(self.sizes[chosen])])
        return Ragged(self.flat[self.positions(chosen)], ends)

    def padded(self, chosen: Sequence[int] | Index) -> tuple[Index, NDArray[np.bool_]]:
        """The same as a rectangle, (lists, longest), and which of it is real; the rest points to the first entry."""
        sizes = self.sizes[chosen][:, None]
        column = np.arange(sizes.max(initial=0))
        real = column < sizes
        return np.where(real, self.ends[:-1][chosen][:, None] + column, 0), real
