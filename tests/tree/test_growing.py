"""Growing: always a valid tree that holds every row, whatever the data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dsmgp.tree import Leaf, Product, Region, Sum, depth, leaves, nodes
from dsmgp.tree.growing import grow_balanced, grow_leaves, grow_paper


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


def rebuilt(node):
    """The same tree by the constructors that check."""
    if isinstance(node, Leaf):
        return Leaf(Region(node.region.lower, node.region.upper), node.rows)
    children = [rebuilt(child) for child in node.children]
    if isinstance(node, Sum):
        return Sum(children, node.log_weights)
    return Product(children, node.dimension, node.splits)


def assert_same(first, second):
    for a, b in zip(nodes(first), nodes(second), strict=True):
        assert type(a) is type(b)
        assert a.region.same_as(b.region)
        if isinstance(a, Product):
            assert (a.dimension, a.splits) == (b.dimension, b.splits)
        elif isinstance(a, Leaf):
            np.testing.assert_array_equal(a.rows, b.rows)


def count(node):
    return sum(leaf.n_rows for leaf in leaves(node))


def products(tree):
    return [node for node in nodes(tree) if isinstance(node, Product)]


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
    assert_same(rebuilt(tree), tree)
    assert depth(tree) <= layers
    for leaf in leaves(tree):
        assert leaf.rows.dtype == np.int64
        assert (np.diff(leaf.rows) > 0).all()
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


def test_paper_splits_have_a_beta_distribution_around_the_median():
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


def test_every_cut_of_a_large_tree_passes_the_checks(rng):
    X = rng.normal(size=(4000, 3)).round(1)
    for ways in (2, 3):
        tree = grow_balanced(X, leaf_sizes=[30, 50], product_children=ways, depth=2, rng=rng)
        assert_same(rebuilt(tree), tree)
        for node in nodes(tree):
            bounds = (node.region.lower, node.region.upper)
            for array in (*bounds, node.rows) if isinstance(node, Leaf) else bounds:
                assert not array.flags.writeable
        for node in products(tree):
            assert isinstance(node.dimension, int)
            assert all(isinstance(split, float) for split in node.splits)


@pytest.mark.parametrize("n_rows", [400, 30_000])
def test_balanced_dimensions_follow_their_spreads(n_rows):
    """Also where spreads are measured on some of the rows."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(n_rows, 3)) * [1.0, 3.0, 6.0] + [0.0, 1e6, 0.0]
    first = grow_balanced(X, leaf_sizes=[n_rows - 1] * 600, rng=rng)
    drawn = np.bincount([child.dimension for child in first.children], minlength=3)
    expected = 600 * X.std(axis=0) / X.std(axis=0).sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 9.2  # chi-square, 2 degrees of freedom: 1%


def test_uneven_dimensions_are_redrawn_by_the_remaining_spreads():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 3)) * [1.0, 2.0, 1.0]
    X[:, 2] = 1e3 * (np.arange(300) < 10)  # wide, and cannot be cut evenly
    tree = grow_balanced(X, leaf_sizes=[299] * 1000, rng=rng)
    drawn = np.bincount([child.dimension for child in tree.children], minlength=3)
    assert drawn[2] == 0
    spread = X.std(axis=0)[:2]
    assert drawn[1] / 1000 == pytest.approx(spread[1] / spread.sum(), abs=0.04)


@pytest.mark.parametrize("ways", [2, 3, 5])
def test_cuts_lie_near_the_even_quantiles(rng, ways):
    X = rng.exponential(size=(5000, 2))
    positions = []
    for node in products(grow_balanced(X, leaf_sizes=[100] * 3, product_children=ways, rng=rng)):
        sizes = np.array([count(child) for child in node.children])
        assert len(sizes) == ways
        position = np.cumsum(sizes)[:-1] * ways - np.arange(1, ways) * sizes.sum()
        assert (np.abs(position) <= 0.3 * sizes.sum() + 0.5 * ways).all()
        positions.extend(position / sizes.sum())
    assert np.std(positions) == pytest.approx(0.6 / np.sqrt(12), rel=0.15)  # uniform
    assert np.mean(positions) == pytest.approx(0.0, abs=0.06)


