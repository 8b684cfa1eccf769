"""Rows that Ray's object store has no room for go to disk, and come back when they are needed."""

import os
import signal
import warnings

import numpy as np
import pytest

from dsmgp import DSMGPRegressor

ray = pytest.importorskip("ray")

from dsmgp.ray import RayExecutor  # noqa: E402

# The least that Ray takes.
STORE_BYTES = 75 * 2**20


@pytest.fixture
def small_store(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=STORE_BYTES,
            _system_config={"object_spilling_directory": str(tmp_path), "worker_niceness": 0},
        )
        yield tmp_path
        ray.shutdown()


@pytest.mark.slow
def test_rows_that_were_spilled_give_the_same_predictions(small_store, rng):
    X = rng.uniform(-2, 2, size=(5000, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=len(X))
    options = {"kernel": "rbf", "optimizer": None, "leaf_size": 50, "structure": "paper"}
    options |= {"random_state": 0, "hypotheses": None, "weights": "posterior"}
    expected = DSMGPRegressor(**options).fit(X, y).predict(X[:100], return_std=True)
    # Three times as much as the store holds, before the rows come and after them.
    others = [ray.put(np.full(STORE_BYTES // 16, float(k))) for k in range(3)]
    with RayExecutor(n_workers=2) as executor:
        model = DSMGPRegressor(executor=executor, **options).fit(X, y)
        others += [ray.put(np.full(STORE_BYTES // 16, float(k))) for k in range(3, 6)]
        for pid in executor.workers.process_ids:
            os.kill(pid, signal.SIGKILL)  # leaves are built again, from rows that may be on disk
        found = model.predict(X[:100], return_std=True)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert [ray.get(other)[0] for other in others] == list(range(6))
    spilled = sum(path.stat().st_size for path in small_store.rglob("*") if path.is_file())
    assert spilled > STORE_BYTES
