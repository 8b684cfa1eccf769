"""Cholesky factors of groups of leaves: layouts in memory, and a cache that computes them again when they do not fit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dsmgp._util.arrays import Array, Index

__all__ = [
    "FactorCache",
    "GroupFactors",
    "LeadingBlocks",
    "LeafFactors",
    "Packed",
]

# Share of the memory for factors that are replaced, the least recently used first. The rest is for factors that stay:
# a pass over all leaves in order would otherwise evict just what it is about to need.
PASSING = 0.25


class LeafFactors(Protocol):
    """Lower Cholesky factors of a group of leaves, held as one array."""

    def __getitem__(self, slot: int) -> Array:
        """Return the factor of one leaf."""


@dataclass(frozen=True)
class Packed:
    """Matrices one after the other in a flat array, row-major, without padding."""

    flat: Array
    sizes: Index

    @classmethod
    def of(cls, matrices: Sequence[Array]) -> Packed:
        return cls(
            np.concatenate([matrix.reshape(-1) for matrix in matrices]),
            np.array([len(matrix) for matrix in matrices]),
        )

    def __getitem__(self, slot: int) -> Array:
        n, start = int(self.sizes[slot]), int(np.square(self.sizes[:slot]).sum())
        return self.flat[start : start + n * n].reshape(n, n)

    def addresses(self, slots: Index) -> tuple[Index, Index]:
        """Return the memory addresses of some factors, and their row strides in elements, for compiled code."""
        starts = np.cumsum(self.sizes**2) - self.sizes**2
        return self.flat.ctypes.data + self.flat.itemsize * starts[slots], self.sizes[slots]


@dataclass(frozen=True)
class LeadingBlocks:
    """Leading blocks, of the given sizes, of other factors: those of nested leaves.

    Attributes
    ----------
    largest : LeafFactors
        The factors of the largest leaves.
    owner : ndarray of shape (n_leaves,)
        Number among them of the one that each leaf takes part of.
    sizes : ndarray of shape (n_leaves,)
    """

    largest: LeafFactors
    owner: Index
    sizes: Index

    def __getitem__(self, slot: int) -> Array:
        n = int(self.sizes[slot])
        return self.largest[int(self.owner[slot])][:n, :n]

    def addresses(self, slots: Index) -> tuple[Index, Index]:
        """Return the memory addresses of some factors, and their row strides in elements, for compiled code."""
        assert isinstance(self.largest, Packed)
        return self.largest.addresses(self.owner[slots])


#: Factors of a group of leaves, by output.
GroupFactors = list[LeafFactors]


class FactorCache:
    """Factors by group of leaves.

    Parameters
    ----------
    compute : callable
        Computes the factors of a group.
    sizes : sequence of int
        Bytes of the factors of each group.
    memory : float
        Bytes that all of them may take.
    """

    def __init__(
        self, compute: Callable[[int], GroupFactors], sizes: Sequence[int], memory: float
    ) -> None:
        self.compute, self.sizes = compute, sizes
        self._room = 0.0 if sum(sizes) <= memory else PASSING * memory
        self._stay: set[int] = set()
        left = memory - self._room
        for group, size in enumerate(sizes):
            if size <= left:
                self._stay.add(group)
                left -= size
        self._held: dict[int, GroupFactors] = {}
        self._passing: OrderedDict[int, GroupFactors] = OrderedDict()
        self._start()

    def _start(self) -> None:
        # Bytes of what is passing: an online update passes hundreds of groups.
        self._passing_bytes = sum(self.sizes[group] for group in self._passing)
        self._lock = threading.Lock()
        # Of each group: threads that need the same factors wait for one of them to compute them.
        self._computing = [threading.Lock() for _ in self.sizes]

    def keeps(self, group: int) -> bool:
        """Whether a group's factors stay in memory once they are computed."""
        return group in self._stay

    def holds(self, group: int) -> bool:
        """Whether a group's factors are in memory now."""
        return group in self._held or group in self._passing

    def put(self, group: int, factors: GroupFactors) -> None:
        """Set factors that stay."""
        with self._lock:
            self._held[group] = factors

    def get(self, group: int) -> GroupFactors:
        """Return the factors of a group; compute them if they are not in memory."""
        factors = self._in_memory(group)
        if factors is None:
            with self._computing[group]:
                factors = self._in_memory(group)  # another thread may have computed them
                if factors is None:
                    factors = self.compute(group)
                    self._pass_on(group, factors)
        return factors

    def _in_memory(self, group: int) -> GroupFactors | None:
        factors = self._held.get(group)
        if factors is not None:
            return factors
        with self._lock:
            factors = self._passing.get(group)
            if factors is not None:
                self._passing.move_to_end(group)
        return factors

    def _pass_on(self, group: int, factors: GroupFactors) -> None:
        """Keep factors for as long as there is room for them."""
        with self._lock:
            if group not in self._passing:
                self._passing_bytes += self.sizes[group]
            self._passing[group] = factors
            while self._passing_bytes > self._room and self._passing:
                oldest, _ = self._passing.popitem(last=False)
                self._passing_bytes -= self.sizes[oldest]

    def keep_less(self) -> bool:
        """Drop half of what is held; False if nothing is."""
        with self._lock:
            held = bool(self._passing or self._held)
            self._passing.clear()
            self._passing_bytes = 0
            for group in sorted(self._stay)[len(self._stay) // 2 :]:
                self._stay.remove(group)
                self._held.pop(group, None)
        return held

    @property
    def n_bytes(self) -> int:
        """Bytes held now."""
        with self._lock:
            return sum(self.sizes[g] for g in self._held) + self._passing_bytes

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # copies: what another thread changes cannot be pickled
            held, passing, stay = dict(self._held), self._passing.copy(), set(self._stay)
        state = {**self.__dict__, "_held": held, "_passing": passing, "_stay": stay}
        return {k: v for k, v in state.items() if k not in ("_lock", "_computing")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()
