"""Ctrl-C at any moment, and memory that is short: the estimator is as it was, or whole, and so is the process."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

import dsmgp
from dsmgp import DSMGPRegressor
from dsmgp._util.machine import has_torch
from dsmgp.linalg import threads
from dsmgp.progress import active_listeners


def interrupted(call, delay):
    """Whether a call was cut short by a signal that came after so many seconds, as Ctrl-C is one."""

    def handle(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def state_of_process():
    settings = [n_threads() for n_threads, _ in threads.blas_thread_settings()]
    if has_torch():
        import torch

        settings += [torch.get_num_threads(), torch.get_default_dtype()]
    return settings


@pytest.fixture(scope="module")
def fitted_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(80, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=80)


def fresh(rows):
    X, y = rows
    model = DSMGPRegressor("matern32", leaf_size=20, sum_children=2, max_iter=3, random_state=0)
    return model.fit(X[:60], y[:60])


# An interrupt that falls into a finaliser cannot be raised there: Python prints it and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CALLS = {
    "fit": lambda model, X, y: model.fit(X[10:], y[10:]),
    "partial_fit": lambda model, X, y: model.partial_fit(X[60:], y[60:]),
    "forget": lambda model, X, y: model.forget(np.arange(15)),
    "finetune": lambda model, X, y: model.finetune(max_iter=2),
    "finetune all": lambda model, X, y: model.finetune(max_iter=1, parameters="all", rounds=1),
    "predict": lambda model, X, y: model.predict(X, return_std=True),
    "summary": lambda model, X, y: model.summary(),
}


CHANGE_NOTHING = ("predict", "summary")


@pytest.mark.parametrize("n", [4, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_moment_leaves_the_estimator_as_it_was_or_complete(
    name, n, fitted_rows
):
    X, y = fitted_rows
    call, model = CALLS[name], fresh(fitted_rows)
    before, other = model.predict(X), fresh(fitted_rows)
    call(fresh(fitted_rows), X, y)  # code is loaded
    took = seconds(lambda: call(other, X, y))
    after, process = other.predict(X), state_of_process()
    for delay in np.random.default_rng(len(name)).uniform(1e-5, took, size=n).tolist():
        attributes = dict(vars(model))
        cut_short = interrupted(partial(call, model, X, y), delay)
        assert state_of_process() == process
        assert not active_listeners()
        assert not threads._blas_limit.inside
        if not cut_short:
            np.testing.assert_allclose(model.predict(X), after, rtol=1e-9)
            model = fresh(fitted_rows)
            continue
        if name not in CHANGE_NOTHING and vars(model) != attributes:
            # The interrupt fell between the one assignment that ends the call and its return: the change is complete.
            np.testing.assert_allclose(model.predict(X), after, rtol=1e-9)
            model = fresh(fitted_rows)
            continue
        np.testing.assert_allclose(model.predict(X), before, rtol=1e-9)
    call(model, X, y)  # and what was interrupted can be done after all
    np.testing.assert_allclose(model.predict(X), after, rtol=1e-9)


@pytest.mark.parametrize("n", [4, pytest.param(150, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_moment_of_saving_leaves_a_whole_file(n, fitted_rows, tmp_path):
    X, _ = fitted_rows
    model, path = fresh(fitted_rows), tmp_path / "model.dsmgp"
    model.save(path)
    old, took = path.read_bytes(), seconds(lambda: model.save(path))
    for delay in np.random.default_rng(0).uniform(1e-5, took, size=n).tolist():
        interrupted(lambda: model.save(path), delay)
        assert path.read_bytes() == old
        assert [p.name for p in tmp_path.iterdir()] == ["model.dsmgp"]
    np.testing.assert_array_equal(dsmgp.load(path).predict(X), model.predict(X))


def test_an_interrupt_at_any_evaluation_leaves_the_estimator_as_it_was(fitted_rows, monkeypatch):
    """As a signal does that comes while the evidence is computed."""
    from dsmgp.experts.leaf_gps import InMemoryLeafGPs

    X, y = fitted_rows
    evaluate, model = InMemoryLeafGPs.log_evidence_and_gradient, fresh(fitted_rows)
    before, state = model.predict(X), dict(vars(model))
    for at in (1, 2, 4):
        count = iter(range(1, 10_000))

        def cut_short(self, *given, count=count, at=at, **named):
            if next(count) == at:
                raise KeyboardInterrupt
            return evaluate(self, *given, **named)

        monkeypatch.setattr(InMemoryLeafGPs, "log_evidence_and_gradient", cut_short)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
        assert vars(model) == state
        np.testing.assert_array_equal(model.predict(X), before)
    monkeypatch.undo()


TWO_THREADS = os.environ | {"OMP_NUM_THREADS": "2"}

SIGNALLED = """
import os, signal, sys, threading, time
import numpy as np
from dsmgp import DSMGPRegressor
from dsmgp.linalg import threads

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have this run with Ctrl-C ignored
if sys.argv[2] == "with torch":
    import torch
