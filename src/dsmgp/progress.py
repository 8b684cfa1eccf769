"""How far a fit is, for whoever listens, and whether it was asked to come to an end.

A fit says in which part of the work it is (:func:`span`) and how much of that part is done (:func:`tick`). Nobody listens
unless :func:`listening` is used, and then nothing is printed here: that is for the listener.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Enough", "Listener", "listening", "span", "stopping", "tick"]


class Enough(Exception):
    """Raised inside a search that was asked to end, and caught by it: the best so far is kept.

    Examples
    --------
    >>> def hard(x):
    ...     if stopping():
    ...         raise Enough
    ...     return x**2
    >>> with listening(Listener()) as listener:
    ...     listener.stop()
    ...     try:
    ...         hard(2)
    ...     except Enough:
    ...         print("the best so far")
    the best so far
    """


class Listener:
    """Hears of progress, and may ask the fit to end.

    Parameters
    ----------
    hear : callable
        Called with the share of the work done, which never falls, and what is being done. May be called from any thread.

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
        self._spans = [(0.0, 1.0)]
        self._lock = threading.RLock()

    def stop(self) -> None:
        """Ask the fit to learn no further and to finish with the best it has."""
        self.stopping = True

    def _tick(self, fraction: float) -> None:
        with self._lock:
            low, high = self._spans[-1]
            share = low + (high - low) * min(max(fraction, 0.0), 1.0)
            if share >= self.share:
                self.share = share
                self.hear(share, self.text)


# Who listens to what this thread does: fits in other threads are not heard, nor told to end.
_listener: ContextVar[Listener | None] = ContextVar("dsmgp_listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[Listener]:
    """For the time of a fit in this thread."""
    outer = _listener.get()
    try:
        _listener.set(listener)
        yield listener
    finally:
        _listener.set(outer)


@contextmanager
def span(low: float, high: float, text: str) -> Iterator[None]:
    """A part of the work: from one share to another of that in which it lies."""
    told = _listener.get()
    if told is None:
        yield
        return
    with told._lock:
        outer_low, outer_high = told._spans[-1]
        width = outer_high - outer_low
        told._spans.append((outer_low + low * width, outer_low + high * width))
        before, told.text = told.text, text
    tick(0.0)
    try:
        yield
        tick(1.0)
    finally:
        with told._lock:
            told._spans.pop()
            told.text = before


def tick(fraction: float) -> None:
    """So much of the present part is done."""
    listener = _listener.get()
    if listener is not None:
        listener._tick(fraction)


def stopping() -> bool:
    """Whether the fit was asked to come to an end.

    Examples
    --------
    >>> with listening(Listener()) as listener:
    ...     listener.stop()
    ...     stopping()
    True
    """
    listener = _listener.get()
    return listener is not None and listener.stopping
