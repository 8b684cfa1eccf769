"""Leaf GPs in compiled code: the common stationary kernels, double precision, CPU. Needs numba.

This is the :class:`~dsmgp.experts.backends.interface.TrainingBackend` around the compiled functions of
:mod:`dsmgp.experts.backends.numba_leaves`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.machine import has_numba
from dsmgp.experts.backends import numba_leaves
from dsmgp.experts.backends.interface import (
    BoundKernels,
    LeafKernel,
    LeafPosteriorBatch,
    PredictRequest,
    groups_by_work,
    kernel_codes,
)
from dsmgp.experts.backends.numba_leaves import ConditionedLeaves, Leaves
from dsmgp.experts.factors.cache import LeadingBlocks, Packed
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.low_rank import LowRankVariance
from dsmgp.experts.points import LeafPoints
from dsmgp.gp.leaf_kernels import MetricKernel, StationaryKernel
from dsmgp.linalg import lapack

__all__ = ["NumbaBackend"]

KINDS = ("rbf", "matern12", "matern32", "matern52")


class NumbaBackend:
    """A :class:`~dsmgp.experts.backends.interface.TrainingBackend` of compiled calls, many leaves in each.

    Parameters
    ----------
    data : LeafData
    points : LeafPoints
        Distinct inputs of each leaf.
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    """

    plan = None  # factors are not shared
    bytes_at_once = math.inf  # one leaf after the other: there is nothing to reduce

    def __init__(
        self,
        data: LeafData,
        points: LeafPoints,
        kernels: Sequence[Sequence[LeafKernel]],
    ) -> None:
        # Compiled code is specialised for contiguous arrays that may be written.
        self.X = np.require(data.X, np.float64, ["C", "W"])
        self.points, self.kernels = points, kernels
        self.groups = groups_by_work(points.first.sizes, kernel_codes(kernels))
        self._leaves: dict[tuple[int, int], Leaves] = {}
        # Contiguous columns, made once: all groups of leaves refer to them.
        self._targets = [np.require(y, np.float64, ["C", "W"]) for y in data.Y.T]
        self._known_noise = [
            np.empty(0)
            if data.known_noise is None
            else np.require(data.known_noise[:, output], np.float64, ["C", "W"])
            for output in range(data.Y.shape[1])
        ]
        weights = np.empty(0) if points.row_weights is None else points.row_weights
        self._row_weights = np.require(weights, np.float64, ["C", "W"])

    @staticmethod
    def supports(kernels: Sequence[Sequence[LeafKernel]]) -> bool:
        """Whether these kernels can be computed by compiled code on this machine."""
        return (
            lapack.available
            and has_numba()
            and all(
                isinstance(kernel, (StationaryKernel, MetricKernel)) and kernel.kind in KINDS
                for kernel in {kernel for of_output in kernels for kernel in of_output}
            )
        )

    def with_kernels(self, kernels: Sequence[Sequence[LeafKernel]]) -> NumbaBackend:
        other = copy.copy(self)
        other.kernels, other._leaves = kernels, {}
        return other

    @property
    def compiled(self) -> NumbaBackend:
        return self

    def reduce_batches(self) -> bool:
        return False

    def elements(self, group: int) -> int:
        return int(np.square(self.points.first.sizes[self.groups[group]]).sum())

    def squares(self, bound: BoundKernels, output: int, group: int) -> Array:
        return self._condition(bound, output, group).squares

    def log_evidence(self, bound: BoundKernels, output: int, group: int) -> Array:
        return self._condition(bound, output, group).log_evidence

    def gradient(
        self, bound: BoundKernels, output: int, group: int, scale_rows: float | None
    ) -> tuple[Array, Array]:
        leaves = self._group_leaves(output, group)
        parameters = bound.parameters(output, self.groups[group])
        evidence, gradient = numba_leaves.log_evidence_and_gradient(leaves, parameters, scale_rows)
        return evidence, gradient

    def condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        keep: bool,
        leave_out: bool,
    ) -> LeafPosteriorBatch:
        result = self._condition(bound, output, group, keep, leave_out)
        sizes = self.points.first.sizes[self.groups[group]]
        return LeafPosteriorBatch(
            log_evidence=result.log_evidence,
            jitter=result.jitter,
            alpha=result.alpha,
            factors=Packed(result.factors, sizes) if keep else None,
            inverse_diagonal=result.inverse_diagonal if leave_out else None,
        )

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Array, Array]:
        factors = request.factors
        assert factors is None or isinstance(factors, (Packed, LeadingBlocks))
        mean, variance = numba_leaves.predict(
            self._leaves_of(request.leaves, output),
            bound.parameters(output, request.leaves),
            request.alpha[self.points.first.positions(request.leaves)],
            None if factors is None else factors.addresses(request.slots),
            request.X[request.rows],
            request.ends,
        )
        return mean, variance

    def covariances(
        self, bound: BoundKernels, output: int, leaf: int, basis: LowRankVariance, tests: Array
    ) -> tuple[Array, Array]:
        """Return the mean of f at test rows (n_test,), and the covariances with the pivots of a basis (n_test, rank)."""
        features = np.empty((len(tests), basis.rank), basis.weights.dtype)
        key = ("pivots first", output, leaf, basis.rank)
        leaves = bound.held.get(key)
        if leaves is None:
            leaves = self._leaves_of(np.array([leaf]), output)
            leaves = bound.held[key] = replace(leaves, rows=leaves.rows[basis.order])
        mean, _ = numba_leaves.predict(
            leaves,
            bound.parameters(output, leaf),
            basis.alpha,
            None,
            tests,
            np.array([0, len(tests)]),
            features,
        )
        return mean, features

    def _condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        factors: bool = False,
        leave_out: bool = False,
    ) -> ConditionedLeaves:
        parameters = bound.parameters(output, self.groups[group])
        return numba_leaves.condition(
            self._group_leaves(output, group), parameters, factors, leave_out
        )

    def _group_leaves(self, output: int, group: int) -> Leaves:
        """The leaves of a group, kept: an optimiser evaluates the same leaves many times."""
        key = (output, group)
        if key not in self._leaves:
            self._leaves[key] = self._leaves_of(self.groups[group], output)
        return self._leaves[key]

    def _leaves_of(self, leaves: Index, output: int) -> Leaves:
        """Leaves with the same kernel, in the form that compiled code takes."""
        kernel, points = self.kernels[output][leaves[0]], self.points.take(leaves)
        if isinstance(kernel, MetricKernel):
            columns, rank = np.arange(kernel.n_inputs), kernel.rank
        else:
            assert isinstance(kernel, StationaryKernel)
            columns, rank = np.array(kernel.columns, np.int64), 0
        return Leaves(
            self.X,
            self._targets[output],
            points.first.flat,
            points.first.ends,
            points.rows.flat,
            points.starts,
            columns,
            rank,
            kernel.kind,
            kernel.mean_kind,
            self._known_noise[output],
            self._row_weights,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_leaves": {}}
