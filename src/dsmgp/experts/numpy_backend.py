"""Leaf GPs in NumPy, one leaf after the other: every kernel in closed form, double precision, CPU.

It computes the kernels that have no compiled form (rational quadratic, periodic, sums), and all of them on a machine without numba.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backend import (
    BoundKernels,
    LeafPosteriorBatch,
    LOOBatch,
    PredictRequest,
    groups_by_work,
    kernel_codes,
)
from dsmgp.experts.duplicates import precisions_of, without_duplicates
from dsmgp.experts.factor_cache import Packed
from dsmgp.gp.kernels import BoundLeafKernel, LeafKernel, Pullback, StationaryKernel, SumKernel
from dsmgp.linalg.jitter import jitter_ladder

__all__ = ["NumpyBackend"]

# Elements of the covariance between test and training rows that are held at a time.
TILE_ELEMENTS = 2**22


@dataclass(frozen=True)
class _Solution:
    """A factorised leaf; its attributes are those of the same names in the torch backend."""

    factor: Array
    alpha: Array
    residual: Array
    jitter: float
    pullback: Pullback

    @property
    def squares(self) -> float:
        """``(y - mean)' K^-1 (y - mean)``."""
        return float(self.residual @ self.alpha)

    @property
    def half_log_det(self) -> float:
        return float(np.log(self.factor.diagonal()).sum())

    @property
    def log_evidence(self) -> float:
        """Log density of the observations (R&W eq. 2.30)."""
        return -0.5 * (self.squares + len(self.alpha) * LOG_2PI) - self.half_log_det

    def student_evidence(self, scale_rows: float) -> tuple[float, float]:
        """Log evidence with the scale of the leaf integrated out, and the weight of ``alpha alpha'`` in its gradient."""
        n, half = len(self.alpha), 0.5 * scale_rows
        constant = (
            gammaln(half + 0.5 * n) - gammaln(half) - 0.5 * n * math.log(scale_rows * math.pi)
        )
        evidence = (
            constant - self.half_log_det - (half + 0.5 * n) * math.log1p(self.squares / scale_rows)
        )
        return float(evidence), (scale_rows + n) / (scale_rows + self.squares)


