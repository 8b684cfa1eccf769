"""The nodes of a deep structured mixture: sums, products and leaves over boxes of the input space.

A :class:`Sum` is a mixture of children over the same region, a :class:`Product` splits its region along one
dimension, and a :class:`Leaf` is modelled by one GP. Constructors check that a tree is valid (complete and
decomposable). Nodes are immutable and compared by identity; they hold no tensors and no parameters of any GP.
What is computed about a node is kept outside of the tree: what follows from the children by :func:`fold`,
what follows from the parent by :func:`from_root`. Regions and splits are in the user's units.

Examples
--------
Three partitions of a line: undivided, cut at 0, and cut at 0 and 1.

>>> line = Region.whole(1)
>>> halves = Product([Leaf(part) for part in line.split(0, [0.0])], dimension=0, splits=[0.0])
>>> thirds = Product(
...     [Leaf(part) for part in line.split(0, [0.0, 1.0])], dimension=0, splits=[0.0, 1.0]
... )
>>> tree = Sum([Leaf(line), halves, thirds])
>>> depth(tree), n_induced_trees(tree), round(math.exp(log_n_induced_trees(tree)))
(1, 3, 3)
>>> [box(leaf.region) for leaf in leaves(tree)]
['[-inf, inf)', '[-inf, 0)', '[0, inf)', '[-inf, 0)', '[0, 1)', '[1, inf)']
>>> [type(node).__name__ for node in nodes(halves)]
['Product', 'Leaf', 'Leaf']
>>> thirds.sides(np.array([[-1.0], [0.5], [1.0]]))
array([0, 1, 2])
>>> drawn = induced_tree(tree, np.random.default_rng(0))
>>> drawn.region.same_as(tree.region), tree.region.n_dims
(True, 1)
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.tree.region import Region, box

__all__ = [
    "Leaf",
    "Node",
    "Product",
    "Sum",
    "depth",
    "fold",
    "from_root",
    "induced_tree",
    "leaves",
    "log_n_induced_trees",
    "map_leaves",
    "map_splits",
    "n_induced_trees",
    "nodes",
]


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """A region that one GP models.

    Parameters
    ----------
    region : Region
        The region.
    rows : array-like of int, optional
        Numbers of the training rows inside it. Trees built by hand leave them out; fitting sets them.
    """

    region: Region
    rows: Index | None = None

    def __post_init__(self) -> None:
        if self.rows is None:
            return
        given = np.asarray(self.rows)
        rows = given.astype(np.int64)
        if (
            not np.array_equal(rows, given)
            or (rows < 0).any()
            or rows.ndim != 1
            or np.unique(rows).size != rows.size
        ):
            raise InputError("expected the rows of a leaf to be a list of distinct row numbers")
        rows.flags.writeable = False
        object.__setattr__(self, "rows", rows)

    @classmethod
    def _unchecked(cls, region: Region, rows: Index) -> Leaf:
        """Skip the checks; rows must be distinct and read-only."""
        leaf = object.__new__(cls)
        object.__setattr__(leaf, "region", region)
        object.__setattr__(leaf, "rows", rows)
        return leaf

    @property
    def n_rows(self) -> int:
        return 0 if self.rows is None else self.rows.size


@dataclass(frozen=True, eq=False, slots=True)
class Product:
    """Independent children that tile a region along one dimension (decomposability).

    Parameters
    ----------
    children : sequence of Node
        Their regions are ``region.split(dimension, splits)``.
    dimension : int
        The input along which the region is cut.
    splits : sequence of float
        Where it is cut, in increasing order: one fewer than children. A row on a split belongs to the child above.

    Examples
    --------
    >>> parts = Region.whole(1).split(0, [0.0, 1.0])
    >>> product = Product([Leaf(part) for part in parts], dimension=0, splits=[0.0, 1.0])
    >>> len(product.children), product.splits
    (3, (0.0, 1.0))
    """

    children: tuple[Node, ...]
    dimension: int
    splits: tuple[float, ...]
    region: Region = field(init=False)

    def __post_init__(self) -> None:
        children, splits = _checked_children(self.children), tuple(float(s) for s in self.splits)
        if len(children) != len(splits) + 1 or not splits:
            raise InputError(
                "expected a product to have one child more than splits and at least two, "
                f"got {len(children)} children and {len(splits)} splits"
            )
        first, last = children[0].region, children[-1].region
        if (
            not isinstance(self.dimension, numbers.Integral)
            or not 0 <= self.dimension < first.n_dims
        ):
            raise InputError(
                f"expected the dimension of a product to be one of 0..{first.n_dims - 1}, "
                f"got {self.dimension!r}"
            )
        lower, upper = first.lower.copy(), first.upper.copy()
        if last.n_dims == first.n_dims:
            upper[self.dimension] = last.upper[self.dimension]
        edges = [lower[self.dimension], *splits, upper[self.dimension]]
        if not all(low < high for low, high in pairwise(edges)):
            raise InputError(
                "a product's children must tile its region along its dimension: expected splits that "
                f"increase inside [{edges[0]:g}, {edges[-1]:g}), got {list(splits)}"
            )
        region = Region(lower, upper)
        # Decomposability: children are disjoint and cover the region.
        for k, (child, part) in enumerate(
            zip(children, region.split(self.dimension, splits), strict=True)
        ):
            if not child.region.same_as(part):
                raise InputError(
                    "a product's children must tile its region along its dimension: expected "
                    f"child {k} to cover {box(part)}, got {box(child.region)}; "
                    "build the children on Region.split(dimension, splits)"
                )
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "splits", splits)
        object.__setattr__(self, "region", region)

    @classmethod
    def _unchecked(
        cls, children: tuple[Node, ...], dimension: int, splits: tuple[float, ...], region: Region
    ) -> Product:
        """Skip the checks; children must tile the region."""
        product = object.__new__(cls)
        object.__setattr__(product, "children", children)
        object.__setattr__(product, "dimension", dimension)
        object.__setattr__(product, "splits", splits)
        object.__setattr__(product, "region", region)
        return product

    def sides(self, X: Array, rows: Index | slice = slice(None)) -> Index:
        """Return for each row of ``X`` (or of ``X[rows]``) the index of the child whose region holds it."""
        return np.searchsorted(self.splits, X[rows, self.dimension], side="right")


@dataclass(frozen=True, eq=False, slots=True)
class Sum:
    """A mixture of children over the same region (completeness).

    Parameters
    ----------
    children : sequence of Node
        The mixture components.
    log_weights : array-like of shape (n_children,), optional
        Logarithms of the prior weights, which sum to one; uniform if left out.

    Examples
    --------
    >>> space = Region.whole(1)
    >>> halves = [Leaf(part) for part in space.split(0, [0.5])]
    >>> tree = Sum([Leaf(space), Product(halves, dimension=0, splits=[0.5])])
    >>> n_induced_trees(tree)
    2
    """

    children: tuple[Node, ...]
    log_weights: Array = None  # type: ignore[assignment]  # uniform when left out

    def __post_init__(self) -> None:
        children = _checked_children(self.children)
        if not children:
            raise InputError("expected a sum node to have at least one child, got none")
        given = self.log_weights
        weights = (
            np.full(len(children), -math.log(len(children)))
            if given is None
            else np.array(given, dtype=np.float64)
        )
        if weights.shape != (len(children),):
            raise InputError(
                f"expected one log weight per child ({len(children)}), got shape {weights.shape}"
            )
        total = np.logaddexp.reduce(weights)
        if not abs(total) < 1e-9:
            raise InputError(
                "expected the weights of a sum node to sum to one, "
                f"got {math.exp(min(total, 700.0)):.6g}; subtract their logsumexp"
            )
        for k, child in enumerate(children):
            if not child.region.same_as(children[0].region):
                raise InputError(
                    "all children of a sum node must cover the same region: child 0 covers "
                    f"{box(children[0].region)}, child {k} covers {box(child.region)}"
                )
        weights.flags.writeable = False
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "log_weights", weights)

    @property
    def region(self) -> Region:
        return self.children[0].region


Node = Sum | Product | Leaf
Value = TypeVar("Value")


def _checked_children(children: Sequence[Node]) -> tuple[Node, ...]:
    for child in children:
        if not isinstance(child, (Sum, Product, Leaf)):
            raise InputError(f"expected children to be Sum, Product or Leaf, got {child!r}")
    return tuple(children)


def nodes(root: Node) -> Iterator[Node]:
    """Yield every node, parents before children and children in order (pre-order)."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, Leaf):
            stack.extend(reversed(node.children))


