"""The stages of a fit and the shares of its time that they take, approximately, for reports of progress."""

from __future__ import annotations

from contextlib import AbstractContextManager

from dsmgp.progress import span

__all__ = ["stage"]

SHARES = {
    "choosing coordinates": (0.0, 0.25),
    "choosing the output scaling": (0.25, 0.3),
    "trying kernels": (0.3, 0.45),
    "learning hyperparameters": (0.45, 0.55),
    "growing the tree": (0.55, 0.7),
    "learning on the whole tree": (0.6, 0.7),
    "conditioning leaves": (0.7, 0.95),
    "fitting the gate": (0.95, 1.0),
}


def stage(name: str, text: str | None = None) -> AbstractContextManager[None]:
    """Report the stage of this name while inside, to listeners as ``text`` where it is given."""
    return span(*SHARES[name], name, text)
