"""The base of all baselines: scikit-learn's contract, and predictive distributions in the user's units."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dsmgp._util.arrays import Array
from dsmgp._util.validation import check_finite, check_spread
from dsmgp.data.user_tables import check_lengths, check_numbers, read_inputs, target_numbers
from dsmgp.fitting.training_mode import training_mode
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.predictive.distribution import Mixture

__all__ = ["Baseline"]

# Rows that are predicted at a time.
PREDICTED_ROWS = 8192


class Baseline(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator with a predictive distribution. Subclasses implement ``_fit``, which sets ``_outputs``, and ``_moments``."""

    _squeeze: bool
    _outputs: OutputScaling

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows X (n, n_features) and y (n,) or (n, n_outputs)."""
        Y, single = target_numbers(y)
        rows = self._inputs_of(X, reset=True)
        check_lengths(rows, Y)
        check_finite(Y, "y")
        check_spread(Y)
        self.__dict__.pop("_squeeze", None)  # unfitted while fitting, and after an error
        with training_mode():
            self._fit(rows, Y)
        self._squeeze = single
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of y, and its standard deviation if ``return_std``, (n,) or (n, n_outputs)."""
        predicted = self.predict_dist(X)
        return (predicted.mean, predicted.std) if return_std else predicted.mean

    def predict_dist(self, X: ArrayLike) -> Mixture:
        """Predictive distribution of y at each row."""
        check_is_fitted(self)
        return self._predictive(self._inputs_of(X, reset=False))

    def _inputs_of(self, X: ArrayLike, reset: bool) -> Array:
        """Return the inputs as numbers; raise for other columns and missing values."""
        table, _ = read_inputs(self, X, reset)
        names = getattr(self, "feature_names_in_", None)
        if not isinstance(table, np.ndarray):
            labels = range(len(table)) if names is None else names
            check_numbers(
                {f"column {name!r} of X": v for name, v in zip(labels, table, strict=True)}
            )
        check_finite(table, "X", names)
        return np.asarray(table)

    def _fit(self, X: Array, Y: Array) -> None:
        raise NotImplementedError

    def _moments(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of y, (n, n_outputs), in the units of ``_outputs``."""
        raise NotImplementedError

    def _chunk_rows(self) -> int:
        """Return the number of rows that are predicted at a time."""
        return PREDICTED_ROWS

    def _predictive(self, X: Array) -> Mixture:
        step = self._chunk_rows()
        chunks = [self._moments(X[first : first + step]) for first in range(0, len(X), step)]
        mean, variance = (np.concatenate(each)[:, None] for each in zip(*chunks, strict=True))
        return Mixture(np.ones((len(X), 1)), mean, variance, self._outputs, self._squeeze)

    def __sklearn_is_fitted__(self) -> bool:
        return "_squeeze" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags
