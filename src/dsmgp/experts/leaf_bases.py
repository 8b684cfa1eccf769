"""Low-rank variances (:mod:`dsmgp.experts.low_rank`) of the large leaves of a posterior, made when predictions have asked enough of them.

A basis costs about as much as the factorisation of its leaf. A leaf gets one when a call has enough rows for it; all large leaves of a model
get theirs, if that is a matter of a second, once the model has predicted some rows, so that single rows are answered fast.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.low_rank import LEAST_POINTS, LowRankVariance, low_rank_variance

if TYPE_CHECKING:
    from dsmgp.experts.posterior import InMemoryLeafPosterior

__all__ = ["LeafBases", "LeafBasis"]

#: Low-rank variances by output.
LeafBasis = list[LowRankVariance]

# Largest sum of n_points^3 over leaves whose bases are made at once: seconds of work.
BRIEF = 1e11
# Rows that a model has predicted when all its bases are made, if that is brief. A row that is predicted alone counts more: a large leaf is
# read from memory for it.
WARM_ROWS, ROWS_FOR_ONE = 1024, 32
# Rows of one call, as a share of the leaf's points, that pay for its basis.
PAYING_SHARE = 0.5


class LeafBases:
    """The bases of the leaves of a posterior.

    Attributes
    ----------
    of_leaf : dict of int to LeafBasis
        Replaced, never changed: other threads may read it.
    errors : ndarray of shape (n_leaves, 2)
        Mean and largest relative error of a leaf's variances of y; zero where they are exact.
    """

    def __init__(self, posterior: InMemoryLeafPosterior) -> None:
        sizes = posterior.points.first.sizes
        #: Leaves that may get a basis and have not been tried. Replaced, never changed, as below.
        self._untried = frozenset(np.flatnonzero(sizes >= LEAST_POINTS).tolist())
        self._all_at_once = float((sizes[list(self._untried)].astype(float) ** 3).sum()) <= BRIEF
        self._n_rows = 0
        self._lock = threading.Lock()
        self.of_leaf: dict[int, LeafBasis] = {}
        self.errors = np.zeros((len(sizes), 2))

    def due(self, sizes: Index, leaves: Index, n_rows: Index, n_new: int, alone: bool) -> list[int]:
        """Return the leaves whose bases pay now.

        Parameters
        ----------
        sizes : ndarray of shape (n_leaves,)
            Points of all leaves.
        leaves, n_rows : ndarray of shape (n_reached,)
            Leaves that a call asks, and for how many rows.
        n_new : int
            Rows of the call.
        alone : bool
            Whether they are predicted one by one.
        """
        if not self._untried:
            return []
        self._n_rows += n_new * (ROWS_FOR_ONE if alone else 1)
        if self._all_at_once:
            return sorted(self._untried) if self._n_rows >= WARM_ROWS else []
        paying = leaves[n_rows >= PAYING_SHARE * sizes[leaves]]
        return [k for k in paying.tolist() if k in self._untried]

    def make(self, posterior: InMemoryLeafPosterior, due: list[int], tolerances: Array) -> None:
        """Make the bases of some leaves, as far as memory allows."""
        with self._lock:
            left = [k for k in due if k in self._untried]
            # Large leaves first, so that threads end together.
            left.sort(key=lambda k: -int(posterior.points.first.sizes[k]))
            found = posterior.leaf_gps.threads.map(
                lambda leaf: _basis(posterior, leaf, float(tolerances[leaf])), left
            )
            room = posterior.memory - posterior.factors.n_bytes
            room -= sum(map(_n_bytes, self.of_leaf.values()))
            bases, errors = dict(self.of_leaf), self.errors.copy()
            for leaf, basis in zip(left, found, strict=True):
                if basis is not None and (room := room - _n_bytes(basis)) >= 0.0:
                    bases[leaf] = basis
                    errors[leaf] = np.sum([low_rank.errors for low_rank in basis], axis=0)
            # Errors before bases: a reader must not see a basis without its error.
            self.errors = errors
            self.of_leaf = bases
            self._untried = self._untried.difference(left)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _basis(posterior: InMemoryLeafPosterior, leaf: int, tolerance: float) -> LeafBasis | None:
    """Low-rank variances of one leaf for all outputs; None if any has none."""
    X, basis = posterior.leaf_gps.data.X[posterior.points.first[leaf]], []
    n_outputs = posterior.leaf_gps.n_outputs
    for output in range(n_outputs):
        kernel, noise = posterior.bound(output, leaf), float(posterior.noise[leaf, output])
        factor = posterior.factor(output, leaf)
        # The gate takes the product of the outputs' variances: errors add up.
        alpha = posterior.alpha[output][posterior.place(leaf)]
        low_rank = low_rank_variance(kernel, X, factor, alpha, noise, tolerance / n_outputs)
        if low_rank is None:
            return None
        basis.append(low_rank)
    return basis


def _n_bytes(basis: LeafBasis) -> int:
    return sum(low_rank.n_bytes for low_rank in basis)
