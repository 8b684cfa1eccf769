"""Routing: every row reaches just the leaves whose region holds it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsmgp.tree import Leaf, Product, Region, Sum, leaves
from dsmgp.tree.growing import grow_paper
from dsmgp.tree.routing import place, route


def cut(region, dimension, splits, make=Leaf):
    return Product([make(part) for part in region.split(dimension, splits)], dimension, splits)


@given(
    splits=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6, unique=True).map(sorted),
    points=st.lists(st.floats(-2e6, 2e6), min_size=1, max_size=30),
)
def test_every_point_lies_in_just_one_child_of_a_product(splits, points):
    product = cut(Region.whole(1), 0, splits)
    X = np.array([[p] for p in points] + [[s] for s in splits])
    inside = np.array([child.region.contains(X) for child in product.children])
    assert (inside.sum(axis=0) == 1).all()
    routed = set(zip(*map(np.ndarray.tolist, route(product, X).pairs), strict=True))
    assert routed == {(int(k), int(p)) for k, p in np.argwhere(inside)}


@pytest.mark.parametrize("compiled", [True, False])
def test_routing_goes_down_every_child_of_a_sum(rng, compiled, monkeypatch):
    monkeypatch.setattr("dsmgp.tree.routing.has_numba", lambda: compiled)
    monkeypatch.setattr("dsmgp.tree.routing.PIECE_ROWS", 10)
    X = rng.normal(size=(40, 3))
    tree = grow_paper(X, leaf_size=10, sum_children=3, product_children=2, depth=2, rng=rng)
    X_new = rng.normal(size=(25, 3))
    routes = route(tree, X_new)
    found = {int(k): routes.rows[n] for n, k in enumerate(routes.leaf)}
    for number, leaf in enumerate(leaves(tree)):
        expected = np.flatnonzero(leaf.region.contains(X_new))
        np.testing.assert_array_equal(found.get(number, []), expected)


def test_placing_rows_fills_a_tree_built_by_hand(rng):
    X = rng.normal(size=(50, 2))
    space = Region.whole(2)
    tree = Sum([Leaf(space), cut(space, 1, [0.0])])
    placed = place(tree, X)
    whole, below, above = leaves(placed)
    np.testing.assert_array_equal(whole.rows, np.arange(50))
    np.testing.assert_array_equal(below.rows, np.flatnonzero(X[:, 1] < 0))
    np.testing.assert_array_equal(above.rows, np.flatnonzero(X[:, 1] >= 0))
    assert leaves(tree)[0].rows is None  # the tree given is left alone


def test_a_tree_that_does_not_fit_is_refused(rng):
    X = rng.normal(size=(10, 2))
    with pytest.raises(ValueError, match="3 dimensions, X has 2 columns"):
        place(Leaf(Region.whole(3)), X)
    with pytest.raises(ValueError, match="whole input space"):
        place(Leaf(Region.whole(2).split(0, [0.0])[0]), X)
    with pytest.raises(ValueError, match="leave rows out"):
        place(Leaf(Region.whole(2), np.arange(9)), X)
    leaf = Leaf(Region.whole(2))
    with pytest.raises(ValueError, match="two places"):
        place(Sum([leaf, leaf]), X)
