"""Conditioning of overlapping leaves: one Cholesky factor, and one inverse of it, for each chain of nested leaves.

The leading rows of a triangular system do not depend on the others. So one factor L serves a whole chain (see
:mod:`dsmgp.experts.factors.sharing`), and so do ``L^-1 (y - mean)`` and ``L^-1``, of which each leaf takes its leading block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.interface import (
    PAIR_FLOPS,
    PARALLEL_ROWS,
    BoundKernels,
    LeafPosteriorBatch,
    PredictRequest,
)
from dsmgp.experts.factors.cache import LeadingBlocks, LeafFactors
from dsmgp.experts.factors.sharing import SharedFactors, SharingPlan, direct_flops, plan_sharing
from dsmgp.experts.points import LeafPoints, Observations
from dsmgp.linalg import lapack
from dsmgp.linalg.threads import n_threads

if TYPE_CHECKING:
    from dsmgp.experts.leaf_gps import InMemoryLeafGPs

__all__ = ["SharedFactorBackend"]

# Leaves of more inputs hardly ever lie within one another.
MOST_INPUTS = 4
# Estimated speed-up from which on leaves share: the estimate is a rough one.
LEAST_GAIN = 1.25
# Largest cost of a plan, as a share of the cost of conditioning without it.
MOST_PLANNING = 0.12
# Costs besides factors, their inverses and PAIR_FLOPS, in flops (10 in a nanosecond), as measured: of a leaf in a chain, in
# the interpreter, where threads wait for one another; of a plan, each of its leaves, and their rows.
CHAINED_FLOPS = 1.8e6
PLAN_FLOPS, PLANNED_FLOPS, PLANNED_ROW_FLOPS = 2e7, 2e5, 1e3


class SharedFactorBackend:
    """A :class:`~dsmgp.experts.backends.interface.Backend` for leaves with the same kernel and hyperparameters.

    A group is a chain of nested leaves, or consists of leaves that share with no other, which the usual backend
    conditions.

    Parameters
    ----------
    leaf_gps : InMemoryLeafGPs
    plan : SharingPlan
    bound : BoundKernels
        Factors are computed once, at these hyperparameters.
    """

    def __init__(self, leaf_gps: InMemoryLeafGPs, plan: SharingPlan, bound: BoundKernels) -> None:
        self.plan, self.bound = plan, bound
        groups = _all_points(leaf_gps)
        self.points = _points_of(plan.rows, groups)
        self._usual = leaf_gps.backend_for(self.points)
        self._chains = _chains(plan)
        chained = {leaf for chain in self._chains for leaf in chain.tolist()}
        rest = [rows[: 0 if k in chained else None] for k, rows in enumerate(plan.rows)]
        self._rest = leaf_gps.backend_for(_points_of(rest, groups))
        self.groups = self._chains + self._rest.groups
        self._observed = [
            _Observed.of(leaf_gps, groups, bound, k) for k in range(leaf_gps.n_outputs)
        ]
        self._factors = [
            SharedFactors(plan, partial(self._fill, k)) for k in range(leaf_gps.n_outputs)
        ]

    @classmethod
    def where_it_pays(
        cls, leaf_gps: InMemoryLeafGPs, bound: BoundKernels, memory: float
    ) -> SharedFactorBackend | None:
        """Return a backend if the leaves can share factors, it is faster, and the factors fit in ``memory`` bytes."""
        points = leaf_gps.points
        sizes = points.first.sizes
        if not _can_share(leaf_gps, bound) or not _may_pay(sizes, leaf_gps):
            return None
        plan = plan_sharing([points.first[k] for k in range(leaf_gps.n_leaves)])
        n_bytes = 8 * leaf_gps.n_outputs * sum(int(sizes[leaf]) ** 2 for leaf in plan.flops)
        if n_bytes > memory or _gain(plan, n_threads()) < LEAST_GAIN:
            return None
        return cls(leaf_gps, plan, bound)

    def elements(self, group: int) -> int:
        if group >= len(self._chains):
            return self._rest.elements(group - len(self._chains))
        return int(self.points.first.sizes[self._chains[group][0]]) ** 2

    def reduce_batches(self) -> bool:
        return False

    def condition(
        self,
        bound: BoundKernels,
        output: int,
        group: int,
        keep: bool,
        leave_out: bool,
    ) -> LeafPosteriorBatch:
        assert bound is self.bound, "factors are computed for other hyperparameters"
        if group >= len(self._chains):
            return self._rest.condition(bound, output, group - len(self._chains), keep, leave_out)
        leaves = self._chains[group]
        sizes, largest = self.points.first.sizes[leaves], int(leaves[0])
        L = self._factors[output].lower(largest)
        observed, rows = self._observed[output], self.plan.rows[largest]
        white = observed.residual[rows]
        lapack.solve_lower(L, white)  # L^-1 (y - mean)
        # The log evidence (R&W eq. 2.30) is a sum over points, of which a leaf takes its leading ones.
        losses = np.cumsum(
            0.5 * np.square(white) + np.log(L.diagonal()) + 0.5 * LOG_2PI + observed.loss[rows]
        )
        alpha = {n: _solve_transposed(L[:n, :n], white[:n]) for n in set(sizes.tolist())}
        return LeafPosteriorBatch(
            log_evidence=-losses[sizes - 1],
            jitter=np.zeros(len(leaves)),
            alpha=np.concatenate([alpha[n] for n in sizes.tolist()]),
            factors=LeadingBlocks(L, sizes) if keep else None,
            inverse_diagonal=_inverse_diagonals(L, sizes.tolist()) if leave_out else None,
        )

    def _fill(self, output: int, leaf: int, K: Array, first: int) -> None:
        """Write the covariance of the observations at a leaf's points into the lower triangle of K, from row ``first`` on."""
        self._usual.fill(self.bound, output, leaf, K, first)
        rows = self.plan.rows[leaf]
        diagonal = np.arange(first, len(rows))
        K[diagonal, diagonal] -= self._observed[output].less_noise[rows[first:]]

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Array, Array]:
        return self._usual.predict(bound, output, request)

    def hold_factors(self, matrices: Sequence[Array]) -> LeafFactors:
        return self._usual.hold_factors(matrices)


