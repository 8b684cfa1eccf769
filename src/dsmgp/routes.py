"""The way of rows down a tree, all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.execution import Threads, has_numba
from dsmgp.ragged import Ragged
from dsmgp.tree import Leaf, Node, Product, Region, Sum, box, leaves, nodes

__all__ = ["Router", "Routes", "place", "route"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Rows that a thread takes down at once: what is known of them stays in its cache.
PIECE_ROWS = 2**14
# Rows that are down before threads would have begun: see Threads.
BRIEF_ROWS = 1000


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

    @classmethod
    def of(cls, leaf: Index, row: Index) -> Routes:
        """From pairs; the rows of each leaf stay in the order given."""
        short = leaf.astype(np.uint16) if leaf.max(initial=0) < 2**16 else leaf  # sorts fastest
        sizes = np.bincount(leaf)
        reached = np.flatnonzero(sizes)
        ends = np.concatenate([[0], np.cumsum(sizes[reached])])
        return cls(reached, Ragged(row[np.argsort(short, kind="stable")], ends))

    @property
    def pairs(self) -> tuple[Index, Index]:
        """Leaf and row of every pair, leaf by leaf."""
        return self.leaf[self.rows.owner], self.rows.flat

    def only(self, chosen: NDArray[np.bool_]) -> Routes:
        """Some of the pairs."""
        leaf, row = self.pairs
        return Routes.of(leaf[chosen], row[chosen])


class Router:
    """A tree as arrays, down which all rows go at once; on a GPU if told so.

    Products of several cuts become nests of two-way cuts. A leaf and a sum lead to themselves.

    Examples
    --------
    >>> halves = [Leaf(part) for part in Region.whole(1).split(0, [0.5])]
    >>> found = route(Product(halves, dimension=0, splits=[0.5]), np.array([[0.9], [0.1], [0.5]]))
    >>> found.leaf, found.rows[1]
    (array([0, 1]), array([0, 2]))
    """

    def __init__(self, root: Node, device: torch.device | None = None) -> None:
        flat = _Flat(root)
        self.device = device or torch.device("cpu")
        # By device: few rows are sooner down on the CPU than a GPU has begun.
        self._tables = {"cpu": _Tables.of(flat, torch.device("cpu"))}
        if self.device.type != "cpu":
            self._tables[self.device.type] = _Tables.of(flat, self.device)

    def route(self, X: Array) -> Routes:
        """Where the rows of ``X`` go: on from a sum to every child, from a product to the one whose region
        holds them."""
        # A copy of read-only memory, which torch does not know.
        rows = torch.from_numpy(np.require(X, np.float64, ["C", "W"]))
        brief = len(X) <= BRIEF_ROWS
        device = torch.device("cpu") if len(X) <= PIECE_ROWS else self.device
        step = PIECE_ROWS if device.type == "cpu" else len(X)
        tables = self._tables[device.type]
        pieces = Threads(device).map(
            lambda first: tables.pairs(rows[first : first + step], first),
            range(0, max(len(X), 1), step),
            brief,
        )
        leaf, row = (np.concatenate([piece[k].cpu().numpy() for piece in pieces]) for k in (0, 1))
        # Rows of a leaf are in order: those of a piece came from one place.
        return Routes.of(leaf, row)


@dataclass(frozen=True)
class _Tables:
    """What is known of each entry of a flat tree, on one device."""

    dimension: Tensor
    split: Tensor
    below: Tensor
    above: Tensor
    leaf: Tensor
    sums: dict[int, Tensor]

    @classmethod
    def of(cls, flat: _Flat, device: torch.device) -> _Tables:
        return cls(
            torch.tensor(flat.dimension, device=device),
            torch.tensor(flat.split, dtype=torch.float64, device=device),
            torch.tensor(flat.below, device=device),
            torch.tensor(flat.above, device=device),
            torch.tensor(flat.leaf, device=device),
            {at: torch.tensor(own, device=device) for at, own in flat.sums.items()},
        )

    def pairs(self, X: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Leaf and row of every pair, for rows whose numbers start at ``first``."""
        device = self.leaf.device
        X, every = X.to(device), torch.arange(len(X), device=device)
        found: list[tuple[Tensor, Tensor]] = []
        waiting = [(torch.zeros_like(every), every)]
        while waiting:
            node, row = waiting.pop()
            node = self._descend(node, X if len(row) == len(X) else X[row])
            leaf = self.leaf[node]
            ended = leaf >= 0
            found.append((leaf[ended], row[ended] + first))
            for at in node[~ended].unique().tolist():
                here = row[node == at]
                waiting += [(child.expand(len(here)), here) for child in self.sums[at]]
        return torch.cat([leaf for leaf, _ in found]), torch.cat([row for _, row in found])

    def _descend(self, node: Tensor, X: Tensor) -> Tensor:
        """On to leaves and sums."""
        if X.device.type == "cpu" and has_numba():
            from dsmgp.descent import descend

            node = node.clone()  # expanded, perhaps
            tables = (self.dimension, self.split, self.below, self.above)
            descend(*(t.numpy() for t in (*tables, X, node)))
            return node
        columns = X.T.contiguous()
        every = torch.arange(len(X), device=X.device)
        while True:
            x = columns[self.dimension[node], every]
            following = torch.where(x < self.split[node], self.below[node], self.above[node])
            if torch.equal(following, node):
                return node
            node = following


