"""Growing trees from the training inputs: the paper's Algorithm 1, and balanced partitions.

Every column is first divided by its ``unit``, so that spreads are compared in comparable units:
its standard deviation before anything is learned, its length-scale afterwards. Splits are kept in
the user's units, between two distinct values of the training data, so no child is ever empty and
rows that are equal in a column stay together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp.tree import Leaf, Node, Product, Region, Sum

__all__ = ["grow_balanced", "grow_leaves", "grow_paper"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# What structure="paper" may cost before it is refused: on two cores about an hour of learning.
MAX_LEAVES = 200_000
MAX_OPERATIONS = 2e14
# Cuts on the way from a sum node to a leaf. Even a million times more rows than a leaf holds need some
# 60; more are wanted only where ties let every cut split off a sliver (one-hot columns alone).
MAX_CUTS = 100
# A cut that leaves more than this share of a node's rows together is uneven, and another dimension is drawn:
# several at a time, as long as they are of so few rows in all.
UNEVEN, DRAWN_ROWS = 0.8, 100_000
# Rows of a node on which spreads are measured, which are 7% off then, and the odds of a draw less. Where nodes are
# few, more of their rows cost nothing. Primes, or the rows taken of a grid might all lie on one line of it.
SPREAD_ROWS, LEVEL_ROWS = 101, 10_007


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
    columns = _Columns(X, unit)
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

        return _Partition(columns, region, rows, stop, product_children, rng).tree(end)

    rows = np.arange(columns.n_rows)
    rows.flags.writeable = False
    return sum_node(Region.whole(columns.n_dims), rows, leaf_sizes, depth)


def grow_leaves(
    X: ArrayLike,
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
    columns = _Columns(X, unit)
    whole, rows = Region.whole(columns.n_dims), np.arange(columns.n_rows)
    return _Partition(columns, whole, rows, leaf_size, product_children, rng).some_leaves(most)


class _Columns:
    """Training inputs column by column, ranked once for all cuts.

    Cells are numbered in the order of their values, one column after the other; ``codes`` has for each
    cell the first number of those that are equal to it, and ``order`` for each number its row. Codes
    compare as values do, and being whole numbers they can be sorted for many nodes at once.
    """

    def __init__(self, X: ArrayLike, unit: ArrayLike | None) -> None:
        self.X = X = np.asarray(X, dtype=np.float64)
        self.n_rows, self.n_dims = n, n_dims = X.shape
        scale = np.ones(n_dims) if unit is None else np.asarray(unit, dtype=np.float64)
        widest = np.max((X.max(axis=0) - X.min(axis=0)) / scale) or 1.0
        dtype = np.int32 if X.size < np.iinfo(np.int32).max else np.int64
        self.codes, self.order = np.empty((2, n_dims, n), dtype=dtype)
        # From the median, in units of scale, relative to the widest: for spreads rough numbers will do.
        self.rough = np.empty((n_dims, n), dtype=np.float32)
        for k in range(n_dims):
            column = X[:, k].copy()
            self.order[k] = order = np.argsort(column)
            ordered = column.take(order)
            numbers = np.arange(k * n, (k + 1) * n, dtype=dtype)
            numbers[1:][ordered[1:] == ordered[:-1]] = 0
            self.codes[k][order] = np.maximum.accumulate(numbers, out=numbers)
            column -= ordered[n // 2]
            column /= scale[k] * widest
            self.rough[k] = column

    def differ(self, rows: Index) -> bool:
        """Whether any column varies over the rows."""
        return any((codes[rows] != codes[rows[0]]).any() for codes in self.codes)

    def code(self, rows: Index, size: Index, dimension: Index) -> Index:
        """The codes of nodes' rows, ``size`` of each node, along its dimension."""
        return self.codes.ravel().take(rows + np.repeat(dimension * self.n_rows, size))

    def value(self, codes: Index, dimension: Index) -> Array:
        """In the user's units; one dimension for every line of codes."""
        return self.X[self.order.ravel().take(codes), dimension[:, None]]

    def spread(self, rows: Index, size: Index) -> Array:
        """Standard deviations of the columns in each node, up to a factor of its own: (n_nodes, n_dims).

        A column that is constant over the rows looked at counts as constant: if it is not, to cut it would
        split off a sliver. Only where all columns seem so are they looked at more closely.
        """
        count = np.minimum(size, max(SPREAD_ROWS, LEVEL_ROWS // len(size)))
        first = _first(count)
        away = (np.arange(count.sum()) - np.repeat(first, count)) * np.repeat(size / count, count)
        seen = rows.take(np.repeat(_first(size), count) + away.astype(np.int64))
        spread = np.empty((len(size), self.n_dims))
        for k, column in enumerate(self.rough):
            cells = column.take(seen)
            cells -= np.repeat(cells[first], count)  # exactly zero where the column is constant
            cells -= np.repeat(np.add.reduceat(cells, first) / count.astype(np.float32), count)
            spread[:, k] = np.sqrt(np.add.reduceat(cells * cells, first))
        alike = np.flatnonzero(~spread.any(axis=1))
        if alike.size:
            codes, first = self.codes[:, _of(rows, size, alike)], _first(size[alike])
            low, high = (f.reduceat(codes, first, axis=1) for f in (np.minimum, np.maximum))
            spread[alike] = (low < high).T
        return spread


class _Level:
    """Nodes side by side: where the rows of each start, how many they are, its box, and how it is cut.

    A node that is not cut has no parts; where ties allow fewer than asked for, some are empty.
    """

    def __init__(self, ways: int, start: Index, size: Index, lower: Array, upper: Array) -> None:
        self.ways, self.start, self.size, self.lower, self.upper = ways, start, size, lower, upper
        self.dimension = np.zeros(len(size), dtype=np.int64)
        # Between two parts: the first code of the second, and a number in the user's units.
        self.border = np.zeros((len(size), ways - 1), dtype=np.int64)
        self.split = np.zeros((len(size), ways - 1))
        self.parts = np.zeros((len(size), ways), dtype=np.int64)  # rows in each

    @property
    def nodes(self) -> tuple[NDArray[Any], ...]:
        return self.start, self.size, self.lower, self.upper

    @property
    def cuts(self) -> tuple[NDArray[Any], ...]:
        return self.dimension, self.border, self.split, self.parts

    @property
    def begins(self) -> Index:
        """Where the rows of each part start, (n_nodes, ways)."""
        return self.start[:, None] + np.cumsum(self.parts, axis=1) - self.parts

    @property
    def n_children(self) -> Index:
        return np.asarray(np.count_nonzero(self.parts, axis=1))

    def children(self) -> _Level:
        parent, part = np.nonzero(self.parts)
        lower, upper, along = self.lower[parent], self.upper[parent], self.dimension[parent]
        k = np.flatnonzero(part > 0)
        lower[k, along[k]] = self.split[parent[k], part[k] - 1]
        k = np.flatnonzero(part < self.ways - 1)
        upper[k, along[k]] = self.split[parent[k], part[k]]
        lower.flags.writeable = upper.flags.writeable = False
        start, size = self.begins[parent, part], self.parts[parent, part]
        return _Level(self.ways, start, size, lower, upper)

    def take(self, some: NDArray[np.bool_] | Index) -> _Level:
        return _Level(self.ways, *(each[some] for each in self.nodes))

    def join(self, other: _Level) -> _Level:
        pairs = zip(self.nodes, other.nodes, strict=True)
        return _Level(self.ways, *(np.concatenate(pair) for pair in pairs))


class _Partition:
    """One partition while it grows, level by level, all nodes of a level at once.

    The rows of each node stand together in ``rows``, in increasing order, and to cut a node moves rows
    inside it only: what has ended stays where it is, and nodes stand in the order of the tree.
    """

    def __init__(
        self,
        columns: _Columns,
        region: Region,
        rows: Index,
        stop: float,
        ways: int,
        rng: np.random.Generator,
    ) -> None:
        self.columns, self.rows, self.stop, self.rng = columns, rows.copy(), stop, rng
        start, size = np.zeros(1, dtype=np.int64), np.array([rows.size])
        self.root = _Level(ways, start, size, region.lower[None], region.upper[None])

    def tree(self, end: Callable[[Region, Index], Node]) -> Node:
        """The whole partition; ``end`` makes what stands at its bottom."""
        levels = [self.root]
        while len(levels) <= MAX_CUTS and self._cut(levels[-1]):
            levels.append(levels[-1].children())
        self.rows.flags.writeable = False
        made: list[Node] = []
        for level in reversed(levels):
            made = list(self._made(level, iter(made), end))
        return made[0]

    def _made(
        self, level: _Level, below: Iterator[Node], end: Callable[[Region, Index], Node]
    ) -> Iterator[Node]:
        """The nodes of a level as objects, from those of the level below."""
        regions = map(Region._trusted, level.lower, level.upper)
        numbers = (level.start, level.size, level.n_children, level.dimension, level.split)
        for region, start, size, n, dimension, splits in zip(
            regions, *(each.tolist() for each in numbers), strict=True
        ):
            if n == 0:
                yield end(region, self.rows[start : start + size])
            else:
                children, distinct = tuple(islice(below, n)), tuple(dict.fromkeys(splits))
                yield Product._trusted(children, dimension, distinct, region)

    def some_leaves(self, most: int) -> list[Leaf]:
        """At most so many of the leaves, in their order; what leads to none of them is not cut."""
        level, ended = self.root, self.root.take(np.array([], dtype=np.int64))
        for _ in range(MAX_CUTS):
            if not self._cut(level):
                break
            ended = ended.join(level.take(level.n_children == 0))
            parents = np.concatenate([ended.start, np.repeat(level.start, level.n_children)])
            alive, n_ended = ended.join(level.children()), len(ended.size)
            kept = _thinned(parents, most, self.rng)
            ended, level = alive.take(kept[kept < n_ended]), alive.take(kept[kept >= n_ended])
        found = ended.join(level)
        found = found.take(np.argsort(found.start))
        return [
            Leaf(Region(lower, upper), self.rows[start : start + size])
            for start, size, lower, upper in zip(*found.nodes, strict=True)
        ]

    def _cut(self, level: _Level) -> bool:
        """Cut the nodes that are too large and whose rows differ; whether there are any."""
        going = np.flatnonzero(level.size > self.stop)
        if not going.size:
            return False
        size = level.size[going]
        rows = self.rows.take(_spans(level.start[going], size))
        spread = self.columns.spread(rows, size)
        differ = spread.any(axis=1)
        if not differ.all():
            rows = _of(rows, size, np.flatnonzero(differ))
            going, size, spread = going[differ], size[differ], spread[differ]
        codes = self._choose(level, going, rows, spread)
        part = np.zeros(len(rows), dtype=np.int32)
        for border in level.border[going].T:
            part += codes >= np.repeat(border, size)
        for k, begin in enumerate(level.begins[going].T):
            self.rows[_spans(begin, level.parts[going, k])] = rows.compress(part == k)
        return going.size > 0

    def _choose(self, level: _Level, going: Index, rows: Index, spread: Array) -> Index:
        """Choose how nodes are cut; the codes of their rows along the dimensions chosen.

        Where ties keep a drawn dimension from being cut evenly the next is drawn; if all are so, the
        most even one stands.
        """
        # Clocks that run as fast as columns are wide ring in the order of draws in proportion to the
        # spread, without replacement.
        rings = np.full(spread.shape, np.inf)
        np.divide(self.rng.exponential(size=spread.shape), spread, out=rings, where=spread > 0)
        size, codes = level.size[going], np.empty(len(rows), dtype=self.columns.codes.dtype)
        largest, pending, n_draws = size.copy(), np.arange(len(size)), 1
        while pending.size:
            which, dimension = np.nonzero(_soonest(rings[pending], n_draws))
            node = pending[which]
            tried = self.columns.code(_of(rows, size, node), size[node], dimension)
            found = self._near_even(tried, size[node], dimension)
            now = found[-1].max(axis=1)
            best = _first_even(which, rings[node, dimension], now, size[node])
            best = best[now[best] < largest[node[best]]]
            chosen = node[best]
            for kept, new in zip(level.cuts, found, strict=True):
                kept[going[chosen]] = new[best]
            codes[_spans(_first(size)[chosen], size[chosen])] = _of(tried, size[node], best)
            largest[chosen] = now[best]
            rings[node, dimension] = np.inf
            uneven = largest[pending] > UNEVEN * size[pending]
            pending = pending[uneven & (rings[pending] < np.inf).any(axis=1)]
            few = DRAWN_ROWS // max(size[pending].sum(), 1)
            n_draws = max(1, min(2 * n_draws, few, spread.shape[1]))
        return codes

    def _near_even(
        self, codes: Index, size: Index, dimension: Index
    ) -> tuple[Index, Index, Array, Index]:
        """Cuts of nodes with these codes near the even quantiles, as a level keeps them.

        Among ties a cut moves to the nearest place where codes step up.
        """
        columns, ways = self.columns, self.root.ways
        base = np.arange(len(size))[:, None] * columns.codes.size
        keys = codes + np.repeat(base[:, 0], size)
        keys.sort()  # every node for itself
        first, size = _first(size)[:, None], size[:, None]
        even = np.arange(1, ways) + self.rng.uniform(-0.3, 0.3, size=(len(size), ways - 1))
        rank = np.rint(even / ways * size).astype(np.int64)
        rank = np.minimum(np.maximum(rank, 1), size - 1)
        tied = keys[first + rank]
        below = np.searchsorted(keys, tied, side="left") - first
        above = np.searchsorted(keys, tied, side="right") - first
        up = (below == 0) | ((above < size) & (above - rank < rank - below))
        after = np.sort(np.where(up, above, below), axis=1)
        last, border = keys[first + after - 1] - base, keys[first + after] - base
        split = _between(columns.value(last, dimension), columns.value(border, dimension))
        parts = np.diff(np.hstack([np.zeros_like(size), after, size]), axis=1)
        return dimension, border, split, parts


def _soonest(rings: Array, n: int) -> NDArray[np.bool_]:
    """Which clocks ring among the first n of their node, if they ring at all."""
    return (rings <= np.partition(rings, n - 1, axis=1)[:, n - 1 : n]) & (rings < np.inf)


def _first_even(node: Index, rings: Array, largest: Index, size: Index) -> Index:
    """Of each node's draws the first that cuts it evenly, or else the one that does so most."""
    unevenness = np.where(largest > UNEVEN * size, largest, 0)
    order = np.lexsort((rings, unevenness, node))
    return order[np.flatnonzero(np.diff(node, prepend=-1))]


def _thinned(parents: Index, most: int, rng: np.random.Generator) -> Index:
    """At most so many nodes, all with the same probability.

    One out of every so many in the order of the tree, with siblings in random order.
    """
    n = len(parents)
    if n <= most:
        return np.arange(n)
    order = np.lexsort((rng.random(n), parents))
    return np.sort(order[(np.arange(most) * n + rng.integers(n)) // most])


def _first(count: Index) -> Index:
    """Where each of several runs begins, one after the other."""
    return np.cumsum(count) - count


def _spans(start: Index, count: Index) -> Index:
    """Runs of numbers, one after the other: from each start on, so many."""
    return np.arange(count.sum()) + np.repeat(start - _first(count), count)


def _of(rows: Index, size: Index, some: Index) -> Index:
    """The rows of some nodes, out of those of all."""
    if len(some) == len(size) and (some == np.arange(len(size))).all():
        return rows
    return rows.take(_spans(_first(size)[some], size[some]))


def _splits(values: Array, after: Index) -> list[float]:
    """Positions that cut before the sorted values of rank ``after``."""
    ranks = np.unique(np.searchsorted(values, values[np.clip(after, 0, len(values) - 1)]))
    ranks = ranks[ranks > 0]
    if not ranks.size:  # every drawn cut fell on the smallest value: cut at the first step up
        ranks = np.array([np.searchsorted(values, values[0], side="right")])
    return [float(split) for split in _between(values[ranks - 1], values[ranks])]


def _between(low: Array, high: Array) -> Array:
    """Numbers in ``(low, high]``: the middle where floating point has one."""
    middle = low + 0.5 * (high - low)
    return np.where((low < middle) & (middle <= high), middle, high)


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
