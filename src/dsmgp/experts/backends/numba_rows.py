# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""Predictions of few rows by the leaves that they reach, in one compiled call. Needs numba.

A call of BLAS for one row has to be kept from starting threads, and a large leaf is read from memory once for every row anyway: the products here are
loops, on the calling thread. Any number of threads may call at once, and each gets the same answers.
"""

from __future__ import annotations

import numpy as np

from dsmgp._util.numba_arrays import address, inlined, integers, kernel, matrix, singles, vector
from dsmgp.experts.backends.numba_kernels import REORDERED, covariances, distances
from dsmgp.experts.backends.numba_leaf import dot, prior_mean

__all__ = ["predict_rows"]

# Entries of a leaf in the table of :class:`dsmgp.experts.row_table.RowTable`.
(
    _KIND, _MEAN_KIND, _POINTS, _COLUMNS, _PARAMETERS, _RANK, _AT_COLUMNS, _AT_PARAMETERS, _AT_Z, _AT_ALPHA, _AT_FACTOR, _STRIDE
) = range(12)  # fmt: skip


@inlined(fastmath=REORDERED)
def _explained_by_pivots(W, c):
    """``|W c|^2`` with a lower triangular W in single precision."""
    total = 0.0
    for i in range(len(c)):
        row, s = W[i], np.float32(0.0)
        for j in range(i + 1):
            s += row[j] * c[j]
        total += np.float64(s) * np.float64(s)
    return total


@inlined
def _explained(L, k):
    """``|L^-1 k|^2``; k is overwritten."""
    total = 0.0
    for i in range(len(k)):
        z = (k[i] - dot(L[i], k, i)) / L[i, i]
        k[i] = z
        total += z * z
    return total


@kernel
def predict_rows(block):
    """Write mean and variance of f at each test row by the leaves that it reaches.

    The block has, in this order:

    table : ndarray of shape (n_leaves, n_fields)
        Sizes and addresses, in the order of :data:`dsmgp.experts.row_table.FIELDS`. A rank of zero stands for exact variances.
    leaves : ndarray of shape (n_rows, n_reached)
        Numbers of the leaves; -1 for none.
    tests : ndarray of shape (n_rows, n_dims)
    with_variance : int
    n_most : int
        Points of the largest leaf.
    memory : ndarray
        Of four numbers for each point of the largest leaf, and a test row.
    means, variances : ndarray of shape (n_rows, n_reached)
    """
    n_fields, n_reached = block[2], block[5]
    table, leaves = (
        integers(block[0], block[1] * n_fields),
        integers(block[3], block[4] * n_reached),
    )
    tests, with_variance, n_most = matrix(block[6], block[7], block[8]), block[9], block[10]
    memory = vector(block[11], block[12])
    means, variances = (
        matrix(block[13], block[14], block[15]),
        matrix(block[16], block[17], block[18]),
    )
    spare, k = memory[: 2 * n_most], memory[2 * n_most : 3 * n_most]
    slope, x = memory[3 * n_most : 4 * n_most], memory[4 * n_most :]
    single = singles(address(slope), 1, 2 * n_most)[0]
    for t in range(len(tests)):
        for c in range(n_reached):
            leaf = leaves[t * n_reached + c]
            if leaf < 0:
                continue
            of = table[leaf * n_fields : (leaf + 1) * n_fields]
            n, d, rank = of[_POINTS], of[_COLUMNS], of[_RANK]
            columns = integers(of[_AT_COLUMNS], d)
            parameters = vector(of[_AT_PARAMETERS], of[_PARAMETERS])
            scale = parameters[d]
            mean = prior_mean(of[_MEAN_KIND], d, tests[t], parameters)
            explained = 0.0
            if n > 0:
                Z, alpha = matrix(of[_AT_Z], d, n), vector(of[_AT_ALPHA], n)
                for i in range(d):
                    x[i] = tests[t, columns[i]] / parameters[i]
                distances(Z, x[:d], n, spare)
                covariances(of[_KIND], scale, spare, n, k, slope)
                mean += dot(k, alpha, n)
                if with_variance:
                    if rank > 0:
                        for i in range(rank):
                            single[i] = k[i]
                        W = singles(of[_AT_FACTOR], rank, of[_STRIDE])
                        explained = _explained_by_pivots(W, single[:rank])
                    else:
                        explained = _explained(matrix(of[_AT_FACTOR], n, of[_STRIDE]), k[:n])
            means[t, c] = mean
            variances[t, c] = max(scale - explained, 0.0)
