"""Routing: which rows reach which leaves of a tree.

A row goes on from a sum node to all of its children, and from a product to the child whose region holds it. A tree is
first flattened into arrays of two-way cuts, and all rows descend at once: in compiled code (:mod:`.routing_numba`)
or, without numba, in NumPy.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.compiled import Kernel
from dsmgp._util.errors import InputError
from dsmgp._util.machine import has_numba
from dsmgp._util.ragged import Ragged
from dsmgp.linalg.threads import Threads
from dsmgp.tree.nodes import Leaf, Node, Product, Sum, fold, leaves, map_leaves, nodes
from dsmgp.tree.region import Region, box

__all__ = ["Cuts", "Outline", "Router", "Routes", "place", "route", "route_outline"]

_descend = Kernel("dsmgp.tree.routing_numba", "descend")
_reach = Kernel("dsmgp.tree.routing_numba", "reach")
# Rows that a thread routes at once: few enough that the arrays involved stay in its cache.
PIECE_ROWS = 2**14
# Up to so many rows are routed before threads would have woken up: see Threads.map.
BRIEF_ROWS = 1000

#: The nodes of a tree, parents first and children in order: number of children (none of a leaf), dimension and splits (none of a sum).
Outline = Iterable[tuple[int, int, Sequence[float]]]


@dataclass(frozen=True)
class Routes:
    """Which rows reach which leaves.

    Attributes
    ----------
    leaf : ndarray of shape (n_reached,)
        Numbers of the leaves that any row reaches, in increasing order.
    rows : Ragged
        For each of them, the numbers of the rows that reach it.
    """

    leaf: Index
    rows: Ragged

    @classmethod
    def of(cls, leaf: Index, row: Index) -> Routes:
        """Group (leaf, row) pairs by leaf; the rows of each leaf stay in the order given."""
        short = leaf.astype(np.uint16) if leaf.max(initial=0) < 2**16 else leaf  # sorts fastest
        sizes = np.bincount(leaf)
        reached = np.flatnonzero(sizes)
        return cls(reached, Ragged.of_sizes(row[np.argsort(short, kind="stable")], sizes[reached]))

    @property
    def pairs(self) -> tuple[Index, Index]:
        """Leaf and row of every pair, ordered by leaf."""
        return self.leaf[self.rows.owner], self.rows.flat

    def by_leaf(self, n_leaves: int) -> Ragged:
        """Return the rows of every leaf of a tree, reached or not."""
        sizes = np.zeros(n_leaves, dtype=np.int64)
        sizes[self.leaf] = self.rows.sizes
        return Ragged.of_sizes(self.rows.flat, sizes)

    def only(self, chosen: NDArray[np.bool_]) -> Routes:
        """Return the pairs for which ``chosen``, of shape (n_pairs,), is true."""
        leaf, row = self.pairs
        return Routes.of(leaf[chosen], row[chosen])


class Router:
    """A tree flattened into arrays, so that all rows can be routed at once.

    Parameters
    ----------
    root : Node
        The tree.

    Examples
    --------
    >>> from dsmgp.tree import Product
    >>> halves = [Leaf(part) for part in Region.whole(1).split(0, [0.5])]
    >>> router = Router(Product(halves, dimension=0, splits=[0.5]))
    >>> routes = router.route(np.array([[0.9], [0.1], [0.5]]))
    >>> routes.leaf, routes.rows[1]
    (array([0, 1]), array([0, 2]))
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self._flat = _FlatTree.of(_outline(root))

    @cached_property
    def max_reached(self) -> int:
        """The largest number of leaves that a row can reach."""
        return fold(
            self.root,
            lambda leaf: 1,
            lambda product, counts: max(counts),
            lambda node, counts: sum(counts),
        )

    def without_tree(self) -> Router:
        """Return a router that routes rows and knows no nodes: a few arrays, to be sent to other processes."""
        other = copy.copy(self)
        other.root = None  # type: ignore[assignment]
        return other

    def route(self, X: Array) -> Routes:
        """Return the leaves that each row of ``X``, of shape (n_rows, n_dims), reaches."""
        return _route(self._flat, X)

    def reached(self, X: Array) -> Index:
        """Return the numbers of the leaves that few rows reach, (n_rows, max_reached), in increasing order and then -1. Needs numba."""
        flat, leaves = self._flat, np.full((len(X), self.max_reached), -1, dtype=np.int64)
        cuts = flat.cuts
        ends, children = flat.sum_children
        _reach(
            cuts.dimension, cuts.split, cuts.below, cuts.above, flat.leaf, ends, children,
            np.ascontiguousarray(X, np.float64), leaves, np.empty(self.max_reached + 1, dtype=np.int64),
        )  # fmt: skip
        return leaves


