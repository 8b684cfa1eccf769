# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""Stationary ARD kernels between pairs of rows, and their gradient, in compiled code. Needs numba.

The counterpart of :mod:`dsmgp.gp.kernels`. Distances are summed over differences, not expanded into a product, and so
are right for rows that almost coincide. So is the gradient: with the strict lower triangle T of ``W * (-dk/dr2)``,
``W = 2 dL/dK = weight alpha alpha' - K^-1`` (R&W eq. 5.9) and ``z = x / lengthscale``,

    dL / d log lengthscale_d = 2 sum_ij T_ij (z_id - z_jd)^2.

A linear map A of the inputs replaces the length scales in :class:`~dsmgp.gp.leaf_kernels.MetricKernel`. With ``z = A' x`` and the
symmetric S that has T below its diagonal,

    dL / dA = -2 sum_i x_i h_i',    h_i = sum_j S_ij (z_i - z_j).
"""

from __future__ import annotations

import math

from numba import njit

from dsmgp._util.numba_arrays import as_bits, as_number, inlined

__all__ = [
    "REORDERED",
    "assign",
    "copy",
    "covariances",
    "distances",
    "exp",
    "fill_lower",
    "pull_back",
    "pull_back_map",
    "slope_factor",
]

# Products may be contracted with sums; the order of sums may change only in sums over pairs.
EXACT = {"contract"}
REORDERED = {"contract", "reassoc", "nsz"}


@njit(fastmath=EXACT, inline="always", _nrt=False)
def exp(x):
    """Exponential of x <= 0, to about an ulp, in operations that are vectorised.

    The library's function is called for one number at a time, and takes several times as long.
    """
    x = x if x > -708.0 else -708.0
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # adding 1.5 * 2^52 rounds to an integer
    k = shifted - 6755399441055744.0
    r = x - k * 0.693145751953125  # ln 2 in two parts
    r = r - k * 1.42860682030941723212e-6
    p = 1.6059043836821613e-10  # 1/13!, 1/12!, ... for |r| <= ln(2) / 2
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * as_number((as_bits(shifted) + 1023) << 52)  # times 2^k


# The same as assignments to a slice, which take seconds more to compile.
@inlined
def assign(a, value):
    for i in range(len(a)):
        a[i] = value


@inlined
def copy(source, target):
    for i in range(len(target)):
        target[i] = source[i]


@inlined(fastmath=EXACT)
def distances(Z, x, n, r2):
    """Squared distances of the point x from the first n points of Z (dims, points)."""
    # By fours, so that r2 is read and written once for four dimensions; those beyond a multiple of four first.
    d = len(x)
    k = d % 4
    if k == 0:
        assign(r2[:n], 0.0)
    elif k == 1:
        x0, Z0 = x[0], Z[0]
        for j in range(n):
            a = x0 - Z0[j]
            r2[j] = a * a
    elif k == 2:
        x0, x1, Z0, Z1 = x[0], x[1], Z[0], Z[1]
        for j in range(n):
            a, b = x0 - Z0[j], x1 - Z1[j]
            r2[j] = a * a + b * b
    else:
        x0, x1, x2, Z0, Z1, Z2 = x[0], x[1], x[2], Z[0], Z[1], Z[2]
        for j in range(n):
            a, b, c = x0 - Z0[j], x1 - Z1[j], x2 - Z2[j]
            r2[j] = a * a + b * b + c * c
    while k < d:
        x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
        Z0, Z1, Z2, Z3 = Z[k], Z[k + 1], Z[k + 2], Z[k + 3]
        for j in range(n):
            a, b, c, e = x0 - Z0[j], x1 - Z1[j], x2 - Z2[j], x3 - Z3[j]
            r2[j] += a * a + b * b + c * c + e * e
        k += 4


@inlined(fastmath=EXACT)
def covariances(kind, scale, r2, n, k, slope):
    """Write covariances of f at n squared distances, and -dk/dr2 (but for :func:`slope_factor`)."""
    if kind == 0:
        for j in range(n):
            decay = scale * exp(-0.5 * r2[j])
            slope[j] = decay
            k[j] = decay
    elif kind == 1:
        for j in range(n):
            r = math.sqrt(r2[j])
            decay = scale * exp(-r)
            slope[j] = decay / r if r > 0.0 else 0.0  # a pair that coincides has no slope
            k[j] = decay
    elif kind == 2:
        for j in range(n):
            a = math.sqrt(3.0 * r2[j])
            decay = scale * exp(-a)
            slope[j] = decay
            k[j] = decay + a * decay
    else:
        for j in range(n):
            a2 = 5.0 * r2[j]
            a = math.sqrt(a2)
            decay = scale * exp(-a)
            linear = decay + a * decay
            slope[j] = linear
            k[j] = linear + a2 * decay * (1.0 / 3.0)


@inlined
def slope_factor(kind):
    """Constant factor of -dk/dr2 that :func:`covariances` leaves out."""
    return 0.5 if kind < 2 else 1.5 if kind == 2 else 5.0 / 6.0


@inlined(fastmath=EXACT)
def fill_lower(kind, scale, Z, K, slopes, spare):
    """Write covariances of f into the strict lower triangle of K.

    ``slopes`` get -dk/dr2, row after row, unless empty; ``spare`` is memory for two rows and a point.
    """
    d, n = Z.shape
    x = spare[2 * n : 2 * n + d]
    at = 0
    for i in range(n):
        for k in range(d):
            x[k] = Z[k, i]
        distances(Z, x, i, spare)
        slope = slopes[at : at + i] if len(slopes) else spare[n : 2 * n]
        at += i
        covariances(kind, scale, spare, i, K[i], slope)


@inlined(fastmath=REORDERED)
def pull_back(Z, inverse, slopes, alpha, weight, spare, H, out):
    """Sums of ``(weight alpha alpha' - inverse) * slope * (z_i - z_j)^2`` over pairs, by dimension.

    If H (dims, points) has entries, it gets the sums of ``... * (z_i - z_j)`` over j instead, by dimension and point.
    """
    d, n = Z.shape
    assign(out[:d], 0.0)
    for k in range(len(H)):
        assign(H[k], 0.0)
    at = 0
    for i in range(n):
        slope, row, weighted = slopes[at : at + i], inverse[i], weight * alpha[i]
        at += i
        for j in range(i):
            spare[j] = slope[j] * (weighted * alpha[j] - row[j])
        for k in range(len(H)):
            x0, Z0, h, s0 = Z[k, i], Z[k], H[k], 0.0
            for j in range(i):
                a = spare[j] * (x0 - Z0[j])
                h[j] -= a
                s0 += a
            h[i] = s0
        k = len(H)
        while k + 4 <= d:
            x0, x1, x2, x3 = Z[k, i], Z[k + 1, i], Z[k + 2, i], Z[k + 3, i]
            Z0, Z1, Z2, Z3 = Z[k], Z[k + 1], Z[k + 2], Z[k + 3]
            s0 = s1 = s2 = s3 = 0.0
            for j in range(i):
                t = spare[j]
                a, b, c, e = x0 - Z0[j], x1 - Z1[j], x2 - Z2[j], x3 - Z3[j]
                s0 += t * (a * a)
                s1 += t * (b * b)
                s2 += t * (c * c)
                s3 += t * (e * e)
            out[k] += s0
            out[k + 1] += s1
            out[k + 2] += s2
            out[k + 3] += s3
            k += 4
        while k < d:
            x0, Z0, s0 = Z[k, i], Z[k], 0.0
            for j in range(i):
                a = x0 - Z0[j]
                s0 += spare[j] * (a * a)
            out[k] += s0
            k += 1


@inlined(fastmath=REORDERED)
def pull_back_map(X, rows, H, factor, spare, out):
    """Write ``factor * sum_i x_i h_i'``, (inputs, dims), row by row into a vector."""
    d, n = H.shape
    for c in range(X.shape[1]):
        for i in range(n):
            spare[i] = X[rows[i], c]
        for k in range(d):
            h, total = H[k], 0.0
            for i in range(n):
                total += spare[i] * h[i]
            out[c * d + k] = factor * total
