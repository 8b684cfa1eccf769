"""Leave-one-out scores of candidate coordinates, and when one candidate is clearly better than another.

Used by :mod:`dsmgp.fitting.selection.coordinates`, which learns the candidates and leaves out their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.significance import is_clear

__all__ = ["CandidateScores", "RowScores"]

# Gains of fewer nats per row do not count.
LEAST_GAIN = 0.03
# Errors below this share of the output's variance are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class RowScores:
    """Leave-one-out results of a candidate at rows that nothing was learned on.

    Attributes
    ----------
    loss : ndarray of shape (2, n_rows)
        Negative log densities in the user's units, each row left out alone and with its duplicates.
    error : ndarray of shape (2, n_rows, n_outputs)
        Squared errors of the predictive mean, over the variance of the output.
    row_weights : ndarray of shape (n_rows,) or None
    """

    loss: Array
    error: Array
    row_weights: Array | None = None

    def gain_over(self, other: RowScores) -> tuple[float, float]:
        """Return the mean gain per row over another candidate, and its standard error.

        Densities alone would trade a worse mean for sharp peaks, so half the squared error, relative to the other's, counts as well. The
        smaller gain of two: rows left out alone, and with their duplicates.
        """
        weights = self.row_weights
        usual = np.average(other.error, axis=1, weights=weights, keepdims=True)
        usual = np.maximum(usual, ROUNDING)
        difference = other.loss - self.loss + 0.5 * ((other.error - self.error) / usual).sum(-1)
        means = np.average(difference, axis=1, weights=weights)
        worst = int(np.argmin(means))
        away = np.square(difference[worst] - means[worst])
        n = difference.shape[1] if weights is None else weights.sum()
        error = np.sqrt(np.average(away, weights=weights)) / np.sqrt(n)
        return float(means[worst]), float(error)


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """Scores of a candidate in leaves like those that were learned on, and in larger ones, as the model has both."""

    small: RowScores
    large: RowScores

    def gain_over(self, other: CandidateScores) -> tuple[float, float]:
        """Return the gain, averaged over small and large leaves, and its standard error."""
        (a, error_a), (b, error_b) = (
            self.small.gain_over(other.small),
            self.large.gain_over(other.large),
        )
        return 0.5 * (a + b), 0.5 * float(np.hypot(error_a, error_b))

    def is_clear(self, other: CandidateScores, least: float = LEAST_GAIN, **rule: float) -> bool:
        """Return whether the gain over another candidate is clear, by the default rule or another (:func:`is_clear`)."""
        return is_clear(*self.gain_over(other), least, **rule)
