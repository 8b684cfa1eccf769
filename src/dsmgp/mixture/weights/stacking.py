"""Stacking: weights of predictive distributions that maximise the cross-validated log density of their mixture.

Leave-one-out keeps the hyperparameters that were learned on all rows, and on small tables that is too kind: the hypothesis with
more to learn wins. Log densities of rows that a fit has not seen are not optimistic, and a mixture of hypotheses is better than the best of
them (Yao et al. 2018, Using stacking to average Bayesian predictive distributions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from dsmgp._util.arrays import Array, Index
from dsmgp.linalg.threads import one_thread

__all__ = [
    "StackedPredictions",
    "Stacking",
    "cross_fitted_weights",
    "stack",
]

# Hypotheses with less weight are dropped: they cost as much to predict with as the others.
LEAST_WEIGHT = 0.02
# Prior on the logarithm of each weight, up to a constant: the mean for the first hypothesis, which is zero for the others, and the standard
# deviation. What the data do not tell apart is left to the simplest, and a few rows do not give every other a share that widens its intervals.
PRIOR_LOG_ODDS, PRIOR_SCALE = 2.0, 1.0


@dataclass(frozen=True, eq=False)
class StackedPredictions:
    """Predictions of training rows by a mixture that has not seen them.

    Attributes
    ----------
    mean : ndarray of shape (n_rows,)
    cdf : ndarray of shape (n_rows,)
        Of the observations.
    """

    mean: Array
    cdf: Array


@dataclass(frozen=True, eq=False)
class Stacking:
    """How several hypotheses are weighted.

    Attributes
    ----------
    names : tuple of str
        What each hypothesis assumes, the heaviest first.
    weights : ndarray of shape (n_hypotheses,)
        Of sum one.
    scores : tuple of float
        Negative log densities of their mixture, per row: of rows given all others, and given all rows with other inputs.
        Cross-validated if hypotheses were stacked, leave-one-out if they are averaged.
    log_prior : ndarray of shape (n_hypotheses,), or None
        Log prior masses, where weights are posterior probabilities: prior mass times evidence. None if hypotheses were stacked.
    left_out : StackedPredictions, optional
        Cross-validated predictions of the training rows, right after hypotheses were stacked; they are not saved.
    """

    names: tuple[str, ...]
    weights: Array
    scores: tuple[float, float]
    log_prior: Array | None = None
    left_out: StackedPredictions | None = None

    @property
    def score_kind(self) -> str:
        """How the scores were obtained."""
        return "cross-validated" if self.log_prior is None else "leave-one-out"

    def log_evidence(self, log_evidences: Sequence[float]) -> float:
        """Return the log of the average evidence over the prior, given the log evidence of each hypothesis."""
        assert self.log_prior is not None
        return float(logsumexp(self.log_prior + log_evidences))

    def updated(self, log_evidences: Sequence[float]) -> tuple[Stacking, Index]:
        """Return the posterior after the evidences have changed, and the new order of the hypotheses; stacked weights stay."""
        if self.log_prior is None:
            return replace(self, left_out=None), np.arange(len(self.weights))
        log_weights = self.log_prior + log_evidences
        order = np.argsort(-log_weights, kind="stable")
        weights = np.exp(log_weights[order] - logsumexp(log_weights))
        names = tuple(self.names[k] for k in order.tolist())
        return replace(self, names=names, weights=weights, log_prior=self.log_prior[order]), order


def stack(log_densities: Array, row_weights: Array | None = None) -> Array:
    """Return the weights of hypotheses that maximise the log density of their mixture.

    Parameters
    ----------
    log_densities : ndarray of shape (n_rows, n_hypotheses)
        Log predictive densities of rows that the fits have not seen. The first hypothesis is the simplest.
    row_weights : ndarray of shape (n_rows,), optional

    Returns
    -------
    ndarray of shape (n_hypotheses,)
        Of sum one; zero for hypotheses that are not worth their cost.

    Examples
    --------
    >>> log_densities = np.log([[0.9, 0.1]] * 50 + [[0.1, 0.9]] * 50)
    >>> stack(log_densities).round(1)
    array([0.5, 0.5])
    >>> stack(log_densities[50:]).round(1)
    array([0.1, 0.9])
    >>> stack(np.zeros((50, 2))).round(2)  # nothing tells them apart
    array([0.88, 0.12])
    """
    rows = np.ones(len(log_densities)) if row_weights is None else row_weights
    top = log_densities.max(axis=1, keepdims=True)
    # Relative to the best of each row; a difference beyond any that matters must not underflow to a row without density.
    densities = np.exp(np.maximum(log_densities - top, -500.0))
    prior = np.zeros(log_densities.shape[1])
    prior[0] = PRIOR_LOG_ODDS

    def loss(logits: Array) -> tuple[float, Array]:
        weights = _softmax(logits)
        mixed = densities @ weights
        shares = (rows / mixed) @ densities * weights
        away = (logits - prior) / PRIOR_SCALE
        value = 0.5 * away @ away - rows @ np.log(mixed)
        return float(value), away / PRIOR_SCALE - shares + rows.sum() * weights

    with one_thread():  # matrices are small
        found = minimize(loss, prior, jac=True, method="L-BFGS-B")
    weights = _softmax(found.x)
    weights[weights < LEAST_WEIGHT] = 0.0
    return weights / weights.sum()


def cross_fitted_weights(log_densities: Array, fold: Index, row_weights: Array) -> Array:
    """Return weights of the hypotheses for each row, fitted to the rows of the other folds, (n_rows, n_hypotheses).

    Examples
    --------
    >>> log_densities = np.log([[0.9, 0.1]] * 50 + [[0.1, 0.9]] * 50)
    >>> halves = np.repeat([0, 1], 50)  # each half calls for the wrong weights in the other
    >>> cross_fitted_weights(log_densities, halves, np.ones(100))[::50].round(1)
    array([[0.1, 0.9],
           [1. , 0. ]])
    """
    weights = np.empty_like(log_densities)
    for number in np.unique(fold):
        inside = fold == number
        weights[inside] = stack(log_densities[~inside], row_weights[~inside])
    return weights


def _softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())
