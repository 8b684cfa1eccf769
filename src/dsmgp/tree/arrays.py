"""Trees as flat arrays, which model files hold, and back.

Nodes are listed parents first, each subtree after its elder siblings'. Leaves list rows only where these do not follow from the
leaves' regions and the training inputs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp._util.ragged import Ragged
from dsmgp.tree.nodes import Leaf, Node, Product, Sum, leaves, nodes
from dsmgp.tree.region import Region
from dsmgp.tree.routing import route, route_outline

__all__ = ["flatten_tree", "grow_flat"]

LEAF, PRODUCT, SUM = 0, 1, 2
FEWEST_CHILDREN = {LEAF: 0, PRODUCT: 2, SUM: 1}


def flatten_tree(root: Node, X: Array | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays that describe a tree.

    Parameters
    ----------
    root : Node
    X : ndarray of shape (n_rows, n_dims), optional
        Training inputs, without which the rows of leaves are left out.

    Returns
    -------
    dict of str to ndarray
        ``numbers`` of shape (n_nodes, 3): kind of the node, number of children, dimension that it splits.
        ``values``: splits of products and log weights of sums, node after node.
        ``rows`` and ``row_ends``: rows of the leaves, leaf after leaf, and where each leaf's end; left out if they are
        those of ``X`` in the leaves' regions, in order.

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
    if X is None:
        return flat
    leaf_rows = [leaf.rows for leaf in leaves(root) if leaf.rows is not None]
    listed, routed = Ragged.of(leaf_rows), route(root, X).by_leaf(len(leaves(root)))
    if len(leaf_rows) == len(routed) and not (
        np.array_equal(listed.ends, routed.ends) and np.array_equal(listed.flat, routed.flat)
    ):
        flat["rows"], flat["row_ends"] = listed.flat, listed.ends
    return flat


def grow_flat(flat: dict[str, NDArray[Any]], X: Array | None, n_dims: int) -> Node:
    """Return the tree that arrays describe, with the rows of ``X`` in its leaves if it is given.

    Raises
    ------
    ValueError
        If the arrays describe no tree over ``n_dims`` inputs, or its leaves list other rows than those in their regions.
    """
    numbers = flat["numbers"].tolist()
    values = _values_of_nodes(numbers, flat["values"].tolist())
    regions = _regions(numbers, values, n_dims)
    rows = None if X is None else _rows_of_leaves(flat, numbers, values, X)
    built: list[Node] = []  # from the leaves up, the latest last
    number = 0 if rows is None else len(rows)
    for (kind, n_children, dimension), own, region in zip(
        reversed(numbers), reversed(values), reversed(regions), strict=True
    ):
        children = tuple(built.pop() for _ in range(n_children))
        if kind == LEAF:
            number -= 1
            built.append(Leaf(region) if rows is None else Leaf._unchecked(region, rows[number]))
        elif kind == SUM:
            built.append(Sum(children, np.array(own)))
        else:
            built.append(Product._unchecked(children, dimension, tuple(own), region))
    return built[0]


def _values_of_nodes(numbers: list[list[int]], values: list[float]) -> list[list[float]]:
    """The splits or log weights of each node."""
    ends = np.cumsum([0, *(n - (kind == PRODUCT) for kind, n, _ in numbers)]).tolist()
    if not numbers or ends[-1] != len(values) or sum(n for _, n, _ in numbers) != len(numbers) - 1:
        raise InputError("its numbers of nodes, splits and weights do not agree")
    return [values[start:end] for start, end in pairwise(ends)]


def _regions(numbers: list[list[int]], values: list[list[float]], n_dims: int) -> list[Region]:
    """Check that nodes make a tree, and return the region of each."""
    regions: list[Region] = []
    waiting = [Region.whole(n_dims)]  # regions of the nodes to come, the next one last
    for (kind, n_children, dimension), splits in zip(numbers, values, strict=True):
        if n_children < FEWEST_CHILDREN.get(kind, n_children + 1) or (kind == LEAF and n_children):
            raise InputError("it has a node of an unknown kind")
        if not 0 <= dimension < n_dims:
            raise InputError("it splits an input that does not exist")
        if not waiting:
            raise InputError("it has nodes without a parent")
        region = waiting.pop()
        regions.append(region)
        if kind == SUM:
            waiting += [region] * n_children
        elif kind == PRODUCT:
            low, high = region.interval(dimension)
            edges = [low, *splits, high]
            if not all(low < high for low, high in pairwise(edges)):
                raise InputError("it has splits that do not increase inside their region")
            waiting += reversed(region.split(dimension, splits))
    return regions


def _rows_of_leaves(
    flat: dict[str, NDArray[Any]], numbers: list[list[int]], values: list[list[float]], X: Array
) -> Ragged:
    """The rows of ``X`` in each leaf, in the order in which the arrays list them."""
    outline = (
        (n_children, dimension, own if kind == PRODUCT else ())
        for (kind, n_children, dimension), own in zip(numbers, values, strict=True)
    )
    n_leaves = sum(kind == LEAF for kind, _, _ in numbers)
    rows = route_outline(outline, X).by_leaf(n_leaves)
    if "rows" in flat:
        listed = Ragged(flat["rows"], flat["row_ends"])
        if not np.array_equal(listed.ends, rows.ends) or len(listed.flat) != len(rows.flat):
            raise InputError("leaves do not list the rows in their regions")
        in_order = listed.flat[np.lexsort((listed.flat, listed.owner))]
        if not np.array_equal(in_order, rows.flat):
            raise InputError("leaves list rows that are not in their regions")
        rows = listed
    rows.flat.flags.writeable = False
    return rows
