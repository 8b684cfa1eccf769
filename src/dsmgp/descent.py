# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The way down a tree in compiled code. Needs numba."""

from __future__ import annotations

from numba import njit

__all__ = ["descend"]


@njit(nogil=True, cache=True)
def descend(dimension, split, below, above, X, node):
    """Rows on from their nodes to where nodes lead to themselves, in place: see :class:`dsmgp.routes.Router`."""
    for i in range(len(X)):
        at = node[i]
        while True:
            following = below[at] if X[i, dimension[at]] < split[at] else above[at]
            if following == at:
                break
            at = following
        node[i] = at
