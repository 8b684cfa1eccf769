"""Growing the tree of a fit: which leaf sizes, which family for which partition, and the partitions themselves.

Called by :mod:`dsmgp.fitting.fit` before hyperparameters are learned, for leaves to learn on, and after, for the tree of the model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effort import EFFORTS, GRADIENT, leaf_rows, seconds
from dsmgp.fitting.learning.family import (
    FitContext,
    is_stationary,
    learn_family,
    length_scales,
    loo_posterior,
)
from dsmgp.fitting.learning.optimize import SearchResult
from dsmgp.fitting.selection.kernels import kernel_score
from dsmgp.fitting.selection.mean import MeanChoice
from dsmgp.fitting.structure.learned import learn_structure
from dsmgp.fitting.training_data import LeafFamilies, RowSource, set_up_leaves
from dsmgp.gp.process import Family
from dsmgp.gp.scaling import OutputScaling
from dsmgp.tree.growing import grow_balanced, grow_leaves, grow_paper
from dsmgp.tree.nodes import Leaf, Node, Sum, induced_tree, leaves, map_leaves

__all__ = [
    "LearnedFamilies",
    "grow_tree",
    "partitions_may_differ",
    "sample_leaves",
    "surrogate_leaves",
]

logger = logging.getLogger("dsmgp")

PAPER_SIZE, PAPER_CHILDREN, BALANCED_CHILDREN = 100, 4, 8
# Leaves this much larger than those that hyperparameters are learned on get hyperparameters of their own, where these can be learned
# within this share of the seconds: two kernels, on this share of the rows learned on before, for so many iterations.
LARGE, LARGE_SECONDS, LARGE_ROWS, LARGE_ITERATIONS = 2.0, 0.25, 0.5, (8, 40)


@dataclass(frozen=True, eq=False)
class LearnedFamilies:
    """The output scaling and the kernels that were chosen, with hyperparameters learned on some leaves.

    Attributes
    ----------
    outputs : OutputScaling
    families : list of Family
        Best first; two where partitions may differ in their kernel.
    n_close : int
        How many of them score about as well as the best.
    kernel_scores : dict of str to float
        Score of each kernel that was tried; lower is better.
    searches : list of SearchResult
        For each of the close families one entry per output.
    n_trial_evaluations : int
        Evaluations of the evidence before that, for choosing outputs and kernels.
    mean : MeanChoice or None
        The mean that was chosen, if it was open.
    """

    outputs: OutputScaling
    families: list[Family]
    n_close: int
    kernel_scores: dict[str, float]
    searches: list[SearchResult]
    n_trial_evaluations: int
    mean: MeanChoice | None = None


def partitions_may_differ(config: FitConfig) -> bool:
    """Return whether partitions may differ in kernel and hyperparameters: not where sum nodes are nested."""
    nested = (config.depth or 1) > 1 or config.structure != "balanced"
    if isinstance(config.kernel, tuple):
        return False
    return config.optimizer is not None and config.objective != "full" and not nested


def surrogate_leaves(rows: RowSource, given: Node | None, context: FitContext) -> list[Leaf]:
    """Grow leaves of one partition to learn on: all of them in the paper's structure, else at most as many as the effort allows."""
    config, effort = context.config, EFFORTS[context.config.effort]
    if config.structure == "paper":
        return leaves(_grow_paper(1, rows, context))
    if given is not None:
        return leaves(induced_tree(given, context.rng))
    size = int(np.median(config.leaf_sizes)) if config.leaf_sizes else effort.leaf_size
    return _grow_leaves(size, effort.n_leaves, rows.data.inputs.scale, rows, context)


def sample_leaves(candidates: list[Leaf], most: int, rng: np.random.Generator) -> list[Leaf]:
    """Draw at most ``most`` leaves, in their order; the same list if there are no more."""
    if len(candidates) <= most:
        return candidates
    return [candidates[k] for k in sorted(rng.choice(len(candidates), most, replace=False))]


def grow_tree(
    rows: RowSource, given: Node | None, learned: LearnedFamilies, context: FitContext
) -> tuple[LeafFamilies, list[SearchResult]]:
    """Grow the tree of the model, unless it is given.

    Partitions of one size alternate between the families that are close to the best. Partitions of large leaves get a family of their
    own where one can be learned; the searches for it are returned, too.
    """
    config, families, n_close = context.config, learned.families, learned.n_close
    if config.structure == "learned":
        automatic = isinstance(config.kernel, str) and config.kernel == "auto"
        found = learn_structure(
            rows.data.with_outputs(learned.outputs), families[:n_close], automatic, context
        )
        return over_kernels(found.tree, found.families), found.searches
    if config.structure == "paper":
        given = _grow_paper(config.sum_children or PAPER_CHILDREN, rows, context)
    if given is not None:
        return over_kernels(given, families[:n_close]), []
    sizes = _partition_sizes(rows, config)
    large: Family | None = None
    searches: list[SearchResult] = []
    if partitions_may_differ(config) and config.leaf_sizes is None:
        large, searches = _learn_large(rows, families, sizes, learned.outputs, context)
    n_owners = 1 if isinstance(config.kernel, tuple) else n_close
    owners = [*families[:n_owners], *([] if large is None else [large])]
    sizes_of: list[list[int]] = [[] for _ in owners]
    for k, size in enumerate(sizes):
        if large is not None and _is_large(size, rows, config):
            sizes_of[-1].append(size)
        else:
            sizes_of[sizes[:k].count(size) % n_owners].append(size)
    partitions = [
        (
            grow_balanced(
                rows.data.columns,
                leaf_sizes=[_size_in_sample(size, rows) for size in family_sizes],
                product_children=config.product_children or 2,
                depth=config.depth or 1,
                rng=context.rng,
                unit=length_scales(family, rows.data.inputs.scale),
            ),
            family,
        )
        for family_sizes, family in zip(sizes_of, owners, strict=True)
        if family_sizes
    ]
    if isinstance(config.kernel, tuple):
        (tree, _), *_ = partitions
        return over_kernels(tree, families), searches
    return _join(partitions), searches


