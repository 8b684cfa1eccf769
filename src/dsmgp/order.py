"""Rows in order along one input, and the gaps between them in which a change may lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Order"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """Positions of n rows, ascending. Boundary b, from 0 to n, lies before row b.

    Rows at one position stay together: a boundary between them is closed.
    """

    position: Array

    @property
    def n_rows(self) -> int:
        return len(self.position)

    @cached_property
    def is_gap(self) -> NDArray[np.bool_]:
        """Whether a change may lie at each of the n + 1 boundaries; not at the two ends."""
        return self.length > 0

    @cached_property
    def length(self) -> Array:
        """Of the gap at each boundary; zero where there is none."""
        inner = np.diff(self.position)
        return np.concatenate([[0.0], inner, [0.0]])[: self.n_rows + 1]

    def right_of(self, boundary: Index, at: Array) -> Array:
        """Probability that points (p,) lie right of changes at boundaries (b,), as (b, p).

        A change lies anywhere in its gap with equal density. The boundary before the first row is left of everything,
        the one after the last row right of everything.
        """
        b = np.asarray(boundary)[:, None]
        if self.n_rows == 0:
            # One boundary, which is both ends: as a beginning it is left of everything.
            return np.ones((len(b), len(at)))
        low = self.position[np.clip(b - 1, 0, self.n_rows - 1)]
        high = self.position[np.clip(b, 0, self.n_rows - 1)]
        width = np.where(high > low, high - low, 1.0)
        share = np.clip((at[None, :] - low) / width, 0.0, 1.0)
        return np.where(b == 0, 1.0, np.where(b == self.n_rows, 0.0, share))

    def holds(self, start: Index, end: Index, at: Array) -> Array:
        """Probability that points (p,) lie in segments (s,) between two boundaries that are changes, as (s, p).

        The two changes lie in different gaps, so a point is never inside both.
        """
        after = self.right_of(start, at)
        before = 1.0 - self.right_of(end, at)
        before[np.asarray(end) == self.n_rows] = 1.0
        return after * before

    def near(self, start: int, end: int, at: Array) -> NDArray[np.bool_]:
        """Points that may lie in the segment between two boundaries: in it, or in the gaps at its ends."""
        inside = np.ones(len(at), dtype=bool)
        if start > 0:
            inside &= at > self.position[start - 1]
        if end < self.n_rows:
            inside &= at < self.position[end]
        return inside
