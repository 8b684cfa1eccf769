"""The dial: sizes grow with what may be spent, and cost stays bounded."""

import dataclasses

import pytest

from dsmgp import DSMGPRegressor
from dsmgp.fitting.effort import EFFORTS, leaf_rows, seconds


@pytest.mark.parametrize("name", sorted(EFFORTS))
@pytest.mark.parametrize("n_rows", [2, 50, 900, 10_000, 300_000, 10_000_000])
def test_sizes_increase_and_their_cost_stays_within_the_budget(name, n_rows):
    effort = EFFORTS[name]
    sizes = effort.leaf_sizes(n_rows, "cpu")
    assert sizes == sorted(sizes)
    assert sum(size >= n_rows for size in sizes) <= 1  # one leaf for everything is enough
    rows = [leaf_rows(size, n_rows) for size in sizes[effort.copies[1] :]]  # beyond the smallest
    assert sum(seconds(n_rows, m, "cpu") for m in rows) <= effort.budget("cpu")


def test_a_size_more_comes_before_a_second_partition_of_each():
    tight = dataclasses.replace(EFFORTS["medium"], seconds={"cpu": 1.0, "cuda": 1.0})
    sizes = tight.leaf_sizes(32_000, "cpu")
    counts = [sizes.count(size) for size in sorted(set(sizes))]
    assert max(sizes) == 1000
    assert counts == sorted(counts, reverse=True)  # what is left goes to the small
    assert {counts[0], counts[-1]} == {2, 1}


def test_the_smallest_size_is_never_alone():
    for name, effort in EFFORTS.items():
        sizes = effort.leaf_sizes(10**8, "cpu")
        assert sizes == [effort.ladder[0]] * effort.copies[0], name


def test_small_data_are_also_one_leaf_and_large_data_are_not():
    for name in EFFORTS:
        assert max(EFFORTS[name].leaf_sizes(800, "cpu")) >= 800
        assert max(EFFORTS[name].leaf_sizes(1_000_000, "cpu")) < 1_000_000


def test_more_effort_and_a_gpu_buy_larger_leaves():
    largest = [max(EFFORTS[name].leaf_sizes(100_000, "cpu")) for name in ("low", "medium", "high")]
    assert largest == sorted(largest)
    assert max(EFFORTS["medium"].leaf_sizes(10_000, "cuda")) == 10_000
    assert max(EFFORTS["medium"].leaf_sizes(10_000, "cpu")) < 10_000


def test_the_dial_reaches_the_tree(rng):
    X = rng.normal(size=(700, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=700)
    low, high = (
        DSMGPRegressor("rbf", effort=effort, max_iter=3, random_state=0).fit(X, y)
        for effort in ("low", "high")
    )
    assert len(low.tree_.children) < len(high.tree_.children)
