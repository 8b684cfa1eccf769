"""Rows that may carry a much larger noise: contamination, by variational inference.

Every row has noise s with probability 1 - share, and ratio * s with probability share. Which rows are which is approximated by
independent probabilities q_i; given these, the best approximation to everything else is the exact posterior under the
noise variances ``s / (1 - q_i + q_i / ratio)``, so segments and functions stay exact. What comes out is a lower bound of the log
evidence; updates of q, share, ratio and theta in turn raise it.

With q at zero everywhere an outlier may have been taken for a segment of its own, and then never looks like one. So a second
beginning suspects the rows far from a running median, and the better bound is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.special import expit, xlogy

from dsmgp.ordered_leaf import OrderedLeaf
from dsmgp.process import Process

__all__ = ["Outliers"]

Array = NDArray[np.float64]
START_SHARE, START_RATIO = 0.01, 100.0
# What share and ratio may be: an outlier's noise is another kind of noise, not just a little more of it.
LEAST_SHARE, MOST_SHARE, LEAST_RATIO, MOST_RATIO = 1e-4, 0.25, 16.0, 1e12
# Rows of the running median, and robust standard deviations from it that make a row suspect.
WINDOW, SUSPECT = 21, 5.0


class Outliers:
    """Probability of each row to be an outlier, and how outliers are drawn."""

    def __init__(self, probability: Array) -> None:
        self.probability = probability
        self.share, self.ratio = START_SHARE, START_RATIO

    @classmethod
    def beginnings(cls, leaves: Sequence[OrderedLeaf], y: Array) -> list[Outliers]:
        """The rows far from a running median suspected, and none."""
        away = np.zeros(len(y))  # in robust standard deviations
        for leaf in leaves:
            own = y[leaf.rows]
            if len(own) < WINDOW:
                continue
            from_median = own - median_filter(own, WINDOW, mode="nearest")
            spread = 1.4826 * np.median(np.abs(from_median))
            away[leaf.rows] = from_median / max(spread, 1e-12)
        suspected = np.abs(away) > SUSPECT
        nobody = cls(np.zeros(len(y)))
        if not suspected.any():
            return [nobody]
        suspects = cls(suspected.astype(np.float64))
        # As wide as they lie: with less, rows further off would look like segments from the start.
        suspects.ratio = _ratio(float(np.square(away[suspected]).mean()))
        return [suspects, nobody]

    @property
    def noise_factor(self) -> Array:
        """What each row's noise variance is multiplied by."""
        q = self.probability
        return np.asarray(1.0 / (1.0 - q + q / self.ratio))

    def update(self, y: Array, mean: Array, variance: Array, process: Process) -> None:
        """One step: of each row's probability given f, then of share and ratio given these."""
        s = process.noise
        square = np.square(y - mean) + variance
        self.probability = self._posterior(square, s)
        q = self.probability
        self.share = float(np.clip(q.mean(), LEAST_SHARE, MOST_SHARE))
        if q.sum() > 1e-6:
            self.ratio = _ratio(float(q @ square / q.sum()) / s)
        self.probability = self._posterior(square, s)

    def bound_gap(self) -> float:
        """What the bound has beyond the log evidence at the rows' noise variances."""
        q, share = self.probability, self.share
        gained = 0.5 * np.log(self.noise_factor) - 0.5 * q * np.log(self.ratio)
        divergence = (
            xlogy(q, q) - q * np.log(share) + xlogy(1.0 - q, 1.0 - q) - (1.0 - q) * np.log1p(-share)
        )
        return float(np.sum(gained - divergence))

    def _posterior(self, square: Array, noise: float) -> Array:
        """Of being an outlier, from the expected squared distance of y from f."""
        log_odds = (
            np.log(self.share)
            - np.log1p(-self.share)
            - 0.5 * np.log(self.ratio)
            + 0.5 * square / noise * (1.0 - 1.0 / self.ratio)
        )
        return np.asarray(expit(log_odds))


def _ratio(found: float) -> float:
    """One that may be."""
    return float(np.clip(found, LEAST_RATIO, MOST_RATIO))
