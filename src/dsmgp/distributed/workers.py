"""Pools of workers that hold shards: the interface, and its implementation inside this process.

:class:`~dsmgp.distributed.sharded.ShardedLeafGPs` calls the methods of its shards through a pool, and does not know
whether they are in this process or on a cluster (:class:`~dsmgp.distributed.ray_workers.RayWorkers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from dsmgp._util.arrays import Index
from dsmgp._util.ragged import Ragged
from dsmgp.distributed.shard import ShardData, ShardPlan
from dsmgp.distributed.shard_cache import ShardCache, ShardStates
from dsmgp.experts.leaf_data import LeafData
from dsmgp.linalg.threads import n_threads
from dsmgp.progress import tick

__all__ = [
    "STAGES",
    "Arguments",
    "LoadRows",
    "LocalWorkers",
    "RemoteWorkerPool",
    "WorkerPool",
    "within_window",
]

#: Methods of a shard that stages of the work consist of, one call for each shard.
STAGES = ("condition", "apply")
#: Returns the rows of a shard, as often as it is called.
LoadRows = Callable[[], ShardData]
#: Returns the arguments of the k-th of some shards, when its turn comes.
Arguments = Callable[[int], tuple[Any, ...]]


class WorkerPool(Protocol):
    """Workers that hold the shards of a model; shards are named by numbers."""

    @property
    def n_shards(self) -> int:
        """Number of shards into which leaves should be divided, one per worker."""

    @property
    def device(self) -> str:
        """Device on which the workers compute."""

    def memory_of_shard(self, memory: float) -> float:
        """Return the bytes that each shard may use, out of ``memory`` bytes for all shards on a machine."""

    def place(self, plans: Sequence[ShardPlan]) -> list[int]:
        """Assign shards to workers, and return their numbers."""

    def call(self, shards: Sequence[int], method: str, arguments: Arguments) -> list[Any]:
        """Call a method of several shards, in parallel where possible; any number of threads may call.

        Parameters
        ----------
        shards : sequence of int
            Numbers of the shards.
        method : str
            A method of :class:`~dsmgp.distributed.shard.Shard`.
        arguments : callable
            Returns the arguments of the k-th shard.

        Returns
        -------
        list
            Results in the order of the shards. Errors of the shards are raised, and their warnings issued.
        """

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield a function of each item, in order; workers compute a few of them ahead."""

    def condition_later(self, shards: Sequence[int], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Record that shards are conditioned, with these arguments; they are when they are next called."""

    def remove(self, shards: Sequence[int]) -> None:
        """Forget shards, without waiting."""

    def drop(self, shards: Sequence[int], key: int) -> None:
        """Forget the posterior that shards hold under a key, without waiting."""


class RemoteWorkerPool(WorkerPool, Protocol):
    """Workers in other processes, to which rows are sent."""

    def send_rows(
        self, parts: Sequence[Index], leaf_rows: Ragged, data: LeafData
    ) -> list[LoadRows]:
        """Make rows available to the workers.

        Parameters
        ----------
        parts : sequence of ndarray
            Numbers of the leaves of each shard.
        leaf_rows : Ragged
            Row numbers of every leaf.
        data : LeafData
            All rows.

        Returns
        -------
        list of LoadRows
            For each shard a function that returns its rows, on whichever worker it is.
        """


def within_window(
    submit: Callable[[Callable[[Any], Any], Any], Any],
    result: Callable[[Any], Any],
    function: Callable[[Any], Any],
    items: Sequence[Any],
    n_ahead: int,
) -> Iterator[Any]:
    """Yield results in order, with at most ``n_ahead`` of them computed before they are asked for."""
    waiting: deque[Any] = deque()
    for item in items:
        if len(waiting) == n_ahead:
            yield result(waiting.popleft())
        waiting.append(submit(function, item))
    while waiting:
        yield result(waiting.popleft())


class LocalWorkers:
    """Shards in this process, called one after the other; those that do not fit in memory are rebuilt when called.

    Parameters
    ----------
    memory : float
        Bytes that the shards may use together.
    device : str
        Where they compute.
    """

    n_shards = 1

    def __init__(self, memory: float, device: str) -> None:
        self.device, self.cache, self._states = device, ShardCache(memory), ShardStates()

    def memory_of_shard(self, memory: float) -> float:
        return memory

    def place(self, plans: Sequence[ShardPlan]) -> list[int]:
        return self._states.add(plans)

    def call(self, shards: Sequence[int], method: str, arguments: Arguments) -> list[Any]:
        results: dict[int, Any] = {}
        # First those that are in memory: any other would replace them.
        for k in sorted(range(len(shards)), key=lambda k: shards[k] not in self.cache):
            number, values = shards[k], arguments(k)
            results[k] = self.cache.call(number, self._states[number], method, *values)
            if method == "condition":
                self._states.condition(number, values[:3])
            if method in STAGES:
                tick(len(results) / len(shards))
        return [results[k] for k in range(len(shards))]

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        # Arrow and NumPy release the interpreter's lock for most of what is done with rows.
        size = min(n_threads(), len(items))
        if size <= 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(size, thread_name_prefix="dsmgp_rows") as threads:
            yield from within_window(threads.submit, Future.result, function, items, size + 1)

    def condition_later(self, shards: Sequence[int], arguments: Sequence[tuple[Any, ...]]) -> None:
        for number, values in zip(shards, arguments, strict=True):
            self._states.condition(number, values)

    def remove(self, shards: Sequence[int]) -> None:
        for number in shards:
            self._states.remove(number)
            self.cache.remove(number)

    def drop(self, shards: Sequence[int], key: int) -> None:
        for number in shards:
            self._states.drop(number, key)
            self.cache.drop(number, key)
