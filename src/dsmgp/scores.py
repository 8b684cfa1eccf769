"""Scores of predictions: of the mean, of the whole law, and of its calibration.

Every function takes what was observed, ``y`` of shape (n,) or (n, n_outputs), and a
:class:`~dsmgp.mixture.Mixture` (or, for errors of the mean, an array of means). Lower is better unless it says
otherwise. Several outputs: errors are averaged over outputs, densities of the marginals are added up.

Examples
--------
Four rows, each with a standard Gaussian for a law:

>>> law = Mixture(np.ones((4, 1)), np.zeros((4, 1, 1)), np.ones((4, 1, 1)))
>>> y = np.array([-1.0, 0.0, 0.5, 2.0])
>>> found = score_table(y, law, baseline=0.0)
>>> found["nlpd"] == nlpd(y, law) == gaussian_nlpd(y, law) == joint_nlpd(y, law)
True
>>> round(crps(y, law), 3)
0.655
>>> coverage(y, law, 0.9), round(interval_width(law, 0.9), 2)
(0.75, 3.29)
>>> pit(y, law).round(2)
array([0.16, 0.5 , 0.69, 0.98])
>>> pit_histogram(y, law, n_bins=2)
array([0.25, 0.75])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from dsmgp.mixture import Mixture
from dsmgp.validation import check_finite

__all__ = [
    "coverage",
    "crps",
    "gaussian_nlpd",
    "interval_width",
    "joint_nlpd",
    "mae",
    "nlpd",
    "pit",
    "pit_histogram",
    "r2",
    "rmse",
    "score_each",
    "score_table",
]

Array = NDArray[np.float64]


def mae(y: ArrayLike, mean: ArrayLike) -> float:
    """Mean absolute error of the mean.

    Examples
    --------
    >>> mae([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    return float(np.mean(np.abs(_error(y, mean))))


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """Root mean square error of the mean, averaged over outputs.

    Examples
    --------
    >>> rmse([1.0, 2.0], [1.0, 4.0])
    1.4142135623730951
    """
    return float(np.mean(np.sqrt(np.mean(_error(y, mean) ** 2, axis=0))))


def r2(y: ArrayLike, mean: ArrayLike, baseline: ArrayLike) -> float:
    """Share of the squared error of a constant ``baseline`` that the mean takes away, averaged over outputs; higher is better.

    Where the baseline has no error that could be taken away it is 1 if the mean has none either, and else 0.

    Examples
    --------
    >>> r2([1.0, 3.0], [1.0, 3.0], 2.0)
    1.0
    """
    observed = np.asarray(y, dtype=np.float64)
    constant = np.broadcast_to(np.asarray(baseline, dtype=np.float64), observed.shape)
    error = np.sum(_error(y, mean) ** 2, axis=0)
    spread = np.sum(_error(y, constant) ** 2, axis=0)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(_columns(observed)).max(axis=0)
    nothing = len(observed) * rounding**2
    share = 1.0 - error / np.where(spread > nothing, spread, 1.0)
    return float(np.mean(np.where(spread > nothing, share, error <= nothing)))


def score_table(y: ArrayLike, law: Mixture, baseline: ArrayLike) -> dict[str, float]:
    """All scores of a prediction that people ask for, by name; ``baseline`` is the mean of the training outputs."""
    return {
        "mae": mae(y, law.mean),
        "rmse": rmse(y, law.mean),
        "r2": r2(y, law.mean, baseline),
        "nlpd": nlpd(y, law),
        "crps": crps(y, law),
        "coverage_50": coverage(y, law, 0.5),
        "coverage_90": coverage(y, law, 0.9),
        "interval_width_90": interval_width(law, 0.9),
    }


def score_each(y: ArrayLike, law: Mixture, baseline: ArrayLike) -> list[dict[str, float]]:
    """The :func:`score_table` of each output by itself: several may have several units, whose errors do not add up.

    Examples
    --------
    >>> law = Mixture(np.ones((2, 1)), np.zeros((2, 1, 2)), np.ones((2, 1, 2)))
    >>> [found["mae"] for found in score_each([[1.0, 10.0], [3.0, 30.0]], law, 0.0)]
    [2.0, 20.0]
    """
    observed = _columns(np.asarray(y, dtype=np.float64))
    constants = np.broadcast_to(np.asarray(baseline, dtype=np.float64), observed.shape[1])
    found = []
    for k in range(observed.shape[1]):
        means, variances = law.component_means[..., k : k + 1], law.component_variances[..., k : k + 1]  # fmt: skip
        found.append(score_table(observed[:, k], Mixture(law.weights, means, variances), constants[k]))  # fmt: skip
    return found


def nlpd(y: ArrayLike, law: Mixture) -> float:
    """Mean negative log predictive density of the mixture; of several outputs the sum of the marginals'."""
    return float(-np.mean(_columns(law.logpdf(y)).sum(axis=1)))


def joint_nlpd(y: ArrayLike, law: Mixture) -> float:
    """Mean negative log density of all outputs together."""
    return float(-np.mean(law.joint_logpdf(y)))


def gaussian_nlpd(y: ArrayLike, law: Mixture) -> float:
    """NLPD of the Gaussians with the mixture's means and variances, which is what the paper reports."""
    variance = _columns(law.var)
    terms = 0.5 * (_error(y, law.mean) ** 2 / variance + np.log(2.0 * np.pi * variance))
    return float(np.mean(terms.sum(axis=1)))


def crps(y: ArrayLike, law: Mixture, batch: int = 4096) -> float:
    """Mean continuous ranked probability score, in closed form (Grimit et al. 2006), in the units of y.

    ``E|Y - y| - E|Y - Y'| / 2`` with Y and Y' drawn from the law.
    """
    observed = _columns(np.asarray(y, dtype=np.float64))
    total = 0.0
    for start in range(0, len(observed), batch):
        rows = slice(start, start + batch)
        weights = law.weights[rows]
        for output in range(observed.shape[1]):
            mean = law.component_means[rows, :, output]
            variance = law.component_variances[rows, :, output]
            near = _absolute(observed[rows, output, None] - mean, variance)
            spread = np.zeros(len(mean))
            for k in range(mean.shape[1]):  # one component against all: never a cube in memory
                pair = _absolute(mean[:, k, None] - mean, variance[:, k, None] + variance)
                spread += weights[:, k] * (weights * pair).sum(axis=1)
            total += float(np.sum((weights * near).sum(axis=1) - 0.5 * spread))
    return total / observed.size


def coverage(y: ArrayLike, law: Mixture, level: float = 0.9) -> float:
    """Share of observations inside the central interval; calibrated if it equals ``level``."""
    u = pit(y, law)
    return float(np.mean((u >= 0.5 - 0.5 * level) & (u <= 0.5 + 0.5 * level)))


def interval_width(law: Mixture, level: float = 0.9) -> float:
    """Mean width of the central interval."""
    low, high = law.interval(level)
    return float(np.mean(high - low))


def pit(y: ArrayLike, law: Mixture) -> Array:
    """Probability integral transform: where in its law each observation lies; uniform if calibrated."""
    return law.cdf(y)


def pit_histogram(y: ArrayLike, law: Mixture, n_bins: int = 10) -> Array:
    """Share of observations in each of ``n_bins`` equal slices of their law."""
    counts, _ = np.histogram(pit(y, law), bins=n_bins, range=(0.0, 1.0))
    return np.asarray(counts / counts.sum())


def _columns(values: Array) -> Array:
    return values.reshape(len(values), -1)


def _error(y: ArrayLike, mean: ArrayLike) -> Array:
    observed, predicted = np.asarray(y, dtype=np.float64), np.asarray(mean, dtype=np.float64)
    check_finite(observed, "y")
    if observed.shape != predicted.shape:
        raise ValueError(
            f"expected y and means of one shape, got {observed.shape} and {predicted.shape}"
        )
    return _columns(observed - predicted)


def _absolute(mean: Array, variance: Array) -> Array:
    """E|X| of a Gaussian."""
    std = np.sqrt(variance)
    z = mean / std
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return np.asarray(2.0 * std * density + mean * (2.0 * ndtr(z) - 1.0))
