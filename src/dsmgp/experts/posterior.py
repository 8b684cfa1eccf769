"""The posterior of all leaf GPs in this process: prediction by the leaves that a row reaches.

:func:`dsmgp.experts.conditioning.condition` makes it; see :class:`dsmgp.experts.interface.LeafPosterior` for the interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import solve_triangular

from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import Backend, BoundKernels, PredictRequest
from dsmgp.experts.factors.cache import FactorCache, GroupFactors
from dsmgp.experts.factors.sharing import SharingPlan
from dsmgp.experts.leaf_bases import LeafBases, LeafBasis, MadeBases, Tolerances
from dsmgp.experts.loo import LeafLOO, LeaveOneOut, LOOMoments
from dsmgp.experts.online.grown_factor import GrownFactor
from dsmgp.experts.online.leaf import OutputFactor, inverse_diagonal
from dsmgp.experts.online.posterior import OnlineLeafPosterior
from dsmgp.experts.points import Observations
from dsmgp.experts.row_table import RowTable
from dsmgp.linalg.device_memory import within_memory
from dsmgp.tree.routing import Routes

if TYPE_CHECKING:
    from dsmgp.experts.leaf_gps import InMemoryLeafGPs

__all__ = ["InMemoryLeafPosterior", "factorise"]

# Multiplications and (leaf, row) pairs of a prediction that takes less time than starting threads for it.
BRIEF, BRIEF_PAIRS = 1e7, 1000
# Test rows of a large leaf that are predicted at a time from low-rank variances.
TILE_ROWS = 1024


class InMemoryLeafPosterior:
    """:class:`~dsmgp.experts.interface.LeafPosterior` in the memory of this process; made by :func:`condition`.

    Parameters
    ----------
    leaf_gps : InMemoryLeafGPs
    kernel_parameters : sequence of ndarray
    bound : BoundKernels
        The kernels at these parameters.
    backend : Backend
        Predicts; its groups and its points are the order of ``factors`` and ``alpha``.
    log_evidence : ndarray of shape (n_leaves, n_outputs)
    alpha : list of ndarray of shape (n_points,)
        ``K^-1 (y - mean)`` by output, one leaf after the other.
    factors : FactorCache
        Lower Cholesky factors by group.
    memory : float
        Bytes up to which factors are kept.
    inverse_diagonal : list of ndarray of shape (n_points,), optional
        Diagonals of ``K^-1`` by output, for leave-one-out.
    """

    def __init__(
        self,
        leaf_gps: InMemoryLeafGPs,
        kernel_parameters: Sequence[Array],
        bound: BoundKernels,
        backend: Backend,
        log_evidence: Array,
        alpha: list[Array],
        factors: FactorCache,
        memory: float,
        inverse_diagonal: list[Array] | None = None,
    ) -> None:
        self.leaf_gps, self.kernel_parameters = leaf_gps, list(kernel_parameters)
        self.bound, self.backend, self.memory = bound, backend, memory
        self.log_evidence, self.alpha, self.factors = log_evidence, alpha, factors
        self.inverse_diagonal = inverse_diagonal
        self.noise, self.points, self.leaf_rows = bound.noise, backend.points, backend.points.rows
        #: Group of each leaf and its position there, (n_leaves,); -1 for leaves without rows.
        self.group, self.slot = np.full((2, leaf_gps.n_leaves), -1)
        for group, leaves in enumerate(backend.groups):
            self.group[leaves], self.slot[leaves] = group, np.arange(len(leaves))
        #: Low-rank variances of large leaves.
        self.bases = LeafBases(self)
        # With exact variances, and with low-rank ones.
        self._row_tables: list[list[RowTable]] = [[], []]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_row_tables": [[], []]}  # they hold addresses

    def prepare(
        self,
        leaves: Index,
        n_rows: Index,
        alone: bool,
        tolerances: Tolerances,
    ) -> MadeBases:
        """Make low-rank variances where they pay, before a prediction (:meth:`LeafBases.prepare`); return all that there are."""
        if self.backend.compiled is None:
            return self.bases.made
        return self.bases.prepare(self, leaves, n_rows, alone, tolerances)

    def predict_few(
        self, leaves: Index, Z: Array, with_variance: bool, bases: Mapping[int, LeafBasis] | None
    ) -> tuple[Array, Array] | None:
        """Predict f at few rows in one compiled call; None if that is not possible.

        Parameters
        ----------
        leaves : ndarray of shape (n, n_reached)
            Leaves of each row; -1 for none.
        Z : ndarray of shape (n, n_dims)
        with_variance : bool
        bases : mapping of int to LeafBasis, optional
            For low-rank variances of these leaves.

        Returns
        -------
        mean, variance : ndarray of shape (n, n_reached, n_outputs)
        """
        if self.backend.compiled is None:
            return None
        kind, bases = int(bases is not None), {} if bases is None else bases
        tables = self._row_tables[kind]
        if not tables:
            outputs = range(self.leaf_gps.n_outputs)
            tables = self._row_tables[kind] = [RowTable(self, k, bases) for k in outputs]
        elif kind and tables[0].bases is not bases:
            tables = self._row_tables[kind] = [table.with_bases(bases) for table in tables]
        Z = np.ascontiguousarray(Z, np.float64)
        leaves = np.ascontiguousarray(leaves, np.int64)
        found = [table.predict(leaves, Z, with_variance) for table in tables]
        if any(each is None for each in found):
            return None
        means, variances = zip(*(each for each in found if each is not None), strict=True)
        return np.stack(means, axis=-1), np.stack(variances, axis=-1)

    pool = None  # leaves are in this process

    @property
    def in_memory(self) -> InMemoryLeafPosterior:
        return self

    #: Leaves can be updated without factorising them here.
    factors_at_hand = True

    def settled(self) -> InMemoryLeafPosterior:
        return self

    def to_memory(self) -> InMemoryLeafPosterior:
        return self

    def online(self, ids: Index) -> OnlineLeafPosterior:
        return OnlineLeafPosterior.start(self, ids)

    @property
    def n_rows(self) -> int:
        return len(self.leaf_gps.data.Y)

    @property
    def leaf_sizes(self) -> Index:
        return self.leaf_rows.sizes

    @property
    def sharing(self) -> SharingPlan | None:
        return self.backend.plan

    def ready(self, leaf: int) -> None:
        """Condition a leaf, if that was not done before: ``alpha`` has its entries then, and ``factors`` its factor, if it is kept."""

    def factor(self, output: int, leaf: int) -> Array:
        """Return the lower Cholesky factor of a leaf with rows."""
        return self.factors.get(int(self.group[leaf]))[output][int(self.slot[leaf])]

    def leaf_factor(self, leaf: int) -> tuple[OutputFactor, ...] | None:
        place = self.place(leaf)
        by_output = []
        for output in range(self.leaf_gps.n_outputs):
            factor = GrownFactor.of(np.empty((0, 0)))
            if self.group[leaf] >= 0:
                n = place.stop - place.start
                # Looked up when it is used: the cache may drop it and compute it again.
                factor = GrownFactor(partial(self.factor, output, leaf), np.empty((0, n)))
            if self.inverse_diagonal is None:
                diagonal = inverse_diagonal(np.tril(factor.block))
            else:
                diagonal = self.inverse_diagonal[output][place]
            alpha, evidence = self.alpha[output][place], float(self.log_evidence[leaf, output])
            noise = float(self.noise[leaf, output])
            by_output.append(OutputFactor(factor, alpha, diagonal, evidence, noise))
        return tuple(by_output)

    def leaf_loo(self) -> LeafLOO:
        """Return the leave-one-out predictions of each leaf."""
        known_noise, shared = self.leaf_gps.data.known_noise, self.points.any_shared
        return LeafLOO(
            self._loo_moments(),
            self.leaf_rows,
            self.leaf_gps.data.Y,
            known_noise,
            self.leaf_gps.data.labels if shared else None,
            self.points.row_weights,
        )

    def _loo_moments(self) -> LOOMoments:
        """Leave-one-out moments in the order of ``leaf_rows`` (R&W eqs. 5.10 to 5.12)."""
        assert self.inverse_diagonal is not None, "leave-one-out predictions were not computed"
        rows, owner, points = self.leaf_rows.flat, self.leaf_rows.owner, self.points
        tables: list[tuple[Array, ...]] = []
        for output, diagonal in enumerate(self.inverse_diagonal):
            variance = 1.0 / diagonal
            residual, y = self.alpha[output] * variance, self.leaf_gps.data.Y[rows, output]
            if not points.any_shared:
                tables.append((y - residual, variance))
                continue
            noise = self.noise[owner, output]
            if self.leaf_gps.data.known_noise is not None:
                noise = noise + self.leaf_gps.data.known_noise[rows, output]
            observations = Observations.of(y, noise, points.starts, points.weights(rows))
            tables.append(observations.leave_one_out(residual, variance))
        stacked = [np.stack(by_output, axis=1) for by_output in zip(*tables, strict=True)]
        if points.any_shared:
            return LOOMoments(*stacked)
        mean, variance = stacked
        return LOOMoments(mean, variance, mean, variance, None)  # no duplicates: not kept twice

    @property
    def has_loo(self) -> bool:
        return self.inverse_diagonal is not None

    def leave_one_out(self) -> LeaveOneOut:
        loo = self.leaf_loo()
        return LeaveOneOut(loo.squares, loo.counts, loo.pairs, loo.known_noise is not None)

    def drop_loo(self) -> None:
        pass  # the diagonals stay: online updates change them, and to compute them costs as much as the factor

    def predict(
        self,
        routes: Routes,
        X: Array,
        with_variance: bool = True,
        bases: Mapping[int, LeafBasis] | None = None,
    ) -> tuple[Array, Array]:
        n_outputs, n_pairs = self.leaf_gps.n_outputs, len(routes.rows.flat)
        mean = np.empty((n_pairs, n_outputs))
        variance = np.empty((n_pairs if with_variance else 0, n_outputs))
        members = self._by_group(routes.leaf)
        by_basis = bases if bases and with_variance else {}

        def work(group: int) -> None:
            places = members[group]
            has_basis = np.array([leaf in by_basis for leaf in routes.leaf[places].tolist()])
            for place in places[has_basis].tolist():
                leaf, pairs = int(routes.leaf[place]), routes.rows.positions([place])
                tests = X[routes.rows[place]]
                mean[pairs], variance[pairs] = self._predict_by_basis(leaf, by_basis[leaf], tests)
            places = places[~has_basis]
            if len(places):
                pairs, rows = routes.rows.positions(places), routes.rows.take(places)
                means, variances = self._predict_group(
                    group, routes.leaf[places], X, rows, with_variance
                )
                mean[pairs] = means
                if with_variance:
                    variance[pairs] = variances

        # Groups are in order of size; leaves without rows (group -1) go last.
        groups = sorted(members, key=lambda group: (group < 0, group))
        work_load = np.square(self.points.first.sizes[routes.leaf]) @ routes.rows.sizes
        brief = self.leaf_gps.compiled and n_pairs <= BRIEF_PAIRS and work_load <= BRIEF / n_outputs
        within_memory(
            lambda: self.leaf_gps.map(self.backend, work, groups, bool(brief)), self._reduce_memory
        )
        return mean, variance

    def _predict_by_basis(self, leaf: int, basis: LeafBasis, tests: Array) -> tuple[Array, Array]:
        """Predict by a leaf that has low-rank variances."""
        backend, by_output = self.backend.compiled, []
        assert backend is not None
        for output, low_rank in enumerate(basis):
            mean, variance = np.empty((2, len(tests)))
            for first in range(0, len(tests), TILE_ROWS):
                tile = slice(first, first + TILE_ROWS)
                mean[tile], covariances = backend.covariances(
                    self.bound, output, leaf, low_rank, tests[tile]
                )
                variance[tile] = low_rank.variance(covariances)
            by_output.append((mean, variance))
        means, variances = zip(*by_output, strict=True)
        return np.stack(means, axis=1), np.stack(variances, axis=1)

    def joint(self, leaf: int, X: Array) -> tuple[Array, Array]:
        means, covariances = [], []
        train = self.leaf_gps.data.X[self.points.first[leaf]]
        for output in range(self.leaf_gps.n_outputs):
            kernel = self.bound(output, leaf)
            mean, covariance = kernel.mean(X), kernel.cross(X, X)
            if len(train):
                cross, factor = kernel.cross(X, train), self.factor(output, leaf)
                mean = mean + cross @ self.alpha[output][self.place(leaf)]
                half = solve_triangular(factor, cross.T, lower=True, check_finite=False)
                covariance = covariance - half.T @ half
            means.append(mean)
            covariances.append(covariance)
        return np.stack(means, axis=1), np.stack(covariances)

    def place(self, leaf: int) -> slice:
        """Where the points of a leaf stand among all points."""
        return slice(*self.points.first.ends[leaf : leaf + 2].tolist())

    def _by_group(self, leaves: Index) -> dict[int, Index]:
        """Positions in ``leaves`` of the members of each group."""
        group = self.group[leaves]
        order = np.argsort(group, kind="stable")
        numbers, starts = np.unique(group[order], return_index=True)
        return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))

    def _predict_group(
        self, group: int, leaves: Index, X: Array, rows: Ragged, with_variance: bool
    ) -> tuple[Array, Array]:
        """Predict by leaves of one group; ``rows`` are the numbers of each leaf's test rows.

        Parameters
        ----------
        group : int
            -1 for leaves without rows, which predict their prior.
        leaves : ndarray of shape (n_leaves,)
        X : ndarray of shape (n_test, n_dims)
        rows : Ragged
        with_variance : bool

        Returns
        -------
        mean, variance : ndarray of shape (n_pairs, n_outputs)
        """
        factors = self.factors.get(group) if with_variance and group >= 0 else None
        by_output = []
        for output in range(self.leaf_gps.n_outputs):
            if group < 0:
                by_output.append(self._predict_prior(output, leaves, X, rows, with_variance))
                continue
            of_output = None if factors is None else factors[output]
            request = PredictRequest(
                leaves, self.slot[leaves], X, rows.flat, rows.ends, self.alpha[output], of_output
            )
            by_output.append(self.backend.predict(self.bound, output, request))
        means, variances = zip(*by_output, strict=True)
        return np.stack(means, axis=1), np.stack(variances, axis=1)

    def _predict_prior(
        self, output: int, leaves: Index, X: Array, rows: Ragged, with_variance: bool
    ) -> tuple[Array, Array]:
        """Predict by leaves without rows."""
        means, variances = [], [np.empty(0)]
        for k, leaf in enumerate(leaves.tolist()):
            kernel, test = self.bound(output, leaf), X[rows[k]]
            means.append(kernel.mean(test))
            if with_variance:
                variances.append(kernel.variance(test))
        return np.concatenate(means), np.concatenate(variances)

    def _reduce_memory(self) -> bool:
        """Keep fewer factors and predict in smaller batches; groups of leaves stay as they are."""
        dropped = self.factors.keep_less()
        return self.backend.reduce_batches() or dropped


def factorise(backend: Backend, bound: BoundKernels, n_outputs: int, group: int) -> GroupFactors:
    """Return the Cholesky factors of a group, by output."""
    batches = [backend.condition(bound, output, group, True, False) for output in range(n_outputs)]
    return [batch.factors for batch in batches if batch.factors is not None]
