"""Conditioning of overlapping leaves: one Cholesky factor, and one inverse of it, for each chain of nested leaves.

The leading rows of a triangular system do not depend on the others. So one factor L serves a whole chain (see
:mod:`dsmgp.experts.factors.sharing`), and so do ``L^-1 (y - mean)`` and ``L^-1``, of which each leaf takes its leading block.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    TrainingBackend,
    kernel_codes,
)
from dsmgp.experts.factors.cache import LeadingBlocks
from dsmgp.experts.factors.sharing import CALL_FLOPS, SharingPlan, plan_sharing
from dsmgp.experts.points import LeafPoints, Observations
from dsmgp.linalg import lapack
from dsmgp.linalg.threads import n_threads

if TYPE_CHECKING:
    from dsmgp.experts.backends.numba_backend import NumbaBackend
    from dsmgp.experts.leaf_gps import InMemoryLeafGPs

__all__ = ["JitterNeeded", "SharedFactorBackend"]

# Estimated speed-up from which on leaves share: the estimate is a rough one.
LEAST_GAIN = 1.25
# Largest cost of a plan, as a share of the cost of conditioning without it.
MOST_PLANNING = 0.12
# Costs of a plan in flops (10 in a nanosecond), as measured: of itself, each of its leaves, and their rows.
PLAN_FLOPS, PLANNED_FLOPS, PLANNED_ROW_FLOPS = 2e7, 2e5, 1e3


class JitterNeeded(ArithmeticError):
    """The largest leaf of a chain is only factorised with jitter, of which the others may need less: they cannot share."""


class SharedFactorBackend:
    """A :class:`~dsmgp.experts.backends.interface.Backend` whose leaves share factors by a plan.

    The usual backend conditions the largest leaf of each chain, and the leaves that share with no other. A group consists of
    the chains of some largest leaves, or of leaves that do not share.

    Parameters
    ----------
    leaf_gps : InMemoryLeafGPs
    plan : SharingPlan
    """

    def __init__(self, leaf_gps: InMemoryLeafGPs, plan: SharingPlan) -> None:
        self.plan, self._leaf_gps = plan, leaf_gps
        every = _all_points(leaf_gps)
        self.points = _points_of(plan.rows, every)
        chains = _chains(plan)
        chained = {leaf for chain in chains.values() for leaf in chain}

        def only(leaves: set[int]) -> TrainingBackend:
            rows = [rows[: None if k in leaves else 0] for k, rows in enumerate(plan.rows)]
            return leaf_gps.backend_for(_points_of(rows, every))

        self._usual = leaf_gps.backend_for(self.points)
        self._largest = only(set(chains))
        self._alone = only(set(range(len(plan.rows))) - chained)
        self._chains = [[chains[k] for k in leaves.tolist()] for leaves in self._largest.groups]
        of_chains = [np.concatenate(of_group) for of_group in self._chains]
        self.groups = of_chains + self._alone.groups

    @classmethod
    def where_it_pays(
        cls, leaf_gps: InMemoryLeafGPs, bound: BoundKernels, memory: float
    ) -> SharedFactorBackend | None:
        """Return a backend if the leaves can share factors, it is faster, and the factors fit in ``memory`` bytes."""
        points, families = leaf_gps.points, _families(bound)
        sizes = points.first.sizes
        if not _can_share(leaf_gps) or not _may_pay(sizes, families, leaf_gps):
            return None
        plan = plan_sharing([points.first[k] for k in range(leaf_gps.n_leaves)], families)
        n_bytes = 8 * leaf_gps.n_outputs * sum(int(sizes[leaf]) ** 2 for leaf in plan.flops)
        if n_bytes > memory or _gain(plan, n_threads()) < LEAST_GAIN:
            return None
        return cls(leaf_gps, plan)

    def elements(self, group: int) -> int:
        if group >= len(self._chains):
            return self._alone.elements(group - len(self._chains))
        return self._largest.elements(group)

    @property
    def compiled(self) -> NumbaBackend | None:
        return self._usual.compiled

    def reduce_batches(self) -> bool:
        return False

    def condition(
        self, bound: BoundKernels, output: int, group: int, keep: bool, leave_out: bool
    ) -> LeafPosteriorBatch:
        if group >= len(self._chains):
            return self._alone.condition(bound, output, group - len(self._chains), keep, leave_out)
        largest = self._largest.condition(bound, output, group, True, False)
        if np.any(largest.jitter != 0.0):
            raise JitterNeeded
        assert largest.factors is not None
        evidence, alpha, diagonals = [], [], []
        for slot, chain in enumerate(self._chains[group]):
            # Contiguous columns, as LAPACK takes them.
            L = np.ascontiguousarray(largest.factors[slot], np.float64)
            sizes = self.points.first.sizes[chain]
            of_chain = self._solve_chain(bound, output, int(chain[0]), L, sizes)
            evidence.append(of_chain[0])
            alpha.append(of_chain[1])
            if leave_out:
                diagonals.append(_inverse_diagonals(L, sizes.tolist()))
        leaves = self.groups[group]
        owner = np.repeat(np.arange(len(evidence)), [len(each) for each in evidence])
        factors = LeadingBlocks(largest.factors, owner, self.points.first.sizes[leaves])
        return LeafPosteriorBatch(
            log_evidence=np.concatenate(evidence),
            jitter=np.zeros(len(leaves)),
            alpha=np.concatenate(alpha),
            factors=factors if keep else None,
            inverse_diagonal=np.concatenate(diagonals) if leave_out else None,
        )

    def _solve_chain(
        self, bound: BoundKernels, output: int, largest: int, L: Array, sizes: Index
    ) -> tuple[Array, Array]:
        """Return the log evidence (n_leaves,) and alpha (n_points,) of the leaves of a chain.

        Parameters
        ----------
        bound : BoundKernels
        output, largest : int
            The largest leaf.
        L : ndarray of shape (n, n)
            Its factor.
        sizes : ndarray of shape (n_leaves,)
            Points of each leaf of the chain.
        """
        kernel, points, leaf_gps = bound(output, largest), self.points, self._leaf_gps
        rows, starts = points.of_leaf(largest)
        noise = np.full(len(rows), kernel.noise)
        if leaf_gps.data.known_noise is not None:
            noise += leaf_gps.data.known_noise[rows, output]
        y, weights = leaf_gps.data.Y[rows, output], points.weights(rows)
        observations = Observations.of(y, noise, starts, weights)
        white = observations.mean - kernel.mean(leaf_gps.data.X[points.first[largest]])
        lapack.solve_lower(L, white)  # L^-1 (y - mean)
        # The log evidence (R&W eq. 2.30) is a sum over points, of which a leaf takes its leading ones.
        losses = 0.5 * np.square(white) + np.log(L.diagonal()) + 0.5 * LOG_2PI
        if observations.shared:
            losses += 0.5 * (observations.squares + (observations.counts - 1) * LOG_2PI)
            losses += observations.half_log_det
        alpha = {n: _solve_transposed(L[:n, :n], white[:n]) for n in set(sizes.tolist())}
        return -np.cumsum(losses)[sizes - 1], np.concatenate([alpha[n] for n in sizes.tolist()])

    def predict(
        self, bound: BoundKernels, output: int, request: PredictRequest
    ) -> tuple[Array, Array]:
        return self._usual.predict(bound, output, request)


def _families(bound: BoundKernels) -> Index:
    """Return a number for each leaf, equal for leaves with the same kernels and hyperparameters."""
    columns = [np.array(kernel_codes(bound.kernels), np.float64)[:, None]]
    columns += [table for table in bound.kernel_parameters if table.ndim == 2]
    return np.unique(np.hstack(columns), axis=0, return_inverse=True)[1].reshape(-1)


def _can_share(leaf_gps: InMemoryLeafGPs) -> bool:
    """Whether leaves are computed on a CPU, in double precision, and have all rows at each of their points."""
    points = leaf_gps.points
    if len(points.first.flat) < len(points.rows.flat) and not _have_all_rows(leaf_gps):
        return False
    return lapack.available and leaf_gps.device == "cpu" and leaf_gps.dtype == "float64"


def _have_all_rows(leaf_gps: InMemoryLeafGPs) -> bool:
    """Whether a leaf that has a row has all rows with its inputs, as the leaves of a tree do, and the same one comes first."""
    points, labels = leaf_gps.points, leaf_gps.data.labels
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
    return LeafPoints.of(Ragged.of([rows]), leaf_gps.data.labels, leaf_gps.data.row_weights)


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


def _may_pay(sizes: Index, families: Index, leaf_gps: InMemoryLeafGPs) -> bool:
    """Whether leaves of a family overlap, and a plan costs little compared to what it could save."""
    in_family = np.bincount(families, sizes)
    if not (in_family > len(leaf_gps.data.X)).any():
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
    work = _flops(sizes)
    separate, shared = (
        max(work[leaves].sum() / threads, (work[leaves] / spread[leaves]).max(initial=0.0))
        for leaves in (np.arange(len(sizes)), list(plan.flops))
    )
    # Chains are solved in the interpreter, where threads wait for one another.
    calls = CALL_FLOPS * sum(map(len, _chains(plan).values()))
    return float(separate / (shared + calls))


def _chains(plan: SharingPlan) -> dict[int, Index]:
    """Leaves whose factors are leading blocks of one factor, by the leaf that is factorised; the largest come first."""
    chains: dict[int, list[int]] = {}
    for leaf in sorted(range(len(plan.rows)), key=lambda k: (-len(plan.rows[k]), k)):
        if len(plan.rows[leaf]):
            chains.setdefault(plan.owner[leaf], []).append(leaf)
    return {owner: np.array(chain) for owner, chain in chains.items() if len(chain) > 1}


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
    inverse_factor = np.tril(L)
    lapack.invert_factor(inverse_factor)
    diagonal, n_summed = np.zeros(len(L)), 0
    by_size: dict[int, Array] = {}
    for n in sorted(set(sizes)):
        # It sums the squares of the columns of L^-1: over the rows of smaller leaves, and some more.
        rows = inverse_factor[n_summed:n, :n]
        diagonal[:n] += np.einsum("ij,ij->j", rows, rows)
        n_summed, by_size[n] = n, diagonal[:n].copy()
    return np.concatenate([by_size[n] for n in sizes])
