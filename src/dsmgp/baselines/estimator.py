"""What all baselines have in common: scikit-learn's contract, and laws in the user's units."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin

from dsmgp.guard import gradients
from dsmgp.mixture import Mixture
from dsmgp.rows import new_rows, training_rows
from dsmgp.units import OutputUnits

__all__ = ["Baseline", "gaussian"]

Array = NDArray[np.float64]


class Baseline(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that answers with a predictive law. Children say how to fit, and what the law is."""

    _squeeze: bool

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows X (n, n_features) and y (n,) or (n, n_outputs)."""
        X, y = training_rows(self, X, y)
        self.__dict__.pop("_squeeze", None)  # not fitted until it is done
        with gradients():
            self._fit(X, y.reshape(len(y), -1))
        self._squeeze = y.ndim == 1
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of y, and its standard deviation if asked for, (n,) or (n, n_outputs)."""
        law = self.predict_dist(X)
        return (law.mean, law.std) if return_std else law.mean

    def predict_dist(self, X: ArrayLike) -> Mixture:
        """The predictive law of y at each row."""
        return self._law(new_rows(self, X))

    def _fit(self, X: Array, Y: Array) -> None:
        raise NotImplementedError

    def _law(self, X: Array) -> Mixture:
        raise NotImplementedError

    def __sklearn_is_fitted__(self) -> bool:
        return "_squeeze" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def gaussian(mean: Array, variance: Array, units: OutputUnits, squeeze: bool) -> Mixture:
    """A law of one component, from means and variances (n, n_outputs) in the units of ``units``."""
    return Mixture(np.ones((len(mean), 1)), mean[:, None], variance[:, None], units, squeeze)
