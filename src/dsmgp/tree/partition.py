"""One partition of the input space, grown level by level, all nodes of a level at once.

:mod:`.growing` decides what to grow, the split rule where to cut (:mod:`.split_rules`), and this module does the
bookkeeping: which rows lie in which node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp.tree.columns import Columns, index_ranges, rows_of_nodes
from dsmgp.tree.nodes import Leaf, Node, Product
from dsmgp.tree.region import Region
from dsmgp.tree.split_rules import Cuts, SplitRule, cuts_by_rule, near_even_cuts

__all__ = ["Partition"]

# Cuts on the way from a sum node to a leaf. Even a million times more rows than a leaf holds need some 60; more are
# wanted only where ties let every cut split off a sliver (one-hot columns alone).
MAX_CUTS = 100


class _Level:
    """Nodes side by side, and how each is cut.

    Attributes
    ----------
    start, size : ndarray of shape (n_nodes,)
        Where the rows of each node start, and how many they are.
    lower, upper : ndarray of shape (n_nodes, n_dims)
        The region of each node.
    dimension, splits, part_sizes : ndarray
        How each node is cut, as in :class:`.Cuts`. A node that is not cut has no rows in its parts.
    """

    def __init__(self, n_parts: int, start: Index, size: Index, lower: Array, upper: Array) -> None:
        self.n_parts, self.start, self.size = n_parts, start, size
        self.lower, self.upper = lower, upper
        self.dimension = np.zeros(len(size), dtype=np.int64)
        self.splits = np.zeros((len(size), n_parts - 1))
        self.part_sizes = np.zeros((len(size), n_parts), dtype=np.int64)

    @property
    def nodes(self) -> tuple[NDArray[Any], ...]:
        return self.start, self.size, self.lower, self.upper

    @property
    def part_starts(self) -> Index:
        """Where the rows of each part start, (n_nodes, n_parts)."""
        return self.start[:, None] + np.cumsum(self.part_sizes, axis=1) - self.part_sizes

    @property
    def n_children(self) -> Index:
        return np.asarray(np.count_nonzero(self.part_sizes, axis=1))

    @property
    def cuts(self) -> tuple[list[int], list[tuple[float, ...]]]:
        """Dimension and splits of each node; those that are not cut have no splits."""
        is_cut = self.n_children.astype(bool).tolist()
        splits = [
            tuple(dict.fromkeys(each)) if any_ else ()
            for each, any_ in zip(self.splits.tolist(), is_cut, strict=True)
        ]
        return self.dimension.tolist(), splits

    def cut(self, chosen: Index, cuts: Cuts) -> None:
        """Record how the chosen nodes are cut."""
        self.dimension[chosen], self.splits[chosen] = cuts.dimension, cuts.splits
        self.part_sizes[chosen] = cuts.sizes

    def children(self) -> _Level:
        """Return the next level: the parts that have rows."""
        parent, part = np.nonzero(self.part_sizes)
        lower, upper, along = self.lower[parent], self.upper[parent], self.dimension[parent]
        k = np.flatnonzero(part > 0)
        lower[k, along[k]] = self.splits[parent[k], part[k] - 1]
        k = np.flatnonzero(part < self.n_parts - 1)
        upper[k, along[k]] = self.splits[parent[k], part[k]]
        start, size = self.part_starts[parent, part], self.part_sizes[parent, part]
        return _Level(self.n_parts, start, size, lower, upper)

    def take(self, chosen: NDArray[np.bool_] | Index) -> _Level:
        """Return the chosen nodes, uncut."""
        return _Level(self.n_parts, *(values[chosen] for values in self.nodes))

    def join(self, other: _Level) -> _Level:
        """Return the nodes of both, uncut."""
        pairs = zip(self.nodes, other.nodes, strict=True)
        return _Level(self.n_parts, *(np.concatenate(pair) for pair in pairs))


class Partition:
    """One partition while it grows.

    The rows of each node are adjacent in ``rows``, in increasing order. Cutting a node only moves rows inside it, so
    leaves stay where they are, and nodes stay in the order of the tree.

    Parameters
    ----------
    columns : Columns
        Training inputs.
    region : Region
        The region to partition.
    rows : ndarray of shape (n_rows,)
        Rows inside it, in increasing order.
    stop : float
        Nodes with more rows are cut.
    n_parts : int
        Parts that each cut makes.
    rng : numpy.random.Generator
        Source of all randomness.
    unit : ndarray of shape (n_dims,)
        Unit in which columns are compared.
    split_rule : SplitRule, optional
        How nodes are cut; :func:`.near_even_cuts` if left out.
    """

    def __init__(
        self,
        columns: Columns,
        region: Region,
        rows: Index,
        *,
        stop: float,
        n_parts: int,
        rng: np.random.Generator,
        unit: Array,
        split_rule: SplitRule | None = None,
    ) -> None:
        self.columns, self.rows, self.stop, self.n_parts = columns, rows.copy(), stop, n_parts
        self.rng, self.unit, self.split_rule = rng, unit, split_rule
        self.region = region
        start, size = np.zeros(1, dtype=np.int64), np.array([rows.size])
        self.root = _Level(n_parts, start, size, region.lower[None], region.upper[None])

    def tree(self, bottom: Callable[[Region, Index], Node]) -> Node:
        """Grow the whole partition; ``bottom`` makes its lowest nodes from their region and rows."""
        levels = [self.root]
        while len(levels) <= MAX_CUTS and self._cut(levels[-1]):
            levels.append(levels[-1].children())
        self.rows.flags.writeable = False
        regions, outlines = [self.region], []
        for level in levels:
            outlines.append((regions, *level.cuts))
            regions = [
                part
                for region, dimension, splits in zip(*outlines[-1], strict=True)
                if splits
                for part in region.split(dimension, splits)
            ]
        made: list[Node] = []
        for level, outline in zip(reversed(levels), reversed(outlines), strict=True):
            made = list(self._nodes(level, outline, iter(made), bottom))
        return made[0]

    def _nodes(
        self,
        level: _Level,
        outline: tuple[list[Region], list[int], list[tuple[float, ...]]],
        below: Iterator[Node],
        bottom: Callable[[Region, Index], Node],
    ) -> Iterator[Node]:
        """Yield the nodes of a level, given their regions and cuts and the nodes of the level below."""
        ends = zip(level.start.tolist(), (level.start + level.size).tolist(), strict=True)
        for (start, end), region, dimension, splits in zip(ends, *outline, strict=True):
            if splits:
                children = tuple(islice(below, len(splits) + 1))
                yield Product._unchecked(children, dimension, splits, region)
            else:
                yield bottom(region, self.rows[start:end])

    def sample_leaves(self, most: int) -> list[Leaf]:
        """Return at most so many of the leaves, in order; nodes that lead to none of them are not cut."""
        level, ended = self.root, self.root.take(np.array([], dtype=np.int64))
        for _ in range(MAX_CUTS):
            if not self._cut(level):
                break
            ended = ended.join(level.take(level.n_children == 0))
            parents = np.concatenate([ended.start, np.repeat(level.start, level.n_children)])
            alive, n_ended = ended.join(level.children()), len(ended.size)
            kept = _thinned(parents, most, self.rng)
            ended, level = alive.take(kept[kept < n_ended]), alive.take(kept[kept >= n_ended])
        sampled = ended.join(level)
        sampled = sampled.take(np.argsort(sampled.start))
        return [
            Leaf(Region(lower, upper), self.rows[start : start + size])
            for start, size, lower, upper in zip(*sampled.nodes, strict=True)
        ]

    def _cut(self, level: _Level) -> bool:
        """Cut the nodes that are too large and whose rows differ; return whether there are any."""
        chosen = np.flatnonzero(level.size > self.stop)
        if not chosen.size:
            return False
        size = level.size[chosen]
        rows = self.rows[index_ranges(level.start[chosen], size)]
        spread = self.columns.spread(rows, size, self.unit)
        differ = spread.any(axis=1)
        if not differ.all():
            rows = rows_of_nodes(rows, size, np.flatnonzero(differ))
            chosen, size, spread = chosen[differ], size[differ], spread[differ]
        if self.split_rule is None:
            cuts = near_even_cuts(self.columns, rows, size, spread, self.n_parts, self.rng)
        else:
            cuts = cuts_by_rule(
                self.split_rule, self.columns, rows, size, self.unit, self.n_parts, self.rng
            )
        level.cut(chosen, cuts)
        is_cut = np.repeat(cuts.sizes.any(axis=1), size)  # a rule may leave nodes as they are
        # All before any is written back: rows may be a view.
        moved = [rows.compress((cuts.part == k) & is_cut) for k in range(self.n_parts)]
        for part, starts, counts in zip(
            moved, level.part_starts[chosen].T, cuts.sizes.T, strict=True
        ):
            self.rows[index_ranges(starts, counts)] = part
        return bool(cuts.sizes.any())


def _thinned(parents: Index, most: int, rng: np.random.Generator) -> Index:
    """Return at most so many nodes, all with the same probability.

    Every k-th node in the order of the tree, with siblings in random order.
    """
    n = len(parents)
    if n <= most:
        return np.arange(n)
    order = np.lexsort((rng.random(n), parents))
    return np.sort(order[(np.arange(most) * n + rng.integers(n)) // most])
