"""Output warps: strictly increasing functions h, with y = h(t), where the latent output t is what the GPs model.

The predictive distribution of y is that of t, a mixture of Gaussians, mapped through h (a warped GP: Snelson et al. 2004, Rios & Tobar
2019). Densities, probabilities and quantiles follow from h and its inverse, and both families have their moments in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import ndtri

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.weighted import mid_rank_scores, weighted_values
from dsmgp.gp.transforms.spline_moments import spline_moments

__all__ = [
    "NAMED_WARPS",
    "LogWarp",
    "OutputWarp",
    "SplineWarp",
    "named_warp",
    "normal_scores",
    "same_warp",
]

#: What :func:`named_warp` takes.
NAMED_WARPS = ("rank", "log", "positive")

# Distinct outputs without which ranks say too little about a distribution.
MIN_DISTINCT = 10
# Knots of a spline, at most and for each row.
MAX_KNOTS, KNOTS_PER_ROW = 16, 0.125
# Quantiles further out than these normal scores (0.4% of the rows), or with fewer rows beyond them, are too noisy to be knots.
OUTERMOST, ROWS_BEYOND = 2.65, 2.5
# Bounds of the slopes, relative to their median. Flat parts multiply densities: at ties the slope would be zero, and the density a model
# could claim there without bound. Steep parts only spread outliers; their bound keeps the moments of heavy tails sane.
FLATTEST, STEEPEST = 1e-2, 1e3
# Knots closer than this share of the usual distance are left out: beside an atom values may differ in their last digits only.
CLOSEST = 1e-3
# Larger exponents would give numbers whose squares overflow.
LARGEST_EXPONENT = 340.0


class OutputWarp(Protocol):
    """A strictly increasing function y = h(t). Arrays have any shape."""

    @property
    def lower(self) -> float | None:
        """The bound that y stays above, if there is one."""

    @property
    def description(self) -> str:
        """The warp in words, for a summary."""

    def to_latent(self, y: Array) -> Array:
        """Return t; minus infinity at and below the lower bound."""

    def from_latent(self, t: Array) -> Array:
        """Return y."""

    def log_slope(self, y: Array) -> Array:
        """Return log dt/dy, which adds to log densities; minus infinity at and below the lower bound."""

    def moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return mean and variance of y where t is Gaussian."""


@dataclass(frozen=True)
class LogWarp:
    """The exponential function: y = exp(t) is lognormal where t is Gaussian.

    Examples
    --------
    >>> warp = LogWarp()
    >>> warp.to_latent(np.array([1.0, np.e])), warp.from_latent(np.array([0.0]))
    (array([0., 1.]), array([1.]))
    >>> mean, variance = warp.moments(np.array([0.0]), np.array([1.0]))
    >>> mean.round(3), variance.round(3)
    (array([1.649]), array([4.671]))
    """

    lower: ClassVar[float] = 0.0
    description: ClassVar[str] = "logarithm"

    def to_latent(self, y: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(y, 0.0))

    def from_latent(self, t: Array) -> Array:
        return np.exp(np.minimum(t, LARGEST_EXPONENT))

    def log_slope(self, y: Array) -> Array:
        return np.where(y > 0, -self.to_latent(y), -np.inf)

    def moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        average = np.exp(np.minimum(mean + 0.5 * variance, LARGEST_EXPONENT))
        # log(exp(v) - 1), without overflow
        with np.errstate(divide="ignore"):
            log_excess = variance + np.log(-np.expm1(-variance))
        spread = np.exp(np.minimum(2.0 * mean + variance + log_excess, 2.0 * LARGEST_EXPONENT))
        return average, spread


