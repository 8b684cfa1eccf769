# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""The algebra of one leaf GP with a stationary kernel, in compiled code. Needs numba.

Covariances come from :mod:`dsmgp.experts.backends.numba_kernels`, LAPACK from :mod:`dsmgp.linalg.lapack_numba`. Everything is
written into memory that is passed in; of a leaf's matrix only the lower triangle is computed. Arguments that recur:

``at``
    Addresses of LAPACK's functions.
``kind``, ``mean_kind``
    Codes of kernel and mean.
``X``, ``rows``, ``columns``
    All rows, the first row at each distinct input ("point") of the leaf, and the inputs of the kernel.
``members``, ``starts``
    Row numbers of all leaves, and where among ``members`` those of each point of the leaf start (:mod:`dsmgp.experts.points`).
``at_scale``
    Where the output scale stands among the parameters.
``rank``
    Columns of the linear map A of the inputs (:class:`~dsmgp.gp.leaf_kernels.MetricKernel`); zero of a kernel with length scales.
``parameters``
    Length scales, or the entries of A row by row; output scale, parameters of the mean, noise variance.
``known_noise``
    Noise variances of all rows in addition to the leaf's own, or empty.
``row_weights``
    Weights of all rows, or empty where all are one.
``nugget``
    Noise variance of the average of the rows at each point.
``Z``
    Inputs of the leaf divided by the length scales, or mapped by A, (dims, rows).
``spare``
    Memory for two rows of the matrix and one scaled input.
"""

from __future__ import annotations

import math

from dsmgp._util.constants import LOG_2PI
from dsmgp._util.numba_arrays import address, inlined, matrix
from dsmgp.experts.backends.numba_kernels import (
    REORDERED,
    assign,
    copy,
    covariances,
    distances,
    fill_lower,
)
from dsmgp.linalg.jitter import JITTER_RANGE
from dsmgp.linalg.lapack_numba import factorise, invert_factor, solve, solve_rows, square

__all__ = [
    "condition_leaf",
    "dot",
    "evidence",
    "gradient",
    "inverse_diagonal",
    "log_gamma",
    "n_scaled",
    "predict_leaf",
    "prior_mean",
    "scale_at",
    "scale_inputs",
]

# The ladder of linalg.jitter, for compiled code.
LOWEST_JITTER, HIGHEST_JITTER = JITTER_RANGE["float64"]


@inlined
def n_scaled(columns, rank):
    """Number of scaled inputs."""
    return rank if rank > 0 else len(columns)


@inlined
def scale_at(columns, rank):
    """Where the output scale stands among the parameters."""
    return len(columns) * max(rank, 1)


@inlined
def prior_mean(mean_kind, at_scale, x, parameters):
    """Prior mean at one row; its weights follow the output scale."""
    if mean_kind == 0:
        return 0.0
    mean = parameters[-2]
    if mean_kind == 2:
        for k in range(len(x)):
            mean += x[k] * parameters[at_scale + 1 + k]
    return mean


@inlined
def _mapped(X, i, metric, k, d):
    """Coordinate k of d of the image of row i under the linear map of the inputs."""
    total = 0.0
    for c in range(X.shape[1]):
        total += X[i, c] * metric[c * d + k]
    return total


@inlined
def scale_inputs(X, rows, columns, rank, parameters, Z):
    """Write the scaled inputs of a leaf into Z."""
    if rank > 0:
        for k in range(rank):
            for i in range(len(rows)):
                Z[k, i] = _mapped(X, rows[i], parameters, k, rank)
        return
    for k in range(len(columns)):
        for i in range(len(rows)):
            Z[k, i] = X[rows[i], columns[k]] / parameters[k]


@inlined
def _noise_of(known_noise, noise, row):
    """Noise variance of a row."""
    return noise + known_noise[row] if len(known_noise) else noise


@inlined
def _weight_of(row_weights, row):
    """Weight of a row."""
    return row_weights[row] if len(row_weights) else 1.0


@inlined
def _average(y, known_noise, row_weights, noise, members, starts, averages, nugget):
    """Write the average of the rows at each point, weighted by their precisions, and its variance."""
    for i in range(len(averages)):
        first, last = starts[i], starts[i + 1]
        if last == first + 1:
            averages[i] = y[members[first]]
            nugget[i] = _noise_of(known_noise, noise, members[first])
            nugget[i] /= _weight_of(row_weights, members[first])
            continue
        total, precision = 0.0, 0.0
        for j in range(first, last):
            p = _weight_of(row_weights, members[j]) / _noise_of(known_noise, noise, members[j])
            total += p * y[members[j]]
            precision += p
        averages[i] = total / precision
        nugget[i] = 1.0 / precision


@inlined
def condition_leaf(
    at, kind, mean_kind, X, y, known_noise, row_weights, rows, members, starts, at_scale, parameters, Z, K, slopes, averages,
    nugget, residual, alpha, spare
):  # fmt: skip
    """Factorise the covariance matrix of a leaf with scaled inputs Z in K, and solve for its observations.

    Returns the jitter, NaN where even the highest one was not enough. ``slopes`` get the derivatives of the kernel, unless
    empty; ``averages`` the observations at the points, ``residual`` and ``alpha`` these less the prior mean, and
    ``K^-1`` times that.
    """
    n, scale, noise = len(rows), parameters[at_scale], parameters[-1]
    _average(y, known_noise, row_weights, noise, members, starts, averages, nugget)
    for i in range(n):
        residual[i] = averages[i] - prior_mean(mean_kind, at_scale, X[rows[i]], parameters)
    copy(residual, alpha)
    jitter = 0.0
    while math.isfinite(scale + noise) and jitter <= 1.01 * HIGHEST_JITTER * (scale + noise):
        # Filled again for each jitter: a failed factorisation has overwritten it.
        fill_lower(kind, scale, Z, K, slopes, spare)
        for i in range(n):
            K[i, i] = scale + nugget[i] + jitter
        if factorise(at, K):
            solve(at, K, alpha)
            return jitter
        jitter = 10.0 * jitter if jitter > 0.0 else LOWEST_JITTER * (scale + noise)
    return math.nan


@inlined
def log_gamma(x):
    """Logarithm of the gamma function of x > 0, by Stirling's series after a shift (Abramowitz & Stegun 6.1.40)."""
    product = 1.0
    while x < 10.0:
        product *= x
        x += 1.0
    u = 1.0 / (x * x)
    series = 1.0 / 156.0
    series = series * u - 691.0 / 360360.0
    series = series * u + 1.0 / 1188.0
    series = series * u - 1.0 / 1680.0
    series = series * u + 1.0 / 1260.0
    series = series * u - 1.0 / 360.0
    series = series * u + 1.0 / 12.0
    return (x - 0.5) * math.log(x) - x + 0.5 * LOG_2PI + series / x - math.log(product)


