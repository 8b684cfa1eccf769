# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""GP leaves with a stationary ARD kernel, many in one compiled call: evidence, gradient, conditioning, prediction.

Needs numba. A call works through its leaves without the interpreter, so calls on several threads run side
by side. Only the lower triangle of a leaf's matrix is ever computed, in place, in memory that its thread
keeps; covariances come from :mod:`dsmgp.pairwise`, LAPACK from :mod:`dsmgp.fortran`.

Leaves are given by the numbers of their rows in X, one leaf after the other, and ``ends``, where each starts
and the last ends. float64 only; a kind other than those in :data:`KINDS` is not computed here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dsmgp import lapack
from dsmgp.fortran import factorise, invert_factor, solve, solve_rows, square
from dsmgp.machine import cache_numbers
from dsmgp.pairwise import (
    KINDS,
    REORDERED,
    assign,
    copy,
    covariances,
    distances,
    fill_lower,
    pull_back,
    slope_factor,
)
from dsmgp.ragged import Ragged

__all__ = [
    "KINDS",
    "Evaluated",
    "Leaves",
    "condition",
    "fill",
    "log_evidence_and_gradient",
    "predict",
]

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

MEANS = {"zero": 0, "constant": 1, "linear": 2}
LOG_2PI = math.log(2.0 * math.pi)
# Jitter is raised tenfold from the first of these to the last, times the matrix's mean diagonal.
LOWEST_JITTER, HIGHEST_JITTER = 1e-12, 1e-4
# The fewest test rows of a tile; more as long as what is between them and the training rows fits in a core's cache.
TILE_ROWS = 256
# Numbers that a thread keeps room for: 64 MB.
MOST_HELD = 2**23


@njit(nogil=True, cache=True)
def _prior_mean(mean_kind, d, x, natural):
    """The natural vector is length-scales, output scale, the mean's parameters, noise."""
    if mean_kind == 0:
        return 0.0
    mean = natural[-2]
    if mean_kind == 2:
        for k in range(len(x)):
            mean += x[k] * natural[d + 1 + k]
    return mean


@njit(nogil=True, cache=True)
def _gather(X, rows, columns, natural, Z):
    for k in range(len(columns)):
        for i in range(len(rows)):
            Z[k, i] = X[rows[i], columns[k]] / natural[k]


@njit(nogil=True, cache=True)
def _condition(
    at, kind, mean_kind, X, y, known, rows, columns, natural, Z, K, slopes, residual, alpha, spare
):
    """Factorise a leaf's matrix in K and solve for its observations; what was added to its diagonal.

    ``known`` is each row's noise beside the leaf's own, or empty.
    Not a number where even the highest jitter was not enough.
    """
    d, n = Z.shape
    scale, noise = natural[d], natural[-1]
    _gather(X, rows, columns, natural, Z)
    for i in range(n):
        residual[i] = y[rows[i]] - _prior_mean(mean_kind, d, X[rows[i]], natural)
    copy(residual, alpha)
    jitter = 0.0
    while math.isfinite(scale + noise) and jitter <= 1.01 * HIGHEST_JITTER * (scale + noise):
        # Again for each: a failed factor has overwritten it.
        fill_lower(kind, scale, Z, K, 0, slopes, spare)
        for i in range(n):
            K[i, i] = scale + noise + jitter
        _add_known(known, rows, 0, K)
        if factorise(at, K):
            solve(at, K, alpha)
            return jitter
        jitter = 10.0 * jitter if jitter > 0.0 else LOWEST_JITTER * (scale + noise)
    return math.nan


@njit(nogil=True, cache=True)
def _add_known(known, rows, first, K):
    if len(known):
        for i in range(first, len(rows)):
            K[i, i] += known[rows[i]]


@njit(nogil=True, cache=True)
def _fill_noisy(kind, X, known, rows, columns, natural, K, first, memory):
    """Covariances of y in the lower triangle of K, from a first row on."""
    d, n = len(columns), len(rows)
    Z = memory[: d * n].reshape(d, n)
    _gather(X, rows, columns, natural, Z)
    fill_lower(kind, natural[d], Z, K, first, memory[:0], memory[d * n :])
    for i in range(first, n):
        K[i, i] = natural[d] + natural[-1]
    _add_known(known, rows, first, K)


