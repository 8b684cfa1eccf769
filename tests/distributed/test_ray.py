"""Fits on a real Ray cluster on this machine: results are those of one process, whichever workers die."""

import copy
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor, FactorisationWarning, load
from dsmgp._util.machine import has_torch
from dsmgp.fitting.datasets import fit as dataset
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.linalg.threads import n_threads

ray = pytest.importorskip("ray")

from dsmgp.distributed.ray_workers import RayWorkers  # noqa: E402
from dsmgp.distributed.sharded import ShardedLeafPosterior  # noqa: E402
from dsmgp.ray import RayExecutor, default_executor  # noqa: E402

EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def executor():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        ray.init(
            "local",
            num_cpus=3,
            num_gpus=1,
            include_dashboard=False,
            log_to_driver=False,
            _system_config={"worker_niceness": 0},  # not starved by other tests
        )
        with RayExecutor(n_workers=2) as executor:
            _ = executor.workers
            yield executor
        ray.shutdown()


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    X = np.round(rng.uniform(-2, 2, size=(400, 2)), 1)  # some are equal
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=400)
    return X, y, rng.uniform(-2, 2, size=(60, 2))


def same(one, other, X_test):
    """Two fitted models agree."""
    assert one.log_marginal_likelihood_ == pytest.approx(other.log_marginal_likelihood_, rel=1e-9)
    for a, b in zip(one.state_.search.results, other.state_.search.results, strict=True):
        np.testing.assert_allclose(a.theta, b.theta, **EXACT)
        np.testing.assert_allclose(a.path, b.path, **EXACT)
    assert one.loo_score_ == pytest.approx(other.loo_score_, abs=1e-9)
    assert one.loo_score_new_inputs_ == pytest.approx(other.loo_score_new_inputs_, abs=1e-9)
    np.testing.assert_allclose(
        one.predict(X_test, return_std=True), other.predict(X_test, return_std=True), **EXACT
    )
    np.testing.assert_allclose(one.predict(X_test), other.predict(X_test), **EXACT)


OPTIONS = {
    "default": {"hypotheses": None},
    "paper": {"structure": "paper", "leaf_size": 60, "weights": "posterior"},
    "uniform": {"kernel": "rbf", "leaf_size": [40, 100], "weights": "uniform"},
    "whole tree": {"kernel": "matern32", "leaf_size": 80, "objective": "full", "max_iter": 5},
    "warped": {"kernel": "rbf", "leaf_size": 80, "output_warp": "rank", "max_iter": 5},
}


SLOW = ("whole tree", "uniform")


@pytest.mark.parametrize(
    "options",
    [pytest.param(o, id=k, marks=[pytest.mark.slow] * (k in SLOW)) for k, o in OPTIONS.items()],
)
def test_two_workers_find_what_one_process_finds(executor, rows, options):
    X, y, X_test = rows
    local = DSMGPRegressor(random_state=0, **options).fit(X, y)
    far = DSMGPRegressor(random_state=0, executor=executor, **options).fit(X, y)
    assert isinstance(far.state_.model.leaf_posterior, ShardedLeafPosterior)
    same(far, local, X_test)


@pytest.mark.slow
def test_two_workers_take_gpytorch_kernels(executor, rows):
    gpytorch = pytest.importorskip("gpytorch")
    kernel = gpytorch.kernels.PeriodicKernel(ard_num_dims=2)
    options = {"kernel": kernel, "leaf_size": 50, "max_iter": 5, "weights": "posterior"}
    test_two_workers_find_what_one_process_finds(executor, rows, options)


def test_two_outputs_and_known_noise(executor, rows):
    X, y, X_test = rows
    Y = np.stack([y, np.cos(X[:, 0])], axis=1)
    noise = np.linspace(0, 0.1, len(X))
    options = {"kernel": "matern52", "leaf_size": 60, "random_state": 0, "max_iter": 8}
    local = DSMGPRegressor(**options).fit(X, Y, noise)
    far = DSMGPRegressor(executor=executor, **options).fit(X, Y, noise)
    same(far, local, X_test)


