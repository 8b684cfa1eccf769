"""Growing trees from the training inputs: Algorithm 1 of the paper, and balanced partitions.

Where nodes are cut is up to a split rule (:mod:`.split_rules`). Rules compare columns in units of ``unit``: standard
deviations before anything is learned, length scales afterwards. Splits are in the user's units and lie between two
distinct values of the training data, so no child is empty and rows that are equal in a column stay together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.tree.columns import Columns
from dsmgp.tree.nodes import Leaf, Node, Product, Sum
from dsmgp.tree.partition import Partition
from dsmgp.tree.region import Region
from dsmgp.tree.split_rules import SplitRule, effective_splits, paper_split

__all__ = ["grow_balanced", "grow_leaves", "grow_paper"]

# Trees that would cost more than this are refused: on two cores about an hour of learning.
MAX_LEAVES = 200_000
MAX_OPERATIONS = 2e14


def grow_paper(
    X: ArrayLike,
    *,
    leaf_size: int,
    rng: np.random.Generator,
    sum_children: int = 4,
    product_children: int | None = None,
    depth: int = 2,
    unit: ArrayLike | None = None,
    split_rule: SplitRule = paper_split,
) -> Node:
    """Grow a tree by Algorithm 1 of Trapp et al. (2020), with the slips in its pseudo-code put right.

    Parameters
    ----------
    X : array-like of shape (n_rows, n_dims)
        Training inputs.
    leaf_size : int
        M: regions with more rows are split again, as long as ``depth`` allows.
    rng : numpy.random.Generator
        Source of all randomness.
    sum_children : int
        K_S: children of each sum node, each with splits of its own.
    product_children : int, optional
        K_P: parts into which a product cuts its region; ``ceil((N / M) ** (1 / R))`` if left out.
    depth : int
        R: layers of sum and product nodes.
    unit : array-like of shape (n_dims,), optional
        Unit in which the split rule compares columns.
    split_rule : SplitRule
        How a product cuts its region.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tree = grow_paper(rng.normal(size=(200, 2)), leaf_size=50, depth=1, rng=rng)
    >>> len(tree.children), len(tree.children[0].children)
    (4, 4)
    """
    X = np.asarray(X, dtype=np.float64)
    n_rows, n_dims = X.shape
    ways = product_children or max(2, math.ceil((n_rows / leaf_size) ** (1 / depth)))
    limit = _CostLimit(sum_children, ways, depth, leaf_size)
    limit.check_even_cuts(n_rows)
    scale, leaf = _unit(n_dims, unit), limit.leaf

    def sum_node(rows: Index, region: Region, layers: int) -> Node:
        if rows.size <= leaf_size or layers == 0 or not (X[rows] != X[rows[0]]).any():
            return leaf(region, rows)
        return Sum(tuple(product(rows, region, layers - 1) for _ in range(sum_children)))

    def product(rows: Index, region: Region, layers: int) -> Node:
        dimension, proposed = split_rule(X[rows], scale, ways, rng)
        splits = effective_splits(X[rows, dimension], proposed)
        if not splits:
            return leaf(region, rows)
        side = np.searchsorted(splits, X[rows, dimension], side="right")
        parts = enumerate(region.split(dimension, splits))
        children = tuple(sum_node(rows[side == k], part, layers) for k, part in parts)
        return Product(children, dimension, tuple(splits))

    return sum_node(np.arange(n_rows), Region.whole(n_dims), depth)


def grow_balanced(
    X: ArrayLike | Columns,
    *,
    leaf_sizes: Sequence[int],
    rng: np.random.Generator,
    product_children: int = 2,
    depth: int = 1,
    unit: ArrayLike | None = None,
    split_rule: SplitRule | None = None,
) -> Node:
    """Grow a sum over partitions, each a nest of cuts into parts of similar size.

    By default a cut is made along a dimension drawn with probability proportional to its spread in ``unit``, at a
    quantile near the even one (35% to 65% for two parts). Leaves are compact and of similar size, which costs a
    fraction of the paper's slabs at the same accuracy.

    Parameters
    ----------
    X : array-like of shape (n_rows, n_dims), or Columns
        Training inputs; columns need not be ranked again.
    leaf_sizes : sequence of int
        Most rows in a leaf, one entry per partition.
    rng : numpy.random.Generator
        Source of all randomness.
    product_children : int
        Parts that each cut makes.
    depth : int
        Layers of sum nodes. With more than one, a partition stops part of the way down, in equal
        ratios, and the next layer of sum nodes goes on from there.
    unit : array-like of shape (n_dims,), optional
        Unit in which columns are compared.
    split_rule : SplitRule, optional
        Another way to cut nodes: one node at a time, which takes longer for large trees.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tree = grow_balanced(rng.normal(size=(200, 2)), leaf_sizes=[50, 50, 100], rng=rng)
    >>> len(tree.children)
    3
    """
    columns = Columns.of(X)
    scale = _unit(columns.n_dims, unit)
    # With one layer the cost follows from the leaf sizes; with more it multiplies.
    leaf: Callable[[Region, Index], Leaf] = (
        Leaf._unchecked
        if depth == 1
        else _CostLimit(len(leaf_sizes), product_children, depth, max(leaf_sizes)).leaf
    )

    def sum_node(region: Region, rows: Index, sizes: Sequence[int], layers: int) -> Node:
        splitting = [size for size in sizes if size < rows.size]
        if not splitting or not columns.differ(rows):
            return leaf(region, rows)
        children: list[Node] = [leaf(region, rows)] if len(splitting) < len(sizes) else []
        for size in splitting:
            stop = size * (rows.size / size) ** ((layers - 1) / layers)
            children.append(partition(region, rows, stop, [size] * len(sizes), layers - 1))
        return children[0] if len(children) == 1 else Sum(tuple(children))

    def partition(
        region: Region, rows: Index, stop: float, sizes: Sequence[int], layers: int
    ) -> Node:
        def bottom(part: Region, part_rows: Index) -> Node:
            if layers and part_rows.size <= stop:
                return sum_node(part, part_rows, sizes, layers)
            return leaf(part, part_rows)

        return Partition(
            columns,
            region,
            rows,
            stop=stop,
            n_parts=product_children,
            rng=rng,
            unit=scale,
            split_rule=split_rule,
        ).tree(bottom)

    rows = np.arange(columns.n_rows)
    rows.flags.writeable = False
    return sum_node(Region.whole(columns.n_dims), rows, leaf_sizes, depth)


def grow_leaves(
    X: ArrayLike | Columns,
    *,
    leaf_size: int,
    most: int,
    rng: np.random.Generator,
    product_children: int = 2,
    unit: ArrayLike | None = None,
) -> list[Leaf]:
    """Sample leaves of one random partition as :func:`grow_balanced` makes them, without growing the rest.

    Whenever a level of cuts leaves more than ``most`` nodes, only so many are kept, each with the same probability
    whether it is a leaf already or not. A leaf is thus sampled with the product of these probabilities over all
    levels, wherever it lies and however soon it ended: as if leaves were drawn uniformly from the whole partition, but
    spread more evenly over it, since siblings compete.

    Parameters
    ----------
    X, rng, product_children, unit
        See :func:`grow_balanced`.
    leaf_size : int
        Most rows in a leaf.
    most : int
        Number of leaves to sample; all of them if the partition has no more.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sample = grow_leaves(rng.normal(size=(2000, 2)), leaf_size=50, most=8, rng=rng)
    >>> len(sample), max(leaf.n_rows for leaf in sample) <= 50
    (8, True)
    """
    columns = Columns.of(X)
    return Partition(
        columns,
        Region.whole(columns.n_dims),
        np.arange(columns.n_rows),
        stop=leaf_size,
        n_parts=product_children,
        rng=rng,
        unit=_unit(columns.n_dims, unit),
    ).sample_leaves(most)


def _unit(n_dims: int, unit: ArrayLike | None) -> Array:
    return np.ones(n_dims) if unit is None else np.asarray(unit, dtype=np.float64)


@dataclass
class _CostLimit:
    """Refuses trees that are too expensive.

    Cost is estimated before a tree is grown, and added up while it grows, since uneven cuts make it more expensive.
    """

    sum_children: int
    ways: int
    depth: int
    leaf_size: int
    n_leaves: int = 0
    operations: float = 0.0

    def check_even_cuts(self, n_rows: int) -> None:
        """Raise if a tree is too expensive even if every cut is even."""
        ratio = max(n_rows / self.leaf_size, 1.0)
        layers = min(self.depth, max(math.ceil(math.log(ratio, self.ways)), 0))
        n_leaves = float(self.sum_children * self.ways) ** layers
        self._check(n_leaves, n_leaves * max(n_rows / self.ways**layers, 1.0) ** 3)

    def leaf(self, region: Region, rows: Index) -> Leaf:
        """Make a leaf, and count its cost."""
        self.n_leaves += 1
        self.operations += float(rows.size) ** 3
        self._check(self.n_leaves, self.operations)
        return Leaf(region, rows)

    def _check(self, n_leaves: float, operations: float) -> None:
        if n_leaves > MAX_LEAVES or operations > MAX_OPERATIONS:
            raise InputError(
                f"this structure has {n_leaves:.3g} leaves or more, which need {operations:.3g} operations per "
                f"evaluation of the evidence, more than is sensible ({MAX_LEAVES:.3g} leaves, "
                f"{MAX_OPERATIONS:.3g} operations); lower sum_children (now {self.sum_children}), depth (now {self.depth}) "
                f"or product_children (now {self.ways}), change leaf_size (now {self.leaf_size}), or use "
                "structure='balanced' with depth=1"
            )