@pytest.mark.parametrize("ways", [2, 3])
def test_tied_cuts_move_to_the_nearest_step(rng, ways):
    """Against every rank that may have been drawn, moved one by one."""
    for seed in range(40):
        column = np.random.default_rng(seed).integers(0, 6, size=60).astype(float)
        steps = np.flatnonzero(np.diff(np.sort(column))) + 1
        tree = grow_balanced(column[:, None], leaf_sizes=[59], product_children=ways, rng=rng)
        after = set(np.cumsum([count(child) for child in tree.children])[:-1].tolist())
        allowed = []
        for k in range(1, ways):
            low, high = ((k - 0.3) / ways * 60, (k + 0.3) / ways * 60)
            ranks = np.arange(np.ceil(low - 0.5), np.floor(high + 0.5) + 1)
            allowed.append({int(steps[np.abs(steps - rank).argmin()]) for rank in ranks})
        assert after <= set().union(*allowed)
        assert all(after & some for some in allowed)


def test_constant_columns_are_never_cut(rng):
    X = np.column_stack([np.full(500, 3.0), rng.normal(size=500), np.zeros(500)])
    tree = grow_balanced(X, leaf_sizes=[20] * 2, rng=rng, unit=[1e-9, 1.0, 1e-9])
    assert {node.dimension for node in products(tree)} == {1}


def test_rows_that_are_all_equal_make_one_leaf(rng):
    X = np.ones((300, 2))
    assert isinstance(grow_balanced(X, leaf_sizes=[20] * 3, rng=rng), Leaf)
    (leaf,) = grow_leaves(X, leaf_size=20, most=5, rng=rng)
    assert leaf.n_rows == 300


def test_a_single_row_that_differs_is_split_off(rng):
    X = np.zeros((30_000, 2))  # more than are looked at for spreads
    X[12_345, 1] = 1.0
    tree = grow_balanced(X, leaf_sizes=[100], rng=rng)
    assert [leaf.n_rows for leaf in leaves(tree)] == [29_999, 1]


def test_grids_are_cut_along_all_dimensions(rng):
    """Rows taken at even distances must not all lie on one line of the grid."""
    X = np.stack(np.meshgrid(*[np.arange(100.0)] * 2), axis=-1).reshape(-1, 2).repeat(4, axis=0)
    tree = grow_balanced(X, leaf_sizes=[39_999] * 40, rng=rng)
    assert 8 < sum(child.dimension for child in tree.children) < 32


def test_values_of_all_magnitudes_are_distinguished(rng):
    """Rounded to a common step, most of them would be equal."""
    X = np.exp(rng.uniform(-300, 300, size=(1000, 1)))
    tree = grow_balanced(X, leaf_sizes=[30], rng=rng)
    assert_valid(tree, X)
    assert max(leaf.n_rows for leaf in leaves(tree)) <= 30
    assert min(leaf.n_rows for leaf in leaves(tree)) >= 10


def test_cuts_end_after_so_many(rng, monkeypatch):
    monkeypatch.setattr("dsmgp.tree.partition.MAX_CUTS", 3)
    tree = grow_balanced(rng.normal(size=(500, 2)), leaf_sizes=[5], rng=rng)
    assert len(leaves(tree)) == 8
    assert len(grow_leaves(rng.normal(size=(500, 2)), leaf_size=5, most=99, rng=rng)) == 8


@pytest.mark.parametrize("convert", [np.asfortranarray, np.float32, np.ndarray.tolist])
def test_the_form_of_the_inputs_does_not_matter(rng, convert):
    X = rng.normal(size=(400, 3)).astype(np.float32).astype(np.float64)
    trees = [
        grow_balanced(given, leaf_sizes=[30, 60], rng=np.random.default_rng(1))
        for given in (X, convert(X))
    ]
    assert_same(*trees)


