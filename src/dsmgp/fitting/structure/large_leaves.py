"""Hyperparameters of large leaves: learned on leaves as large as theirs, where that can be afforded.

Large leaves see further than those that hyperparameters are first learned on, and may prefer another kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effort import EFFORTS, GRADIENT, leaf_rows, seconds
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import (
    is_stationary,
    learn_each_family,
    length_scales,
    loo_posterior,
)
from dsmgp.fitting.learning.optimize import SearchResult
from dsmgp.fitting.learning.surrogate import balanced_leaves, sample_leaves
from dsmgp.fitting.rows.leaf_setup import set_up_leaves
from dsmgp.fitting.rows.row_source import RowSource
from dsmgp.fitting.selection.loo_predictions import kernel_score
from dsmgp.gp.process import Family
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.tree.nodes import Leaf

__all__ = ["is_large", "learn_large"]

logger = logging.getLogger("dsmgp")

# Leaves this much larger than those that hyperparameters are learned on get hyperparameters of their own,
# where these can be learned within this share of the seconds: two kernels, on this share of the rows learned
# on before, for so many iterations.
LARGE, LARGE_SECONDS, LARGE_ROWS, LARGE_ITERATIONS = 2.0, 0.25, 0.5, (8, 40)


def is_large(size: int, rows: RowSource, config: FitConfig) -> bool:
    return min(size, rows.n_rows) >= LARGE * EFFORTS[config.effort].leaf_size


def learn_large(
    rows: RowSource,
    families: list[Family],
    sizes: Sequence[int],
    outputs: OutputScaling,
    context: FitContext,
) -> tuple[Family | None, list[SearchResult]]:
    """Learn a family for partitions of large leaves, on leaves as large as theirs, where that can be afforded.

    Large leaves see further than those learned on so far, and may prefer another kernel: all families
    continue from where they are, and leave-one-out decides. None if the best family of small leaves is the
    best for large ones too.
    """
    config = context.config
    if not is_stationary(families[0]):
        return None, []
    plan = _plan_large(rows, len(families), sizes, config)
    if plan is None:
        return None, []
    unit = length_scales(families[0], rows.data.inputs.scale)
    grown = balanced_leaves(plan.size, 2 * plan.n_leaves, unit, rows, context)
    data, candidates = rows.rows_of(grown, outputs)
    learned_on = sample_leaves(candidates, plan.n_leaves, context.rng)
    # Leaves that were not learned on are the better judges, where there are any.
    taken = {id(leaf) for leaf in learned_on}
    judges = [leaf for leaf in candidates if id(leaf) not in taken] or learned_on
    kernels = families[0].leaf_kernels
    gps = set_up_leaves(learned_on, kernels, data, config)
    max_iter = plan.n_iterations(learned_on, config.device_type)
    large, searches = learn_each_family(gps, families, context, max_iter=max_iter)
    judging = gps if judges is learned_on else set_up_leaves(judges, kernels, data, config)
    scores = []
    for family in [families[0], *large]:
        scores.append(kernel_score(loo_posterior(judging, family)))
        how = "of small leaves" if family is families[0] else "of their own"
        logger.info(
            "large leaves, kernel %s, hyperparameters %s: %.4f", family.kernel, how, scores[-1]
        )
    best = int(np.argmin(scores))
    return (large[best - 1] if best else None), searches


@dataclass(frozen=True)
class _LargePlan:
    """Leaves on which a family for large leaves is learned: their size, how many at most, and seconds for one iteration."""

    size: int
    n_leaves: int
    seconds: float

    def n_iterations(self, learned_on: Sequence[Leaf], device: str) -> int:
        """Return the number of iterations that can be afforded on these leaves."""
        fewest, most = LARGE_ITERATIONS
        needed = sum(seconds(leaf.n_rows, leaf.n_rows, device) for leaf in learned_on)
        return int(min(fewest * max(self.seconds / needed, 1.0), most))


def _plan_large(
    rows: RowSource, n_families: int, sizes: Sequence[int], config: FitConfig
) -> _LargePlan | None:
    """Plan the largest leaves on which a family can be learned within its share of the seconds; None if there are none."""
    effort, device, n_rows = EFFORTS[config.effort], config.device_type, rows.n_rows
    # Seconds for one iteration, if there are as few iterations as allowed.
    budget = LARGE_SECONDS * effort.budget(device) / LARGE_ITERATIONS[0]
    budget /= GRADIENT * n_families * rows.data.n_outputs
    least = min(n_rows, LARGE_ROWS * effort.n_leaves * leaf_rows(effort.leaf_size, n_rows))
    large = sorted({size for size in sizes if is_large(size, rows, config)})
    # One family serves all large sizes, and that of a middling size does so best; unless one leaf holds all
    # rows, which then counts most.
    if large and large[-1] < n_rows:
        large = large[: (len(large) + 1) // 2]
    for size in reversed(large):
        in_leaf = leaf_rows(size, n_rows)
        n_leaves = int(budget / seconds(in_leaf, in_leaf, device))
        if n_leaves * in_leaf >= least:
            return _LargePlan(size, min(n_leaves, effort.n_leaves), budget)
    return None
