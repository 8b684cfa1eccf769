"""The way of rows down a tree, all rows and all nodes of a level at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsmgp.ragged import Ragged
from dsmgp.tree import Leaf, Node, Product, Region, Sum, box, leaves, nodes

__all__ = ["Router", "Routes", "place", "route"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Routes:
    """Which rows reach which leaves.

    Attributes
    ----------
    leaf : ndarray of shape (n_reached,)
        Numbers of the leaves that any row reaches, in order.
    rows : Ragged
        For each of them, the rows that reach it, in order.
    """

    leaf: Index
    rows: Ragged

    @property
    def pairs(self) -> tuple[Index, Index]:
        """Leaf and row of every pair, leaf by leaf."""
        return self.leaf[self.rows.owner], self.rows.flat

    def only(self, chosen: NDArray[np.bool_]) -> Routes:
        """Some of the pairs."""
        leaf, row = self.pairs
        return _by_leaf(leaf[chosen], row[chosen])


class Router:
    """A tree as arrays, one entry a node, parents before children.

    Examples
    --------
    >>> halves = [Leaf(part) for part in Region.whole(1).split(0, [0.5])]
    >>> found = route(Product(halves, dimension=0, splits=[0.5]), np.array([[0.9], [0.1], [0.5]]))
    >>> found.leaf, found.rows[1]
    (array([0, 1]), array([0, 2]))
    """

    def __init__(self, root: Node) -> None:
        order = list(nodes(root))
        number = {id(node): k for k, node in enumerate(order)}
        children = [() if isinstance(node, Leaf) else node.children for node in order]
        splits = [node.splits if isinstance(node, Product) else () for node in order]
        self.children = Ragged.of([[number[id(child)] for child in own] for own in children])
        #: Of a product; -1 elsewhere.
        self.dimension = np.array([n.dimension if isinstance(n, Product) else -1 for n in order])
        self.split_ends = np.cumsum([0, *map(len, splits)])
        self.splits = np.array([s for own in splits for s in own], dtype=np.float64)
        is_leaf = self.children.sizes == 0
        #: The leaf's number where a node is one.
        self.leaf = np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)

    def route(self, X: Array) -> Routes:
        """Where the rows of ``X`` go: on from a sum to every child, from a product to the one whose region holds them."""
        row, node = np.arange(len(X)), np.zeros(len(X), dtype=np.int64)
        found: list[tuple[Index, Index]] = []
        while len(node):
            leaf = self.leaf[node]
            ended = leaf >= 0
            if ended.any():
                found.append((leaf[ended], row[ended]))
                row, node = row[~ended], node[~ended]
            cut = self.dimension[node] >= 0
            at, where = node[cut], row[cut]
            child = self.children.ends[at] + self._sides(at, X[where, self.dimension[at]])
            mixed = node[~cut]
            width = self.children.sizes[mixed]
            node = np.concatenate(
                [self.children.flat[child], self.children.flat[self.children.positions(mixed)]]
            )
            row = np.concatenate([where, np.repeat(row[~cut], width)])
        parts = found or [(np.empty(0, np.int64), np.empty(0, np.int64))]
        return _by_leaf(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _sides(self, node: Index, x: Array) -> Index:
        """How many of a product's splits lie at or below x."""
        first, count = self.split_ends[node], np.diff(self.split_ends)[node]
        side = np.zeros(len(node), dtype=np.int64)
        for k in range(int(count.max(initial=0))):
            there = k < count
            side[there] += self.splits[first[there] + k] <= x[there]
        return side


def _by_leaf(leaf: Index, row: Index) -> Routes:
    order = np.lexsort((row, leaf))
    reached, sizes = np.unique(leaf, return_counts=True)
    return Routes(reached, Ragged(row[order], np.concatenate([[0], np.cumsum(sizes)])))


def route(root: Node, X: Array) -> Routes:
    """Which leaves the rows of ``X`` reach; for more than one ``X``, keep a :class:`Router`."""
    return Router(root).route(X)


def place(root: Node, X: Array) -> Node:
    """The same tree with every row of ``X`` in the leaves whose region holds it.

    Leaves that carry rows already must carry just these.
    """
    if root.region.n_dims != X.shape[1]:
        raise ValueError(
            f"the tree does not fit the data: it has {root.region.n_dims} dimensions, "
            f"X has {X.shape[1]} columns"
        )
    if not root.region.same_as(Region.whole(X.shape[1])):
        raise ValueError(
            "the tree does not fit the data: its root must cover the whole input space, "
            f"got {box(root.region)}; start from Region.whole({X.shape[1]})"
        )
    if len({id(node) for node in nodes(root)}) < sum(1 for _ in nodes(root)):
        raise ValueError(
            "a node stands in two places of the tree; build a node of its own for each"
        )
    routes = route(root, X)
    found = {int(leaf): routes.rows[k] for k, leaf in enumerate(routes.leaf)}
    empty = np.empty(0, dtype=np.int64)
    placed: dict[int, Node] = {}
    n_leaves = len(leaves(root))
    for node in reversed(list(nodes(root))):
        match node:
            case Leaf():
                n_leaves -= 1
                rows = found.get(n_leaves, empty)
                if node.rows is not None and not np.array_equal(np.sort(node.rows), rows):
                    raise ValueError(
                        f"the tree does not fit the data: leaf {n_leaves} lists {node.n_rows} "
                        f"rows that are not the {rows.size} rows of X in its region; "
                        "leave rows out and they are placed for you"
                    )
                placed[id(node)] = Leaf(node.region, rows if node.rows is None else node.rows)
            case Product():
                children = [placed[id(child)] for child in node.children]
                placed[id(node)] = Product(tuple(children), node.dimension, node.splits)
            case Sum():
                children = [placed[id(child)] for child in node.children]
                placed[id(node)] = Sum(tuple(children), node.log_weights)
    return placed[id(root)]
