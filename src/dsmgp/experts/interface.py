"""Interfaces of the leaf GPs of a tree, before and after they are conditioned on their training rows.

:class:`LeafGPs` are the priors together with the training rows of every leaf. Their verb ``condition`` returns a
:class:`LeafPosterior`, which predicts. Both hold all leaves of a tree and compute in the units of the leaf GPs
(scaled inputs and outputs).

========================  ==============================================  ==========================================
where                     leaf GPs                                        posterior
========================  ==============================================  ==========================================
in this process           :class:`~dsmgp.experts.leaf_gps.InMemoryLeafGPs`  :class:`~dsmgp.experts.posterior.InMemoryLeafPosterior`
on workers, or on disk    ``dsmgp.distributed.sharded.ShardedLeafGPs``    ``dsmgp.distributed.sharded.ShardedLeafPosterior``
after online updates                                                      :class:`~dsmgp.experts.online.posterior.OnlineLeafPosterior`
========================  ==============================================  ==========================================

A kind that cannot do what is called raises :class:`NotAvailableError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import BoundKernels, LeafKernel
from dsmgp.experts.factors.sharing import SharingPlan
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.loo import LeaveOneOut
from dsmgp.linalg.threads import Threads
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.routing import Routes

if TYPE_CHECKING:
    from dsmgp.experts.online.leaf import OutputFactor
    from dsmgp.experts.online.posterior import OnlineLeafPosterior
    from dsmgp.experts.posterior import InMemoryLeafPosterior

__all__ = ["LeafGPs", "LeafPosterior", "NotAvailableError"]


class NotAvailableError(RuntimeError):
    """These leaf GPs, or this posterior, do not support the call."""


class LeafGPs(Protocol):
    """The GP priors of all leaves and their training rows.

    Hyperparameters are passed as ``kernel_parameters``, one array per output: a vector for all leaves, or a table
    (n_leaves, n_parameters) with one row per leaf.

    Attributes
    ----------
    data : LeafData
        The training rows; without any where these are on disk.
    kernels : list of list of LeafKernel
        Kernel of each output and leaf.
    memory : float
        Bytes that matrices may take while leaves are computed.
    threads : Threads
        Runs work on several leaves in parallel.
    store : object, or None
        The files that hold the rows, where they are on disk.
    device : str
        Where leaves are computed: "cpu", or a GPU by torch's name for it.
    dtype : "float64" or "float32"
        Precision of the computations.
    """

    data: LeafData
    kernels: list[list[LeafKernel]]
    memory: float
    threads: Threads
    store: Any
    device: str
    dtype: str

    @property
    def n_leaves(self) -> int: ...

    @property
    def n_outputs(self) -> int: ...

    @property
    def leaf_rows(self) -> Ragged:
        """Row numbers of each leaf."""

    @property
    def n_observations(self) -> float:
        """Number of rows of all leaves, or the sum of their weights."""

    @property
    def has_large(self) -> bool:
        """Whether any leaf is large enough to be computed by all cores."""

    def bind(self, kernel_parameters: Sequence[Array]) -> BoundKernels:
        """Return the kernels at given hyperparameters."""

    def log_evidence(self, kernel_parameters: Sequence[Array]) -> Array:
        """Return the log evidence of each leaf and output, (n_leaves, n_outputs)."""

    def squares(self, kernel_parameters: Sequence[Array]) -> Array:
        """Return ``(y - mean)' K^-1 (y - mean)`` of each leaf and output, (n_leaves, n_outputs)."""

    def mean_squares(self, kernel_parameters: Sequence[Array]) -> Array:
        """Return the factor by which each output's covariance should grow to maximise the evidence, (n_outputs,)."""

    def log_evidence_and_gradient(
        self,
        kernel_parameters: Sequence[Array],
        outputs: Sequence[int] | None = None,
        scale_rows: float | None = None,
    ) -> tuple[Array, list[Array]]:
        """Return the log evidence of each leaf and its gradient.

        Parameters
        ----------
        kernel_parameters : sequence of ndarray
            Those of ``outputs``.
        outputs : sequence of int, optional
            Outputs to evaluate; all by default.
        scale_rows : float, optional
            Integrate out a scale of each leaf's covariance, whose inverse-gamma prior is worth this many rows at
            scale one. The leaf becomes a multivariate Student-t.

        Returns
        -------
        log_evidence : ndarray of shape (n_leaves, len(outputs))
            NaN where a covariance cannot be factorised: the optimiser steps back.
        gradients : list of ndarray of shape (n_leaves, n_parameters)
            By the kernel parameters, one array per output.
        """

    def condition(
        self,
        kernel_parameters: Sequence[Array],
        memory: float,
        leave_out: bool = False,
        loo_rows: Index | None = None,
    ) -> LeafPosterior:
        """Condition every leaf on its rows.

        Parameters
        ----------
        kernel_parameters : sequence of ndarray
        memory : float
            Bytes up to which Cholesky factors are kept; others are computed again when needed.
        leave_out : bool
            Whether to compute leave-one-out predictions too.
        loo_rows : ndarray, optional
            Rows whose leave-one-out predictions will be used; all by default.
        """

    def with_kernels(self, kernels: Sequence[LeafKernel | Sequence[LeafKernel]]) -> LeafGPs:
        """Return the same leaves over the same rows with other kernels."""

    def rebuild(
        self,
        leaves: Sequence[Leaf] | Ragged,
        data: LeafData,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
    ) -> LeafGPs:
        """Return the GPs of other leaves and rows, computed in the same place."""


