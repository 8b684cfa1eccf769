# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""Predictions of few rows by the leaves that they reach, in one compiled call. Needs numba.

A call of BLAS for one row has to be kept from starting threads, and a large leaf is read from memory once for every row anyway: the products here are
loops, on the calling thread. Any number of threads may call at once, and each gets the same answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from dsmgp.experts.numba_kernels import REORDERED, covariances, distances
from dsmgp.experts.numba_leaf import _dot, _prior_mean

__all__ = ["FIELDS", "predict_rows"]

#: Entries of a leaf in the table of :class:`dsmgp.experts.row_table.RowTable`.
FIELDS = (
    "kind", "mean_kind", "n_points", "n_columns", "n_parameters", "rank", "columns", "parameters", "Z", "alpha", "factor", "stride",
)  # fmt: skip
(
    _KIND, _MEAN_KIND, _POINTS, _COLUMNS, _PARAMETERS, _RANK, _AT_COLUMNS, _AT_PARAMETERS, _AT_Z, _AT_ALPHA, _AT_FACTOR, _STRIDE
) = range(12)  # fmt: skip


def _pointer(kind: Any) -> Any:
    @intrinsic
    def as_pointer(context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), build

    return as_pointer


_doubles, _singles, _integers = map(_pointer, (types.float64, types.float32, types.int64))


@njit(fastmath=REORDERED, nogil=True, cache=True)
def _explained_by_pivots(W, c):
    """``|W c|^2`` with a lower triangular W in single precision."""
    total = 0.0
    for i in range(len(c)):
        row, s = W[i], np.float32(0.0)
        for j in range(i + 1):
            s += row[j] * c[j]
        total += np.float64(s) * np.float64(s)
    return total


@njit(nogil=True, cache=True)
def _explained(L, k):
    """``|L^-1 k|^2``; k is overwritten."""
    total = 0.0
    for i in range(len(k)):
        z = (k[i] - _dot(L[i], k, i)) / L[i, i]
        k[i] = z
        total += z * z
    return total


@njit(nogil=True, cache=True)
def predict_rows(table, leaves, tests, with_variance, memory, means, variances):
    """Write mean and variance of f at each test row by the leaves that it reaches.

    Parameters
    ----------
    table : ndarray of shape (n_leaves, n_fields)
        Sizes and addresses, in the order of :data:`FIELDS`. A rank of zero stands for exact variances.
    leaves : ndarray of shape (n_rows, n_reached)
        Numbers of the leaves; -1 for none.
    tests : ndarray of shape (n_rows, n_dims)
    memory : ndarray
        Of four numbers for each point of the largest leaf.
    means, variances : ndarray of shape (n_rows, n_reached)
    """
    n_most = len(memory) // 4
    spare, k, slope = memory[: 2 * n_most], memory[2 * n_most : 3 * n_most], memory[3 * n_most :]
    single = slope.view(np.float32)
    x = np.empty(tests.shape[1])
    for t in range(len(tests)):
        for c in range(leaves.shape[1]):
            if leaves[t, c] < 0:
                continue
            of = table[leaves[t, c]]
            n, d, rank = of[_POINTS], of[_COLUMNS], of[_RANK]
            columns = carray(_integers(of[_AT_COLUMNS]), (d,))
            parameters = carray(_doubles(of[_AT_PARAMETERS]), (of[_PARAMETERS],))
            scale = parameters[d]
            mean = _prior_mean(of[_MEAN_KIND], d, tests[t], parameters)
            explained = 0.0
            if n > 0:
                Z = carray(_doubles(of[_AT_Z]), (d, n))
                alpha = carray(_doubles(of[_AT_ALPHA]), (n,))
                for i in range(d):
                    x[i] = tests[t, columns[i]] / parameters[i]
                distances(Z, x[:d], n, spare)
                covariances(of[_KIND], scale, spare, n, k, slope)
                mean += _dot(k, alpha, n)
                if with_variance:
                    if rank > 0:
                        for i in range(rank):
                            single[i] = k[i]
                        W = carray(_singles(of[_AT_FACTOR]), (rank, of[_STRIDE]))
                        explained = _explained_by_pivots(W, single[:rank])
                    else:
                        L = carray(_doubles(of[_AT_FACTOR]), (n, of[_STRIDE]))
                        explained = _explained(L, k[:n])
            means[t, c] = mean
            variances[t, c] = max(scale - explained, 0.0)
