# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The descent of rows through a flattened tree in compiled code (needs numba): see :mod:`.routing`."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["descend", "reach"]


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


@njit(nogil=True, cache=True)
def reach(dimension, split, below, above, leaf, ends, children, X, reached):
    """Write the numbers of the leaves that each row reaches, in increasing order.

    Parameters
    ----------
    dimension, split, below, above, leaf : ndarray of shape (n_entries,)
        The flattened tree.
    ends, children : ndarray of int
        The entry ``at`` of a sum has the children ``children[ends[at]:ends[at + 1]]``.
    X : ndarray of shape (n_rows, n_dims)
    reached : ndarray of shape (n_rows, max_reached)
        Overwritten where a row reaches leaves.
    """
    waiting = np.empty(reached.shape[1] + 1, np.int64)
    for i in range(len(X)):
        waiting[0] = 0
        n_waiting, n = 1, 0
        while n_waiting:
            n_waiting -= 1
            at = waiting[n_waiting]
            while True:
                following = below[at] if X[i, dimension[at]] < split[at] else above[at]
                if following == at:
                    break
                at = following
            if leaf[at] < 0:
                for k in range(ends[at], ends[at + 1]):
                    waiting[n_waiting] = children[k]
                    n_waiting += 1
                continue
            place = n
            while place > 0 and reached[i, place - 1] > leaf[at]:
                reached[i, place] = reached[i, place - 1]
                place -= 1
            reached[i, place] = leaf[at]
            n += 1