@inlined
def evidence(
    L, y, known_noise, row_weights, noise, members, starts, averages, nugget, residual, alpha, scale_rows
):  # fmt: skip
    """Log evidence (R&W eq. 2.30), the weight of the residuals, and their squares ``(y - mean)' K^-1 (y - mean)``.

    With ``scale_rows`` the scale of the leaf is integrated out: see ``Solution.student_evidence`` of the torch backend.
    """
    n, squares, half_log_det = 0.0, 0.0, 0.0
    for j in range(starts[0], starts[len(L)]):
        n += _weight_of(row_weights, members[j])
    for i in range(len(L)):
        squares += residual[i] * alpha[i]
        half_log_det += math.log(L[i, i])
        # The factor of the evidence that does not depend on f.
        if starts[i + 1] > starts[i] + 1 or len(row_weights):
            half_log_det -= 0.5 * math.log(nugget[i])
            for j in range(starts[i], starts[i + 1]):
                v = _noise_of(known_noise, noise, members[j])
                w = _weight_of(row_weights, members[j])
                squares += w * ((y[members[j]] - averages[i]) ** 2 / v)
                half_log_det += w * (0.5 * math.log(v))
    if scale_rows == 0.0:
        return -0.5 * (squares + n * LOG_2PI) - half_log_det, 1.0, squares
    half = 0.5 * scale_rows
    constant = (
        log_gamma(half + 0.5 * n) - log_gamma(half) - 0.5 * n * math.log(scale_rows * math.pi)
    )
    log_evidence = constant - half_log_det - (half + 0.5 * n) * math.log1p(squares / scale_rows)
    return log_evidence, (scale_rows + n) / (scale_rows + squares), squares


