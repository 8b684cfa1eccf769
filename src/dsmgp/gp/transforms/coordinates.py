"""Coordinates: the map from the user's inputs to those that trees cut and leaf GPs compare.

A GP with a length scale per input takes inputs in the units they come in, which suits neither skewed columns nor functions that vary
along combinations of inputs. :class:`Coordinates` warps columns one by one (:class:`InputWarp`), may use a column twice, as it is and
warped, may then apply a linear map, the *metric*, and may append the outputs of a :class:`~dsmgp.gp.transforms.network.Network`
and the predictions of :class:`~dsmgp.gp.transforms.boosted_trees.BoostedTrees`.
Which of this is done is chosen in :mod:`dsmgp.fitting.selection.coordinates`; scaling to zero mean and unit variance
comes after it (:mod:`dsmgp.gp.transforms.scaling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import QUANTILE_ROWS
from dsmgp._util.weighted import mid_rank_scores, weighted_values
from dsmgp.gp.transforms.boosted_trees import BoostedTrees
from dsmgp.gp.transforms.network import Network

__all__ = ["Coordinates", "InputWarp"]

# Knots of a warp at most.
MOST_KNOTS = 65
# A column with fewer distinct values is not warped: flags and short codes have no shape to straighten.
LEAST_VALUES = 3
# Knots are at least this far apart, relative to their range.
CLOSEST = 1e-9
# Steps of Newton's method, each guarded by bisection, that invert a warp to the last digits.
NEWTON_STEPS = 60


@dataclass(frozen=True, eq=False, repr=False)
class InputWarp:
    """A smooth increasing function of one input: a cubic spline through its knots, linear beyond them.

    Attributes
    ----------
    knots, values, slopes : ndarray of shape (n_knots,)
        Positions, strictly increasing values there, and positive derivatives.
    tails : ndarray of shape (2,)
        Slopes below the first and above the last knot.

    Examples
    --------
    >>> x = np.random.default_rng(0).lognormal(size=1000)
    >>> warp = InputWarp.normal_scores(x)
    >>> bool(abs(np.mean(warp(x))) < 0.01), bool(abs(np.std(warp(x)) - 1) < 0.05)
    (True, True)
    >>> bool(np.allclose(warp.inverse(warp(x)), x))
    True
    """

    knots: Array
    values: Array
    slopes: Array
    tails: Array

    def __repr__(self) -> str:
        return (
            f"InputWarp({len(self.knots)} knots from {self.knots[0]:.4g} to {self.knots[-1]:.4g})"
        )

    @classmethod
    def normal_scores(cls, x: Array, weights: Array | None = None) -> InputWarp | None:
        """Return the warp that maps quantiles of x to those of a standard normal; None if x has too few distinct values."""
        if len(x) > QUANTILE_ROWS:
            step = len(x) // QUANTILE_ROWS + 1
            x, weights = x[::step], None if weights is None else weights[::step]
        distinct, counts = weighted_values(x, weights)
        if len(distinct) < LEAST_VALUES or not np.isfinite(distinct[-1] - distinct[0]):
            return None
        scores = mid_rank_scores(counts)
        if len(distinct) > MOST_KNOTS:
            # Evenly spaced in the score, so that tails have knots as well.
            wanted = np.linspace(scores[0], scores[-1], MOST_KNOTS)
            kept = np.unique(np.searchsorted(scores, wanted).clip(max=len(scores) - 1))
            distinct, scores = distinct[kept], scores[kept]
        # Values that differ by rounding only would have an infinite slope between them.
        apart = np.concatenate([[True], np.diff(distinct) > CLOSEST * (distinct[-1] - distinct[0])])
        distinct, scores = distinct[apart], scores[apart]
        if len(distinct) < LEAST_VALUES:
            return None
        return cls._through(distinct, scores)

    @classmethod
    def _through(cls, knots: Array, values: Array) -> InputWarp | None:
        """Return the monotone spline of Fritsch and Butland through points; None if their slopes are out of range."""
        with np.errstate(over="ignore"):
            secants = np.diff(values) / np.diff(knots)
        if not np.isfinite(secants).all() or not (secants > 0).all():
            return None
        left, right = np.diff(knots)[:-1], np.diff(knots)[1:]
        weight = (left + 2.0 * right) / (3.0 * (left + right))
        inner = 1.0 / (weight / secants[:-1] + (1.0 - weight) / secants[1:])
        slopes = np.concatenate([secants[:1], inner, secants[-1:]])
        # The slope beside an end may be anything, such as that between zero and the smallest of many tiny values: tails have
        # that of the outer quarter.
        m = max(len(knots) // 4, 1)
        tails = (values[[m, -1]] - values[[0, -1 - m]]) / (knots[[m, -1]] - knots[[0, -1 - m]])
        return cls(knots, values, slopes, tails)

    @property
    def _width(self) -> float:
        return float(self.knots[-1] - self.knots[0])

    def _relative(self, x: Array) -> Array:
        """Positions relative to the range of the knots, which may be tiny or huge."""
        return np.asarray((x - self.knots[0]) / self._width)

    @cached_property
    def _spline(self) -> CubicHermiteSpline:
        """The spline over relative positions."""
        return CubicHermiteSpline(
            self._relative(self.knots), self.values, self.slopes * self._width
        )

    def __call__(self, x: Array) -> Array:
        r = self._relative(x)
        inside = self._spline(np.clip(r, 0.0, 1.0))
        below, above = np.minimum(r, 0.0), np.maximum(r - 1.0, 0.0)
        return np.asarray(inside + self._width * (self.tails[0] * below + self.tails[1] * above))

    def slope(self, x: Array) -> Array:
        """Return the derivative at x."""
        r = self._relative(x)
        inside = self._spline(np.clip(r, 0.0, 1.0), 1) / self._width
        outside = np.where(r < 0.0, *self.tails)
        return np.where((r < 0.0) | (r > 1.0), outside, inside)

    def inverse(self, u: Array) -> Array:
        """Return the input at which the warp has the value u."""
        u = np.asarray(u, dtype=np.float64)
        piece = np.clip(np.searchsorted(self.values, u) - 1, 0, len(self.knots) - 2)
        knots = self._relative(self.knots)
        low, high = knots[piece], knots[piece + 1]
        r = 0.5 * (low + high)
        target = np.clip(u, self.values[0], self.values[-1])
        for _ in range(NEWTON_STEPS):
            away = self._spline(r) - target
            low, high = np.where(away > 0, low, r), np.where(away > 0, r, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = r - away / self._spline(r, 1)
            r = np.where((step > low) & (step < high), step, 0.5 * (low + high))
        below = np.minimum(u - self.values[0], 0.0) / self.tails[0]
        above = np.maximum(u - self.values[-1], 0.0) / self.tails[1]
        return np.asarray(self.knots[0] + self._width * r + below + above)


@dataclass(frozen=True, eq=False, repr=False)
class Coordinates:
    """Columns, warped or as they are, a linear map of them, a network of its results, and boosted trees of the columns.

    Attributes
    ----------
    n_inputs : int
        Columns of the user's table.
    columns : ndarray of shape (n_features,)
        The column that each feature is computed from; a column may have two features, or none.
    warps : tuple of InputWarp or None
        The warp of each feature; None takes the column as it is.
    metric : ndarray of shape (n_features, n_directions), optional
        The coordinates are ``features @ metric``; without it they are the features.
    network : Network, optional
        Of these coordinates; its outputs are further ones.
    trees : BoostedTrees, optional
        Of the columns; their predictions are the last coordinates.

    Examples
    --------
    >>> X = np.random.default_rng(0).lognormal(size=(500, 2))
    >>> both = Coordinates.of_columns(X, [("raw", "rank"), ("raw",)])
    >>> both(X).shape, both.names(["area", "year"])
    ((500, 3), ['area', 'area (warped)', 'year'])
    """

    n_inputs: int
    columns: Index
    warps: tuple[InputWarp | None, ...]
    metric: Array | None = None
    network: Network | None = None
    trees: BoostedTrees | None = None

    def __repr__(self) -> str:
        names = ", ".join(self.names([f"x{k}" for k in range(self.n_inputs)]))
        directions = "" if self.metric is None else f" in {self.n_linear} directions"
        learned = "" if self.network is None else f" and {self.network.n_outputs} of a network"
        boosted = "" if self.trees is None else " and boosted trees"
        return f"Coordinates({names}{directions}{learned}{boosted})"

    @classmethod
    def identity(cls, n_inputs: int) -> Coordinates:
        """Return the columns as they are."""
        return cls(n_inputs, np.arange(n_inputs), (None,) * n_inputs)

    @classmethod
    def of_columns(
        cls, X: Array, kinds: Sequence[Sequence[str]], row_weights: Array | None = None
    ) -> Coordinates:
        """Return the coordinates that use each column as ``"raw"``, ``"rank"`` (normal scores) or both.

        A column that cannot be warped is taken as it is, once.
        """
        columns: list[int] = []
        warps: list[InputWarp | None] = []
        for column, wanted in enumerate(kinds):
            warp = None
            if "rank" in wanted:
                warp = InputWarp.normal_scores(X[:, column], row_weights)
            if warp is None or "raw" in wanted:
                columns.append(column)
                warps.append(None)
            if warp is not None:
                columns.append(column)
                warps.append(warp)
        return cls(X.shape[1], np.array(columns, dtype=np.int64), tuple(warps))

    @property
    def n_linear(self) -> int:
        """Number of coordinates that are linear in the features; those of network and trees come after them."""
        return len(self.columns) if self.metric is None else int(self.metric.shape[1])

    @property
    def n_coordinates(self) -> int:
        n_network = 0 if self.network is None else self.network.n_outputs
        return self.n_linear + n_network + (0 if self.trees is None else self.trees.n_outputs)

    @property
    def is_oblique(self) -> bool:
        """Whether a coordinate may depend on several inputs, so that regions are not boxes of inputs."""
        return not (self.metric is None and self.network is None and self.trees is None)

    @property
    def is_identity(self) -> bool:
        """Whether the coordinates are the columns as they are."""
        plain = all(warp is None for warp in self.warps)
        return (
            plain and not self.is_oblique and np.array_equal(self.columns, np.arange(self.n_inputs))
        )

    def features(self, X: Array) -> Array:
        """Return the warped columns of X, (n_rows, n_features)."""
        table = np.empty((len(X), len(self.columns)))
        for k, (column, warp) in enumerate(zip(self.columns, self.warps, strict=True)):
            table[:, k] = X[:, column] if warp is None else warp(X[:, column])
        return table

    def __call__(self, X: Array) -> Array:
        """Return the coordinates of rows of X, (n_rows, n_coordinates)."""
        U = self.linear(X)
        learned = [] if self.network is None else [self.network(U)]
        learned += [] if self.trees is None else [self.trees(X)]
        return np.hstack([U, *learned]) if learned else U

    def linear(self, X: Array) -> Array:
        """Return the coordinates without those of network and trees, (n_rows, n_linear)."""
        features = self.features(X)
        if self.metric is None:
            return features
        # Feature by feature: a matrix product rounds differently for other numbers of rows, and equal rows must stay equal.
        U = np.zeros((len(X), self.n_linear))
        for k, loadings in enumerate(self.metric):
            U += features[:, k : k + 1] * loadings
        return U

    def to_input(self, coordinate: int, u: Array) -> Array:
        """Return the values of its column at which a coordinate is u; only if coordinates are not oblique."""
        assert not self.is_oblique
        warp = self.warps[coordinate]
        return np.asarray(u, dtype=np.float64) if warp is None else warp.inverse(u)

    def names(self, input_names: Sequence[str]) -> list[str]:
        """Return a name for each feature."""
        pairs = zip(self.columns, self.warps, strict=True)
        return [
            f"{input_names[column]}{'' if warp is None else ' (warped)'}" for column, warp in pairs
        ]

    def slopes(self, x: Array) -> Array:
        """Return the derivatives of the features by their columns at one row, (n_features,)."""
        pairs = zip(self.columns, self.warps, strict=True)
        return np.array(
            [1.0 if warp is None else float(warp.slope(x[column])) for column, warp in pairs]
        )

    def input_rates(self, rates: Array, unit: Array, input_unit: Array | float = 1.0) -> Array:
        """Return how fast a function varies along each input, given that along each coordinate.

        Parameters
        ----------
        rates : ndarray of shape (..., n_coordinates)
            Inverse length scales, in the units of the coordinates.
        unit : ndarray of shape (n_features,)
            How far each feature moves with its input: its standard deviation for rates per standard deviation, or its slope
            for rates per unit of the input.
        input_unit : ndarray of shape (n_inputs,) or float
            How far each input moves itself: the same standard deviations, or one.

        Returns
        -------
        ndarray of shape (..., n_inputs)
            The root of the sum of squares over the features of an input.
        """
        squared_rates = np.square(rates[..., : self.n_linear])
        if self.network is not None:
            of_network = np.square(rates[..., self.n_linear :][..., : self.network.n_outputs])
            squared_rates = squared_rates + of_network @ np.square(self.network.slopes).T
        if self.metric is None:
            squares = squared_rates * np.square(unit)
        else:
            squares = squared_rates @ np.square(self.metric * unit[:, None]).T
        total = np.zeros((*squares.shape[:-1], self.n_inputs))
        for k, column in enumerate(self.columns):
            total[..., column] += squares[..., k]
        if self.trees is not None:
            of_trees = np.square(rates[..., -self.trees.n_outputs :])
            slopes = self.trees.slopes * np.reshape(input_unit, (-1, 1))
            total = total + of_trees @ np.square(slopes).T
        return np.sqrt(total)
