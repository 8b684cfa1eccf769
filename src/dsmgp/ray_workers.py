"""Ray actors that hold shards of leaves, and are replaced when they die.

The driver keeps what is needed to make every shard again: its plan, with the rows in Ray's object store, and what it was
conditioned on. A shard that is lost is made again by a new actor, and what was asked of it is asked again. A leaf's
numbers do not depend on where it is computed, so the result is the same.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.execution import as_numpy
from dsmgp.progress import tick
from dsmgp.ragged import Ragged
from dsmgp.shard import Answer, Content, Plan, ShardHost
from dsmgp.sharded import Tables

__all__ = ["Traffic", "Workers", "the_ray"]

Index = NDArray[np.int64]
logger = logging.getLogger("dsmgp")
# How often in a row the same question may cost a worker its life.
MOST_DEATHS = 3
# Seconds between looks at a cluster that has yet to start workers.
LOOK = 0.1


@dataclass
class Traffic:
    """Bytes of arrays sent to workers and back, by verb."""

    calls: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)

    def count(self, verb: str, sent: Any, received: Any) -> None:
        self.calls[verb] = self.calls.get(verb, 0) + 1
        self.sent[verb] = self.sent.get(verb, 0) + _n_bytes(sent)
        self.received[verb] = self.received.get(verb, 0) + _n_bytes(received)


class _Worker:
    """A :class:`~dsmgp.shard.ShardHost` in an actor."""

    def __init__(self, n_threads: int, gpu: bool) -> None:
        if gpu and not torch.cuda.is_available():
            raise RuntimeError("no GPU was found by torch on this machine")
        torch.set_num_threads(n_threads)
        self.host = ShardHost()

    def ready(self) -> tuple[str, int]:
        """The machine, and the process."""
        return the_ray().get_runtime_context().get_node_id(), os.getpid()

    def place(self, number: int, plan: Plan) -> None:
        self.host.place(number, plan)

    def hold(self, memory: float) -> None:
        self.host.memory = memory

    def ask(self, number: int, verb: str, *arguments: Any) -> Answer:
        return self.host.ask(number, verb, *arguments)

    def remember(self, number: int, *arguments: Any) -> None:
        self.host.remember(number, *arguments)

    def remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.host.remove(number)

    def drop(self, number: int, key: int) -> None:
        self.host.ask(number, "drop", key)


@dataclass(frozen=True)
class _StoredRows:
    """Rows of one shard out of tables in Ray's object store."""

    leaf_rows: Any
    X: Any
    Y: Any
    known: Any
    labels: Any

    def __call__(self) -> Content:
        ray = the_ray()
        leaf_rows: Ragged = ray.get(self.leaf_rows)
        ids, local = np.unique(leaf_rows.flat, return_inverse=True)

        # Copies of its own: what the store holds cannot be written to, which neither torch nor numba likes.
        def rows(table: Any) -> Any:
            return None if table is None else np.array(ray.get(table)[ids])

        labels = rows(self.labels)
        return Content(
            ids,
            rows(self.X),
            rows(self.Y),
            rows(self.known),
            Ragged(local.reshape(-1).astype(np.int64), np.array(leaf_rows.ends)),
            np.arange(len(ids))
            if labels is None
            else np.unique(labels, return_inverse=True)[1].reshape(-1),
        )