def test_weights_of_rows(executor, rows):
    X, y, X_test = rows
    weights = np.linspace(0.0, 3.0, len(X))
    options = {"kernel": "matern52", "leaf_size": 60, "random_state": 0, "max_iter": 8}
    local = DSMGPRegressor(**options).fit(X, y, sample_weight=weights)
    far = DSMGPRegressor(executor=executor, **options).fit(X, y, sample_weight=weights)
    same(far, local, X_test)
    for model in (local, far):
        model.partial_fit(X[:10], y[:10], sample_weight=np.full(10, 2.5)).forget([3, 5])
    same(far, local, X_test)


def test_joint_distributions_and_draws(executor, rows):
    X, y, X_test = rows
    options = {"kernel": "rbf", "leaf_size": 100, "random_state": 0}
    local = DSMGPRegressor(**options).fit(X, y)
    far = DSMGPRegressor(executor=executor, **options).fit(X, y)
    for one, other in zip(
        far.predict(X_test, return_cov=True), local.predict(X_test, return_cov=True), strict=True
    ):
        np.testing.assert_allclose(one, other, **EXACT)
    np.testing.assert_allclose(far.sample_y(X_test, 3), local.sample_y(X_test, 3), **EXACT)


def test_online_updates_and_finetuning(executor, rows):
    X, y, X_test = rows
    options = {"kernel": "rbf", "leaf_size": 100, "random_state": 0}
    local = DSMGPRegressor(**options).fit(X[:300], y[:300])
    far = DSMGPRegressor(executor=executor, **options).fit(X[:300], y[:300])
    for model in (local, far):
        model.partial_fit(X[300:310], y[300:310]).forget([3, 5])
    np.testing.assert_allclose(far.predict(X_test), local.predict(X_test), **EXACT)
    for model in (local, far):
        model.partial_fit(X[310:], y[310:])  # enough for a review
        assert model.adapted_
        model.finetune(max_iter=5)
    assert isinstance(far.state_.model.leaf_posterior, ShardedLeafPosterior)
    np.testing.assert_allclose(far.predict(X_test), local.predict(X_test), rtol=1e-7, atol=1e-7)


def test_files_pickles_and_copies_need_no_cluster(executor, rows, tmp_path):
    X, y, X_test = rows
    far = DSMGPRegressor("rbf", leaf_size=100, random_state=0, executor=executor).fit(X, y)
    expected = far.predict(X_test, return_std=True)
    far.save(tmp_path / "far.dsmgp")
    again = load(tmp_path / "far.dsmgp")
    np.testing.assert_allclose(again.predict(X_test, return_std=True), expected, **EXACT)
    for again in (pickle.loads(pickle.dumps(far)), copy.deepcopy(far)):
        assert not isinstance(again.state_.model.leaf_posterior, ShardedLeafPosterior)
        np.testing.assert_allclose(again.predict(X_test, return_std=True), expected, **EXACT)
    assert "leaves" in far.summary()
    if has_torch():
        assert far.to_gpytorch().train_inputs[0].shape[1] == 2


def test_threads_share_a_model_on_a_cluster(executor, rows):
    X, y, X_test = rows
    far = DSMGPRegressor("rbf", leaf_size=60, random_state=0, executor=executor).fit(X, y)
    tables = np.array_split(X_test, 12)
    before = executor.traffic.calls.get("predict", 0)
    expected = [far.predict(table, return_std=True) for table in tables]
    alone = executor.traffic.calls["predict"] - before
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda k: far.predict(tables[k % 12], return_std=True), range(96)))
    for k, answer in enumerate(found):
        np.testing.assert_array_equal(answer, expected[k % 12])
    assert executor.traffic.calls["predict"] - before == 9 * alone


