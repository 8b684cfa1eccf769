"""Faults that benchmarks/soak.py puts into its use of a model, and what has to hold after each: the model predicts what it did before, bit for bit.

Every function takes a generator and an empty folder, and raises AssertionError if something is wrong.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

import dsmgp
from dsmgp import DSMGPRegressor
from dsmgp.ray import RayExecutor
from harness import on_gpu

OPTIONS = {"kernel": "rbf", "leaf_size": 60, "max_iter": 5, "random_state": 0}
# A file may have so many bytes on the full disk.
FULL_AT = 4096


def rows(rng: np.random.Generator, n: int) -> pd.DataFrame:
    X = rng.uniform(-2, 2, size=(n, 2))
    y = np.sin(2 * X[:, 0]) + np.abs(X[:, 1]) + 0.1 * rng.normal(size=n)
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})


def answers(model: DSMGPRegressor, frame: pd.DataFrame) -> np.ndarray:
    return np.array(model.predict(frame[["a", "b"]][:30], return_std=True))


@contextmanager
def full_disk() -> Iterator[None]:
    """Let writes fail beyond a few kilobytes of a file, as on a disk without room."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_AT, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def disk_is_full(rng: np.random.Generator, folder: Path) -> None:
    """Saving, fitting to a dataset and predicting one fail with an error, and leave what was there."""
    frame = rows(rng, 300)
    frame.to_parquet(folder / "rows.parquet")
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder / "rows.parquet", target="y")
    expected = answers(model, frame)
    model.save(folder / "model")
    there = {path.name for path in folder.iterdir()}
    in_memory = DSMGPRegressor(**OPTIONS).fit(frame[["a", "b"]], frame["y"])
    in_memory.save(folder / "memory.dsmgp")
    failing: list[Callable[[], object]] = [
        lambda: in_memory.save(folder / "memory.dsmgp"),
        lambda: model.predict_dataset(folder / "rows.parquet", folder / "out.parquet"),
        lambda: DSMGPRegressor(**OPTIONS).fit_dataset(
            folder / "rows.parquet", target="y", store=folder / "other"
        ),
    ]
    for call in failing:
        try:
            with full_disk():
                call()
        except (OSError, dsmgp.ModelFileError):
            continue
        raise AssertionError("a full disk went unnoticed")
    assert {path.name for path in folder.iterdir()} - {"other"} == there | {"memory.dsmgp"}
    for each in (model, dsmgp.load(folder / "model")):
        np.testing.assert_array_equal(answers(each, frame), expected)
    again = answers(dsmgp.load(folder / "memory.dsmgp"), frame)
    np.testing.assert_allclose(again, answers(in_memory, frame), rtol=1e-9)


def interrupted(rng: np.random.Generator, folder: Path) -> None:
    """A signal that raises at any time of an update, a fit or a prediction leaves the model as it was before the call, or as it is after."""
    frame = rows(rng, 400)
    X, y = frame[["a", "b"]], frame["y"]
    model = DSMGPRegressor(**OPTIONS).fit(X[:300], y[:300])

    def raised(*_: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, raised)
    calls: list[Callable[[], object]] = [
        lambda: model.predict(X),
        lambda: model.partial_fit(X[300:350], y[300:350]),
        lambda: model.fit(X[:300], y[:300]),
        lambda: model.save(folder / "model.dsmgp"),
    ]
    try:
        for call in calls:
            n_rows, before = model.state_.model.n_rows, answers(model, frame)
            try:
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(0.0005, 0.05)))
                call()
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if model.state_.model.n_rows == n_rows:
                np.testing.assert_allclose(answers(model, frame), before, rtol=1e-9)
            assert np.isfinite(answers(model, frame)).all()
    finally:
        signal.signal(signal.SIGALRM, handler)


