"""Outliers: rows that carry a much larger noise, found by variational inference.

Every row has noise variance s with probability 1 - share, and ratio * s with probability share (a contaminated normal). Which rows are
outliers is approximated by independent probabilities q_i; given these, the best approximation to everything else is the exact
posterior under the noise variances ``s / (1 - q_i + q_i / ratio)``, so segments and functions stay exact. The result is a lower
bound of the log evidence; updates of q, share, ratio and theta in turn raise it.

With q at zero everywhere, an outlier may have become a segment of its own, and then never looks like one. So a second
start suspects the rows far from a running median, and the better bound is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.ndimage import median_filter
from scipy.special import expit, xlogy

from dsmgp._util.arrays import Array
from dsmgp.changepoints.leaf import OrderedLeaf
from dsmgp.changepoints.objective import ChangePointObjective
from dsmgp.changepoints.segment_gp import SegmentedGP
from dsmgp.fitting.learning.optimize import SearchResult
from dsmgp.mixture.inference import Posterior, infer
from dsmgp.progress import stopping

__all__ = ["Contamination", "Outliers", "find_outliers"]

logger = logging.getLogger("dsmgp")

START_SHARE, START_RATIO = 0.01, 100.0
# Bounds of share and ratio: an outlier's noise is another kind of noise, not just a little more of it.
LEAST_SHARE, MOST_SHARE, LEAST_RATIO, MOST_RATIO = 1e-4, 0.25, 16.0, 1e12
# Rows of the running median, and robust standard deviations from it that make a row suspect.
WINDOW, SUSPECT = 21, 5.0
# Outliers and theta are updated in turn, at most so many times, until the bound per row gains less than this.
ROUNDS, BOUND_TOLERANCE = 5, 1e-4
# A row at a change point this probable may have been taken for an outlier because of it.
NEAR_CHANGE = 0.1


@dataclass(frozen=True)
class Contamination:
    """Noise of rows that may be outliers: with probability ``share`` its variance is ``ratio`` times as large."""

    share: float = 0.0
    ratio: float = 1.0

    @property
    def mean(self) -> float:
        """Mean of the factor on the noise variance."""
        return 1.0 + self.share * (self.ratio - 1.0)


@dataclass(frozen=True)
class Outliers:
    """Which rows are outliers, and how outliers are distributed.

    Attributes
    ----------
    probability : ndarray of shape (n_rows,)
        Posterior probability of each training row to be an outlier.
    contamination : Contamination
    """

    probability: Array
    contamination: Contamination = Contamination(START_SHARE, START_RATIO)

    @property
    def noise_factor(self) -> Array:
        """Factor on each row's noise variance, (n_rows, 1)."""
        q = self.probability
        return np.asarray(1.0 / (1.0 - q + q / self.contamination.ratio))[:, None]

    @property
    def bound_gap(self) -> float:
        """What the lower bound has beyond the log evidence at the rows' noise variances."""
        q, share, ratio = self.probability, self.contamination.share, self.contamination.ratio
        gained = 0.5 * np.log(self.noise_factor[:, 0]) - 0.5 * q * np.log(ratio)
        divergence = (
            xlogy(q, q) - q * np.log(share) + xlogy(1.0 - q, 1.0 - q) - (1.0 - q) * np.log1p(-share)
        )
        return float(np.sum(gained - divergence))

    def updated(self, y: Array, mean: Array, variance: Array, noise: float) -> Outliers:
        """Update each row's probability given f, then share and ratio given these.

        Parameters
        ----------
        y : ndarray of shape (n_rows,)
        mean, variance : ndarray of shape (n_rows,)
            Moments of f at the training rows.
        noise : float
            Noise variance of rows that are no outliers.
        """
        square = np.square(y - mean) + variance
        q = _outlier_probability(square / noise, self.contamination)
        share = float(np.clip(q.mean(), LEAST_SHARE, MOST_SHARE))
        ratio = self.contamination.ratio
        if q.sum() > 1e-6:
            ratio = _clip_ratio(float(q @ square / q.sum()) / noise)
        contamination = Contamination(share, ratio)
        return Outliers(_outlier_probability(square / noise, contamination), contamination)


def find_outliers(
    objective: ChangePointObjective, y: Array, learn: Callable[[ChangePointObjective], SearchResult]
) -> tuple[ChangePointObjective, Outliers, int]:
    """Find outliers and theta from several starts, each at the theta where the one before ended.

    Parameters
    ----------
    objective : ChangePointObjective
    y : ndarray of shape (n_rows,)
        The output, scaled for the GPs.
    learn : callable
        Improves an objective's theta by a few iterations.

    Returns
    -------
    objective : ChangePointObjective
        At the best theta, with the outliers' noise.
    outliers : Outliers
    n_evaluations : int
    """
    candidates: list[tuple[float, ChangePointObjective, Outliers]] = []
    n_evaluations = 0
    for start in _starts(objective.leaves, y):
        if candidates and stopping():
            break
        objective = objective.restarted()
        bound, outliers, n = _maximise_bound(objective, start, y, learn)
        logger.info("outliers: bound %.6g, share %.3g", bound, outliers.contamination.share)
        candidates.append((bound, objective, outliers))
        n_evaluations += n
    _, objective, outliers = max(candidates, key=lambda candidate: candidate[0])
    objective.noise_factor = outliers.noise_factor
    return objective, outliers, n_evaluations


