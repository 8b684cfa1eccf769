"""A leaf that rows come to and go from: what follows from its rows is kept up to date, at ``O(m^2)`` a row.

New rows extend the factor from below; rows that go are taken out by an orthogonal transformation of what comes after
them. On the CPU, in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor

from dsmgp import lapack
from dsmgp.batched import JITTER, LOG_2PI
from dsmgp.chains import append_rows, remove_rows
from dsmgp.engine import BoundLaw
from dsmgp.execution import as_numpy
from dsmgp.gate import standardised

__all__ = ["Column", "LiveLeaf", "inverse_diagonal"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    """One output of a leaf: factor, ``K^-1 (y - mean)``, the diagonal of ``K^-1``, log evidence."""

    factor: Array
    alpha: Array
    diagonal: Array
    log_evidence: float


@dataclass(frozen=True)
class LiveLeaf:
    """A leaf's rows and all that was computed of them. It never changes: rows that come or go make another one.

    Attributes
    ----------
    ids : ndarray of shape (m,)
        Numbers of its rows.
    X, y, known : ndarray of shape (m, n_dims), (m, n_outputs), (m, n_outputs)
        In the units of the experts; ``known`` are noise variances beside the leaf's own.
    columns : one for each output
    n_changes : rows that came or went since it was made afresh
    """

    ids: Index
    X: Array
    y: Array
    known: Array
    columns: tuple[Column, ...]
    n_changes: int = 0

    @classmethod
    def afresh(
        cls, laws: Sequence[BoundLaw], ids: Index, X: Array, y: Array, known: Array
    ) -> LiveLeaf:
        """From rows alone."""
        columns = []
        for k, law in enumerate(laws):
            factor = _factorised(_covariance(law, X, X, known[:, k]))
            columns.append(_column(law, factor, X, y[:, k], inverse_diagonal(factor)))
        return cls(ids, X, y, known, tuple(columns))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def log_evidence(self) -> Array:
        return np.array([column.log_evidence for column in self.columns])

    @property
    def squares(self) -> tuple[Array, Array]:
        """Sum of the squared standardised residuals of its rows left out, and the rows it is worth:
        (n_outputs,) each."""
        square, count = np.zeros((2, len(self.columns)))
        for k, column in enumerate(self.columns):
            variance = 1.0 / column.diagonal
            known = self.known[:, k] if self.known.any() else None
            found = standardised((column.alpha * variance) ** 2, variance, known)
            square[k], count[k] = (part.sum() for part in found)
        return square, count

    def joined(
        self, laws: Sequence[BoundLaw], ids: Index, X: Array, y: Array, known: Array
    ) -> LiveLeaf:
        """With more rows, which come last."""
        m, n = len(self), len(self) + len(ids)
        ids = np.concatenate([self.ids, ids])
        X, y, known = (
            np.concatenate(pair) for pair in ((self.X, X), (self.y, y), (self.known, known))
        )
        if not lapack.available or self.n_changes + n - m > n:
            return LiveLeaf.afresh(laws, ids, X, y, known)
        columns = []
        for k, (law, column) in enumerate(zip(laws, self.columns, strict=True)):
            K = np.zeros((n, n))
            K[:m, :m] = column.factor
            below = _covariance(law, X[m:], X, known[m:, k], first=m)
            K[m:] = np.tril(below, m)
            if not append_rows(K, m):  # which takes more noise: the ladder starts again
                return LiveLeaf.afresh(laws, ids, X, y, known)
            columns.append(_column(law, K, X, y[:, k], _extended(column.diagonal, K)))
        return LiveLeaf(ids, X, y, known, tuple(columns), self.n_changes + n - m)

    def without(self, laws: Sequence[BoundLaw], ids: Index) -> LiveLeaf:
        """Without some of its rows."""
        gone = np.flatnonzero(np.isin(self.ids, ids))
        kept = np.delete(np.arange(len(self)), gone)
        rows = (self.ids[kept], self.X[kept], self.y[kept], self.known[kept])
        n_changes = self.n_changes + len(gone)
        if not lapack.available or n_changes >= len(kept):
            return LiveLeaf.afresh(laws, *rows)
        columns = []
        for k, (law, column) in enumerate(zip(laws, self.columns, strict=True)):
            diagonal = _reduced(column, gone, kept)
            factor = remove_rows(column.factor, gone)
            columns.append(_column(law, factor, rows[1], rows[2][:, k], diagonal))
        return LiveLeaf(*rows, tuple(columns), n_changes)

    def predict(
        self, laws: Sequence[BoundLaw], X: Array, with_variance: bool = True
    ) -> tuple[Array, Array]:
        """Mean and variance of f, (n, n_outputs) each; the second is empty without variances."""
        means, variances = [], []
        for law, column in zip(laws, self.columns, strict=True):
            test, cross = _tensor(X), _cross(law, X, self.X)
            means.append(as_numpy(law.mean(test)[0]) + cross @ column.alpha)
            if with_variance:
                half = _solve(column.factor, cross.T)
                prior = as_numpy(law.variance(test)[0])
                variances.append(np.maximum(prior - np.square(half).sum(axis=0), 0.0))
        mean = np.stack(means, axis=1)
        return mean, np.stack(variances, axis=1) if with_variance else mean[:0]

    def joint(self, laws: Sequence[BoundLaw], X: Array) -> tuple[Array, Array]:
        """Mean (n, n_outputs) and covariance (n_outputs, n, n) of f."""
        means, covariances = [], []
        for law, column in zip(laws, self.columns, strict=True):
            test, cross = _tensor(X), _cross(law, X, self.X)
            means.append(as_numpy(law.mean(test)[0]) + cross @ column.alpha)
            half = _solve(column.factor, cross.T)
            covariances.append(_cross(law, X, X) - half.T @ half)
        return np.stack(means, axis=1), np.stack(covariances)

    @property
    def n_bytes(self) -> int:
        return sum(column.factor.nbytes for column in self.columns)


def _tensor(X: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(X)).unsqueeze(0)


def _cross(law: BoundLaw, A: Array, B: Array) -> Array:
    if not len(A) or not len(B):
        return np.zeros((len(A), len(B)))
    return as_numpy(law.cross(_tensor(A), _tensor(B))[0])


def _covariance(law: BoundLaw, A: Array, B: Array, known: Array, first: int = 0) -> Array:
    """Of y between rows A, which start at ``first`` in B, and rows B."""
    K = np.ascontiguousarray(_cross(law, A, B))
    rows = np.arange(len(A))
    K[rows, first + rows] += float(law.noise[0]) + known
    return K


def _factorised(K: Array) -> Array:
    """The lower factor, of a little more than K where that is needed."""
    lowest, highest = JITTER[torch.float64]
    scale, jitter = float(K.diagonal().mean()) if len(K) else 0.0, 0.0
    while jitter <= 1.01 * highest * scale:
        try:
            return np.asarray(np.linalg.cholesky(K + jitter * np.eye(len(K))), np.float64)
        except np.linalg.LinAlgError:
            jitter = 10.0 * jitter if jitter else lowest * scale
    raise ValueError(
        "a leaf's covariance matrix could not be factorised even with added noise; raise "
        "noise_variance, or check the kernel's hyperparameters"
    )


def _solve(L: Array, B: Array, transposed: bool = False) -> Array:
    if not len(L):
        return B
    return np.asarray(solve_triangular(L, B, lower=True, trans=int(transposed), check_finite=False))


def _column(law: BoundLaw, factor: Array, X: Array, y: Array, diagonal: Array) -> Column:
    residual = y - as_numpy(law.mean(_tensor(X))[0]) if len(X) else y
    white = _solve(factor, residual)
    logs = np.log(factor.diagonal()).sum()
    evidence = -0.5 * (white @ white + len(y) * LOG_2PI) - logs
    return Column(factor, _solve(factor, white, transposed=True), diagonal, float(evidence))


def inverse_diagonal(factor: Array) -> Array:
    """Of ``(L L')^-1``."""
    half = _solve(factor, np.eye(len(factor)))
    return np.asarray(np.square(half).sum(axis=0))


def _extended(diagonal: Array, factor: Array) -> Array:
    """The diagonal of ``K^-1`` when the factor has got more rows: it gains the squares of the new rows of ``L^-1``."""
    m = len(diagonal)
    across, corner = factor[m:, :m], factor[m:, m:]
    inverse = _solve(corner, np.eye(len(corner)))
    new = inverse @ _solve(factor[:m, :m], across.T, transposed=True).T
    return np.concatenate([diagonal + np.square(new).sum(axis=0), np.square(inverse).sum(axis=0)])


def _reduced(column: Column, gone: Index, kept: Index) -> Array:
    """The same when rows go: ``[K_kept]^-1`` is the inverse's block less what goes through the rows that went."""
    unit = np.zeros((len(column.diagonal), len(gone)))
    unit[gone, np.arange(len(gone))] = 1.0
    through = _solve(column.factor, _solve(column.factor, unit), transposed=True)  # columns of K^-1
    pulled = np.linalg.solve(through[gone], through[kept].T)
    return np.asarray(column.diagonal[kept] - (through[kept].T * pulled).sum(axis=0))
