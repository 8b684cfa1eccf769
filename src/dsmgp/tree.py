"""The structure of a deep structured mixture: sums, products and leaves over boxes of the input space.

No tensors and no numbers of any GP live here. Nodes are immutable and compared by identity, so
whatever is computed about a node is kept beside the tree, never inside it. Regions and splits are
in the user's units.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Leaf",
    "Node",
    "Product",
    "Region",
    "Sum",
    "box",
    "depth",
    "induced_tree",
    "leaves",
    "log_n_induced_trees",
    "n_induced_trees",
    "nodes",
]


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """A half-open box ``lower <= x < upper``; the outer bounds of a whole space are infinite.

    Examples
    --------
    >>> left, right = Region.whole(2).split(0, [0.5])
    >>> left.contains([[0.4, 9.0], [0.5, 9.0]])
    array([ True, False])
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    @classmethod
    def whole(cls, n_dims: int) -> Region:
        """All of an input space of ``n_dims`` dimensions."""
        return cls(np.full(n_dims, -np.inf), np.full(n_dims, np.inf))

    def __post_init__(self) -> None:
        lower = np.array(self.lower, dtype=np.float64)
        upper = np.array(self.upper, dtype=np.float64)
        if lower.ndim != 1 or lower.shape != upper.shape or lower.size == 0:
            raise ValueError(
                "expected a lower and an upper bound for each of at least one dimension, "
                f"got shapes {lower.shape} and {upper.shape}"
            )
        if not np.all(lower < upper):
            bad = int(np.flatnonzero(~(lower < upper))[0])
            raise ValueError(
                f"expected lower < upper in every dimension, got [{lower[bad]}, {upper[bad]}) "
                f"in dimension {bad}"
            )
        lower.flags.writeable = upper.flags.writeable = False
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @classmethod
    def _trusted(cls, lower: NDArray[np.float64], upper: NDArray[np.float64]) -> Region:
        """Of bounds that are right and read-only: trees have many regions, and the checks take most of the time."""
        region = object.__new__(cls)
        object.__setattr__(region, "lower", lower)
        object.__setattr__(region, "upper", upper)
        return region

    @property
    def n_dims(self) -> int:
        return self.lower.size

    def split(self, dimension: int, splits: Sequence[float]) -> list[Region]:
        """The boxes that tile this one when it is cut at ``splits`` along ``dimension``."""
        edges = [self.lower[dimension], *splits, self.upper[dimension]]
        return [self._between(dimension, low, high) for low, high in pairwise(edges)]

    def _between(self, dimension: int, low: float, high: float) -> Region:
        """This box with other bounds along one dimension."""
        lower, upper = self.lower.copy(), self.upper.copy()
        lower[dimension], upper[dimension] = low, high
        if not low < high:
            return Region(lower, upper)  # which says what is wrong
        lower.flags.writeable = upper.flags.writeable = False
        return Region._trusted(lower, upper)

    def contains(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Which rows of ``X`` lie inside."""
        X = np.asarray(X, dtype=np.float64)
        return np.all((self.lower <= X) & (self.upper > X), axis=1)

    def same_as(self, other: Region) -> bool:
        return self.n_dims == other.n_dims and bool(
            (self.lower == other.lower).all() and (self.upper == other.upper).all()
        )


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """A region that one GP models, and the numbers of the training rows inside it.

    A tree built by hand leaves ``rows`` out; fitting places them.
    """

    region: Region
    rows: NDArray[np.int64] | None = None

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
            raise ValueError("expected the rows of a leaf to be a list of distinct row numbers")
        rows.flags.writeable = False
        object.__setattr__(self, "rows", rows)

    @classmethod
    def _trusted(cls, region: Region, rows: NDArray[np.int64]) -> Leaf:
        """Of rows that are distinct and read-only."""
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
            raise ValueError(
                "expected a product to have one child more than splits and at least two, "
                f"got {len(children)} children and {len(splits)} splits"
            )
        first, last = children[0].region, children[-1].region
        if (
            not isinstance(self.dimension, numbers.Integral)
            or not 0 <= self.dimension < first.n_dims
        ):
            raise ValueError(
                f"expected the dimension of a product to be one of 0..{first.n_dims - 1}, "
                f"got {self.dimension!r}"
            )
        lower, upper = first.lower.copy(), first.upper.copy()
        if last.n_dims == first.n_dims:
            upper[self.dimension] = last.upper[self.dimension]
        edges = [lower[self.dimension], *splits, upper[self.dimension]]
        if not all(low < high for low, high in pairwise(edges)):
            raise ValueError(
                "a product's children must tile its region along its dimension: expected splits that "
                f"increase inside [{edges[0]:g}, {edges[-1]:g}), got {list(splits)}"
            )
        region = Region(lower, upper)
        # Decomposability: disjoint children that leave no part of the region to nobody.
        for k, (child, part) in enumerate(
            zip(children, region.split(self.dimension, splits), strict=True)
        ):
            if not child.region.same_as(part):
                raise ValueError(
                    "a product's children must tile its region along its dimension: expected "
                    f"child {k} to cover {box(part)}, got {box(child.region)}; "
                    "build the children on Region.split(dimension, splits)"
                )
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "splits", splits)
        object.__setattr__(self, "region", region)

    @classmethod
    def _trusted(
        cls, children: tuple[Node, ...], dimension: int, splits: tuple[float, ...], region: Region
    ) -> Product:
        """Of children that are known to tile the region."""
        product = object.__new__(cls)
        object.__setattr__(product, "children", children)
        object.__setattr__(product, "dimension", dimension)
        object.__setattr__(product, "splits", splits)
        object.__setattr__(product, "region", region)
        return product

    def sides(
        self, X: NDArray[np.float64], rows: NDArray[np.int64] | slice = slice(None)
    ) -> NDArray[np.int64]:
        """For each row of ``X``, or of some of them, the index of the child whose region holds it."""
        return np.searchsorted(self.splits, X[rows, self.dimension], side="right")


@dataclass(frozen=True, eq=False, slots=True)
class Sum:
    """A mixture of children over one and the same region (completeness).

    ``log_weights`` are the prior's; uniform if left out.

    Examples
    --------
    >>> space = Region.whole(1)
    >>> halves = [Leaf(part) for part in space.split(0, [0.5])]
    >>> tree = Sum([Leaf(space), Product(halves, dimension=0, splits=[0.5])])
    >>> n_induced_trees(tree)
    2
    """

    children: tuple[Node, ...]
    log_weights: NDArray[np.float64] = None  # type: ignore[assignment]  # uniform when left out

    def __post_init__(self) -> None:
        children = _checked_children(self.children)
        if not children:
            raise ValueError("expected a sum node to have at least one child, got none")
        given = self.log_weights
        weights = (
            np.full(len(children), -math.log(len(children)))
            if given is None
            else np.array(given, dtype=np.float64)
        )
        if weights.shape != (len(children),):
            raise ValueError(
                f"expected one log weight per child ({len(children)}), got shape {weights.shape}"
            )
        total = np.logaddexp.reduce(weights)
        if not abs(total) < 1e-9:
            raise ValueError(
                "expected the weights of a sum node to sum to one, "
                f"got {math.exp(min(total, 700.0)):.6g}; subtract their logsumexp"
            )
        for k, child in enumerate(children):
            if not child.region.same_as(children[0].region):
                raise ValueError(
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


def _checked_children(children: Sequence[Node]) -> tuple[Node, ...]:
    for child in children:
        if not isinstance(child, (Sum, Product, Leaf)):
            raise ValueError(f"expected children to be Sum, Product or Leaf, got {child!r}")
    return tuple(children)


def box(region: Region) -> str:
    """A region in words."""
    return " x ".join(
        f"[{low:g}, {high:g})" for low, high in zip(region.lower, region.upper, strict=True)
    )


def nodes(root: Node) -> Iterator[Node]:
    """Every node, parents before children, children in order. Reversed, children come first."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, Leaf):
            stack.extend(reversed(node.children))


def leaves(root: Node) -> list[Leaf]:
    """The leaves in order; a leaf's place in this list is its number everywhere else."""
    return [node for node in nodes(root) if isinstance(node, Leaf)]


def depth(root: Node) -> int:
    """The largest number of sum nodes on a path from the root to a leaf."""
    deepest = {id(root): 0}
    for node in nodes(root):
        below = deepest[id(node)] + isinstance(node, Sum)
        deepest[id(node)] = below
        for child in () if isinstance(node, Leaf) else node.children:
            deepest[id(child)] = below
    return max(deepest.values())


def n_induced_trees(root: Node) -> int:
    """How many trees keep one child at each sum and all children at each product (Zhao et al. 2016)."""
    count: dict[int, int] = {}
    for node in reversed(list(nodes(root))):
        match node:
            case Leaf():
                count[id(node)] = 1
            case Product():
                count[id(node)] = math.prod(count[id(child)] for child in node.children)
            case Sum():
                count[id(node)] = sum(count[id(child)] for child in node.children)
    return count[id(root)]


def log_n_induced_trees(root: Node) -> float:
    """The natural logarithm of :func:`n_induced_trees`, without the large integer."""
    log_count: dict[int, float] = {}
    for node in reversed(list(nodes(root))):
        match node:
            case Leaf():
                log_count[id(node)] = 0.0
            case Product():
                log_count[id(node)] = math.fsum(log_count[id(child)] for child in node.children)
            case Sum():
                log_count[id(node)] = float(
                    np.logaddexp.reduce([log_count[id(child)] for child in node.children])
                )
    return log_count[id(root)]


def induced_tree(root: Node, rng: np.random.Generator) -> Node:
    """One induced tree, each sum node's child drawn by its prior weight; no sum nodes remain."""
    chosen: dict[int, Node] = {}
    for node in reversed(list(nodes(root))):
        match node:
            case Leaf():
                chosen[id(node)] = node
            case Product():
                children = [chosen[id(child)] for child in node.children]
                chosen[id(node)] = Product(tuple(children), node.dimension, node.splits)
            case Sum():
                pick = rng.choice(len(node.children), p=_normalised(node.log_weights))
                chosen[id(node)] = chosen[id(node.children[pick])]
    return chosen[id(root)]


def _normalised(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(log_weights)
    return weights / weights.sum()
