"""The GPs of all prefixes of rows in an order, from one Cholesky factor.

The factor of the first m rows is the leading block of the factor L of all, and so is ``beta = L^-1 (y - mean)``. With
``v = L^-1 k(X, x)``, the log evidence of every prefix is a partial sum of ``-beta^2 / 2 - log diag L - log(2 pi) / 2``,
and the mean and variance of f at x are ``sum v beta`` and ``k(x, x) - sum v^2``, partial sums too.

The same holds for gradients. With ``M = L^-1``, the inverse of a prefix's matrix is the sum of ``M_k' M_k`` over its
rows, and its ``alpha`` the sum of ``M_k' beta_k``: any weighted sum over prefixes of ``alpha alpha' - K^-1`` (R&W eq. 5.9) takes two
matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import lapack as scipy_lapack
from scipy.linalg import solve_triangular
from torch import Tensor

from dsmgp.execution import as_numpy
from dsmgp.general import BoundGeneral
from dsmgp.stationary import BoundStationary

__all__ = ["Prefixes", "covariance_of", "prior_mean"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
BoundLaw = BoundStationary | BoundGeneral
LOG_2PI = math.log(2.0 * math.pi)
# Times the mean of the diagonal, where a matrix cannot be factorised without.
JITTERS = (0.0, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)


def prior_mean(law: BoundLaw, X: Tensor) -> Array:
    """At each row."""
    return as_numpy(law.mean(X[None])).reshape(-1)


def covariance_of(law: BoundLaw, X: Tensor, noise: Array) -> Array:
    """Of observations at rows with a noise variance each."""
    K = as_numpy(law.cross(X[None], X[None])[0]).copy()
    np.fill_diagonal(K, as_numpy(law.variance(X[None])).reshape(-1) + noise)
    return K


class Prefixes:
    """GPs given the first 1, 2, ... of some rows.

    Parameters
    ----------
    law : BoundStationary or BoundGeneral
    X : tensor of shape (n, n_dims)
    y : array of shape (n,)
    noise : array of shape (n,)
        Noise variance of each row.
    """

    def __init__(self, law: BoundLaw, X: Tensor, y: Array, noise: Array) -> None:
        self.law, self.X, self.noise = law, X, noise
        if not len(X):  # a leaf without rows
            self.L, self.beta = np.empty((0, 0)), np.empty(0)
            return
        self.L = _factor(covariance_of(law, X, noise))
        self.beta = _solve(self.L, y - prior_mean(law, X))

    @property
    def n_bytes(self) -> int:
        return int(self.L.nbytes)

    @property
    def log_evidence(self) -> Array:
        """Of each prefix, (n,)."""
        terms = -0.5 * np.square(self.beta) - np.log(np.diagonal(self.L)) - 0.5 * LOG_2PI
        return np.cumsum(terms)

    def answers(self, X: Tensor, lengths: Index) -> tuple[Array, Array]:
        """Mean and variance of f at rows given prefixes of some lengths, ascending: (n_lengths, n_rows) each."""
        prior, variance = prior_mean(self.law, X), as_numpy(self.law.variance(X[None])).reshape(-1)
        V = self._whitened(X, int(lengths[-1]))
        if not len(V):
            shape = (len(lengths), len(X))
            return np.broadcast_to(prior, shape), np.broadcast_to(variance, shape)
        starts = np.concatenate([[0], lengths[:-1]])
        mean = np.add.reduceat(V * self.beta[: len(V), None], starts, axis=0).cumsum(axis=0)
        known = np.add.reduceat(V * V, starts, axis=0).cumsum(axis=0)
        return prior + mean, np.maximum(variance - known, 0.0)

    def joints(self, X: Tensor, lengths: Index) -> Iterator[tuple[Array, Array]]:
        """Mean and joint covariance of f at rows, given prefixes of some lengths, ascending."""
        V = self._whitened(X, int(lengths[-1]))
        mean, covariance = prior_mean(self.law, X), covariance_of(self.law, X, np.zeros(len(X)))
        for first, after in pairwise([0, *lengths]):
            part = V[first:after]
            mean = mean + self.beta[first:after] @ part
            covariance = covariance - part.T @ part
            yield mean, covariance

    def gradient(self, weights: Array, noise_share: Array) -> Array:
        """Of the weighted sum of the prefixes' log evidences, by the law's natural vector.

        ``weights`` has one entry per prefix; ``noise_share`` is what each row's noise gains by a unit of the law's.
        """
        used = np.flatnonzero(weights)
        n = int(used[-1]) + 1
        M = _inverse(self.L[:n, :n])
        # Alphas of the prefixes in use, one a row: partial sums between them, summed up.
        starts = np.concatenate([[0], used[:-1] + 1])
        alphas = np.add.reduceat(M * self.beta[:n, None], starts, axis=0).cumsum(axis=0)
        of_row = np.cumsum(weights[:n][::-1])[::-1]  # weight of all prefixes that a row is in
        M *= np.sqrt(of_row)[:, None]
        own = weights[used, None]
        W = alphas.T @ (own * alphas) - _gram(M)
        mask = torch.ones(1, n, dtype=torch.bool)
        K, pull_back = self.law.covariance(self.X[None, :n], mask)
        share = float(np.sum(W * as_numpy(K[0])))
        trace = float(np.diagonal(W) @ noise_share[:n])
        found = pull_back(
            torch.from_numpy(W[None]),
            torch.from_numpy((own * alphas).sum(axis=0)[None]),
            torch.tensor([share], dtype=torch.float64),
            torch.tensor([trace], dtype=torch.float64),
        )
        return as_numpy(found).reshape(-1)

    def _whitened(self, X: Tensor, length: int) -> Array:
        """``L^-1 k(X, x)`` for the first rows, one column a test row."""
        if not length:
            return np.empty((0, len(X)))
        k = as_numpy(self.law.cross(self.X[None, :length], X[None])[0])
        return _solve(self.L[:length, :length], k)


def _factor(K: Array) -> Array:
    """Lower Cholesky factor, with as little jitter as it takes."""
    diagonal = np.diagonal(K).copy()
    for jitter in JITTERS:
        np.fill_diagonal(K, diagonal + jitter * diagonal.mean())
        L, info = scipy_lapack.dpotrf(K.T, lower=1, clean=1)
        if info == 0:
            return np.asarray(L)
    raise ValueError(
        "the covariance of a segment cannot be factorised: the noise is too small for rows this close; raise "
        "noise_variance"
    )


def _solve(L: Array, B: Array) -> Array:
    return np.asarray(solve_triangular(L, B, lower=True, check_finite=False)) if len(L) else B


def _inverse(L: Array) -> Array:
    inverse, info = scipy_lapack.dtrtri(L, lower=1)
    assert info == 0
    return np.tril(inverse)


def _gram(M: Array) -> Array:
    """``M' M`` of a lower triangle."""
    product, info = scipy_lapack.dlauum(M, lower=1)
    assert info == 0
    lower = np.tril(product)
    return np.asarray(lower + np.tril(lower, -1).T)
