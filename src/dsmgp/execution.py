"""Threads of this process, on which leaves run.

Torch parallelises inside one operation, which gains little on the small matrices of a leaf. Leaves
are independent, so whole batches run side by side instead, each on a thread that gives torch one core.
Results come back in the order of the work, and are the same for any number of threads.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.lapack import one_thread
from dsmgp.notices import warn_user

__all__ = ["Threads", "as_numpy", "as_tensor", "has_numba", "put", "take", "within_memory"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def _forget_pools() -> None:
    """A forked child has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


@cache
def has_numba() -> bool:
    """Whether the extra ``fast`` is installed, and with it compiled code."""
    return importlib.util.find_spec("numba") is not None


# The calling thread leaves arrays to NumPy: torch would start OpenMP's threads for large ones, which do not survive a fork.


def as_numpy(tensor: Tensor) -> NDArray[np.float64]:
    """In double precision, on the CPU."""
    return tensor.detach().cpu().numpy().astype(np.float64, copy=False)


def as_tensor(
    values: NDArray[np.float64], like: Tensor | tuple[torch.device, torch.dtype]
) -> Tensor:
    """On the device and in the precision of another tensor."""
    device, dtype = (like.device, like.dtype) if isinstance(like, Tensor) else like
    kind = np.float32 if dtype == torch.float32 else np.float64
    return torch.from_numpy(np.require(values, kind, ["C", "W"])).to(device)


def take(table: Tensor, where: NDArray[np.int64]) -> Tensor:
    """Some rows of a table."""
    if table.device.type == "cpu":
        return torch.from_numpy(table.numpy()[where])
    return table[torch.from_numpy(where).to(table.device)]


def put(table: Tensor, where: NDArray[np.int64], rows: Tensor) -> None:
    """Set some rows of a table."""
    if table.device.type == "cpu":
        table.numpy()[where] = rows.numpy()
    else:
        table[torch.from_numpy(where).to(table.device)] = rows


def within_memory(work: Callable[[], Result], take_less: Callable[[], bool]) -> Result:
    """What ``work`` returns; where a GPU has not the memory for it, of another try that takes less.

    ``take_less`` makes the next try smaller, and says no where it cannot.
    """
    while True:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            message = ". ".join(str(error).split(". ")[:2])
        # The error is gone by now, and with it the tensors of the try.
        torch.cuda.empty_cache()
        if not take_less():
            raise MemoryError(
                f"the GPU has too little free memory even for small batches ({message}); close what else uses it, lower leaf_size, "
                "or use device='cpu'"
            )
        warn_user(
            f"the GPU ran out of memory ({message}); going on with smaller batches, which takes longer. "
            "A lower memory_limit avoids this.",
            RuntimeWarning,
            topic="memory of the GPU",
        )


class Threads:
    """Runs work on threads of this process, as many as torch may use.

    Examples
    --------
    >>> Threads().map(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, device: torch.device | None = None) -> None:
        # A GPU is one queue: threads would only contend for it.
        self.serial = device is not None and device.type != "cpu"

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], brief: bool = False
    ) -> list[Result]:
        """The results for all items; ``brief`` work, for which threads would take longer to wake up, is done here.

        Brief work must be too little for torch to start threads of its own for.
        """
        work = list(items)
        n_threads = torch.get_num_threads()
        if self.serial:
            return [function(item) for item in work]
        with one_thread():
            if n_threads == 1 or brief:
                return [function(item) for item in work]
            # Even a single item goes to a thread with one core: results do not depend on how many items
            # there are, and the calling thread never starts OpenMP's own, which do not survive a fork.
            pool = _pool(n_threads)
            futures: list[Future[Result]] = []
            try:
                for item in work:  # with what the caller's context knows: who listens to progress
                    futures.append(pool.submit(copy_context().run, function, item))
                return [future.result() for future in futures]
            finally:  # after an error nothing goes on behind the caller's back
                for future in futures:
                    future.cancel()
                wait(futures)


def _pool(n_threads: int) -> ThreadPoolExecutor:
    """A pool of threads with one torch core each, kept for the life of the process."""
    with _lock:
        if n_threads not in _pools:
            pool = ThreadPoolExecutor(n_threads, thread_name_prefix="dsmgp")
            started = threading.Barrier(n_threads)

            def give_one_core() -> None:
                torch.get_num_threads()  # the first look in a thread sets it to the process's number
                torch.set_num_threads(1)
                started.wait()

            for future in [pool.submit(give_one_core) for _ in range(n_threads)]:
                future.result()
            # Each thread keeps its own setting, but threads yet to come take the last one set.
            torch.set_num_threads(n_threads)
            _pools[n_threads] = pool
        return _pools[n_threads]