class Workers:
    """Actors that hold shards: a :class:`~dsmgp.sharded.Hosts`."""

    def __init__(self, n_workers: int, asked: dict[str, float], wait_seconds: float) -> None:
        self.asked, self.wait_seconds = asked, wait_seconds
        self.traffic = Traffic()
        self._numbers = itertools.count()
        # What each shard is made from, and what it was conditioned on: enough to make it again.
        self._plans: dict[int, tuple[int, Any]] = {}
        self._conditioned: dict[int, dict[int, tuple[Any, ...]]] = {}
        self._stored: dict[int, tuple[Any, Any]] = {}
        self._actors: list[Any] = []
        self._held = float("inf")
        self._lock = threading.RLock()
        self._machines: list[str] = []
        try:
            self._check_free(n_workers)
            self._actors = [self._new() for _ in range(n_workers)]
            self._machines = [machine for machine, _ in self._all_ready()]
        except BaseException:
            self.stop()
            raise
        self._session = the_ray().get_runtime_context().get_job_id()

    # Actors

    @property
    def n_shards(self) -> int:
        return len(self._actors)

    @property
    def device(self) -> torch.device:
        """Of the workers."""
        return torch.device("cuda" if self.asked.get("GPU", 0) > 0 else "cpu")

    @property
    def alive(self) -> bool:
        """Whether the cluster they live on is still there, and they were not stopped."""
        ray = the_ray()
        return bool(
            self._actors
            and ray.is_initialized()
            and ray.get_runtime_context().get_job_id() == self._session
        )

    @property
    def process_ids(self) -> list[int]:
        """Of the workers' processes, on their machines."""
        return [pid for _, pid in self._all_ready()]

    def _new(self) -> Any:
        ray, asked = the_ray(), dict(self.asked)
        options: dict[str, Any] = {
            "num_cpus": asked.pop("CPU"),
            "num_gpus": asked.pop("GPU", 0),
            "max_restarts": 0,  # a new one would come without its shards
            "scheduling_strategy": "SPREAD",
        }
        if "memory" in asked:
            options["memory"] = asked.pop("memory")
        if asked:
            options["resources"] = asked
        n_threads = max(1, int(options["num_cpus"]))
        return ray.remote(_Worker).options(**options).remote(n_threads, options["num_gpus"] > 0)

    def _check_free(self, n_workers: int) -> None:
        """Whether the cluster has what is asked for, or gets it in time."""
        ray, end, told = the_ray(), time.monotonic() + self.wait_seconds, False
        while True:
            free, machines = ray.available_resources(), [n for n in ray.nodes() if n["Alive"]]
            fit = sum(
                int(min(node["Resources"].get(k, 0.0) // v for k, v in self.asked.items() if v > 0))
                for node in machines
            )
            enough = all(v * n_workers <= free.get(k, 0.0) + 1e-9 for k, v in self.asked.items())
            if enough and fit >= n_workers:
                break
            if not told:  # clusters that start machines on demand hear of it
                request_resources(n_workers, self.asked)
                told = True
            if time.monotonic() > end:
                request_resources(0, {})
                total = ray.cluster_resources()
                reason = self._short(n_workers, free, total)
                if fit < n_workers and not reason:
                    reason = f"its {len(machines)} machines have room for {fit} of that size, even if nothing else runs there"
                raise RuntimeError(
                    f"the Ray cluster has no room for {n_workers} workers: {reason} (after {self.wait_seconds:g} s). Lower n_workers or "
                    "resources_per_worker, stop what else runs there, or raise wait_seconds if machines are about to join"
                )
            time.sleep(LOOK)
        if told:
            request_resources(0, {})

    def _short(self, n_workers: int, free: dict[str, float], total: dict[str, float]) -> str:
        """What the cluster has too little of, in words."""
        return "; ".join(
            f"{_amount(name, each * n_workers)} asked for, {_amount(name, free.get(name, 0.0))} free of "
            f"{_amount(name, total.get(name, 0.0))}"
            for name, each in self.asked.items()
            if each * n_workers > free.get(name, 0.0) + 1e-9
        )

    def _all_ready(self) -> list[tuple[str, int]]:
        ray = the_ray()
        asked = [actor.ready.remote() for actor in self._actors]
        # Starting a worker means importing torch, and machines may be busy: far longer than finding room for it.
        _, late = ray.wait(asked, num_returns=len(asked), timeout=10 * self.wait_seconds)
        if late:
            raise RuntimeError(
                f"{len(late)} of {len(asked)} Ray workers did not start within {10 * self.wait_seconds:g} s; look at the "
                "cluster with 'ray status', and raise wait_seconds if it is slow"
            )
        try:
            return ray.get(asked)
        except ray.exceptions.RayActorError as error:
            cause = str(getattr(error, "cause", None) or error).strip().splitlines()[-1]
            raise RuntimeError(
                f"a Ray worker could not start: {cause}; dsmgp, torch and Python must be the same there as here"
            ) from error

    def stop(self) -> None:
        ray = the_ray()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
        self._actors = []

    # Shards

    def memory_of_shard(self, memory: float) -> float:
        together = max(self._machines.count(machine) for machine in self._machines)
        share = memory / together
        return min(share, 0.5 * self.asked["memory"]) if "memory" in self.asked else share

    def hold(self, memory: float) -> None:
        """Bytes that shards on a machine may take; those that do not fit are made again when they are asked."""
        self._held = memory
        for actor in self._actors:
            actor.hold.remote(self.memory_of_shard(memory))

    def stored(self, parts: Sequence[Index], leaf_rows: Ragged, tables: Tables) -> list[Any]:
        X, Y, known, labels = tables
        self._check_memory(leaf_rows.sizes, X, Y)
        stored = {
            name: None if table is None else self._put(table)
            for name, table in {"X": X, "Y": Y, "known": known, "labels": labels}.items()
        }
        return [_StoredRows(the_ray().put(leaf_rows.take(part)), **stored) for part in parts]

    def place(self, plans: Sequence[Plan]) -> list[int]:
        found = []
        for k, plan in enumerate(plans):
            number, worker = next(self._numbers), k % len(self._actors)
            reference = the_ray().put(plan)
            self._plans[number], self._conditioned[number] = (worker, reference), {}
            self._actors[worker].place.remote(number, reference)
            found.append(number)
        return found

    def remember(self, shards: Sequence[int], arguments: Sequence[Any]) -> None:
        for number, own in zip(shards, arguments, strict=True):
            self._conditioned[number][own[0]] = own
            self._actors[self._plans[number][0]].remember.remote(number, *own)

    def _put(self, table: Tensor | Index) -> Any:
        """Its place in the object store; a table that is used again and again is put there once."""
        known = self._stored.get(id(table))
        if known is not None and known[0]() is table:
            return known[1]
        ray = the_ray()
        values = as_numpy(table) if isinstance(table, Tensor) else table
        try:
            reference = ray.put(values)
        except ray.exceptions.ObjectStoreFullError as error:
            raise MemoryError(
                f"Ray's object store has no room for {values.nbytes / 1e6:.3g} MB of rows; start the cluster with a larger "
                "--object-store-memory, or use fit_dataset, whose rows stay on disk"
            ) from error
        key = id(table)
        self._stored[key] = weakref.ref(table, lambda _: self._stored.pop(key, None)), reference
        return reference

    def _check_memory(self, sizes: Index, X: Tensor, Y: Tensor) -> None:
        """Refuse what no worker can hold, before anything is sent."""
        ray = the_ray()
        rows = 8 * len(X) * (X.shape[1] + 2 * Y.shape[1] + 2)
        matrices = 32 * int(sizes.max(initial=0)) ** 2
        machines = {node["NodeID"]: node["Resources"].get("memory", 0.0) for node in ray.nodes()}
        together = {machine: self._machines.count(machine) for machine in self._machines}
        for machine, n_workers in together.items():
            has = machines.get(machine, 0.0) / n_workers
            has = min(has, self.asked.get("memory", has))
            if has and rows + matrices > has:
                raise MemoryError(
                    f"a Ray worker has {has / 1e6:.3g} MB and would need {(rows + matrices) / 1e6:.3g} MB: "
                    f"{rows / 1e6:.3g} for rows and {matrices / 1e6:.3g} for its largest leaf ({sizes.max()} rows); "
                    "lower leaf_size, start fewer workers on a machine, or use larger machines"
                )

    def ask(self, shards: Sequence[int], verb: str, arguments: Iterable[Any]) -> list[Answer]:
        asked = [(n, verb, own) for n, own in zip(shards, arguments, strict=True)]
        waiting = [self._send(*one) for one in asked]
        found = []
        for one, sent in zip(asked, waiting, strict=True):
            answer = self._answer(*one, *sent)
            self.traffic.count(verb, one[2], answer.value)
            found.append(answer)
            number, _, own = one
            if verb == "condition":
                self._conditioned[number][own[0]] = own[:3]
                tick(len(found) / len(asked))
        return found

    def _send(self, number: int, verb: str, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Who was asked, and where the answer will be; nowhere if the worker is known to be dead."""
        ray = the_ray()
        if not self._actors:
            raise RuntimeError(
                "the Ray workers that hold this model's leaves were stopped; fit again, or save the model before and load it"
            )
        actor = self._actors[self._plans[number][0]]
        try:
            return actor, actor.ask.remote(number, verb, *arguments)
        except ray.exceptions.RayActorError:
            return actor, None

    def _answer(
        self, number: int, verb: str, arguments: tuple[Any, ...], actor: Any, reference: Any
    ) -> Answer:
        """The answer, if need be of a worker that takes the place of one that died."""
        ray, n_deaths, reason = the_ray(), 0, "it is gone"
        while True:
            try:
                if reference is not None:
                    return ray.get(reference)
            except (
                ray.exceptions.RayActorError,
                ray.exceptions.WorkerCrashedError,
                ray.exceptions.OutOfMemoryError,
                ray.exceptions.ObjectLostError,
            ) as error:
                reason = str(error).strip().splitlines()[0]
            worker = self._plans[number][0]
            with self._lock:
                # Of all who wait for one that died the first replaces it, the others only ask again.
                if self._actors[worker] is actor:
                    n_deaths += 1
                    if n_deaths == MOST_DEATHS:
                        raise RuntimeError(
                            f"{MOST_DEATHS} Ray workers in a row died of the same work ({verb}), the last because {reason}; most often they have "
                            "too little memory: lower memory_limit or leaf_size, or start fewer of them on a machine"
                        )
                    logger.warning(
                        "a Ray worker died (%s); its leaves are taken over by a new one", reason
                    )
                    self._replace(worker)
            actor, reference = self._send(number, verb, arguments)

    def _replace(self, worker: int) -> None:
        """A new worker with all the shards of one that died."""
        ray = the_ray()
        ray.kill(self._actors[worker])
        new = self._new()
        # What it is told waits until it has started, in this order.
        new.hold.remote(self.memory_of_shard(self._held))
        for number, (owner, plan) in list(self._plans.items()):
            if owner == worker:
                new.place.remote(number, plan)
                for arguments in list(self._conditioned[number].values()):
                    new.remember.remote(number, *arguments)
        ready = new.ready.remote()
        _, late = ray.wait([ready], timeout=10 * self.wait_seconds)
        if late:
            ray.kill(new)
            raise RuntimeError(
                f"a Ray worker died, and after {10 * self.wait_seconds:g} s there is none in its place: "
                + self._short(1, ray.available_resources(), ray.cluster_resources())
            )
        self._actors[worker] = new
        self._machines[worker] = ray.get(ready)[0]

    def remove(self, shards: Sequence[int]) -> None:
        for number in shards:
            worker, _ = self._plans.pop(number, (0, None))
            self._conditioned.pop(number, None)
            if self.alive:
                self._actors[worker].remove.remote([number])

    def drop(self, shards: Sequence[int], key: int) -> None:
        for number in shards:
            if number in self._plans:
                self._conditioned[number].pop(key, None)
                if self.alive:
                    self._actors[self._plans[number][0]].drop.remote(number, key)

    def __deepcopy__(self, memo: dict[int, Any]) -> Workers:
        return self


def request_resources(n_workers: int, asked: dict[str, float]) -> None:
    """Tell a cluster that grows on demand what is about to be needed; others do not mind."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(asked)] * n_workers)


def the_ray() -> Any:
    if importlib.util.find_spec("ray") is None:
        raise ImportError("executor='ray' needs Ray; install it with: pip install 'dsmgp[ray]'")
    import ray

    return ray


def _amount(name: str, value: float) -> str:
    return f"{value / 1e9:.3g} GB of memory" if name == "memory" else f"{value:g} {name}"


def _n_bytes(value: Any) -> int:
    """Of the arrays in something, and of its other numbers."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(_n_bytes(one) for one in value)
    if hasattr(value, "__dataclass_fields__"):
        return sum(_n_bytes(getattr(value, name)) for name in value.__dataclass_fields__)
    return 8