@dataclass(frozen=True, eq=False, repr=False)
class SplineWarp:
    """A piecewise quadratic function whose slope is continuous: linear between knots, and constant beyond the outer ones.

    Values and slopes at the knots determine how far the knots are apart in t.

    Attributes
    ----------
    values : ndarray of shape (n_knots,)
        y at the knots, increasing.
    slopes : ndarray of shape (n_knots,)
        dy/dt at the knots, positive.
    start : float
        t at the first knot.
    lower : float, optional
        A bound below the first value. Below the first knot the function then approaches it exponentially instead of falling on
        along a line.
    strength : float
        What :func:`normal_scores` was given; it only serves the description.

    Examples
    --------
    >>> warp = SplineWarp(np.array([0.0, 3.0]), np.array([1.0, 2.0]), start=0.0)
    >>> warp.knots, warp.from_latent(np.array([-1.0, 1.0, 2.0, 3.0]))
    (array([0., 2.]), array([-1.  ,  1.25,  3.  ,  5.  ]))
    >>> warp.to_latent(np.array([1.25]))
    array([1.])
    """

    values: Array
    slopes: Array
    start: float
    lower: float | None = None
    strength: float = 1.0

    def __post_init__(self) -> None:
        values, slopes = self.values, self.slopes
        numbers = [*values, *slopes, self.start, self.strength, self.lower or 0.0]
        if not (len(values) == len(slopes) > 1 and np.isfinite(numbers).all()):
            raise InputError("expected finite values and slopes at two or more knots of a warp")
        with np.errstate(all="ignore"):
            increasing = (np.diff(values) > 0).all() and (np.diff(self.knots) > 0).all()
        if not (increasing and (slopes > 0).all() and np.isfinite(self.knots).all()):
            raise InputError(
                "expected increasing values and positive slopes at the knots of a warp"
            )
        if self.lower is not None and not self.lower < values[0]:
            raise InputError(
                f"expected a bound below the first value {values[0]:g} of a warp, got {self.lower:g}"
            )

    @cached_property
    def knots(self) -> Array:
        """t at the knots."""
        # The mean slope of a piece is the average of those at its ends.
        widths = np.diff(self.values) / (0.5 * self.slopes[:-1] + 0.5 * self.slopes[1:])
        return np.asarray(self.start + np.concatenate([[0.0], np.cumsum(widths)]))

    @cached_property
    def bends(self) -> Array:
        """Change of the slope over a piece, relative to the slope at its left knot, per unit of t; zero beyond the knots."""
        inner = np.diff(self.slopes) / self.slopes[:-1] / np.diff(self.knots)
        return np.concatenate([[0.0], inner, [0.0]])

    @cached_property
    def curvatures(self) -> Array:
        """Second derivative in each piece; zero beyond the knots."""
        return self.bends * self.slopes[np.maximum(np.arange(len(self.bends)) - 1, 0)]

    @cached_property
    def rate(self) -> float:
        """Relative slope of the exponential tail, of y minus the bound; zero without one."""
        return 0.0 if self.lower is None else float(self.slopes[0] / (self.values[0] - self.lower))

    def __repr__(self) -> str:
        return f"SplineWarp({self.description})"

    @property
    def description(self) -> str:
        bound = "" if self.lower is None else f" above {self.lower:g}"
        return (
            f"normal scores{bound}, strength {self.strength:g}: "
            f"slopes from {self.slopes.min():.3g} to {self.slopes.max():.3g}"
        )

    def to_latent(self, y: Array) -> Array:
        left, relative = self._from_knot(y)
        # The root of a quadratic without cancellation; its discriminant is the squared slope there.
        with np.errstate(invalid="ignore", over="ignore"):  # at infinity, where pieces are linear
            root = np.sqrt(np.maximum(1.0 + 2.0 * self.bends[left + 1] * relative, 0.0))
        root = np.where(self.bends[left + 1] == 0.0, 1.0, root)
        t = self.knots[np.maximum(left, 0)] + 2.0 * relative / (1.0 + root)
        if self.lower is None:
            return t
        with np.errstate(divide="ignore"):
            height = np.maximum(np.minimum(y, self.values[0]) - self.lower, 0.0)
            share = height / (self.values[0] - self.lower)
            return np.where(left < 0, self.knots[0] + np.log(share) / self.rate, t)

    def log_slope(self, y: Array) -> Array:
        left, relative = self._from_knot(y)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            square = 1.0 + 2.0 * self.bends[left + 1] * relative
            bend = np.where(self.bends[left + 1] == 0.0, 0.0, 0.5 * np.log(square))
            log_slope = -np.log(self.slopes[np.maximum(left, 0)]) - bend
            if self.lower is not None:
                tail = np.where(y > self.lower, -np.log(self.rate * (y - self.lower)), -np.inf)
                log_slope = np.where(left < 0, tail, log_slope)
        return log_slope

    def from_latent(self, t: Array) -> Array:
        return self.value_and_slope(t)[0]

    def moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        return spline_moments(self, mean, variance)

    def _from_knot(self, y: Array) -> tuple[Index, Array]:
        """Return the last knot at or below y, -1 for none, and the distance of y from it (or from the first) over the slope there."""
        left = np.searchsorted(self.values, y, side="right") - 1
        knot = np.maximum(left, 0)
        return left, (y - self.values[knot]) / self.slopes[knot]

    def value_and_slope(self, t: Array) -> tuple[Array, Array]:
        """Return h and its derivative at t."""
        left = np.searchsorted(self.knots, t, side="right") - 1
        knot = np.maximum(left, 0)
        away, slope, bend = t - self.knots[knot], self.slopes[knot], self.bends[left + 1]
        with np.errstate(invalid="ignore"):  # at infinity, where pieces are linear
            value = away * slope * np.where(bend == 0.0, 1.0, 1.0 + 0.5 * bend * away)
            value = self.values[knot] + value
            slope = slope * np.where(bend == 0.0, 1.0, 1.0 + bend * away)
        if self.lower is None:
            return value, slope
        height = (self.values[0] - self.lower) * np.exp(self.rate * np.minimum(away, 0.0))
        return (
            np.where(left < 0, self.lower + height, value),
            np.where(left < 0, self.rate * height, slope),
        )


