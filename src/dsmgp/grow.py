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

from dsmgp.tree import Leaf, Node, Product, Region, Sum

__all__ = ["grow_balanced", "grow_paper"]

# What structure="paper" may cost before it is refused: on two cores about an hour of learning.
MAX_LEAVES = 200_000
MAX_OPERATIONS = 2e14
# Cuts on the way from a sum node to a leaf. Even a million times more rows than a leaf holds need some
# 60; more are wanted only where ties let every cut split off a sliver (one-hot columns alone).
MAX_CUTS = 100
# Rows on which the spread of columns is measured, about.
SPREAD_ROWS = 500


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

    def sum_node(rows: NDArray[np.int64], region: Region, layers: int) -> Node:
        if rows.size <= leaf_size or layers == 0 or not _varies(X[rows]).any():
            return leaf(region, rows)
        return Sum(tuple(product(rows, region, layers - 1) for _ in range(sum_children)))

    def product(rows: NDArray[np.int64], region: Region, layers: int) -> Node:
        dimension = _draw(_spread(X[rows], scale) ** 2, rng)  # by variance
        values = np.sort(X[rows, dimension])
        low, high, middle = values[0], values[-1], np.median(values)
        drawn = low + (high - low) * rng.beta(2.0, 2.0, size=ways - 1)
        # Each drawn position moves up to the next row, so that the cut lies between two rows.
        after = np.searchsorted(values, 0.5 * drawn + 0.5 * middle)
        splits = _splits(values, after)
        return _cut(
            X[rows, dimension], rows, region, dimension, splits,
            lambda r, q, inside: sum_node(r, q, layers),
        )  # fmt: skip

    return sum_node(np.arange(n_rows), Region.whole(n_dims), depth)


