"""Progress of a fit for whoever listens, and a way to ask the fit to stop early.

A fit reports in which stage it is (:func:`span`) and how much of that stage is done (:func:`tick`). Listeners are
registered by :func:`listening`; they nest, and nothing is printed here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = [
    "Listener",
    "StageTimes",
    "StopFitting",
    "active_listeners",
    "listening",
    "span",
    "stopping",
    "tick",
]


class StopFitting(Exception):
    """Raised inside a search that was asked to stop, and caught by it: the best result so far is kept.

    Examples
    --------
    >>> def objective(x):
    ...     if stopping():
    ...         raise StopFitting
    ...     return x**2
    >>> with listening(Listener()) as listener:
    ...     listener.stop()
    ...     try:
    ...         objective(2)
    ...     except StopFitting:
    ...         print("the best so far")
    the best so far
    """


Enough = StopFitting  # its name up to version 0.1


class Listener:
    """Receives reports of progress, and may ask the fit to stop.

    Parameters
    ----------
    hear : callable
        Called with the share of the work done, which never falls, and what is being done: the present stage, or
        which part of it. May be called from any thread.

    Examples
    --------
    >>> heard = []
    >>> with listening(Listener(lambda share, text: heard.append((share, text)))):
    ...     with span(0.5, 1.0, "learning"):
    ...         tick(0.5)
    >>> heard
    [(0.5, 'learning'), (0.75, 'learning'), (1.0, 'learning')]
    """

    def __init__(self, hear: Callable[[float, str], None] = lambda share, text: None) -> None:
        self.hear = hear
        self.stopping = False
        self.share, self.text = 0.0, ""
        self._spans = [(0.0, 1.0, "", "")]
        self._lock = threading.RLock()

    def stop(self) -> None:
        """Ask the fit to stop learning and to finish with the best result it has."""
        self.stopping = True

    def _enter(self, low: float, high: float, stage: str, text: str) -> None:
        with self._lock:
            outer_low, outer_high, *_ = self._spans[-1]
            width = outer_high - outer_low
            self._spans.append((outer_low + low * width, outer_low + high * width, stage, text))
            self.text = text

    def _leave(self) -> None:
        with self._lock:
            self._spans.pop()
            *_, self.text = self._spans[-1]

    def _tick(self, fraction: float) -> None:
        with self._lock:
            low, high, *_ = self._spans[-1]
            share = low + (high - low) * min(max(fraction, 0.0), 1.0)
            if share >= self.share:
                self.share = share
                self.hear(share, self.text)


class StageTimes(Listener):
    """Records the seconds that each stage takes, without those of stages inside it.

    Examples
    --------
    >>> with listening(StageTimes()) as times:
    ...     with span(0.0, 1.0, "trying kernels", "trying kernel rbf"):
    ...         pass
    >>> list(times.seconds)
    ['trying kernels']
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def _enter(self, low: float, high: float, stage: str, text: str) -> None:
        with self._lock:
            self._record()
            super()._enter(low, high, stage, text)

    def _leave(self) -> None:
        with self._lock:
            self._record()
            super()._leave()

    def _record(self) -> None:
        """Add the time since the last change of stage to the present one."""
        now, (*_, stage, _) = time.perf_counter(), self._spans[-1]
        if stage:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now


# Listeners of this thread, outermost first: fits in other threads are neither heard nor stopped.
_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("dsmgp_listeners", default=())


def active_listeners() -> tuple[Listener, ...]:
    """Return the listeners of this thread, outermost first.

    Examples
    --------
    >>> with listening(Listener()) as outer, listening(Listener()) as inner:
    ...     active_listeners() == (outer, inner)
    True
    """
    return _listeners.get()


@contextmanager
def listening(listener: Listener) -> Iterator[Listener]:
    """Register a listener for the fits inside, in this thread; those registered outside go on listening."""
    outer = _listeners.get()
    try:
        _listeners.set(tuple(dict.fromkeys((*outer, listener))))
        yield listener
    finally:
        _listeners.set(outer)


@contextmanager
def span(low: float, high: float, stage: str, text: str | None = None) -> Iterator[None]:
    """Enter a stage of the work, which takes it from share ``low`` to ``high`` of the stage around it.

    Listeners are told ``text``, such as which kernel is tried, or the name of the stage.
    """
    listeners = _listeners.get()
    for listener in listeners:
        listener._enter(low, high, stage, stage if text is None else text)
    try:
        tick(0.0)
        yield
        tick(1.0)
    finally:
        for listener in listeners:
            listener._leave()


def tick(fraction: float) -> None:
    """Report that ``fraction`` of the present stage is done."""
    for listener in _listeners.get():
        listener._tick(fraction)


def stopping() -> bool:
    """Return whether any listener has asked the fit to stop.

    Examples
    --------
    >>> with listening(Listener()) as listener:
    ...     listener.stop()
    ...     stopping()
    True
    """
    return any(listener.stopping for listener in _listeners.get())
