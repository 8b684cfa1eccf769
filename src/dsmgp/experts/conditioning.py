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

from dsmgp._util.arrays import Array, Index
from dsmgp._util.warnings import FactorisationWarning, warn_user
from dsmgp.experts.backend import (
    NOT_FACTORISED,
    Backend,
    BoundKernels,
    LeafPosteriorBatch,
    LOOBatch,
)
from dsmgp.experts.duplicates import any_equal, duplicates
from dsmgp.experts.factor_cache import FactorCache
from dsmgp.experts.factor_sharing import NotPositiveDefinite
from dsmgp.experts.loo import LOOMoments
from dsmgp.experts.posterior import InMemoryLeafPosterior, factorise
from dsmgp.experts.shared_backend import SharedFactorBackend
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
    labels: Index | None = None,
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
    labels : ndarray of shape (n_rows,), optional
        Numbers from 0 on, equal for duplicate inputs. If given, leave-one-out predictions are computed too.
    share : bool
        Whether overlapping leaves may share Cholesky factors, where that is faster.
    """
    bound = leaf_gps.bind(kernel_parameters)
    shared = SharedFactorBackend.where_it_pays(leaf_gps, bound, memory) if share else None
    conditioning = _Conditioning(leaf_gps, bound, memory, labels)
    try:
        batches = within_memory(
            lambda: conditioning.run(shared or leaf_gps.backend), conditioning.reduce_memory
        )
    except NotPositiveDefinite:
        # A leaf needs jitter, and so its own factor: leaves cannot share.
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
        alpha=_alpha(leaf_gps, backend, batches),
        factors=conditioning.factors,
        memory=conditioning.memory,
        loo_moments=None if labels is None else _loo_moments(leaf_gps, backend, batches),
        labels=labels,
    )


class _Conditioning:
    """Conditioning of all leaves, repeated with less memory where a GPU has too little.

    After :meth:`run`, ``backend``, ``factors`` and ``memory`` are those that succeeded.
    """

    def __init__(
        self, leaf_gps: InMemoryLeafGPs, bound: BoundKernels, memory: float, labels: Index | None
    ) -> None:
        self.leaf_gps, self.bound, self.memory = leaf_gps, bound, memory
        self._labels = labels
        self._has_duplicates = labels is not None and any_equal(labels)

    def run(self, backend: Backend) -> list[list[LeafPosteriorBatch]]:
        """Condition all leaves; return results by group and output."""
        self.backend, n_groups, n_outputs = backend, len(backend.groups), self.leaf_gps.n_outputs
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
        keep, duplicates = self.factors.keeps(group), self._duplicates(group)
        batches = [
            self.backend.condition(self.bound, output, group, keep, duplicates)
            for output in range(self.leaf_gps.n_outputs)
        ]
        if not all(np.isfinite(batch.log_evidence).all() for batch in batches):
            raise ValueError(NOT_FACTORISED)
        if keep:
            self.factors.put(group, [b.factors for b in batches if b.factors is not None])
        tick((group + 1) / len(self.backend.groups))
        return batches

    def _duplicates(self, group: int) -> list[list[Index]] | None:
        """Duplicate inputs of each leaf of a group; None where leave-one-out is not computed."""
        leaves, leaf_rows = self.backend.groups[group], self.backend.leaf_rows
        if self._labels is None:
            return None
        if not self._has_duplicates:
            return [[] for _ in leaves]
        return [duplicates(self._labels[leaf_rows[k]]) for k in leaves]


def _alpha(
    leaf_gps: InMemoryLeafGPs, backend: Backend, batches: Sequence[list[LeafPosteriorBatch]]
) -> list[Array]:
    """Return alpha by output in the order of ``backend.leaf_rows``."""
    by_output = []
    for output in range(leaf_gps.n_outputs):
        alpha = np.empty(len(backend.leaf_rows.flat))
        for leaves, of_group in zip(backend.groups, batches, strict=True):
            alpha[backend.leaf_rows.positions(leaves)] = of_group[output].alpha
        by_output.append(alpha)
    return by_output


def _loo_moments(
    leaf_gps: InMemoryLeafGPs, backend: Backend, batches: Sequence[list[LeafPosteriorBatch]]
) -> LOOMoments:
    """Return leave-one-out moments in the order of ``backend.leaf_rows``."""
    leaves = np.concatenate([np.empty(0, np.int64), *backend.groups])
    place = backend.leaf_rows.positions(leaves)  # of the rows of one group after the other
    y = leaf_gps.Y[backend.leaf_rows.flat]
    loo = [[of_group[output].loo for of_group in batches] for output in range(y.shape[1])]

    def gather(quantity: Callable[[LOOBatch], Array]) -> Array:
        table = np.empty(y.shape)
        for output, by_group in enumerate(loo):
            values = [quantity(batch) for batch in by_group if batch is not None]
            table[place, output] = np.concatenate([np.empty(0), *values])
        return table

    mean, variance = y - gather(lambda b: b.residual), gather(lambda b: b.variance)
    if all(b is None or b.with_duplicates is None for by_group in loo for b in by_group):
        return LOOMoments(mean, variance, mean, variance, None)  # no duplicates: not kept twice
    return LOOMoments(
        mean,
        variance,
        grouped_mean=y - gather(lambda b: b.grouped[0]),
        grouped_variance=gather(lambda b: b.grouped[1]),
        grouped_log_density=gather(lambda b: b.grouped[2]),
    )


def _warn_of_jitter(
    leaf_gps: InMemoryLeafGPs, backend: Backend, batches: Sequence[list[LeafPosteriorBatch]]
) -> None:
    """Warn once of all leaves whose covariance needed jitter."""
    largest = [np.max([b.jitter for b in of_group], axis=0) for of_group in batches]
    jitter = leaf_gps.gather(backend, [j[:, None] for j in largest], 1)[:, 0]
    affected = np.flatnonzero(jitter > 0)
    if affected.size:
        named = ", ".join(
            f"leaf {leaf_gps.name(k)} ({backend.leaf_rows.sizes[k]} rows)"
            for k in affected[:5].tolist()
        )
        more = f" and {affected.size - 5} more" if affected.size > 5 else ""
        warn_user(
            f"not positive definite: the covariance of {named}{more}; up to {jitter.max():.3g} was "
            "added to the diagonal. Repeated rows and very small noise cause this: raise "
            "noise_variance.",
            FactorisationWarning,
            topic="added noise",
        )
