# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""Compiled loops of the change-point posterior: a sliding Cholesky factor, and forward and backward recursions. Needs numba.

Without its first row, the matrix ``L L'`` of a window has the factor of ``L22 L22' + l21 l21'``: an update of rank one, by
rotations, which are as stable as factorising. ``beta = L^-1 y`` is rotated along. One more row at the end is one more row of the factor.
Both take n^2 multiplications where factorising anew takes n^3 / 3.
"""

from __future__ import annotations

import math

from dsmgp._util.constants import LOG_2PI
from dsmgp._util.numba_arrays import inlined, integers, kernel, matrix, vector

__all__ = ["backward", "forward", "slide"]


@inlined(fastmath={"contract"})
def _rotate(row, x, z, cosine, sine, solved):
    """Rotate a row of the factor against x, and subtract the new row's contribution from z."""
    for i in range(len(row)):
        before, other = row[i], x[i]
        new = cosine * before + sine * other
        row[i] = new
        x[i] = cosine * other - sine * before
        z[i] -= new * solved


@inlined(fastmath={"contract"})
def _slide(U, beta, y, longest, n_starts, x, z, out):
    """Compute the log evidence of all segments that begin at one of the first ``n_starts`` rows.

    Parameters
    ----------
    U : ndarray of shape (n, n)
        The upper triangle of rows 0 to ``longest - 1`` holds the transposed factor of the first window; columns from
        ``longest`` on hold covariances, above and on the diagonal. Overwritten.
    beta : ndarray of shape (n,)
        ``L^-1 y`` of the first window. Overwritten.
    y : ndarray of shape (n,)
        Observations less their prior mean.
    longest : int
        Most rows in a segment.
    n_starts : int
    x, z : ndarray of shape (n,)
        Work space.
    out : ndarray of shape (n_starts, longest)
        ``out[s, m - 1]`` becomes the log evidence of the m rows from s on, NaN from where a factor breaks down.
    """
    n = len(U)
    end = min(longest, n)
    for s in range(n_starts):
        total = 0.0
        for k in range(s, end):
            total -= 0.5 * (beta[k] * beta[k] + LOG_2PI) + math.log(U[k, k])
            out[s, k - s] = total
        if s + 1 == n_starts:
            break
        grows = end < n
        for i in range(s + 1, end):
            x[i] = U[s, i]
            z[i] = U[i, end] if grows else 0.0
        below, square, product = beta[s], 0.0, 0.0
        for k in range(s + 1, end):
            row = U[k]
            length = math.sqrt(row[k] * row[k] + x[k] * x[k])
            cosine, sine = row[k] / length, x[k] / length
            row[k] = length
            old = beta[k]
            beta[k] = cosine * old + sine * below
            below = cosine * below - sine * old
            solved = z[k] / length
            _rotate(row[k + 1 : end], x[k + 1 : end], z[k + 1 : end], cosine, sine, solved)
            if grows:
                row[end] = solved
                square += solved * solved
                product += solved * beta[k]
        if grows:
            last = math.sqrt(U[end, end] - square)
            U[end, end] = last
            beta[end] = (y[end] - product) / last
            end += 1


@inlined
def _forward(evidences, log_enter, log_survival, boundaries, before, entered):
    """Fill ``before`` and ``entered`` from the second boundary on, as ``segmentation._forward`` does."""
    longest = evidences.shape[1]
    for place in range(1, len(boundaries)):
        j = boundaries[place]
        low = max(0, j - longest)
        top = -math.inf
        for i in range(low, j):
            top = max(top, entered[i] + evidences[i, j - 1 - i])
        total = 0.0
        if top > -math.inf:
            for i in range(low, j):
                total += math.exp(entered[i] + evidences[i, j - 1 - i] - top)
            before[j] = top + math.log(total) + log_survival[j - 1]
        entered[j] = before[j] + log_enter[j] - log_survival[j]


@inlined
def _backward(evidences, log_leave, log_survival, boundaries, after, left):
    """Fill ``after`` and ``left`` from the last boundary but one, as ``segmentation._backward`` does."""
    n, longest = evidences.shape
    for place in range(len(boundaries) - 2, -1, -1):
        i = boundaries[place]
        width = min(longest, n - i)
        top = -math.inf
        for m in range(width):
            top = max(top, evidences[i, m] + left[i + 1 + m])
        total = 0.0
        if top > -math.inf:
            for m in range(width):
                total += math.exp(evidences[i, m] + left[i + 1 + m] - top)
            after[i] = top + math.log(total) - log_survival[i]
        left[i] = after[i] + log_leave[i] + log_survival[max(i - 1, 0)]


@kernel
def slide(block):
    """Call :func:`_slide`; the block has longest, n_starts, U, beta, y, x, z, out."""
    U, beta, y = (
        matrix(block[2], block[3], block[4]),
        vector(block[5], block[6]),
        vector(block[7], block[8]),
    )
    x, z, out = (
        vector(block[9], block[10]),
        vector(block[11], block[12]),
        matrix(block[13], block[14], block[15]),
    )
    _slide(U, beta, y, block[0], block[1], x, z, out)


@kernel
def forward(block):
    """Call :func:`_forward`; the block has its arguments in their order."""
    evidences, log_enter = matrix(block[0], block[1], block[2]), vector(block[3], block[4])
    log_survival, boundaries = vector(block[5], block[6]), integers(block[7], block[8])
    _forward(
        evidences,
        log_enter,
        log_survival,
        boundaries,
        vector(block[9], block[10]),
        vector(block[11], block[12]),
    )


@kernel
def backward(block):
    """Call :func:`_backward`; the block has its arguments in their order."""
    evidences, log_leave = matrix(block[0], block[1], block[2]), vector(block[3], block[4])
    log_survival, boundaries = vector(block[5], block[6]), integers(block[7], block[8])
    _backward(
        evidences,
        log_leave,
        log_survival,
        boundaries,
        vector(block[9], block[10]),
        vector(block[11], block[12]),
    )