def leaves(root: Node) -> list[Leaf]:
    """Return the leaves in order. A leaf's position in this list is its number everywhere else."""
    return [node for node in nodes(root) if isinstance(node, Leaf)]


def fold(
    root: Node,
    leaf: Callable[[Leaf], Value],
    product: Callable[[Product, list[Value]], Value],
    sum_: Callable[[Sum, list[Value]], Value],
) -> Value:
    """Evaluate a tree bottom-up, without recursion.

    Parameters
    ----------
    root : Node
        The tree.
    leaf : callable
        Returns the value of a leaf; called for all leaves first, in their order.
    product, sum_ : callable
        Return the value of an inner node from the node and the values of its children.

    Returns
    -------
    value
        That of the root.

    Examples
    --------
    >>> halves = [Leaf(part) for part in Region.whole(1).split(0, [0.0])]
    >>> tree = Product(halves, dimension=0, splits=[0.0])
    >>> fold(tree, lambda leaf: 1, lambda product, counts: sum(counts), lambda node, counts: 0)
    2
    """
    order = list(nodes(root))
    values = {id(node): leaf(node) for node in order if isinstance(node, Leaf)}
    for node in reversed(order):  # children before parents
        match node:
            case Product():
                values[id(node)] = product(node, [values[id(child)] for child in node.children])
            case Sum():
                values[id(node)] = sum_(node, [values[id(child)] for child in node.children])
    return values[id(root)]


