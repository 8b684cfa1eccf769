"""A Ray cluster of several machines, all of them on this one: results are those of one process, whichever machine is lost."""

import logging
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.fitting.datasets import fit as dataset

ray = pytest.importorskip("ray")

from dsmgp.distributed.ray_workers import RayWorkers  # noqa: E402
from dsmgp.ray import RayExecutor  # noqa: E402

EXACT = {"rtol": 1e-9, "atol": 1e-9}
OPTIONS = {"kernel": "rbf", "leaf_size": 40, "memory_limit": "500kB", "random_state": 0}
# Machines that are gone are noticed within a second.
NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,  # not starved by other tests
}


@pytest.fixture(scope="module")
def cluster():
    """A head without room for workers, to which machines of one worker each are added."""
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": NOTICE},
        )
        ray.init(cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        for node in (*cluster.worker_nodes, cluster.head_node):  # without waiting for work to end
            node.kill_all_processes(check_alive=False, allow_graceful=False)


@pytest.fixture
def machines(cluster):
    """Three machines."""
    while len(cluster.worker_nodes) < 3:
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    return cluster


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    rng = np.random.default_rng(3)
    X = np.round(rng.uniform(-2, 2, size=(500, 2)), 1)
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=500)
    folder = tmp_path_factory.mktemp("rows")
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
    for k in range(5):
        frame[100 * k : 100 * (k + 1)].to_parquet(folder / f"{k}.parquet")
    return frame, folder


@pytest.fixture
def small_sample(monkeypatch):
    for name in ("LEAST_SAMPLE", "MOST_SAMPLE"):
        monkeypatch.setattr(dataset, name, 300)


@pytest.fixture
def expected(rows, small_sample):
    """Evidence, and predictions of the first rows, of one process; and its model."""
    frame, folder = rows
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y")
    predicted = model.predict(frame[["a", "b"]][:50], return_std=True)
    return model.log_marginal_likelihood_, predicted, model


def same(model, rows, expected):
    assert model.log_marginal_likelihood_ == pytest.approx(expected[0], rel=1e-9)
    found = model.predict(rows[0][["a", "b"]][:50], return_std=True)
    np.testing.assert_allclose(found, expected[1], **EXACT)


def lose_machines(monkeypatch, machines, **numbers):
    """Take the machine of a worker away at the first, second, ... result of some methods that is waited for, and add another one.

    Return the names of the machines by method, once they are gone.
    """
    result, lost, n_asked = RayWorkers._result, {}, Counter()

    def losing(self, worker, method, reference):
        n_asked[method] += 1
        if n_asked[method] == numbers.get(method):
            lost[method] = self._processes[worker].machine
            (node,) = [n for n in machines.worker_nodes if n.node_id == lost[method]]
            machines.remove_node(node, allow_graceful=False)
            machines.add_node(num_cpus=1)
        return result(self, worker, method, reference)

    monkeypatch.setattr(RayWorkers, "_result", losing)
    return lost


def assert_equal_tables(one, other):
    pd.testing.assert_frame_equal(
        pd.read_parquet(one), pd.read_parquet(other), rtol=1e-12, atol=1e-12
    )


def test_machines_that_are_lost_at_every_stage_change_nothing(
    machines, rows, expected, monkeypatch, caplog
):
    """While rows are read, hyperparameters learned, leaves conditioned and rows predicted."""
    stages = {"reading": 1, "gradient": 2, "condition": 1, "predict": 1}
    lost = lose_machines(monkeypatch, machines, **stages)
    with RayExecutor(n_workers=3) as executor, caplog.at_level(logging.WARNING, "dsmgp"):
        assert len({process.machine for process in executor.workers._processes}) == 3  # spread
        model = DSMGPRegressor(executor=executor, **OPTIONS).fit_dataset(rows[1], target="y")
        same(model, rows, expected)
        machines_now = {process.machine for process in executor.workers._processes}
    assert lost.keys() == stages.keys()
    assert len(set(lost.values())) == len(stages)
    assert not machines_now & set(lost.values())
    assert caplog.text.count("a Ray worker died") == len(stages)


@pytest.mark.slow  # machines take seconds to start, and to be missed
def test_a_machine_that_joins_is_used_by_the_next_stage(machines, rows, expected, monkeypatch):
    call, before = RayWorkers.call, len(machines.worker_nodes)

    def joining(self, shards, method, arguments):
        if method == "gradient" and len(machines.worker_nodes) == before:
            machines.add_node(num_cpus=1)
            machines.wait_for_nodes()
        return call(self, shards, method, arguments)

    monkeypatch.setattr(RayWorkers, "call", joining)
    with RayExecutor() as executor:
        model = DSMGPRegressor(executor=executor, **OPTIONS).fit_dataset(rows[1], target="y")
        same(model, rows, expected)
        assert executor.workers.n_shards == before + 1
        assert len({process.machine for process in executor.workers._processes}) == before + 1
        leaf_gps = model.state_.model.leaf_posterior.leaf_gps
        used = {executor.workers._worker_of[number] for number in leaf_gps.shards}
        assert before in used  # the worker that joined last


@pytest.mark.slow  # machines take seconds to start, and to be missed
def test_a_cluster_that_is_too_small_says_so(machines, rows):
    n_machines = len(machines.worker_nodes)
    crowd = RayExecutor(n_workers=n_machines + 1, wait_seconds=0.5)
    with pytest.raises(
        RuntimeError, match=f"no room for {n_machines + 1} workers: .* asked for, {n_machines} CPU"
    ):
        DSMGPRegressor(executor=crowd, **OPTIONS).fit_dataset(rows[1], target="y")
    large = RayExecutor(n_workers=1, resources_per_worker={"CPU": 2}, wait_seconds=0.5)
    with pytest.raises(RuntimeError, match=r"room for 0 of that size|no room for 1 workers"):
        DSMGPRegressor(executor=large, **OPTIONS).fit_dataset(rows[1], target="y")


@pytest.mark.slow
def test_a_machine_that_is_lost_while_a_dataset_is_predicted_changes_nothing(
    machines, rows, expected, tmp_path, monkeypatch
):
    near, far = tmp_path / "near.parquet", tmp_path / "far.parquet"
    expected[2].predict_dataset(rows[1], near, interval=0.9)
    with RayExecutor(n_workers=2) as executor:
        model = DSMGPRegressor(executor=executor, **OPTIONS).fit_dataset(rows[1], target="y")
        # While rows are routed, predicted by shards, and combined: there are five pieces.
        for method, number in (("reading", 1), ("apply", 1), ("reading", 7)):
            with monkeypatch.context() as patch:
                lost = lose_machines(patch, machines, **{method: number})
                model.predict_dataset(rows[1], far, interval=0.9)
            assert lost
            assert_equal_tables(near, far)