@dataclass(frozen=True, eq=False)
class Cuts:
    """Two-way cuts, and the ends to which they lead, as arrays with an entry for each.

    Attributes
    ----------
    dimension, split : ndarray of shape (n_entries,)
        Rows with ``x[dimension] < split`` go on to the entry ``below``, others to the entry ``above``.
    below, above : ndarray of shape (n_entries,)
        An end has an infinite split and leads to itself on both sides.
    """

    dimension: Index
    split: Array
    below: Index
    above: Index

    def descend(self, entry: Index, X: Array) -> Index:
        """Return the end that each row of X reaches from an entry; ``entry`` may be overwritten.

        Parameters
        ----------
        entry : ndarray of shape (n_rows,)
        X : ndarray of shape (n_rows, n_dims)
        """
        if has_numba():
            rows = np.ascontiguousarray(X, np.float64)
            _descend(self.dimension, self.split, self.below, self.above, rows, entry)
            return entry
        every = np.arange(len(X))
        while True:
            x = X[every, self.dimension[entry]]
            following = np.where(x < self.split[entry], self.below[entry], self.above[entry])
            if np.array_equal(following, entry):
                return entry
            entry = following


@dataclass(frozen=True)
class _FlatTree:
    """A tree as arrays with an entry for each leaf, each sum and each two-way cut.

    Attributes
    ----------
    cuts : Cuts
        Leaves and sums are its ends.
    leaf : ndarray of shape (n_entries,)
        The number of the leaf, or -1.
    sums : dict of int to list of int
        For the entry of a sum, the entries of its children.
    """

    cuts: Cuts
    leaf: Index
    sums: dict[int, list[int]]

    @classmethod
    def of(cls, outline: Outline) -> _FlatTree:
        entries = _Entries(outline)
        dimension, below, above, leaf = (
            np.array(values, dtype=np.int64)
            for values in (entries.dimension, entries.below, entries.above, entries.leaf)
        )
        split = np.array(entries.split, dtype=np.float64)
        return cls(Cuts(dimension, split, below, above), leaf, entries.sums)

    @cached_property
    def sum_children(self) -> tuple[Index, Index]:
        """Children of sums as one array, and where those of each entry end."""
        of_entries = [self.sums.get(at, []) for at in range(len(self.leaf))]
        ends = np.cumsum([0, *map(len, of_entries)], dtype=np.int64)
        return ends, np.array(list(itertools.chain(*of_entries)), dtype=np.int64)

    def pairs(self, X: Array, first: int) -> tuple[Index, Index]:
        """Return leaf and row of every pair, for rows whose numbers start at ``first``."""
        # Only this piece is copied if need be. Writable, since code is compiled again for read-only arrays.
        X = np.require(X, np.float64, ["C", "W", "E"])
        pairs: list[tuple[Index, Index]] = []
        waiting = [(np.zeros(len(X), dtype=np.int64), np.arange(len(X), dtype=np.int64))]
        while waiting:
            node, row = waiting.pop()
            node = self.cuts.descend(node, X if len(row) == len(X) else X[row])
            leaf = self.leaf[node]
            ended = leaf >= 0
            pairs.append((leaf[ended], row[ended] + first))
            for at in np.unique(node[~ended]).tolist():
                here = row[node == at]
                waiting += [
                    (np.full(len(here), child, dtype=np.int64), here) for child in self.sums[at]
                ]
        return np.concatenate([leaf for leaf, _ in pairs]), np.concatenate(
            [row for _, row in pairs]
        )


