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
import torch
from torch import Tensor

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backend import (
    PARALLEL_ROWS,
    Backend,
    BoundKernels,
    LeafKernel,
    TrainingBackend,
    kernel_codes,
)
from dsmgp.experts.conditioning import condition
from dsmgp.experts.numba_backend import NumbaBackend
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.experts.torch_backend import TorchBackend
from dsmgp.gp.autograd import AutogradKernel
from dsmgp.gp.stationary import StationaryKernel
from dsmgp.linalg.tensors import as_numpy, within_memory
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
    X : Tensor of shape (n_rows, n_dims)
    Y : Tensor of shape (n_rows, n_outputs)
    kernels : sequence of LeafKernel, or of sequences of LeafKernel
        Kernel of each output: one for all leaves, or one for each.
    threads : Threads, optional
    backend : type, optional
        What computes; the fastest backend that supports the kernels by default.
    memory : float
        Bytes that matrices may take while leaves are computed.
    known_noise : Tensor of shape (n_rows, n_outputs), optional
        Noise variances known row by row, in addition to the noise that is learned.
    numbers : ndarray of shape (n_leaves,), optional
        Numbers of the leaves in the tree, for messages, where these are only some of its leaves.
    """

    store = None  # rows are in memory

    def __init__(
        self,
        leaves: Sequence[Leaf] | Ragged,
        X: Tensor,
        Y: Tensor,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
        threads: Threads | None = None,
        backend: type[TorchBackend] | type[NumbaBackend] | None = None,
        memory: float = math.inf,
        known_noise: Tensor | None = None,
        numbers: Index | None = None,
    ) -> None:
        self.memory, self._numbers = memory, numbers
        self.X, self.Y, self.known_noise = X, Y, known_noise
        self.kernels = kernels_of_leaves(kernels, len(leaves))
        self.leaf_rows = rows_of_leaves(leaves)
        self.n_leaves, self.n_outputs = len(self.leaf_rows), len(self.kernels)
        self.has_large = has_large_leaf(X, self.leaf_rows)
        self.threads = threads or Threads(X.device)
        fastest = NumbaBackend if NumbaBackend.supports(X, self.kernels) else TorchBackend
        self._backend_type = backend or fastest
        #: Whether leaves are computed by compiled code.
        self.compiled = self._backend_type is NumbaBackend
        self.backend = self.backend_for(self.leaf_rows)

    def rebuild(
        self,
        leaves: Sequence[Leaf] | Ragged,
        X: Tensor,
        Y: Tensor,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
        known_noise: Tensor | None = None,
        labels: Index | None = None,
    ) -> InMemoryLeafGPs:
        return InMemoryLeafGPs(leaves, X, Y, kernels, memory=self.memory, known_noise=known_noise)

    def with_kernels(self, kernels: Sequence[LeafKernel | Sequence[LeafKernel]]) -> InMemoryLeafGPs:
        by_leaf = kernels_of_leaves(kernels, self.n_leaves)
        if self._set_up_for(by_leaf) != self._set_up_for(self.kernels):
            return InMemoryLeafGPs(
                self.leaf_rows,
                self.X,
                self.Y,
                kernels,
                self.threads,
                memory=self.memory,
                known_noise=self.known_noise,
                numbers=self._numbers,
            )
        other = copy.copy(self)
        other.kernels, other.backend = by_leaf, self.backend.with_kernels(by_leaf)
        return other

    def _set_up_for(self, kernels: Sequence[Sequence[LeafKernel]]) -> tuple[object, ...]:
        """Return what decides on the backend and its groups of leaves: kernels for which it is equal can share both."""
        batched = [[kernel.batched for kernel in of_output] for of_output in kernels]
        return NumbaBackend.supports(self.X, kernels), kernel_codes(kernels), batched

    def condition(
        self,
        kernel_parameters: Sequence[Tensor],
        memory: float = math.inf,
        labels: Index | None = None,
        loo_rows: Index | None = None,
    ) -> InMemoryLeafPosterior:
        return condition(self, kernel_parameters, memory, labels)

    def name(self, leaf: int) -> int:
        """Return the number of a leaf in the whole tree."""
        return leaf if self._numbers is None else int(self._numbers[leaf])

    def bind(self, kernel_parameters: Sequence[Tensor]) -> BoundKernels:
        return BoundKernels(self.kernels, [p.detach().to(self.X) for p in kernel_parameters])

    def backend_for(self, leaf_rows: Ragged) -> TrainingBackend:
        """Return a backend of the same type for leaves with these rows."""
        return self._backend_type(
            self.X, self.Y, leaf_rows, self.kernels, self.memory, self.known_noise
        )

    def reduce_memory(self) -> bool:
        """Compute in smaller batches from now on; False if they are small already."""
        if not self.backend.reduce_batches():
            return False
        self.memory = self.backend.bytes_at_once
        self.backend = self.backend_for(self.leaf_rows)
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
        """
        sizes = self.leaf_rows.sizes
        # The first leaf of a group is its largest.
        large = {k for k in groups if k >= 0 and sizes[backend.groups[k][0]] > PARALLEL_ROWS}
        of_large = {group: work(group) for group in groups if group in large}
        others = [group for group in groups if group not in large]
        of_others = iter(self.threads.map(work, others, brief))
        return [of_large[group] if group in large else next(of_others) for group in groups]

    def log_evidence(self, kernel_parameters: Sequence[Tensor]) -> Array:
        return self._by_output(kernel_parameters, lambda *of: self.backend.log_evidence(*of))

    def mean_squares(self, kernel_parameters: Sequence[Tensor]) -> Array:
        squares = self.squares(kernel_parameters).sum(axis=0)
        return np.asarray(squares / max(len(self.leaf_rows.flat), 1))

    def squares(self, kernel_parameters: Sequence[Tensor]) -> Array:
        return self._by_output(kernel_parameters, lambda *of: self.backend.squares(*of))

    def log_evidence_and_gradient(
        self,
        kernel_parameters: Sequence[Tensor],
        outputs: Sequence[int] | None = None,
        scale_rows: float | None = None,
    ) -> tuple[Array, list[Array]]:
        chosen = list(range(self.n_outputs)) if outputs is None else list(outputs)
        every = [torch.empty(0)] * self.n_outputs
        for output, parameters in zip(chosen, kernel_parameters, strict=True):
            every[output] = parameters
        bound = self.bind(every)

        def work(group: int) -> list[tuple[Tensor, Tensor]]:
            return [self.backend.gradient(bound, output, group, scale_rows) for output in chosen]

        results = self._of_all_groups(work)
        evidence = [
            self.gather(self.backend, [r[k][0].unsqueeze(-1) for r in results], 1)
            for k in range(len(chosen))
        ]
        gradients = [
            self.gather(self.backend, [r[k][1] for r in results], kernel_parameters[k].shape[-1])
            for k in range(len(chosen))
        ]
        return np.concatenate(evidence, axis=1), gradients

    def gather(self, backend: Backend, results: Sequence[Tensor], width: int) -> Array:
        """Put results by group, (leaves of the group, width) each, in the order of the leaves.

        Leaves without rows get zero: their evidence is one.
        """
        table = np.zeros((self.n_leaves, width))
        if results:
            table[np.concatenate(backend.groups)] = np.concatenate(
                [as_numpy(result) for result in results]
            )
        return table

    def _by_output(
        self,
        kernel_parameters: Sequence[Tensor],
        evaluate: Callable[[BoundKernels, int, int], Tensor],
    ) -> Array:
        """Return a quantity with one number per leaf, (n_leaves, n_outputs).

        ``evaluate`` takes bound kernels, output and group. It must look the backend up at each call: with too little
        memory the backend is replaced, and the groups change.
        """
        bound = self.bind(kernel_parameters)

        def work(group: int) -> Tensor:
            by_output = [evaluate(bound, output, group) for output in range(self.n_outputs)]
            return torch.stack(by_output, -1)

        results = self._of_all_groups(work)
        return self.gather(self.backend, results, self.n_outputs)

    def _of_all_groups(self, work: Callable[[int], Result]) -> list[Result]:
        return within_memory(
            lambda: self.map(self.backend, work, range(len(self.backend.groups))),
            self.reduce_memory,
        )


def has_large_leaf(X: Tensor, leaf_rows: Ragged) -> bool:
    """Whether any leaf has so many rows that it is computed by all cores."""
    return X.device.type == "cpu" and leaf_rows.sizes.max(initial=0) > PARALLEL_ROWS


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
        [of_output] * n_leaves
        if isinstance(of_output, (StationaryKernel, AutogradKernel))
        else list(of_output)
        for of_output in kernels
    ]
