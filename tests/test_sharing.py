"""Shared Cholesky factors: every step against dense algebra, every plan against separate factors."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsmgp import sharing
from dsmgp.grow import grow_balanced, grow_paper
from dsmgp.sharing import (
    Direct,
    Extend,
    Prefix,
    Remove,
    Same,
    append_rows,
    factorise,
    plan_sharing,
    remove_rows,
)
from dsmgp.tree import leaves

NOISE = 0.05


@pytest.fixture(autouse=True, scope="module")
def one_core():
    """Matrices this small are slower on two."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture
def free_calls(monkeypatch):
    """Small leaves share too: plans that differ only in size from those of large leaves."""
    monkeypatch.setattr(sharing, "CALL_FLOPS", 0.0)
    monkeypatch.setattr(sharing, "MOVE_FLOPS", 1.0)
    monkeypatch.setattr(sharing, "SWEEP_FLOPS", 1.0)


class Rows:
    """Rows of one input and their covariance, which counts the elements it was asked for."""

    def __init__(self, n, noise=NOISE, seed=0):
        rng = np.random.default_rng(seed)
        self.x = torch.from_numpy(np.sort(rng.uniform(size=n)))
        self.y = torch.from_numpy(rng.normal(size=n))
        self.noise, self.n_elements = noise, 0

    def __call__(self, new, rows):
        assert np.array_equal(new, rows[len(rows) - len(new) :])
        self.n_elements += len(new) * len(rows)
        K = torch.exp(-20.0 * (self.x[new, None] - self.x[rows]) ** 2)
        K.diagonal(len(rows) - len(new)).add_(self.noise)
        return K

    def log_evidence(self, rows):
        law = torch.distributions.MultivariateNormal(
            torch.zeros(len(rows), dtype=torch.float64), self(rows, rows)
        )
        return float(law.log_prob(self.y[rows])) if len(rows) else 0.0


def assert_equals_separate(leaf_rows, data, plan=None):
    """Factors and evidence are those of every leaf factorised for itself, in the same order."""
    plan = plan or plan_sharing(leaf_rows)
    found = factorise(plan, data)
    evidence = found.log_evidence(data.y)
    for leaf, rows in enumerate(leaf_rows):
        order = plan.rows[leaf]
        assert np.array_equal(np.sort(order), np.sort(rows))
        separate = torch.linalg.cholesky(data(order, order))
        torch.testing.assert_close(found.lower[leaf], separate, rtol=0.0, atol=1e-12)
        assert abs(float(evidence[leaf]) - data.log_evidence(order)) < 1e-10
    assert plan.flops_shared <= plan.flops_direct * (1 + 1e-12)
    return plan, found


def intervals(*ends):
    return [np.arange(low, high) for low, high in ends]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("removed", [[0], [0, 1, 2, 3], [17, 18, 30, 59], [59], [], range(1, 60)])
