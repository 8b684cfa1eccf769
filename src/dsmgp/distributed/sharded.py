"""Leaf GPs in shards: the interface of :class:`~dsmgp.experts.interface.LeafGPs`, run on every shard of a worker pool.

Leaves are independent given their hyperparameters: these are sent out, and a few numbers per leaf come back. Results are
put in the order of the leaves before anything is summed, so they do not depend on the number of shards.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.distributed.shard import ShardPlan, writable
from dsmgp.distributed.workers import RemoteWorkerPool, WorkerPool
from dsmgp.experts.backends.interface import PAIR_FLOPS, BoundKernels, LeafKernel
from dsmgp.experts.conditioning import condition
from dsmgp.experts.interface import NotAvailableError
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import (
    InMemoryLeafGPs,
    has_large_leaf,
    kernels_of_leaves,
    rows_of_leaves,
)
from dsmgp.experts.loo import KNOWN, LeaveOneOut, Pairs
from dsmgp.experts.online.posterior import OnlineLeafPosterior
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.linalg.threads import Threads
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.routing import Routes

__all__ = ["ShardedLeafGPs", "ShardedLeafPosterior", "balanced", "kernels_of_part"]

_keys = itertools.count()


class ShardedLeafGPs:
    """:class:`~dsmgp.experts.interface.LeafGPs` whose leaves are in the shards of a worker pool.

    Parameters
    ----------
    pool : WorkerPool
    plans : sequence of ShardPlan
        One per shard.
    parts : sequence of ndarray
        Numbers of the leaves of each shard.
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    n_rows : int
    memory : float
        Bytes that matrices may take while leaves are computed.
    data : LeafData
        All rows, or none where these are on disk.
    leaf_rows : Ragged, optional
        Row numbers of each leaf; None where rows are on disk.
    store : RowStore, optional
        The files that hold the rows, where they are on disk.
    units : tuple of InputScaling and OutputScaling, optional
        With ``store``: from the units of the files to those of the leaf GPs.
    """

    def __init__(
        self,
        pool: WorkerPool,
        plans: Sequence[ShardPlan],
        parts: Sequence[Index],
        kernels: Sequence[Sequence[LeafKernel]],
        n_rows: int,
        memory: float,
        data: LeafData,
        leaf_rows: Ragged | None = None,
        store: Any = None,
        units: Any = None,
    ) -> None:
        self.pool, self.parts, self._plans = pool, list(parts), list(plans)
        self.kernels, self.n_rows, self.memory = (
            [list(of_output) for of_output in kernels],
            n_rows,
            memory,
        )
        self.data, self._leaf_rows, self.store, self.units = data, leaf_rows, store, units
        self.device, self.dtype = pool.device, plans[0].dtype
        self.threads = Threads()  # of this process, which may have no GPU where its workers do
        #: Numbers of the shards in the pool.
        self.shards = pool.place(plans)
        weakref.finalize(self, pool.remove, self.shards)

    @classmethod
    def send(
        cls,
        leaves: Sequence[Leaf] | Ragged,
        data: LeafData,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
        pool: RemoteWorkerPool,
        memory: float,
        dtype: str = "float64",
    ) -> ShardedLeafGPs:
        """Send rows of this process, which stay here too, to the workers.

        Parameters are those of :class:`~dsmgp.experts.leaf_gps.InMemoryLeafGPs`.
        """
        leaf_rows, by_leaf = rows_of_leaves(leaves), kernels_of_leaves(kernels, len(leaves))
        parts = balanced(leaf_rows.sizes, pool.n_shards)
        loads = pool.send_rows(parts, leaf_rows, data)
        shard_memory = pool.memory_of_shard(memory)
        plans = [
            ShardPlan(load, part, kernels_of_part(part, by_leaf), shard_memory, pool.device, dtype)
            for load, part in zip(loads, parts, strict=True)
        ]
        return cls(pool, plans, parts, by_leaf, len(data.X), memory, data, leaf_rows=leaf_rows)

    def with_kernels(self, kernels: Sequence[LeafKernel | Sequence[LeafKernel]]) -> ShardedLeafGPs:
        # In new shards; rows are not sent again.
        by_leaf = kernels_of_leaves(kernels, self.n_leaves)
        plans = [
            replace(plan, kernels=kernels_of_part(plan.numbers, by_leaf)) for plan in self._plans
        ]
        return ShardedLeafGPs(
            self.pool, plans, self.parts, by_leaf, self.n_rows, self.memory, self.data,
            self._leaf_rows, self.store, self.units,
        )  # fmt: skip

    def rebuild(
        self,
        leaves: Sequence[Leaf] | Ragged,
        data: LeafData,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
    ) -> ShardedLeafGPs:
        pool: Any = self.pool
        return ShardedLeafGPs.send(leaves, data, kernels, pool, self.memory, self.dtype)

    def to_memory(self) -> InMemoryLeafGPs:
        """Return the same leaf GPs in this process, which may have no GPU."""
        return InMemoryLeafGPs(
            self.leaf_rows, self.data, self.kernels, memory=self.memory, dtype=self.dtype
        )

    @property
    def leaf_rows(self) -> Ragged:
        if self._leaf_rows is None:
            raise NotAvailableError("rows are in files (fit_dataset), not in this process")
        return self._leaf_rows

    @property
    def leaf_sizes(self) -> Index:
        """Number of rows of each leaf."""
        return self.leaf_rows.sizes if self.store is None else self.store.sizes

    @property
    def n_leaves(self) -> int:
        return len(self.kernels[0])

    @property
    def n_outputs(self) -> int:
        return len(self.kernels)

    @property
    def has_large(self) -> bool:
        return has_large_leaf(self.device, self.leaf_rows)

    def bind(self, kernel_parameters: Sequence[Array]) -> BoundKernels:
        return BoundKernels(self.kernels, kernel_parameters)

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of :class:`~dsmgp.distributed.shard.Shard` on all shards."""
        return self.pool.call(self.shards, method, arguments.__getitem__)

    def log_evidence(self, kernel_parameters: Sequence[Array]) -> Array:
        return self._call_and_gather("log_evidence", kernel_parameters)

    def squares(self, kernel_parameters: Sequence[Array]) -> Array:
        return self._call_and_gather("squares", kernel_parameters)

    @property
    def n_observations(self) -> float:
        weights = self.data.row_weights
        if weights is None:
            return int(self.leaf_sizes.sum())
        return float(weights[self.leaf_rows.flat].sum())

    def mean_squares(self, kernel_parameters: Sequence[Array]) -> Array:
        squares = self.squares(kernel_parameters).sum(axis=0)
        return np.asarray(squares / (self.n_observations or 1))

    def log_evidence_and_gradient(
        self,
        kernel_parameters: Sequence[Array],
        outputs: Sequence[int] | None = None,
        scale_rows: float | None = None,
    ) -> tuple[Array, list[Array]]:
        chosen = list(range(self.n_outputs)) if outputs is None else list(outputs)
        by_shard = self.parameters_by_shard(kernel_parameters)
        results = self.call("gradient", [(of_shard, chosen, scale_rows) for of_shard in by_shard])
        gradients = [self._gather([r[1][k] for r in results]) for k in range(len(chosen))]
        return self._gather([r[0] for r in results]), gradients

    def condition(
        self,
        kernel_parameters: Sequence[Array],
        memory: float,
        leave_out: bool = False,
        loo_rows: Index | None = None,
    ) -> ShardedLeafPosterior:
        if not leave_out:
            loo_rows = None
        elif loo_rows is None:
            loo_rows = np.arange(self.n_rows)
        key, arguments = self._conditioning_arguments(kernel_parameters, memory)
        results = self.call("condition", [(*of_shard, loo_rows) for of_shard in arguments])
        log_evidence = self._gather([r[0] for r in results])
        loo = None if loo_rows is None else self._leave_one_out(loo_rows, results)
        return ShardedLeafPosterior(self, kernel_parameters, memory, key, log_evidence, loo)

    def _leave_one_out(self, loo_rows: Index, results: Sequence[Any]) -> LeaveOneOut:
        """Put together the leave-one-out predictions that ``Shard.condition`` returned."""
        squares, counts = (self._gather([r[k] for r in results]) for k in (1, 2))
        pairs = Pairs.joined(
            [
                Pairs(part[of_shard.leaf], of_shard.place, of_shard.values)
                for part, (*_, of_shard) in zip(self.parts, results, strict=True)
            ]
        )

        def pairs_of_rows(rows: Index) -> Pairs:
            return pairs.only(np.searchsorted(loo_rows, rows), len(loo_rows))

        has_known_noise = bool((pairs.values[KNOWN] != 0).any())
        return LeaveOneOut(squares, counts, pairs_of_rows, has_known_noise)

    def condition_later(
        self, kernel_parameters: Sequence[Array], memory: float, log_evidence: Array
    ) -> ShardedLeafPosterior:
        """Return a posterior whose leaves are conditioned when they first predict.

        ``log_evidence`` (n_leaves, n_outputs) is known from when they were conditioned before.
        """
        key, arguments = self._conditioning_arguments(kernel_parameters, memory)
        self.pool.condition_later(self.shards, arguments)
        return ShardedLeafPosterior(self, kernel_parameters, memory, key, log_evidence)

    def parameters_by_shard(self, kernel_parameters: Sequence[Array]) -> list[list[Array]]:
        """Return the kernel parameters of each shard: those for all leaves, or the rows of its leaves."""
        return [[p if p.ndim == 1 else p[part] for p in kernel_parameters] for part in self.parts]

    def _gather(self, by_shard: Sequence[Array]) -> Array:
        """Put results of the leaves of each shard in the order of the leaves."""
        table = np.zeros((self.n_leaves, by_shard[0].shape[1]))
        for part, values in zip(self.parts, by_shard, strict=True):
            table[part] = values
        return table

    def _call_and_gather(self, method: str, kernel_parameters: Sequence[Array]) -> Array:
        by_shard = self.parameters_by_shard(kernel_parameters)
        return self._gather(self.call(method, [(of_shard,) for of_shard in by_shard]))

    def _conditioning_arguments(
        self, kernel_parameters: Sequence[Array], memory: float
    ) -> tuple[int, list[tuple[int, list[Array], float]]]:
        """Return a key under which shards hold a posterior, and for each the arguments of ``Shard.condition``."""
        key, shard_memory = next(_keys), self.pool.memory_of_shard(memory)
        by_shard = self.parameters_by_shard(kernel_parameters)
        return key, [(key, of_shard, shard_memory) for of_shard in by_shard]


