"""A leaf whose training rows are added and removed one by one, at ``O(m^2)`` a row.

New rows extend the Cholesky factor from below; rows that are removed take an orthogonal transformation of the rows
after them. On the CPU, in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backend import NOT_FACTORISED
from dsmgp.experts.loo import standardised
from dsmgp.experts.points import LeafPoints, Observations, equal_rows, joined_weights
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.linalg import lapack
from dsmgp.linalg.cholesky_update import append_rows, remove_rows
from dsmgp.linalg.jitter import jitter_ladder

__all__ = ["OnlineLeaf", "OutputFactor", "inverse_diagonal"]


@dataclass(frozen=True)
class OutputFactor:
    """One output of a conditioned leaf with m distinct inputs ("points").

    Attributes
    ----------
    factor : ndarray of shape (m, m)
        Lower Cholesky factor of the covariance of the observations at the points.
    alpha : ndarray of shape (m,)
        ``K^-1 (y - mean)``.
    diagonal : ndarray of shape (m,)
        Diagonal of ``K^-1``.
    log_evidence : float
    noise : float
        Noise variance of a row.
    """

    factor: Array
    alpha: Array
    diagonal: Array
    log_evidence: float
    noise: float


@dataclass(frozen=True)
class OnlineLeaf:
    """The rows of a leaf and all that was computed of them.

    Attributes
    ----------
    ids : ndarray of shape (n,)
        Identifiers of its rows.
    X, y, known_noise : ndarray of shape (n, n_dims), (n, n_outputs), (n, n_outputs)
        In the units of the leaf GPs.
    weights : ndarray of shape (n,), or None
        Weights of its rows; None if all are one.
    starts : ndarray of shape (m + 1,)
        Where the rows of each of m points start (:class:`~dsmgp.experts.points.LeafPoints`). A row that is added becomes a point of its own,
        even where another has the same inputs: the results are the same.
    outputs : tuple of OutputFactor
    n_changes : int
        Rows added or removed since the leaf was last factorised from scratch.
    """

    ids: Index
    X: Array
    y: Array
    known_noise: Array
    weights: Array | None
    starts: Index
    outputs: tuple[OutputFactor, ...]
    n_changes: int = 0

    @classmethod
    def from_rows(
        cls,
        kernels: Sequence[BoundLeafKernel],
        ids: Index,
        X: Array,
        y: Array,
        known_noise: Array,
        weights: Array | None = None,
    ) -> OnlineLeaf:
        """Condition a leaf from scratch."""
        every = Ragged.of([np.arange(len(ids))])
        order, starts = LeafPoints.of(every, equal_rows(X)).of_leaf(0)
        ids, X, y, known_noise = ids[order], X[order], y[order], known_noise[order]
        weights = None if weights is None else weights[order]
        points, outputs = X[starts[:-1]], []
        for k, kernel in enumerate(kernels):
            noise = kernel.noise + known_noise[:, k]
            observations = Observations.of(y[:, k], noise, starts, weights)
            K = kernel.cross(points, points)
            factor = _cholesky(K + np.diag(observations.variance))
            diagonal = inverse_diagonal(factor)
            outputs.append(_solve_output(kernel, factor, points, observations, diagonal))
        return cls(ids, X, y, known_noise, weights, starts, tuple(outputs))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def points(self) -> Array:
        """Inputs at the points, (m, n_dims)."""
        return self.X[self.starts[:-1]]

    @property
    def log_evidence(self) -> Array:
        return np.array([output.log_evidence for output in self.outputs])

    @property
    def squares(self) -> tuple[Array, Array]:
        """Sums of squared standardised leave-one-out residuals, and the number of rows they count for, (n_outputs,)."""
        square, count = np.zeros((2, len(self.outputs)))
        for k, output in enumerate(self.outputs):
            variance = 1.0 / output.diagonal  # R&W eq. 5.12
            known_noise, y = self.known_noise[:, k], self.y[:, k]
            noise = output.noise + known_noise
            observations = Observations.of(y, noise, self.starts, self.weights)
            mean, variance, *_ = observations.leave_one_out(output.alpha * variance, variance)
            terms = standardised(
                np.square(y - mean), variance, known_noise if known_noise.any() else None
            )
            if self.weights is not None:
                terms = terms[0] * self.weights, terms[1] * self.weights
            square[k], count[k] = (term.sum() for term in terms)
        return square, count

    def with_rows(
        self,
        kernels: Sequence[BoundLeafKernel],
        ids: Index,
        X: Array,
        y: Array,
        known_noise: Array,
        weights: Array | None = None,
    ) -> OnlineLeaf:
        """Add rows, which come last, each as a point of its own: the factor is extended by blocks."""
        counts = np.ones(len(ids), np.int64)
        return self._with_points(kernels, ids, X, y, known_noise, weights, counts)

    def _with_points(
        self,
        kernels: Sequence[BoundLeafKernel],
        ids: Index,
        X: Array,
        y: Array,
        known_noise: Array,
        weights: Array | None,
        counts: Index,
    ) -> OnlineLeaf:
        """Add rows, of which the first ``counts[0]`` are one point, the next ``counts[1]`` another, and so on."""
        m, n = len(self.starts) - 1, len(self.starts) - 1 + len(counts)
        starts = np.append(self.starts, self.starts[-1] + np.cumsum(counts))
        weights = joined_weights([(self.weights, len(self)), (weights, len(ids))])
        ids = np.concatenate([self.ids, ids])
        X, y = np.concatenate([self.X, X]), np.concatenate([self.y, y])
        known_noise = np.concatenate([self.known_noise, known_noise])
        if not lapack.available or self.n_changes + n - m > n:
            return OnlineLeaf.from_rows(kernels, ids, X, y, known_noise, weights)
        points, outputs = X[starts[:-1]], []
        for k, (kernel, output) in enumerate(zip(kernels, self.outputs, strict=True)):
            noise = kernel.noise + known_noise[:, k]
            observations = Observations.of(y[:, k], noise, starts, weights)
            K = np.zeros((n, n))
            K[:m, :m] = output.factor
            K[m:] = np.tril(kernel.cross(points[m:], points), m)
            K[np.arange(m, n), np.arange(m, n)] += observations.variance[m:]
            if not append_rows(K, m):  # which takes jitter
                return OnlineLeaf.from_rows(kernels, ids, X, y, known_noise, weights)
            diagonal = _diagonal_with_rows(output.diagonal, K)
            outputs.append(_solve_output(kernel, K, points, observations, diagonal))
        n_changes = self.n_changes + n - m
        return OnlineLeaf(ids, X, y, known_noise, weights, starts, tuple(outputs), n_changes)

    def without_rows(self, kernels: Sequence[BoundLeafKernel], ids: Index) -> OnlineLeaf:
        """Remove rows by identifier: an orthogonal transformation of the rows of the factor that come after them.

        A point that keeps other rows has another average: it is removed, and added again without the row.
        """
        counts, removed = np.diff(self.starts), np.isin(self.ids, ids)
        point = np.repeat(np.arange(len(counts)), counts)  # of each row
        gone = np.unique(point[removed])
        stays, again = ~np.isin(point, gone), np.isin(point, gone) & ~removed
        n_changes = self.n_changes + len(gone) + len(np.unique(point[again]))
        if not lapack.available or n_changes >= len(counts) - len(gone):
            return OnlineLeaf.from_rows(kernels, *self._rows(~removed))
        rest = self._without_points(kernels, gone, stays, n_changes)
        if not again.any():
            return rest
        return rest._with_points(
            kernels, *self._rows(again), np.unique(point[again], return_counts=True)[1]
        )

    def _rows(self, chosen: NDArray[np.bool_]) -> tuple[Index, Array, Array, Array, Array | None]:
        weights = None if self.weights is None else self.weights[chosen]
        return self.ids[chosen], self.X[chosen], self.y[chosen], self.known_noise[chosen], weights

    def _without_points(
        self,
        kernels: Sequence[BoundLeafKernel],
        gone: Index,
        stays: NDArray[np.bool_],
        n_changes: int,
    ) -> OnlineLeaf:
        """Remove points with all their rows; ``stays`` marks the other rows."""
        counts = np.diff(self.starts)
        kept = np.delete(np.arange(len(counts)), gone)
        starts = np.append(0, np.cumsum(counts[kept]))
        rows = self._rows(stays)
        _, X, y, known_noise, weights = rows
        outputs = []
        for k, (kernel, output) in enumerate(zip(kernels, self.outputs, strict=True)):
            noise = kernel.noise + known_noise[:, k]
            observations = Observations.of(y[:, k], noise, starts, weights)
            diagonal = _diagonal_without_rows(output, gone, kept)
            factor = remove_rows(output.factor, gone)
            outputs.append(_solve_output(kernel, factor, X[starts[:-1]], observations, diagonal))
        return OnlineLeaf(*rows, starts, tuple(outputs), n_changes)

    def predict(
        self, kernels: Sequence[BoundLeafKernel], X: Array, with_variance: bool = True
    ) -> tuple[Array, Array]:
        """Return mean and variance of f, (n, n_outputs) each; the second is empty without variances."""
        means, variances = [], []
        for kernel, output in zip(kernels, self.outputs, strict=True):
            cross = kernel.cross(X, self.points)
            means.append(kernel.mean(X) + cross @ output.alpha)
            if with_variance:
                half = _solve(output.factor, cross.T)
                explained = np.square(half).sum(axis=0)
                variances.append(np.maximum(kernel.variance(X) - explained, 0.0))
        mean = np.stack(means, axis=1)
        return mean, np.stack(variances, axis=1) if with_variance else mean[:0]

    def joint(self, kernels: Sequence[BoundLeafKernel], X: Array) -> tuple[Array, Array]:
        """Return mean (n, n_outputs) and covariance (n_outputs, n, n) of f."""
        means, covariances = [], []
        for kernel, output in zip(kernels, self.outputs, strict=True):
            cross = kernel.cross(X, self.points)
            means.append(kernel.mean(X) + cross @ output.alpha)
            half = _solve(output.factor, cross.T)
            covariances.append(kernel.cross(X, X) - half.T @ half)
        return np.stack(means, axis=1), np.stack(covariances)

    @property
    def n_bytes(self) -> int:
        return sum(output.factor.nbytes for output in self.outputs)


def _cholesky(K: Array) -> Array:
    """Lower Cholesky factor, with as little jitter as it takes."""
    scale = float(K.diagonal().mean()) if len(K) else 0.0
    for jitter in (0.0, *jitter_ladder(scale)):
        try:
            return np.asarray(np.linalg.cholesky(K + jitter * np.eye(len(K))), np.float64)
        except np.linalg.LinAlgError:
            continue
    raise ValueError(NOT_FACTORISED)


def _solve(L: Array, B: Array, transposed: bool = False) -> Array:
    if not len(L):
        return B
    return np.asarray(solve_triangular(L, B, lower=True, trans=int(transposed), check_finite=False))


def _solve_output(
    kernel: BoundLeafKernel,
    factor: Array,
    points: Array,
    observations: Observations,
    diagonal: Array,
) -> OutputFactor:
    """Alpha and log evidence (R&W algorithm 2.1) by a factor."""
    white = _solve(factor, observations.mean - kernel.mean(points))
    evidence = observations.log_evidence(
        float(white @ white), float(np.log(factor.diagonal()).sum())
    )
    alpha = _solve(factor, white, transposed=True)
    return OutputFactor(factor, alpha, diagonal, evidence, kernel.noise)


def inverse_diagonal(factor: Array) -> Array:
    """Return the diagonal of ``(L L')^-1``."""
    half = _solve(factor, np.eye(len(factor)))
    return np.asarray(np.square(half).sum(axis=0))


def _diagonal_with_rows(diagonal: Array, factor: Array) -> Array:
    """Diagonal of ``K^-1`` after rows were added: it gains the squares of the new rows of ``L^-1``."""
    m = len(diagonal)
    across, corner = factor[m:, :m], factor[m:, m:]
    inverse = _solve(corner, np.eye(len(corner)))
    new = inverse @ _solve(factor[:m, :m], across.T, transposed=True).T
    return np.concatenate([diagonal + np.square(new).sum(axis=0), np.square(inverse).sum(axis=0)])


def _diagonal_without_rows(output: OutputFactor, removed: Index, kept: Index) -> Array:
    """Diagonal of ``K^-1`` after rows were removed, by the Schur complement of their block of ``K^-1``."""
    unit = np.zeros((len(output.diagonal), len(removed)))
    unit[removed, np.arange(len(removed))] = 1.0
    columns = _solve(output.factor, _solve(output.factor, unit), transposed=True)  # of K^-1
    solved = np.linalg.solve(columns[removed], columns[kept].T)
    return np.asarray(output.diagonal[kept] - (columns[kept].T * solved).sum(axis=0))
