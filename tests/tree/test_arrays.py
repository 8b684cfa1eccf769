"""Trees as arrays: what is grown again is the same tree."""

import numpy as np
import pytest

from dsmgp.tree import Leaf, Product, Region, Sum, nodes
from dsmgp.tree.arrays import flatten_tree, grow_flat
from dsmgp.tree.growing import grow_balanced, grow_paper


def same(a, b):
    pairs = list(zip(nodes(a), nodes(b), strict=True))
    for x, y in pairs:
        assert type(x) is type(y)
        assert x.region.same_as(y.region)
        match x:
            case Leaf():
                assert (x.rows is None) == (y.rows is None)
                assert x.rows is None or np.array_equal(x.rows, y.rows)
            case Product():
                assert (x.dimension, x.splits) == (y.dimension, y.splits)
            case Sum():
                assert np.array_equal(x.log_weights, y.log_weights)
    return len(pairs)


@pytest.fixture
def X(rng):
    return rng.normal(size=(300, 3)).round(1)


def test_grown_trees_come_back(X, rng):
    balanced = grow_balanced(X, leaf_sizes=[20, 60], product_children=3, depth=2, rng=rng)
    paper = grow_paper(X, leaf_size=40, sum_children=3, product_children=3, depth=2, rng=rng)
    for tree in (balanced, paper):
        flat = flatten_tree(tree, X)
        assert same(grow_flat(flat, X, 3), tree) > 20


def test_rows_are_written_only_where_regions_do_not_say_them(X, rng):
    tree = grow_balanced(X, leaf_sizes=[60], rng=rng)
    assert "rows" not in flatten_tree(tree, X)
    space = Region.whole(3)
    shuffled = Leaf(space, rng.permutation(300))
    flat = flatten_tree(shuffled, X)
    assert same(grow_flat(flat, X, 3), shuffled) == 1
    flat["rows"] = np.zeros(300, dtype=np.int64)
    with pytest.raises(ValueError, match="not in their regions"):
        grow_flat(flat, X, 3)


def test_trees_without_rows_come_back_without():
    space = Region.whole(2)
    parts = [Leaf(part) for part in space.split(1, [0.0, 2.0])]
    tree = Sum([Leaf(space), Product(parts, 1, [0.0, 2.0])], np.log([0.25, 0.75]))
    same(grow_flat(flatten_tree(tree), None, 2), tree)


@pytest.mark.parametrize(
    ("numbers", "values", "message"),
    [
        ([[3, 0, 0]], [], "an unknown kind"),
        ([[1, 2, 5], [0, 0, 0], [0, 0, 0]], [0.0], "does not exist"),
        ([[1, 3, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], [1.0, 0.0], "do not increase"),
        ([[1, 3, 0], [0, 0, 0], [0, 0, 0]], [0.0, 1.0], "do not agree"),
        ([[0, 0, 0], [0, 0, 0]], [], "do not agree"),
        ([[2, 2, 0], [0, 0, 0], [0, 0, 0]], [0.0, 0.0], "sum to one"),
        ([[0, 0, 0], [2, 2, 0], [0, 0, 0]], [-0.7, -0.7], "without a parent"),
        ([], [], "do not agree"),
    ],
)
def test_arrays_that_are_no_tree_are_refused(numbers, values, message):
    flat = {"numbers": np.array(numbers, dtype=np.int32).reshape(-1, 3), "values": np.array(values)}
    with pytest.raises(ValueError, match=message):
        grow_flat(flat, None, 1)
