"""The context of a fit: gradients of torch enabled where it is loaded, progress shown."""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["progress_shown", "training_mode"]


@contextmanager
def training_mode(verbose: bool = False) -> Iterator[None]:
    """Enable gradients, and show progress if ``verbose``."""
    torch = sys.modules.get("torch")  # where it is not loaded, nobody has turned gradients off
    with ExitStack() as stack:
        if torch is not None and hasattr(torch, "inference_mode"):  # it may be half loaded
            # In the caller's inference mode a search would silently stay where it starts.
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
        stack.enter_context(progress_shown(verbose))
        yield


@contextmanager
def progress_shown(verbose: bool) -> Iterator[None]:
    """Show a progress bar if one can be drawn, else send the log of the library to standard error."""
    if not verbose:
        yield
        return
    if importlib.util.find_spec("rich") is not None:
        from dsmgp._util.progress_bar import can_draw, progress_bar

        if can_draw():
            with progress_bar():
                yield
            return
    with _logged:
        yield


class _Logged:
    """Sends the log of the library to standard error, once, while any thread is inside."""

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
