"""Sizes and addresses of the leaves of a posterior, for compiled predictions of few rows (:mod:`dsmgp.experts.backends.numba_rows`)."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.compiled import Kernel
from dsmgp.experts.backends.numba_leaves import KINDS, MEANS
from dsmgp.experts.leaf_bases import LeafBasis
from dsmgp.experts.low_rank import LowRankVariance
from dsmgp.gp.leaf_kernels import StationaryKernel

if TYPE_CHECKING:
    from dsmgp.experts.posterior import InMemoryLeafPosterior

__all__ = ["RowTable"]

_predict_rows = Kernel("dsmgp.experts.backends.numba_rows", "predict_rows")
#: Entries of a leaf in the table, in the order in which compiled code reads them.
FIELDS = (
    "kind", "mean_kind", "n_points", "n_columns", "n_parameters", "rank", "columns", "parameters", "Z", "alpha", "factor", "stride",
)  # fmt: skip


class RowTable:
    """What compiled code needs to know of each leaf, for one output; leaves are entered when a row first reaches them.

    Parameters
    ----------
    posterior : InMemoryLeafPosterior
    output : int
    bases : mapping of int to LeafBasis
        Low-rank variances of leaves; others are exact.
    """

    def __init__(
        self, posterior: InMemoryLeafPosterior, output: int, bases: Mapping[int, LeafBasis]
    ) -> None:
        self._posterior, self._output, self.bases = posterior, output, bases
        n_leaves = posterior.leaf_gps.n_leaves
        self._table = np.zeros((n_leaves, len(FIELDS)), dtype=np.int64)
        self._entered = np.zeros(n_leaves, dtype=bool)
        # Arrays whose addresses are in the table.
        self._held: list[Any] = [None] * n_leaves
        self._lock = threading.Lock()
        self._n_most = max(int(posterior.points.first.sizes.max(initial=0)), 1)

    def with_bases(self, bases: Mapping[int, LeafBasis]) -> RowTable:
        """Return a table of the same leaves with other low-rank variances.

        This one stays as it is: other threads may be reading what its addresses point to.
        """
        with self._lock:
            other = copy.copy(self)
            other._table, other._entered = self._table.copy(), self._entered.copy()
            other._held, other._lock = self._held.copy(), threading.Lock()
        changed = [
            leaf for leaf in {*bases, *self.bases} if bases.get(leaf) is not self.bases.get(leaf)
        ]
        other.bases, other._entered[changed] = bases, False
        return other

    def predict(self, leaves: Index, Z: Array, with_variance: bool) -> tuple[Array, Array] | None:
        """Return mean and variance of f, (n, n_reached) each, at rows Z by their leaves; None if a leaf's factor is not at hand.

        Parameters
        ----------
        leaves : ndarray of shape (n, n_reached)
            Numbers of the leaves; -1 for none.
        Z : ndarray of shape (n, n_dims)
        with_variance : bool
        """
        reached = leaves[leaves >= 0]
        new = reached[~self._entered[reached]].tolist()
        if new:
            with self._lock:
                if not all(self._entered[leaf] or self._enter(leaf) for leaf in new):
                    return None
        means, variances = np.zeros(leaves.shape), np.ones(leaves.shape)
        memory = np.empty(4 * self._n_most + Z.shape[1])
        _predict_rows(
            self._table, leaves, Z, int(with_variance), self._n_most, memory, means, variances
        )
        return means, variances

    def _enter(self, leaf: int) -> bool:
        """Enter a leaf into the table; False if its factor is not in memory, or its kernel is none of the compiled ones."""
        posterior, output = self._posterior, self._output
        kernel = posterior.leaf_gps.kernels[output][leaf]
        if not isinstance(kernel, StationaryKernel):
            return False
        parameters = np.ascontiguousarray(posterior.bound.parameters(output, leaf))
        columns = np.array(kernel.columns, dtype=np.int64)
        X = posterior.leaf_gps.data.X[posterior.points.first[leaf]]
        posterior.ready(leaf)
        alpha, rank, factor = posterior.alpha[output][posterior.place(leaf)], 0, np.empty((0, 0))
        basis = self._basis(leaf)
        if basis is not None:
            X, alpha, factor, rank = X[basis.order], basis.alpha, basis.weights, basis.rank
        elif len(X):
            group = int(posterior.group[leaf])
            if not posterior.factors.holds(group) or not posterior.factors.keeps(group):
                return False
            factor = posterior.factor(output, leaf)
        Z = np.ascontiguousarray((X[:, columns] / parameters[: len(columns)]).T)
        alpha = np.ascontiguousarray(alpha)
        step = factor.strides[0] // factor.itemsize if len(factor) else 0
        self._held[leaf] = (parameters, columns, Z, alpha, factor)
        at_columns, at_parameters = columns.ctypes.data, parameters.ctypes.data
        self._table[leaf] = (
            KINDS[kernel.kind], MEANS[kernel.mean_kind], len(X), len(columns), len(parameters), rank,
            at_columns, at_parameters, Z.ctypes.data, alpha.ctypes.data, factor.ctypes.data, step,
        )  # fmt: skip
        self._entered[leaf] = True
        return True

    def _basis(self, leaf: int) -> LowRankVariance | None:
        """Low-rank variances of a leaf in single precision, which compiled code takes."""
        basis = self.bases.get(leaf)
        if basis is None or basis[self._output].weights.dtype != np.float32:
            return None
        return basis[self._output]
