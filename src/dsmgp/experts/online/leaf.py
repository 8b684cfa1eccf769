"""A leaf whose training rows are added and removed one by one, at ``O(m^2)`` a row.

New rows extend the Cholesky factor from below, without a copy of it (:mod:`dsmgp.experts.online.grown_factor`); rows that are removed take an
orthogonal transformation of the rows after them. On the CPU, in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.loo import standardised
from dsmgp.experts.online.grown_factor import GrownFactor
from dsmgp.experts.points import LeafPoints, Observations, equal_rows, joined_weights
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.linalg import lapack
from dsmgp.linalg.cholesky import cholesky, solve
from dsmgp.linalg.cholesky_update import remove_rows

__all__ = ["OnlineLeaf", "OutputFactor", "inverse_diagonal"]


@dataclass(frozen=True)
class OutputFactor:
    """One output of a conditioned leaf with m distinct inputs ("points").

    Attributes
    ----------
    factor : GrownFactor
        Lower Cholesky factor of the covariance of the observations at the points.
    alpha : ndarray of shape (m,)
        ``K^-1 (y - mean)``.
    diagonal : ndarray of shape (m,)
        Diagonal of ``K^-1``.
    log_evidence : float
    noise : float
        Noise variance of a row.
    """

    factor: GrownFactor
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
        """Condition a leaf from scratch.

        Parameters
        ----------
        kernels : sequence of BoundLeafKernel
            By output.
        ids : ndarray of shape (n_rows,)
            Identifiers, by which rows are removed.
        X : ndarray of shape (n_rows, n_dims)
        y, known_noise : ndarray of shape (n_rows, n_outputs)
        weights : ndarray of shape (n_rows,), optional
        """
        every = Ragged.of([np.arange(len(ids))])
        order, starts = LeafPoints.of(every, equal_rows(X)).of_leaf(0)
        ids, X, y, known_noise = ids[order], X[order], y[order], known_noise[order]
        weights = None if weights is None else weights[order]
        points, outputs = X[starts[:-1]], []
        for k, kernel in enumerate(kernels):
            noise = kernel.noise + known_noise[:, k]
            observations = Observations.of(y[:, k], noise, starts, weights)
            factor, _ = cholesky(kernel.cross(points, points), observations.variance)
            diagonal = inverse_diagonal(factor)
            outputs.append(
                _solve_output(kernel, GrownFactor.of(factor), points, observations, diagonal)
            )
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
            if len(self.starts) == len(y) + 1 and self.weights is None and not known_noise.any():
                # Every row is a point: residuals are alpha times the variance (R&W eq. 5.12).
                square[k], count[k] = np.square(output.alpha) @ variance, len(y)
                continue
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
        """Add rows, which come last, each as a point of its own: the factor is extended by blocks.

        Parameters
        ----------
        kernels : sequence of BoundLeafKernel
            By output.
        ids : ndarray of shape (n_rows,)
            Identifiers, by which rows are removed.
        X : ndarray of shape (n_rows, n_dims)
        y, known_noise : ndarray of shape (n_rows, n_outputs)
        weights : ndarray of shape (n_rows,), optional
        """
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
            across = kernel.cross(points[m:], points)
            corner = across[:, m:] + np.diag(observations.variance[m:])
            residual = observations.mean - kernel.mean(points)
            extended = _extended(output, across[:, :m], corner, residual, observations)
            if extended is None:  # which takes jitter
                return OnlineLeaf.from_rows(kernels, ids, X, y, known_noise, weights)
            outputs.append(extended)
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
            factor = GrownFactor.of(remove_rows(output.factor.whole(), gone))
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
                explained = np.square(output.factor.solve(cross)).sum(axis=1)
                variances.append(np.maximum(kernel.variance(X) - explained, 0.0))
        mean = np.stack(means, axis=1)
        return mean, np.stack(variances, axis=1) if with_variance else mean[:0]

    def joint(self, kernels: Sequence[BoundLeafKernel], X: Array) -> tuple[Array, Array]:
        """Return mean (n, n_outputs) and covariance (n_outputs, n, n) of f."""
        means, covariances = [], []
        for kernel, output in zip(kernels, self.outputs, strict=True):
            cross = kernel.cross(X, self.points)
            means.append(kernel.mean(X) + cross @ output.alpha)
            half = output.factor.solve(cross)
            covariances.append(kernel.cross(X, X) - half @ half.T)
        return np.stack(means, axis=1), np.stack(covariances)

    @property
    def n_bytes(self) -> int:
        return sum(output.factor.n_bytes for output in self.outputs)


def _solve_output(
    kernel: BoundLeafKernel,
    factor: GrownFactor,
    points: Array,
    observations: Observations,
    diagonal: Array,
) -> OutputFactor:
    """Alpha and log evidence (R&W algorithm 2.1) by a factor."""
    white = factor.solve((observations.mean - kernel.mean(points))[None])
    evidence = observations.log_evidence(
        float(np.square(white).sum()), float(np.log(factor.diagonal).sum())
    )
    alpha = factor.solve_transposed(white)[0]
    return OutputFactor(factor, alpha, diagonal, evidence, kernel.noise)


def _extended(
    output: OutputFactor, across: Array, corner: Array, residual: Array, observations: Observations
) -> OutputFactor | None:
    """Extend a factor of m points by k more, and all that follows from it, by two triangular solves with k right-hand sides.

    Parameters
    ----------
    output : OutputFactor
        Of the m points.
    across, corner : ndarray of shape (k, m), (k, k)
        Covariances of the new points with the others, and among themselves with noise.
    residual : ndarray of shape (m + k,)
        Observations minus the prior mean.
    observations : Observations
        At all points.

    Returns
    -------
    OutputFactor, or None
        None where the matrix is not positive definite.
    """
    m = across.shape[1]
    rows = output.factor.solve(across)
    lower = corner - rows @ rows.T
    if not lapack.factorise(lower):
        return None
    lower = np.tril(lower)
    factor = output.factor.with_rows(np.concatenate([rows, lower], axis=1))
    # With L = [A 0; B C], the new rows of L^-1 are -C^-1 B A^-1 and C^-1; alpha changes by K11^-1 K12 = (B A^-1)'.
    regression = output.factor.solve_transposed(rows)
    inverse = solve(lower, np.eye(len(lower)))
    diagonal = np.concatenate(
        [
            output.diagonal + np.square(inverse @ regression).sum(axis=0),
            np.square(inverse).sum(axis=0),
        ]
    )
    new = inverse.T @ (inverse @ (residual[m:] - across @ output.alpha))
    alpha = np.concatenate([output.alpha - new @ regression, new])
    half_log_det = float(np.log(factor.diagonal).sum())
    evidence = observations.log_evidence(float(residual @ alpha), half_log_det)
    return OutputFactor(factor, alpha, diagonal, evidence, output.noise)


def inverse_diagonal(factor: Array) -> Array:
    """Return the diagonal of ``(L L')^-1``."""
    half = solve(factor, np.eye(len(factor)))
    return np.asarray(np.square(half).sum(axis=0))


def _diagonal_without_rows(output: OutputFactor, removed: Index, kept: Index) -> Array:
    """Diagonal of ``K^-1`` after rows were removed, by the Schur complement of their block of ``K^-1``."""
    unit = np.zeros((len(output.diagonal), len(removed)))
    unit[removed, np.arange(len(removed))] = 1.0
    columns = output.factor.solve_transposed(output.factor.solve(unit.T)).T  # of K^-1
    solved = np.linalg.solve(columns[removed], columns[kept].T)
    return np.asarray(output.diagonal[kept] - (columns[kept].T * solved).sum(axis=0))