@pytest.fixture
def killer(monkeypatch, executor):
    """Kills workers: call it with (worker, method, how many calls to let pass)."""
    orders, pids = [], executor.workers.process_ids
    send = RayWorkers._send

    def then_kill(self, number, method, arguments):
        reference = send(self, number, method, arguments)
        for order in orders:
            worker, wanted, left = order
            if method == wanted and self._worker_of[number] == worker:
                order[2] = left - 1
                if left == 0:
                    os.kill(pids[worker], signal.SIGKILL)
        return reference

    monkeypatch.setattr(RayWorkers, "_send", then_kill)
    return lambda *order: orders.append(list(order))


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_killed_while_learning(executor, rows, killer, worker, caplog):
    X, y, X_test = rows
    options = {"leaf_size": [40, 80], "kernel": "matern32", "random_state": 0}
    local = DSMGPRegressor(**options).fit(X, y)
    before = executor.workers.process_ids
    killer(worker, "gradient", 7)
    with caplog.at_level(logging.WARNING, "dsmgp"):
        far = DSMGPRegressor(executor=executor, **options).fit(X, y)
    assert "a Ray worker died" in caplog.text
    after = executor.workers.process_ids
    assert [a == b for a, b in zip(before, after, strict=True)] == [worker == 1, worker == 0]
    same(far, local, X_test)


@pytest.mark.parametrize(("worker", "method"), [(0, "predict"), (1, "predict"), (1, "condition")])
def test_a_worker_killed_when_leaves_are_conditioned(
    executor, rows, killer, worker, method, caplog
):
    X, y, X_test = rows
    options = {"leaf_size": [40, 80], "kernel": "matern32", "random_state": 0}
    local = DSMGPRegressor(**options).fit(X, y)
    killer(worker, method, 0)
    far = DSMGPRegressor(executor=executor, **options).fit(X, y)
    same(far, local, X_test)
    assert "a Ray worker died" in caplog.text


def test_a_call_that_kills_three_workers_fails(executor, rows, monkeypatch):
    X, y, _ = rows
    send = RayWorkers._send

    class Deadly:
        """Ends the process that reads it."""

        def __reduce__(self):
            return os._exit, (1,)

    def deadly(self, number, method, arguments):
        lethal = method == "squares" and number % 2
        return send(self, number, method, (Deadly(),) if lethal else arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RayWorkers, "_send", deadly)
        model = DSMGPRegressor("rbf", leaf_size=100, random_state=0, executor=executor)
        with pytest.raises(RuntimeError, match="3 Ray workers in a row died of the same work"):
            model.fit(X, y)
    assert not hasattr(model, "tree_")
    model.fit(X, y)  # with new workers


def test_rows_on_disk(executor, rows, tmp_path, monkeypatch):
    """The dataset of a folder, in shards of which each worker has several; one dies before it is called."""
    X, y, X_test = rows
    for name in ("LEAST_SAMPLE", "MOST_SAMPLE"):
        monkeypatch.setattr(dataset, name, 200)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(tmp_path / "rows.parquet")
    options = {"kernel": "rbf", "leaf_size": 40, "memory_limit": "500kB", "random_state": 0}
    local = DSMGPRegressor(**options).fit_dataset(tmp_path, target="y")
    far = DSMGPRegressor(executor=executor, **options).fit_dataset(tmp_path, target="y")
    assert len(far.state_.model.leaf_posterior.leaf_gps.shards) > 4
    os.kill(executor.workers.process_ids[0], signal.SIGKILL)
    test = pd.DataFrame(X_test, columns=["a", "b"])
    np.testing.assert_allclose(
        far.predict(test, return_std=True), local.predict(test, return_std=True), **EXACT
    )
    for name in ("near", "far"):
        model = {"near": local, "far": far}[name]
        model.predict_dataset(tmp_path / "rows.parquet", tmp_path / name, interval=0.9)
    assert_equal_tables(tmp_path / "near", tmp_path / "far")


def assert_equal_tables(one, other):
    """The same numbers, to the last bit."""
    pd.testing.assert_frame_equal(pd.read_parquet(one), pd.read_parquet(other), check_exact=True)