@inlined
def gradient(
    at, mean_kind, X, y, known_noise, row_weights, rows, members, starts, at_scale, parameters, K, averages, nugget, residual,
    alpha, jitter, weight, out
):  # fmt: skip
    """Write the gradient of the log evidence by the parameters from the output scale on.

    K holds the factor, and is overwritten by the inverse; ``weight`` is that of :func:`evidence`. With
    ``W = weight alpha alpha' - K^-1`` (R&W eq. 5.9).
    """
    n = len(rows)
    invert_factor(at, K)
    square(at, K)
    squares, tr_W_noise, by_noise = 0.0, 0.0, 0.0
    for i in range(n):
        w = weight * alpha[i] * alpha[i] - K[i, i]
        squares += residual[i] * alpha[i]
        tr_W_noise += w * (nugget[i] + jitter)
        if starts[i + 1] == starts[i] + 1 and not len(row_weights):
            by_noise += w
        else:
            by_noise += _by_shared_noise(
                y, known_noise, row_weights, parameters[-1], members, starts[i], starts[i + 1], averages[i], nugget[i], w,
                weight * alpha[i], weight,
            )  # fmt: skip
    # tr(W (K + noise)) is weight residual' alpha - n, which saves a pass over the matrix.
    out[at_scale] = 0.5 * (weight * squares - n - tr_W_noise) / parameters[at_scale]
    if mean_kind > 0:
        assign(out[at_scale + 1 : -1], 0.0)
        for i in range(n):
            out[-2] += weight * alpha[i]
            if mean_kind == 2:
                for k in range(X.shape[1]):
                    out[at_scale + 1 + k] += weight * alpha[i] * X[rows[i], k]
    out[-1] = 0.5 * by_noise


@inlined
def _by_shared_noise(
    y, known_noise, row_weights, noise, members, first, last, average, nugget, w, weighted_alpha, weight
):  # fmt: skip
    """Twice the derivative of the log evidence by the noise, of a point with several observations; ``w`` is its entry of W.

    The average, its variance and the factor of the evidence without f depend on the noise: see
    :meth:`dsmgp.experts.points.Observations.noise_gradient`.
    """
    by_variance, by_average, of_rows = 0.0, 0.0, 0.0
    for j in range(first, last):
        p = 1.0 / _noise_of(known_noise, noise, members[j])
        away, copies = y[members[j]] - average, _weight_of(row_weights, members[j])
        by_variance += copies * (p * p)
        by_average -= copies * (p * p * away)
        of_rows += copies * (weight * (p * away) ** 2 - p)
    by_variance *= nugget * nugget
    return (w + 1.0 / nugget) * by_variance - 2.0 * weighted_alpha * nugget * by_average + of_rows


@inlined
def inverse_diagonal(at, L, out):
    """Write the diagonal of ``(L L')^-1``; L is overwritten by its inverse."""
    invert_factor(at, L)
    assign(out, 0.0)
    for i in range(len(L)):
        for j in range(i + 1):
            out[j] += L[i, j] * L[i, j]


@inlined(fastmath=REORDERED)
def dot(a, b, n):
    """Dot product of the first n entries."""
    total = 0.0
    for i in range(n):
        total += a[i] * b[i]
    return total


@inlined
def predict_leaf(
    at, kind, mean_kind, X, rows, columns, rank, parameters, alpha, L, stride, tests, means, variances, features,
    single_features, memory, tile,
):  # fmt: skip
    """Predict mean of f at test rows, and its variance unless that array is empty (R&W algorithm 2.1).

    ``L`` is the address of the factor, ``stride`` the number of elements from row to row; ``tile`` test rows are
    predicted at a time. ``features`` (tests, r) and the same in single precision, unless empty, get the covariances with
    the first r points.
    """
    d, n, at_scale = n_scaled(columns, rank), len(rows), scale_at(columns, rank)
    scale = parameters[at_scale]
    for t in range(len(tests)):
        means[t] = prior_mean(mean_kind, at_scale, tests[t], parameters)
    assign(variances, scale)
    if not n:
        return
    at_memory = address(memory)
    Z, spare = matrix(at_memory, d, n), memory[d * n : (d + 2) * n]
    cross = matrix(at_memory + 8 * (d + 2) * n, tile, n)
    x = memory[(d + 2 + tile) * n : (d + 2 + tile) * n + d]
    scale_inputs(X, rows, columns, rank, parameters, Z)
    for first in range(0, len(tests), tile):
        m = min(tile, len(tests) - first)
        for t in range(m):
            for k in range(d):
                if rank > 0:
                    x[k] = _mapped(tests, first + t, parameters, k, d)
                else:
                    x[k] = tests[first + t, columns[k]] / parameters[k]
            distances(Z, x, n, spare)
            covariances(kind, scale, spare, n, cross[t], spare[n:])
            means[first + t] += dot(cross[t], alpha, n)
            if len(features):
                copy(cross[t], features[first + t])
            if len(single_features):
                copy(cross[t], single_features[first + t])
        if len(variances):
            solve_rows(at, L, stride, cross, m)
            for t in range(m):
                variances[first + t] = max(scale - dot(cross[t], cross[t], n), 0.0)
