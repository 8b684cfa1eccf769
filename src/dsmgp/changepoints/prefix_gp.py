"""The GPs of all prefixes of ordered rows, from one Cholesky factor.

The factor of the first m rows is the leading block of the factor L of all, and so is ``beta = L^-1 (y - mean)``. With
``v = L^-1 k(X, x)``, the log evidence of every prefix is a partial sum of ``-beta^2 / 2 - log diag L - log(2 pi) / 2``,
and the mean and variance of f at x are ``sum v beta`` and ``k(x, x) - sum v^2``, partial sums too.

The same holds for gradients. With ``M = L^-1``, the inverse of a prefix's matrix is the sum of ``M_k' M_k`` over its
rows, and its ``alpha`` the sum of ``M_k' beta_k``: any weighted sum over prefixes of ``alpha alpha' - K^-1`` (R&W eq. 5.9) takes two
matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from scipy.linalg import lapack as scipy_lapack

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.linalg.cholesky import cholesky, solve

__all__ = ["PrefixGPs"]


class PrefixGPs:
    """GPs conditioned on the first 1, 2, ..., n of n rows.

    Parameters
    ----------
    kernel : BoundLeafKernel
    X : ndarray of shape (n, n_dims)
    y, noise : ndarray of shape (n,)
        Observations and their noise variances.

    Raises
    ------
    NotFactorisedError
        If the covariance cannot be factorised with any jitter.
    """

    def __init__(self, kernel: BoundLeafKernel, X: Array, y: Array, noise: Array) -> None:
        self.kernel, self.X = kernel, X
        if not len(X):  # a leaf without rows
            self.L, self.beta = np.empty((0, 0)), np.empty(0)
            return
        self.L, _ = cholesky(kernel.cross(X, X), noise)
        self.beta = solve(self.L, y - kernel.mean(X))

    @property
    def log_evidence(self) -> Array:
        """Log evidence of each prefix, (n,)."""
        terms = -0.5 * np.square(self.beta) - np.log(np.diagonal(self.L)) - 0.5 * LOG_2PI
        return np.cumsum(terms)

    def moments(self, X: Array, lengths: Index) -> tuple[Array, Array]:
        """Return mean and variance of f at rows of X given prefixes, (n_lengths, n_rows) each; lengths ascend."""
        prior, variance = self.kernel.mean(X), self.kernel.variance(X)
        V = self._whitened(X, int(lengths[-1]))
        if not len(V):
            shape = (len(lengths), len(X))
            return np.broadcast_to(prior, shape), np.broadcast_to(variance, shape)
        starts = np.concatenate([[0], lengths[:-1]])
        mean = np.add.reduceat(V * self.beta[: len(V), None], starts, axis=0).cumsum(axis=0)
        explained = np.add.reduceat(V * V, starts, axis=0).cumsum(axis=0)
        return prior + mean, np.maximum(variance - explained, 0.0)

    def joint_moments(self, X: Array, lengths: Index) -> Iterator[tuple[Array, Array]]:
        """Yield mean (n_rows,) and covariance (n_rows, n_rows) of f at rows of X given each prefix; lengths ascend."""
        V = self._whitened(X, int(lengths[-1]))
        mean, covariance = self.kernel.mean(X), self.kernel.cross(X, X)
        for first, after in pairwise([0, *lengths]):
            part = V[first:after]
            mean = mean + self.beta[first:after] @ part
            covariance = covariance - part.T @ part
            yield mean, covariance

    def gradient(self, weights: Array, noise_factor: Array) -> Array:
        """Return the gradient of a weighted sum of the prefixes' log evidences.

        Parameters
        ----------
        weights : ndarray of shape (n,)
            Weight of each prefix.
        noise_factor : ndarray of shape (n,)
            Each row's noise variance in units of the kernel's.

        Returns
        -------
        ndarray of shape (n_parameters,)
            By the kernel parameters.
        """
        used = np.flatnonzero(weights)
        n = int(used[-1]) + 1
        M = _inverse(self.L[:n, :n])
        # Alphas of the prefixes in use, one a row: partial sums between them, summed up.
        starts = np.concatenate([[0], used[:-1] + 1])
        alphas = np.add.reduceat(M * self.beta[:n, None], starts, axis=0).cumsum(axis=0)
        row_weights = np.cumsum(weights[:n][::-1])[::-1]  # of all prefixes that a row is in
        M *= np.sqrt(row_weights)[:, None]
        used_weights = weights[used, None]
        W = alphas.T @ (used_weights * alphas) - _gram(M)
        _, pull_back = self.kernel.covariance(self.X[:n])
        mean_gradient = (used_weights * alphas).sum(axis=0)
        return pull_back(W, mean_gradient, float(np.diagonal(W) @ noise_factor[:n]))

    def _whitened(self, X: Array, length: int) -> Array:
        """Return ``L^-1 k(X_train, X)`` of the first ``length`` training rows, (length, n_rows)."""
        if not length:
            return np.empty((0, len(X)))
        return solve(self.L[:length, :length], self.kernel.cross(self.X[:length], X))


def _inverse(L: Array) -> Array:
    inverse, info = scipy_lapack.dtrtri(L, lower=1)
    assert info == 0
    return np.tril(inverse)


def _gram(M: Array) -> Array:
    """Return ``M' M`` of a lower triangular matrix."""
    product, info = scipy_lapack.dlauum(M, lower=1)
    assert info == 0
    lower = np.tril(product)
    return np.asarray(lower + np.tril(lower, -1).T)