class _Entries:
    """The arrays of a :class:`_FlatTree` as lists, which grow from the root down.

    A product of several cuts becomes a nest of two-way cuts.
    """

    def __init__(self, outline: Outline) -> None:
        self.dimension: list[int] = []
        self.split: list[float] = []
        self.below: list[int] = []
        self.above: list[int] = []
        self.leaf: list[int] = []
        self.sums: dict[int, list[int]] = {}
        number = itertools.count()
        waiting = [self._new()]  # entries of the nodes to come, the next one last
        for n_children, dimension, splits in outline:
            at = waiting.pop()
            if not n_children:
                self.leaf[at] = next(number)
                continue
            if splits:
                children = self._cut(at, dimension, splits)
            else:
                children = self.sums[at] = [self._new() for _ in range(n_children)]
            waiting += reversed(children)

    def _new(self) -> int:
        at = len(self.leaf)
        self.dimension.append(0)
        self.split.append(np.inf)
        self.below.append(at)
        self.above.append(at)
        self.leaf.append(-1)
        return at

    def _cut(self, at: int, dimension: int, splits: Sequence[float]) -> list[int]:
        """Turn an entry into a nest of cuts, the middle one first, and return the entries of the parts."""
        if not splits:
            return [at]
        middle = len(splits) // 2
        below, above = self._new(), self._new()
        self.dimension[at], self.split[at] = dimension, splits[middle]
        self.below[at], self.above[at] = below, above
        return [
            *self._cut(below, dimension, splits[:middle]),
            *self._cut(above, dimension, splits[middle + 1 :]),
        ]


def _outline(root: Node) -> Iterator[tuple[int, int, Sequence[float]]]:
    for node in nodes(root):
        match node:
            case Leaf():
                yield 0, 0, ()
            case Product():
                yield len(node.children), node.dimension, node.splits
            case Sum():
                yield len(node.children), 0, ()


def route(root: Node, X: Array) -> Routes:
    """Return the leaves that the rows of ``X`` reach; for several ``X``, keep a :class:`Router`."""
    return Router(root).route(X)


def route_outline(outline: Outline, X: Array) -> Routes:
    """Return the leaves that the rows of ``X`` reach, in a tree whose nodes are yet to be built."""
    return _route(_FlatTree.of(outline), X)


def _route(flat: _FlatTree, X: Array) -> Routes:
    pieces = Threads().map(
        lambda first: flat.pairs(X[first : first + PIECE_ROWS], first),
        range(0, max(len(X), 1), PIECE_ROWS),
        brief=len(X) <= BRIEF_ROWS,
    )
    leaf, row = (np.concatenate([piece[k] for piece in pieces]) for k in (0, 1))
    return Routes.of(leaf, row)  # rows of a leaf are in order, within a piece and across pieces


def place(root: Node, X: Array, replace_rows: bool = False) -> Node:
    """Return the tree with the rows of ``X`` placed in its leaves.

    Parameters
    ----------
    root : Node
        A tree over the whole input space.
    X : ndarray of shape (n_rows, n_dims)
        Training inputs.
    replace_rows : bool
        Whether to replace the rows that leaves have. Otherwise leaves that have rows must have just those of ``X`` in
        their region, and keep their order.
    """
    if root.region.n_dims != X.shape[1]:
        raise InputError(
            f"the tree does not fit the data: it has {root.region.n_dims} dimensions, "
            f"X has {X.shape[1]} columns"
        )
    if not root.region.same_as(Region.whole(X.shape[1])):
        raise InputError(
            "the tree does not fit the data: its root must cover the whole input space, "
            f"got {box(root.region)}; start from Region.whole({X.shape[1]})"
        )
    if len({id(node) for node in nodes(root)}) < sum(1 for _ in nodes(root)):
        raise InputError("a node occurs in two places of the tree; build a separate node for each")
    leaf_rows = route(root, X).by_leaf(len(leaves(root)))
    numbers = itertools.count()

    def placed(leaf: Leaf) -> Leaf:
        number = next(numbers)
        rows = leaf_rows[number]
        given = None if replace_rows else leaf.rows
        if given is not None and not np.array_equal(np.sort(given), rows):
            raise InputError(
                f"the tree does not fit the data: leaf {number} lists {leaf.n_rows} "
                f"rows that are not the {rows.size} rows of X in its region; "
                "leave rows out and they are placed for you"
            )
        return replace(leaf, rows=rows if given is None else given)

    return map_leaves(root, placed)
