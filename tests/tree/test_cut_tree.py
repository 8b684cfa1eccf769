"""Trees of cuts: the prior is a distribution, moves lead to trees, and trees part rows as their nodes do."""

import math

import numpy as np
import pytest

from dsmgp.tree.cut_tree import (
    Cut,
    TreePrior,
    all_trees,
    cut_gaps,
    leaf_rows,
    prunings,
    replaced,
    snapped,
    swaps,
    to_node,
)
from dsmgp.tree.nodes import leaves


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    return np.stack([rng.permutation(6) // 2, rng.permutation(6) // 3], axis=1).astype(float)


@pytest.mark.parametrize("least", [1, 2])
def test_the_prior_sums_to_one_over_all_trees(X, least):
    trees = list(all_trees(X, least))
    assert len(set(trees)) == len(trees) > 5
    prior = TreePrior(alpha=0.7, beta=0.5, least=least)
    assert math.isclose(sum(math.exp(prior.log_density(tree, X)) for tree in trees), 1.0)


def test_a_region_with_more_rows_than_a_leaf_may_have_is_always_cut(X):
    prior = TreePrior(least=1, most=5)
    densities = {tree: prior.log_density(tree, X) for tree in all_trees(X, 1)}
    assert densities[None] == -math.inf
    assert math.isclose(sum(map(math.exp, densities.values())), 1.0)


def test_moves_lead_to_trees_that_are_there(X):
    known = set(all_trees(X, 1))
    for tree in known:
        assert set(prunings(tree, X)) <= known
        placed = [snapped(swapped, X, 1) for swapped in swaps(tree, X)]
        assert {new for new, is_valid in placed if is_valid} <= known


def test_a_swap_back_restores_the_tree():
    tree = Cut(0, 0.5, Cut(1, 0.2), None)
    assert list(swaps(tree, np.zeros((4, 2)))) == [Cut(1, 0.2, Cut(0, 0.5), None)]
    both = Cut(0, 0.5, Cut(1, 0.2), Cut(1, 0.2, Cut(0, 0.9)))
    (swapped,) = list(swaps(both, np.array([[0.0, 0.0]])))[:1]
    assert swapped == Cut(1, 0.2, Cut(0, 0.5), Cut(0, 0.5, Cut(0, 0.9)))


def test_nodes_have_the_rows_of_the_tree():
    X = np.random.default_rng(1).uniform(size=(40, 3))
    tree, is_valid = snapped(Cut(2, 0.5, Cut(0, 0.4), Cut(1, 0.6)), X, 2)
    assert is_valid
    rows = leaf_rows(tree, X)
    found = leaves(to_node(tree, X))
    assert all((a == b.rows).all() for a, b in zip(rows, found, strict=True))
    assert all(leaf.region.contains(X[leaf.rows]).all() for leaf in found)
    assert sorted(np.concatenate(rows)) == list(range(40))


def test_snapping_finds_trees_whose_parts_are_too_small():
    X = np.arange(6.0)[:, None]
    assert snapped(Cut(0, 2.2), X, 2) == (Cut(0, 2.5), True)
    assert not snapped(Cut(0, 0.5), X, 2)[1]
    assert not snapped(Cut(0, 2.5, Cut(0, 4.0)), X, 1)[1]


def test_cuts_separate_distinct_values_only():
    after, splits = cut_gaps(np.array([0.0, 0.0, 1.0, 1.0, 5.0]), least=1)
    assert after.tolist() == [2, 4]
    assert splits.tolist() == [0.5, 3.0]
    close = np.nextafter(1.0, 2.0)
    assert cut_gaps(np.array([1.0, close]), 1)[1].tolist() == [close]


def test_a_part_is_replaced_at_its_path():
    tree = Cut(0, 0.5, None, Cut(1, 0.5))
    assert replaced(tree, (True, False), Cut(0, 0.7)) == Cut(0, 0.5, None, Cut(1, 0.5, Cut(0, 0.7)))
    assert replaced(tree, (), None) is None
