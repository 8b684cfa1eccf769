"""Regions of the input space: boxes, which splits of a tree cut into smaller boxes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError

__all__ = ["Region", "box"]


class Region:
    """A half-open box ``lower <= x < upper``, with infinite bounds where it is not bounded.

    Parts of a box hold their bounds along the dimension that was cut, and the box that was: a tree of a million regions would take
    twice the memory of the rest of it otherwise.

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

    __slots__ = ("_dimension", "_high", "_low", "_of")
    _of: Region | tuple[Array, Array]
    _dimension: int
    _low: float
    _high: float

    def __init__(self, lower: ArrayLike, upper: ArrayLike) -> None:
        lower, upper = np.array(lower, dtype=np.float64), np.array(upper, dtype=np.float64)
        if lower.ndim != 1 or lower.shape != upper.shape or lower.size == 0:
            raise InputError(
                "expected a lower and an upper bound for each of at least one dimension, "
                f"got shapes {lower.shape} and {upper.shape}"
            )
        if not np.all(lower < upper):
            bad = int(np.flatnonzero(~(lower < upper))[0])
            raise InputError(
                f"expected lower < upper in every dimension, got [{lower[bad]}, {upper[bad]}) "
                f"in dimension {bad}"
            )
        lower.flags.writeable = upper.flags.writeable = False
        self._of = lower, upper

    @classmethod
    def whole(cls, n_dims: int) -> Region:
        """Return the whole input space of ``n_dims`` dimensions."""
        return cls(np.full(n_dims, -np.inf), np.full(n_dims, np.inf))

    @property
    def lower(self) -> Array:
        """Lower bounds, (n_dims,)."""
        return self._bounds[0]

    @property
    def upper(self) -> Array:
        """Upper bounds, (n_dims,)."""
        return self._bounds[1]

    @property
    def n_dims(self) -> int:
        return self.lower.size

    @property
    def _bounds(self) -> tuple[Array, Array]:
        if isinstance(self._of, tuple):
            return self._of
        innermost: dict[int, tuple[float, float]] = {}
        region = self
        while isinstance(region._of, Region):
            innermost.setdefault(region._dimension, (region._low, region._high))
            region = region._of
        lower, upper = (bounds.copy() for bounds in region._of)
        for dimension, (low, high) in innermost.items():
            lower[dimension], upper[dimension] = low, high
        lower.flags.writeable = upper.flags.writeable = False
        return lower, upper

    def interval(self, dimension: int) -> tuple[float, float]:
        """Return the bounds along a dimension."""
        region = self
        while isinstance(region._of, Region):
            if region._dimension == dimension:
                return region._low, region._high
            region = region._of
        lower, upper = region._of
        return float(lower[dimension]), float(upper[dimension])

    def split(self, dimension: int, splits: Sequence[float]) -> list[Region]:
        """Return the boxes that tile this one when it is cut at ``splits`` along ``dimension``."""
        low, high = self.interval(dimension)
        edges = [low, *splits, high]
        return [self._between(dimension, low, high) for low, high in pairwise(edges)]

    def _between(self, dimension: int, low: float, high: float) -> Region:
        """Return this box with other bounds along one dimension."""
        if not low < high:
            lower, upper = (bounds.copy() for bounds in self._bounds)
            lower[dimension], upper[dimension] = low, high
            return Region(lower, upper)  # raises
        part = object.__new__(Region)
        part._of, part._dimension, part._low, part._high = self, dimension, low, high
        return part

    def __repr__(self) -> str:
        return f"Region(lower={self.lower.tolist()}, upper={self.upper.tolist()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Region, self._bounds  # not the box that it is a part of, and so on up to the whole

    def contains(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Return for each row of ``X`` whether it lies inside."""
        X = np.asarray(X, dtype=np.float64)
        lower, upper = self._bounds
        return np.all((lower <= X) & (upper > X), axis=1)

    def same_as(self, other: Region) -> bool:
        """Return whether two regions have the same bounds."""
        return self is other or all(map(np.array_equal, self._bounds, other._bounds))


def box(region: Region) -> str:
    """Return a region as text."""
    return " x ".join(
        f"[{low:g}, {high:g})" for low, high in zip(region.lower, region.upper, strict=True)
    )
