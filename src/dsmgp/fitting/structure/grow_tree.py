"""Growing the tree of the model: the partitions of all leaf sizes under one sum node, each with the family of its leaves.

Called once hyperparameters are learned. Trees that are searched for are in :mod:`dsmgp.fitting.structure.learned`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import length_scales
from dsmgp.fitting.learning.optimize import SearchResult
from dsmgp.fitting.learning.surrogate import paper_tree, size_in_sample
from dsmgp.fitting.rows.leaf_setup import LeafFamilies
from dsmgp.fitting.rows.row_source import RowSource
from dsmgp.fitting.selection.families import LearnedFamilies, partitions_may_differ
from dsmgp.fitting.structure.large_leaves import is_large, learn_large
from dsmgp.fitting.structure.learned import learn_structure
from dsmgp.gp.process import Family
from dsmgp.progress import span
from dsmgp.tree.growing import grow_balanced
from dsmgp.tree.nodes import Node, Sum, leaves, map_leaves

__all__ = ["grow_tree"]

# Partitions of the paper's structure, and of a balanced one with one leaf size.
PAPER_CHILDREN, BALANCED_CHILDREN = 4, 8


def grow_tree(
    rows: RowSource, given: Node | None, learned: LearnedFamilies, context: FitContext
) -> tuple[LeafFamilies, list[SearchResult]]:
    """Grow the tree of the model, unless it is given; return also the searches for hyperparameters that the tree called for."""
    config = context.config
    families = learned.families[: learned.n_close]
    if config.structure == "learned":
        automatic = isinstance(config.kernel, str) and config.kernel == "auto"
        data = rows.data.with_outputs(learned.outputs)
        found = learn_structure(data, families, automatic, context)
        return _over_kernels(found.tree, found.families), found.searches
    if config.structure == "paper":
        given = paper_tree(config.sum_children or PAPER_CHILDREN, rows, context)
    if given is not None:
        return _over_kernels(given, families), []
    return _grow_balanced(rows, learned, context)


def _grow_balanced(
    rows: RowSource, learned: LearnedFamilies, context: FitContext
) -> tuple[LeafFamilies, list[SearchResult]]:
    """Grow balanced partitions of all sizes.

    Partitions of one size alternate between the families that are close to the best. Partitions of large
    leaves get a family of their own where one can be learned; the searches for it are returned, too.
    """
    config, families = context.config, learned.families
    sizes = _partition_sizes(rows, config)
    large: Family | None = None
    searches: list[SearchResult] = []
    if partitions_may_differ(config) and config.leaf_sizes is None:
        with span(0.0, 0.9, "learning hyperparameters of large leaves"):
            large, searches = learn_large(rows, families, sizes, learned.outputs, context)
    n_owners = 1 if isinstance(config.kernel, tuple) else learned.n_close
    owners = [*families[:n_owners], *([] if large is None else [large])]
    sizes_of: list[list[int]] = [[] for _ in owners]
    for k, size in enumerate(sizes):
        if large is not None and is_large(size, rows, config):
            sizes_of[-1].append(size)
        else:
            sizes_of[sizes[:k].count(size) % n_owners].append(size)
    partitions = [
        (_balanced_tree(of_family, family, rows, context), family)
        for of_family, family in zip(sizes_of, owners, strict=True)
        if of_family
    ]
    if isinstance(config.kernel, tuple):
        (tree, _), *_ = partitions
        return _over_kernels(tree, families), searches
    return _join(partitions), searches


def _balanced_tree(
    sizes: Sequence[int], family: Family, rows: RowSource, context: FitContext
) -> Node:
    """Grow a partition for each size, cut along the inputs in which a family varies most."""
    return grow_balanced(
        rows.data.columns,
        leaf_sizes=[size_in_sample(size, rows) for size in sizes],
        product_children=context.config.product_children or 2,
        depth=context.config.depth or 1,
        rng=context.rng,
        unit=length_scales(family, rows.data.inputs.scale),
    )


def _over_kernels(tree: Node, families: Sequence[Family]) -> LeafFamilies:
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
