"""Leaf GPs in NumPy, one leaf after the other: every kernel in closed form, double precision, CPU.

It computes the kernels that have no compiled form (rational quadratic, periodic, sums), and all of them on a
machine without numba.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp.experts.backends.interface import (
    BoundKernels,
    LeafPosteriorBatch,
    PredictRequest,
    groups_by_work,
    kernel_codes,
)
from dsmgp.experts.factors.cache import Packed
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.points import LeafPoints, Observations
from dsmgp.gp.leaf_kernels import CLOSED_FORM, BoundLeafKernel, LeafKernel, Pullback
from dsmgp.linalg.cholesky import NotFactorisedError, cholesky, solve

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
    pullback: Pullback | None
    observations: Observations

    @property
    def n_rows(self) -> float:
        """Number of rows, or the sum of their weights."""
        return self.observations.n_observations

    @property
    def squares(self) -> float:
        """``(y - mean)' K^-1 (y - mean)`` of all rows."""
        within = self.observations.squares.sum() if self.observations.shared else 0.0
        return float(self.residual @ self.alpha + within)

    @property
    def half_log_det(self) -> float:
        within = self.observations.half_log_det.sum() if self.observations.shared else 0.0
        return float(np.log(self.factor.diagonal()).sum() + within)

    @property
    def log_evidence(self) -> float:
        """Log density of the observations (R&W eq. 2.30)."""
        return -0.5 * (self.squares + self.n_rows * LOG_2PI) - self.half_log_det

    def student_evidence(self, scale_rows: float) -> tuple[float, float]:
        """Log evidence with the scale of the leaf integrated out, and the weight of ``alpha alpha'`` in its gradient."""
        n, half = self.n_rows, 0.5 * scale_rows
        constant = (
            gammaln(half + 0.5 * n) - gammaln(half) - 0.5 * n * math.log(scale_rows * math.pi)
        )
        evidence = (
            constant - self.half_log_det - (half + 0.5 * n) * math.log1p(self.squares / scale_rows)
        )
        return float(evidence), (scale_rows + n) / (scale_rows + self.squares)


