"""Around a call that changes an estimator: it is left as it was on an error, and progress is shown if asked for."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["gradients", "progress_shown", "unchanged_on_error"]


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Whatever goes wrong inside, the estimator is left as it was. Inside there are gradients, whether the caller's torch has them on or not."""
    before = estimator.__dict__.copy()
    try:
        with gradients():
            yield
    except BaseException:
        # In this order: one who is impatient, and interrupts again, finds at least all that was there.
        estimator.__dict__.update(before)
        for name in estimator.__dict__.keys() - before.keys():
            del estimator.__dict__[name]
        raise


@contextmanager
def gradients() -> Iterator[None]:
    """As torch has them unless told: without them a search would not move, and say nothing of it."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def progress_shown(verbose: bool) -> Iterator[None]:
    """Show a bar for the time of a fit where one can be drawn, else send what the library logs to standard error."""
    if not verbose:
        yield
        return
    if importlib.util.find_spec("rich") is not None:
        from dsmgp import bars

        if bars.can_draw():
            with bars.bar():
                yield
            return
    with _logged:
        yield


class _Logged:
    """What the library logs goes to standard error, once, for as long as any thread is inside."""

    def __init__(self) -> None:
        self.lock, self.n_inside, self.level = threading.Lock(), 0, logging.NOTSET
        self.handler = logging.Handler()

    def __enter__(self) -> None:
        logger = logging.getLogger("dsmgp")
        with self.lock:
            self.n_inside += 1
            if self.n_inside == 1:
                self.handler, self.level = logging.StreamHandler(), logger.level
                self.handler.setFormatter(logging.Formatter("dsmgp: %(message)s"))
                logger.addHandler(self.handler)
                logger.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("dsmgp")
        with self.lock:
            self.n_inside -= 1
            if not self.n_inside:
                logger.removeHandler(self.handler)
                logger.setLevel(self.level)


_logged = _Logged()
