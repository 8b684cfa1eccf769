# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The descent of rows through a flattened tree in compiled code (needs numba): see :mod:`.routing`."""

from __future__ import annotations

from numba import njit

__all__ = ["descend"]


@njit(nogil=True, cache=True)
def descend(dimension, split, below, above, X, node):
    """Move each row on from ``node[row]`` to the leaf or sum node that it reaches, in place.

    Parameters
    ----------
    dimension, split, below, above : ndarray of shape (n_entries,)
        The flattened tree. An entry that leads to itself is a leaf or a sum node.
    X : ndarray of shape (n_rows, n_dims)
        Rows.
    node : ndarray of shape (n_rows,)
        Where each row is; overwritten.
    """
    for i in range(len(X)):
        at = node[i]
        while True:
            following = below[at] if X[i, dimension[at]] < split[at] else above[at]
            if following == at:
                break
            at = following
        node[i] = at
