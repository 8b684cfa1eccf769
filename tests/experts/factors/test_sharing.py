"""Shared Cholesky factors: every plan against separate factors."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsmgp.experts.factors import sharing
from dsmgp.experts.factors.sharing import NotPositiveDefinite, SharedFactors, plan_sharing
from dsmgp.linalg import lapack
from dsmgp.tree import leaves
from dsmgp.tree.growing import grow_balanced, grow_paper

pytestmark = pytest.mark.skipif(not lapack.available, reason="SciPy does not export LAPACK")
NOISE = 0.05


@pytest.fixture
def free_calls(monkeypatch):
    """Small leaves share too: plans that differ only in size from those of large leaves."""
    monkeypatch.setattr(sharing, "CALL_FLOPS", 0.0)
    monkeypatch.setattr(sharing, "COPY_FLOPS", 1.0)


class Rows:
    """Rows of one input and their covariance, which counts the elements it was asked for."""

    def __init__(self, n, noise=NOISE, seed=0):
        self.x = np.sort(np.random.default_rng(seed).uniform(size=n))
        self.noise, self.n_elements = noise, 0

    def covariance(self, rows):
        x = self.x[rows]
        return np.exp(-20.0 * (x[:, None] - x) ** 2) + self.noise * np.eye(len(x))

    def factors(self, plan):
        def fill(leaf, K, first):
            self.n_elements += (len(K) - first) * len(K)
            K[first:] = np.tril(self.covariance(plan.rows[leaf]))[first:]

        return SharedFactors(plan, fill)


def assert_equals_separate(leaf_rows, data, plan=None):
    """Factors are those of every leaf factorised for itself, in the same order."""
    plan = plan or plan_sharing(leaf_rows)
    factors = data.factors(plan)
    for leaf, rows in enumerate(leaf_rows):
        order = plan.rows[leaf]
        assert np.array_equal(np.sort(order), np.sort(rows))
        separate = np.linalg.cholesky(data.covariance(order))
        np.testing.assert_allclose(factors.lower(leaf), separate, rtol=0.0, atol=1e-12)
    assert plan.flops_shared <= plan.flops_direct * (1 + 1e-12)
    return plan, factors


def intervals(*ends):
    return [np.arange(low, high) for low, high in ends]


def test_a_nested_chain_costs_its_largest_leaf(free_calls):
    data = Rows(300)
    chain = intervals((100, 150), (0, 300), (90, 160), (90, 280))  # no common ends, in no order
    plan, factors = assert_equals_separate(chain, data)
    assert plan.owner == [1, 1, 1, 1]
    assert list(plan.flops) == [1]
    assert all(np.shares_memory(factors.lower(leaf), factors.lower(1)) for leaf in range(4))


def test_identical_row_sets_are_factorised_once_whatever_their_order():
    data, rows = Rows(50), np.arange(50)
    plan = plan_sharing([rows, rows[::-1], np.roll(rows, 7)])
    assert plan.owner == [0, 0, 0]
    factors = data.factors(plan)
    for leaf in range(3):
        factors.lower(leaf)
    assert data.n_elements == 50 * 50


def test_same_rows_as_a_copied_leaf_are_copied_too(free_calls):
    data = Rows(80)
    plan, _ = assert_equals_separate(intervals((10, 40), (10, 40), (0, 80)), data)
    assert plan.owner == [2, 2, 2]
    assert not plan.start


def test_the_kernel_is_not_evaluated_where_factors_are_shared():
    data = Rows(1000)
    plan = plan_sharing(intervals((100, 500), (100, 530), (70, 500)))
    factors = data.factors(plan)
    for leaf in range(3):
        factors.lower(leaf)
    assert plan.owner == [1, 1, 2]
    assert plan.start == {2: 0}
    assert data.n_elements == 430 * 430 + 30 * 430


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=25),
    st.integers(0, 2**16),
)
def test_any_intervals_shared_are_those_separate(ends, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "CALL_FLOPS", 0.0)
        patch.setattr(sharing, "COPY_FLOPS", 1.0)
        leaf_rows = intervals(*((min(pair), max(pair)) for pair in ends))
        assert_equals_separate(leaf_rows, Rows(90, seed=seed))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=1, max_size=20), st.integers(0, 9)
)
def test_any_sets_shared_are_those_separate(sets, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "CALL_FLOPS", 0.0)
        patch.setattr(sharing, "COPY_FLOPS", 0.0)
        rng = np.random.default_rng(seed)
        leaf_rows = [rng.permutation(np.array(sorted(rows))) for rows in sets]
        # Subsets, and sets that differ in a row, which drawn ones rarely are.
        leaf_rows += [rows[: len(rows) // 2] for rows in leaf_rows]
        leaf_rows += [np.append(rows[1:], 41) for rows in leaf_rows]
        assert_equals_separate(leaf_rows, Rows(42))


def test_leaves_without_rows_and_no_leaves_at_all():
    empty = np.empty(0, dtype=np.int64)
    assert_equals_separate([empty, np.arange(5), empty], Rows(5))
    plan = plan_sharing([])
    assert plan.saving == 0.0
    assert plan.summary() == "0 leaves: nothing to do; 0 of 0 flops, 0% saved"


def test_a_sample_of_the_rows_finds_the_same_chains(free_calls, monkeypatch):
    X = np.random.default_rng(0).uniform(size=(600, 1))
    tree = grow_paper(
        X, leaf_size=50, sum_children=6, product_children=2, rng=np.random.default_rng(1)
    )
    leaf_rows = [leaf.rows for leaf in leaves(tree)]
    exact = plan_sharing(leaf_rows)
    monkeypatch.setattr(sharing, "MAX_TRIPLES", 2**15)
    sampled, _ = assert_equals_separate(leaf_rows, Rows(600))
    assert exact.saving > 0.7
    assert sampled.saving > 0.8 * exact.saving


def test_equal_signatures_do_no_harm(free_calls, monkeypatch):
    monkeypatch.setattr(sharing, "_codes", lambda n: np.zeros(n, dtype=np.uint64))
    plan, _ = assert_equals_separate(intervals((0, 100), (20, 80), (50, 90)), Rows(100))
    assert plan.owner[1] == 0


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


def overlapping():
    """Intervals of which many begin with others; the last with one that begins with another."""
    several = ((k % 17, 80 + 3 * k % 40) for k in range(35))
    return intervals(*several, (340, 360), (200, 360), (340, 380), (340, 430), (325, 380))


def test_factors_that_others_begin_with_come_first(free_calls):
    leaf_rows = overlapping()
    plan = plan_sharing(leaf_rows)
    done = set()
    for leaf in plan.flops:
        first, *others = plan.lineage(leaf)
        assert first == leaf
        assert done.issuperset(others)
        done.add(leaf)
    assert plan.lineage(39) == [39, 38, 36]
    assert done == set(plan.owner)


def test_a_leaf_without_a_factor_is_named_and_the_others_have_theirs():
    K = Rows(120).covariance(np.arange(120))
    K[118, 118] = -1.0
    plan = plan_sharing(intervals((0, 60), (50, 119)))

    def fill(leaf, out, first):
        rows = plan.rows[leaf]
        out[first:] = np.tril(K[np.ix_(rows, rows)])[first:]

    factors = SharedFactors(plan, fill)
    factors.lower(0)
    with pytest.raises(NotPositiveDefinite, match=r"leaf 1 \(69 rows\)"):
        factors.lower(1)


def test_factors_computed_in_parallel_are_those_computed_one_by_one(free_calls):
    plan, data = plan_sharing(overlapping()), Rows(430)
    alone, together = data.factors(plan), data.factors(plan)
    with ThreadPoolExecutor(4) as pool:
        factors = list(pool.map(together.lower, range(40)))
    assert len(together._computed) == len(plan.flops)  # nothing was computed twice
    for leaf in reversed(range(40)):
        assert np.array_equal(alone.lower(leaf), factors[leaf])


class Fill:
    """Covariances by a plan; can be pickled."""

    def __init__(self, plan, data):
        self.plan, self.data = plan, data

    def __call__(self, leaf, K, first):
        K[first:] = np.tril(self.data.covariance(self.plan.rows[leaf]))[first:]


def test_pickled_factors_are_computed_again(free_calls):
    plan = plan_sharing(overlapping())
    factors = SharedFactors(plan, Fill(plan, Rows(430)))
    before = factors.lower(3)
    again = pickle.loads(pickle.dumps(factors))
    assert np.array_equal(again.lower(3), before)
