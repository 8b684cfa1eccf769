"""Executors: any object with the methods of the protocol serves, and any other is refused with what it lacks."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.distributed import Executor, LocalExecutor
from dsmgp.distributed.sharded import balanced


class Counting:
    """An executor of a user's own, which counts how often leaves are set up."""

    def __init__(self):
        self.inner, self.n_calls = LocalExecutor(), 0

    def leaf_device(self, device):
        return self.inner.leaf_device(device)

    def worker_pool(self, memory, device):
        return self.inner.worker_pool(memory, device)

    def leaf_gps(self, *arguments, **named):
        self.n_calls += 1
        return self.inner.leaf_gps(*arguments, **named)


class Former:
    """An executor with the methods of version 0.1."""

    def home(self, device): ...

    def works_on(self, device): ...

    def hosts(self, memory, device): ...

    def experts(self, *arguments): ...

    def condition(self, *arguments): ...


@pytest.fixture
def rows(rng):
    X = rng.uniform(size=(40, 2))
    return X, np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=40)


def test_an_executor_of_a_users_own_computes_the_leaves(rows):
    X, y = rows
    executor = Counting()
    assert isinstance(executor, Executor)
    settings = {"kernel": "rbf", "random_state": 0, "max_iter": 3}
    model = DSMGPRegressor(executor=executor, **settings).fit(X, y)
    assert executor.n_calls > 0
    np.testing.assert_array_equal(model.predict(X), DSMGPRegressor(**settings).fit(X, y).predict(X))


@pytest.mark.parametrize("wrong", ["spark", 3])
def test_anything_else_is_refused(rows, wrong):
    with pytest.raises(ValueError, match="expected executor to be"):
        DSMGPRegressor(executor=wrong).fit(*rows)


def test_renamed_methods_are_named_in_the_error(rows):
    with pytest.raises(
        ValueError,
        match="rename works_on to leaf_device, hosts to worker_pool, experts to leaf_gps",
    ):
        DSMGPRegressor(executor=Former()).fit(*rows)


def test_an_error_names_the_methods_that_are_missing(rows):
    executor = Counting()
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Counting, "worker_pool")
        with pytest.raises(ValueError, match=r"which lacks worker_pool$"):
            DSMGPRegressor(executor=executor).fit(*rows)


def test_work_is_dealt_out_evenly():
    sizes = np.random.default_rng(0).integers(1, 300, size=500)
    parts = balanced(sizes, 4)
    assert sorted(np.concatenate(parts).tolist()) == list(range(500))
    loads = [float((sizes[part].astype(float) ** 3).sum()) for part in parts]
    assert max(loads) / min(loads) < 1.02
    assert [len(part) for part in balanced(np.array([5, 5]), 4)] == [1, 1]