def _can_share(leaf_gps: InMemoryLeafGPs, bound: BoundKernels) -> bool:
    """Whether leaves have the same kernel and hyperparameters, on a CPU, in double precision."""
    points = leaf_gps.points
    if len(points.first.flat) < len(points.rows.flat) and not _have_all_rows(leaf_gps):
        return False
    if not lapack.available or leaf_gps.device != "cpu" or leaf_gps.dtype != "float64":
        return False
    one_kernel = all(len(set(by_leaf)) == 1 for by_leaf in leaf_gps.kernels)
    return one_kernel and all(parameters.ndim == 1 for parameters in bound.kernel_parameters)


def _have_all_rows(leaf_gps: InMemoryLeafGPs) -> bool:
    """Whether a leaf that has a row has all rows with its inputs, as the leaves of a tree do, and the same one comes first."""
    points, labels = leaf_gps.points, leaf_gps.labels
    assert labels is not None
    in_leaves = np.unique(points.rows.flat)
    first = np.full(labels.max() + 1, -1)
    first[labels[in_leaves][::-1]] = in_leaves[::-1]
    of_points = labels[points.first.flat]
    complete = np.diff(points.starts) == np.bincount(labels[in_leaves])[of_points]
    return bool(complete.all() and (first[of_points] == points.first.flat).all())


def _all_points(leaf_gps: InMemoryLeafGPs) -> LeafPoints:
    """The points of all rows in any leaf, as those of one leaf."""
    rows = np.unique(leaf_gps.leaf_rows.flat)
    return LeafPoints.of(Ragged.of([rows]), leaf_gps.labels, leaf_gps.row_weights)


def _points_of(first_rows: Sequence[Index], groups: LeafPoints) -> LeafPoints:
    """The points of leaves, given the first row at each of them in any order; ``groups`` are those of all rows."""
    first = Ragged.of(first_rows)
    if not groups.any_shared:
        return LeafPoints.of(first, None)
    number = np.empty(groups.first.flat.max() + 1, dtype=np.int64)
    number[groups.first.flat] = np.arange(len(groups.first.flat))
    members = Ragged(groups.rows.flat, groups.starts).take(number[first.flat])
    rows = Ragged(members.flat, members.ends[first.ends])
    return LeafPoints(rows, members.ends, first, groups.row_weights)


