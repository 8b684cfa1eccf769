"""Trees: which are valid, how they are evaluated and rebuilt, how many induced trees there are."""

import itertools
import math
import pickle

import numpy as np
import pytest

from dsmgp.tree import (
    Leaf,
    Product,
    Region,
    Sum,
    depth,
    fold,
    induced_tree,
    leaves,
    log_n_induced_trees,
    map_leaves,
    n_induced_trees,
    nodes,
)
from dsmgp.tree.growing import grow_paper
from tests.support.oracle import induced_trees


def cut(region, dimension, splits, make=Leaf):
    return Product([make(part) for part in region.split(dimension, splits)], dimension, splits)


def full_tree(region, sums, products, layers, lower=-1.0, upper=1.0):
    """A full tree: every sum has ``sums`` children, every product ``products``, ``layers`` deep."""
    if layers == 0:
        return Leaf(region)
    splits = list(np.linspace(lower, upper, products + 1)[1:-1])
    edges = [lower, *splits, upper]
    children = []
    for _ in range(sums):
        parts = region.split(0, splits)
        grown = [
            full_tree(part, sums, products, layers - 1, low, high)
            for part, low, high in zip(parts, edges[:-1], edges[1:], strict=True)
        ]
        children.append(Product(grown, 0, splits))
    return Sum(children)


@pytest.mark.parametrize(("sums", "products", "layers"), [(2, 2, 1), (2, 3, 2), (4, 12, 2)])
def test_induced_trees_of_full_trees_follow_the_recursion(sums, products, layers):
    expected = 1
    for _ in range(layers):
        expected = sums * expected**products
    tree = full_tree(Region.whole(1), sums, products, layers)
    assert n_induced_trees(tree) == expected
    assert log_n_induced_trees(tree) == pytest.approx(math.log(expected), rel=1e-12)


def test_kin40k_of_the_paper_has_4_to_the_13_induced_trees():
    assert n_induced_trees(full_tree(Region.whole(1), 4, 12, 2)) == 4**13 == 67_108_864


def test_induced_trees_of_uneven_trees_equal_an_enumeration(rng):
    for seed in range(5):
        X = np.random.default_rng(seed).normal(size=(30, 2))
        tree = grow_paper(X, leaf_size=8, sum_children=2, product_children=2, depth=2, rng=rng)
        enumerated = induced_trees(tree)
        assert n_induced_trees(tree) == len(enumerated)
        assert np.exp(log_n_induced_trees(tree)) == pytest.approx(len(enumerated))
        assert sum(math.exp(p) for p, _ in enumerated) == pytest.approx(1.0)


def test_the_number_of_induced_trees_is_exact_beyond_floating_point():
    tree = full_tree(Region.whole(1), 3, 3, 4)
    assert n_induced_trees(tree) == 3 ** (1 + 3 + 9 + 27) > 2**53


def test_regions_are_half_open():
    left, right = Region.whole(1).split(0, [0.5])
    assert not left.contains([[0.5]])[0]
    assert right.contains([[0.5]])[0]
    assert left.contains([[-1e308]])[0]


def test_completeness_is_checked_when_a_sum_is_built():
    left, right = Region.whole(1).split(0, [0.0])
    with pytest.raises(ValueError, match="must cover the same region"):
        Sum([Leaf(left), Leaf(right)])


def test_decomposability_is_checked_when_a_product_is_built():
    left, right = Region.whole(1).split(0, [0.0])
    with pytest.raises(ValueError, match="tile"):
        Product([Leaf(left), Leaf(left)], 0, [0.0])
    with pytest.raises(ValueError, match="tile"):
        Product([Leaf(left), Leaf(right)], 0, [0.5])
    with pytest.raises(ValueError, match="one child more than splits"):
        Product([Leaf(left)], 0, [0.0])
    with pytest.raises(ValueError, match="dimension"):
        Product([Leaf(left), Leaf(right)], 1, [0.0])


def test_weights_of_a_sum_must_sum_to_one():
    children = [Leaf(Region.whole(1)), Leaf(Region.whole(1))]
    with pytest.raises(ValueError, match="sum to one"):
        Sum(children, np.log([0.5, 0.6]))
    with pytest.raises(ValueError, match="one log weight per child"):
        Sum(children, np.log([0.5, 0.25, 0.25]))
    with pytest.raises(ValueError, match="at least one child"):
        Sum([])
    assert Sum(children, np.log([0.1, 0.9])).log_weights[1] == pytest.approx(math.log(0.9))