class NumpyBackend:
    """A :class:`~dsmgp.experts.backend.TrainingBackend` in NumPy.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_dims)
    Y : ndarray of shape (n_rows, n_outputs)
    leaf_rows : Ragged
        Row numbers of each leaf.
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    known_noise : ndarray of shape (n_rows, n_outputs), optional
    """

    plan = None  # factors are not shared
    bytes_at_once = math.inf  # one leaf after the other: there is nothing to reduce

    def __init__(
        self,
        X: Array,
        Y: Array,
        leaf_rows: Ragged,
        kernels: Sequence[Sequence[LeafKernel]],
        known_noise: Array | None,
    ) -> None:
        self.X, self.Y, self.leaf_rows, self.known_noise = X, Y, leaf_rows, known_noise
        self.groups = groups_by_work(leaf_rows.sizes, kernel_codes(kernels))

    @staticmethod
    def supports(kernels: Sequence[Sequence[LeafKernel]]) -> bool:
        """Whether these kernels have a closed form."""
        different = {kernel for of_output in kernels for kernel in of_output}
        return all(isinstance(kernel, (StationaryKernel, SumKernel)) for kernel in different)

    def with_kernels(self, kernels: Sequence[Sequence[LeafKernel]]) -> NumpyBackend:
        return copy.copy(self)  # kernels come with every call, bound to their parameters

    def reduce_batches(self) -> bool:
        return False

    def elements(self, group: int) -> int:
        return int(np.square(self.leaf_rows.sizes[self.groups[group]]).sum())

    def squares(self, bound: BoundKernels, output: int, group: int) -> Array:
        solutions = self._solve_group(bound, output, group)
        return np.array([math.nan if s is None else s.squares for s in solutions])

    def log_evidence(self, bound: BoundKernels, output: int, group: int) -> Array:
        solutions = self._solve_group(bound, output, group)
        return np.array([math.nan if s is None else s.log_evidence for s in solutions])

    def gradient(
        self, bound: BoundKernels, output: int, group: int, scale_rows: float | None
    ) -> tuple[Array, Array]:
        evidence, gradients = [], []
        for leaf in self.groups[group].tolist():
            solution = self._solve(bound, output, leaf)
            if solution is None:
                evidence.append(math.nan)
                gradients.append(np.full(bound.parameters(output, leaf).shape, math.nan))
                continue
            log_evidence, weight = solution.log_evidence, 1.0
            if scale_rows is not None:
                log_evidence, weight = solution.student_evidence(scale_rows)
            inverse_factor = _invert(solution.factor)
            W = (
                weight * np.outer(solution.alpha, solution.alpha)
                - inverse_factor.T @ inverse_factor
            )
            evidence.append(log_evidence)
            trace = float(W.diagonal().sum())
            with _out_of_range():
                gradients.append(solution.pullback(W, weight * solution.alpha, trace))
        return np.array(evidence), np.stack(gradients)

    def condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        keep: bool,
        duplicates: list[list[Index]] | None,
    ) -> LeafPosteriorBatch:
        solutions = self._solve_group(bound, output, group)
        sizes = self.leaf_rows.sizes[self.groups[group]]
        solved = [s for s in solutions if s is not None]
        if len(solved) < len(
            solutions
        ):  # one of them cannot be factorised: the caller refuses them all
            nothing = np.full(len(sizes), math.nan)
            return LeafPosteriorBatch(nothing, nothing, np.full(sizes.sum(), math.nan), None, None)
        return LeafPosteriorBatch(
            log_evidence=np.array([s.log_evidence for s in solved]),
            jitter=np.array([s.jitter for s in solved]),
            alpha=np.concatenate([s.alpha for s in solved]),
            factors=Packed.of([s.factor for s in solved]) if keep else None,
            loo=None if duplicates is None else _leave_one_out(solved, duplicates),
        )

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Array, Array]:
        # R&W algorithm 2.1
        tests = request.X[request.rows]
        mean = np.empty(len(tests))
        variance = np.empty(0 if request.factors is None else len(tests))
        places = self.leaf_rows.ends
        for k, leaf in enumerate(request.leaves.tolist()):
            kernel, train = bound(output, leaf), self.X[self.leaf_rows[leaf]]
            alpha = request.alpha[places[leaf] : places[leaf + 1]]
            factor = None if request.factors is None else request.factors[int(request.slots[k])]
            step = max(1, TILE_ELEMENTS // max(len(train), 1))
            for first in range(request.ends[k], request.ends[k + 1], step):
                rows = slice(first, min(first + step, request.ends[k + 1]))
                cross = kernel.cross(tests[rows], train)
                mean[rows] = kernel.mean(tests[rows]) + cross @ alpha
                if factor is not None:
                    half = solve_triangular(factor, cross.T, lower=True, check_finite=False)
                    explained = np.square(half).sum(axis=0)
                    variance[rows] = np.maximum(kernel.variance(tests[rows]) - explained, 0.0)
        return mean, variance

    def hold_factors(self, matrices: Sequence[Array]) -> Packed:
        return Packed.of(matrices)

    def fill(self, bound: BoundKernels, output: int, leaf: int, K: Array, first: int) -> None:
        rows = self.leaf_rows[leaf]
        kernel, X = bound(output, leaf), self.X[rows]
        K[first:] = np.tril(kernel.cross(X[first:], X), first)
        diagonal = np.arange(first, len(rows))
        K[diagonal, diagonal] += self._noise(kernel, output, rows)[first:]

    def _noise(self, kernel: BoundLeafKernel, output: int, rows: Index) -> Array:
        """Noise variances of rows, with those that are known."""
        noise = np.full(len(rows), kernel.noise)
        return noise if self.known_noise is None else noise + self.known_noise[rows, output]

    def _solve_group(self, bound: BoundKernels, output: int, group: int) -> list[_Solution | None]:
        return [self._solve(bound, output, leaf) for leaf in self.groups[group].tolist()]

    def _solve(self, bound: BoundKernels, output: int, leaf: int) -> _Solution | None:
        """Factorise the covariance of a leaf; None where no jitter is enough."""
        rows = self.leaf_rows[leaf]
        kernel, X = bound(output, leaf), self.X[rows]
        with _out_of_range():
            K, pullback = kernel.covariance(X)
        diagonal = K.diagonal() + self._noise(kernel, output, rows)
        for jitter in (0.0, *jitter_ladder(float(diagonal.mean()))):
            np.fill_diagonal(K, diagonal + jitter)
            try:
                factor = np.asarray(np.linalg.cholesky(K), np.float64)
            except np.linalg.LinAlgError:
                continue
            residual = self.Y[rows, output] - kernel.mean(X)
            white = solve_triangular(factor, residual, lower=True, check_finite=False)
            alpha = solve_triangular(factor, white, lower=True, trans=1, check_finite=False)
            return _Solution(factor, alpha, residual, jitter, pullback)
        return None


def _out_of_range() -> np.errstate:
    """Let hyperparameters that an optimiser took too far give NaN without a warning: it steps back."""
    return np.errstate(divide="ignore", over="ignore", invalid="ignore")


def _invert(factor: Array) -> Array:
    identity = np.eye(len(factor))
    return np.asarray(solve_triangular(factor, identity, lower=True, check_finite=False))


def _leave_one_out(solutions: Sequence[_Solution], duplicates: list[list[Index]]) -> LOOBatch:
    """Leave-one-out residuals and variances of y (R&W eqs. 5.10 to 5.12), leaf after leaf."""
    alone, grouped = [], []
    for solution, of_leaf in zip(solutions, duplicates, strict=True):
        inverse_factor = _invert(solution.factor)
        variance = 1.0 / np.square(inverse_factor).sum(axis=0)
        residual = solution.alpha * variance
        alone.append((residual, variance))
        tables = without_duplicates(
            residual[None],
            variance[None],
            solution.alpha[None],
            [of_leaf],
            precisions_of(inverse_factor),
        )
        grouped.append([table[0] for table in tables])
    residual, variance = (np.concatenate(parts) for parts in zip(*alone, strict=True))
    if not any(duplicates):
        return LOOBatch(residual, variance)
    r, v, log_density = (np.concatenate(parts) for parts in zip(*grouped, strict=True))
    return LOOBatch(residual, variance, (r, v, log_density))
