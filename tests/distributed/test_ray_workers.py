"""Workers on a cluster that grows, without one: what they do to other threads."""

import threading

import pytest

from dsmgp.distributed import ray_workers
from dsmgp.distributed.shard_cache import ShardStates


@pytest.fixture
def workers(monkeypatch):
    """One worker, on a cluster that has room for another."""
    found = object.__new__(ray_workers.RayWorkers)
    found.__dict__ |= {
        "resources": {"CPU": 1.0}, "_lock": threading.RLock(), "_growing": threading.Lock(), "_actors": ["first"],
        "_processes": ["its process"], "_worker_of": {}, "_states": ShardStates(),
    }  # fmt: skip
    monkeypatch.setattr(ray_workers, "capacity", lambda resources: 2)
    monkeypatch.setattr(ray_workers, "n_free_workers", lambda resources: 1)
    monkeypatch.setattr(found, "_new_actor", lambda: "second", raising=False)
    return found


def test_calls_go_on_while_workers_start(workers, monkeypatch):
    starts, may_start = threading.Event(), threading.Event()

    def ready(actors):
        starts.set()
        assert may_start.wait(10)
        return ["new process"]

    monkeypatch.setattr(workers, "_all_ready", ready, raising=False)
    thread = threading.Thread(target=workers.grow)
    thread.start()
    assert starts.wait(10)
    placed = threading.Thread(target=workers.place, args=([],))
    placed.start()
    placed.join(5)
    assert not placed.is_alive()
    workers.grow()  # by another thread: the worker is on its way
    assert workers.n_shards == 1
    may_start.set()
    thread.join()
    assert (workers._actors, workers._processes) == (["first", "second"], ["its process", "new process"])  # fmt: skip


def test_a_worker_that_does_not_start_is_tried_again(workers, monkeypatch):
    def late(actors):
        raise RuntimeError("late")

    monkeypatch.setattr(workers, "_all_ready", late, raising=False)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="late"):
            workers.grow()
    assert workers.n_shards == 1
