"""How well training rows are predicted without having been seen: error compared with that of a constant, coverage of intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp.data.columns.remarks import spread_rows
from dsmgp.fitting.state import FittedState
from dsmgp.mixture.fitted_model import supports

__all__ = ["LOOCheck", "constant_nlpd", "loo_check"]

# Rows that are left out one by one, and the least number that must remain beside those that a metric was learned on.
MAX_ROWS, LEAST_ROWS = 2_000, 200


@dataclass(frozen=True)
class LOOCheck:
    """Leave-one-out or cross-validated predictions of some training rows, compared with their observations.

    Attributes
    ----------
    n_rows : int
    rmse, constant_rmse : ndarray of shape (n_outputs,)
        Root mean square errors of the model, and of the mean of the other rows.
    coverage_90 : ndarray of shape (n_outputs,)
        Share of observations in their central 90% intervals.
    """

    n_rows: int
    rmse: Array
    constant_rmse: Array
    coverage_90: Array


def loo_check(state: FittedState) -> LOOCheck | None:
    """Compare leave-one-out predictions, or cross-validated ones of stacked hypotheses, with observations.

    Returns
    -------
    LOOCheck or None
        None if there are no such predictions: of change points, of averaged hypotheses, of stacked ones from a file, after online
        updates, and where leaves are in shards.
    """
    if state.stacking is not None:
        left_out = state.stacking.left_out
        if left_out is None:
            return None
        everything = np.arange(len(state.rows))
        return _compared(state, everything, left_out.mean[:, None], left_out.cdf[:, None])
    if not (supports(state.model, "loo_score_") and state.scores is not None):
        return None
    model = state.mixture
    posterior = model.leaf_posterior
    if not posterior.has_loo:
        return None
    rows = np.arange(len(state.rows))
    learned_on = state.metric_rows
    if learned_on is not None and len(rows) - len(learned_on) >= LEAST_ROWS:
        rows = np.delete(rows, learned_on)
    rows = rows[spread_rows(len(rows), MAX_ROWS)]
    distribution = model.loo_distribution(posterior.leave_one_out(), rows, missing=state.missing)
    observed = state.rows.Y[rows]
    cdf = distribution.cdf(observed).reshape(observed.shape)
    return _compared(state, rows, distribution.mean.reshape(observed.shape), cdf)


def _compared(state: FittedState, rows: Index, mean: Array, cdf: Array) -> LOOCheck:
    """Compare predictive means, and probabilities below the observations, (n_rows, n_outputs) each, with the observations."""
    observed, n_train = state.rows.Y[rows], len(state.rows)
    # The mean of all other rows: away from the row by n / (n - 1) of its distance from the mean of all.
    away = (observed - state.rows.Y.mean(axis=0)) * n_train / max(n_train - 1, 1)
    return LOOCheck(
        len(rows),
        np.sqrt(np.mean((observed - mean) ** 2, axis=0)),
        np.sqrt(np.mean(away**2, axis=0)),
        np.mean((cdf >= 0.05) & (cdf <= 0.95), axis=0),
    )


def constant_nlpd(Y: Array) -> float | None:
    """Return the NLPD of Gaussians with mean and variance of the outputs, summed over outputs; None if an output is constant.

    Examples
    --------
    >>> constant_nlpd(np.array([[-1.0], [1.0]])).__round__(3)
    1.419
    """
    variance = Y.var(axis=0)
    if not (variance > 0).all():
        return None
    return float(0.5 * (LOG_2PI + 1.0 + np.log(variance)).sum())
