"""Predictive variances of a large leaf from the covariances with a few of its points.

The variance of f at x is ``k(x, x) - k_x' K^-1 k_x`` with the covariances ``k_x`` of x and the n points of the leaf. A smooth kernel makes
``k_x`` nearly a linear function of the covariances ``c_x`` with r of the points, the *pivots* (a partial Cholesky decomposition of the
kernel's matrix), and the quadratic form becomes ``|W c_x|^2`` with a triangular matrix W of order r. That is what constant-time
predictive variances (Pleiss et al. 2018) do with a Lanczos basis; here means stay exact, and the error of the variance is measured.

Pivots are added until the residual variance at the points of the leaf is a small share of the noise, which is cheap: no triangular solve with the
leaf's factor is needed. Then variances of y of all smaller ranks are compared with exact ones at check points (training points, points between them and
points outside), and the smallest rank within the tolerance is taken. If the residual falls so slowly that too many pivots would be needed, which shows
after a few of them, all points are pivots, in single precision; with very little noise that is not accurate enough either, and the leaf keeps
exact variances.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.lapack import dpstrf

from dsmgp._util.arrays import Array, Index
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.linalg import lapack

__all__ = ["LEAST_POINTS", "LowRankVariance", "low_rank_steps", "low_rank_variance"]

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
# Share of the tolerance that pivots may use at the check points: elsewhere errors are a little larger, and single precision adds to them.
PIVOT_SHARE = 0.5
# Pivots beyond the least number, and as a share of it: outside the points errors are larger than at the check points.
SPARE_PIVOTS, SPARE_SHARE = 12, 0.05
# Mean residual variance of the points, over the noise and the tolerance, at which errors are measured, as found on fitted models; if they are too
# large, it is lowered by a factor.
RESIDUAL_SHARE, LOWER = 0.04, 0.25
# Share of the points that are pivots when their number is first extrapolated, and how optimistically: where a kernel is smooth, residuals fall
# faster and faster.
FIRST_LOOK, OPTIMISM = 0.15, 0.75
# Rows of a triangular solve with the leaf's factor in one step.
STEP_ROWS = 64


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


#: A basis in the making: yields the multiplications of each step.
Steps = Generator[float, None, LowRankVariance | None]


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
    steps = low_rank_steps(kernel, X, factor, alpha, noise, tolerance)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            basis: LowRankVariance | None = end.value
            return basis


def low_rank_steps(
    kernel: BoundLeafKernel, X: Array, factor: Array, alpha: Array, noise: float, tolerance: float
) -> Steps:
    """The same in steps, for requests that cannot wait for all of them: yields the multiplications of each step."""
    n = len(X)
    if n < LEAST_POINTS:
        return None
    search = _Search(kernel, X, factor, alpha, noise)
    target, history = RESIDUAL_SHARE * tolerance * noise, [(0, math.inf)]
    while True:
        enough = yield from _add_pivots(search, target, history)
        if not enough:
            break
        yield from search.project()
        rank = search.accurate_rank(PIVOT_SHARE * tolerance)
        yield 5.0 * N_CHECKS * search.rank**2
        if rank:
            rank = min(rank + max(SPARE_PIVOTS, int(SPARE_SHARE * rank)), search.rank)
            return (yield from search.basis(rank, tolerance))
        target = LOWER * min(target, history[-1][1])
        if not target > 0.0:  # no residuals are left, and the error is another one
            break
    yield from search.compute_exact()
    yield n**3 / 3.0
    return search.of_all_points(tolerance)


def _add_pivots(
    search: _Search, target: float, history: list[tuple[int, float]]
) -> Generator[float, None, bool]:
    """Add pivots until the mean residual variance of the points is below ``target``, or there are no more; False if it would take too many.

    ``history`` has ranks and residuals so far, and gets more.
    """
    block = max(16, search.n // 48)
    while history[-1][1] > target:
        rank = search.rank
        if _hopeless(history, target, search.n):
            return False
        if rank + block > LARGEST_SHARE * search.n or not search.extend(block):
            return rank > search.n_projected
        history.append((search.rank, max(float(search.residual.mean()), 0.0)))
        yield float((search.rank - rank) * search.n * (rank + 50))
    return True


def _hopeless(history: list[tuple[int, float]], target: float, n: int) -> bool:
    """Whether residuals fall too slowly to reach the target, at the power of the rank at which they fell in the last half of the pivots."""
    rank, residual = history[-1]
    if rank < FIRST_LOOK * n:
        return False
    before, residual_before = min(history, key=lambda entry: abs(entry[0] - rank / 2))
    if residual >= residual_before:
        return True
    power = math.log(residual_before / residual) / math.log(rank / before)
    factor = math.exp(OPTIMISM * math.log(residual / target) / power)
    return rank * factor > LARGEST_SHARE * n


class _Search:
    """A partial Cholesky decomposition that grows by blocks of pivots, and the variances that it gives."""

    def __init__(
        self, kernel: BoundLeafKernel, X: Array, factor: Array, alpha: Array, noise: float
    ) -> None:
        self.kernel, self.X, self.factor, self.noise, self.n = kernel, X, factor, noise, len(X)
        self.alpha = alpha
        prior = kernel.variance(X)
        self.prior, self.residual = float(prior[0]), prior
        self.pivots = np.empty(0, dtype=np.int64)
        most = int(LARGEST_SHARE * self.n) + 1
        # Rows of the factor of the kernel's matrix, (pivots, points).
        self._G = np.empty((most, self.n))
        # ``L^-1 G'``, transposed, of the first pivots, and its squares: G K^-1 G'.
        self._H, self.n_projected = np.empty((most, self.n)), 0
        self._gram = np.empty((most, most))
        # Covariances of the check points with the points, and exact variances of y there.
        self._at_checks, self._exact = np.empty((0, self.n)), np.empty(0)

    @property
    def rank(self) -> int:
        return len(self.pivots)

    def extend(self, size: int) -> bool:
        """Add up to ``size`` pivots; False if the points are represented exactly."""
        new, r = self._next_pivots(size), self.rank
        if not len(new):
            return False
        G, last = self._G, r + len(new)
        rows = self.kernel.cross(self.X[new], self.X) - G[:r, new].T @ G[:r]
        corner = rows[:, new].copy()
        if not lapack.factorise(corner):
            return False
        # corner^-1 rows: triangular solves of columns, which are few.
        block = np.ascontiguousarray(rows.T)
        lapack.solve_rows(corner, block)
        G[r:last] = block.T
        self.residual -= np.einsum("ij,ij->i", block, block)
        self.residual[new] = 0.0
        self.pivots = np.concatenate([self.pivots, new])
        return True

    def _next_pivots(self, size: int) -> Index:
        """Greedy pivots among the points with the largest residual variances."""
        candidates = np.argsort(-self.residual, kind="stable")[: 2 * size]
        largest = self.residual[candidates[0]]
        if largest <= LEAST_RESIDUAL * self.prior:
            return candidates[:0]
        G = self._G[: self.rank, candidates]
        S = self.kernel.cross(self.X[candidates], self.X[candidates]) - G.T @ G
        least = max(LEAST_RESIDUAL * self.prior, 0.1 * largest)
        _, order, rank, _ = dpstrf(S, tol=least, lower=1)
        return np.asarray(candidates[order[: min(rank, size)] - 1], dtype=np.int64)

    def project(self) -> Generator[float, None, None]:
        """Compute ``G K^-1 G'`` for pivots that are new since, and exact variances at the check points, in steps."""
        yield from self.compute_exact()
        while (first := self.n_projected) < self.rank:
            last = min(first + STEP_ROWS, self.rank)
            self._H[first:last] = self._G[first:last]
            lapack.solve_rows(self.factor, self._H[first:last])
            self._gram[first:last, :last] = self._H[first:last] @ self._H[:last].T
            self._gram[:first, first:last] = self._gram[first:last, :first].T
            self.n_projected = last
            yield float((last - first) * self.n * (self.n / 2 + last))

    def compute_exact(self) -> Generator[float, None, None]:
        """Compute exact variances at the check points, in steps."""
        if not len(self._exact):
            self._at_checks = self.kernel.cross(_check_points(self.X), self.X)
        while (first := len(self._exact)) < len(self._at_checks):
            half = self._at_checks[first : first + STEP_ROWS].copy()
            lapack.solve_rows(self.factor, half)
            variance = np.maximum(self.prior - np.einsum("ij,ij->i", half, half), 0.0) + self.noise
            self._exact = np.concatenate([self._exact, variance])
            yield 0.5 * len(half) * self.n**2

    def accurate_rank(self, tolerance: float) -> int:
        """Return the least number of the pivots with which the error at the check points is, and remains, below the tolerance; 0 if none has."""
        r = self.rank
        phi = np.ascontiguousarray(self._at_checks[:, self.pivots])
        lapack.solve_rows(np.ascontiguousarray(self._G[:r, self.pivots].T), phi)
        # phi' A phi of all leading blocks of A: what each row and column adds.
        below = phi @ np.tril(self._gram[:r, :r], -1).T
        explained = np.cumsum(
            phi * (2.0 * below + self._gram[:r, :r].diagonal() * phi), axis=1, out=below
        )
        variance = np.maximum(self.prior - explained, 0.0) + self.noise
        errors = np.abs(variance / self._exact[:, None] - 1.0).max(axis=0)
        beyond = np.flatnonzero(~(errors <= tolerance))
        least = int(beyond[-1]) + 2 if len(beyond) else 1
        return least if least <= r else 0

    def _errors_of(self, variance: Array) -> tuple[float, float]:
        """Mean and largest relative error of variances of f at the check points, as variances of y."""
        errors = np.abs((variance + self.noise) / self._exact - 1.0)
        return float(errors.mean()), float(errors.max())

    def basis(self, rank: int, tolerance: float) -> Steps:
        """Return the basis of the first pivots, in single precision if its error stays below the tolerance; in steps."""
        r, pivots = rank, self.pivots[:rank]
        # G K^-1 G' = D' D with a lower triangular D: the factor of the matrix in reversed order, transposed.
        reversed_gram = np.ascontiguousarray(self._gram[:r, :r][::-1, ::-1])
        if not lapack.factorise(reversed_gram):
            return None
        yield r**3 / 3.0
        D = np.tril(np.tril(reversed_gram)[::-1, ::-1].T)
        corner = np.tril(self._G[:r, pivots].T)
        lapack.invert_factor(corner)
        yield r**3 / 3.0
        weights = np.tril(D @ np.tril(corner))
        yield float(r**3)
        order = np.concatenate([pivots, np.setdiff1d(np.arange(self.n), pivots)])
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
            found = LowRankVariance(order, weights.astype(dtype), self.alpha[order], self.prior)
            errors = self._errors_of(found.variance(self._at_checks[:, order[: found.rank]]))
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