class ShardedLeafPosterior:
    """:class:`~dsmgp.experts.interface.LeafPosterior` whose leaves are in shards; made by ``ShardedLeafGPs.condition``.

    Factors stay in the shards, which predict. A copy, or one that was pickled, has all leaves in its own process.

    Parameters
    ----------
    leaf_gps : ShardedLeafGPs
    kernel_parameters : sequence of ndarray
    memory : float
        Bytes up to which Cholesky factors are kept.
    key : int
        Under which the shards hold this posterior.
    log_evidence : ndarray of shape (n_leaves, n_outputs)
    loo : LeaveOneOut, optional
    """

    sharing = None  # factors are not shared between leaves
    in_memory = None
    has_loo = False  # those of some rows only

    def __init__(
        self,
        leaf_gps: ShardedLeafGPs,
        kernel_parameters: Sequence[Array],
        memory: float,
        key: int,
        log_evidence: Array,
        loo: LeaveOneOut | None = None,
    ) -> None:
        self.leaf_gps, self.memory = leaf_gps, memory
        self.kernel_parameters, self.log_evidence = list(kernel_parameters), log_evidence
        self.bound = leaf_gps.bind(kernel_parameters)
        self.noise = self.bound.noise
        self._key, self._loo = key, loo
        # Shard of each leaf, and its number there, (n_leaves,).
        self._shard, self._number = np.empty((2, leaf_gps.n_leaves), dtype=np.int64)
        for k, part in enumerate(leaf_gps.parts):
            self._shard[part], self._number[part] = k, np.arange(len(part))
        weakref.finalize(self, leaf_gps.pool.drop, leaf_gps.shards, key)

    @property
    def pool(self) -> WorkerPool:
        return self.leaf_gps.pool

    def settled(self) -> ShardedLeafPosterior:
        return self

    def to_memory(self) -> InMemoryLeafPosterior:
        return self.leaf_gps.to_memory().condition(self.kernel_parameters, self.memory)

    def online(self, ids: Index) -> OnlineLeafPosterior:
        return OnlineLeafPosterior.start(self, ids)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.leaf_gps.store is not None:
            return self.leaf_gps.store.reduced(self)
        return condition, (self.leaf_gps.to_memory(), self.kernel_parameters, self.memory)

    @property
    def leaf_rows(self) -> Ragged:
        return self.leaf_gps.leaf_rows

    @property
    def leaf_sizes(self) -> Index:
        return self.leaf_gps.leaf_sizes

    @property
    def n_rows(self) -> int:
        return self.leaf_gps.n_rows

    def leave_one_out(self) -> LeaveOneOut:
        assert self._loo is not None, "leave-one-out predictions were not computed"
        return self._loo

    def drop_loo(self) -> None:
        self._loo = None

    factors_at_hand = False

    def leaf_factor(self, leaf: int) -> None:
        return None  # factors are in the shards: a leaf that is updated is factorised again here

    def predict(self, routes: Routes, X: Array, with_variance: bool = True) -> tuple[Array, Array]:
        n_outputs, n_pairs = self.leaf_gps.n_outputs, len(routes.rows.flat)
        mean = np.empty((n_pairs, n_outputs))
        variance = np.empty((n_pairs if with_variance else 0, n_outputs))
        shard_of = self._shard[routes.leaf]
        shards = np.unique(shard_of)
        places = [np.flatnonzero(shard_of == shard) for shard in shards]  # in routes.leaf

        def arguments(k: int) -> tuple[Any, ...]:
            """Collect the test rows of a shard."""
            pairs = routes.rows.take(places[k])
            needed = np.zeros(len(X), dtype=bool)
            needed[pairs.flat] = True
            rows = np.flatnonzero(needed)  # each is sent once, however many leaves it reaches
            position = np.empty(len(X), dtype=np.int64)
            position[rows] = np.arange(len(rows))
            leaf = self._number[routes.leaf[places[k]]]
            return self._key, leaf, position[pairs.flat], pairs.ends, X[rows], with_variance

        numbers = [self.leaf_gps.shards[k] for k in shards]
        results = self.leaf_gps.pool.call(numbers, "predict", arguments)
        for of_shard, (means, variances) in zip(places, results, strict=True):
            where = routes.rows.positions(of_shard)
            mean[where] = means
            if with_variance:
                variance[where] = variances
        return mean, variance

    def apply(self, functions: Mapping[int, Callable[[InMemoryLeafPosterior], Any]]) -> list[Any]:
        """Compute functions of the posteriors of some shards, where these are; the keys say which of ``leaf_gps.parts`` they hold."""
        shards, each = [self.leaf_gps.shards[k] for k in functions], list(functions.values())
        return self.leaf_gps.pool.call(shards, "apply", lambda k: (self._key, each[k]))

    def joint(self, leaf: int, X: Array) -> tuple[Array, Array]:
        arguments = (self._key, int(self._number[leaf]), X)
        shard = self.leaf_gps.shards[self._shard[leaf]]
        (moments,) = self.leaf_gps.pool.call([shard], "joint", lambda _: arguments)
        mean, covariance = writable(moments)
        return mean, covariance


def kernels_of_part(part: Index, by_leaf: Sequence[Sequence[LeafKernel]]) -> list[list[LeafKernel]]:
    """Return the kernels of some leaves, by output."""
    return [[of_output[k] for k in part.tolist()] for of_output in by_leaf]


def balanced(sizes: Index, n_parts: int) -> list[Index]:
    """Divide leaves into parts of about equal work, none of them empty: the largest leaves are dealt out first."""
    n_parts = max(1, min(n_parts, len(sizes)))
    costs = np.asarray(sizes, dtype=np.float64) ** 3 + PAIR_FLOPS * np.square(
        sizes, dtype=np.float64
    )
    heap = [(0.0, k) for k in range(n_parts)]
    owner = np.empty(len(sizes), dtype=np.int64)
    for leaf in np.argsort(-costs, kind="stable").tolist():
        load, part = heap[0]
        owner[leaf] = part
        heapq.heapreplace(heap, (load + max(float(costs[leaf]), 1.0), part))
    return [np.flatnonzero(owner == part) for part in range(n_parts)]