def killed(rng: np.random.Generator, folder: Path) -> None:
    """A process that is killed while it fits goes on from its checkpoint, to the same result."""
    frame = rows(rng, 600)
    frame.to_parquet(folder / "rows.parquet")
    script = (
        "import sys, pandas as pd; from dsmgp import DSMGPRegressor; frame = pd.read_parquet(sys.argv[1]); "
        "model = DSMGPRegressor('matern32', leaf_size=60, random_state=0, checkpoint=sys.argv[2]); print('begun', flush=True); "
        "model.fit(frame[['a', 'b']], frame['y']); print(repr(model.log_marginal_likelihood_))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(folder / "rows.parquet")]
    whole = DSMGPRegressor("matern32", leaf_size=60, random_state=0)
    whole.fit(frame[["a", "b"]], frame["y"])
    first = subprocess.Popen(
        [*command, str(folder / "fit.ckpt")], stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    first.stdout.readline()
    try:
        first.wait(float(rng.uniform(0.01, 1.0)))
    except subprocess.TimeoutExpired:
        first.kill()
        first.wait()
    first.stdout.close()
    done = subprocess.check_output([*command, str(folder / "fit.ckpt")], text=True)
    assert float(done.splitlines()[-1]) == whole.log_marginal_likelihood_


def threads_mixed(rng: np.random.Generator, folder: Path) -> None:
    """Threads that predict while rows are added and removed get the predictions of one of the states, never of a mixture of them."""
    frame = rows(rng, 400)
    X, y = frame[["a", "b"]], frame["y"]
    model = DSMGPRegressor(**OPTIONS).fit(X[:300], y[:300])
    states, stop = [answers(model, frame)], threading.Event()

    def ask(_: int) -> list[np.ndarray]:
        found = []
        while not stop.is_set():
            found.append(answers(model, frame))
        return found

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, k) for k in range(4)]
        try:
            for k in range(5):
                model.partial_fit(X[300 + 10 * k : 310 + 10 * k], y[300 + 10 * k : 310 + 10 * k])
                states.append(answers(model, frame))
                model.forget(model.row_ids_[:5])
                states.append(answers(model, frame))
        finally:
            stop.set()
        for each in asked:
            for found in each.result():
                assert any(np.allclose(found, state, rtol=1e-9, atol=1e-12) for state in states)


@cache
def ray_executor() -> RayExecutor:
    """Return two workers on a cluster of this process."""
    return RayExecutor("local", n_workers=2)


def worker_killed(rng: np.random.Generator, folder: Path) -> None:
    """Ray workers that are killed are replaced, and the model predicts what it would in one process."""
    frame, executor = rows(rng, 400), ray_executor()
    local = DSMGPRegressor(**OPTIONS).fit(frame[["a", "b"]], frame["y"])
    far = DSMGPRegressor(executor=executor, **OPTIONS).fit(frame[["a", "b"]], frame["y"])
    for pid in executor.workers.process_ids:
        os.kill(pid, signal.SIGKILL)
    np.testing.assert_allclose(answers(far, frame), answers(local, frame), rtol=1e-9, atol=1e-9)


def gpu_shared(rng: np.random.Generator, folder: Path) -> None:
    """Two processes fit on one GPU at the same time, to the result of one."""
    frame = rows(rng, 600)
    frame.to_parquet(folder / "rows.parquet")
    script = (
        "import sys, pandas as pd; from dsmgp import DSMGPRegressor; frame = pd.read_parquet(sys.argv[1]); "
        "model = DSMGPRegressor('rbf', leaf_size=60, max_iter=5, random_state=0, device='cuda'); "
        "model.fit(frame[['a', 'b']], frame['y']); print(repr(model.log_marginal_likelihood_))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(folder / "rows.parquet")]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    model = DSMGPRegressor(device="cuda", **OPTIONS).fit(frame[["a", "b"]], frame["y"])
    printed, _ = other.communicate()
    assert other.returncode == 0
    np.testing.assert_allclose(float(printed), model.log_marginal_likelihood_, rtol=1e-9)


Fault = Callable[[np.random.Generator, Path], None]
#: By name.
FAULTS: dict[str, Fault] = {
    "full disk": disk_is_full,
    "interrupts": interrupted,
    "mixed threads": threads_mixed,
    "killed process": killed,
    "killed Ray worker": worker_killed,
    "shared GPU": gpu_shared,
}


def possible_faults(quick: bool) -> dict[str, Fault]:
    """Return those that this machine can have; in a quick run those that start no processes."""
    possible = {"full disk", "interrupts", "mixed threads"}
    if not quick:
        possible |= {"killed process"}
        possible |= {"killed Ray worker"} if find_spec("ray") is not None else set()
        possible |= {"shared GPU"} if on_gpu() else set()
    # Last ones first: libraries that they load are in memory before it is compared.
    return {name: FAULTS[name] for name in reversed(FAULTS) if name in possible}
