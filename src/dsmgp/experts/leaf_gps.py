"""The leaf GPs of a tree in this process: evidence and its gradient, for all leaves at once.

Hyperparameters are learned with these; ``condition`` (:mod:`dsmgp.experts.conditioning`) then gives the posterior that
predicts. See :class:`dsmgp.experts.interface.LeafGPs` for the interface.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.machine import require_torch
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import (
    PARALLEL_ROWS,
    Backend,
    BoundKernels,
    LeafKernel,
    TrainingBackend,
    kernel_codes,
)
from dsmgp.experts.backends.numba_backend import NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.points import LeafPoints
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.linalg.device_memory import within_memory
from dsmgp.linalg.threads import Threads
from dsmgp.tree.nodes import Leaf

__all__ = ["InMemoryLeafGPs", "has_large_leaf", "kernels_of_leaves", "rows_of_leaves"]

Result = TypeVar("Result")


class InMemoryLeafGPs:
    """:class:`~dsmgp.experts.interface.LeafGPs` whose rows are in the memory of this process.

    Parameters
    ----------
    leaves : sequence of Leaf, or Ragged
        The leaves in the order of their numbers, or the rows of each; leaves without rows are allowed.
    data : LeafData
        The rows that leaves refer to.
    kernels : sequence of LeafKernel, or of sequences of LeafKernel
        Kernel of each output: one for all leaves, or one for each.
    threads : Threads, optional
    backend : callable, optional
        Builds what computes, from ``(data, points, kernels)``; the fastest backend that supports the kernels,
        device and precision by default. One that is given computes on the CPU, in double precision.
    memory : float
        Bytes that matrices may take while leaves are computed.
    numbers : ndarray of shape (n_leaves,), optional
        Numbers of the leaves in the tree, for messages, where these are only some of its leaves.
    device : str
        "cpu", or a GPU by torch's name for it.
    dtype : "float64" or "float32"
        Precision of the computations.
    """

    store = None  # rows are in memory

    def __init__(
        self,
        leaves: Sequence[Leaf] | Ragged,
        data: LeafData,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
        threads: Threads | None = None,
        backend: Callable[..., TrainingBackend] | None = None,
        memory: float = math.inf,
        numbers: Index | None = None,
        device: str = "cpu",
        dtype: str = "float64",
    ) -> None:
        self.data, self.memory, self._numbers = data, memory, numbers
        self.device, self.dtype = device, dtype
        self.kernels = kernels_of_leaves(kernels, len(leaves))
        self.leaf_rows = rows_of_leaves(leaves)
        #: Distinct inputs of each leaf.
        self.points = LeafPoints.of(self.leaf_rows, data.labels, data.row_weights)
        self.n_leaves, self.n_outputs = len(self.leaf_rows), len(self.kernels)
        self.has_large = has_large_leaf(device, self.points.first)
        self.threads = threads or Threads(device)
        self._given_backend = backend
        self.backend = self.backend_for(self.points)
        #: Whether leaves are computed by compiled code.
        self.compiled = isinstance(self.backend, NumbaBackend)

    def rebuild(
        self,
        leaves: Sequence[Leaf] | Ragged,
        data: LeafData,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
    ) -> InMemoryLeafGPs:
        return InMemoryLeafGPs(
            leaves, data, kernels, memory=self.memory, device=self.device, dtype=self.dtype
        )

    def with_kernels(self, kernels: Sequence[LeafKernel | Sequence[LeafKernel]]) -> InMemoryLeafGPs:
        by_leaf = kernels_of_leaves(kernels, self.n_leaves)
        if self._set_up_for(by_leaf) != self._set_up_for(self.kernels):
            return InMemoryLeafGPs(
                self.leaf_rows,
                self.data,
                kernels,
                self.threads,
                memory=self.memory,
                numbers=self._numbers,
                device=self.device,
                dtype=self.dtype,
            )
        other = copy.copy(self)
        other.kernels, other.backend = by_leaf, self.backend.with_kernels(by_leaf)
        return other

    def _set_up_for(self, kernels: Sequence[Sequence[LeafKernel]]) -> tuple[object, ...]:
        """Return what decides on the backend and its groups of leaves: kernels for which it is equal can share both."""
        batched = [[kernel.batched for kernel in of_output] for of_output in kernels]
        return self._backend_kind(kernels), kernel_codes(kernels), batched

    def condition(
        self,
        kernel_parameters: Sequence[Array],
        memory: float = math.inf,
        leave_out: bool = False,
        loo_rows: Index | None = None,
    ) -> InMemoryLeafPosterior:
        return condition(self, kernel_parameters, memory, leave_out)

    def name(self, leaf: int) -> int:
        """Return the number of a leaf in the whole tree."""
        return leaf if self._numbers is None else int(self._numbers[leaf])

    def bind(self, kernel_parameters: Sequence[Array]) -> BoundKernels:
        return BoundKernels(self.kernels, kernel_parameters)

    def backend_for(self, points: LeafPoints) -> TrainingBackend:
        """Return a backend of the same kind for leaves with these points."""
        rows = (self.data, points, self.kernels)
        if self._given_backend is not None:
            return self._given_backend(*rows)
        kind = self._backend_kind(self.kernels)
        if kind == "torch":
            require_torch(f"device={self.device!r}, dtype={self.dtype!r} or a gpytorch kernel")
            from dsmgp.experts.backends.torch_backend import TorchBackend

            return TorchBackend(*rows, self.memory, self.device, self.dtype)
        return NumbaBackend(*rows) if kind == "numba" else NumpyBackend(*rows)

    def _backend_kind(self, kernels: Sequence[Sequence[LeafKernel]]) -> str:
        """The fastest backend for some kernels on this device."""
        on_cpu = self.device == "cpu" and self.dtype == "float64"
        if not on_cpu or not NumpyBackend.supports(kernels):
            return "torch"
        return "numba" if NumbaBackend.supports(kernels) else "numpy"

    def reduce_memory(self) -> bool:
        """Compute in smaller batches from now on; False if they are small already."""
        if self._given_backend is not None or not self.backend.reduce_batches():
            return False
        self.memory = self.backend.bytes_at_once
        self.backend = self.backend_for(self.points)
        return True

    def map(
        self,
        backend: Backend,
        work: Callable[[int], Result],
        groups: Sequence[int],
        brief: bool = False,
    ) -> list[Result]:
        """Call ``work`` for groups of a backend: those with a large leaf one by one, each on all cores, then the
        others in parallel, unless the work is too ``brief`` to start threads for.

        Parameters
        ----------
        backend : Backend
            Whose groups of leaves they are.
        work : callable
            Takes the number of a group; -1 stands for leaves without rows.
        groups : sequence of int
        brief : bool

        Returns
        -------
        list
            Results in the order of ``groups``.
        """
        sizes = backend.points.first.sizes
        # The first leaf of a group is its largest.
        large = {k for k in groups if k >= 0 and sizes[backend.groups[k][0]] > PARALLEL_ROWS}
        of_large = {group: work(group) for group in groups if group in large}
        others = [group for group in groups if group not in large]
        of_others = iter(self.threads.map(work, others, brief))
        return [of_large[group] if group in large else next(of_others) for group in groups]

    def log_evidence(self, kernel_parameters: Sequence[Array]) -> Array:
        return self._by_output(kernel_parameters, lambda *of: self.backend.log_evidence(*of))

    @property
    def n_observations(self) -> float:
        return self.points.n_observations

    def mean_squares(self, kernel_parameters: Sequence[Array]) -> Array:
        squares = self.squares(kernel_parameters).sum(axis=0)
        return np.asarray(squares / (self.n_observations or 1))

    def squares(self, kernel_parameters: Sequence[Array]) -> Array:
        return self._by_output(kernel_parameters, lambda *of: self.backend.squares(*of))

    def log_evidence_and_gradient(
        self,
        kernel_parameters: Sequence[Array],
        outputs: Sequence[int] | None = None,
        scale_rows: float | None = None,
    ) -> tuple[Array, list[Array]]:
        chosen = list(range(self.n_outputs)) if outputs is None else list(outputs)
        every = [np.empty(0)] * self.n_outputs
        for output, parameters in zip(chosen, kernel_parameters, strict=True):
            every[output] = parameters
        bound = self.bind(every)

        def work(group: int) -> list[tuple[Array, Array]]:
            return [self.backend.gradient(bound, output, group, scale_rows) for output in chosen]

        results = self._of_all_groups(work)
        evidence = [
            self.gather(self.backend, [r[k][0][:, None] for r in results], 1)
            for k in range(len(chosen))
        ]
        gradients = [
            self.gather(self.backend, [r[k][1] for r in results], kernel_parameters[k].shape[-1])
            for k in range(len(chosen))
        ]
        return np.concatenate(evidence, axis=1), gradients

    def gather(self, backend: Backend, results: Sequence[Array], width: int) -> Array:
        """Put results by group, (leaves of the group, width) each, in the order of the leaves.

        Leaves without rows get zero: their evidence is one.
        """
        table = np.zeros((self.n_leaves, width))
        if results:
            table[np.concatenate(backend.groups)] = np.concatenate(results)
        return table

    def _by_output(
        self,
        kernel_parameters: Sequence[Array],
        evaluate: Callable[[BoundKernels, int, int], Array],
    ) -> Array:
        """Return a quantity with one number per leaf, (n_leaves, n_outputs).

        ``evaluate`` takes bound kernels, output and group. It must look the backend up at each call: with too little
        memory the backend is replaced, and the groups change.
        """
        bound = self.bind(kernel_parameters)

        def work(group: int) -> Array:
            by_output = [evaluate(bound, output, group) for output in range(self.n_outputs)]
            return np.stack(by_output, axis=-1)

        results = self._of_all_groups(work)
        return self.gather(self.backend, results, self.n_outputs)

    def _of_all_groups(self, work: Callable[[int], Result]) -> list[Result]:
        def evaluate() -> list[Result]:
            n_groups = len(self.backend.groups)
            # A single group has nothing to run beside it, and handing it to a thread takes as long as a small leaf.
            return self.map(self.backend, work, range(n_groups), self.compiled and n_groups == 1)

        return within_memory(evaluate, self.reduce_memory)


def has_large_leaf(device: str, points: Ragged) -> bool:
    """Whether any leaf has so many distinct inputs that it is computed by all cores."""
    return device == "cpu" and points.sizes.max(initial=0) > PARALLEL_ROWS


def rows_of_leaves(leaves: Sequence[Leaf] | Ragged) -> Ragged:
    """Return the row numbers of each leaf."""
    if isinstance(leaves, Ragged):
        return leaves
    return Ragged.of([() if leaf.rows is None else leaf.rows for leaf in leaves])


def kernels_of_leaves(
    kernels: Sequence[LeafKernel | Sequence[LeafKernel]], n_leaves: int
) -> list[list[LeafKernel]]:
    """Return kernels by output and leaf."""
    return [
        list(of_output) if isinstance(of_output, Sequence) else [of_output] * n_leaves
        for of_output in kernels
    ]
