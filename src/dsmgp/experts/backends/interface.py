"""The interface between leaf GPs and the code that computes them.

Four backends implement it. :mod:`dsmgp.experts.backends.numba_backend` is compiled code, one leaf after the other, for the common
stationary kernels; :mod:`dsmgp.experts.backends.numpy_backend` does the same in NumPy for every kernel in closed form; both are for double
precision on a CPU. :mod:`dsmgp.experts.backends.torch_backend` computes padded batches in torch: GPUs, single precision, GPyTorch's
kernels. :mod:`dsmgp.experts.backends.shared_backend` conditions overlapping leaves that share Cholesky factors. All work on groups of leaves with
the same kernel, large leaves first; groups may run in parallel. They take and return NumPy arrays; how factors are held is their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.factors.cache import LeafFactors
from dsmgp.experts.factors.sharing import SharingPlan
from dsmgp.experts.points import LeafPoints
from dsmgp.gp.leaf_kernels import CLOSED_FORM, BoundLeafKernel, LeafKernel

if TYPE_CHECKING:
    from dsmgp.experts.backends.numba_backend import NumbaBackend

__all__ = [
    "PAIR_FLOPS",
    "PARALLEL_ROWS",
    "Backend",
    "BoundKernels",
    "LeafKernel",
    "LeafPosteriorBatch",
    "PredictRequest",
    "TrainingBackend",
    "groups_by_work",
    "kernel_codes",
]

# A leaf with more rows is computed by all cores. Its last digits then depend on their number.
PARALLEL_ROWS = 3000
#: Work per pair of rows of a leaf besides the factorisation, in multiplications, as measured.
PAIR_FLOPS = 100.0
# Multiplications of a group of leaves, the work of one thread: a millisecond or two.
GROUP_FLOPS = 3e7


class BoundKernels:
    """The kernels of all leaves at their hyperparameters.

    Parameters
    ----------
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    kernel_parameters : sequence of ndarray
        By output, a vector for all leaves or a table (n_leaves, n_parameters).
    """

    def __init__(
        self, kernels: Sequence[Sequence[LeafKernel]], kernel_parameters: Sequence[Array]
    ) -> None:
        self.kernels, self.kernel_parameters = kernels, list(kernel_parameters)
        #: For a backend: what it made of these kernels.
        self.held: dict[Any, Any] = {}

    def __call__(self, output: int, leaf: int) -> BoundLeafKernel:
        """Return the kernel of one leaf."""
        return self.kernels[output][leaf].at(self.parameters(output, leaf))

    def parameters(self, output: int, leaves: int | Index) -> Array:
        """Return the kernel parameters of one leaf, or of several: a vector for all, or a row for each."""
        parameters = self.kernel_parameters[output]
        return parameters if parameters.ndim == 1 else parameters[leaves]

    @property
    def noise(self) -> Array:
        """Noise variances, (n_leaves, n_outputs)."""
        table = np.empty((len(self.kernels[0]), len(self.kernels)))
        for output, parameters in enumerate(self.kernel_parameters):
            for kernel, leaves in self._by_kernel(output):
                if isinstance(kernel, CLOSED_FORM):
                    table[leaves, output] = self.parameters(output, leaves)[..., -1]
                elif parameters.ndim == 1:
                    table[leaves, output] = kernel.at(parameters).noise
                else:
                    table[leaves, output] = [kernel.at(parameters[k]).noise for k in leaves]
        return table

    @property
    def prior_variance(self) -> Array:
        """Upper bounds of the prior variance of f, (n_leaves, n_outputs); the largest float where there is none."""
        table = np.full((len(self.kernels[0]), len(self.kernels)), np.finfo(np.float64).max)
        for output in range(len(self.kernels)):
            for kernel, leaves in self._by_kernel(output):
                if isinstance(kernel, CLOSED_FORM) and kernel.is_bounded:
                    parameters = self.parameters(output, leaves)
                    table[leaves, output] = parameters[..., kernel.output_scales].sum(-1)
        return table

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "held": {}}

    def _by_kernel(self, output: int) -> list[tuple[LeafKernel, Index]]:
        """Each kernel of an output, and the numbers of its leaves."""
        kernels = self.kernels[output]
        codes = np.array(kernel_codes([kernels]), dtype=np.int64)
        groups = [np.flatnonzero(codes == code) for code in np.unique(codes)]
        return [(kernels[leaves[0]], leaves) for leaves in groups]


def kernel_codes(kernels: Sequence[Sequence[LeafKernel]]) -> list[int]:
    """Return a number for each leaf, equal for leaves with equal kernels in all outputs.

    Parameters
    ----------
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    """
    # Kernels are compared by identity first: there are many leaves, and few kernel objects.
    code_of_ids: dict[tuple[int, ...], int] = {}
    code_of_kernels: dict[tuple[LeafKernel, ...], int] = {}
    codes = []
    for of_leaf in zip(*kernels, strict=True):
        ids = tuple(map(id, of_leaf))
        if ids not in code_of_ids:
            code_of_ids[ids] = code_of_kernels.setdefault(of_leaf, len(code_of_kernels))
        codes.append(code_of_ids[ids])
    return codes


def groups_by_work(sizes: Index, codes: Sequence[int]) -> list[Index]:
    """Return the numbers of leaves in groups of about equal work and equal kernels (``codes``), large leaves first."""
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


@dataclass(frozen=True)
class LeafPosteriorBatch:
    """A group of leaves conditioned on one output.

    Attributes
    ----------
    log_evidence : ndarray of shape (n_leaves,)
    jitter : ndarray of shape (n_leaves,)
        What was added to the diagonal beyond the noise.
    alpha : ndarray of shape (n_points,)
        ``K^-1 (y - mean)``, one leaf after the other.
    factors : LeafFactors, optional
        Lower Cholesky factors, if they were to be kept.
    inverse_diagonal : ndarray of shape (n_points,), optional
        Diagonal of ``K^-1``, all that leave-one-out needs (R&W eqs. 5.10 to 5.12).
    """

    log_evidence: Array
    jitter: Array
    alpha: Array
    factors: LeafFactors | None
    inverse_diagonal: Array | None


@dataclass(frozen=True)
class PredictRequest:
    """Test rows for some leaves of a group.

    Attributes
    ----------
    leaves : ndarray of shape (n_leaves,)
        Numbers of the leaves.
    slots : ndarray of shape (n_leaves,)
        Position of each in its group.
    X : ndarray of shape (n_test, n_dims)
        All test rows.
    rows : ndarray of int
        Numbers of the test rows of each leaf, one leaf after the other.
    ends : ndarray of shape (n_leaves + 1,)
        Leaf k predicts at ``X[rows[ends[k]:ends[k + 1]]]``.
    alpha : ndarray of shape (n_points,)
        Of all leaves of the backend, one after the other.
    factors : LeafFactors, optional
        Of the group, where variances are needed.
    """

    leaves: Index
    slots: Index
    X: Array
    rows: Index
    ends: Index
    alpha: Array
    factors: LeafFactors | None


class Backend(Protocol):
    """Computes the posterior of leaves, group by group.

    Attributes
    ----------
    groups : list of ndarray
        Numbers of the leaves of each group; leaves without rows are in none.
    points : LeafPoints
        Distinct inputs of each leaf, in the order of its factor and of ``alpha``.
    """

    groups: list[Index]
    points: LeafPoints

    @property
    def plan(self) -> SharingPlan | None:
        """How leaves share factors, if they do."""

    @property
    def compiled(self) -> NumbaBackend | None:
        """What predicts few rows, and low-rank variances, in compiled code; None if nothing does."""

    def elements(self, group: int) -> int:
        """Return the number of matrix elements that the factors of a group take, for one output."""

    def reduce_batches(self) -> bool:
        """Compute with half as much memory from now on; False if that is not possible."""

    def condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        keep: bool,
        leave_out: bool,
    ) -> LeafPosteriorBatch:
        """Condition the leaves of a group on one output.

        Parameters
        ----------
        keep : bool
            Whether to return the factors.
        leave_out : bool
            Whether to return the diagonal of ``K^-1``.
        """

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Array, Array]:
        """Return mean and variance of f at the requested rows, (n,); no variance without factors."""


class TrainingBackend(Backend, Protocol):
    """A backend that also computes the evidence and its gradient."""

    @property
    def bytes_at_once(self) -> float:
        """Bytes that a batch of leaves may take, unless a single leaf needs more."""

    def log_evidence(self, bound: BoundKernels, output: int, group: int) -> Array:
        """Return the log evidence of each leaf, (n_leaves,)."""

    def squares(self, bound: BoundKernels, output: int, group: int) -> Array:
        """Return ``(y - mean)' K^-1 (y - mean)`` of each leaf, (n_leaves,)."""

    def gradient(
        self, bound: BoundKernels, output: int, group: int, scale_rows: float | None
    ) -> tuple[Array, Array]:
        """Return the log evidence (n_leaves,) and its gradient by the kernel parameters (n_leaves, n_parameters).

        Parameters
        ----------
        bound : BoundKernels
            Kernels at their hyperparameters.
        output : int
        group : int
            A group of leaves.
        scale_rows : float, optional
            See :meth:`dsmgp.experts.interface.LeafGPs.log_evidence_and_gradient`.
        """

    def with_kernels(self, kernels: Sequence[Sequence[LeafKernel]]) -> TrainingBackend:
        """Return the same leaves with other kernels, by output and leaf; leaves are grouped as before."""