def _starts(leaves: Sequence[OrderedLeaf], y: Array) -> list[Outliers]:
    """Return two starts: rows far from a running median suspected, and none."""
    away = np.zeros(len(y))  # in robust standard deviations
    for leaf in leaves:
        values = y[leaf.rows]
        if len(values) < WINDOW:
            continue
        from_median = values - median_filter(values, WINDOW, mode="nearest")
        spread = 1.4826 * np.median(np.abs(from_median))
        away[leaf.rows] = from_median / max(spread, 1e-12)
    suspected = np.abs(away) > SUSPECT
    none_suspected = Outliers(np.zeros(len(y)))
    if not suspected.any():
        return [none_suspected]
    # As wide as they lie: with less, rows further off would look like segments from the start.
    ratio = _clip_ratio(float(np.square(away[suspected]).mean()))
    return [
        Outliers(suspected.astype(np.float64), Contamination(START_SHARE, ratio)),
        none_suspected,
    ]


def _maximise_bound(
    objective: ChangePointObjective,
    outliers: Outliers,
    y: Array,
    learn: Callable[[ChangePointObjective], SearchResult],
) -> tuple[float, Outliers, int]:
    """Update theta given the outliers and outliers given theta, in turn; return lower bound, outliers and evaluations."""
    bound, n_evaluations = -np.inf, 0
    for _ in range(ROUNDS):
        objective.noise_factor = outliers.noise_factor
        n_evaluations += learn(objective).n_evaluations
        previous, (bound, posterior, segmented_gps) = bound, _lower_bound(objective, outliers)
        if bound - previous < BOUND_TOLERANCE * len(y) or stopping():
            break
        mean, variance = _training_moments(posterior, segmented_gps)
        outliers = outliers.updated(y, mean, variance, objective.processes[0].noise)
        bound, outliers = _release_near_changes(objective, outliers)
    return bound, outliers, n_evaluations


def _lower_bound(
    objective: ChangePointObjective, outliers: Outliers
) -> tuple[float, Posterior, list[SegmentedGP]]:
    """Return the lower bound of the evidence at the current theta, the tree's posterior and the conditioned leaves."""
    objective.noise_factor = outliers.noise_factor
    segmented_gps = objective.condition(0.0)
    posterior = infer(objective.tree, [gp.log_evidence for gp in segmented_gps])
    return posterior.log_evidence + outliers.bound_gap, posterior, segmented_gps


def _release_near_changes(
    objective: ChangePointObjective, outliers: Outliers
) -> tuple[float, Outliers]:
    """Take rows next to a change point for no outliers, where that raises the bound; return bound and outliers.

    Once a row at the edge of a segment is suspected, the change point beside it may lie on either side of it, and the
    suspicion reinforces itself.
    """
    bound, _, segmented_gps = _lower_bound(objective, outliers)
    near = np.zeros(len(outliers.probability), dtype=bool)
    for gp in segmented_gps:
        change = gp.segments.change_probability > NEAR_CHANGE
        near[gp.leaf.rows[change[:-1] | change[1:]]] = True
    suspects = near & (outliers.probability > 0.5)
    if suspects.any():
        released = replace(outliers, probability=np.where(suspects, 0.0, outliers.probability))
        released_bound, _, _ = _lower_bound(objective, released)
        if released_bound > bound:
            return released_bound, released
    return bound, outliers


def _training_moments(
    posterior: Posterior, segmented_gps: Sequence[SegmentedGP]
) -> tuple[Array, Array]:
    """Return mean and variance of f at the training rows, (n_rows,) each, of one scaled output."""
    n_rows = 1 + max(int(gp.leaf.rows.max(initial=-1)) for gp in segmented_gps)
    first, second = np.zeros(n_rows), np.zeros(n_rows)
    for gp in segmented_gps:
        leaf = gp.leaf
        path = np.exp(posterior.log_reach[leaf.node])
        point, weight, means, variances = gp.components(leaf.X, leaf.boundaries.position)
        n = len(leaf.rows)
        first[leaf.rows] += path * np.bincount(point, weight * means[:, 0], n)
        second[leaf.rows] += path * np.bincount(point, weight * (variances + means**2)[:, 0], n)
    return first, second - first**2


def _outlier_probability(scaled_square: Array, contamination: Contamination) -> Array:
    """Return the probability of being an outlier, from expected squared residuals over the noise variance."""
    share, ratio = contamination.share, contamination.ratio
    log_odds = (
        np.log(share)
        - np.log1p(-share)
        - 0.5 * np.log(ratio)
        + 0.5 * scaled_square * (1.0 - 1.0 / ratio)
    )
    return np.asarray(expit(log_odds))


def _clip_ratio(ratio: float) -> float:
    return float(np.clip(ratio, LEAST_RATIO, MOST_RATIO))
