"""Growing trees from the training inputs: the paper's Algorithm 1, and balanced partitions.

Every column is first divided by its ``unit``, so that spreads are compared in comparable units:
its standard deviation before anything is learned, its length-scale afterwards. Splits are kept in
the user's units, between two distinct values of the training data, so no child is ever empty and
rows that are equal in a column stay together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp.columns import Columns
from dsmgp.partition import Partition, between
from dsmgp.tree import Leaf, Node, Product, Region, Sum

__all__ = ["grow_balanced", "grow_leaves", "grow_paper"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# What structure="paper" may cost before it is refused: on two cores about an hour of learning.
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
) -> Node:
    """Algorithm 1 of Trapp et al. (2020), with the slips in its pseudo-code put right.

    Parameters
    ----------
    X : array-like of shape (n_rows, n_dims)
        Training inputs.
    leaf_size : int
        M: a region with more rows is split again, as long as ``depth`` allows.
    rng : numpy.random.Generator
        Source of all randomness.
    sum_children : int
        K_S, hypotheses of split points at each sum node.
    product_children : int, optional
        K_P, parts a product cuts its region into; ``ceil((N / M) ** (1 / R))`` if left out.
    depth : int
        R, layers of sum and product nodes.
    unit : array-like of shape (n_dims,), optional
        Columns are compared in these units.

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
    _refuse_monsters(n_rows, leaf_size, sum_children, ways, depth)
    scale = np.ones(n_dims) if unit is None else np.asarray(unit, dtype=np.float64)
    leaf = _Counter(sum_children, ways, depth, leaf_size).leaf

    def sum_node(rows: Index, region: Region, layers: int) -> Node:
        if rows.size <= leaf_size or layers == 0 or not _varies(X[rows]).any():
            return leaf(region, rows)
        return Sum(tuple(product(rows, region, layers - 1) for _ in range(sum_children)))

    def product(rows: Index, region: Region, layers: int) -> Node:
        dimension = _draw(_spread(X[rows], scale) ** 2, rng)  # by variance
        values = np.sort(X[rows, dimension])
        low, high, middle = values[0], values[-1], np.median(values)
        drawn = low + (high - low) * rng.beta(2.0, 2.0, size=ways - 1)
        # Each drawn position moves up to the next row, so that the cut lies between two rows.
        after = np.searchsorted(values, 0.5 * drawn + 0.5 * middle)
        splits = _splits(values, after)
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
) -> Node:
    """A sum over partitions, each a nest of cuts into parts of like size.

    A cut is made along a dimension drawn with probability proportional to its spread in ``unit``,
    at a quantile near the even one (35% to 65% for two parts): leaves are compact and of like size,
    which costs a fraction of the paper's slabs at the same accuracy.

    Parameters
    ----------
    X : array-like of shape (n_rows, n_dims), or Columns
        Training inputs; as columns they need not be ranked again.
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
        Columns are compared in these units.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tree = grow_balanced(rng.normal(size=(200, 2)), leaf_sizes=[50, 50, 100], rng=rng)
    >>> len(tree.children)
    3
    """
    columns = Columns.of(X)
    scale = _unit(columns, unit)
    # With one layer the cost follows from the sizes asked for; with more it multiplies.
    leaf: Callable[[Region, Index], Leaf] = (
        Leaf._trusted
        if depth == 1
        else _Counter(len(leaf_sizes), product_children, depth, max(leaf_sizes)).leaf
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
        def end(part: Region, some: Index) -> Node:
            if layers and some.size <= stop:
                return sum_node(part, some, sizes, layers)
            return leaf(part, some)

        return Partition(columns, region, rows, stop, product_children, rng, scale).tree(end)

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
    """Some leaves of one random partition as :func:`grow_balanced` makes them, the rest never grown.

    Whenever a level of cuts leaves more than ``most`` nodes, only so many are kept, each with the same
    probability whether it is a leaf already or not. A leaf is thus found with the product of these
    probabilities over all levels, wherever it lies and however soon it ended: as if leaves were drawn
    uniformly from the whole partition, but spread more evenly over it, since siblings compete.

    Parameters
    ----------
    X, rng, product_children, unit
        See :func:`grow_balanced`.
    leaf_size : int
        Most rows in a leaf.
    most : int
        How many leaves; all of them where the partition has no more.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> some = grow_leaves(rng.normal(size=(2000, 2)), leaf_size=50, most=8, rng=rng)
    >>> len(some), max(leaf.n_rows for leaf in some) <= 50
    (8, True)
    """
    columns = Columns.of(X)
    scale = _unit(columns, unit)
    whole, rows = Region.whole(columns.n_dims), np.arange(columns.n_rows)
    return Partition(columns, whole, rows, leaf_size, product_children, rng, scale).some_leaves(
        most
    )


def _unit(columns: Columns, unit: ArrayLike | None) -> Array:
    return np.ones(columns.n_dims) if unit is None else np.asarray(unit, dtype=np.float64)


def _splits(values: Array, after: Index) -> list[float]:
    """Positions that cut before the sorted values of rank ``after``."""
    ranks = np.unique(np.searchsorted(values, values[np.clip(after, 0, len(values) - 1)]))
    ranks = ranks[ranks > 0]
    if not ranks.size:  # every drawn cut fell on the smallest value: cut at the first step up
        ranks = np.array([np.searchsorted(values, values[0], side="right")])
    return [float(split) for split in between(values[ranks - 1], values[ranks])]


def _varies(X: Array) -> NDArray[np.bool_]:
    return X.min(axis=0) < X.max(axis=0)


def _spread(X: Array, scale: Array) -> Array:
    """Standard deviation of each column in units of ``scale``: above zero where values differ at all."""
    smallest = 1e-100  # differences whose square underflows still are differences
    return np.where(_varies(X), np.maximum((X / scale).std(axis=0), smallest), 0.0)


def _draw(weights: Array, rng: np.random.Generator) -> int:
    """An index drawn in proportion to non-negative weights."""
    total = np.cumsum(weights / weights.max())
    index = int(np.searchsorted(total, rng.uniform() * total[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))


def _refuse_monsters(n_rows: int, leaf_size: int, sum_children: int, ways: int, depth: int) -> None:
    """Refuse before growing what is too large even if every cut is even."""
    layers = min(depth, max(math.ceil(math.log(max(n_rows / leaf_size, 1.0), ways)), 0))
    n_leaves = float(sum_children * ways) ** layers
    rows = max(n_rows / ways**layers, 1.0)
    if n_leaves > MAX_LEAVES or n_leaves * rows**3 > MAX_OPERATIONS:
        _Counter(sum_children, ways, depth, leaf_size).refuse(n_leaves, n_leaves * rows**3)


class _Counter:
    """Makes leaves and counts what they will cost: cuts may be uneven, which no estimate foresees."""

    def __init__(self, sum_children: int, ways: int, depth: int, leaf_size: int) -> None:
        self.asked = (
            f"sum_children (now {sum_children}), depth (now {depth}) or product_children (now "
            f"{ways}), change leaf_size (now {leaf_size})"
        )
        self.n_leaves, self.operations = 0, 0.0

    def leaf(self, region: Region, rows: Index) -> Leaf:
        self.n_leaves += 1
        self.operations += float(rows.size) ** 3
        if self.n_leaves > MAX_LEAVES or self.operations > MAX_OPERATIONS:
            self.refuse(self.n_leaves, self.operations)
        return Leaf(region, rows)

    def refuse(self, n_leaves: float, operations: float) -> None:
        raise ValueError(
            f"this structure has {n_leaves:.3g} leaves or more, which need {operations:.3g} operations per "
            f"evaluation of the evidence, more than is sensible ({MAX_LEAVES:.3g} leaves, "
            f"{MAX_OPERATIONS:.3g} operations); lower {self.asked}, or use structure='balanced' with depth=1"
        )