def from_root(
    root: Node, value: Value, of_children: Callable[[Sum | Product, Value], Sequence[Value]]
) -> dict[Node, Value]:
    """Evaluate a tree top-down, without recursion.

    Parameters
    ----------
    root : Node
        The tree.
    value
        That of the root.
    of_children : callable
        Returns the values of the children of an inner node from the node and its own value; called for
        parents before children.

    Returns
    -------
    dict
        The value of every node.

    Examples
    --------
    >>> halves = [Leaf(part) for part in Region.whole(1).split(0, [0.0])]
    >>> tree = Product(halves, dimension=0, splits=[0.0])
    >>> depths = from_root(tree, 0, lambda node, depth: [depth + 1] * len(node.children))
    >>> [depths[leaf] for leaf in leaves(tree)]
    [1, 1]
    """
    values = {root: value}
    for node in nodes(root):
        if not isinstance(node, Leaf):
            values.update(zip(node.children, of_children(node, values[node]), strict=True))
    return values


def map_leaves(root: Node, replace_leaf: Callable[[Leaf], Node]) -> Node:
    """Return the tree with each leaf replaced; splits and weights stay as they are.

    Parameters
    ----------
    root : Node
        The tree, which is not changed.
    replace_leaf : callable
        Called once for each leaf, in their order; returns a leaf or a subtree over the same region.

    Examples
    --------
    >>> halves = [Leaf(part) for part in Region.whole(1).split(0, [0.0])]
    >>> tree = Product(halves, dimension=0, splits=[0.0])
    >>> placed = map_leaves(tree, lambda leaf: Leaf(leaf.region, [1, 2]))
    >>> [leaf.n_rows for leaf in leaves(placed)]
    [2, 2]
    """
    return fold(root, replace_leaf, _with_children, _sum_of)


def map_splits(
    root: Node, n_dims: int, convert: Callable[[int, Sequence[float]], tuple[int, Sequence[float]]]
) -> Node:
    """Return a tree whose products cut elsewhere: along the dimension and at the splits that ``convert`` returns for each.

    Rows of the leaves stay. ``convert`` must keep the order of cuts along a dimension.
    """

    cuts = {
        node: convert(node.dimension, node.splits)
        for node in nodes(root)
        if isinstance(node, Product)
    }

    def parts(node: Sum | Product, region: Region) -> list[Region]:
        if isinstance(node, Sum):
            return [region] * len(node.children)
        return region.split(*cuts[node])

    def product(node: Product, children: list[Node]) -> Node:
        dimension, splits = cuts[node]
        return Product._unchecked(
            tuple(children), dimension, tuple(map(float, splits)), regions[node]
        )

    regions = from_root(root, Region.whole(n_dims), parts)
    return fold(root, lambda leaf: replace(leaf, region=regions[leaf]), product, _sum_of)


def depth(root: Node) -> int:
    """Return the largest number of sum nodes on a path from the root to a leaf."""
    return fold(
        root, lambda leaf: 0, lambda node, depths: max(depths), lambda node, depths: 1 + max(depths)
    )


def n_induced_trees(root: Node) -> int:
    """Return how many trees keep one child of each sum and all children of each product (Zhao et al. 2016)."""
    return fold(
        root,
        lambda leaf: 1,
        lambda node, counts: math.prod(counts),
        lambda node, counts: sum(counts),
    )


def log_n_induced_trees(root: Node) -> float:
    """Return the natural logarithm of :func:`n_induced_trees`, without the large integer."""
    return fold(
        root,
        lambda leaf: 0.0,
        lambda node, logs: math.fsum(logs),
        lambda node, logs: float(np.logaddexp.reduce(logs)),
    )


def induced_tree(root: Node, rng: np.random.Generator) -> Node:
    """Draw an induced tree: at each sum node one child is kept, drawn by its prior weight."""

    def draw(node: Sum, children: list[Node]) -> Node:
        weights = np.exp(node.log_weights)
        return children[rng.choice(len(children), p=weights / weights.sum())]

    return fold(root, lambda leaf: leaf, _with_children, draw)


def _sum_of(node: Sum, children: list[Node]) -> Node:
    return Sum(tuple(children), node.log_weights)


def _with_children(node: Product, children: list[Node]) -> Node:
    if all(new.region is old.region for new, old in zip(children, node.children, strict=True)):
        return Product._unchecked(tuple(children), node.dimension, node.splits, node.region)
    return Product(tuple(children), node.dimension, node.splits)
