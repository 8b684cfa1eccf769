"""GPs of leaves that live in shards: the same verbs as where all of them are at hand, asked of all shards at once.

Leaves are independent given theta: theta goes out, and a few numbers for every leaf come back. They are put in the order of
the leaves before anything is summed, so results do not depend on the number of shards.
"""

from __future__ import annotations

import heapq
import itertools
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.conditioned import Conditioned
from dsmgp.engine import Law
from dsmgp.execution import Threads, as_numpy, as_tensor
from dsmgp.experts import Experts, laws_of_leaves, rows_of_leaves
from dsmgp.live import Column
from dsmgp.loo import LeaveOneOut, Pairs
from dsmgp.progress import tick
from dsmgp.ragged import Ragged
from dsmgp.routes import Routes
from dsmgp.shard import Answer
from dsmgp.tree import Leaf

__all__ = ["Hosts", "ShardedConditioned", "ShardedExperts", "balanced"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# What a pair of rows costs beside the factorisation, in multiplications.
PAIR = 100.0
_keys = itertools.count()


class Hosts(Protocol):
    """Where shards live."""

    @property
    def n_shards(self) -> int:
        """Into how many the leaves are to be divided."""

    def memory_of_shard(self, memory: float) -> float:
        """What each may take of the bytes that there are for all on a machine."""

    def place(
        self,
        parts: Sequence[Index],
        leaf_rows: Ragged,
        tables: tuple[Tensor, Tensor, Tensor | None, Index | None],
        laws: Sequence[Sequence[Law]],
        memory: float,
    ) -> list[int]:
        """Make a shard of each part of the leaves; the numbers by which they are asked.

        ``tables`` are X, Y, what is known of the noise, and labels of equal rows, of all rows."""

    def ask(self, shards: Sequence[int], verb: str, arguments: Sequence[Any]) -> list[Answer]:
        """A verb of :class:`~dsmgp.shard.Shard` for each of the shards, with arguments of its own; all at once where that can be."""

    def remove(self, shards: Sequence[int]) -> None:
        """Forget shards; must not wait."""

    def drop(self, shards: Sequence[int], key: int) -> None:
        """Forget what shards were conditioned on; must not wait."""


class ShardedExperts(Experts):
    """Experts whose leaves live in shards; rows are here too, for those who cut trees and write files.

    Parameters
    ----------
    hosts : Hosts
    labels : ndarray of shape (n_rows,), optional
        Equal for rows of equal inputs; needed to leave rows out.

    The others are those of :class:`~dsmgp.experts.Experts`.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf] | Ragged,
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        hosts: Hosts,
        memory: float,
        known: Tensor | None = None,
        labels: Index | None = None,
    ) -> None:
        self.hosts, self.memory = hosts, memory
        self.X, self.Y, self.known, self.labels = X, Y, known, labels
        self.laws, self.leaf_rows = laws_of_leaves(laws, len(leaves)), rows_of_leaves(leaves)
        self.threads = Threads(X.device)
        #: Numbers of the leaves of each shard.
        self.parts = balanced(self.leaf_rows.sizes, hosts.n_shards)
        each = hosts.memory_of_shard(memory)
        self.shards = hosts.place(
            self.parts, self.leaf_rows, (X, Y, known, labels), self.laws, each
        )
        weakref.finalize(self, hosts.remove, self.shards)

    def again(
        self,
        leaves: Sequence[Leaf] | Ragged,
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        known: Tensor | None = None,
        labels: Index | None = None,
    ) -> ShardedExperts:
        return ShardedExperts(leaves, X, Y, laws, self.hosts, self.memory, known, labels)

    def local(self) -> Experts:
        """The same in this process."""
        return Experts(
            self.leaf_rows, self.X, self.Y, self.laws, memory=self.memory, known=self.known
        )

    def ask(self, verb: str, arguments: Sequence[Any], shards: Index | None = None) -> list[Any]:
        """What shards answer; an error that one of them met is raised here, and so is what they warn of."""
        numbers = self.shards if shards is None else [self.shards[k] for k in shards]
        found = self.hosts.ask(numbers, verb, arguments)
        for answer in found:
            for category, message in answer.warned:
                warnings.warn(message, category, stacklevel=4)
            if answer.error is not None:
                raise answer.error
        return [answer.value for answer in found]

    def log_evidence(self, naturals: Sequence[Tensor]) -> Array:
        return self.gathered(self.ask("log_evidence", self._out(naturals)))

    def squares(self, naturals: Sequence[Tensor]) -> Array:
        return self.gathered(self.ask("squares", self._out(naturals)))

    def log_evidence_and_gradient(
        self,
        naturals: Sequence[Tensor],
        outputs: Sequence[int] | None = None,
        scale_rows: float | None = None,
    ) -> tuple[Array, list[Array]]:
        chosen = list(range(self.n_outputs)) if outputs is None else list(outputs)
        told = [(own, chosen, scale_rows) for (own,) in self._out(naturals)]
        results = self.ask("gradient", told)
        gradients = [self.gathered([r[1][k] for r in results]) for k in range(len(chosen))]
        return self.gathered([r[0] for r in results]), gradients

    def of_shards(self, naturals: Sequence[Tensor]) -> list[list[Array]]:
        """Hyperparameters as each shard needs them: those for all leaves, or its own leaves' rows."""
        tables = [as_numpy(natural) for natural in naturals]
        return [[t if t.ndim == 1 else t[part] for t in tables] for part in self.parts]

    def gathered(self, parts: Sequence[Array]) -> Array:
        """Numbers of the leaves of each shard, in the order of the leaves."""
        table = np.zeros((self.n_leaves, parts[0].shape[1]))
        for part, values in zip(self.parts, parts, strict=True):
            table[part] = values
        return table

    def _out(self, naturals: Sequence[Tensor]) -> list[tuple[list[Array]]]:
        return [(own,) for own in self.of_shards(naturals)]


class ShardedConditioned(Conditioned):
    """Leaves in shards that have seen their rows. Factors stay where they were made, and answer there.

    A copy, or one that was pickled, has all leaves in its own process.
    """

    experts: ShardedExperts

    def __init__(
        self,
        experts: ShardedExperts,
        naturals: Sequence[Tensor],
        memory: float,
        leave_out: Index | None = None,
    ) -> None:
        self.experts, self.naturals, self.memory = experts, list(naturals), memory
        self.bound = experts.bind(naturals)
        self.noise = self._noise()
        self.left_out = None
        self._leaves_out = leave_out is not None
        self._key = next(_keys)
        each = experts.hosts.memory_of_shard(memory)
        arguments = [
            (self._key, own, each, self._leaves_out) for own in experts.of_shards(naturals)
        ]
        found = experts.ask("condition", arguments)
        tick(1.0)
        self.log_evidence = experts.gathered([f[0] for f in found])
        if self._leaves_out:
            self._squares = experts.gathered([f[1] for f in found])
            self._counts = experts.gathered([f[2] for f in found])
        weakref.finalize(self, experts.hosts.drop, experts.shards, self._key)
        #: Which shard each leaf lives in, and its number there.
        self._shard, self._place = np.empty((2, experts.n_leaves), dtype=np.int64)
        for k, part in enumerate(experts.parts):
            self._shard[part], self._place[part] = k, np.arange(len(part))

    def again(
        self, experts: Experts, naturals: Sequence[Tensor], leave_out: Index | None = None
    ) -> Conditioned:
        assert isinstance(experts, ShardedExperts)
        return ShardedConditioned(experts, naturals, self.memory, leave_out)

    def local(self) -> Conditioned:
        """Conditioned again."""
        return Conditioned(self.experts.local(), self.naturals, self.memory)

    def __reduce__(self) -> tuple[Any, ...]:
        return _conditioned_again, (self.experts.local(), self.naturals, self.memory)

    @property
    def leaf_rows(self) -> Ragged:
        return self.experts.leaf_rows

    @property
    def sharing(self) -> None:
        return None

    def leave_one_out(self) -> LeaveOneOut:
        assert self._leaves_out, "rows were not left out"
        known = self.experts.known is not None
        return LeaveOneOut(self._squares, self._counts, self._pairs, known)

    def _pairs(self, rows: Index) -> Pairs:
        parts = self.experts.ask("pairs", [(self._key, rows)] * len(self.experts.parts))
        return Pairs.joined(
            [
                Pairs(numbers[part.leaf], part.place, part.values)
                for numbers, part in zip(self.experts.parts, parts, strict=True)
            ]
        )

    def forget_left_out(self) -> None:
        self._leaves_out = False
        self.experts.ask("forget_left_out", [(self._key,)] * len(self.experts.parts))

    def columns(self, number: int) -> tuple[Column, ...] | None:
        """Factors are elsewhere: a leaf that rows come to is made again here."""
        return None

    def predict(self, routes: Routes, X: Tensor, with_variance: bool = True) -> tuple[Array, Array]:
        n_outputs, n_pairs = self.experts.n_outputs, len(routes.rows.flat)
        mean = np.empty((n_pairs, n_outputs))
        variance = np.empty((n_pairs if with_variance else 0, n_outputs))
        tests, owner = as_numpy(X), self._shard[routes.leaf]
        asked, places, told = np.unique(owner), [], []
        for shard in asked:
            own = np.flatnonzero(owner == shard)
            places.append(routes.rows.positions(own))
            some = routes.rows.take(own)
            here = np.zeros(len(tests), dtype=bool)
            here[some.flat] = True
            rows = np.flatnonzero(
                here
            )  # of which each is sent once, however many leaves it reaches
            local = np.empty(len(tests), dtype=np.int64)
            local[rows] = np.arange(len(rows))
            leaf = self._place[routes.leaf[own]]
            told.append((self._key, leaf, local[some.flat], some.ends, tests[rows], with_variance))
        for where, found in zip(places, self.experts.ask("predict", told, asked), strict=True):
            mean[where] = found[0]
            if with_variance:
                variance[where] = found[1]
        return mean, variance

    def joint(self, number: int, X: Tensor) -> tuple[Tensor, Tensor]:
        shard, place = np.array([self._shard[number]]), int(self._place[number])
        (found,) = self.experts.ask("joint", [(self._key, place, as_numpy(X))], shard)
        return as_tensor(found[0], X), as_tensor(found[1], X)


def balanced(sizes: Index, n_parts: int) -> list[Index]:
    """Leaves in parts of about equal work, the largest leaves dealt out first; no part is empty."""
    n_parts = max(1, min(n_parts, len(sizes)))
    costs = np.asarray(sizes, dtype=np.float64) ** 3 + PAIR * np.square(sizes, dtype=np.float64)
    heap = [(0.0, k) for k in range(n_parts)]
    owner = np.empty(len(sizes), dtype=np.int64)
    for leaf in np.argsort(-costs, kind="stable").tolist():
        load, part = heap[0]
        owner[leaf] = part
        heapq.heapreplace(heap, (load + max(float(costs[leaf]), 1.0), part))
    return [np.flatnonzero(owner == part) for part in range(n_parts)]


def _conditioned_again(experts: Experts, naturals: list[Tensor], memory: float) -> Conditioned:
    return Conditioned(experts, naturals, memory)
