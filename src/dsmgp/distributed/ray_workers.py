"""Ray actors that hold shards of leaves: a :class:`~dsmgp.distributed.workers.WorkerPool` on a cluster.

Ray restarts an actor that died and runs its unfinished calls again (``max_restarts``, ``max_task_retries``). A restarted
actor has no shards, but every call carries references to all that is needed to rebuild one: its plan, with the rows in
Ray's object store, and the parameters it was conditioned with. So no call depends on another, and since the numbers of a
leaf do not depend on where they are computed, results are the same whichever worker dies. The plan cannot be given to the
actor's constructor instead: a fit makes many sets of leaves, and starting an actor takes seconds.
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.distributed.ray_actor import (
    ActorProcess,
    RowsInObjectStore,
    ShardActor,
    TaskResult,
    cloudpickle,
)
from dsmgp.distributed.ray_cluster import (
    capacity,
    import_ray,
    n_free_workers,
    wait_for_room,
)
from dsmgp.distributed.shard import ShardPlan
from dsmgp.distributed.shard_cache import ShardLimit, ShardStates
from dsmgp.distributed.workers import STAGES, Arguments, LoadRows, within_window
from dsmgp.experts.leaf_data import LeafData
from dsmgp.progress import tick

__all__ = ["RayWorkers", "Traffic"]

logger = logging.getLogger("dsmgp")
# A call fails after it has killed so many workers.
MAX_ATTEMPTS = 3
# Calls for each worker whose arguments are sent before results are waited for.
CALLS_AHEAD = 2
# Of shards that share a limit of memory; 0 has none.
_groups = itertools.count(1)


@dataclass
class Traffic:
    """Number of calls, and bytes of arrays sent to workers and received from them, by method."""

    calls: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)

    def count(self, method: str, sent: int, received: int) -> None:
        """Count a call; the pool calls this from one thread at a time."""
        self.calls[method] = self.calls.get(method, 0) + 1
        self.sent[method] = self.sent.get(method, 0) + sent
        self.received[method] = self.received.get(method, 0) + received


class RayWorkers:
    """Actors that hold shards: a :class:`~dsmgp.distributed.workers.WorkerPool`.

    Parameters
    ----------
    n_workers : int
        Number of actors.
    resources : dict of str to float
        What Ray reserves for each.
    wait_seconds : float
        How long to wait for a cluster that has no room for them.
    """

    def __init__(self, n_workers: int, resources: dict[str, float], wait_seconds: float) -> None:
        self.resources, self.wait_seconds = resources, wait_seconds
        self.traffic = Traffic()
        self._lock = threading.RLock()  # of what follows; finalizers may run while it is held
        self._worker_of: dict[int, int] = {}  # by shard
        self._states = ShardStates(put=import_ray().put)
        self._tables: dict[int, tuple[Any, Any]] = {}  # in the object store, by id
        self._limit = ShardLimit()
        self._growing = threading.Lock()
        self._actors: list[Any] = []
        self._processes: list[ActorProcess] = []
        try:
            wait_for_room(n_workers, resources, wait_seconds)
            self._actors = [self._new_actor() for _ in range(n_workers)]
            self._processes = self._all_ready()
        except BaseException:
            self.stop()
            raise
        self._session = import_ray().get_runtime_context().get_job_id()

    # Actors

    @property
    def n_shards(self) -> int:
        return len(self._actors)

    @property
    def device(self) -> str:
        return "cuda" if self.resources.get("GPU", 0) > 0 else "cpu"

    @property
    def alive(self) -> bool:
        """Whether the cluster is still there and the workers were not stopped."""
        ray = import_ray()
        return bool(
            self._actors
            and ray.is_initialized()
            and ray.get_runtime_context().get_job_id() == self._session
        )

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers, each on its machine."""
        return [process.pid for process in self._all_ready()]

    def _new_actor(self) -> Any:
        ray, resources = import_ray(), dict(self.resources)
        options: dict[str, Any] = {
            "num_cpus": resources.pop("CPU"),
            "num_gpus": resources.pop("GPU", 0),
            "max_restarts": -1,
            "max_task_retries": MAX_ATTEMPTS - 1,
            "scheduling_strategy": "SPREAD",
        }
        if "memory" in resources:
            options["memory"] = resources.pop("memory")
        if resources:
            options["resources"] = resources
        n_threads = max(1, int(options["num_cpus"]))
        return ray.remote(ShardActor).options(**options).remote(n_threads, options["num_gpus"] > 0)

    def _all_ready(self, actors: Sequence[Any] | None = None) -> list[ActorProcess]:
        """Wait until workers answer: all of them, or some."""
        ray = import_ray()
        replies = [actor.ready.remote() for actor in (self._actors if actors is None else actors)]
        # Starting a worker means importing dsmgp, and torch with a GPU, on a machine that may be busy: this takes far
        # longer than finding room.
        _, late = ray.wait(replies, num_returns=len(replies), timeout=10 * self.wait_seconds)
        if late:
            raise RuntimeError(
                f"{len(late)} of {len(replies)} Ray workers did not start within {10 * self.wait_seconds:g} s; look at the "
                "cluster with 'ray status', and raise wait_seconds if it is slow"
            )
        try:
            return ray.get(replies)
        except ray.exceptions.RayActorError as error:
            cause = str(getattr(error, "cause", None) or error).strip().splitlines()[-1]
            raise RuntimeError(
                f"a Ray worker could not start: {cause}; Python, dsmgp and what it needs must be the same there as here"
            ) from error

    def grow(self) -> None:
        """Start workers on machines that have joined the cluster, as many as there is room for."""
        if not self._growing.acquire(blocking=False):
            return  # another thread starts them
        try:
            # By what machines have: the resources of a worker that is about to be restarted are free, too.
            n_new = capacity(self.resources) - len(self._actors)
            n_new = min(n_new, n_free_workers(self.resources)) if n_new > 0 else 0
            if n_new <= 0:
                return
            new = [self._new_actor() for _ in range(n_new)]
            processes = self._all_ready(new)  # meanwhile those that are there go on
            with self._lock:
                self._processes += processes
                self._actors += new
        finally:
            self._growing.release()
        logger.info("%d Ray workers started on machines that joined the cluster", n_new)

    def stop(self) -> None:
        """Stop the workers; they cannot be started again."""
        ray = import_ray()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
        self._actors.clear()

    # Shards

    def memory_of_shard(self, memory: float) -> float:
        machines = [process.machine for process in self._processes]
        share = memory / max(machines.count(machine) for machine in machines)
        return min(share, 0.5 * self.resources["memory"]) if "memory" in self.resources else share

    def limited(self, memory: float) -> RayWorkers:
        """Return the same workers for shards that may use so many bytes on a machine; those that do not fit are rebuilt when called."""
        other = copy.copy(self)
        other._limit = ShardLimit(next(_groups), memory)
        return other

    def send_rows(
        self, parts: Sequence[Index], leaf_rows: Ragged, data: LeafData
    ) -> list[LoadRows]:
        self._check_memory(leaf_rows.sizes, data.X, data.Y)
        references = data.map(self._put)
        return [
            RowsInObjectStore(import_ray().put(leaf_rows.take(part)), references) for part in parts
        ]

    def _put(self, table: Array | Index) -> Any:
        """Return a reference to a table in the object store; a table that is used again is put there once."""
        known = self._tables.get(id(table))
        if known is not None and known[0]() is table:
            return known[1]
        ray = import_ray()
        try:
            reference = ray.put(table)
        except ray.exceptions.ObjectStoreFullError as error:
            raise MemoryError(
                f"Ray's object store has no room for {table.nbytes / 1e6:.3g} MB of rows; start the cluster with a larger "
                "--object-store-memory, or use fit_dataset, whose rows stay on disk"
            ) from error
        key = id(table)
        self._tables[key] = weakref.ref(table, lambda _: self._tables.pop(key, None)), reference
        return reference

    def _check_memory(self, sizes: Index, X: Array, Y: Array) -> None:
        """Raise before anything is sent that no worker can hold."""
        rows = 8 * len(X) * (X.shape[1] + 2 * Y.shape[1] + 2)
        matrices = 32 * int(sizes.max(initial=0)) ** 2
        memory_of = {
            node["NodeID"]: node["Resources"].get("memory", 0.0) for node in import_ray().nodes()
        }
        machines = [process.machine for process in self._processes]
        for machine in set(machines):
            has = memory_of.get(machine, 0.0) / machines.count(machine)
            has = min(has, self.resources.get("memory", has))
            if has and rows + matrices > has:
                raise MemoryError(
                    f"a Ray worker has {has / 1e6:.3g} MB and would need {(rows + matrices) / 1e6:.3g} MB: "
                    f"{rows / 1e6:.3g} for rows and {matrices / 1e6:.3g} for its largest leaf ({sizes.max()} rows); "
                    "lower leaf_size, start fewer workers on a machine, or use larger machines"
                )

    def place(self, plans: Sequence[ShardPlan]) -> list[int]:
        numbers = self._states.add(plans)
        with self._lock:
            for k, number in enumerate(numbers):
                self._worker_of[number] = k % len(self._actors)
        return numbers

    def condition_later(self, shards: Sequence[int], arguments: Sequence[tuple[Any, ...]]) -> None:
        for number, values in zip(shards, arguments, strict=True):
            self._states.condition(number, values)

    def remove(self, shards: Sequence[int]) -> None:
        for number in shards:
            with self._lock:
                worker = self._worker_of.pop(number, 0)
            self._states.remove(number)
            if self.alive:
                self._actors[worker].remove.remote(number)

    def drop(self, shards: Sequence[int], key: int) -> None:
        for number in shards:
            self._states.drop(number, key)
            worker = self._worker_of.get(number)
            if worker is not None and self.alive:
                self._actors[worker].drop.remote(number, key)

    # Calls

    def call(self, shards: Sequence[int], method: str, arguments: Arguments) -> list[Any]:
        results: list[Any] = []
        sent: deque[tuple[int, tuple[Any, ...], Any]] = deque()
        for k, number in enumerate(shards):
            values = arguments(k)
            sent.append((number, values, self._send(number, method, values)))
            is_last = k == len(shards) - 1
            while sent and (is_last or len(sent) > CALLS_AHEAD * len(self._actors)):
                results.append(self._finished(method, *sent.popleft()))
                if method in STAGES:
                    tick(len(results) / len(shards))
        return results

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        ray, numbers = import_ray(), itertools.count()
        # As bytes: arrays in the object store are read-only, for which code is compiled again.
        sent, name = ray.put(cloudpickle().dumps(function)), uuid.uuid4().hex

        def submit(_: Any, item: Any) -> tuple[int, Any]:
            worker = next(numbers) % len(self._alive_actors())
            return worker, self._actors[worker].apply.remote(sent, name, item)

        def result(task: tuple[int, Any]) -> Any:
            return self._result(task[0], "reading", task[1]).unwrap()

        return within_window(submit, result, function, items, CALLS_AHEAD * len(self._actors))

    def _finished(self, method: str, number: int, values: tuple[Any, ...], reference: Any) -> Any:
        """Wait for a call, and return its result."""
        result = self._result(self._worker_of[number], method, reference)
        with self._lock:
            self.traffic.count(method, _n_bytes(values), _n_bytes(result.value))
        value = result.unwrap()
        if method == "condition":
            self._states.condition(number, values[:3])
        return value

    def _send(self, number: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Send a call to the worker of a shard, and return a reference to its result."""
        actors = self._alive_actors()
        actor = actors[self._worker_of[number]]
        limit = replace(self._limit, memory=self.memory_of_shard(self._limit.memory))
        return actor.call.remote(limit, number, self._states[number], method, *arguments)

    def _alive_actors(self) -> list[Any]:
        if not self._actors:
            raise RuntimeError(
                "the Ray workers that hold this model's leaves were stopped; fit again, or save the model before and load it"
            )
        return self._actors

    def _result(self, worker: int, method: str, reference: Any) -> TaskResult:
        """Wait for a call of a worker, which may be another process by then."""
        ray = import_ray()
        while not ray.wait([reference], timeout=10 * self.wait_seconds)[0]:
            self._check_restart(worker)
        try:
            process, result = ray.get(reference)
        except (
            ray.exceptions.RayActorError,
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.OutOfMemoryError,
            ray.exceptions.ObjectLostError,
        ) as error:
            raise RuntimeError(
                f"{MAX_ATTEMPTS} Ray workers in a row died of the same work ({method}), the last because "
                f"{str(error).strip().splitlines()[0]}; most often they have too little memory: lower memory_limit or leaf_size, or "
                "start fewer of them on a machine"
            ) from error
        with self._lock:
            is_new = process != self._processes[worker]
            self._processes[worker] = process
        if is_new:
            logger.warning("a Ray worker died; its leaves were taken over by a new one")
        return result

    def _check_restart(self, worker: int) -> None:
        """Raise if the machine of a worker is gone, and no other one has room for it."""
        machines = [node["NodeID"] for node in import_ray().nodes() if node["Alive"]]
        room = capacity(self.resources)
        if self._processes[worker].machine not in machines and room < self.n_shards:
            raise RuntimeError(
                f"the machine of a Ray worker left the cluster, and after {10 * self.wait_seconds:g} s there is none in its place: the "
                f"machines left have room for {room} of {self.n_shards} workers; add one, or fit again with fewer workers"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> RayWorkers:
        return self  # a handle on actors, of which there is one set


def _n_bytes(value: Any) -> int:
    """Return the bytes of the arrays and numbers in nested lists, tuples and dataclasses."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(_n_bytes(entry) for entry in value)
    if hasattr(value, "__dataclass_fields__"):
        return sum(_n_bytes(getattr(value, name)) for name in value.__dataclass_fields__)
    return 8
