"""Leaf GPs in torch, in padded batches of leaves of similar size: any kernel, precision and device. Needs torch.

Rows go to the device once, when the backend is built; factors stay there. Everything else that is taken and returned is a
NumPy array.

A batch is padded to its largest leaf. A padded row lies infinitely far from all others and has observation zero, so it
changes nothing. Shapes are (leaves, rows, ...) throughout.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp._util.arrays import Array, Index
from dsmgp._util.machine import cache_numbers
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import (
    BoundKernels,
    LeafKernel,
    LeafPosteriorBatch,
    PredictRequest,
    kernel_codes,
)
from dsmgp.experts.backends.torch_batch import Batch, Solution, covariance_gradient, solve
from dsmgp.experts.factors.cache import LeafFactors
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.points import LeafPoints
from dsmgp.gp.torch_kernels import BatchPullback, bind
from dsmgp.linalg import triangular
from dsmgp.linalg.tensors import as_numpy, as_tensor

__all__ = ["Stacked", "TorchBackend"]

# Elements of a batch of matrices: in multiples of a core's cache on a CPU, and enough to fill a GPU.
CACHES, GPU_ELEMENTS = 4, 2**27
# Arrays of the size of a batch of matrices that are in use at the same time.
WORKING_ARRAYS = 8
# Batches are not made smaller than this when memory is short.
LEAST_ELEMENTS = 2**20
# Larger leaves are computed one by one: batched routines are slower there, on a GPU too.
MAX_BATCHED_ROWS = 2000
# Largest padding of a leaf, as a share of the largest leaf of its batch. A small batch keeps a GPU waiting for its next kernel to
# be launched, whatever its padding: up to so many elements it takes leaves of very different sizes.
MOST_PADDING, PADDING_ON_GPU, SMALL_BATCH = 0.15, 0.6, 2**24
# Elements of the covariance between test and training rows that are held at a time.
TILE_ELEMENTS = 2**24


class TorchBackend:
    """A :class:`~dsmgp.experts.backends.interface.TrainingBackend` in torch.

    Parameters
    ----------
    data : LeafData
    points : LeafPoints
        Distinct inputs of each leaf.
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    memory : float
        Bytes that a batch may take.
    device : str
    dtype : "float64" or "float32"
    """

    plan = None  # factors are not shared
    compiled = None

    def __init__(
        self,
        data: LeafData,
        points: LeafPoints,
        kernels: Sequence[Sequence[LeafKernel]],
        memory: float = math.inf,
        device: str = "cpu",
        dtype: str = "float64",
    ) -> None:
        where = torch.device(device), getattr(torch, dtype)
        self.X, self.Y = as_tensor(data.X, where), as_tensor(data.Y, where)
        noise = data.known_noise
        self.known_noise = None if noise is None else as_tensor(noise, where)
        self.points = points
        weights = points.row_weights
        self.row_weights = None if weights is None else as_tensor(weights, where)
        most = CACHES * cache_numbers() if self.X.device.type == "cpu" else GPU_ELEMENTS
        #: Largest number of elements of a batch of matrices.
        self.elements_at_once = min(most, memory / (WORKING_ARRAYS * self.X.element_size()))
        small_batch = 0 if self.X.device.type == "cpu" else SMALL_BATCH
        self.groups = _groups(points.first.sizes, kernels, self.elements_at_once, small_batch)
        self._rows = torch.from_numpy(points.first.flat).to(self.X.device)
        # By name, the last array that was moved to the device, for as long as it lives: alpha by output, test rows.
        self._moved: dict[object, tuple[weakref.ref[Array], Tensor]] = {}
        # Row numbers and mask of each group, kept: an optimiser evaluates the same leaves many times.
        self._padded: dict[int, tuple[list[Tensor], bool]] = {}

    def with_kernels(self, kernels: Sequence[Sequence[LeafKernel]]) -> TorchBackend:
        return copy.copy(self)  # kernels come with every call, bound to their parameters

    @property
    def bytes_at_once(self) -> float:
        return self.elements_at_once * WORKING_ARRAYS * self.X.element_size()

    def reduce_batches(self) -> bool:
        largest = max((self.elements(k) for k in range(len(self.groups))), default=0)
        used = min(self.elements_at_once, largest)
        if used < 2 * LEAST_ELEMENTS:
            return False
        self.elements_at_once = used / 2
        return True

    def elements(self, group: int) -> int:
        leaves = self.groups[group]
        return int(len(leaves) * self.points.first.sizes[leaves].max() ** 2)

    def squares(self, bound: BoundKernels, output: int, group: int) -> Array:
        return as_numpy(self._solve(bound, output, group)[0].squares)

    def log_evidence(self, bound: BoundKernels, output: int, group: int) -> Array:
        return as_numpy(self._solve(bound, output, group)[0].log_evidence)

    def gradient(
        self, bound: BoundKernels, output: int, group: int, scale_rows: float | None
    ) -> tuple[Array, Array]:
        solution, pullback = self._solve(bound, output, group)
        if scale_rows is None:
            evidence, weight = solution.log_evidence, torch.ones_like(solution.jitter)
        else:
            evidence, weight = solution.student_evidence(scale_rows)
        W, tr_WK, tr_W = covariance_gradient(solution, weight)
        gradient = pullback(W, solution.alpha * weight.unsqueeze(-1), tr_WK, tr_W)
        return as_numpy(evidence), as_numpy(gradient)

    def condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        keep: bool,
        leave_out: bool,
    ) -> LeafPosteriorBatch:
        solution, _ = self._solve(bound, output, group)
        sizes = self.points.first.sizes[self.groups[group]]
        return LeafPosteriorBatch(
            log_evidence=as_numpy(solution.log_evidence),
            jitter=as_numpy(solution.jitter),
            alpha=as_numpy(solution.alpha[solution.mask]),
            factors=Stacked(solution.factor, sizes) if keep else None,
            inverse_diagonal=_inverse_diagonal(solution) if leave_out else None,
        )

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Array, Array]:
        # R&W algorithm 2.1, for batches of leaves with similar numbers of test rows: on a GPU many leaves at once, as it
        # would be idle most of the time between one small leaf and the next.
        all_tests, all_alpha = self._move("tests", request.X), self._move(output, request.alpha)
        tests = Ragged(np.arange(len(request.rows)), request.ends)
        numbers = torch.from_numpy(request.rows).to(self.X.device)
        mean = self.X.new_empty(len(request.rows))
        variance = torch.empty_like(mean) if request.factors is not None else mean.new_empty(0)
        for places in self._prediction_batches(request.leaves, tests.sizes):
            leaves = request.leaves[places]
            rows, mask = self._to_device(self.points.first.padded(leaves))  # (leaves, rows)
            test_rows, test_mask = self._to_device(tests.padded(places))  # (leaves, tests)
            kernel, train = self._kernel(bound, output, leaves), self.X[self._rows[rows]]
            alpha = all_alpha[rows] * mask
            factor = _stack_factors(request.factors, request.slots[places], rows.shape[1])
            tile = max(1, int(min(TILE_ELEMENTS, self.elements_at_once)) // train[..., 0].numel())
            for columns in torch.arange(test_rows.shape[1], device=rows.device).split(tile):
                X, wanted = all_tests[numbers[test_rows[:, columns]]], test_mask[:, columns]
                target = test_rows[:, columns][wanted]
                cross = kernel.cross(X, train) * mask.unsqueeze(-2)  # (leaves, tests, rows)
                means = kernel.mean(X) + torch.matmul(cross, alpha.unsqueeze(-1)).squeeze(-1)
                mean[target] = means[wanted]
                if factor is not None:
                    half = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
                    variances = (kernel.variance(X) - half.square().sum(-2)).clamp_min(0.0)
                    variance[target] = variances[wanted]
        return as_numpy(mean), as_numpy(variance)

    def _kernel(self, bound: BoundKernels, output: int, leaves: Index) -> Any:
        """The kernel of leaves that have the same one, as a batch."""
        kernel, parameters = bound.kernels[output][leaves[0]], bound.kernel_parameters[output]
        if parameters.ndim == 2:
            return bind(kernel, as_tensor(parameters[leaves], self.X))
        if (output, kernel) not in bound.held:
            bound.held[output, kernel] = bind(kernel, as_tensor(parameters, self.X))
        return bound.held[output, kernel]

    def _move(self, name: object, array: Array) -> Tensor:
        """Move an array to the device, unless it is the last one of that name: its groups come one after the other."""
        held, tensor = self._moved.get(name, (lambda: None, self.X))
        if held() is not array:
            tensor = as_tensor(array, self.X)
            self._moved[name] = weakref.ref(array), tensor
            weakref.finalize(array, self._moved.pop, name, None).atexit = False
        return tensor

    def _to_device(self, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        return [torch.from_numpy(array).to(self.X.device) for array in arrays]

    def _prediction_batches(self, leaves: Index, n_tests: Index) -> list[Index]:
        """Positions of leaves with similar numbers of test rows that are predicted at once."""
        if self.X.device.type == "cpu":
            return [np.array([k]) for k in range(len(leaves))]
        n_rows = int(self.points.first.sizes[leaves].max())
        order = np.argsort(-n_tests, kind="stable")
        counts, first, batches = n_tests[order].tolist(), 0, []
        for k in range(1, len(counts) + 1):
            most = counts[first]
            if (
                k < len(counts)
                and counts[k] >= 0.7 * most - 32
                and (k + 1 - first) * n_rows * (n_rows + most) <= self.elements_at_once
            ):
                continue
            batches.append(order[first:k])
            first = k
        return batches

    def batch(self, group: int, output: int) -> Batch:
        """Return the points of a group of leaves, padded, and their rows."""
        if group not in self._padded:
            points = self.points.take(self.groups[group])
            places, real = points.first.padded(np.arange(len(points.first)))
            row_point = np.repeat(np.flatnonzero(real), np.diff(points.starts))
            arrays = (
                points.first.flat[places],
                real,
                points.rows.flat,
                points.rows.owner,
                row_point,
                points.rows.sizes,
            )
            self._padded[group] = self._to_device(arrays), points.any_shared
        (first, mask, rows, leaf, point, sizes), shared = self._padded[group]
        known_noise = None if self.known_noise is None else self.known_noise[rows, output]
        y, n_rows, weights = self.Y[rows, output], sizes.to(self.Y), None
        if self.row_weights is not None:
            weights = self.row_weights[rows]
            n_rows = torch.zeros_like(n_rows).index_add_(0, leaf, weights)
        return Batch(self.X[first], mask, y, known_noise, weights, leaf, point, n_rows, shared)

    def _solve(
        self, bound: BoundKernels, output: int, group: int
    ) -> tuple[Solution, BatchPullback]:
        """Return the factorised covariances of a group, and the function that takes gradients back through them."""
        batch = self.batch(group, output)
        kernel = self._kernel(bound, output, self.groups[group])
        K, pullback = kernel.covariance(batch.X, batch.mask)
        return solve(K, kernel, batch), pullback

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_padded": {}, "_moved": {}}


def _inverse_diagonal(solution: Solution) -> Array:
    """Diagonals of ``K^-1``, leaf after leaf."""
    inverse_factor = triangular.invert(solution.factor)  # K^-1 = inverse_factor' inverse_factor
    return as_numpy(inverse_factor.square().sum(-2)[solution.mask])


@dataclass(frozen=True)
class Stacked:
    """:class:`~dsmgp.experts.factors.cache.LeafFactors` as a batch (leaves, rows, rows), padded to the size of the largest."""

    stack: Tensor
    sizes: Index

    def __getitem__(self, slot: int) -> Array:
        return as_numpy(self.tensor(slot))

    def tensor(self, slot: int) -> Tensor:
        """Return the factor of one leaf where it is."""
        n = int(self.sizes[slot])
        return self.stack[slot, :n, :n]


def _stack_factors(factors: LeafFactors | None, slots: Index, n_rows: int) -> Tensor | None:
    """Factors of some leaves of a group, padded, (leaves, rows, rows); a single one is not copied."""
    if factors is None:
        return None
    if not isinstance(factors, Stacked):
        # Shared factors: on a CPU, where leaves are predicted one by one.
        return torch.from_numpy(factors[int(slots[0])]).unsqueeze(0)
    if len(slots) == 1:
        return factors.tensor(int(slots[0])).unsqueeze(0)
    return factors.stack[torch.from_numpy(slots).to(factors.stack.device), :n_rows, :n_rows]


def _groups(
    sizes: Index, kernels: Sequence[Sequence[LeafKernel]], elements: float, small_batch: int = 0
) -> list[Index]:
    """Numbers of leaves in batches of similar size and equal kernels, large leaves first.

    Batches of up to ``small_batch`` elements may be padded more than others.
    """
    codes, n_rows = kernel_codes(kernels), sizes.tolist()
    groups: list[list[int]] = []
    open_groups: dict[int, list[int]] = {}
    for k in np.argsort(-sizes, kind="stable").tolist():
        if not n_rows[k]:
            break
        group = open_groups.get(codes[k])
        if group is not None and all(of_output[k].batched for of_output in kernels):
            widest = n_rows[group[0]]
            n_elements = (len(group) + 1) * widest**2
            fits = n_elements <= elements and widest <= MAX_BATCHED_ROWS
            padding = PADDING_ON_GPU if n_elements <= small_batch else MOST_PADDING
            if fits and n_rows[k] >= (1.0 - padding) * widest - 8:
                group.append(k)
                continue
        open_groups[codes[k]] = [k]
        groups.append(open_groups[codes[k]])
    return [np.array(group) for group in groups]
