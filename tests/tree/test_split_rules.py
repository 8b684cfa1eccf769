"""Split rules: any rule grows a valid tree, and useless splits do no harm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dsmgp import DSMGPRegressor
from dsmgp.tree import Leaf, leaves
from dsmgp.tree.growing import grow_balanced, grow_paper
from dsmgp.tree.split_rules import effective_splits
from tests.tree.test_growing import assert_same, assert_valid, products, rebuilt


def careless(X, unit, n_parts, rng):
    """Splits anywhere, out of order, repeated, and beyond the rows."""
    low, high = X.min() - 1.0, X.max() + 1.0
    splits = rng.uniform(low, high, size=n_parts - 1)
    splits[rng.random(n_parts - 1) < 0.3] = splits[0]
    return int(rng.integers(X.shape[1])), splits


def widest(X, unit, n_parts, rng):
    """Equal parts along the widest input."""
    dimension = int(np.argmax(np.ptp(X, axis=0) / unit))
    return dimension, np.quantile(X[:, dimension], np.arange(1, n_parts) / n_parts)


@settings(max_examples=60, deadline=None)
@given(
    X=npst.arrays(
        np.float64,
        st.tuples(st.integers(2, 50), st.integers(1, 3)),
        elements=st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(-1e8, 1e8)),
    ),
    ways=st.integers(2, 4),
    layers=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_trees_of_any_rule_are_valid(X, ways, layers, seed):
    shape = {"product_children": ways, "depth": layers, "split_rule": careless}
    for tree in (
        grow_balanced(X, leaf_sizes=[5, 9], rng=np.random.default_rng(seed), **shape),
        grow_paper(X, leaf_size=5, rng=np.random.default_rng(seed), sum_children=2, **shape),
    ):
        assert_valid(tree, X)
        assert_same(rebuilt(tree), tree)


def test_a_rule_sees_the_rows_of_its_node_and_its_units(rng):
    X = rng.uniform(size=(256, 2)) * [1.0, 30.0]
    tree = grow_balanced(X, leaf_sizes=[64], rng=rng, unit=[1.0, 40.0], split_rule=widest)
    assert tree.dimension == 0
    assert {node.dimension for node in products(tree)} == {0, 1}  # halves of input 0 are narrower
    assert [leaf.n_rows for leaf in leaves(tree)] == [64] * 4


def test_a_node_that_its_rule_does_not_cut_is_a_leaf(rng):
    X = rng.normal(size=(100, 2))

    def useless(X, unit, n_parts, rng):
        return 0, [X[:, 0].min(), np.inf, np.nan]

    assert isinstance(grow_balanced(X, leaf_sizes=[10], rng=rng, split_rule=useless), Leaf)
    tree = grow_paper(X, leaf_size=10, sum_children=2, rng=rng, split_rule=useless)
    assert all(leaf.n_rows == 100 for leaf in leaves(tree))


def test_a_rule_may_cut_some_nodes_of_a_level_only(rng):
    X = np.linspace(0.0, 1.0, 64)[:, None]

    def lower_half_only(X, unit, n_parts, rng):
        return 0, [0.5 if np.ptp(X) > 0.9 else 0.25]

    tree = grow_balanced(X, leaf_sizes=[20], rng=rng, split_rule=lower_half_only)
    assert_valid(tree, X)
    assert [leaf.n_rows for leaf in leaves(tree)] == [16, 16, 32]


@pytest.mark.parametrize(
    ("splits", "kept"),
    [([1.0, 1.0, 2.0], [1.0, 2.0]), ([2.0, 1.0], [1.0, 2.0]), ([0.0], []), ([0.2, 0.8], [0.2])],
)
def test_splits_that_leave_a_part_empty_are_dropped(splits, kept):
    assert effective_splits(np.array([0.0, 1.0, 2.0, 1.0]), splits) == kept


def test_a_tree_of_ones_own_rule_can_be_fitted(rng):
    X = rng.uniform(size=(60, 2))
    tree = grow_balanced(X, leaf_sizes=[30, 60], rng=rng, split_rule=widest)
    model = DSMGPRegressor("rbf", structure=tree, optimizer=None).fit(X, X.sum(axis=1))
    assert [leaf.n_rows for leaf in leaves(model.tree_)] == [60, 30, 30]
