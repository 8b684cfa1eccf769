"""Factors by a plan: one for each chain of nested leaves, from scratch or from another chain's.

In place, on row-major lower triangles (see :mod:`dsmgp.lapack`); above the diagonal are zeros.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp import lapack
from dsmgp.sharing import Extend, Remove, SharingPlan, Step

__all__ = ["NotPositiveDefinite", "SharedFactors", "append_rows", "remove_rows"]

Matrix = NDArray[np.float64]
Index = NDArray[np.int64]
Fill = Callable[[int, Matrix, int], None]


class NotPositiveDefinite(ArithmeticError):
    """A covariance matrix has no Cholesky factor."""


class SharedFactors:
    """Every leaf's lower Cholesky factor, by a plan. Many are leading blocks of another's: to be read, never
    written to.

    A factor is made when it is first asked for, with those it starts from; any number of threads may ask.

    Parameters
    ----------
    plan : SharingPlan
    fill : callable
        ``fill(leaf, K, first)`` writes the covariances of the observations at ``plan.rows[leaf]``, noise included,
        into the lower triangle of K: its rows from ``first`` on.

    Examples
    --------
    >>> from dsmgp.sharing import plan_sharing
    >>> x = np.linspace(0, 1, 300)
    >>> def fill(leaf, K, first):
    ...     at = x[plan.rows[leaf]]
    ...     K[first:] = np.tril(np.exp(-50 * (at[first:, None] - at) ** 2), first)
    ...     K[range(first, len(K)), range(first, len(K))] += 0.1
    >>> plan = plan_sharing([np.arange(300), np.arange(100, 200)])
    >>> factors = SharedFactors(plan, fill)
    >>> np.shares_memory(factors.lower(0), factors.lower(1))
    True
    """

    def __init__(self, plan: SharingPlan, fill: Fill) -> None:
        self.plan, self.fill = plan, fill
        self._forget()

    def _forget(self) -> None:
        self._made: dict[int, Matrix] = {}
        self._locks = {leaf: threading.Lock() for leaf in self.plan.flops}

    def lower(self, leaf: int) -> Matrix:
        """A leaf's factor; NotPositiveDefinite is raised if it, or one that it starts from, has none."""
        owner, n = self.plan.owner(leaf), len(self.plan.rows[leaf])
        for made in reversed(self.plan.lineage(owner)):
            with self._locks[made]:
                if made not in self._made:
                    self._made[made] = self._make(made)
        return self._made[owner][:n, :n]

    def _make(self, leaf: int) -> Matrix:
        n = len(self.plan.rows[leaf])
        K = np.zeros((n, n))
        first = self._begin(self.plan.steps[leaf], K)
        if first < n:
            self.fill(leaf, K, first)
            if not append_rows(K, first):
                raise NotPositiveDefinite(f"the covariance of leaf {leaf} ({n} rows)")
        return K

    def _begin(self, step: Step, K: Matrix) -> int:
        """Write the leading rows of a factor that starts from another; how many."""
        if not isinstance(step, (Extend, Remove)):
            return 0
        begun = self._made[step.of][: step.n, : step.n]
        if isinstance(step, Remove):
            begun = remove_rows(begun, step.removed)
        K[: len(begun), : len(begun)] = begun
        return len(begun)

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "fill": self.fill}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def append_rows(K: Matrix, n: int) -> bool:
    """Overwrite by its factor a matrix whose leading ``n`` rows are a factor already; False where it has none.

    Examples
    --------
    >>> K = np.array([[2.0, 0.0], [2.0, 5.0]])  # the first row is the factor of 4
    >>> append_rows(K, 1)
    True
    >>> K
    array([[2., 0.],
           [1., 2.]])
    """
    across, corner = K[n:, :n], K[n:, n:]
    if n:
        lapack.solve_rows(K[:n, :n], across)
        lapack.subtract_square(corner, across)
    return lapack.factorise(corner)


def remove_rows(L: Matrix, removed: Index) -> Matrix:
    """The factor of ``L L'`` without the rows and columns ``removed``.

    Rows before the first removed one stay as they are. For those after it, with columns kept and removed apart,
    ``T T' = L_kept L_kept' + L_removed L_removed'`` (Trapp et al. 2020, eq. 13).

    Examples
    --------
    >>> remove_rows(np.array([[2.0, 0.0], [3.0, 4.0]]), np.array([0]))
    array([[5.]])
    """
    kept = np.delete(np.arange(len(L)), removed)
    factor = L[np.ix_(kept, kept)]
    first = int(np.min(removed, initial=len(L)))
    if first < len(kept):
        T = factor[first:, first:]
        lapack.add_to_factor(T, L[np.ix_(kept[first:], removed)])
        T *= np.sign(T.diagonal())
    return factor