def test_bad_regions_and_rows_are_refused():
    with pytest.raises(ValueError, match="lower < upper"):
        Region(np.array([1.0]), np.array([1.0]))
    with pytest.raises(ValueError, match="at least one dimension"):
        Region(np.array([]), np.array([]))
    with pytest.raises(ValueError, match="distinct"):
        Leaf(Region.whole(1), np.array([1, 1]))


def test_an_induced_tree_has_no_sums_and_keeps_every_row_once(rng):
    X = rng.normal(size=(60, 2))
    tree = grow_paper(X, leaf_size=10, sum_children=3, product_children=2, depth=2, rng=rng)
    chosen = induced_tree(tree, rng)
    assert not any(isinstance(node, Sum) for node in nodes(chosen))
    assert sorted(np.concatenate([leaf.rows for leaf in leaves(chosen)])) == list(range(60))


def test_depth_counts_sum_nodes():
    assert depth(Leaf(Region.whole(1))) == 0
    assert depth(full_tree(Region.whole(1), 2, 2, 3)) == 3


def test_nodes_cannot_be_changed_and_survive_pickling():
    tree = full_tree(Region.whole(1), 2, 2, 2)
    with pytest.raises(AttributeError):
        tree.children = ()
    with pytest.raises(ValueError, match="read-only"):
        tree.region.lower[0] = 0.0
    again = pickle.loads(pickle.dumps(tree))
    assert n_induced_trees(again) == n_induced_trees(tree)


def test_arrays_of_nodes_cannot_be_changed_either():
    part = Region.whole(1).split(0, [0.5])[0]
    for array in (part.lower, part.upper, Sum([Leaf(part)]).log_weights, Leaf(part, [1, 2]).rows):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_a_cut_that_leaves_nothing_on_one_side_is_refused():
    with pytest.raises(ValueError, match="expected lower < upper in every dimension"):
        Region.whole(1).split(0, [0.5, 0.5])


def test_a_leaf_built_by_hand_has_no_rows_yet():
    assert Leaf(Region.whole(1)).n_rows == 0


def test_errors_name_the_ranges_that_were_expected():
    parts = [Leaf(part) for part in Region([0.0, 0.0], [3.0, 1.0]).split(0, [1.0, 2.0])]
    with pytest.raises(ValueError, match=r"one of 0\.\.1, got 5"):
        Product(parts, 5, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"increase inside \[0, 3\), got \[2\.0, 1\.0\]"):
        Product(parts, 0, [2.0, 1.0])
    with pytest.raises(ValueError, match=r"child 0 covers \[0, 1\) x .*, child 1 covers \[1, 2\)"):
        Sum(parts)


def test_a_fold_visits_leaves_in_order_and_children_before_parents():
    tree = full_tree(Region.whole(1), 2, 3, 2)
    numbers = itertools.count()

    def joined(node, below):
        return list(itertools.chain.from_iterable(below))

    order = fold(tree, lambda leaf: [next(numbers)], joined, joined)
    assert order == list(range(2 * 3 * 2 * 3))


def test_deep_trees_are_rebuilt_without_recursion():
    node = Leaf(Region([-1.0], [0.0]))
    for k in range(-2, -2001, -1):
        node = Product([Leaf(Region([k], [k + 1.0])), node], 0, [k + 1.0])
    rebuilt = map_leaves(node, lambda leaf: Leaf(leaf.region, [0]))
    assert rebuilt.region.same_as(node.region)
    assert sum(leaf.n_rows for leaf in leaves(rebuilt)) == 2000
    assert leaves(node)[0].rows is None  # the tree given is left as it was


def test_leaves_may_be_replaced_by_subtrees_over_the_same_region():
    tree = Sum([Leaf(Region.whole(1)), cut(Region.whole(1), 0, [0.0])], np.log([0.25, 0.75]))
    halved = map_leaves(
        tree, lambda leaf: cut(leaf.region, 0, [0.5]) if leaf.region.contains([[0.5]])[0] else leaf
    )
    assert len(leaves(halved)) == 5
    np.testing.assert_array_equal(halved.log_weights, tree.log_weights)
    with pytest.raises(ValueError, match="tile"):
        map_leaves(tree, lambda leaf: Leaf(Region([5.0], [6.0])))
