"""The GPs of a tree's leaves over their training rows: evidence and its gradient, for all leaves at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.batched import BatchedEngine
from dsmgp.engine import Bound, Engine, Law, LearningEngine
from dsmgp.execution import Threads, as_numpy, within_memory
from dsmgp.general import General
from dsmgp.native import NativeEngine
from dsmgp.ragged import Ragged
from dsmgp.stationary import Stationary
from dsmgp.tree import Leaf

__all__ = ["Experts", "laws_of_leaves", "rows_of_leaves"]

Result = TypeVar("Result")
# A leaf with more rows is worth all cores by itself. Its last digits then depend on their number.
PARALLEL_ROWS = 3000


class Experts:
    """The GPs of a tree's leaves over their training rows, in the units the experts see.

    Parameters
    ----------
    leaves : sequence of Leaf, or Ragged
        In the order of their numbers, or the rows of each; leaves without rows are allowed.
    X : Tensor of shape (n_rows, n_dims)
    Y : Tensor of shape (n_rows, n_outputs)
    laws : sequence of Stationary or General, or of sequences of these
        How each output's covariance is computed, by all leaves or leaf by leaf.
    engine : type, optional
        What computes them; the fastest that can.
    memory : float
        Bytes that matrices may take while leaves are worked on.
    known : Tensor of shape (n_rows, n_outputs), optional
        Noise variances known row by row, which add to the noise that is learned.
    numbers : ndarray of shape (n_leaves,), optional
        What the leaves are called in messages, where they are some of a tree's.

    Hyperparameters come as ``naturals``, one tensor per output: a vector for all leaves, or a table with a
    row for each.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf] | Ragged,
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        threads: Threads | None = None,
        engine: type[BatchedEngine] | type[NativeEngine] | None = None,
        memory: float = math.inf,
        known: Tensor | None = None,
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        self.memory, self._numbers = memory, numbers
        self.X, self.Y, self.known = X, Y, known
        self.laws = laws_of_leaves(laws, len(leaves))
        self.leaf_rows = rows_of_leaves(leaves)
        self.threads = threads or Threads(X.device)
        fastest = NativeEngine if NativeEngine.can(X, self.laws) else BatchedEngine
        self._engine_type = engine or fastest
        self.engine = self.engine_for(self.leaf_rows)

    def again(
        self,
        leaves: Sequence[Leaf] | Ragged,
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        known: Tensor | None = None,
        labels: NDArray[np.int64] | None = None,
    ) -> Experts:
        """Others, worked on where and as these are; ``labels`` are equal for rows of equal inputs."""
        return Experts(leaves, X, Y, laws, memory=self.memory, known=known)

    @property
    def groups(self) -> list[NDArray[np.int64]]:
        """Numbers of leaves that are worked on together."""
        return self.engine.groups

    @property
    def n_leaves(self) -> int:
        return len(self.leaf_rows)

    @property
    def n_outputs(self) -> int:
        return len(self.laws)

    @property
    def compiled(self) -> bool:
        """Whether leaves run in compiled code."""
        return self._engine_type is NativeEngine

    @property
    def has_large(self) -> bool:
        """Whether any leaf is worked on by all cores."""
        return self.X.device.type == "cpu" and self.leaf_rows.sizes.max(initial=0) > PARALLEL_ROWS

    def name(self, leaf: int) -> int:
        """The number of a leaf in the whole tree."""
        return leaf if self._numbers is None else int(self._numbers[leaf])

    def bind(self, naturals: Sequence[Tensor]) -> Bound:
        """The laws at their hyperparameters."""
        return Bound(self.laws, [natural.detach().to(self.X) for natural in naturals])

    def engine_for(self, leaf_rows: Ragged) -> LearningEngine:
        """An engine like the experts' own, for leaves of these rows."""
        return self._engine_type(self.X, self.Y, leaf_rows, self.laws, self.memory, self.known)

    def take_less(self) -> bool:
        """Smaller batches from now on, for want of memory; no where they are small already."""
        if not isinstance(self.engine, BatchedEngine) or not self.engine.take_less():
            return False
        self.memory = self.engine.bytes_at_once
        self.engine = self.engine_for(self.leaf_rows)
        return True

    def map(
        self,
        engine: Engine,
        work: Callable[[int], Result],
        groups: Sequence[int],
        brief: bool = False,
    ) -> list[Result]:
        """``work`` on some of an engine's groups of leaves: those with a large leaf, which comes first, one by one on
        all cores; then the rest side by side."""
        sizes = self.leaf_rows.sizes
        large = {k for k in groups if k >= 0 and sizes[engine.groups[k][0]] > PARALLEL_ROWS}
        alone = {group: work(group) for group in groups if group in large}
        others = [group for group in groups if group not in large]
        rest = iter(self.threads.map(work, others, brief))
        return [alone[group] if group in large else next(rest) for group in groups]

    def log_evidence(self, naturals: Sequence[Tensor]) -> NDArray[np.float64]:
        """Log evidence of every leaf and output, (n_leaves, n_outputs)."""
        return self._by_output(naturals, self.engine.log_evidence)

    def mean_squares(self, naturals: Sequence[Tensor]) -> NDArray[np.float64]:
        """For each output the factor by which its covariance should grow to fit the observations best."""
        return np.asarray(self.squares(naturals).sum(axis=0) / max(len(self.leaf_rows.flat), 1))

    def squares(self, naturals: Sequence[Tensor]) -> NDArray[np.float64]:
        """``(y - mean)' K^-1 (y - mean)`` of every leaf and output, (n_leaves, n_outputs)."""
        return self._by_output(naturals, self.engine.squares)

    def log_evidence_and_gradient(
        self,
        naturals: Sequence[Tensor],
        outputs: Sequence[int] | None = None,
        scale_rows: float | None = None,
    ) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
        """Log evidence (n_leaves, n_outputs), and for each output its gradient by the natural vector.

        Not a number where a leaf's matrix cannot be factorised: the optimiser steps back. With
        ``scale_rows`` every leaf has a scale of its own, integrated out: its prior is worth so many rows at scale one,
        and the leaf becomes a multivariate Student-t. ``naturals`` are those of the chosen ``outputs``.
        """
        chosen = list(range(self.n_outputs)) if outputs is None else list(outputs)
        every = [torch.empty(0)] * self.n_outputs
        for output, natural in zip(chosen, naturals, strict=True):
            every[output] = natural
        bound = self.bind(every)

        def work(group: int) -> list[tuple[Tensor, Tensor]]:
            return [self.engine.gradient(bound, output, group, scale_rows) for output in chosen]

        results = self._of_all(work)
        evidence = [
            self.gather(self.engine, [r[k][0].unsqueeze(-1) for r in results], 1)
            for k in range(len(chosen))
        ]
        return np.concatenate(evidence, axis=1), [
            self.gather(self.engine, [r[k][1] for r in results], naturals[k].shape[-1])
            for k in range(len(chosen))
        ]

    def gather(self, engine: Engine, results: Sequence[Tensor], width: int) -> NDArray[np.float64]:
        """Per-leaf results of an engine in the order of the leaves; a leaf without rows has evidence one."""
        table = np.zeros((self.n_leaves, width))
        if results:
            table[np.concatenate(engine.groups)] = np.concatenate(
                [as_numpy(result) for result in results]
            )
        return table

    def _by_output(
        self, naturals: Sequence[Tensor], of: Callable[[Bound, int, int], Tensor]
    ) -> NDArray[np.float64]:
        bound = self.bind(naturals)

        def work(group: int) -> Tensor:
            return torch.stack([of(bound, output, group) for output in range(self.n_outputs)], -1)

        return self.gather(self.engine, self._of_all(work), self.n_outputs)

    def _of_all(self, work: Callable[[int], Result]) -> list[Result]:
        """``work`` on all groups."""
        return within_memory(
            lambda: self.map(self.engine, work, range(len(self.groups))), self.take_less
        )


def rows_of_leaves(leaves: Sequence[Leaf] | Ragged) -> Ragged:
    """The rows of each leaf."""
    if isinstance(leaves, Ragged):
        return leaves
    return Ragged.of([() if leaf.rows is None else leaf.rows for leaf in leaves])


def laws_of_leaves(laws: Sequence[Law | Sequence[Law]], n_leaves: int) -> list[list[Law]]:
    """By output and leaf."""
    return [
        [law] * n_leaves if isinstance(law, (Stationary, General)) else list(law) for law in laws
    ]
