"""Leaf GPs in compiled code: stationary kernels, double precision, CPU. Needs numba (``dsmgp[fast]``).

This is the :class:`~dsmgp.experts.backend.TrainingBackend` around the compiled functions of
:mod:`dsmgp.experts.numba_leaves`, which is imported when it is first used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dsmgp._util.arrays import Array, Index
from dsmgp._util.machine import has_numba
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backend import (
    PAIR_FLOPS,
    BoundKernels,
    LeafKernel,
    LeafPosteriorBatch,
    LOOBatch,
    PredictRequest,
    kernel_codes,
)
from dsmgp.experts.duplicates import without_duplicates
from dsmgp.experts.factor_cache import LeadingBlocks, Packed
from dsmgp.gp.stationary import StationaryKernel
from dsmgp.linalg import lapack

if TYPE_CHECKING:
    from types import ModuleType

    from dsmgp.experts.numba_leaves import ConditionedLeaves, Leaves

__all__ = ["NumbaBackend"]

KINDS = ("rbf", "matern12", "matern32", "matern52")
# Multiplications of a group of leaves, the work of one thread: a millisecond or two.
GROUP_FLOPS = 3e7


class NumbaBackend:
    """A :class:`~dsmgp.experts.backend.TrainingBackend` of compiled calls, many leaves in each.

    Parameters are those of :class:`~dsmgp.experts.torch_backend.TorchBackend`; ``memory`` has no effect.
    """

    plan = None  # factors are not shared
    bytes_at_once = math.inf  # one leaf after the other: there is nothing to reduce

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        leaf_rows: Ragged,
        kernels: Sequence[Sequence[LeafKernel]],
        memory: float,
        known_noise: Tensor | None,
    ) -> None:
        self.X, self.Y, self.leaf_rows, self.kernels = X, Y, leaf_rows, kernels
        self.groups = _groups(leaf_rows.sizes, kernel_codes(kernels))
        self._leaves: dict[tuple[int, int], Leaves] = {}
        # Contiguous columns, made once: all groups of leaves refer to them.
        self._targets = [np.ascontiguousarray(y) for y in Y.numpy().T]
        self._known_noise = [
            np.empty(0)
            if known_noise is None
            else np.ascontiguousarray(known_noise.numpy()[:, output])
            for output in range(Y.shape[1])
        ]

    @staticmethod
    def supports(X: Tensor, kernels: Sequence[Sequence[LeafKernel]]) -> bool:
        """Whether these rows and kernels can be computed by compiled code."""
        if (
            not (lapack.available and has_numba())
            or X.device.type != "cpu"
            or X.dtype != torch.float64
        ):
            return False
        return all(
            isinstance(kernel, StationaryKernel) and kernel.kind in KINDS
            for kernel in {kernel for of_output in kernels for kernel in of_output}
        )

    def with_kernels(self, kernels: Sequence[Sequence[LeafKernel]]) -> NumbaBackend:
        other = copy.copy(self)
        other.kernels, other._leaves = kernels, {}
        return other

    def reduce_batches(self) -> bool:
        return False

    def elements(self, group: int) -> int:
        return int(np.square(self.leaf_rows.sizes[self.groups[group]]).sum())

    def squares(self, bound: BoundKernels, output: int, group: int) -> Tensor:
        return torch.from_numpy(self._condition(bound, output, group).squares)

    def log_evidence(self, bound: BoundKernels, output: int, group: int) -> Tensor:
        return torch.from_numpy(self._condition(bound, output, group).log_evidence)

    def gradient(
        self, bound: BoundKernels, output: int, group: int, scale_rows: float | None
    ) -> tuple[Tensor, Tensor]:
        leaves = self._group_leaves(output, group)
        parameters = _parameters(bound, output, self.groups[group])
        evidence, gradient = _compiled().log_evidence_and_gradient(leaves, parameters, scale_rows)
        return torch.from_numpy(evidence), torch.from_numpy(gradient)

    def condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        keep: bool,
        duplicates: list[list[Index]] | None,
    ) -> LeafPosteriorBatch:
        any_duplicates = duplicates is not None and any(duplicates)
        result = self._condition(
            bound, output, group, keep or any_duplicates, duplicates is not None
        )
        factors = Packed(torch.from_numpy(result.factors), self.leaf_rows.sizes[self.groups[group]])
        loo = None
        if duplicates is not None:
            variance = 1.0 / result.inverse_diagonal  # R&W eqs. 5.10 to 5.12
            loo = LOOBatch(result.alpha * variance, variance)
            if any_duplicates:
                loo = _without_duplicates(loo, result.alpha, factors, duplicates)
        return LeafPosteriorBatch(
            log_evidence=torch.from_numpy(result.log_evidence),
            jitter=torch.from_numpy(result.jitter),
            alpha=torch.from_numpy(result.alpha),
            factors=factors if keep else None,
            loo=loo,
        )

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Tensor, Tensor]:
        factors = request.factors
        assert factors is None or isinstance(factors, (Packed, LeadingBlocks))
        mean, variance = _compiled().predict(
            self._leaves_of(request.leaves, output),
            _parameters(bound, output, request.leaves),
            request.alpha.numpy()[self.leaf_rows.positions(request.leaves)],
            None if factors is None else factors.addresses(request.slots),
            request.X.numpy(),
            request.ends,
        )
        return torch.from_numpy(mean), torch.from_numpy(variance)

    def fill(self, bound: BoundKernels, output: int, leaf: int, K: Array, first: int) -> None:
        leaves = self._leaves_of(np.array([leaf]), output)
        _compiled().fill(leaves, _parameters(bound, output, leaf), K, first)

    def _condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        factors: bool = False,
        leave_out: bool = False,
    ) -> ConditionedLeaves:
        parameters = _parameters(bound, output, self.groups[group])
        return _compiled().condition(
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
        kernel, rows = self.kernels[output][leaves[0]], self.leaf_rows.take(leaves)
        assert isinstance(kernel, StationaryKernel)
        return _compiled().Leaves(
            np.ascontiguousarray(self.X.numpy()),
            self._targets[output],
            rows.flat,
            rows.ends,
            np.array(kernel.columns, np.int64),
            kernel.kind,
            kernel.mean_kind,
            self._known_noise[output],
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_leaves": {}}


def _compiled() -> ModuleType:
    """The compiled functions; numba, which is optional, takes long to import."""
    from dsmgp.experts import numba_leaves

    return numba_leaves


def _parameters(bound: BoundKernels, output: int, leaves: int | Index) -> Array:
    """Kernel parameters of one leaf, or of several: a vector for all, or a row for each."""
    parameters = bound.kernel_parameters[output]
    return (parameters if parameters.ndim == 1 else parameters[leaves]).numpy()


def _without_duplicates(
    alone: LOOBatch, alpha: Array, factors: Packed, duplicates: list[list[Index]]
) -> LOOBatch:
    """Leave out duplicates too, leaf by leaf."""
    residual, variance, log_density = (table.copy() for table in alone.grouped)
    ends = np.cumsum([0, *factors.sizes])
    for slot, of_leaf in enumerate(duplicates):
        if of_leaf:
            rows = slice(ends[slot], ends[slot + 1])
            inverse_factor = factors[slot].clone()
            lapack.invert_factor(inverse_factor.numpy())
            grouped = without_duplicates(
                residual[rows][None],
                variance[rows][None],
                inverse_factor[None],
                torch.from_numpy(alpha[rows])[None],
                [of_leaf],
            )
            residual[rows], variance[rows], log_density[rows] = (table[0] for table in grouped)
    return LOOBatch(alone.residual, alone.variance, (residual, variance, log_density))


def _groups(sizes: Index, codes: Sequence[int]) -> list[Index]:
    """Numbers of leaves in groups of about equal work and equal kernels (``codes``), large leaves first."""
    groups: list[list[int]] = []
    open_groups: dict[int, tuple[list[int], float]] = {}
    costs = (sizes**3 + PAIR_FLOPS * sizes**2).tolist()
    for k in np.argsort(-sizes, kind="stable").tolist():
        if not costs[k]:
            break
        group, load = open_groups.get(codes[k], ([], math.inf))
        if load + costs[k] > GROUP_FLOPS:
            group, load = [], 0.0
            groups.append(group)
        group.append(k)
        open_groups[codes[k]] = group, load + costs[k]
    return [np.array(group) for group in groups]
