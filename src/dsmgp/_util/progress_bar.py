"""A progress bar for fits, predictions and reports, in terminals and notebooks. Needs rich, which is part of ``dsmgp[cli]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsmgp.progress import Listener, listening

__all__ = ["can_draw", "progress_bar"]


def can_draw() -> bool:
    """Return whether standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or Console(stderr=True).is_jupyter


@contextmanager
def progress_bar(doing: str = "fitting") -> Iterator[Listener]:
    """Show a bar with the estimated time left, on standard error, while what is inside runs."""
    bar = Progress(
        TextColumn(f"[bold]{doing}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("[dim]{task.description}"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=1.0)

        def show(share: float, text: str) -> None:
            bar.update(task, completed=share, description=text)

        with listening(Listener(show)) as listener:
            yield listener
