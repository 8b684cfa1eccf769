# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""A Cholesky factor that slides along ordered rows, in compiled code. Needs numba.

Without its first row, the matrix ``L L'`` of a window has the factor of ``L22 L22' + l21 l21'``: an update of rank one, by
rotations, which are as stable as factorising. ``beta = L^-1 y`` is rotated along. One more row at the end is one more row of the factor.
Both take n^2 multiplications where factorising anew takes n^3 / 3.
"""

from __future__ import annotations

import math

from numba import njit

__all__ = ["slide"]

LOG_2PI = math.log(2.0 * math.pi)


@njit(fastmath={"contract"}, nogil=True, cache=True)
def _rotate(row, x, z, cosine, sine, solved):
    """Turn a row of the factor and x against one another, and take the new row's share from z."""
    for i in range(len(row)):
        before, other = row[i], x[i]
        new = cosine * before + sine * other
        row[i] = new
        x[i] = cosine * other - sine * before
        z[i] -= new * solved


@njit(fastmath={"contract"}, nogil=True, cache=True, error_model="numpy")
def slide(U, beta, y, longest, n_starts, x, z, out):
    """Log evidences of all segments of up to ``longest`` rows that begin at one of the first ``n_starts`` rows.

    Rows 0 to ``longest - 1`` of U hold the transposed factor of the first window in their upper triangle, ``beta`` what
    belongs to it. Columns from ``longest`` on hold the covariances, above and on the diagonal. ``x`` and ``z`` have room for a
    row. ``out[s, m - 1]`` is the evidence of the m rows from s on. Not a number from where a factor breaks down.
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
