"""Shards in memory: threads share them, each is built by one thread, and all together stay within the limit."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsmgp._util.ragged import Ragged
from dsmgp.distributed.shard import ShardData, ShardPlan
from dsmgp.distributed.shard_cache import (
    ShardCache,
    ShardCaches,
    ShardLimit,
    ShardState,
    ShardStates,
)
from dsmgp.experts.leaf_data import LeafData
from dsmgp.gp.leaf_kernels import StationaryKernel

KERNEL = StationaryKernel("rbf", (0, 1), "constant")
PARAMETERS = [np.array([0.8, 1.2, 1.0, 0.1, 0.05])]


class Loader:
    """Returns rows, and counts how often, and how many loads run at once."""

    lock = threading.Lock()

    def __init__(self, seed, seconds=0.0):
        rng = np.random.default_rng(seed)
        X, Y = rng.normal(size=(20, 2)), rng.normal(size=(20, 1))
        rows = Ragged.of([np.arange(20)])
        self.data, self.seconds = ShardData(np.arange(20), rows, LeafData(X, Y)), seconds
        self.n_loads, self.fails = 0, False

    def __call__(self):
        with self.lock:
            self.n_loads += 1
        time.sleep(self.seconds)
        if self.fails:
            raise OSError("gone")
        return self.data


def plan(loader, n_bytes=1.0):
    return ShardPlan(loader, np.array([0]), [[KERNEL]], 1e9, "cpu", "float64", n_bytes)


def predict(cache, states, number, X):
    ends = np.array([0, len(X)])
    leaf, row = np.array([0]), np.arange(len(X))
    return cache.call(number, states[number], "predict", 7, leaf, row, ends, X, True)


@pytest.fixture
def shards():
    """Six shards of one byte each, of which two fit; all conditioned under the key 7."""
    states, loaders = ShardStates(), [Loader(k) for k in range(6)]
    numbers = states.add([plan(loader) for loader in loaders])
    for number in numbers:
        states.condition(number, (7, PARAMETERS, 1e9))
    return states, loaders, numbers


def test_threads_get_the_answers_of_one_thread_within_the_memory(shards, rng):
    states, _, numbers = shards
    X = rng.normal(size=(3, 2))
    expected = [predict(ShardCache(), states, number, X) for number in numbers]
    cache = ShardCache(memory=2.0)

    def ask(k):
        return predict(cache, states, numbers[k % 6], X)

    with ThreadPoolExecutor(8) as threads:
        for k, answer in enumerate(threads.map(ask, range(300))):
            np.testing.assert_array_equal(answer, expected[k % 6])
    assert cache.most_bytes == 2.0


def test_a_shard_is_built_once_however_many_threads_ask(rng):
    states, loader = ShardStates(), Loader(0, seconds=0.05)
    (number,) = states.add([plan(loader)])
    cache = ShardCache()
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda _: cache.call(number, states[number], "squares", PARAMETERS), range(8)
            )
        )
    assert loader.n_loads == 1


def test_a_shard_in_use_stays_and_one_that_needs_room_waits(shards):
    states, _, numbers = shards
    cache, got_room = ShardCache(memory=1.0), threading.Event()

    def other():
        with cache.lease(numbers[1], states[numbers[1]]):
            got_room.set()

    thread = threading.Thread(target=other)
    with cache.lease(numbers[0], states[numbers[0]]) as shard:
        thread.start()
        assert not got_room.wait(0.1)
        assert shard.posteriors  # still there
    assert got_room.wait(10)
    thread.join()
    assert cache.most_bytes == 1.0
    assert numbers[0] not in cache


def test_a_shard_larger_than_the_memory_is_held_alone():
    states = ShardStates()
    numbers = states.add([plan(Loader(0), 10.0), plan(Loader(1), 10.0)])
    cache = ShardCache(memory=1.0)
    for number in numbers:
        with cache.lease(number, states[number]):
            pass
    assert cache.most_bytes == 10.0


def test_a_shard_that_cannot_be_built_leaves_no_trace(shards):
    states, loaders, numbers = shards
    loaders[0].fails, loaders[0].seconds = True, 0.05
    cache = ShardCache(memory=1.0)

    def ask(k):
        with pytest.raises(OSError, match="gone"):
            cache.call(numbers[0], states[numbers[0]], "squares", PARAMETERS)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(8)))
    assert numbers[0] not in cache
    loaders[0].fails = False
    cache.call(numbers[0], states[numbers[0]], "squares", PARAMETERS)


def test_states_are_replaced_never_changed(shards):
    states, _, numbers = shards
    before = states[numbers[0]]
    states.condition(numbers[0], (8, PARAMETERS, 1e9))
    after = states[numbers[0]]
    states.drop(numbers[0], 7)
    assert [sorted(s.conditioned) for s in (before, after, states[numbers[0]])] == [
        [7],
        [7, 8],
        [8],
    ]
    states.remove(numbers[0])
    states.drop(numbers[0], 8)  # a posterior may outlive its shard
    with pytest.raises(KeyError):
        states[numbers[0]]
    assert isinstance(before, ShardState)


def test_each_model_has_a_memory_of_its_own(shards, rng):
    states, loaders, numbers = shards
    caches, X = ShardCaches(fetch=lambda value: value), rng.normal(size=(3, 2))
    small, large = ShardLimit(1, 1.0), ShardLimit(2, 4.0)

    def ask(limit, number):
        leaf, row, ends = np.array([0]), np.arange(3), np.array([0, 3])
        caches.call(limit, number, states[number], "predict", 7, leaf, row, ends, X, True)

    for _ in range(2):
        for number in numbers[:2]:
            ask(small, number)
        for number in numbers[2:]:
            ask(large, number)
    assert [loader.n_loads for loader in loaders] == [2, 2, 1, 1, 1, 1]
    assert caches.of_group[1].most_bytes == 1
    for number in numbers[2:]:
        caches.remove(number)
    assert list(caches.of_group) == [1]
