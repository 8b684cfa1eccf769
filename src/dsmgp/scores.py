"""Scores of predictions: of the mean, of the whole predictive distribution, and of its calibration.

Every function takes observations ``y`` of shape (n,) or (n, n_outputs), and their predictive distribution, a
:class:`~dsmgp.Mixture` (or, for errors of the mean, an array of means). Lower is better unless stated
otherwise. With several outputs, errors are averaged over outputs and log densities of the marginals are
summed.

Examples
--------
Four rows, each predicted by a standard Gaussian:

>>> from dsmgp import Mixture
>>> distribution = Mixture(np.ones((4, 1)), np.zeros((4, 1, 1)), np.ones((4, 1, 1)))
>>> y = np.array([-1.0, 0.0, 0.5, 2.0])
>>> scores = score_table(y, distribution, baseline=0.0)
>>> scores["nlpd"] == nlpd(y, distribution) == gaussian_nlpd(y, distribution) == joint_nlpd(
...     y, distribution
... )
True
>>> round(crps(y, distribution), 3)
0.655
>>> coverage(y, distribution, 0.9), round(interval_width(distribution, 0.9), 2)
(0.75, 3.29)
>>> pit(y, distribution).round(2)
array([0.16, 0.5 , 0.69, 0.98])
>>> pit_histogram(y, distribution, n_bins=2)
array([0.25, 0.75])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_finite
from dsmgp.experts.loo import normal_log_density
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution

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

# Quadrature of the CRPS of warped outputs: points in standard deviations of each component, how many points
# are used at most, and Gauss-Legendre nodes and weights between two of them.
DEVIATIONS = np.array([-8.0, -6.0, -4.5, -3.5, -2.5, -1.5, -0.75, 0, 0.75, 1.5, 2.5, 3.5, 4.5, 6.0, 8.0])  # fmt: skip
MAX_POINTS = 96
NODES, NODE_WEIGHTS = (
    0.5 * table + shift
    for table, shift in zip(np.polynomial.legendre.leggauss(3), (0.5, 0.0), strict=True)
)
# Entries of the weights of a batch of rows.
WARPED_ENTRIES = 4096


def mae(y: ArrayLike, mean: ArrayLike) -> float:
    """Return the mean absolute error of the predictive mean.

    Examples
    --------
    >>> mae([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    return float(np.mean(np.abs(_error(y, mean))))


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """Return the root mean square error of the predictive mean, averaged over outputs.

    Examples
    --------
    >>> rmse([1.0, 2.0], [1.0, 4.0])
    1.4142135623730951
    """
    return float(np.mean(np.sqrt(np.mean(_error(y, mean) ** 2, axis=0))))


def r2(y: ArrayLike, mean: ArrayLike, baseline: ArrayLike) -> float:
    """Return the coefficient of determination against a constant ``baseline``, averaged over outputs; higher is better.

    It is one minus the ratio of squared errors. If the baseline has no error, it is 1 if the mean has none
    either, and else 0.

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
    zero = len(observed) * rounding**2  # a squared error that is rounding alone
    explained = 1.0 - error / np.where(spread > zero, spread, 1.0)
    return float(np.mean(np.where(spread > zero, explained, error <= zero)))


def score_table(
    y: ArrayLike, distribution: PredictiveDistribution, baseline: ArrayLike
) -> dict[str, float]:
    """Return the usual scores by name; ``baseline`` is the mean of the training outputs."""
    return {
        "mae": mae(y, distribution.mean),
        "rmse": rmse(y, distribution.mean),
        "r2": r2(y, distribution.mean, baseline),
        "nlpd": nlpd(y, distribution),
        "crps": crps(y, distribution),
        "coverage_50": coverage(y, distribution, 0.5),
        "coverage_90": coverage(y, distribution, 0.9),
        "interval_width_90": interval_width(distribution, 0.9),
    }


def score_each(
    y: ArrayLike, distribution: PredictiveDistribution, baseline: ArrayLike
) -> list[dict[str, float]]:
    """Return the :func:`score_table` of each output: outputs may differ in their units, and then errors do not add up.

    Examples
    --------
    >>> from dsmgp import Mixture
    >>> distribution = Mixture(np.ones((2, 1)), np.zeros((2, 1, 2)), np.ones((2, 1, 2)))
    >>> [scores["mae"] for scores in score_each([[1.0, 10.0], [3.0, 30.0]], distribution, 0.0)]
    [2.0, 20.0]
    """
    observed = _columns(np.asarray(y, dtype=np.float64))
    constants = np.broadcast_to(np.asarray(baseline, dtype=np.float64), observed.shape[1])
    return [
        score_table(observed[:, k], distribution.marginal(k), constants[k])
        for k in range(observed.shape[1])
    ]


def nlpd(y: ArrayLike, distribution: PredictiveDistribution) -> float:
    """Return the mean negative log predictive density; of several outputs the sum of the marginals'."""
    return float(-np.mean(_columns(distribution.logpdf(y)).sum(axis=1)))


def joint_nlpd(y: ArrayLike, distribution: PredictiveDistribution) -> float:
    """Return the mean negative log density of all outputs jointly."""
    return float(-np.mean(distribution.joint_logpdf(y)))


def gaussian_nlpd(y: ArrayLike, distribution: PredictiveDistribution) -> float:
    """Return the NLPD of Gaussians with the mixture's means and variances, as the paper reports it."""
    variance = _columns(distribution.var)
    density = normal_log_density(_error(y, distribution.mean), variance)
    return -float(np.mean(density.sum(axis=1)))


def crps(y: ArrayLike, distribution: PredictiveDistribution, batch: int = 4096) -> float:
    """Return the mean continuous ranked probability score, in the units of y.

    It is ``E|Y - y| - E|Y - Y'| / 2`` with Y and Y' drawn from the predictive distribution, in closed form
    (Grimit et al. 2006); of a warped output it is the integral of the squared error of the cdf, by
    quadrature.
    """
    observed = _columns(np.asarray(y, dtype=np.float64))
    total = 0.0
    for output in range(observed.shape[1]):
        of_output = distribution.marginal(output)
        score, at_once = _gaussian_crps, batch
        (_, first), *others = of_output.parts
        if others:
            score = _joined_crps
        elif first.warps:  # with far larger arrays
            score, at_once = _warped_crps, 1 + WARPED_ENTRIES // of_output.weights.shape[1]
        for start in range(0, len(observed), at_once):
            rows = slice(start, start + at_once)
            total += float(np.sum(score(observed[rows, output], of_output[rows])))
    return total / observed.size


def coverage(y: ArrayLike, distribution: PredictiveDistribution, level: float = 0.9) -> float:
    """Return the share of observations inside the central interval; ``level`` if calibrated."""
    u = pit(y, distribution)
    return float(np.mean((u >= 0.5 - 0.5 * level) & (u <= 0.5 + 0.5 * level)))


def interval_width(distribution: PredictiveDistribution, level: float = 0.9) -> float:
    """Return the mean width of the central interval."""
    low, high = distribution.interval(level)
    return float(np.mean(high - low))


def pit(y: ArrayLike, distribution: PredictiveDistribution) -> Array:
    """Return the probability integral transform, the predictive cdf at each observation; uniform if calibrated."""
    return distribution.cdf(y)


def pit_histogram(y: ArrayLike, distribution: PredictiveDistribution, n_bins: int = 10) -> Array:
    """Return the share of observations in each of ``n_bins`` equally probable bins; uniform if calibrated."""
    counts, _ = np.histogram(pit(y, distribution), bins=n_bins, range=(0.0, 1.0))
    return np.asarray(counts / counts.sum())


def _columns(values: Array) -> Array:
    return values.reshape(len(values), -1)


def _error(y: ArrayLike, mean: ArrayLike) -> Array:
    observed, means = np.asarray(y, dtype=np.float64), np.asarray(mean, dtype=np.float64)
    check_finite(observed, "y")
    if observed.shape != means.shape:
        raise InputError(
            f"expected y and means of one shape, got {observed.shape} and {means.shape}"
        )
    return _columns(observed - means)


def _gaussian_crps(y: Array, distribution: PredictiveDistribution) -> Array:
    """Return the CRPS of each row of a mixture of Gaussians."""
    weights = distribution.weights
    mean, variance = distribution.component_means[..., 0], distribution.component_variances[..., 0]
    distance = _absolute(y[:, None] - mean, variance)
    spread = np.zeros(len(mean))
    for k in range(mean.shape[1]):  # one component against all, to save memory
        pair = _absolute(mean[:, k, None] - mean, variance[:, k, None] + variance)
        spread += weights[:, k] * (weights * pair).sum(axis=1)
    return np.asarray((weights * distance).sum(axis=1) - 0.5 * spread)


def _warped_crps(y: Array, distribution: PredictiveDistribution) -> Array:
    """Return the CRPS of each row of a warped mixture: the integral of (F(v) - [v >= y])^2 over v.

    By Gauss-Legendre quadrature in latent units, with weights that add up to each interval's length in the units of y.
    """
    ((_, mixture),) = distribution.parts
    warp, latent = mixture.warps[0], mixture.latent
    assert warp is not None
    points = _quadrature_points(latent)
    split = np.clip(warp.to_latent(y), points[:, 0], points[:, -1])
    edges = np.sort(np.column_stack([points, split]), axis=1)
    nodes = edges[:, :-1, None] + np.diff(edges, axis=1)[:, :, None] * NODES
    flat = nodes.reshape(len(y), -1)
    z = flat[:, :, None] - latent.component_means[:, None, :, 0]
    z /= np.sqrt(latent.component_variances)[:, None, :, 0]
    cdf = np.einsum("rk,rnk->rn", latent.weights, ndtr(z)).reshape(nodes.shape)
    error = np.square(cdf - (nodes >= split[:, None, None]))
    weights = NODE_WEIGHTS * np.exp(-warp.log_slope(warp.from_latent(nodes)))
    mean_error = (weights * error).sum(axis=-1) / weights.sum(axis=-1)
    ends = warp.from_latent(edges)
    # Outside of all points the cdf is 0 or 1.
    outside = np.maximum(ends[:, 0] - y, 0.0) + np.maximum(y - ends[:, -1], 0.0)
    return np.asarray((mean_error * np.diff(ends, axis=1)).sum(axis=1) + outside)


def _joined_crps(y: Array, distribution: PredictiveDistribution) -> Array:
    """Return the CRPS of each row of mixtures with different warps: the integral of (F(v) - [v >= y])^2 over v, by quadrature."""
    points = []
    for _, part in distribution.parts:
        latent = _quadrature_points(part.latent)
        warp = part.warps[0] if part.warps else None
        points.append(latent if warp is None else warp.from_latent(latent))
    edges = np.sort(np.column_stack([*points, y]), axis=1)
    widths, total = np.diff(edges, axis=1), np.zeros(len(y))
    for k, width in enumerate(widths.T):
        if not width.any():
            continue
        for node, weight in zip(NODES, NODE_WEIGHTS, strict=True):
            v = edges[:, k] + width * node
            above = np.where(edges[:, k] >= y, distribution.sf(v), distribution.cdf(v))
            total += weight * width * np.square(above)
    return total / np.sum(NODE_WEIGHTS)


def _quadrature_points(mixture: PredictiveDistribution) -> Array:
    """Return increasing points for each row, (n, n_points), between which the cdf is smooth: closer where components are narrow or many."""
    means, stds = mixture.component_means[..., 0], np.sqrt(mixture.component_variances[..., 0])
    points = (means[:, :, None] + stds[:, :, None] * DEVIATIONS).reshape(len(means), -1)
    order = np.argsort(points, axis=1)
    points = np.take_along_axis(points, order, axis=1)
    if points.shape[1] <= MAX_POINTS:
        return points
    # Components of small weight may be stepped over.
    weight = np.take_along_axis(np.repeat(mixture.weights, len(DEVIATIONS), axis=1), order, axis=1)
    share = np.cumsum(weight, axis=1)
    levels = np.linspace(0.0, 1.0, MAX_POINTS)
    kept = np.stack([np.searchsorted(row, levels * row[-1]) for row in share])
    kept[:, 0] = 0
    return np.take_along_axis(points, kept, axis=1)


def _absolute(mean: Array, variance: Array) -> Array:
    """Return E|X| of a Gaussian."""
    std = np.sqrt(variance)
    z = mean / std
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return np.asarray(2.0 * std * density + mean * (2.0 * ndtr(z) - 1.0))
