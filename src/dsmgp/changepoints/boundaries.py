"""Boundaries between rows that are ordered along one input, and the gaps in which a change point may lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index

__all__ = ["Boundaries"]


@dataclass(frozen=True)
class Boundaries:
    """The n + 1 boundaries of n ordered rows; boundary b lies before row b.

    There is a gap at a boundary where the rows on its two sides have different positions. A change point lies in a gap, anywhere in it
    with equal density. Rows at the same position are never separated.

    Parameters
    ----------
    position : ndarray of shape (n_rows,)
        Positions of the rows along the ordering input, ascending.
    """

    position: Array

    @property
    def n_rows(self) -> int:
        return len(self.position)

    @cached_property
    def is_gap(self) -> NDArray[np.bool_]:
        """Whether a change point may lie at each boundary, (n_rows + 1,); never at the first and the last."""
        return self.gap_length > 0

    @cached_property
    def gap_length(self) -> Array:
        """Length of the gap at each boundary, (n_rows + 1,); zero where there is none."""
        inner = np.diff(self.position)
        return np.concatenate([[0.0], inner, [0.0]])[: self.n_rows + 1]

    def right_of(self, boundary: Index, points: Array) -> Array:
        """Return the probability that points lie right of change points.

        Parameters
        ----------
        boundary : ndarray of shape (n_boundaries,)
            Boundaries with a change point. The first boundary is left of all points, the last one right of them.
        points : ndarray of shape (n_points,)

        Returns
        -------
        ndarray of shape (n_boundaries, n_points)
        """
        b = np.asarray(boundary)[:, None]
        if self.n_rows == 0:
            # The only boundary is both ends: as the start of a segment it is left of everything.
            return np.ones((len(b), len(points)))
        low = self.position[np.clip(b - 1, 0, self.n_rows - 1)]
        high = self.position[np.clip(b, 0, self.n_rows - 1)]
        width = np.where(high > low, high - low, 1.0)
        share = np.clip((points[None, :] - low) / width, 0.0, 1.0)
        return np.where(b == 0, 1.0, np.where(b == self.n_rows, 0.0, share))

    def left_of(self, boundary: Index, points: Array) -> Array:
        """Return the probability that points lie left of change points, (n_boundaries, n_points)."""
        left = 1.0 - self.right_of(boundary, points)
        left[np.asarray(boundary) == self.n_rows] = 1.0  # also where there are no rows at all
        return left

    def inside(self, start: Index, end: Index, points: Array) -> Array:
        """Return the probability that points lie in segments, (n_segments, n_points).

        The change points at the two ends lie in different gaps, so a point is in at most one of them.
        """
        return self.right_of(start, points) * self.left_of(end, points)

    def may_be_inside(self, start: int, end: int, points: Array) -> NDArray[np.bool_]:
        """Whether points lie in the segment between two boundaries, or in the gaps at its ends."""
        possible = np.ones(len(points), dtype=bool)
        if start > 0:
            possible &= points > self.position[start - 1]
        if end < self.n_rows:
            possible &= points < self.position[end]
        return possible
