"""Factors of groups of leaves, kept while there is room, and made again when not."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from torch import Tensor

__all__ = ["Factors", "LeadingBlocks"]

Group = list[Sequence[Tensor]]
# Share of the room for factors that come and go, the least recently used first. The rest is for those that stay: a
# pass over all leaves in order would otherwise push out just what it is about to need.
PASSING = 0.25


@dataclass(frozen=True)
class LeadingBlocks(Sequence[Tensor]):
    """Leading blocks of one matrix, of the given sizes. Kept, and pickled, once: torch pickles a view with all that it
    is a view of."""

    whole: Tensor
    sizes: Sequence[int]

    @overload
    def __getitem__(self, slot: int) -> Tensor: ...
    @overload
    def __getitem__(self, slot: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, slot: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(slot, slice):
            return LeadingBlocks(self.whole, self.sizes[slot])
        n = self.sizes[slot]
        return self.whole[:n, :n]

    def __len__(self) -> int:
        return len(self.sizes)


class Factors:
    """Factors by group, output and leaf.

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

    @property
    def n_bytes(self) -> int:
        """What is held now."""
        return sum(self.sizes[g] for g in (*self._held, *self._passing))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
