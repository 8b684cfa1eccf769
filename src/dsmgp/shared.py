"""Leaves that overlap, conditioned together: one factor, and one inverse of it, for each chain of nested leaves.

Leading rows of a triangular system do not know of the others. So one factor L serves a chain (see
:mod:`dsmgp.sharing`), and so do ``L^-1 (y - mean)`` and ``L^-1``, of which each leaf takes its leading block.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp import lapack
from dsmgp.chains import SharedFactors
from dsmgp.engine import Bound, Left, Questions, Seen, without_twins
from dsmgp.experts import PARALLEL_ROWS, Experts
from dsmgp.factors import LeadingBlocks
from dsmgp.ragged import Ragged
from dsmgp.sharing import SharingPlan, direct_flops, plan_sharing

__all__ = ["SharedEngine"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
LOG_2PI = math.log(2.0 * math.pi)
# Leaves of more inputs hardly ever lie within one another.
MOST_INPUTS = 4
# Times as fast as every leaf for itself, by an estimate, from which on leaves share: the estimate is a rough one.
LEAST_GAIN = 1.25
# Most that a plan may cost, as a share of what conditioning takes without it.
MOST_PLANNING = 0.12
# What takes time beside factors and their inverses, in flops of these (10 in a nanosecond), as measured: a pair
# of rows; a leaf in a chain, in the interpreter, where threads wait for one another; a plan, each of its
# leaves, and their rows.
PAIR_FLOPS, CHAINED_FLOPS = 100.0, 1.8e6
PLAN_FLOPS, PLANNED_FLOPS, PLANNED_ROW_FLOPS = 2e7, 2e5, 1e3


class SharedEngine:
    """An :class:`dsmgp.engine.Engine` for leaves of one law and theta. A group is a chain of nested leaves, or some of
    the leaves that share with no other, which the experts' own engine conditions.

    Parameters
    ----------
    experts : Experts
    plan : SharingPlan
    bound : Bound
        Factors are made once, for these hyperparameters.
    """

    def __init__(self, experts: Experts, plan: SharingPlan, bound: Bound) -> None:
        self.plan, self.bound = plan, bound
        self.leaf_rows = Ragged.of(plan.rows)
        self._own = experts.engine_for(self.leaf_rows)
        self._chains = _chains(plan)
        chained = {number for chain in self._chains for number in chain.tolist()}
        self._rest = experts.engine_for(
            Ragged.of([rows[: 0 if k in chained else None] for k, rows in enumerate(plan.rows)])
        )
        self.groups = self._chains + self._rest.groups
        outputs, X = range(experts.n_outputs), experts.X.unsqueeze(0)
        self._residual = [
            experts.Y.numpy()[:, output] - bound(output, [0]).mean(X)[0].numpy()
            for output in outputs
        ]
        self._factors = [SharedFactors(plan, partial(self._own.fill, bound, k)) for k in outputs]

    @classmethod
    def where_it_pays(cls, experts: Experts, bound: Bound, memory: float) -> SharedEngine | None:
        """An engine for these leaves, if they can share, it is faster, and their factors fit in so many bytes."""
        sizes = experts.leaf_rows.sizes
        if not _can_share(experts, bound) or not _may_pay(sizes, experts):
            return None
        plan = plan_sharing([experts.leaf_rows[k] for k in range(experts.n_leaves)])
        n_bytes = 8 * experts.n_outputs * sum(int(sizes[leaf]) ** 2 for leaf in plan.flops)
        if n_bytes > memory or _gain(plan, torch.get_num_threads()) < LEAST_GAIN:
            return None
        return cls(experts, plan, bound)

    def elements(self, group: int) -> int:
        if group >= len(self._chains):
            return self._rest.elements(group - len(self._chains))
        return int(self.leaf_rows.sizes[self._chains[group][0]]) ** 2

    def condition(
        self, bound: Bound, output: int, group: int, keep: bool, twins: list[list[Index]] | None
    ) -> Seen:
        assert bound is self.bound, "factors are made for other hyperparameters"
        if group >= len(self._chains):
            return self._rest.condition(bound, output, group - len(self._chains), keep, twins)
        numbers = self._chains[group]
        sizes = self.leaf_rows.sizes[numbers]
        L = self._factors[output].lower(int(numbers[0]))
        white = self._residual[output][self.plan.rows[numbers[0]]]
        lapack.solve_lower(L, white)
        losses = np.cumsum(0.5 * np.square(white) + np.log(L.diagonal()) + 0.5 * LOG_2PI)
        alpha = {n: _solve_transposed(L[:n, :n], white[:n]) for n in set(sizes.tolist())}
        return Seen(
            log_evidence=torch.from_numpy(-losses[sizes - 1]),
            added=torch.zeros(len(numbers), dtype=torch.float64),
            alpha=torch.from_numpy(np.concatenate([alpha[n] for n in sizes.tolist()])),
            factors=LeadingBlocks(torch.from_numpy(L), sizes) if keep else None,
            left_out=None if twins is None else _left_out(L, alpha, sizes.tolist(), twins),
        )

    def predict(self, bound: Bound, output: int, asked: Questions) -> tuple[Tensor, Tensor]:
        return self._own.predict(bound, output, asked)


def _can_share(experts: Experts, bound: Bound) -> bool:
    """Whether leaves have one law and theta, on a CPU, in double precision."""
    X = experts.X
    if not lapack.available or X.device.type != "cpu" or X.dtype != torch.float64:
        return False
    one_law = all(len(set(by_leaf)) == 1 for by_leaf in experts.laws)
    return one_law and all(natural.ndim == 1 for natural in bound.naturals)


def _may_pay(sizes: Index, experts: Experts) -> bool:
    """Whether leaves overlap at all, and a plan costs little beside what it could save."""
    n_rows, n_inputs = experts.X.shape
    if n_inputs > MOST_INPUTS or sizes.sum() <= n_rows:
        return False
    planning = PLAN_FLOPS + PLANNED_FLOPS * len(sizes) + PLANNED_ROW_FLOPS * sizes.sum()
    without = experts.n_outputs * _flops(sizes).sum() / torch.get_num_threads()
    return bool(planning < MOST_PLANNING * without)


def _flops(n: Index) -> Array:
    """Work on leaves by themselves: kernel, factor, inverse."""
    return 2.0 / 3.0 * n.astype(np.float64) ** 3 + PAIR_FLOPS * n**2


def _gain(plan: SharingPlan, n_threads: int) -> float:
    """How many times as fast leaves are with a plan, by an estimate of both times.

    Many small leaves keep all threads busy, and a few large factors may not.
    """
    sizes = np.array([len(rows) for rows in plan.rows])
    # Some leaves use all cores by themselves.
    spread = np.where(sizes > PARALLEL_ROWS, n_threads, 1)
    alone = _flops(sizes)
    separate = max(alone.sum() / n_threads, (alone / spread).max())
    # A plan knows of factors and their kernels; the rest of a leaf's work is as much as if it were alone.
    beside = alone - direct_flops(sizes)
    made = {k: flops + beside[k] for k, flops in plan.flops.items()}
    longest = max(sum(made[k] / spread[k] for k in plan.lineage(leaf)) for leaf in made)
    n_chained = sum(map(len, _chains(plan)))
    shared = max(sum(made.values()) / n_threads, longest) + CHAINED_FLOPS * n_chained
    return float(separate / shared)


def _chains(plan: SharingPlan) -> list[Index]:
    """Leaves whose factors are leading blocks of one factor, or that others start from. The largest come first."""
    by_size = sorted(range(len(plan.rows)), key=lambda k: (-len(plan.rows[k]), k))
    chains: dict[int, list[int]] = {}
    for number in by_size:
        if len(plan.rows[number]):
            chains.setdefault(plan.owner(number), []).append(number)
    families = [plan.lineage(leaf) for leaf in plan.flops]
    related = {leaf for family in families if len(family) > 1 for leaf in family}
    return [
        np.array(chain) for owner, chain in chains.items() if len(chain) > 1 or owner in related
    ]


def _solve_transposed(L: Array, white: Array) -> Array:
    alpha = white.copy()
    lapack.solve_transposed(L, alpha)
    return alpha


def _left_out(
    L: Array, alpha: dict[int, Array], sizes: list[int], twins: list[list[Index]]
) -> Left:
    """Rows left out of the leaves of a chain, once for each size; one leaf after the other."""
    half = L.copy()
    lapack.invert_factor(half)
    diagonal, n_summed = np.zeros(len(L)), 0
    found: dict[int, list[Array]] = {}
    for n, own in sorted(dict(zip(sizes, twins, strict=True)).items()):
        # The diagonal of K^-1 has the sums of squares of L^-1 over its rows: those of smaller leaves, and some more.
        rows = half[n_summed:n, :n]
        diagonal[:n] += np.einsum("ij,ij->j", rows, rows)
        n_summed, variance = n, 1.0 / diagonal[:n]
        away, inverse = alpha[n] * variance, torch.from_numpy(half)[:n, :n]
        pull = torch.from_numpy(alpha[n])
        grouped = without_twins(away[None], variance[None], inverse[None], pull[None], [own])
        found[n] = [away, variance, *(table[0] for table in grouped)]
    away, variance, *rest = (np.concatenate([found[n][k] for n in sizes]) for k in range(5))
    return Left(away, variance, (rest[0], rest[1], rest[2]) if any(twins) else None)