class _Flat:
    """Lists with an entry for each leaf, sum and two-way cut; leaves and sums are above every x, and lead to
    themselves."""

    def __init__(self, root: Node) -> None:
        self.dimension: list[int] = []
        self.split: list[float] = []
        self.below: list[int] = []
        self.above: list[int] = []
        self.leaf: list[int] = []
        #: By sum, its children.
        self.sums: dict[int, list[int]] = {}
        n_leaves = 0
        # Where each node was told to stand; children come after their parents.
        place = {id(root): self._new()}
        for node in nodes(root):
            at = place.pop(id(node))
            if isinstance(node, Leaf):
                self.leaf[at] = n_leaves
                n_leaves += 1
            elif isinstance(node, Sum):
                self.sums[at] = [self._new() for _ in node.children]
                place |= {id(c): k for c, k in zip(node.children, self.sums[at], strict=True)}
            else:
                ends = self._cut(at, node.dimension, node.splits)
                place |= {id(c): k for c, k in zip(node.children, ends, strict=True)}

    def _new(self) -> int:
        at = len(self.leaf)
        self.dimension.append(0)
        self.split.append(np.inf)
        self.below.append(at)
        self.above.append(at)
        self.leaf.append(-1)
        return at

    def _cut(self, at: int, dimension: int, splits: Sequence[float]) -> list[int]:
        """Turn an entry into cuts, the middle one first; where the parts stand."""
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


def route(root: Node, X: Array) -> Routes:
    """Which leaves the rows of ``X`` reach; for more than one ``X``, keep a :class:`Router`."""
    return Router(root).route(X)


def place(root: Node, X: Array, anew: bool = False) -> Node:
    """The same tree with every row of ``X`` in the leaves whose region holds it.

    Leaves that carry rows already must carry just these, unless they are placed ``anew``.
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
                given = None if anew else node.rows
                if given is not None and not np.array_equal(np.sort(given), rows):
                    raise ValueError(
                        f"the tree does not fit the data: leaf {n_leaves} lists {node.n_rows} "
                        f"rows that are not the {rows.size} rows of X in its region; "
                        "leave rows out and they are placed for you"
                    )
                placed[id(node)] = replace(node, rows=rows if given is None else given)
            case Product():
                children = [placed[id(child)] for child in node.children]
                placed[id(node)] = Product(tuple(children), node.dimension, node.splits)
            case Sum():
                children = [placed[id(child)] for child in node.children]
                placed[id(node)] = Sum(tuple(children), node.log_weights)
    return placed[id(root)]