@njit(nogil=True, cache=True)
def _evidence(L, residual, alpha, scale_rows):
    """Log evidence (R&W eq. 2.30), the pull on the residuals, and residual' alpha.

    With ``scale_rows`` the leaf's scale is integrated out: see ``Solution.student``.
    """
    n, fit, logs = len(L), 0.0, 0.0
    for i in range(n):
        fit += residual[i] * alpha[i]
        logs += math.log(L[i, i])
    if scale_rows == 0.0:
        return -0.5 * (fit + n * LOG_2PI) - logs, 1.0, fit
    half = 0.5 * scale_rows
    constant = (
        math.lgamma(half + 0.5 * n) - math.lgamma(half) - 0.5 * n * math.log(scale_rows * math.pi)
    )
    evidence = constant - logs - (half + 0.5 * n) * math.log1p(fit / scale_rows)
    return evidence, (scale_rows + n) / (scale_rows + fit), fit


@njit(nogil=True, cache=True)
def _gradient(
    at, kind, mean_kind, X, known, rows, natural, Z, K, slopes, alpha, spare, nugget, pull, fit, out
):
    """Gradient by the natural vector. K holds the factor, and is overwritten by the inverse."""
    d, n = Z.shape
    invert_factor(at, K)
    square(at, K)
    trace, by_known = 0.0, 0.0
    for i in range(n):
        w = pull * alpha[i] * alpha[i] - K[i, i]
        trace += w
        if len(known):
            by_known += w * known[rows[i]]
    pull_back(Z, K, slopes, alpha, pull, spare, out)
    for k in range(d):
        out[k] *= 2.0 * slope_factor(kind) / natural[k]
    # W * (K + nugget I) sums to pull residual' alpha - n, which saves a pass over the matrix.
    out[d] = 0.5 * (pull * fit - n - nugget * trace - by_known) / natural[d]
    if mean_kind > 0:
        assign(out[d + 1 : -1], 0.0)
        for i in range(n):
            out[-2] += pull * alpha[i]
            if mean_kind == 2:
                for k in range(X.shape[1]):
                    out[d + 1 + k] += pull * alpha[i] * X[rows[i], k]
    out[-1] = 0.5 * trace


@njit(nogil=True, cache=True)
def _inverse_diagonal(at, L, out):
    """Diagonal of ``(L L')^-1``. L is overwritten by its inverse."""
    invert_factor(at, L)
    assign(out, 0.0)
    for i in range(len(L)):
        for j in range(i + 1):
            out[j] += L[i, j] * L[i, j]


