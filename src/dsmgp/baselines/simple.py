"""The two baselines that any regression should beat."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.baselines.estimator import Baseline, gaussian
from dsmgp.mixture import Mixture
from dsmgp.units import OutputUnits

__all__ = ["ConstantBaseline", "LinearBaseline"]

Array = NDArray[np.float64]


class ConstantBaseline(Baseline):
    """The mean of the training outputs, everywhere; the spread is theirs.

    Examples
    --------
    >>> model = ConstantBaseline().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 3.0])
    >>> mean, std = model.predict([[9.0]], return_std=True)
    >>> mean, std
    (array([2.]), array([1.]))
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # it says the same everywhere
        return tags

    def _fit(self, X: Array, Y: Array) -> None:
        self._units = OutputUnits(Y.mean(axis=0), np.eye(Y.shape[1]))
        self.noise_ = _noise(Y - Y.mean(axis=0), 1)

    def _law(self, X: Array) -> Mixture:
        zeros = np.zeros((len(X), self._units.n_outputs))
        return gaussian(zeros, zeros + self.noise_, self._units, self._squeeze)


class LinearBaseline(Baseline):
    """Least squares with an intercept. The law's variance is the noise that the residuals show, as in the paper.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features, n_outputs)
    intercept_, noise_ : ndarrays of shape (n_outputs,)

    Examples
    --------
    >>> model = LinearBaseline().fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0])
    >>> model.predict([[4.0]]).round(2)
    array([3.95])
    """

    def _fit(self, X: Array, Y: Array) -> None:
        # Around the means, so that offsets do not spoil the solution; a column without use gets slope zero.
        centre, level = X.mean(axis=0), Y.mean(axis=0)
        spread = X.std(axis=0)
        unit = np.where(spread > 0, spread, 1.0)
        slopes, _, rank, _ = np.linalg.lstsq((X - centre) / unit, Y - level, rcond=None)
        self.coef_ = slopes / unit[:, None]
        self.intercept_ = level - centre @ self.coef_
        self.noise_ = _noise(Y - X @ self.coef_ - self.intercept_, int(rank) + 1)

    def _law(self, X: Array) -> Mixture:
        mean = X @ self.coef_ + self.intercept_
        units = OutputUnits(np.zeros(mean.shape[1]), np.eye(mean.shape[1]))
        return gaussian(mean, np.broadcast_to(self.noise_, mean.shape), units, self._squeeze)


def _noise(residual: Array, n_parameters: int) -> Array:
    """Variance of the residuals, less the freedom that was used up; never zero, so that there is a density."""
    freedom = max(len(residual) - n_parameters, 1)
    return np.maximum(np.square(residual).sum(axis=0) / freedom, np.finfo(np.float64).tiny)
