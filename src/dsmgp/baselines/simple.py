"""Two simple baselines: the training mean, and least squares."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.baselines.estimator import Baseline
from dsmgp.gp.transforms.scaling import OutputScaling

__all__ = ["ConstantBaseline", "LinearBaseline"]


class ConstantBaseline(Baseline):
    """The mean and variance of the training outputs at every input.

    Examples
    --------
    >>> model = ConstantBaseline().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 3.0])
    >>> mean, std = model.predict([[9.0]], return_std=True)
    >>> mean, std
    (array([2.]), array([1.]))
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # it predicts a constant
        return tags

    def _fit(self, X: Array, Y: Array) -> None:
        self._outputs = OutputScaling(Y.mean(axis=0), np.eye(Y.shape[1]))
        self.noise_ = _noise(Y - Y.mean(axis=0), 1)

    def _moments(self, X: Array) -> tuple[Array, Array]:
        zeros = np.zeros((len(X), self._outputs.n_outputs))
        return zeros, zeros + self.noise_


class LinearBaseline(Baseline):
    """Least squares with an intercept. The predictive variance is that of the residuals, as in the paper.

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
        self._outputs = OutputScaling(np.zeros(Y.shape[1]), np.eye(Y.shape[1]))
        # Centred, so that large offsets cost no accuracy; constant columns get slope zero.
        centre, level = X.mean(axis=0), Y.mean(axis=0)
        spread = X.std(axis=0)
        unit = np.where(spread > 0, spread, 1.0)
        slopes, _, rank, _ = np.linalg.lstsq((X - centre) / unit, Y - level, rcond=None)
        self.coef_ = slopes / unit[:, None]
        self.intercept_ = level - centre @ self.coef_
        self.noise_ = _noise(Y - X @ self.coef_ - self.intercept_, int(rank) + 1)

    def _moments(self, X: Array) -> tuple[Array, Array]:
        mean = X @ self.coef_ + self.intercept_
        return mean, np.broadcast_to(self.noise_, mean.shape)


def _noise(residual: Array, n_parameters: int) -> Array:
    """Estimate the residual variance, by degrees of freedom; never zero, so that there is a density."""
    freedom = max(len(residual) - n_parameters, 1)
    return np.maximum(np.square(residual).sum(axis=0) / freedom, np.finfo(np.float64).tiny)
