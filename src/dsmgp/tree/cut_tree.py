"""Trees of two-way cuts as values: equal if they are equal, so that a search can remember which it has seen.

A :data:`CutTree` is None, a region that is not cut, or a :class:`Cut` of it. The moves are those of Bayesian CART (Chipman, George & McCulloch
1998): grow, prune, change and swap. :class:`TreePrior` has their prior. Positions are always halfway between two values of the rows that
a cut parts (:func:`snapped`): every other position in the same gap gives the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.tree.nodes import Leaf, Node, Product
from dsmgp.tree.region import Region

__all__ = [
    "Cut",
    "CutTree",
    "TreePrior",
    "all_trees",
    "cut_gaps",
    "gap_ends",
    "grown",
    "inner_cuts",
    "leaf_rows",
    "prunings",
    "replaced",
    "snapped",
    "swaps",
    "to_node",
]


@dataclass(frozen=True)
class Cut:
    """A region cut in two.

    Attributes
    ----------
    dimension : int
    split : float
        Rows with a value of at least this belong above.
    below, above : Cut or None
        How the two parts are cut in turn.

    Examples
    --------
    >>> Cut(0, 0.5) == Cut(0, 0.5, None, None)
    True
    """

    dimension: int
    split: float
    below: Cut | None = None
    above: Cut | None = None


#: None is a region that is not cut.
CutTree = Cut | None
#: The way from the root to a part: False is below, True above.
Path = tuple[bool, ...]


def cut_gaps(x: Array, least: int) -> tuple[Index, Array]:
    """Return where rows can be cut: after how many of them, in order, and at which position.

    Parameters
    ----------
    x : ndarray of shape (n_rows,)
        Values of the rows along one dimension, in increasing order.
    least : int
        Rows that each side must have.

    Examples
    --------
    >>> cut_gaps(np.array([0.0, 1.0, 1.0, 3.0]), least=1)
    (array([1, 3]), array([0.5, 2. ]))
    """
    after = np.flatnonzero(x[1:] > x[:-1]) + 1
    after = after[(after >= least) & (after <= len(x) - least)]
    low, high = x[after - 1], x[after]
    middle = low + 0.5 * (high - low)
    return after, np.where(low < middle, middle, high)


@dataclass(frozen=True)
class TreePrior:
    """The prior of Bayesian CART.

    A region at a depth d is cut with probability ``alpha * (1 + d) ** -beta``, if it can be; the input is uniform among those that can be
    cut, and so is the position among its gaps.

    Attributes
    ----------
    alpha, beta : float
    least : int
        Rows that each part must have.
    most : float
        A region with more rows is always cut, if it can be.

    Examples
    --------
    >>> X = np.arange(4.0)[:, None]
    >>> prior = TreePrior(alpha=0.5, beta=1.0, least=1)
    >>> [round(math.exp(prior.log_density(tree, X)), 3) for tree in (None, Cut(0, 0.5))]
    [0.5, 0.125]
    >>> round(sum(math.exp(prior.log_density(tree, X)) for tree in all_trees(X, least=1)), 12)
    1.0
    """

    alpha: float = 0.5
    beta: float = 2.0
    least: int = 10
    most: float = math.inf

    def log_density(self, tree: CutTree, X: Array, rows: Index | None = None) -> float:
        """Return the log probability of a tree whose root has the rows of X, or some of them; minus infinity if it is not allowed."""
        total = 0.0
        for path, inside, node in _parts(tree, X, rows):
            log_cut, log_keep, log_choices = self.log_choices(X, inside, len(path))
            total += log_keep if node is None else log_cut - log_choices[node.dimension]
            if total == -math.inf:
                break
        return total

    def log_choices(self, X: Array, rows: Index, depth: int) -> tuple[float, float, Array]:
        """Return the log probabilities that a region is cut and that it is not, and for each dimension minus the log probability of each of its cuts.

        Infinite for dimensions without a gap.
        """
        n_gaps = np.zeros(X.shape[1])
        if len(rows) >= 2 * self.least:
            ordered = np.sort(X[rows], axis=0)
            inside = ordered[self.least - 1 : len(rows) - self.least + 1]
            n_gaps = np.count_nonzero(inside[1:] > inside[:-1], axis=0).astype(np.float64)
        n_open = np.count_nonzero(n_gaps)
        if not n_open:
            return -math.inf, 0.0, np.full(len(n_gaps), math.inf)
        share = 1.0 if len(rows) > self.most else self.alpha * (1.0 + depth) ** -self.beta
        choices = np.where(n_gaps > 0, np.log(np.maximum(n_gaps, 1.0) * n_open), math.inf)
        return math.log(share), math.log1p(-share) if share < 1.0 else -math.inf, choices


def leaf_rows(tree: CutTree, X: Array, rows: Index | None = None) -> list[Index]:
    """Return the rows of each leaf, from below to above."""
    return [inside for _, inside, node in _parts(tree, X, rows) if node is None]


def _parts(
    tree: CutTree, X: Array, rows: Index | None = None
) -> Iterator[tuple[Path, Index, CutTree]]:
    """Yield path, rows and subtree of every part, parents first and below before above."""
    stack: list[tuple[Path, Index, CutTree]] = [
        ((), np.arange(len(X)) if rows is None else rows, tree)
    ]
    while stack:
        path, inside, node = stack.pop()
        yield path, inside, node
        if node is not None:
            is_above = X[inside, node.dimension] >= node.split
            stack.append(((*path, True), inside[is_above], node.above))
            stack.append(((*path, False), inside[~is_above], node.below))


def inner_cuts(tree: CutTree, X: Array) -> Iterator[tuple[Path, Index, Cut]]:
    """Yield path, rows and subtree of every part that is cut."""
    for path, rows, node in _parts(tree, X):
        if node is not None:
            yield path, rows, node


def grown(tree: CutTree, X: Array) -> Iterator[tuple[Path, Index]]:
    """Yield path and rows of every leaf: where a tree can grow."""
    for path, rows, node in _parts(tree, X):
        if node is None:
            yield path, rows


def replaced(tree: CutTree, path: Path, part: CutTree) -> CutTree:
    """Return the tree with another subtree at a path.

    Examples
    --------
    >>> replaced(Cut(0, 0.5), (True,), Cut(1, 0.2))
    Cut(dimension=0, split=0.5, below=None, above=Cut(dimension=1, split=0.2, below=None, above=None))
    """
    if not path:
        return part
    assert tree is not None
    if path[0]:
        return replace(tree, above=replaced(tree.above, path[1:], part))
    return replace(tree, below=replaced(tree.below, path[1:], part))


def prunings(tree: CutTree, X: Array) -> Iterator[CutTree]:
    """Yield the trees with one cut less: cuts between two leaves are taken back."""
    for path, _, node in inner_cuts(tree, X):
        if node.below is None and node.above is None:
            yield replaced(tree, path, None)


def swaps(tree: CutTree, X: Array) -> Iterator[CutTree]:
    """Yield the trees in which a cut and one right below it have changed places; some may part rows that are not there (see :func:`snapped`).

    If the cuts on both sides are equal, both change places with the one above.
    """
    for path, _, node in inner_cuts(tree, X):
        below, above = node.below, node.above
        if below is not None and above is not None and _rule(below) == _rule(above):
            lower = [
                replace(child, dimension=node.dimension, split=node.split)
                for child in (below, above)
            ]
            yield replaced(tree, path, Cut(*_rule(below), *lower))
            continue
        for is_above, child in enumerate((below, above)):
            if child is not None and _rule(child) != _rule(node):
                lowered = replace(child, dimension=node.dimension, split=node.split)
                raised = replace(node, dimension=child.dimension, split=child.split)
                yield replaced(tree, path, replaced(raised, (bool(is_above),), lowered))


def _rule(cut: Cut) -> tuple[int, float]:
    return cut.dimension, cut.split


def snapped(tree: CutTree, X: Array, least: int, rows: Index | None = None) -> tuple[CutTree, bool]:
    """Return the tree with every split in the middle of its gap, and whether it is valid: each part has ``least`` rows.

    Examples
    --------
    >>> snapped(Cut(0, 1.9), np.array([[0.0], [1.0], [2.0]]), least=1)
    (Cut(dimension=0, split=1.5, below=None, above=None), True)
    """
    if tree is None:
        return None, True
    inside = np.arange(len(X)) if rows is None else rows
    x = X[inside, tree.dimension]
    is_above = x >= tree.split
    n_above = int(np.count_nonzero(is_above))
    if min(n_above, len(x) - n_above) < least:
        return tree, False
    low, high = float(x[~is_above].max()), float(x[is_above].min())
    split = low + 0.5 * (high - low)
    below, is_valid = snapped(tree.below, X, least, inside[~is_above])
    if not is_valid:
        return tree, False
    above, is_valid = snapped(tree.above, X, least, inside[is_above])
    return Cut(tree.dimension, split if low < split else high, below, above), is_valid


def gap_ends(tree: CutTree, X: Array, rows: Index | None = None) -> tuple[CutTree, CutTree]:
    """Return the tree with every split at the lower end of its gap, just above the rows below, and at the upper end.

    Both part the training rows in the same way. A new row inside a gap is above the cut in the first, and below it in the second.

    Examples
    --------
    >>> low, high = gap_ends(Cut(0, 0.5), np.array([[0.0], [1.0]]))
    >>> bool(0.0 < low.split < 1e-300), high.split
    (True, 1.0)
    """
    if tree is None:
        return None, None
    inside = np.arange(len(X)) if rows is None else rows
    x = X[inside, tree.dimension]
    is_above = x >= tree.split
    ends = float(np.nextafter(x[~is_above].max(), np.inf)), float(x[is_above].min())
    below = gap_ends(tree.below, X, inside[~is_above])
    above = gap_ends(tree.above, X, inside[is_above])
    low, high = (Cut(tree.dimension, *parts) for parts in zip(ends, below, above, strict=True))
    return low, high


def to_node(tree: CutTree, X: Array) -> Node:
    """Return the tree as nodes, whose leaves have their rows."""

    def node_of(part: CutTree, region: Region, rows: Index) -> Node:
        if part is None:
            return Leaf(region, rows)
        is_above = X[rows, part.dimension] >= part.split
        low, high = region.split(part.dimension, [part.split])
        children = (
            node_of(part.below, low, rows[~is_above]),
            node_of(part.above, high, rows[is_above]),
        )
        return Product(children, part.dimension, (part.split,))

    return node_of(tree, Region.whole(X.shape[1]), np.arange(len(X)))


def all_trees(
    X: Array, least: int, rows: Index | None = None, most_cuts: float = math.inf
) -> Iterator[CutTree]:
    """Yield every tree over the rows of X, by brute force: for tests and tiny tables."""
    inside = np.arange(len(X)) if rows is None else rows
    yield None
    if most_cuts < 1:
        return
    for dimension in range(X.shape[1]):
        _, splits = cut_gaps(np.sort(X[inside, dimension]), least)
        for split in splits.tolist():
            is_above = X[inside, dimension] >= split
            for below in all_trees(X, least, inside[~is_above], most_cuts - 1):
                left = most_cuts - 1 - _n_cuts(below)
                for above in all_trees(X, least, inside[is_above], left):
                    yield Cut(dimension, split, below, above)


def _n_cuts(tree: CutTree) -> int:
    return 0 if tree is None else 1 + _n_cuts(tree.below) + _n_cuts(tree.above)
