"""Thread control: a pool on which batches of leaves run side by side, and a limit on BLAS's own threads.

BLAS and torch parallelise inside one operation, which gains little on the small matrices of a leaf. Leaves are
independent, so whole batches run in parallel instead, each on a thread that uses one core. Results are returned in
the order of the work, and do not depend on the number of threads.

Torch is optional: it is limited if it is loaded, and never imported here.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, Generic, TypeVar

# SciPy has an OpenBLAS of its own, which is only found, and limited, once it is loaded.
import scipy.linalg  # noqa: F401
from threadpoolctl import ThreadpoolController

__all__ = ["Threads", "blas_thread_settings", "n_threads", "one_thread", "uninterrupted"]

Item = TypeVar("Item")
Result = TypeVar("Result")
#: Functions that return and set the number of threads of one BLAS library.
ThreadSetting = tuple[Callable[[], int], Callable[[int], None]]
# OpenBLAS is built for a maximum number of threads: 64 in the wheels of NumPy and SciPy, more elsewhere. On machines with more cores
# it reports that maximum. Numbers from here on are therefore not taken for a limit that the user has set.
BUILT_FOR_THREADS = 64

# Of each thread: whether it belongs to a pool (``of_pool``), and whether it has limited torch (``torch_limited``).
_this_thread = threading.local()


def n_threads() -> int:
    """Return the number of threads on which this process may compute.

    Where torch is loaded this is torch's number, which ``torch.set_num_threads`` sets. Otherwise it is the number of
    cores that the process may use, or fewer if ``OMP_NUM_THREADS`` or a limit on BLAS (``OPENBLAS_NUM_THREADS``,
    threadpoolctl) says so. It is one in the threads of a pool.

    Examples
    --------
    >>> n_threads() >= 1
    True
    >>> Threads().map(lambda _: n_threads(), [0, 1])
    [1, 1]
    """
    if getattr(_this_thread, "of_pool", False):
        return 1
    if (torch := _loaded_torch()) is not None:
        return int(torch.get_num_threads())
    return min(_n_cores(), _openmp_limit(), _blas_limit.outside())


def _n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _openmp_limit() -> int:
    """Return the first number of ``OMP_NUM_THREADS``, which may list one for each level of nesting."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) > 0 else sys.maxsize


def _loaded_torch() -> ModuleType | None:
    """Return torch if it is loaded; another thread may be in the middle of that."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None


class Threads:
    """Map a function over items on threads of this process, :func:`n_threads` of them.

    Parameters
    ----------
    device : str
        Where the work runs: ``"cpu"`` or a GPU. A GPU is one queue, for which threads would only contend: work on it
        is done in the calling thread.

    Examples
    --------
    >>> Threads().map(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, device: str = "cpu") -> None:
        self.serial = device.partition(":")[0] != "cpu"

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], brief: bool = False
    ) -> list[Result]:
        """Return the results for all items, in order.

        With ``brief`` the calling thread does the work: it takes less time than waking up threads, and must be too
        little for torch to start threads of its own.
        """
        work = list(items)
        if self.serial:
            return [function(item) for item in work]
        size = n_threads()
        with one_thread():
            if size == 1 or brief:
                return [function(item) for item in work]
            # Even a single item goes to a thread with one core: results must not depend on how many items
            # there are, and the calling thread must not start OpenMP's threads, which do not survive a fork.
            return _Batch(function, work).run(size)


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
    (result,) = _Batch(lambda _: function(), [None]).run(n_threads())
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

    def run(self, size: int) -> list[Result]:
        """Return the results in order, computed by a pool of ``size`` threads; raise the first error in that order."""
        tasks = _pool(size)
        try:
            for _ in range(min(size, len(self.items))):
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
                _limit_torch()  # it may have been loaded since this thread was started
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


def _pool(size: int) -> SimpleQueue[Callable[[], None]]:
    """Return the task queue of so many threads with one core each, kept for the life of the process."""
    with _pools_lock:
        if size not in _pools:
            tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()

            def work() -> None:
                _this_thread.of_pool = True
                while True:
                    tasks.get()()

            for k in range(size):
                threading.Thread(target=work, name=f"dsmgp_{k}", daemon=True).start()
            _pools[size] = tasks
        return _pools[size]


_torch_lock = threading.Lock()


def _limit_torch() -> None:
    """Let torch, if it is loaded, use one core in this thread of a pool.

    Each thread keeps its own setting, but threads that torch does not know yet take the last one set. So another thread
    sets the number back: here that would undo the limit.
    """
    if getattr(_this_thread, "torch_limited", False) or (torch := _loaded_torch()) is None:
        return
    with _torch_lock:
        before = (
            torch.get_num_threads()
        )  # the first call in a thread sets it to the process's number
        torch.set_num_threads(1)
        restoring = threading.Thread(target=torch.set_num_threads, args=(before,))
        restoring.start()
        restoring.join()
    _this_thread.torch_limited = True


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
                self.before = self.current()
            self.inside.add(token)
            if first:
                self.set([1] * len(self.before))

    def leave(self, token: object) -> None:
        with self.lock:
            if self.inside == {token}:
                self.set(self.before)
            self.inside.discard(token)

    def outside(self) -> int:
        """Return how many threads every library may use while nobody is inside."""
        with self.lock:
            limits = self.before if self.inside else self.current()
        return min((n for n in limits if n < BUILT_FOR_THREADS), default=sys.maxsize)

    def current(self) -> list[int]:
        if self.settings is None:  # searches all loaded libraries: only once
            self.settings = blas_thread_settings()
        return [number() for number, _ in self.settings]

    def set(self, limits: list[int]) -> None:
        for (_, set_number), number in zip(self.settings or [], limits, strict=True):
            set_number(number)


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
    global _pools_lock, _torch_lock, _blas_limit
    _pools_lock, _torch_lock = threading.Lock(), threading.Lock()
    _pools.clear()
    if _blas_limit.inside:
        _blas_limit.set(_blas_limit.before)
    _blas_limit = _BlasLimit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