def over_kernels(tree: Node, families: Sequence[Family]) -> LeafFamilies:
    """Give every leaf of a tree a family; with several, a sum over one leaf for each takes the place of every leaf."""
    n_leaves = len(leaves(tree))
    if len(families) > 1:
        tree = map_leaves(tree, lambda leaf: Sum((leaf, *(replace(leaf) for _ in families[1:]))))
    return LeafFamilies(tree, list(families), np.tile(np.arange(len(families)), n_leaves))


def _join(partitions: Sequence[tuple[Node, Family]]) -> LeafFamilies:
    """Join sums over partitions, each with the family of its leaves, in one sum."""
    trees = [tree for tree, _ in partitions]
    families = [family for _, family in partitions]
    family = np.repeat(np.arange(len(trees)), [len(leaves(tree)) for tree in trees])
    if len(trees) == 1:
        return LeafFamilies(trees[0], families, family)
    children = [c for tree in trees for c in (tree.children if isinstance(tree, Sum) else [tree])]
    return LeafFamilies(Sum(tuple(children)), families, family)


def _partition_sizes(rows: RowSource, config: FitConfig) -> list[int]:
    """Return the leaf size of each partition."""
    sizes = list(
        config.leaf_sizes
        or EFFORTS[config.effort].leaf_sizes(rows.n_rows, config.device_type, config.max_leaf_rows)
    )
    n_children = config.sum_children
    if n_children is None:
        n_children = len(sizes) if len(sizes) > 1 else BALANCED_CHILDREN
    # Fewer partitions than sizes: spread over the sizes; more: repeat them in turn.
    if n_children < len(sizes):
        return [sizes[round(k)] for k in np.linspace(0, len(sizes) - 1, n_children)]
    return [sizes[k % len(sizes)] for k in range(n_children)]


def _grow_leaves(
    size: int, most: int, unit: Array, rows: RowSource, context: FitContext
) -> list[Leaf]:
    """Grow at most ``most`` leaves of a balanced partition."""
    return grow_leaves(
        rows.data.columns,
        leaf_size=_size_in_sample(size, rows),
        most=most,
        product_children=context.config.product_children or 2,
        rng=context.rng,
        unit=unit,
    )


def _grow_paper(sum_children: int, rows: RowSource, context: FitContext) -> Node:
    config = context.config
    return grow_paper(
        rows.data.U,
        leaf_size=_size_in_sample(config.leaf_sizes[0] if config.leaf_sizes else PAPER_SIZE, rows),
        sum_children=sum_children,
        product_children=config.product_children,
        depth=config.depth or 2,
        rng=context.rng,
        unit=rows.data.inputs.scale,
    )


def _size_in_sample(size: int, rows: RowSource) -> int:
    """Return the leaf size on the sample that a source holds: a leaf of the sample stands for a region with more rows."""
    return max(1, round(size * len(rows.data.X) / rows.n_rows))


# Hyperparameters of large leaves


def _is_large(size: int, rows: RowSource, config: FitConfig) -> bool:
    return min(size, rows.n_rows) >= LARGE * EFFORTS[config.effort].leaf_size


def _learn_large(
    rows: RowSource,
    families: list[Family],
    sizes: Sequence[int],
    outputs: OutputScaling,
    context: FitContext,
) -> tuple[Family | None, list[SearchResult]]:
    """Learn a family for partitions of large leaves, on leaves as large as theirs, where that can be afforded.

    Large leaves see further than those learned on so far, and may prefer another kernel: all families continue from where they are,
    and leave-one-out decides. None if the best family of small leaves is the best for large ones too.
    """
    config = context.config
    if not is_stationary(families[0]):
        return None, []
    plan = _plan_large(rows, len(families), sizes, config)
    if plan is None:
        return None, []
    unit = length_scales(families[0], rows.data.inputs.scale)
    grown = _grow_leaves(plan.size, 2 * plan.n_leaves, unit, rows, context)
    data, candidates = rows.rows_of(grown, outputs)
    learned_on = sample_leaves(candidates, plan.n_leaves, context.rng)
    # Leaves that were not learned on are the better judges, where there are any.
    taken = {id(leaf) for leaf in learned_on}
    judges = [leaf for leaf in candidates if id(leaf) not in taken] or learned_on
    kernels = families[0].leaf_kernels
    gps = set_up_leaves(learned_on, kernels, data, config)
    max_iter = plan.n_iterations(learned_on, config.device_type)
    large = [Family(family.kernel, list(family.processes)) for family in families]
    searches: list[SearchResult] = []
    for family in large:
        searches += learn_family(gps, family, context, max_iter=max_iter)
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
    large = sorted({size for size in sizes if _is_large(size, rows, config)})
    # One family serves all large sizes, and that of a middling size does so best; unless one leaf holds all rows, which then counts
    # most.
    if large and large[-1] < n_rows:
        large = large[: (len(large) + 1) // 2]
    for size in reversed(large):
        in_leaf = leaf_rows(size, n_rows)
        n_leaves = int(budget / seconds(in_leaf, in_leaf, device))
        if n_leaves * in_leaf >= least:
            return _LargePlan(size, min(n_leaves, effort.n_leaves), budget)
    return None