n_threads = threads.n_threads()
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(400, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=400)
def fresh():
    return DSMGPRegressor("matern32", leaf_size=50, sum_children=2, max_iter=4, random_state=0).fit(X[:300], y[:300])
calls = [
    lambda m: m.fit(X, y),
    lambda m: m.partial_fit(X[300:], y[300:]),
    lambda m: m.finetune(max_iter=3),
]
model = fresh()
took, after = [], []
for call in calls:
    other = fresh()
    start = time.perf_counter(); call(other); took.append(time.perf_counter() - start)
    after.append(other.predict(X))
expected, n_interrupted = model.predict(X), 0
blas = [n() for n, _ in threads.blas_thread_settings()]
for round in range(int(sys.argv[1])):
    for call, seconds, changed in zip(calls, took, after):
        delay = float(rng.uniform(0.0, 1.2 * seconds))
        done = threading.Event()
        def interrupt():
            if not done.wait(delay):
                os.kill(os.getpid(), signal.SIGINT)
        other = threading.Thread(target=interrupt)
        try:
            other.start()  # which may be interrupted, too
            call(model)
        except KeyboardInterrupt:
            n_interrupted += 1
        finally:
            try:
                done.set(); other.join()
            except KeyboardInterrupt:
                done.set(); other.join()
        told = model.predict(X)
        if np.allclose(told, changed, rtol=1e-9):  # it was done, if only just
            model = fresh()
        else:
            np.testing.assert_allclose(told, expected, rtol=1e-9)
        assert [n() for n, _ in threads.blas_thread_settings()] == blas
        assert threads.n_threads() == n_threads
print("interrupted", n_interrupted)
"""


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 60])
@pytest.mark.parametrize("loaded", ["with torch", "without torch"])
def test_a_real_ctrl_c_leaves_the_estimator_as_it_was(n, loaded):
    if loaded == "with torch":
        pytest.importorskip("torch")
    code = [sys.executable, "-W", "ignore", "-c", SIGNALLED, str(n), loaded]
    done = subprocess.run(code, capture_output=True, text=True, env=TWO_THREADS)
    assert done.returncode == 0, done.stderr
    word, n_interrupted = done.stdout.split()
    assert word == "interrupted"
    assert int(n_interrupted) > 0 or n == 2  # of two rounds none may be in time


LIMITED = """
import resource, sys
import numpy as np
from dsmgp import DSMGPRegressor

rng = np.random.default_rng(0)
X = rng.uniform(size=(12000, 3))
y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=12000)
options = dict(kernel="matern32", noise_variance=0.05, optimizer=None, leaf_size=400, random_state=0, dtype=sys.argv[2])
DSMGPRegressor(**options).fit(X[:300], y[:300]).predict(X[:10], return_std=True)  # code is loaded, threads are there
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
# Factors of all leaves take 16 partitions x 12000 rows x 270 x 8 bytes, 400 MB; room is left for 250 MB in all.
resource.setrlimit(resource.RLIMIT_AS, (used + 250_000_000, resource.RLIM_INFINITY))
model = DSMGPRegressor(**options, sum_children=16, memory_limit=sys.argv[1] if sys.argv[1] != "none" else None)
mean, std = model.fit(X, y).predict(X[:500], return_std=True)
assert np.isfinite(mean).all() and (std > 0).all()
print(float(mean.sum()))
"""


def limited(memory_limit, dtype="float64"):
    code = [sys.executable, "-W", "ignore", "-c", LIMITED, memory_limit, dtype]
    return subprocess.run(code, capture_output=True, text=True, timeout=300, env=TWO_THREADS)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_memory_limit_holds_where_the_system_grants_no_more(dtype):
    if dtype == "float32":
        pytest.importorskip("torch")
    done = limited("60MB", dtype)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) != 0.0


@pytest.mark.slow
def test_without_the_limit_the_same_fit_would_need_more():
    """So the test above tests something; what comes is an error, no crash."""
    done = limited("none")
    assert done.returncode == 1
    assert "MemoryError" in done.stderr or "memory" in done.stderr.lower()


def test_signals_are_left_to_whoever_has_them(fitted_rows):
    before = signal.getsignal(signal.SIGINT)
    fresh(fitted_rows).finetune(max_iter=1)
    assert signal.getsignal(signal.SIGINT) is before
