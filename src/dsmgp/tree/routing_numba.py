# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The descent of rows through a flattened tree in compiled code (needs numba): see :mod:`.routing`."""

from __future__ import annotations

from dsmgp._util.numba_arrays import integers, kernel, matrix, vector

__all__ = ["descend"]


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
