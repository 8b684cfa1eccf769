"""Growing: always a valid tree that holds every row, whatever the data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dsmgp.grow import grow_balanced, grow_paper
from dsmgp.tree import Leaf, Product, Sum, depth, leaves, nodes


def rows_of(node):
    """Row numbers below a node; asserts that children of sums agree and of products are disjoint."""
    if isinstance(node, Leaf):
        return frozenset(node.rows.tolist())
    parts = [rows_of(child) for child in node.children]
    if isinstance(node, Sum):
        assert len(set(parts)) == 1
        return parts[0]
    union = frozenset().union(*parts)
    assert sum(map(len, parts)) == len(union)
    return union


def assert_valid(tree, X):
    assert rows_of(tree) == frozenset(range(len(X)))
    for leaf in leaves(tree):
        assert leaf.n_rows > 0
        np.testing.assert_array_equal(np.flatnonzero(leaf.region.contains(X)), np.sort(leaf.rows))


HARD = npst.arrays(
    np.float64,
    st.tuples(st.integers(2, 60), st.integers(1, 4)),
    elements=st.one_of(
        st.sampled_from([0.0, 1.0, 2.0]),  # ties, constant columns, repeated rows
        st.floats(-1e8, 1e8),
        st.floats(1e9, 1e9 + 1e-5),  # neighbours in floating point
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    X=HARD,
    leaf_size=st.integers(1, 70),
    ways=st.integers(2, 4),
    layers=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_balanced_trees_are_valid_for_any_rows(X, leaf_size, ways, layers, seed):
    tree = grow_balanced(
        X,
        leaf_sizes=[leaf_size, 2 * leaf_size],
        product_children=ways,
        depth=layers,
        rng=np.random.default_rng(seed),
    )
    assert_valid(tree, X)
    assert depth(tree) <= layers
    for leaf in leaves(tree):
        # Only rows that are equal in every column may be more than a leaf should hold.
        assert leaf.n_rows <= 2 * leaf_size or (X[leaf.rows] == X[leaf.rows[0]]).all()


@settings(max_examples=150, deadline=None)
@given(
    X=HARD,
    leaf_size=st.integers(1, 70),
    sums=st.integers(1, 3),
    ways=st.integers(2, 4),
    layers=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_paper_trees_are_valid_for_any_rows(X, leaf_size, sums, ways, layers, seed):
    tree = grow_paper(
        X,
        leaf_size=leaf_size,
        sum_children=sums,
        product_children=ways,
        depth=layers,
        rng=np.random.default_rng(seed),
    )
    assert_valid(tree, X)
    assert depth(tree) <= layers
    for node in nodes(tree):
        if isinstance(node, Sum):
            assert len(node.children) == sums
            np.testing.assert_allclose(np.exp(node.log_weights), 1 / sums)
        elif isinstance(node, Product):
            assert len(node.children) <= ways


def test_paper_trees_split_regions_above_leaf_size_and_only_those(rng):
    X = rng.normal(size=(400, 3))
    tree = grow_paper(X, leaf_size=50, sum_children=2, product_children=4, depth=8, rng=rng)
    assert max(leaf.n_rows for leaf in leaves(tree)) <= 50
    assert all(len(rows_of(node)) > 50 for node in nodes(tree) if isinstance(node, Sum))


def test_paper_trees_take_their_product_children_from_n_m_and_r(rng):
    X = rng.normal(size=(1000, 1))
    tree = grow_paper(X, leaf_size=100, depth=1, rng=rng)
    assert {len(child.children) for child in tree.children} == {10}


def test_paper_splits_follow_the_beta_law_around_the_median():
    # One input, uniform on (0, 1): positions are 0.5 Beta(2, 2) + 0.25, mean 0.5, variance 0.0125.
    X = np.linspace(0, 1, 4001)[:, None]
    rng = np.random.default_rng(1)
    tree = grow_paper(X, leaf_size=10, sum_children=3000, product_children=2, depth=1, rng=rng)
    splits = np.array([child.splits[0] for child in tree.children])
    assert splits.mean() == pytest.approx(0.5, abs=0.01)
    assert splits.var() == pytest.approx(0.25 * 0.05, rel=0.1)
    assert splits.min() > 0.25
    assert splits.max() < 0.75


def test_paper_dimensions_are_drawn_by_variance():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 2)) * [1.0, 2.0]
    tree = grow_paper(X, leaf_size=10, sum_children=2000, product_children=2, depth=1, rng=rng)
    share = np.mean([child.dimension == 1 for child in tree.children])
    assert share == pytest.approx(X[:, 1].var() / X.var(axis=0).sum(), abs=0.03)


def test_balanced_dimensions_are_drawn_by_spread_in_their_units():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 2)) * [1.0, 100.0]
    tree = grow_balanced(X, leaf_sizes=[250] * 2000, rng=rng, unit=[1.0, 50.0])
    share = np.mean([child.dimension == 1 for child in tree.children])
    spread = X.std(axis=0) / [1.0, 50.0]
    assert share == pytest.approx(spread[1] / spread.sum(), abs=0.03)


def test_balanced_leaves_are_of_like_size(rng):
    X = rng.exponential(size=(3000, 4)) ** 3  # skewed
    tree = grow_balanced(X, leaf_sizes=[100] * 3, rng=rng)
    sizes = [leaf.n_rows for leaf in leaves(tree)]
    assert max(sizes) <= 100
    assert min(sizes) >= 30


def test_fewer_rows_than_a_leaf_holds_make_one_leaf(rng):
    X = rng.normal(size=(20, 2))
    assert isinstance(grow_balanced(X, leaf_sizes=[50] * 4, rng=rng), Leaf)
    assert isinstance(grow_paper(X, leaf_size=50, rng=rng), Leaf)


def test_sizes_that_hold_all_rows_share_one_global_leaf(rng):
    X = rng.normal(size=(100, 2))
    tree = grow_balanced(X, leaf_sizes=[30, 200, 500], rng=rng)
    assert [isinstance(child, Leaf) for child in tree.children] == [True, False]


def test_equal_rows_stay_together(rng):
    X = np.repeat(rng.normal(size=(5, 2)), 20, axis=0)
    for leaf in leaves(grow_balanced(X, leaf_sizes=[10], rng=rng)):
        assert leaf.n_rows == 20


def test_a_tied_column_does_not_make_slivers(rng):
    X = np.column_stack([rng.normal(size=1000), rng.uniform(size=1000) < 0.01])
    tree = grow_balanced(X, leaf_sizes=[600], rng=rng, unit=[1.0, 1e-6])
    assert min(leaf.n_rows for leaf in leaves(tree)) > 100


def test_splits_lie_between_values_that_are_neighbours_in_floating_point(rng):
    low = 1e9
    X = np.array([[low], [np.nextafter(low, np.inf)]] * 5)
    tree = grow_balanced(X, leaf_sizes=[5], rng=rng)
    assert [leaf.n_rows for leaf in leaves(tree)] == [5, 5]


def test_one_hot_columns_neither_overflow_the_stack_nor_lose_rows(rng):
    X = np.eye(300)[rng.integers(0, 300, size=900)]
    for tree in (
        grow_balanced(X, leaf_sizes=[20], rng=rng),
        grow_paper(X, leaf_size=20, sum_children=2, depth=2, rng=rng),
    ):
        assert_valid(tree, X)


def test_uneven_structures_are_stopped_while_they_grow(rng, monkeypatch):
    monkeypatch.setattr("dsmgp.grow.MAX_OPERATIONS", 1e9)
    X = rng.lognormal(sigma=3.0, size=(3000, 1))
    with pytest.raises(ValueError, match="more than is sensible"):
        grow_paper(X, leaf_size=100, sum_children=8, depth=2, rng=rng)
    with pytest.raises(ValueError, match="more than is sensible"):
        grow_balanced(X, leaf_sizes=[500] * 8, depth=3, rng=rng)


def test_monsters_are_refused_with_their_cost(rng):
    X = rng.normal(size=(2000, 2))
    with pytest.raises(
        ValueError, match=r"leaves or more, which need .* operations per evaluation"
    ):
        grow_paper(X, leaf_size=10, sum_children=30, product_children=10, depth=4, rng=rng)


def test_the_same_seed_grows_the_same_tree(rng):
    X = rng.normal(size=(300, 3))
    first, second = (
        grow_balanced(X, leaf_sizes=[50] * 3, rng=np.random.default_rng(7)) for _ in range(2)
    )
    for a, b in zip(leaves(first), leaves(second), strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)


def test_row_order_does_not_change_the_tree(rng):
    X = rng.normal(size=(300, 3))
    order = rng.permutation(300)
    first = grow_balanced(X, leaf_sizes=[50] * 2, rng=np.random.default_rng(7))
    second = grow_balanced(X[order], leaf_sizes=[50] * 2, rng=np.random.default_rng(7))
    for a, b in zip(leaves(first), leaves(second), strict=True):
        assert a.region.same_as(b.region)
        assert set(a.rows) == set(order[b.rows])
