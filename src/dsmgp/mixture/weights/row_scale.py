"""Scales of rows with missing values: predictions there are as much wider as leave-one-out residuals say.

A row without the value of an input varies by what that input would have explained. The leaf GPs know of it
only by an indicator, which moves the mean; so the variances at such rows are multiplied by factors of their
own, and those at complete rows by a common one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from dsmgp._util.arrays import Array, Index

__all__ = ["MissingIndicators", "RowScale"]

# Precision of the prior of a log factor: with few rows that miss a value it stays near zero.
PRIOR_PRECISION = 2.0
# Of a variance by a missing value.
LARGEST_LOG_FACTOR = 12.0

#: Takes log factors of variances; returns log densities and their derivatives by the log factors.
ScaledDensity = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class MissingIndicators:
    """Which training rows lack which values.

    Attributes
    ----------
    inputs : ndarray of shape (n_indicators,)
        Numbers of the inputs that are one where a value is missing.
    table : ndarray of shape (n_rows, n_indicators)
    """

    inputs: Index
    table: Array

    @classmethod
    def of(cls, X: Array, inputs: Index | None) -> MissingIndicators | None:
        """Return the indicators of rows; None if there are none."""
        return None if inputs is None else cls(inputs, X[:, inputs])


@dataclass(frozen=True, eq=False)
class RowScale:
    """Factors of the predictive variances of rows, ``exp(log_factors[0] + indicators @ log_factors[1:])``.

    Attributes
    ----------
    inputs : ndarray of shape (n_indicators,)
        Numbers of the inputs that are one where a value is missing.
    log_factors : ndarray of shape (n_indicators + 1,)
        That of all rows, and those of each missing value.
    """

    inputs: Index
    log_factors: Array

    @classmethod
    def fit(
        cls,
        indicators: MissingIndicators,
        rows: Index,
        log_density: ScaledDensity,
        row_weights: Array | None = None,
    ) -> RowScale:
        """Maximise the leave-one-out density of some training rows, under a normal prior of the log factors.

        Parameters
        ----------
        indicators : MissingIndicators
        rows : ndarray of shape (n,)
            Numbers of training rows.
        log_density : callable
            Takes log factors (n,) of the variances at the rows; returns log densities and their derivatives.
        row_weights : ndarray of shape (n,), optional
        """
        A = np.column_stack([np.ones(len(rows)), indicators.table[rows]])
        weights = np.ones(len(rows)) if row_weights is None else row_weights

        def loss(b: Array) -> tuple[float, Array]:
            density, slope = log_density(A @ b)
            value = PRIOR_PRECISION * b @ b / 2.0 - weights @ density
            return float(value), PRIOR_PRECISION * b - A.T @ (weights * slope)

        bounds = [(-LARGEST_LOG_FACTOR, LARGEST_LOG_FACTOR)] * A.shape[1]
        found = minimize(loss, np.zeros(A.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds)
        return cls(indicators.inputs, found.x)

    def of_indicators(self, table: Array) -> Array:
        """Return the factors of rows with given indicators, (n,)."""
        return np.asarray(np.exp(self.log_factors[0] + table @ self.log_factors[1:]))

    def __call__(self, X: Array) -> Array:
        """Return the factors of rows of X, (n,)."""
        return self.of_indicators(X[:, self.inputs])
