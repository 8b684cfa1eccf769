# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The descent of rows through a flattened tree in compiled code (needs numba): see :mod:`.routing`."""

from __future__ import annotations

from dsmgp._util.numba_arrays import integers, kernel, matrix, vector

__all__ = ["descend", "reach"]


@kernel
def descend(block):
    """Move each row on from ``node[row]`` to the leaf or sum node that it reaches, in place.

    The block has, in this order:

    dimension, split, below, above : ndarray of shape (n_entries,)
        The flattened tree. An entry that leads to itself is a leaf or a sum node.
    X : ndarray of shape (n_rows, n_dims)
        Rows.
    node : ndarray of shape (n_rows,)
        Where each row is; overwritten.
    """
    dimension, split = integers(block[0], block[1]), vector(block[2], block[3])
    below, above = integers(block[4], block[5]), integers(block[6], block[7])
    X, node = matrix(block[8], block[9], block[10]), integers(block[11], block[12])
    for i in range(len(X)):
        at = node[i]
        while True:
            following = below[at] if X[i, dimension[at]] < split[at] else above[at]
            if following == at:
                break
            at = following
        node[i] = at


@kernel
def reach(block):
    """Write the numbers of the leaves that each row reaches, in increasing order.

    The block has, in this order:

    dimension, split, below, above, leaf : ndarray of shape (n_entries,)
        The flattened tree.
    ends, children : ndarray of int
        The entry ``at`` of a sum has the children ``children[ends[at]:ends[at + 1]]``.
    X : ndarray of shape (n_rows, n_dims)
    reached : ndarray of shape (n_rows, max_reached)
        Overwritten where a row reaches leaves.
    waiting : ndarray of shape (max_reached + 1,)
        Memory for the entries that a row has yet to visit.
    """
    dimension, split = integers(block[0], block[1]), vector(block[2], block[3])
    below, above = integers(block[4], block[5]), integers(block[6], block[7])
    leaf, ends = integers(block[8], block[9]), integers(block[10], block[11])
    children, X = integers(block[12], block[13]), matrix(block[14], block[15], block[16])
    max_reached, waiting = block[19], integers(block[20], block[21])
    for i in range(len(X)):
        reached = integers(block[17] + 8 * i * max_reached, max_reached)
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
            while place > 0 and reached[place - 1] > leaf[at]:
                reached[place] = reached[place - 1]
                place -= 1
            reached[place] = leaf[at]
            n += 1
