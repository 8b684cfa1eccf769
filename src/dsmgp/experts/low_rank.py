"""Predictive variances of a large leaf from the covariances with a few of its points.

The variance of f at x is ``k(x, x) - k_x' K^-1 k_x`` with the covariances ``k_x`` of x and the n points of the leaf. A smooth kernel makes
``k_x`` nearly a linear function of the covariances ``c_x`` with r of the points, the *pivots* (a partial Cholesky decomposition of the
kernel's matrix), and the quadratic form becomes ``|W c_x|^2`` with a triangular matrix W of order r. That is what constant-time
predictive variances (Pleiss et al. 2018) do with a Lanczos basis; here means stay exact, and the error of the variance is measured.

The number of pivots grows until variances of y are within a tolerance of exact ones at check points: training points, points between them
and points outside. Where a kernel is too rough for that, all points are pivots, in single precision; with very little noise that is not accurate
enough either, and the leaf keeps exact variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.linalg import lapack

__all__ = ["LowRankVariance", "low_rank_variance"]

# Leaves with fewer points are computed exactly: a basis would save little.
LEAST_POINTS = 250
# Largest share of a leaf's points that may be pivots.
LARGEST_SHARE = 0.6
# Check points of each kind.
N_CHECKS = 64
# Residual variances below this share of the prior's are rounding errors.
LEAST_RESIDUAL = 1e-11
# Rows of W that are multiplied at a time: their columns end at the diagonal.
BLOCK_ROWS = 96
# Share of the tolerance that single precision may use.
SINGLE_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class LowRankVariance:
    """A basis for the predictive variances of one leaf and output.

    Attributes
    ----------
    order : ndarray of shape (n_points,)
        Positions of the leaf's points, the pivots first.
    weights : ndarray of shape (rank, rank)
        Lower triangular, in single precision where that is accurate enough.
    alpha : ndarray of shape (n_points,)
        ``K^-1 (y - mean)`` in this order, for the mean.
    prior : float
        Prior variance of f, the same everywhere.
    errors : tuple of float
        Mean and largest relative error of the variance of y at the check points.
    """

    order: Index
    weights: Array
    alpha: Array
    prior: float
    errors: tuple[float, float] = (0.0, 0.0)

    @property
    def rank(self) -> int:
        return len(self.weights)

    @property
    def n_bytes(self) -> int:
        return self.weights.nbytes + self.order.nbytes + self.alpha.nbytes

    def variance(self, covariances: Array) -> Array:
        """Return the variance of f, (n,), from the covariances with the pivots, (n, rank)."""
        return np.maximum(self.prior - self._explained(covariances), 0.0)

    def _explained(self, covariances: Array) -> Array:
        """What the training rows explain of the variance of f, (n,)."""
        c = covariances.astype(self.weights.dtype, copy=False)
        total = np.zeros(len(c))
        for first in range(0, self.rank, BLOCK_ROWS):
            last = min(first + BLOCK_ROWS, self.rank)
            half = c[:, :last] @ self.weights[first:last, :last].T
            total += np.einsum("ij,ij->i", half, half)
        return total


def low_rank_variance(
    kernel: BoundLeafKernel, X: Array, factor: Array, alpha: Array, noise: float, tolerance: float
) -> LowRankVariance | None:
    """Return a basis whose variances of y have a relative error of at most ``tolerance``; None if there is no small one.

    Parameters
    ----------
    kernel : BoundLeafKernel
    X : ndarray of shape (n_points, n_dims)
        Points of the leaf.
    factor : ndarray of shape (n_points, n_points)
        Lower Cholesky factor of their covariance, noise included.
    alpha : ndarray of shape (n_points,)
        ``K^-1 (y - mean)``.
    noise : float
        Noise variance of a new observation.
    tolerance : float
    """
    n = len(X)
    if n < LEAST_POINTS:
        return None
    search = _Search(kernel, X, factor, alpha, noise)
    block, errors = max(16, n // 48), []
    while search.rank + block <= LARGEST_SHARE * n and search.extend(block):
        errors.append((search.rank, search.largest_error()))
        if errors[-1][1] <= (1.0 - SINGLE_SHARE) * tolerance:
            return search.basis(tolerance)
        if _hopeless(errors, LARGEST_SHARE * n, tolerance):
            break
    return search.of_all_points(tolerance)


def _hopeless(errors: list[tuple[int, float]], most: float, tolerance: float) -> bool:
    """Whether errors fall too slowly to reach the tolerance, with ``most`` pivots, at the rate of the last half of the pivots."""
    rank, error = errors[-1]
    if rank < 0.2 * most:
        return False
    before, error_before = min(errors, key=lambda e: abs(e[0] - rank / 2))
    if error >= error_before:
        return True
    rate = math.log(error_before / error) / (rank - before)
    # Errors fall faster and faster where a kernel is smooth: allow for that.
    return rank + 0.5 * math.log(error / tolerance) / rate > most


class _Search:
    """A partial Cholesky decomposition that grows by blocks of pivots, and the variances that it gives."""

    def __init__(
        self, kernel: BoundLeafKernel, X: Array, factor: Array, alpha: Array, noise: float
    ) -> None:
        self.kernel, self.factor, self.noise, self.n = kernel, factor, noise, len(X)
        self.alpha = alpha
        checks = _check_points(X)
        self.points = np.concatenate([X, checks])
        self.prior = kernel.variance(self.points)
        self.residual = self.prior.copy()
        self.pivots = np.empty(0, dtype=np.int64)
        most = int(LARGEST_SHARE * self.n) + 1
        # Rows of the factor of the kernel's matrix over all points: (pivots, points and checks).
        self._G = np.empty((most, len(self.points)))
        # ``L^-1 G'`` of the points, transposed, and its squares: G K^-1 G'.
        self._H = np.empty((most, self.n))
        self._gram = np.empty((most, most))
        self.at_checks = kernel.cross(checks, X)
        half = self.at_checks.copy()
        lapack.solve_rows(factor, half)
        explained = np.einsum("ij,ij->i", half, half)
        self.exact = np.maximum(self.prior[self.n :] - explained, 0.0) + noise

    @property
    def rank(self) -> int:
        return len(self.pivots)

    def extend(self, size: int) -> bool:
        """Add up to ``size`` pivots; False if the points are represented exactly."""
        new, r = self._next_pivots(size), self.rank
        if not len(new):
            return False
        G, last = self._G, r + len(new)
        rows = self.kernel.cross(self.points[new], self.points) - G[:r, new].T @ G[:r]
        corner = rows[:, new].copy()
        if not lapack.factorise(corner):
            return False
        # corner^-1 rows: triangular solves of columns, which are few.
        block = np.ascontiguousarray(rows.T)
        lapack.solve_rows(corner, block)
        G[r:last] = block.T
        self.residual -= np.einsum("ij,ij->i", block, block)
        self.residual[new] = 0.0
        self._H[r:last] = G[r:last, : self.n]
        lapack.solve_rows(self.factor, self._H[r:last])
        self._gram[r:last, :last] = self._H[r:last] @ self._H[:last].T
        self._gram[:r, r:last] = self._gram[r:last, :r].T
        self.pivots = np.concatenate([self.pivots, new])
        return True

    def _next_pivots(self, size: int) -> Index:
        """Greedy pivots among the points with the largest residual variances."""
        candidates = np.argsort(-self.residual[: self.n], kind="stable")[: 4 * size]
        G = self._G[: self.rank, candidates]
        S = self.kernel.cross(self.points[candidates], self.points[candidates]) - G.T @ G
        residual, chosen = self.residual[candidates].copy(), []
        least = max(LEAST_RESIDUAL * self.prior[0], 0.1 * residual[0])
        columns = np.empty((size, len(candidates)))
        for k in range(size):
            at = int(np.argmax(residual))
            if residual[at] <= least:
                break
            columns[k] = (S[at] - columns[:k, at] @ columns[:k]) / math.sqrt(residual[at])
            residual -= np.square(columns[k])
            residual[at] = 0.0
            chosen.append(at)
        return np.asarray(candidates[chosen], dtype=np.int64)

    def largest_error(self) -> float:
        """Largest relative error of the variance of y at the check points."""
        r = self.rank
        phi = self._G[:r, self.n :]
        explained = np.einsum("ij,ij->j", phi, self._gram[:r, :r] @ phi)
        return self._errors_of(np.maximum(self.prior[self.n :] - explained, 0.0))[1]

    def _errors_of(self, variance: Array) -> tuple[float, float]:
        """Mean and largest relative error of variances of f at the check points, as variances of y."""
        errors = np.abs((variance + self.noise) / self.exact - 1.0)
        return float(errors.mean()), float(errors.max())

    def basis(self, tolerance: float) -> LowRankVariance | None:
        """Return the basis of the pivots found so far, in single precision if its error stays below the tolerance."""
        r = self.rank
        # G K^-1 G' = D' D with a lower triangular D: the factor of the matrix in reversed order, transposed.
        reversed_gram = np.ascontiguousarray(self._gram[:r, :r][::-1, ::-1])
        if not lapack.factorise(reversed_gram):
            return None
        D = np.tril(np.tril(reversed_gram)[::-1, ::-1].T)
        corner = np.tril(self._G[:r, self.pivots].T)
        lapack.invert_factor(corner)
        weights = np.tril(D @ np.tril(corner))
        order = np.concatenate([self.pivots, np.setdiff1d(np.arange(self.n), self.pivots)])
        return self._accurate(order, weights, (np.float32, np.float64), tolerance)

    def of_all_points(self, tolerance: float) -> LowRankVariance | None:
        """Return the inverse factor of all points in single precision, if that is accurate enough."""
        weights = np.tril(self.factor)
        lapack.invert_factor(weights)
        return self._accurate(np.arange(self.n), weights, (np.float32,), tolerance)

    def _accurate(
        self, order: Index, weights: Array, dtypes: Sequence[type], tolerance: float
    ) -> LowRankVariance | None:
        """The first of some precisions whose error is below the tolerance."""
        for dtype in dtypes:
            found = LowRankVariance(
                order, weights.astype(dtype), self.alpha[order], float(self.prior[0])
            )
            errors = self._errors_of(found.variance(self.at_checks[:, order[: found.rank]]))
            if errors[1] <= tolerance:
                return replace(found, errors=errors)
        return None


def _check_points(X: Array) -> Array:
    """Rows like those to predict: training points, points between two of them, and points outside."""
    rng = np.random.default_rng(len(X))
    first, second, third = (X[rng.choice(len(X), N_CHECKS)] for _ in range(3))
    share = rng.uniform(size=(N_CHECKS, 1))
    centre = X.mean(axis=0)
    far = X[np.argsort(-np.square((X - centre) / (X.std(axis=0) + 1e-300)).sum(axis=1))[:N_CHECKS]]
    mixed = np.where(rng.uniform(size=first.shape) < 0.5, second, third)  # columns of two points
    outside = centre + rng.uniform(1.0, 1.3, size=(len(far), 1)) * (far - centre)
    return np.concatenate([first, share * first + (1.0 - share) * second, mixed, far, outside])
