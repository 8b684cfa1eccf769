"""A pool of threads with one core each, and the number of threads that the user allows."""

import multiprocessing
import os
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dsmgp.linalg import threads
from dsmgp.linalg.threads import Threads, n_threads, one_thread, uninterrupted

N_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture
def without_torch(monkeypatch):
    """As in a process that has not loaded torch, or cannot."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def three_threads(monkeypatch):
    """As many as this, whatever the machine has."""
    monkeypatch.setattr(threads, "n_threads", lambda: 3)


def thread_names(function, items):
    return {
        name
        for name, _ in Threads().map(
            lambda x: (threading.current_thread().name, function(x)), items
        )
    }


def test_results_are_in_order_and_computed_in_the_pool(three_threads):
    assert Threads().map(lambda k: k**2, range(50)) == [k**2 for k in range(50)]
    assert thread_names(abs, range(20)) <= {"dsmgp_0", "dsmgp_1", "dsmgp_2"}
    assert Threads().map(abs, []) == []


def test_brief_work_and_work_on_a_gpu_stay_in_the_calling_thread(three_threads):
    here = threading.current_thread()
    for found in (
        Threads("cuda").map(lambda _: threading.current_thread(), [0, 1]),
        Threads("cuda:1").map(lambda _: threading.current_thread(), [0, 1]),
        Threads().map(lambda _: threading.current_thread(), [0, 1], brief=True),
    ):
        assert found == [here, here]
    for device in ("cpu", "cpu:0"):
        assert here not in Threads(device).map(lambda _: threading.current_thread(), [0])


def test_the_first_error_in_order_is_raised_and_the_pool_goes_on(three_threads):
    def fails(k):
        if k % 2:
            raise ValueError(f"item {k}")
        return k

    with pytest.raises(ValueError, match="item 1"):
        Threads().map(fails, range(9))
    assert Threads().map(fails, [0, 2]) == [0, 2]


def test_threads_of_a_pool_do_not_start_further_threads(without_torch, monkeypatch):
    monkeypatch.setattr(threads, "_n_cores", lambda: 3)
    monkeypatch.setattr(threads._BlasLimit, "outside", lambda self: 3)

    def nested(_):
        return n_threads(), Threads().map(lambda _: threading.current_thread(), [0, 1])

    outer = threading.current_thread()
    for number, (first, second) in Threads().map(nested, range(6)):
        assert number == 1
        assert first is second is not outer
    assert n_threads() == 3
    assert uninterrupted(n_threads) == 1


# How many


def test_without_limits_there_are_as_many_threads_as_cores(without_torch, monkeypatch):
    monkeypatch.setattr(threads, "_n_cores", lambda: 200)
    monkeypatch.setattr(threads._blas_limit, "settings", [(lambda: 64, None), (lambda: 128, None)])
    assert n_threads() == 200  # what OpenBLAS was built for is no limit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("3", 3),
        (" 2 ", 2),
        ("2,1", 2),
        ("9999", 6),
        ("0", 6),
        ("-1", 6),
        ("many", 6),
        ("", 6),
    ],
)
def test_the_openmp_variable_limits_threads(without_torch, monkeypatch, text, expected):
    monkeypatch.setattr(threads, "_n_cores", lambda: 6)
    monkeypatch.setattr(threads._BlasLimit, "outside", lambda self: sys.maxsize)
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert n_threads() == expected


def test_limits_on_blas_count_but_our_own_does_not(without_torch):
    before = n_threads()
    with threadpool_limits(1, user_api="blas"):
        assert n_threads() == 1
        with one_thread():
            assert n_threads() == 1
    with one_thread():
        assert n_threads() == before
    assert n_threads() == before


def in_new_process(code, **environment):
    """Words that a fresh interpreter prints."""
    limits = {name for name in os.environ if name.endswith("_NUM_THREADS")}
    kept = {name: value for name, value in os.environ.items() if name not in limits}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=kept | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


COUNT = """
import sys
from dsmgp.linalg.threads import Threads, n_threads
names = Threads().map(lambda k: __import__("threading").current_thread().name, range(9))
assert "torch" not in sys.modules
print(n_threads(), set(names) == {"MainThread"})
"""


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_environment_variables_limit_a_process_without_torch(name):
    assert in_new_process(COUNT, **{name: "1"}) == ["1", "True"]


def test_a_process_without_torch_uses_the_cores_it_may(monkeypatch):
    expected = ["True" if N_CORES == 1 else "False"]
    assert in_new_process(COUNT) == [str(N_CORES), *expected]


# Torch, if it is loaded


def test_a_torch_that_is_not_loaded_entirely_is_not_asked(without_torch, monkeypatch):
    before = n_threads()
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert n_threads() == before
    assert Threads().map(abs, [-1]) == [1]


def test_the_number_of_torch_counts_where_it_is_loaded():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert n_threads() == 3
        assert set(Threads().map(lambda _: torch.get_num_threads(), range(20))) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


LATE = """
import sys, threading
from dsmgp.linalg import threads

threads._n_cores = lambda: 3
threads._BlasLimit.outside = lambda self: 3
together = threading.Barrier(3)
def work(_):
    together.wait(30)  # so that each of three threads takes an item
    return sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 0

assert threads.Threads().map(work, range(3)) == [0, 0, 0]
import torch
torch.set_num_threads(3)
for _ in range(2):
    assert threads.Threads().map(work, range(3)) == [1, 1, 1]
fresh = []
thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
thread.start()
thread.join()
print(threads.n_threads(), torch.get_num_threads(), *fresh)
"""


def test_torch_has_one_core_in_a_pool_that_was_there_before_it():
    pytest.importorskip("torch")
    assert in_new_process(LATE) == ["3", "3", "3"]


# Forks


def test_a_forked_child_has_threads_of_its_own(three_threads):
    squares = [k**2 for k in range(9)]

    def work():
        assert Threads().map(lambda k: k**2, range(9)) == squares
        assert not threads._blas_limit.inside

    Threads().map(abs, range(9))
    with one_thread(), threads._pools_lock, threads._torch_lock:
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
    child.join(60)
    assert child.exitcode == 0


def test_all_libraries_of_numpy_and_scipy_are_limited():
    numbers = [number for number, _ in threads.blas_thread_settings()]
    with one_thread():
        assert [number() for number in numbers] == [1] * len(numbers)
        np.testing.assert_allclose(np.eye(3) @ np.ones(3), 1.0)
