"""Cholesky factors, row-major lower triangles, after rows were added to a matrix or removed from it.

Plans for shared factors add rows (:mod:`dsmgp.experts.factors.sharing`); online updates do both.
"""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.linalg import lapack

__all__ = ["append_rows", "remove_rows"]


def append_rows(K: Array, n: int) -> bool:
    """Extend a Cholesky factor by rows, in place.

    Parameters
    ----------
    K : ndarray of shape (m, m)
        Its leading ``n`` rows are a lower factor; the rows below are those of the matrix. Overwritten by the factor.
    n : int

    Returns
    -------
    bool
        False where the matrix is not positive definite.

    Examples
    --------
    >>> K = np.array([[2.0, 0.0], [2.0, 5.0]])  # the first row is the factor of 4
    >>> append_rows(K, 1)
    True
    >>> K
    array([[2., 0.],
           [1., 2.]])
    """
    across, corner = K[n:, :n], K[n:, n:]
    if n:
        lapack.solve_rows(K[:n, :n], across)
        lapack.subtract_square(corner, across)
    return lapack.factorise(corner)


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
