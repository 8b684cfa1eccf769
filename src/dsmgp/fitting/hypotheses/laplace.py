"""A Laplace approximation of the posterior of hyperparameters, with the tails of a Student t: where to draw hyperparameters from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from dsmgp._util.arrays import Array
from dsmgp.fitting.learning.optimize import Objective

__all__ = ["StudentT", "laplace"]

# Few enough degrees of freedom that no draw from the tails of the posterior gets a weight beyond all others.
DEGREES_OF_FREEDOM = 5.0
# Step of the differences between gradients, in units of the prior's standard deviation.
STEP = 1e-3


@dataclass(frozen=True, eq=False)
class StudentT:
    """A multivariate t distribution.

    Attributes
    ----------
    mode : ndarray of shape (d,)
    root : ndarray of shape (d, d)
        ``root @ root.T`` is the scale matrix.
    """

    mode: Array
    root: Array

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` vectors, (n, d)."""
        normal = rng.normal(size=(n, len(self.mode)))
        chi2 = rng.chisquare(DEGREES_OF_FREEDOM, size=(n, 1))
        return np.asarray(self.mode + normal @ self.root.T * np.sqrt(DEGREES_OF_FREEDOM / chi2))

    def log_density(self, values: Array) -> Array:
        """Return the log density at vectors (n, d)."""
        nu, d = DEGREES_OF_FREEDOM, len(self.mode)
        away = np.linalg.solve(self.root, (values - self.mode).T)
        constant = (
            gammaln(0.5 * (nu + d))
            - gammaln(0.5 * nu)
            - 0.5 * d * math.log(nu * math.pi)
            - np.linalg.slogdet(self.root)[1]
        )
        return np.asarray(constant - 0.5 * (nu + d) * np.log1p(np.square(away).sum(axis=0) / nu))


def laplace(objective: Objective, mode: Array, prior_scale: Array) -> StudentT:
    """Approximate a density around its mode.

    Parameters
    ----------
    objective : callable
        The log density, up to a constant, and its gradient.
    mode : ndarray of shape (d,)
    prior_scale : ndarray of shape (d,)
        Standard deviations of the prior; the approximation is nowhere wider.

    Examples
    --------
    >>> precision = np.array([[2.0, 0.5], [0.5, 1.0]])
    >>> found = laplace(
    ...     lambda t: (-0.5 * t @ precision @ t, -precision @ t), np.zeros(2), np.full(2, 9.0)
    ... )
    >>> bool(np.allclose(found.root @ found.root.T, np.linalg.inv(precision)))
    True
    """
    curvature = np.empty((len(mode), len(mode)))
    for k, scale in enumerate(prior_scale):
        step = np.zeros(len(mode))
        step[k] = STEP * scale
        # In units of the prior, so that one bound on the eigenvalues holds for all directions.
        difference = objective(mode - step)[1] - objective(mode + step)[1]
        curvature[k] = difference / (2.0 * STEP) * prior_scale
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    return StudentT(mode, prior_scale[:, None] * vectors / np.sqrt(np.maximum(values, 1.0)))