@njit(nogil=True, cache=True)
def _evaluate(
    at, kind, mean_kind, scale_rows, X, y, known, rows, ends, columns, naturals, memory,
    evidence, fits, added, gradient, alphas, diagonals, factors,
):  # fmt: skip
    """Every leaf's log evidence, residual' alpha and what was added to its diagonal, and of the rest what is not empty:
    the gradient (leaves, hyperparameters), alpha and the diagonal of K^-1 (rows), all factors (elements)."""
    d, place = len(columns), 0
    for leaf in range(len(ends) - 1):
        first, last = ends[leaf], ends[leaf + 1]
        mine, n = rows[first:last], last - first
        natural = naturals[leaf if len(naturals) > 1 else 0]
        evidence[leaf] = fits[leaf] = added[leaf] = 0.0
        if len(gradient):
            assign(gradient[leaf], 0.0)
        if not n:
            continue
        a = n * n
        b = a + (n * (n - 1) // 2 if len(gradient) else 0)
        c = b + d * n
        K, slopes, Z = memory[:a].reshape(n, n), memory[a:b], memory[b:c].reshape(d, n)
        residual, alpha, spare = (
            memory[c : c + n],
            memory[c + n : c + 2 * n],
            memory[c + 2 * n : c + 4 * n],
        )
        added[leaf] = jitter = _condition(
            at, kind, mean_kind, X, y, known, mine, columns, natural, Z, K, slopes, residual, alpha,
            spare,
        )  # fmt: skip
        if math.isnan(jitter):
            evidence[leaf] = fits[leaf] = math.nan
            if len(gradient):
                assign(gradient[leaf], math.nan)
            continue
        evidence[leaf], pull, fit = _evidence(K, residual, alpha, scale_rows)
        fits[leaf] = fit
        if len(alphas):
            copy(alpha, alphas[first:last])
        if len(factors):
            kept = factors[place : place + n * n].reshape(n, n)
            place += n * n
            for i in range(n):
                copy(K[i], kept[i, : i + 1])
                assign(kept[i, i + 1 :], 0.0)
        if len(diagonals):
            _inverse_diagonal(at, K, diagonals[first:last])
        if len(gradient):
            nugget = natural[-1] + jitter
            _gradient(
                at, kind, mean_kind, X, known, mine, natural, Z, K, slopes, alpha, spare, nugget, pull,
                fit, gradient[leaf],
            )  # fmt: skip


@njit(fastmath=REORDERED, nogil=True, cache=True)
def _dot(a, b, n):
    total = 0.0
    for i in range(n):
        total += a[i] * b[i]
    return total


@njit(nogil=True, cache=True)
def _answer(
    at, kind, mean_kind, X, rows, columns, natural, alpha, L, step, tests, means, variances, memory,
    tile,
):  # fmt: skip
    """Mean of f at test rows, and its variance unless that array is empty (R&W algorithm 2.1)."""
    d, n = len(columns), len(rows)
    for t in range(len(tests)):
        means[t] = _prior_mean(mean_kind, d, tests[t], natural)
    assign(variances, natural[d])
    if not n:
        return
    Z, spare = memory[: d * n].reshape(d, n), memory[d * n : (d + 2) * n]
    cross = memory[(d + 2) * n : (d + 2 + tile) * n].reshape(tile, n)
    x = np.empty(d)
    _gather(X, rows, columns, natural, Z)
    for first in range(0, len(tests), tile):
        m = min(tile, len(tests) - first)
        for t in range(m):
            for k in range(d):
                x[k] = tests[first + t, columns[k]] / natural[k]
            distances(Z, x, n, spare)
            covariances(kind, natural[d], spare, n, cross[t], spare[n:])
            means[first + t] += _dot(cross[t], alpha, n)
        if len(variances):
            solve_rows(at, L, step, cross, m)
            for t in range(m):
                variances[first + t] = max(natural[d] - _dot(cross[t], cross[t], n), 0.0)


@njit(nogil=True, cache=True)
def _answer_all(
    at, kind, mean_kind, X, rows, ends, columns, naturals, alpha, addresses, steps, tests, test_ends,
    means, variances, memory, tile,
):  # fmt: skip
    """:func:`_answer` by leaf after leaf."""
    for leaf in range(len(ends) - 1):
        a, b, first, last = ends[leaf], ends[leaf + 1], test_ends[leaf], test_ends[leaf + 1]
        _answer(
            at, kind, mean_kind, X, rows[a:b], columns, naturals[leaf if len(naturals) > 1 else 0],
            alpha[a:b], addresses[leaf], steps[leaf], tests[first:last], means[first:last],
            variances[first:last] if len(variances) else variances, memory, tile,
        )  # fmt: skip


class Memory(threading.local):
    """What a thread uses again in every call; it grows, but what a very large leaf needs is not kept."""

    def __init__(self) -> None:
        self.held = np.empty(0)

    def take(self, size: int) -> Array:
        if size > MOST_HELD:
            return np.empty(size)
        if len(self.held) < size:
            self.held = np.empty(size)
        return self.held


_memory = Memory()


@dataclass(frozen=True)
class Leaves:
    """Some leaves of one output: their rows in X, and the closed form of their law.

    Parameters
    ----------
    X : array of shape (n_rows, n_dims)
    y : array of shape (n_rows,)
    rows : array of int
        Numbers of the leaves' rows, one leaf after the other.
    ends : array of int, one more than leaves
        Leaf k has ``rows[ends[k]:ends[k + 1]]``.
    columns : array of int
        The inputs that the kernel sees.
    known : array of shape (n_rows,), or empty
        Noise variances known row by row, beside the noise of the law.
    """

    X: Array
    y: Array
    rows: Numbers
    ends: Numbers
    columns: Numbers
    kind: str
    mean_kind: str
    known: Array

    @classmethod
    def of(
        cls,
        X: Array,
        y: Array,
        leaf_rows: Ragged,
        columns: Sequence[int],
        kind: str,
        mean_kind: str,
        known: Array | None = None,
    ) -> Leaves:
        X, y = np.ascontiguousarray(X, np.float64), np.ascontiguousarray(y, np.float64)
        seen = np.asarray(columns, np.int64)
        known = np.empty(0) if known is None else known
        return cls(X, y, leaf_rows.flat, leaf_rows.ends, seen, kind, mean_kind, known)

    @property
    def codes(self) -> tuple[int, int]:
        return KINDS[self.kind], MEANS[self.mean_kind]

    @property
    def largest(self) -> int:
        return int(np.diff(self.ends).max(initial=0))

    def __len__(self) -> int:
        return len(self.ends) - 1


def log_evidence_and_gradient(
    leaves: Leaves, naturals: Array, scale_rows: float | None = None
) -> tuple[Array, Array]:
    """Log evidence of every leaf, and its gradient by the natural vector (leaves, hyperparameters).

    With ``scale_rows`` every leaf has a scale of its own, integrated out.
    """
    gradient = np.empty((len(leaves), naturals.shape[-1]))
    found = _evaluated(leaves, naturals, gradient=gradient, scale_rows=scale_rows or 0.0)
    return found.log_evidence, gradient


@dataclass(frozen=True)
class Evaluated:
    """Leaves that have seen their rows. Arrays over rows lie as ``Leaves.rows`` does.

    ``fit`` is residual' K^-1 residual. ``added`` was put on a leaf's diagonal beside its noise, not a number
    where nothing helped. ``factors`` are lower triangular, leaf after leaf, ``inverse_diagonal`` is that of
    K^-1; empty unless asked for.
    """

    log_evidence: Array
    fit: Array
    added: Array
    alpha: Array
    factors: Array
    inverse_diagonal: Array


def condition(
    leaves: Leaves, naturals: Array, factors: bool = True, leave_out: bool = False
) -> Evaluated:
    """Factorise every leaf. Leave-one-out (R&W eqs. 5.10 to 5.12) needs only the diagonal of K^-1."""
    return _evaluated(leaves, naturals, alpha=True, factors=factors, leave_out=leave_out)


def _evaluated(
    leaves: Leaves,
    naturals: Array,
    gradient: Array | None = None,
    scale_rows: float = 0.0,
    alpha: bool = False,
    factors: bool = False,
    leave_out: bool = False,
) -> Evaluated:
    n, d, sizes = leaves.largest, len(leaves.columns), np.diff(leaves.ends)
    size = n * n + (0 if gradient is None else n * (n - 1) // 2) + (d + 4) * n
    evidence, fits, added = np.empty((3, len(leaves)))
    gradient = np.empty((0, 0)) if gradient is None else gradient
    alphas = np.empty(len(leaves.rows) if alpha else 0)
    diagonals = np.empty(len(leaves.rows) if leave_out else 0)
    elements = np.empty(int(np.square(sizes).sum()) if factors else 0)
    _evaluate(
        lapack.addresses(), *leaves.codes, scale_rows, leaves.X, leaves.y, leaves.known, leaves.rows,
        leaves.ends, leaves.columns, np.atleast_2d(naturals), _memory.take(size),
        evidence, fits, added, gradient, alphas, diagonals, elements,
    )  # fmt: skip
    return Evaluated(evidence, fits, added, alphas, elements, diagonals)


def fill(leaves: Leaves, leaf: int, natural: Array, K: Array, first: int = 0) -> None:
    """Covariances of y at a leaf's rows, into the lower triangle of K: its rows from ``first`` on."""
    rows = leaves.rows[leaves.ends[leaf] : leaves.ends[leaf + 1]]
    memory = _memory.take((len(leaves.columns) + 2) * len(rows))
    _fill_noisy(
        leaves.codes[0], leaves.X, leaves.known, rows, leaves.columns, natural, K, first, memory
    )


def predict(
    leaves: Leaves,
    naturals: Array,
    alpha: Array,
    factors: tuple[Numbers, Numbers] | None,
    tests: Array,
    ends: Numbers,
) -> tuple[Array, Array]:
    """Mean and variance of f at test rows; leaf k is asked at ``tests[ends[k]:ends[k + 1]]``.

    ``alpha`` lies as ``Leaves.rows`` does. Factors come as their addresses and steps from row to row: a leading block
    of a larger one is another type of array, to be compiled for again. Without them there is no variance.
    """
    n, most = leaves.largest, int(np.diff(ends).max(initial=0))
    tile = max(1, min(most, max(TILE_ROWS, cache_numbers() // max(n, 1))))
    means = np.empty(len(tests))
    variances = np.empty(0 if factors is None else len(tests))
    none = np.zeros(len(leaves), np.int64)
    addresses, steps = (none, none) if factors is None else factors
    _answer_all(
        lapack.addresses(), *leaves.codes, leaves.X, leaves.rows, leaves.ends, leaves.columns,
        np.atleast_2d(naturals), alpha, addresses, steps, np.ascontiguousarray(tests), ends, means,
        variances, _memory.take((len(leaves.columns) + 2 + tile) * n), tile,
    )  # fmt: skip
    return means, variances
