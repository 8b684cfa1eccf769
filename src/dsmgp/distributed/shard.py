"""A shard: some of a tree's leaves with the rows that they need, which can be computed on anywhere.

A shard is built from a plan, and built again wherever it was lost: because its worker died, or because another shard
needed the memory. Arguments and results of its methods are arrays, so they can be sent between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import LeafKernel
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.loo import Pairs
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.tree.routing import Routes

__all__ = ["Shard", "ShardData", "ShardPlan", "writable"]


@dataclass(frozen=True)
class ShardData:
    """The rows of a shard, scaled as the leaf GPs take them.

    Attributes
    ----------
    ids : ndarray of shape (n_rows,)
        Their numbers in the training set, in increasing order.
    leaf_rows : Ragged
        For each leaf, the positions of its rows in the arrays here.
    data : LeafData
    """

    ids: Index
    leaf_rows: Ragged
    data: LeafData


@dataclass(frozen=True)
class ShardPlan:
    """How a shard is built.

    Attributes
    ----------
    load : callable
        Returns the rows, as often as it is called.
    numbers : ndarray of shape (n_leaves,)
        Numbers of the leaves in the tree.
    kernels : sequence of sequence of LeafKernel
        By output and leaf.
    memory : float
        Bytes for matrices that are worked on.
    device, dtype : str
        Where and in which precision to compute.
    n_bytes : float
        Estimated size of the shard in memory, with its factors.
    """

    load: Callable[[], ShardData]
    numbers: Index
    kernels: Sequence[Sequence[LeafKernel]]
    memory: float
    device: str
    dtype: str
    n_bytes: float = 0.0


class Shard:
    """Leaf GPs with their rows. Leaves are numbered from 0 within the shard."""

    def __init__(self, plan: ShardPlan) -> None:
        rows = plan.load()
        self.ids, self.n_bytes = rows.ids, plan.n_bytes
        self.leaf_gps = InMemoryLeafGPs(
            rows.leaf_rows,
            rows.data,
            plan.kernels,
            memory=plan.memory,
            numbers=plan.numbers,
            device=plan.device,
            dtype=plan.dtype,
        )
        #: By key: the leaves may be conditioned with several sets of kernel parameters.
        self.posteriors: dict[int, InMemoryLeafPosterior] = {}

    def log_evidence(self, kernel_parameters: Sequence[Array]) -> Array:
        return self.leaf_gps.log_evidence(writable(kernel_parameters))

    def squares(self, kernel_parameters: Sequence[Array]) -> Array:
        return self.leaf_gps.squares(writable(kernel_parameters))

    def gradient(
        self, kernel_parameters: Sequence[Array], outputs: Sequence[int], scale_rows: float | None
    ) -> tuple[Array, list[Array]]:
        return self.leaf_gps.log_evidence_and_gradient(
            writable(kernel_parameters), outputs, scale_rows
        )

    def condition(
        self,
        key: int,
        kernel_parameters: Sequence[Array],
        memory: float,
        loo_rows: Index | None = None,
    ) -> tuple[Array, Array, Array, Pairs | None]:
        """Condition the leaves on their rows, and keep the posterior under a key.

        Parameters
        ----------
        key : int
            A name for the posterior.
        kernel_parameters : sequence of ndarray
            By output.
        memory : float
            Bytes for factors.
        loo_rows : ndarray, optional
            Numbers, in the training set, of the rows whose leave-one-out predictions are needed.

        Returns
        -------
        log_evidence : ndarray of shape (n_leaves, n_outputs)
        squares, counts : ndarray of shape (n_leaves, n_outputs)
            Sums of squared leave-one-out residuals and their numbers; empty without ``loo_rows``.
        pairs : Pairs or None
            Leave-one-out predictions of the rows among ``loo_rows`` that are in this shard.
        """
        self.posteriors[key] = posterior = self.leaf_gps.condition(
            writable(kernel_parameters), memory, leave_out=loo_rows is not None
        )
        if loo_rows is None:
            return posterior.log_evidence, np.empty(0), np.empty(0), None
        loo = posterior.leaf_loo()
        position = np.searchsorted(self.ids, loo_rows)
        here = position < len(self.ids)
        here[here] = self.ids[position[here]] == loo_rows[here]
        local = loo.pairs(position[here])
        pairs = Pairs(local.leaf, np.flatnonzero(here)[local.place], local.values)
        return posterior.log_evidence, loo.squares, loo.counts, pairs

    def predict(
        self, key: int, leaf: Index, row: Index, ends: Index, X: Array, with_variance: bool
    ) -> tuple[Array, Array]:
        """Predict rows of ``X``; ``leaf``, ``row`` and ``ends`` are those of :class:`.Routes`.

        Parameters
        ----------
        key : int
            Name of the posterior.
        leaf, row, ends : ndarray of int
        X : ndarray of shape (n, n_dims)
        with_variance : bool

        Returns
        -------
        mean, variance : ndarray of shape (n_pairs, n_outputs)
        """
        return self.posteriors[key].predict(Routes(leaf, Ragged(row, ends)), X, with_variance)

    def joint(self, key: int, number: int, X: Array) -> tuple[Array, Array]:
        """Return mean and covariance of the rows of ``X`` under one leaf."""
        return self.posteriors[key].joint(number, X)

    def apply(self, key: int, function: Callable[[InMemoryLeafPosterior], Any]) -> Any:
        """Return what a function makes of a posterior."""
        return function(self.posteriors[key])

    def drop(self, key: int) -> None:
        """Forget a posterior, and release its memory."""
        self.posteriors.pop(key, None)


def writable(arrays: Iterable[Array]) -> list[Array]:
    """Return arrays that may be written to, as copies where need be.

    Arrays out of Ray's object store are read-only: torch warns of them, and code would be compiled for them once more.
    """
    return [np.require(array, requirements="W") for array in arrays]
