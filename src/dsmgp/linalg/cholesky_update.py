"""Cholesky factors, row-major lower triangles, after rows were removed from a matrix: online updates do that.

How rows are added is in :mod:`dsmgp.experts.online`.
"""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.linalg import lapack

__all__ = ["remove_rows"]


def remove_rows(L: Array, removed: Index) -> Array:
    """Return the factor of ``L L'`` without the rows and columns ``removed``.

    Rows before the first removed one stay as they are. For those after it, with columns kept and removed apart,
    ``T T' = L_kept L_kept' + L_removed L_removed'`` (Trapp et al. 2020, eq. 13).

    Examples
    --------
    >>> remove_rows(np.array([[2.0, 0.0], [3.0, 4.0]]), np.array([0]))
    array([[5.]])
    """
    kept = np.delete(np.arange(len(L)), removed)
    factor = L[np.ix_(kept, kept)]
    first = int(np.min(removed, initial=len(L)))
    if first < len(kept):
        T = factor[first:, first:]
        lapack.add_to_factor(T, L[np.ix_(kept[first:], removed)])
        T *= np.sign(T.diagonal())
    return factor
