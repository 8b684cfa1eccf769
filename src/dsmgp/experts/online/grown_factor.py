"""A Cholesky factor that grows by rows without being copied: its leading block stays where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from dsmgp._util.arrays import Array
from dsmgp.linalg import lapack

__all__ = ["GrownFactor"]

# Rows below the leading block, in addition to a share of its order, from which on both become one matrix.
MOST_ROWS, MOST_SHARE = 32, 0.125


@dataclass(frozen=True, eq=False)
class GrownFactor:
    """Lower Cholesky factor of n rows: a leading block of m rows, and the rows that were added.

    Attributes
    ----------
    leading : ndarray of shape (m, m), or callable
        The block, or a function that returns it, where it belongs to others and may have to be computed again. Never written; what is above its
        diagonal is ignored.
    below : ndarray of shape (n - m, n)
        The rows that were added.

    Examples
    --------
    >>> factor = GrownFactor(np.array([[2.0]]), np.array([[1.0, 3.0]]))
    >>> factor.whole()
    array([[2., 0.],
           [1., 3.]])
    >>> factor.solve(np.array([[2.0, 7.0]]))
    array([[1., 2.]])
    """

    leading: Array | Callable[[], Array]
    below: Array

    @classmethod
    def of(cls, factor: Array) -> GrownFactor:
        """Return a factor without added rows."""
        return cls(factor, np.empty((0, len(factor))))

    def __len__(self) -> int:
        return self.below.shape[1]

    @property
    def block(self) -> Array:
        """The leading block, with contiguous columns."""
        block = self.leading() if callable(self.leading) else self.leading
        block = np.asarray(block, np.float64)
        return block if block.strides[1] == 8 else np.ascontiguousarray(block)

    @property
    def n_bytes(self) -> int:
        """Bytes of its own."""
        return self.below.nbytes + (0 if callable(self.leading) else self.leading.nbytes)

    @property
    def diagonal(self) -> Array:
        m = len(self) - len(self.below)
        return np.concatenate([self.block.diagonal(), self.below[:, m:].diagonal()])

    def whole(self) -> Array:
        """Return the factor as one matrix."""
        m, n = len(self) - len(self.below), len(self)
        L = np.zeros((n, n))
        L[:m, :m] = np.tril(self.block)
        L[m:] = self.below
        return L

    def with_rows(self, rows: Array) -> GrownFactor:
        """Return the factor with further rows of it."""
        k, n = len(self.below), len(self) + len(rows)
        below = np.zeros((k + len(rows), n))
        below[:k, : len(self)] = self.below
        below[k:] = rows
        grown = GrownFactor(self.leading, below)
        if len(below) <= MOST_ROWS + MOST_SHARE * (n - len(below)):
            return grown
        return GrownFactor.of(grown.whole())

    def solve(self, rows: Array) -> Array:
        """Return ``L^-1 b`` for every row b."""
        m = len(self) - len(self.below)
        solved = np.array(rows, np.float64, order="C")
        if m and len(solved):
            _solve_rows(self.block, solved[:, :m])
        if len(self.below) and len(solved):
            solved[:, m:] -= solved[:, :m] @ self.below[:, :m].T
            _solve_rows(self.below[:, m:], solved[:, m:])
        return solved

    def solve_transposed(self, rows: Array) -> Array:
        """Return ``L'^-1 b`` for every row b."""
        m = len(self) - len(self.below)
        solved = np.array(rows, np.float64, order="C")
        if len(self.below):
            corner = self.below[:, m:]
            solved[:, m:] = _solve_each_transposed(corner, solved[:, m:].copy())
            solved[:, :m] -= solved[:, m:] @ self.below[:, :m]
        if m:
            solved[:, :m] = _solve_each_transposed(self.block, solved[:, :m].copy())
        return solved


def _solve_rows(L: Array, rows: Array) -> None:
    """Overwrite every row b by ``L^-1 b``."""
    if lapack.available:
        lapack.solve_rows(L, rows)
    else:
        rows[:] = solve_triangular(L, rows.T, lower=True, check_finite=False).T


def _solve_each_transposed(L: Array, rows: Array) -> Array:
    if not lapack.available:
        solved = solve_triangular(L, rows.T, lower=True, trans=1, check_finite=False)
        return np.asarray(solved.T)
    for row in rows:
        lapack.solve_transposed(L, row)
    return rows
