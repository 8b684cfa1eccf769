"""Threads share a fitted model: every kind gives the answers that one thread gets, within its memory."""

import copy
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor, load
from dsmgp.experts.low_rank import LEAST_POINTS
from dsmgp.mixture.variance_error import exact_variances

N_THREADS, N_REQUESTS, N_DISTINCT = 8, 160, 12
OPTIONS = {"kernel": "rbf", "random_state": 0, "max_iter": 3}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    X = rng.uniform(-2, 2, size=(400, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=400)


@pytest.fixture(autouse=True)
def many_switches():
    """Threads take turns so often that a race is likely to show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


# Each returns a model that has answered nothing yet, and another one with the same answers.


def in_memory(rows, folder):
    model = DSMGPRegressor(leaf_size=60, **OPTIONS).fit(*rows)
    return model, copy.deepcopy(model)


def with_little_memory(rows, folder):
    """Some factors are computed again for every request."""
    model = DSMGPRegressor(leaf_size=60, memory_limit="500kB", **OPTIONS).fit(*rows)
    return model, copy.deepcopy(model)


def from_a_file(rows, folder):
    """Leaves are conditioned by the first requests."""
    in_memory(rows, folder)[0].save(folder / "model.dsmgp")
    return load(folder / "model.dsmgp"), load(folder / "model.dsmgp")


def after_updates(rows, folder):
    model = in_memory(rows, folder)[0]
    model.partial_fit(rows[0][:5] + 0.01, rows[1][:5]).forget([3, 4])
    return model, copy.deepcopy(model)


def in_single_precision(rows, folder):
    pytest.importorskip("torch")
    model = DSMGPRegressor(leaf_size=60, dtype="float32", **OPTIONS).fit(*rows)
    return model, copy.deepcopy(model)


def with_change_points(rows, folder):
    X, y = rows
    DSMGPRegressor(structure="changepoint", **OPTIONS).fit(X[:80], y[:80]).save(folder / "model")
    return load(folder / "model"), load(folder / "model")


def sharded_on_disk(rows, folder):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from dsmgp.fitting.datasets import fit as dataset

    X, y = rows
    parquet.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y}), folder / "rows.parquet")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST_SAMPLE", "MOST_SAMPLE"):
            patch.setattr(dataset, name, 200)
        model = DSMGPRegressor(leaf_size=40, memory_limit="500kB", **OPTIONS)
        model.fit_dataset(folder / "rows.parquet", target="y", store=folder / "model")
    return load(folder / "model"), load(folder / "model")


KINDS = (
    in_memory,
    with_little_memory,
    from_a_file,
    after_updates,
    with_change_points,
    sharded_on_disk,
)


def requests(n):
    """Small tables at random places."""
    rng = np.random.default_rng(11)
    return [rng.uniform(-2, 2, size=(3, 2)) for _ in range(n)]


def frames(n):
    return [pd.DataFrame(X, columns=["a", "b"]) for X in requests(n)]


def answer(model, k, X):
    if k % 4 == 3:
        return model.predict_dist(X).quantile(0.9), model.predict(X)
    return model.predict(X, return_std=True)


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, id=kind.__name__) for kind in KINDS),
        pytest.param(in_single_precision, marks=pytest.mark.slow),  # loads torch
    ],
)
def test_eight_threads_get_the_answers_of_one(kind, rows, tmp_path):
    model, other = kind(rows, tmp_path)
    tables = (frames if kind is sharded_on_disk else requests)(N_DISTINCT)
    expected = [answer(other, k, X) for k, X in enumerate(tables)]

    def ask(k):
        return answer(model, k % N_DISTINCT, tables[k % N_DISTINCT])

    with ThreadPoolExecutor(N_THREADS) as threads:
        for k, found in enumerate(threads.map(ask, range(N_REQUESTS))):
            np.testing.assert_array_equal(found, expected[k % N_DISTINCT])


def test_low_rank_variances_that_are_made_meanwhile_are_close_to_exact_ones():
    rng = np.random.default_rng(6)
    X = rng.uniform(-2, 2, size=(700, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=700)
    model = DSMGPRegressor(leaf_size=350, sum_children=2, **OPTIONS).fit(X, y)
    tables = requests(N_DISTINCT)
    posterior = model.state_.model.leaf_posterior
    with exact_variances():
        expected = [copy.deepcopy(model).predict(X, return_std=True) for X in tables]
    assert (posterior.leaf_sizes >= LEAST_POINTS).any()
    assert not posterior.bases.of_leaf

    def ask(k):
        return model.predict(tables[k % N_DISTINCT], return_std=True)

    with ThreadPoolExecutor(N_THREADS) as threads:
        found = list(threads.map(ask, range(N_REQUESTS)))
    assert posterior.bases.of_leaf
    for k, (mean, std) in enumerate(found):
        exact_mean, exact_std = expected[k % N_DISTINCT]
        assert (np.abs(mean - exact_mean) <= 1e-3 * exact_std).all()
        np.testing.assert_allclose(std, exact_std, rtol=1e-3)


def test_shards_on_disk_stay_within_the_memory(rows, tmp_path):
    (model, _), tables = sharded_on_disk(rows, tmp_path), frames(8)
    leaf_gps = model.state_.model.leaf_posterior.leaf_gps
    assert len(leaf_gps.shards) >= 6
    with ThreadPoolExecutor(N_THREADS) as threads:
        list(threads.map(model.predict, tables))
    assert 0 < leaf_gps.pool.cache.most_bytes <= leaf_gps.pool.cache.memory


def test_factors_of_change_points_are_counted_once(rows, tmp_path):
    model, _ = with_change_points(rows, tmp_path)
    (gp,) = model.state_.model.segmented_gps
    room = gp.memory + sum(each.L.nbytes for kept in gp._factors.values() for each in kept)
    with ThreadPoolExecutor(N_THREADS) as threads:
        list(threads.map(model.predict, requests(40)))
    held = sum(each.L.nbytes for kept in gp._factors.values() for each in kept)
    assert gp.memory + held == room


def test_models_come_and_go_while_others_predict(rows, tmp_path):
    """Posteriors are dropped by the garbage collector, in whichever thread it runs."""
    (model, _), (X,) = sharded_on_disk(rows, tmp_path), frames(1)
    expected, state = model.predict(X), model.state_.model.leaf_posterior
    leaf_gps, end = state.leaf_gps, time.monotonic() + 1.0

    def condition_and_forget(_):
        while time.monotonic() < end:
            leaf_gps.condition_later(state.kernel_parameters, state.memory, state.log_evidence)

    def ask(_):
        while time.monotonic() < end:
            np.testing.assert_array_equal(model.predict(X), expected)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda work: work(None), [condition_and_forget, ask, ask, ask]))