def test_removing_rows_is_factorising_without_them(removed, dtype):
    data, removed = Rows(60), np.array(removed, dtype=np.int64)
    K = data(np.arange(60), np.arange(60)).to(dtype)
    kept = np.delete(np.arange(60), removed)
    L = torch.linalg.cholesky(K)
    before = L.clone()
    found = remove_rows(L, removed)
    assert found.dtype == dtype
    assert (found.diagonal() > 0).all()
    torch.testing.assert_close(L, before, rtol=0.0, atol=0.0)
    separate = torch.linalg.cholesky(K[kept][:, kept])
    torch.testing.assert_close(found, separate, rtol=0.0, atol=50 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("n", [1, 20, 59])
def test_appending_rows_is_factorising_with_them(n):
    data = Rows(60)
    K = data(np.arange(60), np.arange(60))
    found = append_rows(torch.linalg.cholesky(K[:n, :n]), K[n:])
    torch.testing.assert_close(found, torch.linalg.cholesky(K), rtol=0.0, atol=1e-13)


def test_appending_rows_notices_what_is_not_positive_definite():
    K = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert append_rows(torch.tensor([[1.0]]), K[1:]) is None


def test_a_nested_chain_costs_its_largest_leaf():
    data = Rows(300)
    chain = intervals((100, 150), (0, 300), (90, 160), (90, 280))  # no common ends, in no order
    plan, found = assert_equals_separate(chain, data)
    assert [type(step) for step in plan.steps] == [Prefix, Direct, Prefix, Prefix]
    assert plan.rounds == [[1]]
    assert all(factor.data_ptr() == found.lower[1].data_ptr() for factor in found.lower)


def test_identical_row_sets_are_factorised_once_whatever_their_order():
    data, rows = Rows(50), np.arange(50)
    plan = plan_sharing([rows, rows[::-1], np.roll(rows, 7)])
    assert plan.steps == [Direct(), Same(0), Same(0)]
    factorise(plan, data)
    assert data.n_elements == 50 * 50


def test_same_rows_as_a_copied_leaf_are_copied_too():
    data = Rows(80)
    plan, _ = assert_equals_separate(intervals((10, 40), (10, 40), (0, 80)), data)
    assert plan.steps == [Prefix(2, 30), Same(0), Direct()]


def test_the_kernel_is_not_evaluated_where_factors_are_shared():
    data = Rows(1000)
    plan = plan_sharing(intervals((100, 500), (100, 530), (70, 500)))
    factorise(plan, data)
    assert {type(step) for step in plan.steps} == {Direct, Prefix, Extend}
    assert data.n_elements == 430 * 430 + 30 * 430


def test_rows_are_removed_where_that_is_cheaper():
    rows = np.arange(600)
    without = [np.delete(rows, np.arange(k, k + 5)) for k in (0, 200, 400)]
    plan, _ = assert_equals_separate([rows, *without], Rows(600))
    kinds = sorted(type(step).__name__ for step in plan.steps)
    assert kinds == ["Direct", "Prefix", "Remove", "Remove"]
    assert plan.saving > 0.4


def test_rows_that_others_lack_come_last():
    plan, _ = assert_equals_separate(intervals((0, 600), (5, 605)), Rows(605))
    assert plan.steps == [Direct(), Extend(0, 595)]


def test_a_chain_of_updates_is_cut_before_errors_add_up(free_calls):
    leaf_rows = intervals(*((k, k + 120) for k in range(60)))
    plan, _ = assert_equals_separate(leaf_rows, Rows(200))
    kinds = [type(step) for step in plan.steps]
    assert kinds.count(Remove) > 40
    assert kinds.count(Direct) > 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=25),
    st.integers(0, 2**16),
)
def test_any_intervals_shared_are_those_separate(ends, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "CALL_FLOPS", 0.0)
        patch.setattr(sharing, "MOVE_FLOPS", 1.0)
        leaf_rows = intervals(*((min(pair), max(pair)) for pair in ends))
        assert_equals_separate(leaf_rows, Rows(90, seed=seed))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=1, max_size=20), st.integers(0, 9)
)
def test_any_sets_shared_are_those_separate(sets, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "CALL_FLOPS", 0.0)
        patch.setattr(sharing, "MOVE_FLOPS", 0.0)
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
    assert factorise(plan, Rows(1)).lower == []
    assert plan.saving == 0.0
    assert plan.summary() == "0 leaves: nothing to do; 0 of 0 flops, 0% saved"


def test_a_sample_of_the_rows_finds_the_same_chains(monkeypatch):
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


def test_equal_signatures_do_no_harm(monkeypatch):
    monkeypatch.setattr(sharing, "_codes", lambda n: np.zeros(n, dtype=np.uint64))
    plan, _ = assert_equals_separate(intervals((0, 100), (20, 80), (50, 90)), Rows(100))
    assert plan.steps[1] == Prefix(0, 60)


def test_a_plan_does_not_depend_on_the_run():
    leaf_rows = intervals(*((k * 3 % 50, 60 + k * 7 % 40) for k in range(30)))
    one, two = plan_sharing(leaf_rows), plan_sharing(leaf_rows)
    assert all(np.array_equal(a, b) for a, b in zip(one.rows, two.rows, strict=True))
    assert one.rounds == two.rounds


