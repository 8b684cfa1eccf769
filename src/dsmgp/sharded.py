"""GPs of leaves that live in shards: the same verbs as where all of them are at hand, asked of all shards at once.

Leaves are independent given theta: theta goes out, and a few numbers for every leaf come back. They are put in the order of
the leaves before anything is summed, so results do not depend on the number of shards.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.conditioned import Conditioned
from dsmgp.engine import Law
from dsmgp.execution import Threads, as_numpy, as_tensor
from dsmgp.experts import Experts, laws_of_leaves, rows_of_leaves
from dsmgp.live import Column
from dsmgp.loo import KNOWN, LeaveOneOut, Pairs
from dsmgp.notices import warn_user
from dsmgp.progress import tick
from dsmgp.ragged import Ragged
from dsmgp.routes import Routes
from dsmgp.shard import Answer, Content, Plan, ShardHost
from dsmgp.tree import Leaf

__all__ = [
    "Hosts",
    "LocalHosts",
    "ShardedConditioned",
    "ShardedExperts",
    "Stores",
    "Tables",
    "balanced",
    "laws_of",
]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Load = Callable[[], Content]
#: X, Y, what is known of the noise, and labels of equal rows.
Tables = tuple[Tensor, Tensor, Tensor | None, Index | None]
# What a pair of rows costs beside the factorisation, in multiplications.
PAIR = 100.0
_keys = itertools.count()


class Hosts(Protocol):
    """Where shards live."""

    @property
    def n_shards(self) -> int:
        """Into how many of them leaves are to be divided."""

    @property
    def device(self) -> torch.device:
        """Where their leaves are worked on."""

    def memory_of_shard(self, memory: float) -> float:
        """What each may take of the bytes that there are for all on a machine."""

    def place(self, plans: Sequence[Plan]) -> list[int]:
        """Make shards; the numbers by which they are asked."""

    def ask(self, shards: Sequence[int], verb: str, arguments: Iterable[Any]) -> list[Answer]:
        """A verb of :class:`~dsmgp.shard.Shard` for each of the shards, with arguments of its own; all at once where that
        can be."""

    def remember(self, shards: Sequence[int], arguments: Sequence[Any]) -> None:
        """That shards were conditioned once: they are again when they are asked."""

    def remove(self, shards: Sequence[int]) -> None:
        """Forget shards; must not wait."""

    def drop(self, shards: Sequence[int], key: int) -> None:
        """Forget what shards were conditioned on; must not wait."""


class Stores(Hosts, Protocol):
    """Hosts to which rows can be sent."""

    def stored(self, parts: Sequence[Index], leaf_rows: Ragged, tables: Tables) -> list[Load]:
        """For each part of the leaves, what gives its rows wherever its shard is."""


class LocalHosts:
    """Shards of this process, one after the other; as many in memory as there is room for.

    Parameters
    ----------
    memory : float
        Bytes that they may take.
    """

    n_shards = 1

    def __init__(self, memory: float, device: torch.device) -> None:
        self.device, self._host = device, ShardHost(memory)
        self._numbers = itertools.count()

    def memory_of_shard(self, memory: float) -> float:
        return memory

    def place(self, plans: Sequence[Plan]) -> list[int]:
        numbers = [next(self._numbers) for _ in plans]
        for number, plan in zip(numbers, plans, strict=True):
            self._host.place(number, plan)
        return numbers

    def ask(self, shards: Sequence[int], verb: str, arguments: Iterable[Any]) -> list[Answer]:
        found = []
        for number, own in zip(shards, arguments, strict=True):
            found.append(self._host.ask(number, verb, *own))
            if found[-1].error is not None:
                break  # which is raised by who asks
            if verb == "condition":
                tick(len(found) / len(shards))
        return found

    def remember(self, shards: Sequence[int], arguments: Sequence[Any]) -> None:
        for number, own in zip(shards, arguments, strict=True):
            self._host.remember(number, *own)

    def remove(self, shards: Sequence[int]) -> None:
        for number in shards:
            self._host.remove(number)

    def drop(self, shards: Sequence[int], key: int) -> None:
        for number in shards:
            self._host.ask(number, "drop", key)


class ShardedExperts(Experts):
    """Experts whose leaves live in shards.

    Parameters
    ----------
    hosts : Hosts
    shards : list of int
        By which the hosts know them.
    parts : list of ndarray
        Numbers of the leaves of each.
    n_rows : int
    tables : X, Y and what is known of the noise, where rows are in this process too; else without rows.

    Others are those of :class:`~dsmgp.experts.Experts`.
    """

    def __init__(
        self,
        hosts: Hosts,
        shards: list[int],
        parts: Sequence[Index],
        laws: Sequence[Sequence[Law]],
        n_rows: int,
        memory: float,
        tables: tuple[Tensor, Tensor, Tensor | None],
    ) -> None:
        self.hosts, self.shards, self.parts = hosts, shards, list(parts)
        self.laws, self.n_rows, self.memory = [list(own) for own in laws], n_rows, memory
        self.X, self.Y, self.known = tables
        self.threads = Threads(self.X.device)
        #: The files that rows are in, where they are in files.
        self.store: Any = None
        self.units: Any = None
        weakref.finalize(self, hosts.remove, shards)

    @classmethod
    def sent(
        cls,
        leaves: Sequence[Leaf] | Ragged,
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        hosts: Stores,
        memory: float,
        known: Tensor | None = None,
        labels: Index | None = None,
    ) -> ShardedExperts:
        """Of rows in this process, which stay here too; ``labels`` are equal for rows of equal inputs."""
        leaf_rows, by_leaf = rows_of_leaves(leaves), laws_of_leaves(laws, len(leaves))
        parts = balanced(leaf_rows.sizes, hosts.n_shards)
        loads = hosts.stored(parts, leaf_rows, (X, Y, known, labels))
        each = hosts.memory_of_shard(memory)
        plans = [
            Plan(load, part, laws_of(part, by_leaf), each, hosts.device, X.dtype)
            for load, part in zip(loads, parts, strict=True)
        ]
        shards, tables = hosts.place(plans), (X, Y, known)
        self = cls(hosts, shards, parts, by_leaf, len(X), memory, tables)
        self.leaf_rows = leaf_rows
        return self

    @property
    def n_leaves(self) -> int:
        return len(self.laws[0])

    def again(
        self,
        leaves: Sequence[Leaf] | Ragged,
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        known: Tensor | None = None,
        labels: Index | None = None,
    ) -> ShardedExperts:
        hosts: Any = self.hosts
        return ShardedExperts.sent(leaves, X, Y, laws, hosts, self.memory, known, labels)

    def local(self) -> Experts:
        """The same in this process."""
        return Experts(
            self.leaf_rows, self.X, self.Y, self.laws, memory=self.memory, known=self.known
        )

    def ask(self, verb: str, arguments: Iterable[Any], shards: Index | None = None) -> list[Any]:
        """What shards answer; an error that one of them met is raised here, and so is what they warn of."""
        numbers = self.shards if shards is None else [self.shards[k] for k in shards]
        found = self.hosts.ask(numbers, verb, arguments)
        for answer in found:
            for category, message in answer.warned:
                warn_user(message, category)
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

    Parameters
    ----------
    watched : ndarray, optional
        Rows that are to be left out, by their numbers: of no others can it be asked.
    log_evidence : ndarray of shape (n_leaves, n_outputs), optional
        From a time when the leaves were conditioned before: they are again when they are asked.
    """

    experts: ShardedExperts

    def __init__(
        self,
        experts: ShardedExperts,
        naturals: Sequence[Tensor],
        memory: float,
        watched: Index | None = None,
        log_evidence: Array | None = None,
    ) -> None:
        self.experts, self.naturals, self.memory = experts, list(naturals), memory
        self.bound = experts.bind(naturals)
        self.noise = self._noise()
        self.left_out = None
        self._key = next(_keys)
        #: Which shard each leaf lives in, and its number there.
        self._shard, self._place = np.empty((2, experts.n_leaves), dtype=np.int64)
        for k, part in enumerate(experts.parts):
            self._shard[part], self._place[part] = k, np.arange(len(part))
        each = experts.hosts.memory_of_shard(memory)
        arguments = [(self._key, own, each) for own in experts.of_shards(naturals)]
        self._left: tuple[Index, Array, Array, Pairs] | None = None
        if log_evidence is not None:
            experts.hosts.remember(experts.shards, arguments)
            self.log_evidence = log_evidence
        else:
            found = experts.ask("condition", [(*own, watched) for own in arguments])
            self.log_evidence = experts.gathered([f[0] for f in found])
            if watched is not None:
                squares, counts = (experts.gathered([f[k] for f in found]) for k in (1, 2))
                said = [
                    Pairs(part[pairs.leaf], pairs.place, pairs.values)
                    for part, (*_, pairs) in zip(experts.parts, found, strict=True)
                ]
                self._left = watched, squares, counts, Pairs.joined(said)
        weakref.finalize(self, experts.hosts.drop, experts.shards, self._key)

    def again(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        leave_out: Index | None = None,
        watched: Index | None = None,
    ) -> Conditioned:
        assert isinstance(experts, ShardedExperts)
        return ShardedConditioned(experts, naturals, self.memory, watched)

    def local(self) -> Conditioned:
        """Conditioned again."""
        return Conditioned(self.experts.local(), self.naturals, self.memory)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.experts.store is not None:
            return self.experts.store.reduced(self)
        return Conditioned, (self.experts.local(), self.naturals, self.memory)

    @property
    def leaf_rows(self) -> Ragged:
        return self.experts.leaf_rows

    @property
    def leaf_sizes(self) -> Index:
        store = self.experts.store
        return self.leaf_rows.sizes if store is None else store.sizes

    @property
    def n_rows(self) -> int:
        return self.experts.n_rows

    @property
    def sharing(self) -> None:
        return None

    def leave_one_out(self) -> LeaveOneOut:
        assert self._left is not None, "rows were not left out"
        watched, squares, counts, said = self._left

        def pairs(rows: Index) -> Pairs:
            return said.only(np.searchsorted(watched, rows), len(watched))

        known = bool((said.values[KNOWN] != 0).any())
        return LeaveOneOut(squares, counts, pairs, known)

    def forget_left_out(self) -> None:
        self._left = None

    def release(self) -> None:
        self.experts.hosts.drop(self.experts.shards, self._key)

    def columns(self, number: int) -> tuple[Column, ...] | None:
        """Factors are elsewhere: a leaf that rows come to is made again here."""
        return None

    def predict(self, routes: Routes, X: Tensor, with_variance: bool = True) -> tuple[Array, Array]:
        n_outputs, n_pairs = self.experts.n_outputs, len(routes.rows.flat)
        mean = np.empty((n_pairs, n_outputs))
        variance = np.empty((n_pairs if with_variance else 0, n_outputs))
        tests, owner = as_numpy(X), self._shard[routes.leaf]
        asked = np.unique(owner)
        own = [np.flatnonzero(owner == shard) for shard in asked]

        def told() -> Iterator[tuple[Any, ...]]:
            """The rows that a shard is asked for are put together when it is its turn."""
            for mine in own:
                some = routes.rows.take(mine)
                here = np.zeros(len(tests), dtype=bool)
                here[some.flat] = True
                rows = np.flatnonzero(here)  # each is sent once, however many leaves it reaches
                local = np.empty(len(tests), dtype=np.int64)
                local[rows] = np.arange(len(rows))
                leaf = self._place[routes.leaf[mine]]
                yield self._key, leaf, local[some.flat], some.ends, tests[rows], with_variance

        for mine, found in zip(own, self.experts.ask("predict", told(), asked), strict=True):
            where = routes.rows.positions(mine)
            mean[where] = found[0]
            if with_variance:
                variance[where] = found[1]
        return mean, variance

    def joint(self, number: int, X: Tensor) -> tuple[Tensor, Tensor]:
        shard, place = np.array([self._shard[number]]), int(self._place[number])
        (found,) = self.experts.ask("joint", [(self._key, place, as_numpy(X))], shard)
        return as_tensor(found[0], X), as_tensor(found[1], X)


def laws_of(part: Index, by_leaf: Sequence[Sequence[Law]]) -> list[list[Law]]:
    """Those of some leaves."""
    return [[own[k] for k in part.tolist()] for own in by_leaf]


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
