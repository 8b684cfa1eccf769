"""A progress bar for a fit, in terminals and notebooks. Needs rich, which is part of ``dsmgp[cli]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsmgp.progress import Listener, listening

__all__ = ["bar", "can_draw"]


def can_draw() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or Console(stderr=True).is_jupyter


@contextmanager
def bar(title: str = "fitting", console: Console | None = None) -> Iterator[Listener]:
    """A bar with the time that is left, on standard error, while a fit inside runs."""
    shown = Progress(
        TextColumn("[bold]{task.fields[title]}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("[dim]{task.description}"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        transient=True,
    )
    with shown:
        task = shown.add_task("", total=1.0, title=title)

        def hear(share: float, text: str) -> None:
            shown.update(task, completed=share, description=text)

        with listening(Listener(hear)) as listener:
            yield listener
