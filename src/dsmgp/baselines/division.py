"""Dividing rows among experts: at random, or by the parts of a partition of the input space."""

from __future__ import annotations

import math

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_choice
from dsmgp.tree.growing import grow_balanced, grow_paper
from dsmgp.tree.nodes import Leaf, Node, Product, Sum, induced_tree, leaves
from dsmgp.tree.region import Region
from dsmgp.tree.routing import place

__all__ = ["DIVISIONS", "divide", "partition", "unbounded_leaf"]

#: Divisions by name; a tree of :mod:`dsmgp.tree.nodes` is another.
DIVISIONS = ("random", "balanced", "paper")


def divide(
    experts: str | Node, X: Array, leaf_size: int, rng: np.random.Generator, unit: Array
) -> list[Leaf]:
    """Divide all rows among experts of about ``leaf_size`` rows, or at most as many."""
    if isinstance(experts, str) and experts == "random":
        n_parts = math.ceil(len(X) / leaf_size)
        parts = np.array_split(rng.permutation(len(X)), n_parts)
        return [unbounded_leaf(rows, X.shape[1]) for rows in parts]
    return [leaf for leaf in leaves(partition(experts, X, leaf_size, rng, unit)) if leaf.n_rows]


def partition(
    experts: str | Node, X: Array, leaf_size: int, rng: np.random.Generator, unit: Array
) -> Node:
    """Grow a tree without sum nodes, as a deep structured mixture of these parameters would average over.

    If ``experts`` is a tree, draw one of its induced trees from the prior.
    """
    if isinstance(experts, (Sum, Product, Leaf)):
        return induced_tree(place(experts, X), rng)
    check_choice("experts", experts, DIVISIONS, "or a tree of dsmgp.tree.nodes nodes")
    if experts == "random":
        raise InputError(
            "expected experts to be 'balanced', 'paper' or a tree, got 'random', which is no partition "
            "of the input space"
        )
    if experts == "balanced":
        tree = grow_balanced(X, leaf_sizes=[leaf_size], rng=rng, unit=unit)
    else:
        tree = grow_paper(X, leaf_size=leaf_size, sum_children=1, rng=rng, unit=unit)
    return induced_tree(tree, rng)


def unbounded_leaf(rows: Index, n_dims: int) -> Leaf:
    """Return a leaf over the whole input space that holds the given rows."""
    return Leaf(Region.whole(n_dims), rows)