def test_workers_predict_datasets_by_a_model_in_memory(executor, rows, tmp_path, monkeypatch):
    X, y, X_test = rows
    monkeypatch.setattr("dsmgp.data.parquet.dataset.PIECE_ROWS", 10)
    frame, test = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(X_test, columns=["a", "b"])
    test.to_parquet(tmp_path / "rows.parquet", row_group_size=10)
    options = {"kernel": "rbf", "leaf_size": 100, "random_state": 0, "hypotheses": None}
    far = DSMGPRegressor(executor=executor, **options).fit(frame, y)
    assert far.predict_dataset(tmp_path / "rows.parquet", f"{tmp_path}/out/") == len(test)
    assert len(list((tmp_path / "out").iterdir())) == 6
    found = pd.read_parquet(tmp_path / "out")
    np.testing.assert_allclose(
        found.to_numpy().T, far.predict(test, return_std=True), rtol=1e-12, atol=1e-12
    )


def test_few_numbers_for_a_leaf_are_moved_while_learning(executor, rows):
    X, y, _ = rows
    X, y = np.tile(X, (2, 1)) + np.linspace(0, 1, 800)[:, None], np.tile(y, 2)
    traffic = executor.traffic
    before = copy.deepcopy(traffic)
    options = {"kernel": "rbf", "leaf_size": 50, "structure": "paper", "max_iter": 3}
    DSMGPRegressor(random_state=0, executor=executor, **options).fit(X, y)
    n_calls = traffic.calls["gradient"] - before.calls["gradient"]
    moved = sum(
        now["gradient"] - then["gradient"]
        for now, then in ((traffic.sent, before.sent), (traffic.received, before.received))
    )
    n_leaves = 800 / 25  # of the surrogate, at least; each has 4 hyperparameters and its evidence
    assert moved / n_calls < 8 * (5 * n_leaves + 20)


def test_warnings_and_errors_of_workers_reach_the_user(executor, rows):
    X, y, _ = rows
    kernel = Kernel((KernelTerm("rbf", [1e3, 1e3], 1.0),))
    options = {"kernel": kernel, "optimizer": None, "leaf_size": 50, "executor": executor}
    with pytest.warns(FactorisationWarning, match=r"covariance of leaf \d+ \(\d+ rows\)"):
        DSMGPRegressor(noise_variance=1e-19, random_state=0, **options).fit(X, y)


def test_one_death_is_one_replacement(executor, rows, killer, caplog):
    """However many calls the worker that died had before it."""
    X, y, X_test = rows
    options = {"leaf_size": 40, "kernel": "rbf", "random_state": 0}
    far = DSMGPRegressor(executor=executor, **options).fit(X, y)
    leaf_gps = far.state_.model.leaf_posterior.leaf_gps
    pool, shards = executor.workers, [leaf_gps.shards[0]] * 5
    expected = far.predict(X_test)
    os.kill(pool.process_ids[0], signal.SIGKILL)
    kernel_parameters = leaf_gps.parameters_by_shard(
        far.state_.model.leaf_posterior.kernel_parameters
    )[0]
    caplog.clear()
    answers = pool.call(shards, "log_evidence", lambda _: (kernel_parameters,))
    assert caplog.text.count("a Ray worker died") == 1
    assert all(np.array_equal(answer, answers[0]) for answer in answers)
    np.testing.assert_array_equal(far.predict(X_test), expected)