@dataclass(frozen=True, eq=False)
class _Observed:
    """One output at the points of all rows; arrays have an entry for each row, used at the first row of each point.

    Attributes
    ----------
    residual : ndarray of shape (n_rows,)
        Average of the rows at the point, minus the prior mean.
    less_noise : ndarray of shape (n_rows,)
        By how much the noise variance of that average is below that of the first row.
    loss : ndarray of shape (n_rows,)
        What the point takes from the log evidence beyond its average.
    """

    residual: Array
    less_noise: Array
    loss: Array

    @classmethod
    def of(
        cls, leaf_gps: InMemoryLeafGPs, groups: LeafPoints, bound: BoundKernels, output: int
    ) -> _Observed:
        kernel, first, rows = bound(output, 0), groups.first.flat, groups.rows.flat
        noise = np.full(len(rows), kernel.noise)
        if leaf_gps.known_noise is not None:
            noise = noise + leaf_gps.known_noise[rows, output]
        weights = groups.weights(rows)
        observations = Observations.of(leaf_gps.Y[rows, output], noise, groups.starts, weights)
        residual, less_noise, loss = np.zeros((3, len(leaf_gps.Y)))
        residual[first] = observations.mean - kernel.mean(leaf_gps.X[first])
        if observations.shared:
            less_noise[first] = noise[groups.starts[:-1]] - observations.variance
            within = 0.5 * (observations.squares + (observations.counts - 1) * LOG_2PI)
            loss[first] = within + observations.half_log_det
        return cls(residual, less_noise, loss)


def _may_pay(sizes: Index, leaf_gps: InMemoryLeafGPs) -> bool:
    """Whether leaves overlap at all, and a plan costs little compared to what it could save."""
    n_rows, n_inputs = leaf_gps.X.shape
    if n_inputs > MOST_INPUTS or sizes.sum() <= n_rows:
        return False
    planning = PLAN_FLOPS + PLANNED_FLOPS * len(sizes) + PLANNED_ROW_FLOPS * sizes.sum()
    without = leaf_gps.n_outputs * _flops(sizes).sum() / n_threads()
    return bool(planning < MOST_PLANNING * without)


def _flops(n: Index) -> Array:
    """Work on leaves of ``n`` rows, each for itself: kernel, factor, inverse."""
    return 2.0 / 3.0 * n.astype(np.float64) ** 3 + PAIR_FLOPS * n**2


def _gain(plan: SharingPlan, threads: int) -> float:
    """Estimated speed-up by a plan.

    Many small leaves keep all threads busy; a few large factors may not.
    """
    sizes = np.array([len(rows) for rows in plan.rows])
    # A large leaf is computed by all cores.
    spread = np.where(sizes > PARALLEL_ROWS, threads, 1)
    alone = _flops(sizes)
    separate = max(alone.sum() / threads, (alone / spread).max())
    # The plan counts factors and kernels; the rest of a leaf's work stays the same.
    rest = alone - direct_flops(sizes)
    work = {k: flops + rest[k] for k, flops in plan.flops.items()}
    longest = max(sum(work[k] / spread[k] for k in plan.lineage(owner)) for owner in work)
    n_chained = sum(map(len, _chains(plan)))
    shared = max(sum(work.values()) / threads, longest) + CHAINED_FLOPS * n_chained
    return float(separate / shared)


def _chains(plan: SharingPlan) -> list[Index]:
    """Leaves whose factors are leading blocks of one factor, or that others begin with; the largest come first."""
    by_size = sorted(range(len(plan.rows)), key=lambda k: (-len(plan.rows[k]), k))
    chains: dict[int, list[int]] = {}
    for leaf in by_size:
        if len(plan.rows[leaf]):
            chains.setdefault(plan.owner[leaf], []).append(leaf)
    related = {k for owner in plan.start for k in plan.lineage(owner)}
    return [
        np.array(chain) for owner, chain in chains.items() if len(chain) > 1 or owner in related
    ]


def _solve_transposed(L: Array, white: Array) -> Array:
    alpha = white.copy()
    lapack.solve_transposed(L, alpha)
    return alpha


def _inverse_diagonals(L: Array, sizes: list[int]) -> Array:
    """Diagonals of ``K^-1`` of the leaves of a chain, computed once for each size, one leaf after the other.

    Parameters
    ----------
    L : ndarray of shape (n, n)
        Factor of the largest leaf.
    sizes : list of int
        Sizes of the leaves.
    """
    inverse_factor = L.copy()
    lapack.invert_factor(inverse_factor)
    diagonal, n_summed = np.zeros(len(L)), 0
    by_size: dict[int, Array] = {}
    for n in sorted(set(sizes)):
        # It sums the squares of the columns of L^-1: over the rows of smaller leaves, and some more.
        rows = inverse_factor[n_summed:n, :n]
        diagonal[:n] += np.einsum("ij,ij->j", rows, rows)
        n_summed, by_size[n] = n, diagonal[:n].copy()
    return np.concatenate([by_size[n] for n in sizes])
