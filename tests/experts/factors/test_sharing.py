"""Plans for shared Cholesky factors: every leaf's rows are the first of its owner's, and the work is what that costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsmgp.experts.factors import sharing
from dsmgp.experts.factors.sharing import direct_flops, plan_sharing
from dsmgp.tree import leaves
from dsmgp.tree.growing import grow_balanced, grow_paper


@pytest.fixture
def free_calls(monkeypatch):
    """Small leaves share too: plans that differ only in size from those of large leaves."""
    monkeypatch.setattr(sharing, "CALL_FLOPS", 0.0)


def assert_sound(plan, leaf_rows, families=None):
    """The factor of each leaf is the leading block of its owner's, and owners are factorised once."""
    families = np.zeros(len(leaf_rows)) if families is None else families
    assert set(plan.owner) == set(plan.flops)
    for leaf, (rows, owner) in enumerate(zip(leaf_rows, plan.owner, strict=True)):
        np.testing.assert_array_equal(np.sort(plan.rows[leaf]), np.sort(rows))
        np.testing.assert_array_equal(plan.rows[leaf], plan.rows[owner][: len(rows)])
        assert plan.owner[owner] == owner
        assert families[owner] == families[leaf]
    for owner, flops in plan.flops.items():
        assert flops == direct_flops(len(leaf_rows[owner]))
    assert plan.flops_shared <= plan.flops_direct * (1 + 1e-12)
    return plan


def intervals(*ends):
    return [np.arange(low, high) for low, high in ends]


def test_a_nested_chain_costs_its_largest_leaf(free_calls):
    chain = intervals((100, 150), (0, 300), (90, 160), (90, 280))  # no common ends, in no order
    plan = assert_sound(plan_sharing(chain), chain)
    assert plan.owner == [1, 1, 1, 1]
    assert list(plan.flops) == [1]


def test_identical_row_sets_are_factorised_once_whatever_their_order():
    rows = np.arange(50)
    assert plan_sharing([rows, rows[::-1], np.roll(rows, 7)]).owner == [0, 0, 0]


def test_same_rows_as_a_copied_leaf_are_copied_too(free_calls):
    leaf_rows = intervals((10, 40), (10, 40), (0, 80))
    assert assert_sound(plan_sharing(leaf_rows), leaf_rows).owner == [2, 2, 2]


def test_a_leaf_within_two_others_is_copied_from_the_larger(free_calls):
    leaf_rows = intervals((100, 500), (100, 530), (70, 500), (100, 600))
    assert assert_sound(plan_sharing(leaf_rows), leaf_rows).owner == [3, 3, 2, 3]


def test_only_leaves_of_a_family_share(free_calls):
    leaf_rows = intervals((0, 300), (100, 200), (50, 250), (50, 250), (0, 100))
    families = np.array([0, 1, 1, 0, 1])
    plan = assert_sound(plan_sharing(leaf_rows, families), leaf_rows, families)
    assert plan.owner == [0, 2, 2, 0, 4]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=25),
    st.integers(0, 2**16),
)
def test_plans_of_any_intervals_are_sound(ends, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "CALL_FLOPS", 0.0)
        leaf_rows = intervals(*((min(pair), max(pair)) for pair in ends))
        families = np.random.default_rng(seed).integers(2, size=len(leaf_rows))
        assert_sound(plan_sharing(leaf_rows, families), leaf_rows, families)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=1, max_size=20), st.integers(0, 9)
)
def test_plans_of_any_sets_are_sound(sets, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "CALL_FLOPS", 0.0)
        rng = np.random.default_rng(seed)
        leaf_rows = [rng.permutation(np.array(sorted(rows))) for rows in sets]
        # Subsets, and sets that differ in a row, which drawn ones rarely are.
        leaf_rows += [rows[: len(rows) // 2] for rows in leaf_rows]
        leaf_rows += [np.append(rows[1:], 41) for rows in leaf_rows]
        plan = assert_sound(plan_sharing(leaf_rows), leaf_rows)
        assert len(plan.flops) < len(leaf_rows) or max(map(len, sets)) == 1


def test_leaves_without_rows_and_no_leaves_at_all():
    empty = np.empty(0, dtype=np.int64)
    leaf_rows = [empty, np.arange(5), empty]
    assert_sound(plan_sharing(leaf_rows), leaf_rows)
    plan = plan_sharing([])
    assert plan.saving == 0.0
    assert not plan.flops


def test_probed_rows_find_the_chains_that_all_rows_find(free_calls, monkeypatch):
    X = np.random.default_rng(0).uniform(size=(600, 1))
    tree = grow_paper(
        X, leaf_size=50, sum_children=6, product_children=2, rng=np.random.default_rng(1)
    )
    leaf_rows = [leaf.rows for leaf in leaves(tree)]
    few = assert_sound(plan_sharing(leaf_rows), leaf_rows)
    monkeypatch.setattr(sharing, "N_PROBES", 100)
    monkeypatch.setattr(sharing, "N_CANDIDATES", 1000)
    exact = assert_sound(plan_sharing(leaf_rows), leaf_rows)
    assert exact.saving > 0.7
    assert few.saving > 0.95 * exact.saving


def test_a_plan_does_not_depend_on_the_run():
    leaf_rows = intervals(*((k * 3 % 50, 60 + k * 7 % 40) for k in range(30)))
    one, two = plan_sharing(leaf_rows), plan_sharing(leaf_rows)
    assert all(np.array_equal(a, b) for a, b in zip(one.rows, two.rows, strict=True))
    assert one.flops == two.flops


def test_many_dimensions_are_left_alone():
    rng = np.random.default_rng(0)
    tree = grow_balanced(rng.normal(size=(2000, 8)), leaf_sizes=[150] * 6, rng=rng)
    plan = plan_sharing([leaf.rows for leaf in leaves(tree)])
    assert plan.owner == list(range(len(plan.rows)))
    assert plan.saving == 0.0


def test_two_way_splits_of_one_input_cost_two_factors():
    rng = np.random.default_rng(0)
    tree = grow_paper(
        rng.uniform(size=(1000, 1)),
        leaf_size=100,
        sum_children=16,
        product_children=2,
        depth=1,
        rng=rng,
    )
    plan = plan_sharing([leaf.rows for leaf in leaves(tree)])
    assert len(plan.flops) == 2
    assert plan.saving > 0.8


def test_small_leaves_are_not_worth_the_calls():
    plan = plan_sharing(intervals((0, 100), (20, 80), (30, 70)))
    assert plan.owner == [0, 1, 2]
