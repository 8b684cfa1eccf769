"""Around a call that changes an estimator: it is left as it was on an error, and progress is shown if asked for."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["progress_shown", "unchanged_on_error"]


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Whatever goes wrong inside, the estimator is left as it was."""
    before = estimator.__dict__.copy()
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise


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
    logger = logging.getLogger("dsmgp")
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(logging.Formatter("dsmgp: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
