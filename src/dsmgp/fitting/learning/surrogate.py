"""Leaves to learn on: those of one partition, the surrogate of the whole tree, as in the paper.

Rows of a leaf are those of the sample that a source holds; a leaf of the sample stands for a region with more rows.
"""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.rows.row_source import RowSource
from dsmgp.tree.growing import grow_leaves, grow_paper
from dsmgp.tree.nodes import Leaf, Node, induced_tree, leaves

__all__ = [
    "balanced_leaves",
    "paper_tree",
    "sample_leaves",
    "size_in_sample",
    "surrogate_leaves",
]

# Rows of a leaf of the paper's structure, unless the user says otherwise.
PAPER_SIZE = 100


def surrogate_leaves(rows: RowSource, given: Node | None, context: FitContext) -> list[Leaf]:
    """Grow leaves of one partition to learn on: all of them in the paper's structure, else at most as many as the effort allows.

    Of a tree that is ``given`` they are the leaves of one partition, drawn at random.
    """
    config, effort = context.config, EFFORTS[context.config.effort]
    if config.structure == "paper":
        return leaves(paper_tree(1, rows, context))
    if given is not None:
        return leaves(induced_tree(given, context.rng))
    size = int(np.median(config.leaf_sizes)) if config.leaf_sizes else effort.leaf_size
    return balanced_leaves(size, effort.n_leaves, rows.data.inputs.scale, rows, context)


def sample_leaves(candidates: list[Leaf], most: int, rng: np.random.Generator) -> list[Leaf]:
    """Draw at most ``most`` leaves, in their order; the same list if there are no more."""
    if len(candidates) <= most:
        return candidates
    return [candidates[k] for k in sorted(rng.choice(len(candidates), most, replace=False))]


def balanced_leaves(
    size: int, most: int, unit: Array, rows: RowSource, context: FitContext
) -> list[Leaf]:
    """Grow at most ``most`` leaves of a balanced partition."""
    return grow_leaves(
        rows.data.columns,
        leaf_size=size_in_sample(size, rows),
        most=most,
        product_children=context.config.product_children or 2,
        rng=context.rng,
        unit=unit,
    )


def paper_tree(sum_children: int, rows: RowSource, context: FitContext) -> Node:
    """Grow the paper's structure."""
    config = context.config
    return grow_paper(
        rows.data.U,
        leaf_size=size_in_sample(config.leaf_sizes[0] if config.leaf_sizes else PAPER_SIZE, rows),
        sum_children=sum_children,
        product_children=config.product_children,
        depth=config.depth or 2,
        rng=context.rng,
        unit=rows.data.inputs.scale,
    )


def size_in_sample(size: int, rows: RowSource) -> int:
    """Return the leaf size on the sample that a source holds."""
    return max(1, round(size * len(rows.data.X) / rows.n_rows))
