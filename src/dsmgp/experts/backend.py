"""The interface between leaf GPs and the code that computes them.

Three backends implement it. :mod:`dsmgp.experts.numba_backend` is compiled code, one leaf after the other, for
stationary kernels in double precision on a CPU. :mod:`dsmgp.experts.torch_backend` computes padded batches in torch: any
kernel, precision and device. :mod:`dsmgp.experts.shared_backend` conditions overlapping leaves that share Cholesky
factors. All work on groups of leaves with the same kernel, large leaves first; groups may run in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.factor_cache import LeafFactors
from dsmgp.experts.factor_sharing import SharingPlan
from dsmgp.experts.loo import normal_log_density
from dsmgp.gp.autograd import BoundAutogradKernel
from dsmgp.gp.process import LeafKernel
from dsmgp.gp.stationary import BoundStationaryKernel
from dsmgp.linalg.tensors import as_numpy

__all__ = [
    "NOT_FACTORISED",
    "PAIR_FLOPS",
    "PARALLEL_ROWS",
    "Backend",
    "BoundKernel",
    "BoundKernels",
    "LOOBatch",
    "LeafKernel",
    "LeafPosteriorBatch",
    "PredictRequest",
    "TrainingBackend",
    "kernel_codes",
]

BoundKernel = BoundStationaryKernel | BoundAutogradKernel
# A leaf with more rows is computed by all cores. Its last digits then depend on their number.
PARALLEL_ROWS = 3000
#: Error where even the largest jitter is not enough.
NOT_FACTORISED = (
    "a leaf's covariance matrix could not be factorised even with added noise; raise noise_variance, or check the "
    "kernel's hyperparameters"
)
#: Work per pair of rows of a leaf besides the factorisation, in multiplications, as measured.
PAIR_FLOPS = 100.0


class BoundKernels:
    """The kernels of all leaves at their hyperparameters.

    Parameters
    ----------
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    kernel_parameters : sequence of Tensor
        By output, a vector for all leaves or a table (n_leaves, n_parameters).
    """

    def __init__(
        self, kernels: Sequence[Sequence[LeafKernel]], kernel_parameters: Sequence[Tensor]
    ) -> None:
        self.kernels, self.kernel_parameters = kernels, kernel_parameters
        self._shared: dict[tuple[int, LeafKernel], BoundKernel] = {}

    def __call__(self, output: int, leaves: Sequence[int] | Index) -> BoundKernel:
        """Return the kernel of some leaves, which must have the same one, as a batch."""
        kernel, parameters = self.kernels[output][leaves[0]], self.kernel_parameters[output]
        if parameters.ndim == 2:
            return kernel.bind(parameters[torch.as_tensor(leaves, device=parameters.device)])
        if (output, kernel) not in self._shared:
            self._shared[output, kernel] = kernel.bind(parameters)
        return self._shared[output, kernel]

    @property
    def noise(self) -> Array:
        """Noise variances, (n_leaves, n_outputs)."""
        table = np.empty((len(self.kernels[0]), len(self.kernels)))
        for output, parameters in enumerate(self.kernel_parameters):
            if parameters.ndim == 1:  # one for all
                batches = [np.arange(len(table))]
            else:
                batches = _batches(self.kernels[output])
            for leaves in batches:
                table[leaves, output] = as_numpy(self(output, leaves).noise.reshape(-1))
        return table

    @property
    def prior_variance(self) -> Array:
        """Upper bounds of the prior variance of f, (n_leaves, n_outputs); the largest float where there is none."""
        table = np.full((len(self.kernels[0]), len(self.kernels)), np.finfo(np.float64).max)
        for output, parameters in enumerate(self.kernel_parameters):
            for leaves in _batches(self.kernels[output]):
                kernel = self(output, leaves)
                if isinstance(kernel, BoundStationaryKernel):
                    scale = kernel.outputscale if parameters.ndim == 2 else kernel.outputscale[0]
                    table[leaves, output] = as_numpy(scale)
        return table


def _batches(kernels: Sequence[LeafKernel]) -> list[Index]:
    """Numbers of leaves with the same kernel; one by one for kernels that cannot be batched."""
    codes = np.array(kernel_codes([kernels]))
    same = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    return [
        part
        for leaves in same
        for part in ([leaves] if kernels[leaves[0]].batched else np.split(leaves, len(leaves)))
    ]


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


@dataclass(frozen=True)
class LOOBatch:
    """Leave-one-out predictions of the rows of a group, one leaf after the other.

    Attributes
    ----------
    residual : ndarray of shape (n,)
        Observation minus leave-one-out mean.
    variance : ndarray of shape (n,)
        Leave-one-out variance of y.
    with_duplicates : tuple of ndarray, optional
        Results of :func:`~dsmgp.experts.duplicates.without_duplicates`; None where no leaf has duplicate inputs.
    """

    residual: Array
    variance: Array
    with_duplicates: tuple[Array, Array, Array] | None = None

    @property
    def grouped(self) -> tuple[Array, Array, Array]:
        """Residuals and variances without a row and its duplicates, and the log density of all these rows."""
        if self.with_duplicates is not None:
            return self.with_duplicates
        return self.residual, self.variance, normal_log_density(self.residual, self.variance)


@dataclass(frozen=True)
class LeafPosteriorBatch:
    """A group of leaves conditioned on one output.

    Attributes
    ----------
    log_evidence : Tensor of shape (n_leaves,)
    jitter : Tensor of shape (n_leaves,)
        What was added to the diagonal beyond the noise.
    alpha : Tensor of shape (n,)
        ``K^-1 (y - mean)``, one leaf after the other.
    factors : LeafFactors, optional
        Lower Cholesky factors, if they were to be kept.
    loo : LOOBatch, optional
    """

    log_evidence: Tensor
    jitter: Tensor
    alpha: Tensor
    factors: LeafFactors | None
    loo: LOOBatch | None


@dataclass(frozen=True)
class PredictRequest:
    """Test rows for some leaves of a group.

    Attributes
    ----------
    leaves : ndarray of shape (n_leaves,)
        Numbers of the leaves.
    slots : ndarray of shape (n_leaves,)
        Position of each in its group.
    X : Tensor of shape (n_test, n_dims)
        Test rows, one leaf after the other.
    ends : ndarray of shape (n_leaves + 1,)
        Leaf k predicts at ``X[ends[k]:ends[k + 1]]``.
    alpha : Tensor of shape (n,)
        Of all leaves of the backend, one after the other.
    factors : LeafFactors, optional
        Of the group, where variances are needed.
    """

    leaves: Index
    slots: Index
    X: Tensor
    ends: Index
    alpha: Tensor
    factors: LeafFactors | None


class Backend(Protocol):
    """Computes the posterior of leaves, group by group.

    Attributes
    ----------
    groups : list of ndarray
        Numbers of the leaves of each group; leaves without rows are in none.
    leaf_rows : Ragged
        Row numbers of each leaf, in the order of its factor and of ``alpha``.
    """

    groups: list[Index]
    leaf_rows: Ragged

    @property
    def plan(self) -> SharingPlan | None:
        """How leaves share factors, if they do."""

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
        duplicates: list[list[Index]] | None,
    ) -> LeafPosteriorBatch:
        """Condition the leaves of a group on one output.

        Parameters
        ----------
        keep : bool
            Whether to return the factors.
        duplicates : list of list of ndarray, optional
            For each leaf its :func:`~dsmgp.experts.duplicates.duplicates`. If given, leave-one-out predictions are computed.
        """

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variance of f at the test rows, (n_test,); no variance without factors."""


class TrainingBackend(Backend, Protocol):
    """A backend that also computes the evidence and its gradient."""

    @property
    def bytes_at_once(self) -> float:
        """Bytes that a batch of leaves may take, unless a single leaf needs more."""

    def log_evidence(self, bound: BoundKernels, output: int, group: int) -> Tensor:
        """Return the log evidence of each leaf, (n_leaves,)."""

    def squares(self, bound: BoundKernels, output: int, group: int) -> Tensor:
        """Return ``(y - mean)' K^-1 (y - mean)`` of each leaf, (n_leaves,)."""

    def gradient(
        self, bound: BoundKernels, output: int, group: int, scale_rows: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return the log evidence (n_leaves,) and its gradient by the kernel parameters (n_leaves, n_parameters)."""

    def with_kernels(self, kernels: Sequence[Sequence[LeafKernel]]) -> TrainingBackend:
        """Return the same leaves with other kernels, by output and leaf; leaves are grouped as before."""

    def fill(self, bound: BoundKernels, output: int, leaf: int, K: Array, first: int) -> None:
        """Write the covariance of y at a leaf's rows into the lower triangle of K, from row ``first`` on."""
