"""How rows are dealt out to experts: at random, or by the parts of a partition of the input space."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dsmgp.grow import grow_balanced, grow_paper
from dsmgp.routes import place
from dsmgp.tree import Leaf, Node, Product, Region, Sum, induced_tree, leaves
from dsmgp.validation import check_choice

__all__ = ["DIVISIONS", "divide", "holder", "partition"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
#: By name; a tree of :mod:`dsmgp.tree` will do as well.
DIVISIONS = ("random", "balanced", "paper")


def divide(
    experts: str | Node, X: Array, leaf_size: int, rng: np.random.Generator, unit: Array
) -> list[Leaf]:
    """Every row to one expert of ``leaf_size`` rows, about or at most."""
    if isinstance(experts, str) and experts == "random":
        n_parts = math.ceil(len(X) / leaf_size)
        parts = np.array_split(rng.permutation(len(X)), n_parts)
        return [holder(rows, X.shape[1]) for rows in parts]
    return [leaf for leaf in leaves(partition(experts, X, leaf_size, rng, unit)) if leaf.n_rows]


def partition(
    experts: str | Node, X: Array, leaf_size: int, rng: np.random.Generator, unit: Array
) -> Node:
    """A tree without sum nodes, as a deep structured mixture of these parameters would average over.

    Of a tree that is given, one of its induced trees, drawn by the prior.
    """
    if isinstance(experts, (Sum, Product, Leaf)):
        return induced_tree(place(experts, X), rng)
    check_choice("experts", experts, DIVISIONS, "or a tree of dsmgp.tree nodes")
    if experts == "random":
        raise ValueError(
            "expected experts to be 'balanced', 'paper' or a tree, got 'random', which is no partition "
            "of the input space"
        )
    if experts == "balanced":
        tree = grow_balanced(X, leaf_sizes=[leaf_size], rng=rng, unit=unit)
    else:
        tree = grow_paper(X, leaf_size=leaf_size, sum_children=1, rng=rng, unit=unit)
    return induced_tree(tree, rng)


def holder(rows: Index, n_dims: int) -> Leaf:
    """An expert for rows from anywhere."""
    return Leaf(Region.whole(n_dims), rows)