def grow_balanced(
    X: ArrayLike,
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
    X : array-like of shape (n_rows, n_dims)
        Training inputs.
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
    X = np.asarray(X, dtype=np.float64)
    n_rows, n_dims = X.shape
    scale = np.ones(n_dims) if unit is None else np.asarray(unit, dtype=np.float64)
    # With one layer the cost follows from the sizes asked for; with more it multiplies.
    leaf = (
        Leaf
        if depth == 1
        else _Counter(len(leaf_sizes), product_children, depth, max(leaf_sizes)).leaf
    )

    def sum_node(
        rows: NDArray[np.int64], region: Region, sizes: Sequence[int], layers: int
    ) -> Node:
        splitting = [size for size in sizes if size < rows.size]
        if not splitting or not _varies(X[rows]).any():
            return leaf(region, rows)
        children: list[Node] = [leaf(region, rows)] if len(splitting) < len(sizes) else []
        for size in splitting:
            stop = size * (rows.size / size) ** ((layers - 1) / layers)
            inside = X[rows]
            children.append(
                partition(inside, rows, region, stop, [size] * len(sizes), layers - 1, 0)
            )
        return children[0] if len(children) == 1 else Sum(tuple(children))

    def partition(
        inside: NDArray[np.float64],  # X[rows], cut on the way down: cheaper than from X each time
        rows: NDArray[np.int64],
        region: Region,
        stop: float,
        sizes: Sequence[int],
        layers: int,
        cuts: int,
    ) -> Node:
        if rows.size <= stop:
            return sum_node(rows, region, sizes, layers) if layers else leaf(region, rows)
        spread = _spread(inside, scale)
        if not spread.any() or cuts == MAX_CUTS:
            return leaf(region, rows)  # equal rows cannot be told apart
        dimension, splits = _balanced_cut(inside, spread, product_children, rng)

        def child(some: NDArray[np.int64], part: Region, chosen: NDArray[np.bool_]) -> Node:
            return partition(inside[chosen], some, part, stop, sizes, layers, cuts + 1)

        return _cut(inside[:, dimension], rows, region, dimension, splits, child)

    return sum_node(np.arange(n_rows), Region.whole(n_dims), list(leaf_sizes), depth)


def _balanced_cut(
    X: NDArray[np.float64], spread: NDArray[np.float64], ways: int, rng: np.random.Generator
) -> tuple[int, list[float]]:
    """A dimension and where to cut it.

    Where ties keep a drawn dimension from being cut evenly the next is drawn; if all are so, the
    most even one stands.
    """
    best: tuple[float, int, list[float]] | None = None
    remaining = spread.copy()
    while remaining.any():
        dimension = _draw(remaining, rng)
        remaining[dimension] = 0.0
        quantiles = (np.arange(1, ways) + rng.uniform(-0.3, 0.3, size=ways - 1)) / ways
        column = X[:, dimension]
        if ways == 2:
            largest, splits = _cut_in_two(column, float(quantiles[0]))
        else:
            values = np.sort(column)
            after = np.array([_distinct_rank(values, q) for q in quantiles])
            largest = int(np.diff([0, *np.unique(after), len(values)]).max())
            splits = _splits(values, after)
        if best is None or largest < best[0]:
            best = (largest, dimension, splits)
        if largest <= 0.8 * len(X):
            break
    assert best is not None
    return best[1:]


def _cut_in_two(values: NDArray[np.float64], quantile: float) -> tuple[int, list[float]]:
    """Rows in the larger part, and the cut, of values that differ: what :func:`_distinct_rank` finds, unsorted."""
    n = len(values)
    rank = min(max(round(quantile * n), 1), n - 1)
    pivot = np.partition(values, rank)[rank]
    below, above = values < pivot, values > pivot
    n_below, n_not_above = int(np.count_nonzero(below)), n - int(np.count_nonzero(above))
    if not n_below > 0 or (n_not_above < n and abs(n_not_above - rank) < abs(n_below - rank)):
        return max(n_not_above, n - n_not_above), [_between(pivot, values[above].min())]
    return max(n_below, n - n_below), [_between(values[below].max(), pivot)]


def _distinct_rank(values: NDArray[np.float64], quantile: float) -> int:
    """The rank nearest to a quantile at which sorted values step up."""
    rank = min(max(round(quantile * len(values)), 1), len(values) - 1)
    below = int(np.searchsorted(values, values[rank], side="left"))
    above = int(np.searchsorted(values, values[rank], side="right"))
    inside = [r for r in (below, above) if 0 < r < len(values)]
    return min(inside, key=lambda r: abs(r - rank))


def _splits(values: NDArray[np.float64], after: NDArray[np.int64]) -> list[float]:
    """Positions that cut before the sorted values of rank ``after``."""
    ranks = np.unique(np.searchsorted(values, values[np.clip(after, 0, len(values) - 1)]))
    ranks = ranks[ranks > 0]
    if not ranks.size:  # every drawn cut fell on the smallest value: cut at the first step up
        ranks = np.array([np.searchsorted(values, values[0], side="right")])
    return [_between(values[rank - 1], values[rank]) for rank in ranks]


def _cut(
    column: NDArray[np.float64],
    rows: NDArray[np.int64],
    region: Region,
    dimension: int,
    splits: Sequence[float],
    grow_child: Callable[[NDArray[np.int64], Region, NDArray[np.bool_]], Node],
) -> Node:
    """The product that cuts rows, whose values along the dimension are given, at the splits; children grown in turn."""
    side = np.searchsorted(splits, column, side="right")
    children = []
    for k, part in enumerate(region.split(dimension, splits)):
        chosen = side == k
        children.append(grow_child(rows[chosen], part, chosen))
    return Product(tuple(children), dimension, tuple(splits))


def _between(low: float, high: float) -> float:
    """A number in ``(low, high]``: the middle where floating point has one."""
    middle = low + 0.5 * (high - low)
    return float(middle if low < middle <= high else high)


def _varies(X: NDArray[np.float64]) -> NDArray[np.bool_]:
    return X.min(axis=0) < X.max(axis=0)


def _spread(X: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of each column in units of ``scale``: above zero where values differ at all.

    Of many rows some are enough to tell which columns are wide.
    """
    some = X[:: max(len(X) // SPREAD_ROWS, 1)]
    varies = _varies(some)
    if len(some) < len(X) and not varies.all():
        varies = _varies(X)
    smallest = 1e-100  # differences whose square underflows still are differences
    return np.where(varies, np.maximum((some / scale).std(axis=0), smallest), 0.0)


def _draw(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
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

    def leaf(self, region: Region, rows: NDArray[np.int64]) -> Leaf:
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
