"""Trees as flat arrays, and back: what a file can hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.ragged import Ragged
from dsmgp.routes import route
from dsmgp.tree import Leaf, Node, Product, Region, Sum, leaves, nodes

__all__ = ["flatten_tree", "grow_flat"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
LEAF, PRODUCT, SUM = 0, 1, 2


def flatten_tree(root: Node, X: Array | None = None) -> dict[str, NDArray[Any]]:
    """Arrays with an entry for every node, parents before children.

    ``numbers`` has for each a line of its kind, how many children it has, and the input that it cuts; ``values`` the
    splits of products and the log weights of sums, one node after the other. Rows of the leaves are written only
    if they are not just those rows of ``X``, in order, that the leaves' regions hold.

    Examples
    --------
    >>> parts = [Leaf(part) for part in Region.whole(1).split(0, [0.5])]
    >>> flat = flatten_tree(Product(parts, dimension=0, splits=[0.5]))
    >>> flat["numbers"].tolist(), flat["values"].tolist()
    ([[1, 2, 0], [0, 0, 0], [0, 0, 0]], [0.5])
    """
    numbers: list[tuple[int, int, int]] = []
    values: list[float] = []
    for node in nodes(root):
        match node:
            case Leaf():
                numbers.append((LEAF, 0, 0))
            case Product():
                numbers.append((PRODUCT, len(node.children), node.dimension))
                values += node.splits
            case Sum():
                numbers.append((SUM, len(node.children), 0))
                values += node.log_weights.tolist()
    flat: dict[str, NDArray[Any]] = {
        "numbers": np.array(numbers, dtype=np.int32).reshape(-1, 3),
        "values": np.array(values, dtype=np.float64),
    }
    own = [leaf.rows for leaf in leaves(root)]
    if any(rows is None for rows in own):
        return flat
    listed = Ragged.of([rows for rows in own if rows is not None])
    if X is not None:
        routed = _routed(root, X)
        if np.array_equal(routed.ends, listed.ends) and np.array_equal(routed.flat, listed.flat):
            return flat
    flat["rows"], flat["row_ends"] = listed.flat, listed.ends
    return flat


def grow_flat(flat: dict[str, NDArray[Any]], X: Array | None, n_dims: int) -> Node:
    """The tree that the arrays stand for, checked, with the rows of its leaves if ``X`` is given."""
    root = _grown(flat, n_dims, None)
    if X is None:
        return root
    rows = _routed(root, X)
    if "rows" in flat:
        rows = _listed(flat, rows)
    rows.flat.flags.writeable = False
    return _grown(flat, n_dims, rows)


def _routed(root: Node, X: Array) -> Ragged:
    """The rows in each leaf's region, in order."""
    routes = route(root, X)
    found = dict(zip(routes.leaf.tolist(), range(len(routes.leaf)), strict=True))
    none = np.empty(0, dtype=np.int64)
    return Ragged.of(
        [np.sort(routes.rows[found[k]]) if k in found else none for k in range(len(leaves(root)))]
    )


def _listed(flat: dict[str, NDArray[Any]], routed: Ragged) -> Ragged:
    """Rows as they are listed, if they are those of the leaves' regions, in whatever order."""
    rows, ends = flat["rows"], flat["row_ends"]
    if not np.array_equal(ends, routed.ends) or len(rows) != len(routed.flat):
        raise ValueError("its leaves do not list the rows in their regions")
    listed = Ragged(rows, ends)
    if not np.array_equal(rows[np.lexsort((rows, listed.owner))], routed.flat):
        raise ValueError("its leaves list rows that are not in their regions")
    return listed


def _grown(flat: dict[str, NDArray[Any]], n_dims: int, rows: Ragged | None) -> Node:
    """Regions are told from the top down, and nodes made from the bottom up."""
    kinds, counts, dimensions = (column.tolist() for column in flat["numbers"].T)
    used = np.where(np.array(kinds) == PRODUCT, np.array(counts) - 1, np.array(counts))
    ends = np.concatenate([[0], np.cumsum(used)])
    _check(kinds, counts, dimensions, ends, len(flat["values"]), n_dims)
    values = flat["values"]
    regions = list(_regions(kinds, counts, dimensions, values, ends, n_dims))
    stack: list[Node] = []
    n_leaves = kinds.count(LEAF)
    for k in range(len(kinds) - 1, -1, -1):
        if kinds[k] == LEAF:
            n_leaves -= 1
            own = None if rows is None else rows[n_leaves]
            stack.append(Leaf(regions[k]) if own is None else Leaf._trusted(regions[k], own))
            continue
        if counts[k] > len(stack):
            raise ValueError("its tree lacks children")
        children = tuple(stack.pop() for _ in range(counts[k]))
        own_values = values[ends[k] : ends[k + 1]]
        if kinds[k] == SUM:
            stack.append(Sum(children, own_values))
        else:
            splits = tuple(own_values.tolist())
            stack.append(Product._trusted(children, dimensions[k], splits, regions[k]))
    if len(stack) != 1:
        raise ValueError("its tree has more than one root")
    return stack[0]


def _check(
    kinds: list[int],
    counts: list[int],
    dimensions: list[int],
    ends: Index,
    n_values: int,
    n_dims: int,
) -> None:
    least = {LEAF: 0, PRODUCT: 2, SUM: 1}
    for kind, count, dimension in zip(kinds, counts, dimensions, strict=True):
        if kind not in least or count < least[kind] or (kind == LEAF and count):
            raise ValueError("its tree has a node of no known kind")
        if not 0 <= dimension < n_dims:
            raise ValueError("its tree cuts an input that is not there")
    if not kinds or ends[-1] != n_values or sum(counts) != len(kinds) - 1:
        raise ValueError("its tree has other numbers of nodes, splits and weights than it says")


def _regions(
    kinds: list[int],
    counts: list[int],
    dimensions: list[int],
    values: Array,
    ends: Index,
    n_dims: int,
) -> Iterator[Region]:
    """Of all nodes in their order; a region that a split would leave empty is refused."""
    waiting = [Region.whole(n_dims)]
    for k, (kind, count, dimension) in enumerate(zip(kinds, counts, dimensions, strict=True)):
        if not waiting:
            raise ValueError("its tree has nodes that hang nowhere")
        region = waiting.pop()
        yield region
        if kind == SUM:
            waiting += [region] * count
        elif kind == PRODUCT:
            splits = values[ends[k] : ends[k + 1]].tolist()
            edges = [region.lower[dimension], *splits, region.upper[dimension]]
            if not all(low < high for low, high in pairwise(edges)):
                raise ValueError("its tree has splits that do not increase inside their region")
            waiting += reversed(region.split(dimension, splits))
