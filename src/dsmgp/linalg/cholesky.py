"""Cholesky factors of covariance matrices in NumPy, with as little jitter on the diagonal as rounding makes necessary.

Compiled code and torch have loops of their own, over the same jitters (:mod:`dsmgp.linalg.jitter`).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.linalg import lapack
from dsmgp.linalg.jitter import jitter_ladder

__all__ = ["NotFactorisedError", "cholesky", "inverse_from_factor", "solve"]


class NotFactorisedError(np.linalg.LinAlgError, InputError):
    """A covariance matrix cannot be factorised, even with the largest jitter."""

    def __init__(
        self,
        message: str = "a covariance matrix could not be factorised even with added noise; raise noise_variance, or check the "
        "kernel's hyperparameters",
    ) -> None:
        super().__init__(message)


def cholesky(K: Array, noise: Array | float = 0.0, overwrite: bool = False) -> tuple[Array, float]:
    """Return the lower Cholesky factor of a covariance matrix, and the jitter that was added to its diagonal.

    Parameters
    ----------
    K : ndarray of shape (n, n)
    noise : float or ndarray of shape (n,)
        What is added to the diagonal.
    overwrite : bool
        Whether the factor may take the place of K, which must be row-major then.

    Returns
    -------
    factor : ndarray of shape (n, n)
        Row-major. As in :mod:`dsmgp.linalg.lapack`, entries above the diagonal are undefined.
    jitter : float
        Zero unless the matrix is not positive definite in double precision.

    Raises
    ------
    NotFactorisedError

    Examples
    --------
    >>> cholesky(np.array([[4.0, 6.0], [6.0, 9.0]]), noise=16.0)[0].diagonal().round(3)
    array([4.472, 4.817])
    >>> cholesky(np.ones((2, 2)))[1]
    1e-12
    """
    L = K if overwrite else np.array(K, dtype=np.float64, order="C")
    diagonal = L.diagonal() + noise
    scale = float(diagonal.mean()) if len(L) else 0.0
    for jitter in (0.0, *jitter_ladder(scale)):
        np.fill_diagonal(L, diagonal + jitter)
        # Routines take NaN for positive; it reaches the diagonal of the factor.
        if _factorise(L) and np.isfinite(L.diagonal()).all():
            return L, jitter
        # Only the lower triangle was overwritten.
        lower = np.tril_indices(len(L), -1)
        L[lower] = L.T[lower]
    raise NotFactorisedError


def _factorise(A: Array) -> bool:
    """Overwrite the lower triangle by the Cholesky factor; False if the matrix is not positive definite."""
    if lapack.available:
        return lapack.factorise(A)
    try:
        factor = np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        return False
    lower = np.tril_indices(len(A))
    A[lower] = factor[lower]
    return True


def solve(L: Array, B: Array, transposed: bool = False) -> Array:
    """Return ``L^-1 B``, or ``L'^-1 B``, of a lower triangular matrix."""
    if not len(L):
        return B
    return np.asarray(solve_triangular(L, B, lower=True, trans=int(transposed), check_finite=False))


def inverse_from_factor(L: Array) -> Array:
    """Return ``(L L')^-1``."""
    return np.asarray(cho_solve((L, True), np.eye(len(L)), check_finite=False))
