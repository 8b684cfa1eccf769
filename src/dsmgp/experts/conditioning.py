"""Condition all leaf GPs in this process on their training rows, within a memory limit.

This is the step from :class:`~dsmgp.experts.leaf_gps.InMemoryLeafGPs` to the posterior that predicts
(:mod:`dsmgp.experts.posterior`), with overlapping leaves sharing Cholesky factors where that is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.warnings import FactorisationWarning, warn_user
from dsmgp.experts.backends.interface import (
    Backend,
    BoundKernels,
    LeafPosteriorBatch,
)
from dsmgp.experts.backends.shared_backend import JitterNeeded, SharedFactorBackend
from dsmgp.experts.factors.cache import FactorCache
from dsmgp.experts.posterior import InMemoryLeafPosterior, factorise
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.linalg.device_memory import within_memory
from dsmgp.progress import tick

if TYPE_CHECKING:
    from dsmgp.experts.leaf_gps import InMemoryLeafGPs

__all__ = ["condition"]

# Bytes of factors below which keeping fewer of them does not help a GPU that is short of memory.
LEAST_HELD = 2**24


def condition(
    leaf_gps: InMemoryLeafGPs,
    kernel_parameters: Sequence[Array],
    memory: float = math.inf,
    leave_out: bool = False,
    share: bool = True,
) -> InMemoryLeafPosterior:
    """Condition every leaf on its rows.

    Parameters
    ----------
    leaf_gps : InMemoryLeafGPs
    kernel_parameters : sequence of ndarray
        One array per output: a vector for all leaves, or a table (n_leaves, n_parameters).
    memory : float
        Bytes up to which Cholesky factors are kept; others are computed again when needed.
    leave_out : bool
        Whether to compute leave-one-out predictions too.
    share : bool
        Whether overlapping leaves may share Cholesky factors, where that is faster.
    """
    bound = leaf_gps.bind(kernel_parameters)
    shared = SharedFactorBackend.where_it_pays(leaf_gps, bound, memory) if share else None
    conditioning = _Conditioning(leaf_gps, bound, memory, leave_out)
    try:
        batches = within_memory(
            lambda: conditioning.run(shared or leaf_gps.backend), conditioning.reduce_memory
        )
    except JitterNeeded:
        batches = conditioning.run(leaf_gps.backend)
    backend = conditioning.backend
    _warn_of_jitter(leaf_gps, backend, batches)
    log_evidence = leaf_gps.gather(
        backend,
        [np.stack([batch.log_evidence for batch in by_output], -1) for by_output in batches],
        leaf_gps.n_outputs,
    )
    return InMemoryLeafPosterior(
        leaf_gps,
        kernel_parameters,
        bound,
        backend,
        log_evidence,
        alpha=_by_point(leaf_gps, backend, batches, lambda batch: batch.alpha),
        factors=conditioning.factors,
        memory=conditioning.memory,
        inverse_diagonal=_by_point(leaf_gps, backend, batches, lambda batch: batch.inverse_diagonal)
        if leave_out
        else None,
    )


class _Conditioning:
    """Conditioning of all leaves, repeated with less memory where a GPU has too little.

    After :meth:`run`, ``backend``, ``factors`` and ``memory`` are those that succeeded.
    """

    def __init__(
        self, leaf_gps: InMemoryLeafGPs, bound: BoundKernels, memory: float, leave_out: bool
    ) -> None:
        self.leaf_gps, self.bound, self.memory = leaf_gps, bound, memory
        self._leave_out = leave_out

    def run(self, backend: Backend) -> list[list[LeafPosteriorBatch]]:
        """Condition all leaves; return results by group and output."""
        self.backend = backend
        n_groups, n_outputs = len(backend.groups), self.leaf_gps.n_outputs
        element_bytes = np.dtype(self.leaf_gps.dtype).itemsize * n_outputs
        self.factors = FactorCache(
            partial(factorise, backend, self.bound, n_outputs),
            [element_bytes * backend.elements(group) for group in range(n_groups)],
            self.memory,
        )
        return self.leaf_gps.map(backend, self._condition_group, range(n_groups))

    def reduce_memory(self) -> bool:
        """Keep fewer factors and compute in smaller batches; False if both are small already."""
        held = min(self.memory, sum(self.factors.sizes))
        self.memory = held / 2
        return self.leaf_gps.reduce_memory() or held > LEAST_HELD

    def _condition_group(self, group: int) -> list[LeafPosteriorBatch]:
        keep = self.factors.keeps(group)
        batches = [
            self.backend.condition(self.bound, output, group, keep, self._leave_out)
            for output in range(self.leaf_gps.n_outputs)
        ]
        if not all(np.isfinite(batch.log_evidence).all() for batch in batches):
            raise NotFactorisedError
        if keep:
            self.factors.put(group, [b.factors for b in batches if b.factors is not None])
        tick((group + 1) / len(self.backend.groups))
        return batches


def _by_point(
    leaf_gps: InMemoryLeafGPs,
    backend: Backend,
    batches: Sequence[list[LeafPosteriorBatch]],
    quantity: Callable[[LeafPosteriorBatch], Array | None],
) -> list[Array]:
    """Return a quantity of points by output, in the order of ``backend.points``.

    Parameters
    ----------
    leaf_gps : InMemoryLeafGPs
    backend : Backend
        That has conditioned the leaves.
    batches : sequence of list of LeafPosteriorBatch
        By group and output.
    quantity : callable
        Returns the quantity of a batch, leaf after leaf.
    """
    by_output = []
    for output in range(leaf_gps.n_outputs):
        values = np.empty(len(backend.points.first.flat))
        for leaves, of_group in zip(backend.groups, batches, strict=True):
            values[backend.points.first.positions(leaves)] = quantity(of_group[output])
        by_output.append(values)
    return by_output


def _warn_of_jitter(
    leaf_gps: InMemoryLeafGPs, backend: Backend, batches: Sequence[list[LeafPosteriorBatch]]
) -> None:
    """Warn once of all leaves whose covariance needed jitter."""
    largest = [np.max([b.jitter for b in of_group], axis=0) for of_group in batches]
    jitter = leaf_gps.gather(backend, [j[:, None] for j in largest], 1)[:, 0]
    affected = np.flatnonzero(jitter > 0)
    if affected.size:
        named = ", ".join(
            f"leaf {leaf_gps.name(k)} ({backend.points.rows.sizes[k]} rows)"
            for k in affected[:5].tolist()
        )
        more = f" and {affected.size - 5} more" if affected.size > 5 else ""
        warn_user(
            f"not positive definite: the covariance of {named}{more}; up to {jitter.max():.3g} was "
            "added to the diagonal. Rows with almost equal inputs and very small noise cause this: raise "
            "noise_variance.",
            FactorisationWarning,
            topic="added noise",
        )
