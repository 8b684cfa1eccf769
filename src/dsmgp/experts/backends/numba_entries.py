# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""Kernels that work through many leaves: evidence with gradient, prediction. Needs numba.

:mod:`dsmgp.experts.backends.numba_leaves` calls them, with arguments in the order in which each unpacks its block; :mod:`dsmgp.experts.backends.numba_leaf`
has the algebra of one leaf and says what the arguments are.
"""

from __future__ import annotations

import math

from dsmgp._util.numba_arrays import (
    address,
    as_number,
    integers,
    kernel,
    matrix,
    singles,
    vector,
)
from dsmgp.experts.backends.numba_kernels import (
    assign,
    copy,
    pull_back,
    pull_back_map,
    slope_factor,
)
from dsmgp.experts.backends.numba_leaf import (
    condition_leaf,
    evidence,
    gradient,
    inverse_diagonal,
    n_scaled,
    predict_leaf,
    scale_at,
    scale_inputs,
)

__all__ = ["evaluate_leaves", "predict_leaves"]


@kernel
def evaluate_leaves(block):
    """Evaluate leaf after leaf.

    Written are log evidence, ``residual' alpha`` and jitter of each leaf, alpha (rows), and of the others those that are
    not empty: gradients (leaves, parameters), the diagonal of ``K^-1`` (rows), factors (elements).
    """
    kind, mean_kind, rank, scale_rows = block[0], block[1], block[2], as_number(block[3])
    at, X, y = (
        integers(block[4], block[5]),
        matrix(block[6], block[7], block[8]),
        vector(block[9], block[10]),
    )
    known_noise, row_weights = vector(block[11], block[12]), vector(block[13], block[14])
    rows, ends = integers(block[15], block[16]), integers(block[17], block[18])
    members, starts = integers(block[19], block[20]), integers(block[21], block[22])
    columns, kernel_parameters = (
        integers(block[23], block[24]),
        matrix(block[25], block[26], block[27]),
    )
    memory, log_evidence = vector(block[28], block[29]), vector(block[30], block[31])
    squares, jitters = vector(block[32], block[33]), vector(block[34], block[35])
    gradients, alphas = matrix(block[36], block[37], block[38]), vector(block[39], block[40])
    diagonals, factors = vector(block[41], block[42]), vector(block[43], block[44])

    d, at_scale, place, at_memory = n_scaled(columns, rank), scale_at(columns, rank), 0, block[28]
    for leaf in range(len(ends) - 1):
        first, last = ends[leaf], ends[leaf + 1]
        leaf_rows, n = rows[first:last], last - first
        parameters = kernel_parameters[leaf if len(kernel_parameters) > 1 else 0]
        log_evidence[leaf] = squares[leaf] = jitters[leaf] = 0.0
        if len(gradients):
            assign(gradients[leaf], 0.0)
        if not n:
            continue
        a = n * n
        b = a + (n * (n - 1) // 2 if len(gradients) else 0)
        c = b + d * n
        K, slopes, Z = matrix(at_memory, n, n), memory[a:b], matrix(at_memory + 8 * b, d, n)
        residual, alpha = memory[c : c + n], memory[c + n : c + 2 * n]
        averages, nugget = memory[c + 2 * n : c + 3 * n], memory[c + 3 * n : c + 4 * n]
        spare = memory[c + 4 * n : c + 6 * n + d]
        # Members of this leaf from its first on; its starts count from there.
        leaf_starts = starts[first : last + 1]
        scale_inputs(X, leaf_rows, columns, rank, parameters, Z)
        jitters[leaf] = jitter = condition_leaf(
            at, kind, mean_kind, X, y, known_noise, row_weights, leaf_rows, members, leaf_starts, at_scale, parameters, Z, K,
            slopes, averages, nugget, residual, alpha, spare,
        )  # fmt: skip
        if math.isnan(jitter):
            log_evidence[leaf] = squares[leaf] = math.nan
            if len(gradients):
                assign(gradients[leaf], math.nan)
            continue
        log_evidence[leaf], weight, squares[leaf] = evidence(
            K, y, known_noise, row_weights, parameters[-1], members, leaf_starts, averages, nugget, residual, alpha,
            scale_rows,
        )  # fmt: skip
        copy(alpha, alphas[first:last])
        if len(factors):
            for i in range(n):
                copy(K[i], factors[place : place + i + 1])
                assign(factors[place + i + 1 : place + n], 0.0)
                place += n
        if len(diagonals):
            inverse_diagonal(at, K, diagonals[first:last])
        if len(gradients):
            by_parameter = gradients[leaf]
            H = matrix(at_memory + 8 * (c + 6 * n + d), rank, n)
            gradient(
                at, mean_kind, X, y, known_noise, row_weights, leaf_rows, members, leaf_starts, at_scale, parameters, K,
                averages, nugget, residual, alpha, jitter, weight, by_parameter,
            )  # fmt: skip
            pull_back(Z, K, slopes, alpha, weight, spare, H, by_parameter)
            factor = 2.0 * slope_factor(kind)
            if rank > 0:
                pull_back_map(X, leaf_rows, H, -factor, spare, by_parameter)
            else:
                for k in range(d):
                    by_parameter[k] *= factor / parameters[k]


@kernel
def predict_leaves(block):
    """Predict by leaf after leaf."""
    kind, mean_kind, rank, tile = block[0], block[1], block[2], block[3]
    at, X = integers(block[4], block[5]), matrix(block[6], block[7], block[8])
    rows, ends, columns = (
        integers(block[9], block[10]),
        integers(block[11], block[12]),
        integers(block[13], block[14]),
    )
    kernel_parameters, alpha = matrix(block[15], block[16], block[17]), vector(block[18], block[19])
    addresses, strides = integers(block[20], block[21]), integers(block[22], block[23])
    tests, test_ends = matrix(block[24], block[25], block[26]), integers(block[27], block[28])
    means, variances, memory = (
        vector(block[29], block[30]),
        vector(block[31], block[32]),
        vector(block[33], block[34]),
    )
    features = matrix(block[35], block[36], block[37])
    single_features = singles(block[38], block[39], block[40])
    for leaf in range(len(ends) - 1):
        a, b, first, last = ends[leaf], ends[leaf + 1], test_ends[leaf], test_ends[leaf + 1]
        of_leaf = matrix(address(tests) + 8 * first * tests.shape[1], last - first, tests.shape[1])
        predict_leaf(
            at, kind, mean_kind, X, rows[a:b], columns, rank,
            kernel_parameters[leaf if len(kernel_parameters) > 1 else 0], alpha[a:b], addresses[leaf], strides[leaf], of_leaf,
            means[first:last], variances[first:last] if len(variances) else variances, features,
            single_features, memory, tile,
        )  # fmt: skip