def same_warp(warp: OutputWarp | None, other: OutputWarp | None) -> bool:
    """Return whether two warps are the same function.

    Examples
    --------
    >>> same_warp(LogWarp(), LogWarp()), same_warp(LogWarp(), None)
    (True, False)
    """
    if not (isinstance(warp, SplineWarp) and isinstance(other, SplineWarp)):
        return warp == other
    return (
        np.array_equal(warp.values, other.values)
        and np.array_equal(warp.slopes, other.slopes)
        and (warp.start, warp.lower) == (other.start, other.lower)
    )


def normal_scores(
    y: Array, strength: float = 1.0, lower: float | None = None, weights: Array | None = None
) -> SplineWarp | None:
    """Return the warp under which outputs are about Gaussian: t is the normal score of the rank of y.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Outputs; equal ones share their mean rank.
    strength : float
        Factor of the log slopes: 1 for normal scores, 0 for a linear function.
    lower : float, optional
        A bound that all outputs, and all predictions, are above.
    weights : ndarray of shape (n,), optional
        Weights of the outputs.

    Returns
    -------
    SplineWarp or None
        None if outputs have fewer than ten distinct values, or hardly differ at all.

    Examples
    --------
    >>> y = np.exp(np.random.default_rng(0).normal(size=1000))
    >>> t = normal_scores(y).to_latent(y)
    >>> abs(float(np.mean(t**3))) < 0.2 < float(np.mean((y - y.mean()) ** 3))
    True
    """
    distinct, counts = weighted_values(y, weights)
    if len(distinct) < MIN_DISTINCT:
        return None
    if lower is not None and not distinct[0] > lower:
        raise InputError(f"expected outputs above {lower:g}, got {distinct[0]:g}")
    scores = mid_rank_scores(counts)
    n = max(float(counts.sum()), len(distinct))  # weights may be small
    outermost = min(OUTERMOST, float(ndtri(1.0 - ROWS_BEYOND / n)))
    ends = np.clip([scores[0], scores[-1]], -outermost, outermost)
    knots = np.linspace(ends[0], ends[1], int(np.clip(KNOTS_PER_ROW * n, 4, MAX_KNOTS)))
    values = np.interp(knots, scores, distinct)
    if not values[-1] > values[0]:  # distinct in their last digits only
        return None
    chords = np.diff(values) / np.diff(knots)
    # The usual slope; of outputs that nearly all lie at one value it would be that of their rounding errors.
    middle = max(np.median(chords), np.ptp(values) / np.ptp(knots) / STEEPEST)
    kept = _spaced(values, CLOSEST * middle * (knots[1] - knots[0]))
    knots, values = knots[kept], values[kept]
    # The slope at a knot is the geometric mean of those of the chords beside it.
    log_chords = np.log(np.diff(values) / np.diff(knots) / middle)
    log_chords = np.concatenate([log_chords[:1], log_chords, log_chords[-1:]])
    log_slopes = 0.5 * (log_chords[:-1] + log_chords[1:])
    slopes = middle * np.exp(strength * log_slopes.clip(*np.log([FLATTEST, STEEPEST])))
    warp = SplineWarp(values, slopes, 0.0, lower, strength)
    median = warp.to_latent(np.asarray(np.interp(0.0, scores, distinct)))
    return replace(warp, start=-float(median))  # t = 0 at the median


def named_warp(name: str, y: Array, weights: Array | None = None) -> OutputWarp | None:
    """Return the warp of an output by the name that the estimator takes.

    Parameters
    ----------
    name : "rank", "log", or "positive"
        Normal scores; the logarithm; normal scores with the bound 0, or the logarithm where there are too few distinct values.
    y : ndarray of shape (n,)
        The training outputs; above 0 but for ``"rank"``.
    weights : ndarray of shape (n,), optional

    Examples
    --------
    >>> named_warp("positive", np.array([1.0, 2.0]))
    LogWarp()
    """
    if name == "log":
        return LogWarp()
    if name == "positive":
        return normal_scores(y, lower=0.0, weights=weights) or LogWarp()
    return normal_scores(y, weights=weights)


def _spaced(values: Array, least: float) -> Index:
    """Return the positions of increasing values such that neighbours are at least so far apart."""
    kept = [0]
    for k in range(1, len(values)):
        if values[k] - values[kept[-1]] >= least:
            kept.append(k)
    return np.array(kept)
