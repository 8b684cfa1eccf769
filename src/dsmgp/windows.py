"""Log evidences of all segments of ordered rows, up to a longest length.

One factor per start gives the evidence of every segment that begins there, by cumulative sums (:mod:`dsmgp.prefixes`).
In compiled code the factor of one start is made from that of the start before (:mod:`dsmgp.sliding`); without it every
start has a factorisation of its own, which is also what the compiled code is tested against.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor

from dsmgp.execution import Threads, has_numba
from dsmgp.prefixes import BoundLaw, Prefixes, covariance_of, prior_mean

__all__ = ["segment_evidences"]

Array = NDArray[np.float64]
# The fewest starts that share one covariance matrix.
LEAST_STARTS = 64


def segment_evidences(
    law: BoundLaw, X: Tensor, y: Array, noise: Array, longest: int, compiled: bool | None = None
) -> Array:
    """``out[i, m - 1]``: log evidence of the m rows from i on; minus infinity beyond the last row.

    Not a number where a matrix has no factor.
    """
    n = len(y)
    longest = min(longest, n)
    step = max(LEAST_STARTS, min(longest, -(-n // 4)))
    pieces = [(first, min(first + step, n)) for first in range(0, n, step)]
    out = np.full((n, longest), -np.inf)
    work = _slide if (has_numba() if compiled is None else compiled) else _one_by_one
    Threads().map(partial(work, law, X, y, noise, longest, out), pieces)
    return out


def _slide(
    law: BoundLaw,
    X: Tensor,
    y: Array,
    noise: Array,
    longest: int,
    out: Array,
    piece: tuple[int, int],
) -> None:
    from dsmgp.sliding import slide

    first, after = piece
    rows = slice(first, min(after - 1 + longest, len(y)))
    part = X[rows]
    residual = np.ascontiguousarray(y[rows] - prior_mean(law, part))
    U = np.ascontiguousarray(covariance_of(law, part, noise[rows]))
    w = min(longest, len(U))
    try:
        L = np.linalg.cholesky(U[:w, :w])
    except np.linalg.LinAlgError:
        out[first:after] = np.nan
        return
    beta = np.zeros(len(U))
    beta[:w] = solve_triangular(L, residual[:w], lower=True, check_finite=False)
    U[:w, :w] = L.T
    spare = np.empty((2, len(U)))
    slide(U, beta, residual, longest, after - first, spare[0], spare[1], out[first:after])


def _one_by_one(
    law: BoundLaw,
    X: Tensor,
    y: Array,
    noise: Array,
    longest: int,
    out: Array,
    piece: tuple[int, int],
) -> None:
    for start in range(*piece):
        rows = slice(start, start + longest)
        found = Prefixes(law, X[rows], y[rows], noise[rows]).log_evidence
        out[start, : len(found)] = found