def test_all_leaves_of_a_partition_are_those_of_the_tree(rng):
    X = rng.normal(size=(1000, 3)).round(1)
    for ways in (2, 3):
        shape = {"product_children": ways, "unit": [1.0, 2.0, 3.0]}
        tree = grow_balanced(X, leaf_sizes=[40], rng=np.random.default_rng(2), **shape)
        every = leaves(tree)
        found = grow_leaves(X, leaf_size=40, most=len(every), rng=np.random.default_rng(2), **shape)
        for a, b in zip(every, found, strict=True):
            assert_same(a, b)


def test_some_leaves_of_a_partition_are_disjoint_and_hold_all_rows_of_their_regions(rng):
    X = rng.normal(size=(3000, 2))
    for most in (1, 7, 50):
        found = grow_leaves(X, leaf_size=30, most=most, rng=rng)
        assert len(found) == most
        assert len(np.unique(np.concatenate([leaf.rows for leaf in found]))) == sum(
            leaf.n_rows for leaf in found
        )
        for leaf in found:
            assert 0 < leaf.n_rows <= 30
            np.testing.assert_array_equal(np.flatnonzero(leaf.region.contains(X)), leaf.rows)
            assert leaf.rows.base is None  # it keeps no other rows alive


def test_some_leaves_are_drawn_evenly_from_the_partition():
    """Large and small ones, and wherever they lie."""
    rng = np.random.default_rng(6)
    X = rng.uniform(size=(2000, 1))
    every = [leaf for _ in range(20) for leaf in leaves(grow_balanced(X, leaf_sizes=[40], rng=rng))]
    found = [leaf for _ in range(150) for leaf in grow_leaves(X, leaf_size=40, most=8, rng=rng)]
    sizes, expected = ([leaf.n_rows for leaf in some] for some in (found, every))
    assert np.mean(sizes) == pytest.approx(np.mean(expected), abs=0.8)
    assert np.std(sizes) == pytest.approx(np.std(expected), rel=0.1)
    where, expected = ([X[leaf.rows].mean() for leaf in some] for some in (found, every))
    share, wanted = (np.histogram(w, 8, (0, 1))[0] / len(w) for w in (where, expected))
    assert np.abs(share - wanted).max() < 0.035


def test_some_leaves_lie_all_over_the_space(rng):
    X = rng.uniform(size=(20_000, 1))
    for _ in range(10):
        found = grow_leaves(X, leaf_size=20, most=16, rng=rng)
        where = np.array([X[leaf.rows].mean() for leaf in found])
        assert len(np.unique(np.floor(8 * where))) >= 6


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
    monkeypatch.setattr("dsmgp.tree.growing.MAX_OPERATIONS", 1e9)
    X = rng.lognormal(sigma=3.0, size=(3000, 1))
    with pytest.raises(ValueError, match="more than is sensible"):
        grow_paper(X, leaf_size=100, sum_children=8, depth=2, rng=rng)
    with pytest.raises(ValueError, match="more than is sensible"):
        grow_balanced(X, leaf_sizes=[500] * 8, depth=3, rng=rng)


def test_expensive_trees_are_refused_with_their_cost(rng):
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


@pytest.mark.parametrize("unit", [1e-300, 1e-155, 1e155, 1e308])
def test_columns_of_extreme_units_are_cut(rng, unit):
    X = rng.uniform(-1.5, 1.5, size=(80, 2)) * [unit, 1.0]
    tree = grow_balanced(X, leaf_sizes=[20, 20], rng=rng, unit=[unit, 1.0])
    assert {node.dimension for node in nodes(tree) if isinstance(node, Product)} == {0, 1}
    assert max(leaf.n_rows for leaf in leaves(tree)) <= 20
