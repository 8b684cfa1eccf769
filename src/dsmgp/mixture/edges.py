"""The edges of the training data: how far rows lie outside of it, and how much wider predictions are there.

The distance of a row is that to the nearest point with all inputs in their training ranges, in length scales
of the kernel and in the coordinates in which it compares rows. Beyond the edges variances are multiplied by a
factor that rows left out at the edges of leaves have calibrated (:mod:`dsmgp.fitting.outside.edges`). At rows inside
of all ranges nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp.gp.transforms.scaling import InputScaling

__all__ = ["Edges", "range_of"]

# Length scales over which the first part of the factor rises to half of its height.
RISE = 0.1
# Share of the range of an input up to which the variance grows. Rows that calibrate the growth lie inside the data, and
# hardly any further from what is left of it: beyond that nothing is known of a trend, and like a GP's own variance
# that of the predictions stays as it is.
MEASURED = 0.5
# Of a variance by its distance from the data: predictions stay finite.
LARGEST_FACTOR = 1e8


@dataclass(frozen=True, eq=False)
class Edges:
    """Ranges of the inputs, and a factor of variances beyond them.

    At a distance d from the training data, with d_j that of input j alone but at most half of the input's
    range, the factor is ``1 + jump * d / (d + 0.1) + sum_j growth_j * d_j ** 2``.

    Attributes
    ----------
    low, high : ndarray of shape (n_inputs,)
        Ranges in the training rows; infinite for inputs that are no numbers, such as the indicators of levels.
    unit : ndarray of shape (n_coordinates,)
        Length scales, in the units of the leaf GPs.
    jump : float
        What leaves miss right beyond their rows.
    growth : ndarray of shape (n_inputs,)
        What they miss further away, such as a trend that goes on.

    Examples
    --------
    >>> plain = InputScaling(np.zeros(2), np.ones(2))
    >>> edges = Edges(np.zeros(2), np.ones(2), np.array([0.5, 10.0]), 1.0, np.array([2.0, 0.0]))
    >>> X = np.array([[0.5, 0.5], [2.0, 1.0], [2.0, -1.0]])
    >>> edges.distance(X, plain).round(3)
    array([0.   , 2.   , 2.002])
    >>> edges.variance_factor(X, plain).round(2)
    array([1.  , 3.95, 3.95])
    """

    low: Array
    high: Array
    unit: Array
    jump: float = 0.0
    growth: Array | None = None

    def with_range(self, low: Array, high: Array) -> Edges:
        """Return the same with the ranges of other rows; inputs that have none stay without."""
        return replace(
            self,
            low=np.where(np.isfinite(self.low), low, self.low),
            high=np.where(np.isfinite(self.high), high, self.high),
        )

    def distance(self, X: Array, inputs: InputScaling) -> Array:
        """Return how far rows lie outside, in length scales, (n,); 0 inside."""
        distance = np.zeros(len(X))
        rows = self._beyond(X)
        if len(rows):
            distance[rows] = self._from(X[rows], np.clip(X[rows], self.low, self.high), inputs)
        return distance

    def distance_by_input(self, X: Array, inputs: InputScaling) -> Array:
        """Return how far rows lie outside by each input alone, (n, n_inputs)."""
        distances = np.zeros((len(X), len(self.low)))
        beyond = self._is_beyond(X)
        for j in np.flatnonzero(beyond.any(axis=0)):
            rows = np.flatnonzero(beyond[:, j])
            inside = X[rows].copy()
            inside[:, j] = np.clip(inside[:, j], self.low[j], self.high[j])
            distances[rows, j] = self._from(X[rows], inside, inputs)
        return distances

    def variance_factor(self, X: Array, inputs: InputScaling) -> Array | None:
        """Return the factors of the variances of rows, (n,); None if all are one."""
        if self.growth is None:
            return None
        rows = self._beyond(X)
        if not len(rows):
            return None
        X_out = X[rows]
        factor = np.ones(len(X))
        with np.errstate(over="ignore"):
            terms = self.terms(
                self.distance(X_out, inputs), self.distance_by_input(X_out, inputs), inputs
            ) @ np.append(self.jump, self.growth)
        factor[rows] = np.minimum(1.0 + terms, LARGEST_FACTOR)
        return factor

    def terms(self, distance: Array, by_input: Array, inputs: InputScaling) -> Array:
        """Return what jump and growth are multiplied by, (n, 1 + n_inputs), from the distances of rows."""
        measured = np.minimum(by_input, MEASURED * self.extent(inputs))
        return np.column_stack([distance / (distance + RISE), np.square(measured)])

    def terms_beyond(self, X: Array, dimension: Index, end: Array, inputs: InputScaling) -> Array:
        """Return :meth:`terms` at rows that lie beyond an end along one input each, (n, 1 + n_inputs)."""
        at_end = X.copy()
        at_end[np.arange(len(X)), dimension] = end
        away = (inputs.to_experts(X) - inputs.to_experts(at_end)) / self.unit
        distance = np.sqrt(np.square(away).sum(axis=1))
        by_input = np.zeros((len(X), len(self.low)))
        by_input[np.arange(len(X)), dimension] = distance
        return self.terms(distance, by_input, inputs)

    def extent(self, inputs: InputScaling) -> Array:
        """Return the length of each input's range in length scales, (n_inputs,); zero for inputs without one."""
        has_range = np.isfinite(self.low)
        low = np.where(has_range, self.low, 0.0)
        # Row j has input j at its upper end and all others at their lower ends.
        high = np.tile(low, (len(low), 1))
        high[np.diag_indices(len(low))] = np.where(has_range, self.high, 0.0)
        return self._from(high, low[None], inputs)

    def _is_beyond(self, X: Array) -> NDArray[np.bool_]:
        """Which inputs of which rows are outside of their ranges."""
        return (self.low > X) | (self.high < X)

    def _beyond(self, X: Array) -> Index:
        """Numbers of the rows with an input outside of its range."""
        return np.flatnonzero(self._is_beyond(X).any(axis=1))

    def _from(self, X: Array, others: Array, inputs: InputScaling) -> Array:
        """Distances of rows from others, in length scales."""
        with np.errstate(over="ignore", invalid="ignore"):
            away = (inputs.to_experts(X) - inputs.to_experts(others)) / self.unit
            return np.asarray(np.sqrt(np.square(away).sum(axis=1)))


def range_of(X: Array) -> tuple[Array, Array]:
    """Return the least and the largest value of each input."""
    return X.min(axis=0), X.max(axis=0)
