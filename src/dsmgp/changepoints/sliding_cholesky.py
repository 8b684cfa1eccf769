"""Log evidence of every segment of ordered rows, up to a longest length.

One Cholesky factor per start gives the evidence of every segment that begins there, by cumulative sums (:mod:`dsmgp.changepoints.prefix_gp`).
With numba, the factor of one start is made from that of the start before (:mod:`dsmgp.changepoints.numba_kernels`). Without, every
start is factorised on its own, which is also the reference in the tests.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from dsmgp._util.arrays import Array
from dsmgp._util.compiled import Kernel
from dsmgp._util.machine import has_numba
from dsmgp.changepoints.prefix_gp import PrefixGPs
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.linalg.threads import Threads

__all__ = ["segment_evidences"]

_slide_factor = Kernel("dsmgp.changepoints.numba_kernels", "slide")
# The fewest starts that share one covariance matrix.
LEAST_STARTS = 64


def segment_evidences(
    kernel: BoundLeafKernel, X: Array, y: Array, noise: Array, longest: int
) -> Array:
    """Return the log evidence of every segment of one output.

    Parameters
    ----------
    kernel : BoundLeafKernel
    X : ndarray of shape (n, n_dims)
        Rows in order.
    y, noise : ndarray of shape (n,)
        Observations and their noise variances.
    longest : int
        Most rows in a segment.

    Returns
    -------
    ndarray of shape (n, min(longest, n))
        ``[i, m - 1]`` is the log evidence of the m rows from i on: minus infinity beyond the last row, NaN where the covariance
        has no Cholesky factor.
    """
    n = len(y)
    longest = min(longest, n)
    step = max(LEAST_STARTS, min(longest, -(-n // 4)))
    out = np.full((n, longest), -np.inf)
    fill = _slide if has_numba() else _factorise_each

    def fill_starts(first: int) -> None:
        after = min(first + step, n)
        rows = slice(first, min(after - 1 + longest, n))
        fill(kernel, X[rows], y[rows], noise[rows], out[first:after])

    Threads().map(fill_starts, range(0, n, step))
    return out


def _slide(kernel: BoundLeafKernel, X: Array, y: Array, noise: Array, out: Array) -> None:
    """Fill ``out``, (n_starts, longest), by sliding one factor over the rows."""
    n_starts, longest = out.shape
    residual = np.ascontiguousarray(y - kernel.mean(X))
    U = np.ascontiguousarray(kernel.cross(X, X) + np.diag(noise))
    w = min(longest, len(U))
    try:
        L = np.linalg.cholesky(U[:w, :w])
    except np.linalg.LinAlgError:
        out[:] = np.nan
        return
    beta = np.zeros(len(U))
    beta[:w] = solve_triangular(L, residual[:w], lower=True, check_finite=False)
    U[:w, :w] = L.T
    spare = np.empty((2, len(U)))
    _slide_factor(longest, n_starts, U, beta, residual, spare[0], spare[1], out)


def _factorise_each(kernel: BoundLeafKernel, X: Array, y: Array, noise: Array, out: Array) -> None:
    """Fill ``out``, (n_starts, longest), with one factorisation for every start."""
    n_starts, longest = out.shape
    for start in range(n_starts):
        rows = slice(start, start + longest)
        log_evidence = PrefixGPs(kernel, X[rows], y[rows], noise[rows]).log_evidence
        out[start, : len(log_evidence)] = log_evidence
