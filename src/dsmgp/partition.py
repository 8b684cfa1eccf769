"""One balanced partition, grown level by level, all nodes of a level at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.columns import Columns, begins_of, rows_of, runs
from dsmgp.tree import Leaf, Node, Product, Region

__all__ = ["Partition", "between"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Cuts on the way from a sum node to a leaf. Even a million times more rows than a leaf holds need some
# 60; more are wanted only where ties let every cut split off a sliver (one-hot columns alone).
MAX_CUTS = 100
# A cut that leaves more than this share of a node's rows together is uneven, and another dimension is drawn:
# several at a time, as long as they are of so few rows in all.
UNEVEN, DRAWN_ROWS = 0.8, 100_000


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


class Partition:
    """One partition while it grows, level by level, all nodes of a level at once.

    The rows of each node stand together in ``rows``, in increasing order, and to cut a node moves rows
    inside it only: what has ended stays where it is, and nodes stand in the order of the tree.
    """

    def __init__(
        self,
        columns: Columns,
        region: Region,
        rows: Index,
        stop: float,
        ways: int,
        rng: np.random.Generator,
        unit: Array,
    ) -> None:
        self.columns, self.rows, self.stop, self.rng = columns, rows.copy(), stop, rng
        self.unit = unit
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
        rows = self.rows[runs(level.start[going], size)]
        spread = self.columns.spread(rows, size, self.unit)
        differ = spread.any(axis=1)
        if not differ.all():
            rows = rows_of(rows, size, np.flatnonzero(differ))
            going, size, spread = going[differ], size[differ], spread[differ]
        codes = self._choose(level, going, rows, spread)
        part = np.zeros(len(rows), dtype=np.int32)
        for border in level.border[going].T.astype(codes.dtype):
            part += codes >= np.repeat(border, size)
        moved = [rows.compress(part == k) for k in range(level.ways)]
        for own, begin, count in zip(
            moved, level.begins[going].T, level.parts[going].T, strict=True
        ):
            self.rows[runs(begin, count)] = own
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
            tried = self.columns.code(rows_of(rows, size, node), size[node], dimension)
            found = self._near_even(tried, size[node], dimension)
            now = found[-1].max(axis=1)
            best = _first_even(which, rings[node, dimension], now, size[node])
            best = best[now[best] < largest[node[best]]]
            chosen = node[best]
            for kept, new in zip(level.cuts, found, strict=True):
                kept[going[chosen]] = new[best]
            codes[runs(begins_of(size)[chosen], size[chosen])] = rows_of(tried, size[node], best)
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
        first, size = begins_of(size)[:, None], size[:, None]
        even = np.arange(1, ways) + self.rng.uniform(-0.3, 0.3, size=(len(size), ways - 1))
        rank = np.rint(even / ways * size).astype(np.int64)
        rank = np.minimum(np.maximum(rank, 1), size - 1)
        tied = keys[first + rank]
        below = np.searchsorted(keys, tied, side="left") - first
        above = np.searchsorted(keys, tied, side="right") - first
        up = (below == 0) | ((above < size) & (above - rank < rank - below))
        after = np.sort(np.where(up, above, below), axis=1)
        last, border = keys[first + after - 1] - base, keys[first + after] - base
        split = between(columns.value(last, dimension), columns.value(border, dimension))
        parts = np.concatenate([after, size], axis=1)
        parts[:, 1:] -= after
        return dimension, border, split, parts


def _soonest(rings: Array, n: int) -> NDArray[np.bool_]:
    """Which clocks ring among the first n of their node, if they ring at all."""
    return (rings <= np.partition(rings, n - 1, axis=1)[:, n - 1 : n]) & (rings < np.inf)


def _first_even(node: Index, rings: Array, largest: Index, size: Index) -> Index:
    """Of each node's draws the first that cuts it evenly, or else the one that does so most."""
    unevenness = np.where(largest > UNEVEN * size, largest, 0)
    order = np.lexsort((rings, unevenness, node))
    return order[np.searchsorted(node, np.arange(node[-1] + 1))]


def _thinned(parents: Index, most: int, rng: np.random.Generator) -> Index:
    """At most so many nodes, all with the same probability.

    One out of every so many in the order of the tree, with siblings in random order.
    """
    n = len(parents)
    if n <= most:
        return np.arange(n)
    order = np.lexsort((rng.random(n), parents))
    return np.sort(order[(np.arange(most) * n + rng.integers(n)) // most])


def between(low: Array, high: Array) -> Array:
    """Numbers in ``(low, high]``: the middle where floating point has one."""
    middle = low + 0.5 * (high - low)
    return np.where((low < middle) & (middle <= high), middle, high)