class NumpyBackend:
    """A :class:`~dsmgp.experts.backends.interface.TrainingBackend` in NumPy.

    Parameters
    ----------
    data : LeafData
    points : LeafPoints
        Distinct inputs of each leaf.
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    """

    plan = None  # factors are not shared
    compiled = None
    bytes_at_once = math.inf  # one leaf after the other: there is nothing to reduce

    def __init__(
        self,
        data: LeafData,
        points: LeafPoints,
        kernels: Sequence[Sequence[LeafKernel]],
    ) -> None:
        self.data, self.points = data, points
        self.groups = groups_by_work(points.first.sizes, kernel_codes(kernels))

    @staticmethod
    def supports(kernels: Sequence[Sequence[LeafKernel]]) -> bool:
        """Whether these kernels have a closed form."""
        different = {kernel for of_output in kernels for kernel in of_output}
        return all(isinstance(kernel, CLOSED_FORM) for kernel in different)

    def with_kernels(self, kernels: Sequence[Sequence[LeafKernel]]) -> NumpyBackend:
        return copy.copy(self)  # kernels come with every call, bound to their parameters

    def reduce_batches(self) -> bool:
        return False

    def elements(self, group: int) -> int:
        return int(np.square(self.points.first.sizes[self.groups[group]]).sum())

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
            solution = self._solve(bound, output, leaf, with_gradient=True)
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
            by_mean = weight * solution.alpha
            by_noise = solution.observations.noise_gradient(-by_mean, 0.5 * W.diagonal(), weight)
            assert solution.pullback is not None
            with _out_of_range():
                gradients.append(solution.pullback(W, by_mean, 2.0 * by_noise))
        return np.array(evidence), np.stack(gradients)

    def condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        keep: bool,
        leave_out: bool,
    ) -> LeafPosteriorBatch:
        solutions = self._solve_group(bound, output, group)
        sizes = self.points.first.sizes[self.groups[group]]
        solved = [s for s in solutions if s is not None]
        if len(solved) < len(solutions):
            # One of them cannot be factorised: the caller refuses them all.
            nothing = np.full(len(sizes), math.nan)
            return LeafPosteriorBatch(nothing, nothing, np.full(sizes.sum(), math.nan), None, None)
        return LeafPosteriorBatch(
            log_evidence=np.array([s.log_evidence for s in solved]),
            jitter=np.array([s.jitter for s in solved]),
            alpha=np.concatenate([s.alpha for s in solved]),
            factors=Packed.of([s.factor for s in solved]) if keep else None,
            inverse_diagonal=_inverse_diagonal(solved) if leave_out else None,
        )

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Array, Array]:
        tests = request.X[request.rows]
        mean = np.empty(len(tests))
        variance = np.empty(0 if request.factors is None else len(tests))
        places = self.points.first.ends
        for k, leaf in enumerate(request.leaves.tolist()):
            kernel, train = bound(output, leaf), self.data.X[self.points.first[leaf]]
            alpha = request.alpha[places[leaf] : places[leaf + 1]]
            factor = None if request.factors is None else request.factors[int(request.slots[k])]
            step = max(1, TILE_ELEMENTS // max(len(train), 1))
            for first in range(request.ends[k], request.ends[k + 1], step):
                rows = slice(first, min(first + step, request.ends[k + 1]))
                mean[rows], of_rows = _predict(kernel, train, alpha, factor, tests[rows])
                if of_rows is not None:
                    variance[rows] = of_rows
        return mean, variance

    def _noise(self, kernel: BoundLeafKernel, output: int, rows: Index) -> Array:
        """Noise variances of rows, with those that are known."""
        noise = np.full(len(rows), kernel.noise)
        known = self.data.known_noise
        return noise if known is None else noise + known[rows, output]

    def _solve_group(self, bound: BoundKernels, output: int, group: int) -> list[_Solution | None]:
        return [self._solve(bound, output, leaf) for leaf in self.groups[group].tolist()]

    def _solve(
        self, bound: BoundKernels, output: int, leaf: int, with_gradient: bool = False
    ) -> _Solution | None:
        """Factorise the covariance of a leaf; None where no jitter is enough.

        Parameters
        ----------
        bound : BoundKernels
        output, leaf : int
        with_gradient : bool
            Whether what the gradient needs is kept, too.
        """
        kernel, X = bound(output, leaf), self.data.X[self.points.first[leaf]]
        rows, starts = self.points.of_leaf(leaf)
        noise = self._noise(kernel, output, rows)
        weights = self.points.weights(rows)
        observations = Observations.of(self.data.Y[rows, output], noise, starts, weights)
        pullback = None
        with _out_of_range():
            if with_gradient:
                K, pullback = kernel.covariance(X)
            else:
                K = kernel.cross(X, X)
        try:
            factor, jitter = cholesky(K, observations.variance)
        except NotFactorisedError:
            return None
        residual = observations.mean - kernel.mean(X)
        alpha = solve(factor, solve(factor, residual), transposed=True)
        return _Solution(factor, alpha, residual, jitter, pullback, observations)


def _predict(
    kernel: BoundLeafKernel, X: Array, alpha: Array, factor: Array | None, tests: Array
) -> tuple[Array, Array | None]:
    """Return mean and variance of f at test rows (R&W algorithm 2.1), without the factor the mean only."""
    cross = kernel.cross(tests, X)
    mean = kernel.mean(tests) + cross @ alpha
    if factor is None:
        return mean, None
    half = solve(factor, cross.T)
    return mean, np.maximum(kernel.variance(tests) - np.square(half).sum(axis=0), 0.0)


def _out_of_range() -> np.errstate:
    """Let hyperparameters that an optimiser took too far give NaN without a warning: it steps back."""
    return np.errstate(divide="ignore", over="ignore", invalid="ignore")


def _invert(factor: Array) -> Array:
    return solve(factor, np.eye(len(factor)))


def _inverse_diagonal(solutions: Sequence[_Solution]) -> Array:
    """Diagonals of ``K^-1``, leaf after leaf."""
    return np.concatenate([np.square(_invert(s.factor)).sum(axis=0) for s in solutions])
