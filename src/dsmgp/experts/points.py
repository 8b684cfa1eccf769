"""Distinct inputs of each leaf ("points"), and the sufficient statistics of the rows at each of them.

Rows with equal inputs share the value of f. Observations ``y_i`` of it with noise variances ``v_i`` are worth exactly one observation: their
average, weighted by ``p_i = 1 / v_i``, with variance ``1 / sum p_i``, and a factor of the evidence that does not depend on f. So the matrices of
a leaf have one row for each distinct input, however many rows share it, and leaving out one row, or all rows at its input, has a
closed form.

A row of weight w counts as w copies of itself: its likelihood ``N(y | f, v)`` is raised to the power w, whole or not. So it is
``p_i = w_i / v_i``, and sums over rows are weighted; leaving a row out leaves out one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.ragged import Ragged

__all__ = ["LeafPoints", "Observations", "equal_rows", "joined_weights"]


@dataclass(frozen=True, eq=False)
class LeafPoints:
    """The distinct inputs of each leaf, in the order of their first rows, and the rows at each of them.

    Attributes
    ----------
    rows : Ragged
        Row numbers of each leaf; those at one point are next to each other.
    starts : ndarray of shape (n_points + 1,)
        Point k has the rows ``rows.flat[starts[k]:starts[k + 1]]``.
    first : Ragged
        For each leaf, the number of the first row at each of its points.
    row_weights : ndarray of shape (n_rows,), optional
        Weights of all rows, by number; without them all are one.
    """

    rows: Ragged
    starts: Index
    first: Ragged
    row_weights: Array | None = None

    @classmethod
    def of(
        cls, leaf_rows: Ragged, labels: Index | None, row_weights: Array | None = None
    ) -> LeafPoints:
        """Find the points of leaves.

        Parameters
        ----------
        leaf_rows : Ragged
            Row numbers of each leaf.
        labels : ndarray of shape (n_rows,), optional
            From :func:`equal_rows`; without them all inputs count as distinct.
        row_weights : ndarray of shape (n_rows,), optional

        Examples
        --------
        >>> points = LeafPoints.of(Ragged.of([[0, 1, 2], [3]]), labels=np.array([0, 1, 0, 2]))
        >>> points.rows[0], points.first[0], points.starts
        (array([0, 2, 1]), array([0, 1]), array([0, 2, 3, 4]))
        """
        n = len(leaf_rows.flat)
        if labels is not None and labels.max(initial=-1) < len(labels) - 1:  # some are equal
            label = leaf_rows.owner * (labels.max() + 1) + labels[leaf_rows.flat]
            _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
            if len(first) < n:
                first_of_row = first[inverse.reshape(-1)]
                order = np.argsort(first_of_row, kind="stable")
                is_start = np.append(True, np.diff(first_of_row[order]) != 0)
                starts = np.append(np.flatnonzero(is_start), n)
                rows = Ragged(leaf_rows.flat[order], leaf_rows.ends)
                sizes = np.bincount(leaf_rows.owner[starts[:-1]], minlength=len(leaf_rows))
                first_rows = Ragged.of_sizes(rows.flat[starts[:-1]], sizes)
                return cls(rows, starts, first_rows, row_weights)
        return cls(leaf_rows, np.arange(n + 1), leaf_rows, row_weights)

    @property
    def any_shared(self) -> bool:
        """Whether any point may have several observations: several rows, or rows with weights."""
        return len(self.first.flat) < len(self.rows.flat) or self.row_weights is not None

    @property
    def n_observations(self) -> float:
        """Number of rows of all leaves, or the sum of their weights."""
        weights = self.weights(self.rows.flat)
        return len(self.rows.flat) if weights is None else float(weights.sum())

    def weights(self, rows: Index) -> Array | None:
        """Return the weights of some rows."""
        return None if self.row_weights is None else self.row_weights[rows]

    def take(self, leaves: Index) -> LeafPoints:
        """Return the points of some leaves."""
        rows, first = self.rows.take(leaves), self.first.take(leaves)
        at = self.first.positions(leaves)  # differences of these alone: there may be millions
        starts = np.concatenate([[0], np.cumsum(self.starts[at + 1] - self.starts[at])])
        return LeafPoints(rows, starts, first, self.row_weights)

    def of_leaf(self, leaf: int) -> tuple[Index, Index]:
        """Return the rows of a leaf, and where among them each of its points starts, with their number at the end."""
        a, b = self.first.ends[leaf], self.first.ends[leaf + 1]
        return self.rows[leaf], self.starts[a : b + 1] - self.starts[a]


@dataclass(frozen=True, eq=False)
class Observations:
    """Observations of f at points, each the weighted average of the rows there.

    Attributes
    ----------
    mean, variance : ndarray of shape (n_points,)
    y, noise : ndarray of shape (n_rows,)
        The observations and noise variances of the rows, in the order of the points.
    starts : ndarray of shape (n_points + 1,)
        See :class:`LeafPoints`.
    weights : ndarray of shape (n_rows,), optional
        Weights of the rows; without them all are one.
    """

    mean: Array
    variance: Array
    y: Array
    noise: Array
    starts: Index
    weights: Array | None = None

    @classmethod
    def of(
        cls, y: Array, noise: Array, starts: Index, weights: Array | None = None
    ) -> Observations:
        """Average the rows at each point.

        Parameters
        ----------
        y, noise : ndarray of shape (n_rows,)
            Observations and their noise variances; rows at a point are next to each other.
        starts : ndarray of shape (n_points + 1,)
            See :class:`LeafPoints`.
        weights : ndarray of shape (n_rows,), optional
        """
        of_average = noise if weights is None else noise / weights
        if len(starts) == len(y) + 1:
            return cls(y, of_average, y, noise, starts, weights)
        first, alone = starts[:-1], np.diff(starts) == 1
        precision = np.add.reduceat(1.0 / of_average, first)
        mean = np.add.reduceat(y / of_average, first) / precision
        # A row alone keeps its last digits.
        mean = np.where(alone, y[first], mean)
        variance = np.where(alone, of_average[first], 1.0 / precision)
        return cls(mean, variance, y, noise, starts, weights)

    @property
    def shared(self) -> bool:
        """Whether any point may have several observations: several rows, or rows with weights."""
        return len(self.mean) < len(self.y) or self.weights is not None

    @property
    def counts(self) -> NDArray[Any]:
        """By point, the number of rows, or the sum of their weights."""
        return np.diff(self.starts) if self.weights is None else self._by_point(self.weights)

    @property
    def n_observations(self) -> float:
        """Number of rows, or the sum of their weights."""
        return len(self.y) if self.weights is None else float(self.weights.sum())

    @property
    def squares(self) -> Array:
        """By point, the sum of squared deviations of the rows from their average, divided by the noise variances."""
        away = np.square(self.y - self._by_row(self.mean)) / self.noise
        return self._by_point(self._weighted(away))

    @property
    def half_log_det(self) -> Array:
        """By point, half the log determinant of the rows' noise, minus that of their average."""
        by_row = self._by_point(self._weighted(np.log(self.noise)))
        return np.asarray(0.5 * (by_row - np.log(self.variance)))

    def log_evidence(self, squares: float, half_log_det: float) -> float:
        """Return the log evidence of all rows (R&W eq. 2.30).

        Parameters
        ----------
        squares, half_log_det : float
            ``(y - mean)' K^-1 (y - mean)`` and half the log determinant of K, of the averages.
        """
        if self.shared:
            squares += float(self.squares.sum())
            half_log_det += float(self.half_log_det.sum())
        return -0.5 * (squares + self.n_observations * LOG_2PI) - half_log_det

    def noise_gradient(
        self, mean_gradient: Array, variance_gradient: Array, weight: float
    ) -> float:
        """Return the derivative of the log evidence by a noise variance that all rows share.

        Parameters
        ----------
        mean_gradient, variance_gradient : ndarray of shape (n_points,)
            Its derivatives by ``mean`` and ``variance``.
        weight : float
            Of the squares in the evidence.
        """
        if not self.shared:
            return float(variance_gradient.sum())
        precision = self._weighted(1.0 / self.noise)
        away = self.y - self._by_row(self.mean)
        squared = self._weighted(np.square(1.0 / self.noise))
        by_variance = np.square(self.variance) * self._by_point(squared)
        by_mean = -self.variance * self._by_point(squared * away)
        of_rows = weight * squared * np.square(away) - precision
        total = variance_gradient @ by_variance + mean_gradient @ by_mean
        return float(total + 0.5 * of_rows.sum() + 0.5 * (by_variance / self.variance).sum())

    def leave_one_out(
        self, residual: Array, variance: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Return leave-one-out predictions of rows, given those of the averages.

        Parameters
        ----------
        residual, variance : ndarray of shape (n_points,)
            Average minus its prediction from all other points, and the variance of that.

        Returns
        -------
        mean, variance : ndarray of shape (n_rows,)
            Of y at each row, given all other rows; of a row of weight w > 1, given the rest of its copies, too.
        grouped_mean, grouped_variance : ndarray of shape (n_rows,)
            Given all rows at other points.
        grouped_log_density : ndarray of shape (n_rows,)
            Of all rows at the point together, given those at other points.
        """
        centre = self._by_row(self.mean - residual)
        # Variance of f without the rows at the point; rounding may take it below zero.
        spread = self._by_row(np.maximum(variance - self.variance, 0.0))
        left_out, is_alone = self.noise, self._by_row(np.diff(self.starts)) == 1
        if self.weights is not None:  # one copy, or all that there is of one
            left_out = self.noise / np.minimum(self.weights, 1.0)
            is_alone &= self.weights <= 1.0
        others = self._by_row(1.0 / self.variance) - 1.0 / left_out
        others[is_alone] = 0.0
        sum_of_others = self._by_row(self.mean / self.variance) - self.y / left_out
        known = 1.0 + others * spread
        mean = np.where(others > 0, (centre + spread * sum_of_others) / known, centre)
        # The variance of y is that of the average only where this is y itself.
        differs = others > 0
        if self.weights is not None:
            differs |= self.weights < 1.0
        alone = np.where(differs, spread / known + self.noise, self._by_row(variance))
        density = -0.5 * (np.square(residual) / variance + np.log(variance) + LOG_2PI)
        density -= 0.5 * (self.squares + (self.counts - 1) * LOG_2PI) + self.half_log_det
        grouped = np.where(differs, spread + self.noise, self._by_row(variance))
        return mean, alone, centre, grouped, self._by_row(density)

    def _weighted(self, values: Array) -> Array:
        """Values of rows times their weights."""
        return values if self.weights is None else values * self.weights

    def _by_point(self, values: Array) -> Array:
        """Sums over the rows at each point."""
        return np.asarray(np.add.reduceat(values, self.starts[:-1]))

    def _by_row(self, values: NDArray[np.generic]) -> Array:
        return np.repeat(values, np.diff(self.starts)).astype(np.float64, copy=False)


def equal_rows(X: Array) -> Index:
    """Return a number for each row, from 0 on, equal for duplicate rows."""
    X = np.asarray(X, dtype=np.float64) + 0.0  # -0.0 becomes 0.0
    labels = np.unique(_hashes(X.view(np.uint64)), return_inverse=True)[1].astype(np.int64)
    rows = np.arange(len(X))
    last = np.empty_like(rows)
    last[labels] = rows  # of each label
    duplicates = np.flatnonzero(last[labels] != rows)
    if (X[duplicates] == X[last[labels[duplicates]]]).all():
        return labels
    # Different rows with the same hash: sort the rows themselves, which takes far longer.
    return np.unique(X, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def joined_weights(parts: Sequence[tuple[Array | None, int]]) -> Array | None:
    """Return the weights of several sets of rows, each given with their number; those that are not given are one.

    None if none are given.
    """
    if all(weights is None for weights, _ in parts):
        return None
    return np.concatenate([np.ones(n) if weights is None else weights for weights, n in parts])


def _hashes(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of each row."""
    hashes = np.zeros(len(bits), dtype=np.uint64)
    for column in bits.T:
        hashes ^= column
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(32)
    return hashes
