"""Thread control: a pool on which batches of leaves run side by side, and a limit on BLAS's own threads.

Torch and BLAS parallelise inside one operation, which gains little on the small matrices of a leaf. Leaves are
independent, so whole batches run in parallel instead, each on a thread that uses one core. Results are returned in
the order of the work, and do not depend on the number of threads.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["Threads", "blas_thread_settings", "one_thread", "uninterrupted"]

Item = TypeVar("Item")
Result = TypeVar("Result")
#: Functions that return and set the number of threads of one BLAS library.
ThreadSetting = tuple[Callable[[], int], Callable[[int], None]]


class Threads:
    """Map a function over items on threads of this process, as many as torch may use.

    Parameters
    ----------
    device : torch.device, optional
        Where the work runs. A GPU is one queue, for which threads would only contend: work on it is done in the
        calling thread.

    Examples
    --------
    >>> Threads().map(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.serial = device is not None and device.type != "cpu"

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], brief: bool = False
    ) -> list[Result]:
        """Return the results for all items, in order.

        With ``brief`` the calling thread does the work: it takes less time than waking up threads, and must be too
        little for torch to start threads of its own.
        """
        work = list(items)
        n_threads = torch.get_num_threads()
        if self.serial:
            return [function(item) for item in work]
        with one_thread():
            if n_threads == 1 or brief:
                return [function(item) for item in work]
            # Even a single item goes to a thread with one core: results must not depend on how many items
            # there are, and the calling thread must not start OpenMP's threads, which do not survive a fork.
            return _Batch(function, work).run(n_threads)


def uninterrupted(function: Callable[[], Result]) -> Result:
    """Call a function where Ctrl-C cannot interrupt it: on another thread, since signals reach the main thread only.

    An interrupt is raised once the function has returned. For code of others that an interrupt would leave half done.

    Examples
    --------
    >>> uninterrupted(lambda: 1 + 1)
    2
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    (result,) = _Batch(lambda _: function(), [None]).run(torch.get_num_threads())
    return result


class _Batch(Generic[Item, Result]):
    """The items of one call of :meth:`Threads.map`, taken by the threads of a pool one after the other.

    Ctrl-C may interrupt the calling thread at any point. Futures, semaphores and conditions are written in Python and
    may be left locked for ever then; only locks and simple queues, which are written in C, are used here.
    """

    def __init__(self, function: Callable[[Item], Result], items: list[Item]) -> None:
        self.function, self.items = function, items
        self.contexts = [copy_context() for _ in items]  # the caller's, with its progress listener
        self.outcomes: list[tuple[Any, BaseException | None] | None] = [None] * len(items)
        self.finished: SimpleQueue[int] = SimpleQueue()
        self.lock = threading.Lock()
        self.n_started, self.n_finished, self.cancelled = 0, 0, False

    def run(self, n_threads: int) -> list[Result]:
        """Return the results in order; raise the first error in that order."""
        tasks = _pool(n_threads)
        try:
            for _ in range(min(n_threads, len(self.items))):
                tasks.put(self.work)
            return [self._result(k) for k in range(len(self.items))]
        finally:  # after an error or an interrupt no work goes on in the background
            with self.lock:
                self.cancelled = True
            while self.n_finished < self.n_started:
                with suppress(Empty):
                    self.finished.get(timeout=0.01)

    def work(self) -> None:
        """Compute items until none is left; called by the threads of the pool."""
        while True:
            with self.lock:
                number = self.n_started
                if self.cancelled or number == len(self.items):
                    return
                self.n_started += 1
            try:
                value = self.contexts[number].run(self.function, self.items[number])
                self.outcomes[number] = value, None
            except BaseException as error:
                self.outcomes[number] = None, error
            with self.lock:
                self.n_finished += 1
            self.finished.put(number)

    def _result(self, number: int) -> Result:
        while (outcome := self.outcomes[number]) is None:
            self.finished.get()
        value, error = outcome
        if error is not None:
            raise error
        result: Result = value
        return result


_pools: dict[int, SimpleQueue[Callable[[], None]]] = {}
_pools_lock = threading.Lock()


def _pool(n_threads: int) -> SimpleQueue[Callable[[], None]]:
    """Return the task queue of so many threads with one torch core each, kept for the life of the process."""
    with _pools_lock:
        if n_threads not in _pools:
            tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
            ready: SimpleQueue[bool] = SimpleQueue()

            def work() -> None:
                torch.get_num_threads()  # the first call in a thread sets it to the process's number
                torch.set_num_threads(1)
                ready.put(True)
                while True:
                    tasks.get()()

            try:
                for k in range(n_threads):
                    threading.Thread(target=work, name=f"dsmgp_{k}", daemon=True).start()
                for _ in range(n_threads):
                    ready.get()
            finally:
                # Each thread keeps its own setting, but threads yet to come take the last one set.
                torch.set_num_threads(n_threads)
            _pools[n_threads] = tasks
        return _pools[n_threads]


def blas_thread_settings() -> list[ThreadSetting]:
    """Return the getter and setter of the number of threads of each OpenBLAS in the process.

    threadpoolctl finds the libraries. Its own limits work in one thread of a program only, and are silently ignored
    in all others, so the libraries' functions are called directly.
    """
    settings: list[ThreadSetting] = []
    for library in ThreadpoolController().lib_controllers:
        if library.internal_api != "openblas":
            continue
        for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
            name = f"{prefix}openblas_{{}}_num_threads{suffix}"
            if hasattr(library.dynlib, name.format("set")):
                get, set_ = (getattr(library.dynlib, name.format(verb)) for verb in ("get", "set"))
                settings.append((get, set_))
                break
    return settings


class _BlasLimit:
    """Limits BLAS to one thread while anyone needs that: the first to enter sets the limit, the last restores it.

    Safe against an interrupt at any point, after which ``leave`` may be called again: an entry is recorded before
    the limit is set, and removed after it was restored.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: set[object] = set()
        self.settings: list[ThreadSetting] | None = None
        self.before: list[int] = []

    def enter(self, token: object) -> None:
        with self.lock:
            first = not self.inside
            if first:
                if self.settings is None:  # searches all loaded libraries: only once
                    self.settings = blas_thread_settings()
                self.before = [n_threads() for n_threads, _ in self.settings]
            self.inside.add(token)
            if first:
                self.set([1] * len(self.before))

    def leave(self, token: object) -> None:
        with self.lock:
            if self.inside == {token}:
                self.set(self.before)
            self.inside.discard(token)

    def set(self, limits: list[int]) -> None:
        for (_, set_n_threads), n_threads in zip(self.settings or [], limits, strict=True):
            set_n_threads(n_threads)


_blas_limit = _BlasLimit()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let BLAS use one thread per call, so that leaves can run side by side.

    The limit holds for the whole process. Any number of threads may be inside, in any order; the last to leave
    restores the setting that the first replaced.

    Examples
    --------
    >>> with one_thread(), one_thread():
    ...     pass
    """
    limit, token = _blas_limit, object()
    try:
        limit.enter(token)
        yield
    finally:
        try:
            limit.leave(token)
        except BaseException:  # an interrupt inside leave
            limit.leave(token)
            raise


def _reset_after_fork() -> None:
    """Start anew in a forked child, which has none of its parent's threads."""
    global _pools_lock, _blas_limit
    _pools_lock = threading.Lock()
    _pools.clear()
    if _blas_limit.inside:
        _blas_limit.set(_blas_limit.before)
    _blas_limit = _BlasLimit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
