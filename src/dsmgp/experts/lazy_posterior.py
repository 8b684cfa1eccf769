"""The posterior of leaf GPs read from a file: leaves are conditioned when they are first asked.

A prediction for a few rows asks few of the leaves. What it takes to weigh them, their log evidence, comes from the file.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import PARALLEL_ROWS
from dsmgp.experts.factors.cache import FactorCache
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.online.leaf import OutputFactor
from dsmgp.experts.posterior import InMemoryLeafPosterior, factorise
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.linalg.threads import one_thread

__all__ = ["LazyLeafPosterior"]


class LazyLeafPosterior(InMemoryLeafPosterior):
    """:class:`~dsmgp.experts.posterior.InMemoryLeafPosterior` whose groups of leaves are conditioned when they are first asked.

    ``alpha`` is NaN for the others; :meth:`to_memory` conditions all. Safe to use from several threads.

    Parameters
    ----------
    leaf_gps : InMemoryLeafGPs
    kernel_parameters : sequence of ndarray
    log_evidence : ndarray of shape (n_leaves, n_outputs)
        As it was when the model was fitted.
    memory : float
        Bytes up to which Cholesky factors are kept.
    """

    def __init__(
        self,
        leaf_gps: InMemoryLeafGPs,
        kernel_parameters: Sequence[Array],
        log_evidence: Array,
        memory: float,
    ) -> None:
        backend, bound = leaf_gps.backend, leaf_gps.bind(kernel_parameters)
        n_outputs, n_points = leaf_gps.n_outputs, len(backend.points.first.flat)
        element_bytes = np.dtype(leaf_gps.dtype).itemsize * n_outputs
        sizes = [element_bytes * backend.elements(group) for group in range(len(backend.groups))]
        factors = FactorCache(partial(factorise, backend, bound, n_outputs), sizes, memory)
        alpha = [np.full(n_points, np.nan) for _ in range(n_outputs)]
        super().__init__(
            leaf_gps, kernel_parameters, bound, backend, log_evidence, alpha, factors, memory
        )
        self._locks = [threading.Lock() for _ in backend.groups]
        self._conditioned = np.zeros(len(backend.groups), dtype=bool)

    def to_memory(self) -> LazyLeafPosterior:
        """Condition all leaves that were not asked yet."""
        waiting = np.flatnonzero(~self._conditioned).tolist()
        self.leaf_gps.map(self.backend, self._condition, waiting)
        return self

    def ready(self, leaf: int) -> None:
        self._condition(int(self.group[leaf]))

    def factor(self, output: int, leaf: int) -> Array:
        self.ready(leaf)
        return super().factor(output, leaf)

    def leaf_factor(self, leaf: int) -> tuple[OutputFactor, ...] | None:
        self.ready(leaf)
        return super().leaf_factor(leaf)

    def joint(self, leaf: int, X: Array) -> tuple[Array, Array]:
        self.ready(leaf)
        return super().joint(leaf, X)

    def _predict_group(
        self, group: int, leaves: Any, X: Array, rows: Ragged, with_variance: bool
    ) -> tuple[Array, Array]:
        self._condition(group)
        return super()._predict_group(group, leaves, X, rows, with_variance)

    def _condition(self, group: int) -> None:
        """Condition the leaves of a group, unless that was done."""
        if group < 0 or self._conditioned[group]:
            return
        # As in a fit, so that the last digits are the same: all cores for a large leaf, one for others.
        largest = self.points.first.sizes[self.backend.groups[group][0]]
        with self._locks[group], nullcontext() if largest > PARALLEL_ROWS else one_thread():
            if self._conditioned[group]:
                return
            keep = self.factors.keeps(group)
            batches = [
                self.backend.condition(self.bound, output, group, keep, False)
                for output in range(self.leaf_gps.n_outputs)
            ]
            if not all(np.isfinite(batch.log_evidence).all() for batch in batches):
                raise NotFactorisedError
            places = self.points.first.positions(self.backend.groups[group])
            for alpha, batch in zip(self.alpha, batches, strict=True):
                alpha[places] = batch.alpha
            if keep:
                self.factors.put(group, [b.factors for b in batches if b.factors is not None])
            self._conditioned[group] = True

    def __getstate__(self) -> dict[str, Any]:
        # What is done first: a group that another thread conditions meanwhile is conditioned again in the copy.
        conditioned = self._conditioned.copy()
        alpha = [of_output.copy() for of_output in self.alpha]
        state = {**super().__getstate__(), "_locks": len(self._locks)}
        return state | {"_conditioned": conditioned, "alpha": alpha}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._locks = [threading.Lock() for _ in range(state["_locks"])]
