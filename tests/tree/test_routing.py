"""Routing: every row reaches just the leaves whose region holds it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsmgp._util.machine import has_numba
from dsmgp.tree import Leaf, Product, Region, Sum, leaves
from dsmgp.tree.growing import grow_paper
from dsmgp.tree.routing import PIECE_ROWS, Router, place, route

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is not installed")


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


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_numba), False])
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


def pairs(router, X, monkeypatch, compiled):
    with monkeypatch.context() as patch:
        patch.setattr("dsmgp.tree.routing.has_numba", lambda: compiled)
        return router.route(X).pairs


@needs_numba
@pytest.mark.parametrize("n_rows", [0, 1, 300, 2 * PIECE_ROWS + 7])
def test_compiled_code_and_numpy_route_alike(rng, monkeypatch, n_rows):
    known = rng.normal(size=(400, 3)).round(1)
    tree = grow_paper(known, leaf_size=20, sum_children=2, product_children=4, depth=2, rng=rng)
    X = rng.normal(size=(n_rows, 3)).round(1)  # many rows lie on splits
    odd = rng.choice([0.0, np.nan, np.inf, -np.inf], p=[0.94, 0.02, 0.02, 0.02], size=X.shape)
    router = Router(tree)
    compiled = pairs(router, X + odd, monkeypatch, True)
    plain = pairs(router, X + odd, monkeypatch, False)
    for one, other in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype == np.int64


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_numba), False])
def test_the_layout_of_the_inputs_does_not_matter(rng, monkeypatch, compiled):
    X = rng.normal(size=(50, 3)).astype(np.float32).astype(np.float64)
    tree = grow_paper(X, leaf_size=10, sum_children=2, product_children=2, depth=1, rng=rng)
    read_only = X.copy()
    read_only.flags.writeable = False
    expected = pairs(Router(tree), X, monkeypatch, compiled)
    others = (np.asfortranarray(X), read_only, X.astype(np.float32), np.repeat(X, 2, axis=0)[::2])
    for other in others:
        found = pairs(Router(tree), other, monkeypatch, compiled)
        np.testing.assert_array_equal(found, expected)
    assert not read_only.flags.writeable


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