class LeafPosterior(Protocol):
    """The GPs of all leaves, conditioned on their training rows.

    Attributes
    ----------
    kernel_parameters : list of ndarray
        Hyperparameters, one array per output.
    log_evidence : ndarray of shape (n_leaves, n_outputs)
    memory : float
        Bytes up to which Cholesky factors are kept.
    """

    @property
    def leaf_gps(self) -> LeafGPs:
        """The leaf GPs that were conditioned; online updates do not change them."""

    @property
    def kernel_parameters(self) -> list[Array]: ...

    @property
    def log_evidence(self) -> Array: ...

    @property
    def memory(self) -> float: ...

    @property
    def bound(self) -> BoundKernels:
        """The kernels at their hyperparameters."""

    @property
    def noise(self) -> Array:
        """Noise variances, (n_leaves, n_outputs)."""

    @property
    def n_rows(self) -> int: ...

    @property
    def leaf_rows(self) -> Ragged:
        """Row numbers of each leaf; those with equal inputs are next to each other, in the order of its factor."""

    @property
    def leaf_sizes(self) -> Index:
        """Number of rows of each leaf, (n_leaves,)."""

    @property
    def sharing(self) -> SharingPlan | None:
        """How leaves share their Cholesky factors, if they do."""

    def predict(self, routes: Routes, X: Array, with_variance: bool = True) -> tuple[Array, Array]:
        """Predict f by the leaves that each row reaches.

        Parameters
        ----------
        routes : Routes
            Pairs of a leaf and a row of X.
        X : ndarray of shape (n_test, n_dims)
        with_variance : bool
            Variances cost most; without them the second array is empty.

        Returns
        -------
        mean, variance : ndarray of shape (n_pairs, n_outputs)
            In the order of ``routes.rows.flat``.
        """

    def joint(self, leaf: int, X: Array) -> tuple[Array, Array]:
        """Return mean (n_test, n_outputs) and covariance (n_outputs, n_test, n_test) of f by one leaf."""

    @property
    def pool(self) -> Any:
        """The workers that hold the leaves in shards; None if these are in this process."""

    @property
    def in_memory(self) -> InMemoryLeafPosterior | None:
        """This posterior if it can predict few rows in one compiled call, and with low-rank variances."""

    @property
    def has_loo(self) -> bool:
        """Whether leave-one-out predictions of all rows are at hand."""

    def leave_one_out(self) -> LeaveOneOut:
        """Return leave-one-out predictions of training rows, if they were computed when the leaves were conditioned."""

    def drop_loo(self) -> None:
        """Free what leave-one-out predictions take beyond what is needed to predict, once they have been used."""

    @property
    def factors_at_hand(self) -> bool:
        """Whether :meth:`leaf_factor` returns factors."""

    def leaf_factor(self, leaf: int) -> tuple[OutputFactor, ...] | None:
        """Return the factor of a leaf and what follows from it, output by output; None if it is not at hand."""

    def to_memory(self) -> InMemoryLeafPosterior:
        """Return the same posterior with all leaves in this process."""

    def online(self, ids: Index) -> OnlineLeafPosterior:
        """Return this posterior in a form to which rows can be added and from which they can be removed.

        Parameters
        ----------
        ids : ndarray of shape (n_rows,)
            Identifiers of the training rows, by which they are removed.
        """

    def settled(self) -> LeafPosterior:
        """Return this posterior if all leaves are conditioned on the rows of ``leaf_gps``: not after online updates."""
