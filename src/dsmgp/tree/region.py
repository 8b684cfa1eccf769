"""Regions of the input space: boxes, which splits of a tree cut into smaller boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp._util.arrays import Array

__all__ = ["Region", "box"]


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """A half-open box ``lower <= x < upper``, with infinite bounds where it is not bounded.

    Parameters
    ----------
    lower, upper : array-like of shape (n_dims,)
        Bounds.

    Examples
    --------
    >>> left, right = Region.whole(2).split(0, [0.5])
    >>> left.contains([[0.4, 9.0], [0.5, 9.0]])
    array([ True, False])
    """

    lower: Array
    upper: Array

    @classmethod
    def whole(cls, n_dims: int) -> Region:
        """Return the whole input space of ``n_dims`` dimensions."""
        return cls(np.full(n_dims, -np.inf), np.full(n_dims, np.inf))

    def __post_init__(self) -> None:
        lower = np.array(self.lower, dtype=np.float64)
        upper = np.array(self.upper, dtype=np.float64)
        if lower.ndim != 1 or lower.shape != upper.shape or lower.size == 0:
            raise ValueError(
                "expected a lower and an upper bound for each of at least one dimension, "
                f"got shapes {lower.shape} and {upper.shape}"
            )
        if not np.all(lower < upper):
            bad = int(np.flatnonzero(~(lower < upper))[0])
            raise ValueError(
                f"expected lower < upper in every dimension, got [{lower[bad]}, {upper[bad]}) "
                f"in dimension {bad}"
            )
        lower.flags.writeable = upper.flags.writeable = False
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @classmethod
    def _unchecked(cls, lower: Array, upper: Array) -> Region:
        """Skip the checks, which would take most of the time of growing a tree; bounds must be read-only."""
        region = object.__new__(cls)
        object.__setattr__(region, "lower", lower)
        object.__setattr__(region, "upper", upper)
        return region

    @property
    def n_dims(self) -> int:
        return self.lower.size

    def split(self, dimension: int, splits: Sequence[float]) -> list[Region]:
        """Return the boxes that tile this one when it is cut at ``splits`` along ``dimension``."""
        edges = [self.lower[dimension], *splits, self.upper[dimension]]
        return [self._between(dimension, low, high) for low, high in pairwise(edges)]

    def _between(self, dimension: int, low: float, high: float) -> Region:
        """Return this box with other bounds along one dimension."""
        lower, upper = self.lower.copy(), self.upper.copy()
        lower[dimension], upper[dimension] = low, high
        if not low < high:
            return Region(lower, upper)  # raises
        lower.flags.writeable = upper.flags.writeable = False
        return Region._unchecked(lower, upper)

    def contains(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Return for each row of ``X`` whether it lies inside."""
        X = np.asarray(X, dtype=np.float64)
        return np.all((self.lower <= X) & (self.upper > X), axis=1)

    def same_as(self, other: Region) -> bool:
        """Return whether two regions have the same bounds."""
        return self.n_dims == other.n_dims and bool(
            (self.lower == other.lower).all() and (self.upper == other.upper).all()
        )


def box(region: Region) -> str:
    """Return a region as text."""
    return " x ".join(
        f"[{low:g}, {high:g})" for low, high in zip(region.lower, region.upper, strict=True)
    )
