"""Online updates: training rows are added to leaves and removed from them without conditioning from scratch.

Leaves that have not changed are still predicted by the posterior the updates started from; each changed leaf is an
:class:`~dsmgp.experts.online.leaf.OnlineLeaf`. Everything is immutable: an update returns a new object that shares
whatever stayed the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import BoundKernels
from dsmgp.experts.factors.sharing import SharingPlan
from dsmgp.experts.interface import LeafGPs, LeafPosterior, NotAvailableError
from dsmgp.experts.loo import LeaveOneOut, leaf_scales
from dsmgp.experts.online.leaf import OnlineLeaf, OutputFactor
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.tree.routing import Routes

__all__ = ["OnlineLeafPosterior"]


@dataclass(frozen=True)
class OnlineLeafPosterior:
    """:class:`~dsmgp.experts.interface.LeafPosterior` after online updates.

    Attributes
    ----------
    base : LeafPosterior
        The posterior that the updates started from.
    ids : ndarray of shape (n_rows of the base,)
        Identifiers of the base's rows.
    changed : dict of int to OnlineLeaf
        Leaves that have changed, by number.
    log_evidence : ndarray of shape (n_leaves, n_outputs)
    n_rows : int
    """

    base: LeafPosterior
    ids: Index
    changed: dict[int, OnlineLeaf]
    log_evidence: Array
    n_rows: int

    pool: ClassVar[None] = None
    in_memory: ClassVar[None] = None
    has_loo: ClassVar[bool] = False

    @classmethod
    def start(cls, posterior: LeafPosterior, ids: Index) -> OnlineLeafPosterior:
        """Return a posterior without updates yet."""
        return cls(posterior, ids, {}, posterior.log_evidence, posterior.n_rows)

    def online(self, ids: Index) -> OnlineLeafPosterior:
        return self

    @property
    def leaf_gps(self) -> LeafGPs:
        return self.base.leaf_gps

    @property
    def kernel_parameters(self) -> list[Array]:
        return self.base.kernel_parameters

    @property
    def memory(self) -> float:
        return self.base.memory

    @property
    def bound(self) -> BoundKernels:
        return self.base.bound

    @property
    def noise(self) -> Array:
        return self.base.noise

    @property
    def factors_at_hand(self) -> bool:
        return self.base.factors_at_hand

    def settled(self) -> NoReturn:
        raise NotAvailableError(
            "rows were added or removed since the leaves were conditioned together; condition them again first"
        )

    def to_memory(self) -> NoReturn:
        self.settled()

    @property
    def leaf_rows(self) -> Ragged:
        self.settled()

    @property
    def leaf_sizes(self) -> Index:
        self.settled()

    @property
    def sharing(self) -> SharingPlan | None:
        self.settled()

    def leave_one_out(self) -> LeaveOneOut:
        self.settled()

    def drop_loo(self) -> None:
        self.base.drop_loo()

    def leaf_factor(self, leaf: int) -> tuple[OutputFactor, ...] | None:
        return self.changed[leaf].outputs if leaf in self.changed else self.base.leaf_factor(leaf)

    def n_bytes(self, routes: Routes, copies: bool) -> int:
        """Return the bytes of the factors of changed leaves, when those of ``routes`` have changed too.

        Parameters
        ----------
        routes : Routes
            Rows that are to be added or removed.
        copies : bool
            Whether that takes copies of whole factors, as it does to remove rows.
        """
        reached = routes.leaf.tolist()
        others = self.changed.keys() - reached
        held = sum(self.changed[k].n_bytes for k in others)
        sizes = np.array([self._n_points(k) for k in reached], dtype=np.int64)
        n_new = routes.rows.sizes
        elements = np.square(sizes) if copies or not self.base.factors_at_hand else 0 * sizes
        for place, k in enumerate(reached):
            if k in self.changed:
                elements[place] = max(elements[place], self.changed[k].n_bytes // 8)
        return held + 8 * self.leaf_gps.n_outputs * int((elements + n_new * (sizes + n_new)).sum())

    def _n_points(self, leaf: int) -> int:
        if leaf in self.changed:
            return len(self.changed[leaf].starts) - 1
        return int(self.base.leaf_sizes[leaf])

    def with_rows(
        self,
        routes: Routes,
        ids: Index,
        X: Array,
        Y: Array,
        known_noise: Array | None,
        weights: Array | None = None,
    ) -> OnlineLeafPosterior:
        """Add rows.

        Parameters
        ----------
        routes : Routes
            The leaves that the new rows reach.
        ids : ndarray of shape (n,)
            Identifiers of the new rows.
        X, Y : ndarray of shape (n, n_dims), (n, n_outputs)
            In the units of the leaf GPs.
        known_noise : ndarray of shape (n, n_outputs), optional
        weights : ndarray of shape (n,), optional
        """
        noise = np.zeros_like(Y) if known_noise is None else known_noise

        def update(place: int) -> OnlineLeaf:
            number, rows = int(routes.leaf[place]), routes.rows[place]
            leaf, kernels = self.leaf(number), self._kernels(number)
            of_rows = None if weights is None else weights[rows]
            return leaf.with_rows(kernels, ids[rows], X[rows], Y[rows], noise[rows], of_rows)

        return self._updated(routes, update, self.n_rows + len(ids))

    def without_rows(self, routes: Routes, ids: Index) -> OnlineLeafPosterior:
        """Remove the rows with these identifiers from the leaves that they reach."""

        def update(place: int) -> OnlineLeaf:
            number = int(routes.leaf[place])
            return self.leaf(number).without_rows(self._kernels(number), ids[routes.rows[place]])

        return self._updated(routes, update, self.n_rows - len(ids))

    def _updated(
        self, routes: Routes, update: Callable[[int], OnlineLeaf], n_rows: int
    ) -> OnlineLeafPosterior:
        numbers = routes.leaf.tolist()
        leaves = self.leaf_gps.threads.map(update, range(len(numbers)))
        evidence = self.log_evidence.copy()
        for number, leaf in zip(numbers, leaves, strict=True):
            evidence[number] = leaf.log_evidence
        changed = self.changed | dict(zip(numbers, leaves, strict=True))
        return replace(self, changed=changed, log_evidence=evidence, n_rows=n_rows)

    def leaf(self, number: int) -> OnlineLeaf:
        """Return a leaf in the form that can be updated."""
        if number in self.changed:
            return self.changed[number]
        rows, leaf_gps = self.base.leaf_rows[number], self.leaf_gps
        X, Y = leaf_gps.data.X[rows], leaf_gps.data.Y[rows]
        noise = leaf_gps.data.known_noise
        known_noise = np.zeros_like(Y) if noise is None else noise[rows]
        weights = None if leaf_gps.data.row_weights is None else leaf_gps.data.row_weights[rows]
        factors = self.base.leaf_factor(number)
        if factors is None:
            return OnlineLeaf.from_rows(
                self._kernels(number), self.ids[rows], X, Y, known_noise, weights
            )
        starts = np.arange(len(rows) + 1)
        if len(factors[0].alpha) < len(rows):
            assert leaf_gps.data.labels is not None
            labels = leaf_gps.data.labels[rows]  # equal ones are next to each other
            starts = np.append(np.flatnonzero(np.append(True, np.diff(labels) != 0)), len(rows))
        return OnlineLeaf(self.ids[rows], X, Y, known_noise, weights, starts, factors)

    def scales(self, leaves: Index) -> Array:
        """Return the scales of leaves that have changed, (n, n_outputs)."""
        squares, counts = zip(*(self.changed[int(k)].squares for k in leaves), strict=True)
        return leaf_scales(np.stack(squares), np.stack(counts))

    def predict(self, routes: Routes, X: Array, with_variance: bool = True) -> tuple[Array, Array]:
        has_changed = np.array([int(k) in self.changed for k in routes.leaf], dtype=bool)
        n_pairs, n_outputs = len(routes.rows.flat), self.leaf_gps.n_outputs
        mean = np.empty((n_pairs, n_outputs))
        variance = np.empty((n_pairs if with_variance else 0, n_outputs))
        unchanged = np.flatnonzero(~has_changed)
        if len(unchanged):
            pairs = routes.rows.positions(unchanged)
            part = Routes(routes.leaf[unchanged], routes.rows.take(unchanged))
            means, variances = self.base.predict(part, X, with_variance)
            mean[pairs] = means
            if with_variance:
                variance[pairs] = variances

        def work(place: int) -> tuple[Array, Array]:
            number, rows = int(routes.leaf[place]), X[routes.rows[place]]
            return self.changed[number].predict(self._kernels(number), rows, with_variance)

        changed = np.flatnonzero(has_changed).tolist()
        for place, result in zip(changed, self.leaf_gps.threads.map(work, changed), strict=True):
            where = slice(*routes.rows.ends[place : place + 2].tolist())
            mean[where] = result[0]
            if with_variance:
                variance[where] = result[1]
        return mean, variance

    def joint(self, leaf: int, X: Array) -> tuple[Array, Array]:
        if leaf not in self.changed:
            return self.base.joint(leaf, X)
        return self.changed[leaf].joint(self._kernels(leaf), X)

    def _kernels(self, number: int) -> list[BoundLeafKernel]:
        return [self.bound(output, number) for output in range(self.leaf_gps.n_outputs)]
