"""Factors of groups of leaves: how they lie in memory; kept while there is room, and made again when not."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Factors", "LeadingBlocks", "LeafFactors", "Packed", "RowMajorFactors", "Stacked"]

Index = NDArray[np.int64]
# Share of the room for factors that come and go, the least recently used first. The rest is for those that stay: a
# pass over all leaves in order would otherwise push out just what it is about to need.
PASSING = 0.25


class LeafFactors(Protocol):
    """Lower factors of a group of leaves, kept, and pickled, as one array: torch pickles a view with all that it is
    a view of."""

    def __getitem__(self, slot: int) -> Tensor: ...
    def __len__(self) -> int: ...


class RowMajorFactors(LeafFactors, Protocol):
    """Factors in double precision, row after row: what compiled code can work on."""

    def addresses(self, slots: Index) -> tuple[Index, Index]:
        """Where some of them start in memory, and the steps, in numbers, from row to row."""


@dataclass(frozen=True)
class LeadingBlocks:
    """Leading blocks of one matrix, of the given sizes."""

    whole: Tensor
    sizes: Index

    def __getitem__(self, slot: int) -> Tensor:
        n = int(self.sizes[slot])
        return self.whole[:n, :n]

    def __len__(self) -> int:
        return len(self.sizes)

    def addresses(self, slots: Index) -> tuple[Index, Index]:
        step = self.whole.stride(0)
        return np.full(len(slots), self.whole.data_ptr()), np.full(len(slots), step)


@dataclass(frozen=True)
class Stacked:
    """Matrices side by side, padded to the size of the largest: (leaves, rows, rows)."""

    stack: Tensor
    sizes: Index

    @classmethod
    def of(cls, matrices: Sequence[Tensor]) -> Stacked:
        sizes = np.array([len(matrix) for matrix in matrices])
        # Ones on the diagonal of what is padded: it can be solved with, too. Columns lie together, as where torch
        # makes factors: the last digits of what is solved depend on it.
        stack = torch.eye(int(sizes.max())).to(matrices[0]).repeat(len(matrices), 1, 1).mT
        for slot, matrix in enumerate(matrices):
            stack[slot, : len(matrix), : len(matrix)] = matrix
        return cls(stack, sizes)

    def __getitem__(self, slot: int) -> Tensor:
        n = int(self.sizes[slot])
        return self.stack[slot, :n, :n]

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Packed:
    """Matrices one after the other, without padding."""

    flat: Tensor
    sizes: Index

    @classmethod
    def of(cls, matrices: Sequence[Tensor]) -> Packed:
        return cls(
            torch.cat([matrix.reshape(-1) for matrix in matrices]),
            np.array([len(matrix) for matrix in matrices]),
        )

    def __getitem__(self, slot: int) -> Tensor:
        n, start = int(self.sizes[slot]), int(np.square(self.sizes[:slot]).sum())
        return self.flat[start : start + n * n].view(n, n)

    def __len__(self) -> int:
        return len(self.sizes)

    def addresses(self, slots: Index) -> tuple[Index, Index]:
        starts = np.cumsum(self.sizes**2) - self.sizes**2
        size = self.flat.element_size()
        return self.flat.data_ptr() + size * starts[slots], self.sizes[slots]


Group = list[LeafFactors]


class Factors:
    """Factors by group and output.

    Parameters
    ----------
    make : callable
        Makes a group's factors.
    sizes : sequence of int
        Bytes that each group's take.
    memory : float
        Bytes that all of them may take.
    """

    def __init__(self, make: Callable[[int], Group], sizes: Sequence[int], memory: float) -> None:
        self.make, self.sizes = make, sizes
        self._room = 0.0 if sum(sizes) <= memory else PASSING * memory
        self._stay: set[int] = set()
        left = memory - self._room
        for group, size in enumerate(sizes):
            if size <= left:
                self._stay.add(group)
                left -= size
        self._held: dict[int, Group] = {}
        self._passing: OrderedDict[int, Group] = OrderedDict()
        self._lock = threading.Lock()

    def keeps(self, group: int) -> bool:
        """Whether a group's factors stay once they are made."""
        return group in self._stay

    def holds(self, group: int) -> bool:
        """Whether a group's factors are here now."""
        return group in self._held or group in self._passing

    def put(self, group: int, factors: Group) -> None:
        """Give factors that stay."""
        self._held[group] = factors

    def get(self, group: int) -> Group:
        found = self._held.get(group)
        if found is not None:
            return found
        with self._lock:
            found = self._passing.get(group)
            if found is not None:
                self._passing.move_to_end(group)
                return found
        found = self.make(group)
        with self._lock:
            self._passing[group] = found
            while sum(self.sizes[g] for g in self._passing) > self._room and self._passing:
                self._passing.popitem(last=False)
        return found

    def keep_less(self) -> bool:
        """Let go of half of what is held; no if that is nothing."""
        with self._lock:
            held = bool(self._passing or self._held)
            self._passing.clear()
            for group in sorted(self._stay)[len(self._stay) // 2 :]:
                self._stay.remove(group)
                self._held.pop(group, None)
        return held

    @property
    def n_bytes(self) -> int:
        """What is held now."""
        return sum(self.sizes[g] for g in (*self._held, *self._passing))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
