"""The process of a Ray worker: the shards that it holds, and what it returns."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsmgp._util.machine import has_cuda, require_torch
from dsmgp._util.ragged import Ragged
from dsmgp._util.warnings import warn_user
from dsmgp.distributed.ray_cluster import import_ray
from dsmgp.distributed.shard import ShardData
from dsmgp.distributed.shard_cache import ShardCaches, ShardLimit, ShardState
from dsmgp.experts.leaf_data import LeafData
from dsmgp.linalg.threads import blas_thread_settings

__all__ = ["ActorProcess", "RowsInObjectStore", "ShardActor", "TaskResult", "cloudpickle"]


@dataclass(frozen=True)
class TaskResult:
    """What a method of a shard returned or raised, and the warnings it issued."""

    value: Any
    error: Exception | None
    warned: list[tuple[type[Warning], str]]

    def unwrap(self) -> Any:
        """Return the value or raise the error, after the warnings have been repeated."""
        for category, message in self.warned:
            warn_user(message, category)
        if self.error is not None:
            raise self.error
        return self.value


def _attempted(function: Callable[..., Any], *arguments: Any) -> TaskResult:
    """Call a function; errors and warnings are part of the result."""
    value, error = None, None
    with warnings.catch_warnings(record=True) as caught:  # actors have one thread
        warnings.simplefilter("always")
        try:
            value = function(*arguments)
        except Exception as raised:
            error = raised
    return TaskResult(value, error, [(w.category, str(w.message)) for w in caught])


@dataclass(frozen=True)
class ActorProcess:
    """The process of an actor; another one after a restart."""

    machine: str
    pid: int


class ShardActor:
    """The :class:`~dsmgp.distributed.shard_cache.ShardCaches` in a process of its own."""

    def __init__(self, n_threads: int, gpu: bool) -> None:
        ray = import_ray()
        if gpu:
            require_torch("a GPU of a Ray worker")
            if not has_cuda():
                raise RuntimeError("no GPU was found by torch on this machine")
        _set_n_threads(n_threads)
        self.caches = ShardCaches(fetch=ray.get)
        self.function: tuple[str, Any] = "", None
        self.process = ActorProcess(ray.get_runtime_context().get_node_id(), os.getpid())

    def ready(self) -> ActorProcess:
        return self.process

    def call(
        self, limit: ShardLimit, number: int, state: ShardState, method: str, *arguments: Any
    ) -> tuple[ActorProcess, TaskResult]:
        return self.process, _attempted(self.caches.call, limit, number, state, method, *arguments)

    def apply(self, function: bytes, name: str, item: Any) -> tuple[ActorProcess, TaskResult]:
        """Compute a function of an item; the last function is kept, by its name, as many items come one after the other."""
        if name != self.function[0]:
            self.function = name, cloudpickle().loads(function)
        return self.process, _attempted(self.function[1], item)

    def drop(self, number: int, key: int) -> None:
        self.caches.drop(number, key)

    def remove(self, number: int) -> None:
        self.caches.remove(number)


@dataclass(frozen=True)
class RowsInObjectStore:
    """Loads the rows of one shard out of tables in Ray's object store.

    Attributes
    ----------
    leaf_rows : ObjectRef
    data : LeafData
        Of references.
    """

    leaf_rows: Any
    data: LeafData

    def __call__(self) -> ShardData:
        ray = import_ray()
        leaf_rows: Ragged = ray.get(self.leaf_rows)
        ids, local = np.unique(leaf_rows.flat, return_inverse=True)

        # Indexing copies: arrays in the store are read-only, for which numba would compile again.
        data = self.data.map(lambda table: ray.get(table)[ids])
        if data.labels is not None:
            labels = np.unique(data.labels, return_inverse=True)[1].reshape(-1)
            data = replace(data, labels=labels)
        rows = Ragged(local.reshape(-1).astype(np.int64), np.array(leaf_rows.ends))
        return ShardData(ids, rows, data)


def cloudpickle() -> Any:
    """Return Ray's pickle, which takes functions too."""
    import_ray()
    from ray import cloudpickle

    return cloudpickle


def _set_n_threads(n_threads: int) -> None:
    """Compute on so many threads in this process, in every library that has threads of its own."""
    # Libraries that are loaded later, as torch may be, take the number from the environment.
    os.environ["OMP_NUM_THREADS"] = str(n_threads)
    for _, set_number in blas_thread_settings():
        set_number(n_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(n_threads)