def test_many_dimensions_are_left_alone():
    rng = np.random.default_rng(0)
    tree = grow_balanced(rng.normal(size=(2000, 8)), leaf_sizes=[150] * 6, rng=rng)
    plan = plan_sharing([leaf.rows for leaf in leaves(tree)])
    assert {type(step) for step in plan.steps} == {Direct}
    assert plan.saving == 0.0


def test_two_way_splits_of_one_input_cost_two_factors():
    rng = np.random.default_rng(0)
    tree = grow_paper(
        rng.uniform(size=(400, 1)),
        leaf_size=50,
        sum_children=16,
        product_children=2,
        depth=1,
        rng=rng,
    )
    plan = plan_sharing([leaf.rows for leaf in leaves(tree)])
    assert [type(step) for step in plan.steps].count(Direct) == 2
    assert len(plan.rounds) == 1
    assert plan.saving > 0.8


def test_rounds_need_earlier_rounds_only(free_calls):
    leaf_rows = intervals(*((k % 17, 80 + 3 * k % 40) for k in range(40)))
    plan = plan_sharing(leaf_rows)
    done = set()
    for leaves_of_round in plan.rounds:
        for leaf in leaves_of_round:
            step = plan.steps[leaf]
            assert isinstance(step, Direct) or step.of in done
        done.update(leaves_of_round)
    assert len(plan.rounds) > 1
    assert done == {plan.owner(leaf) for leaf in range(len(leaf_rows))}


def test_side_by_side_is_one_by_one(free_calls):
    leaf_rows = intervals(*((k % 17, 80 + 3 * k % 40) for k in range(40)))
    plan, data = plan_sharing(leaf_rows), Rows(120)
    alone = factorise(plan, data)
    with ThreadPoolExecutor(2) as pool:
        together = factorise(plan, data, run=pool.map)
    for a, b in zip(alone.lower, together.lower, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-13)


def test_whitened_residuals_solve_for_the_observations():
    data = Rows(100)
    plan = plan_sharing(intervals((0, 100), (20, 60), (30, 50)))
    found = factorise(plan, data)
    for rows, factor, white in zip(plan.rows, found.lower, found.whiten(data.y), strict=True):
        torch.testing.assert_close(factor @ white, data.y[rows], rtol=0.0, atol=1e-12)


class TestNotPositiveDefinite:
    """Rows 40 and up are equal and have no noise: no leaf with two of them can be factorised."""

    leaf_rows = intervals((0, 60), (0, 30), (0, 41), (10, 30), (5, 62))

    def covariance(self, new, rows):
        x = torch.from_numpy(np.minimum(np.arange(70), 40) / 10.0)
        K = torch.exp(-0.5 * (x[new.copy(), None] - x[rows.copy()]) ** 2)
        noise = torch.where(torch.from_numpy(new < 40), 0.1, -0.01)
        K.diagonal(len(rows) - len(new)).add_(noise)
        return K

    def test_it_is_an_error(self):
        with pytest.raises(torch.linalg.LinAlgError, match=r"leaf 0 \(60 rows\).*raise the noise"):
            factorise(plan_sharing(self.leaf_rows), self.covariance)

    def test_rescued_leaves_share_with_nobody(self, free_calls):
        rescued = {}

        def rescue(leaf, K):
            rescued[leaf] = torch.linalg.cholesky(K + torch.eye(len(K)))
            return rescued[leaf]

        plan = plan_sharing(self.leaf_rows)
        found = factorise(plan, self.covariance, rescue=rescue)
        assert set(rescued) == {0, 4}
        for leaf, rows in enumerate(plan.rows):
            K = self.covariance(rows, rows)
            added = torch.eye(len(rows)) if leaf in rescued else 0.0
            torch.testing.assert_close(
                found.lower[leaf] @ found.lower[leaf].mT, K + added, rtol=0.0, atol=1e-12
            )
            assert leaf not in rescued or found.owners.count(leaf) == 1