def test_a_machine_that_left_without_another_in_its_place_is_reported(executor, rows, monkeypatch):
    X, y, X_test = rows
    far = DSMGPRegressor("rbf", leaf_size=100, random_state=0, executor=executor).fit(X, y)
    expected = far.predict(X_test)
    with monkeypatch.context() as patch:
        patch.setattr(executor.workers, "wait_seconds", 0.005)
        patch.setattr(ray, "nodes", list)
        os.kill(executor.workers._processes[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="have room for 0 of 2 workers"):
            far.predict(X_test)
    np.testing.assert_array_equal(far.predict(X_test), expected)


def test_a_checkpoint_on_a_cluster(executor, rows, tmp_path, monkeypatch):
    X, y, X_test = rows
    options = {"leaf_size": [40, 80], "kernel": "rbf", "random_state": 0}
    local = DSMGPRegressor(**options).fit(X, y)
    call, seen = RayWorkers.call, {"n": 0}

    def cut_short(self, shards, method, arguments):
        seen["n"] += method == "gradient"
        if seen["n"] == 8:
            raise KeyboardInterrupt
        return call(self, shards, method, arguments)

    far = DSMGPRegressor(executor=executor, checkpoint=tmp_path / "fit.ckpt", **options)
    with monkeypatch.context() as patch:
        patch.setattr(RayWorkers, "call", cut_short)
        with pytest.raises(KeyboardInterrupt):
            far.fit(X, y)
    same(far.fit(X, y), local, X_test)


def test_a_cluster_without_room_says_so(executor):
    begun = time.monotonic()
    crowd = RayExecutor(n_workers=50, wait_seconds=0.5)
    with pytest.raises(
        RuntimeError, match=r"no room for 50 workers: 50 CPU asked for, .* free of 3"
    ):
        _ = crowd.workers
    greedy = RayExecutor(n_workers=1, resources_per_worker={"memory": 1e15}, wait_seconds=0.5)
    with pytest.raises(RuntimeError, match="1e\\+06 GB of memory asked for"):
        _ = greedy.workers
    assert time.monotonic() - begun < 10


def test_a_leaf_that_no_worker_can_hold_is_refused(executor, rows, monkeypatch):
    X, y, _ = rows
    nodes = [{**node, "Resources": {"memory": 1e6}} for node in ray.nodes()]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(MemoryError, match=r"would need .* for its largest leaf"):
        DSMGPRegressor(hypotheses=None, random_state=0, executor=executor).fit(X, y)


def test_gpus_are_asked_for_and_missed(executor):
    """The cluster claims to have one; torch does not find it."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match=r"could not start: .*no GPU was found by torch"):
        _ = RayExecutor(n_workers=1, resources_per_worker={"GPU": 1}).workers


def test_workers_use_the_cores_reserved_for_them_and_need_no_torch(executor, rows):
    X, y, X_test = rows
    with RayExecutor(n_workers=1) as another:
        options = {"kernel": "rbf", "leaf_size": 100, "random_state": 0}
        DSMGPRegressor(executor=another, **options).fit(X, y).predict(X_test)
        (actor,) = another.workers._actors
        seen = actor.__ray_call__.remote(lambda _: (n_threads(), "torch" in sys.modules))
        assert ray.get(seen) == (1, False)


@pytest.mark.parametrize(("inherited", "reserved"), [("1", 2), ("2", 1)])
def test_the_number_of_threads_does_not_depend_on_the_environment(inherited, reserved):
    script = (
        "from dsmgp.distributed.ray_actor import _set_n_threads; from dsmgp.linalg.threads import n_threads; "
        f"_set_n_threads({reserved}); print(n_threads())"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": inherited, "OPENBLAS_NUM_THREADS": inherited}
    printed = subprocess.check_output([sys.executable, "-c", script], env=environment)
    assert int(printed) == min(reserved, len(os.sched_getaffinity(0)))


def test_ray_by_its_name_joins_the_cluster_there_is(executor, rows):
    X, y, X_test = rows
    far = DSMGPRegressor("rbf", leaf_size=100, random_state=0, executor="ray").fit(X, y)
    assert len(default_executor().workers.process_ids) == 1  # that is what was free
    local = DSMGPRegressor("rbf", leaf_size=100, random_state=0).fit(X, y)
    same(far, local, X_test)
    default_executor().close()
    with pytest.raises(RuntimeError, match="were stopped"):
        far.predict(X_test)
