"""Predictions as users wait for them, at this commit and at another: rows per second, single rows, eight threads.

    python benchmarks/serving.py [--against COMMIT|FOLDER] [--rounds 5] [--n-test 20000] [--processor] [--quick] [--results FILE]

Each commit fits models to the same rows with the same settings, and both run every job in turn, so that a busy moment of the machine hits both alike;
the first round warms up. The ratio is the median over rounds of this commit's speed over the other's. A cold batch is the first that a
copy of the model predicts. Jobs of fresh processes count all of their seconds, import included: 50 rows from a model file of 45,000 rows, and the
demo. Peers run in this process, in the same minutes. With --processor speeds are per second of the processor, all cores together, for a machine that is busy with other work; threads are
compared by the clock all the same. Standard deviations are compared with exact ones (``variances="exact"``). Results are kept in benchmarks/results/serving.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from dsmgp import DSMGPRegressor
from harness import (
    Ask,
    in_turn,
    new_over_old,
    results_path,
    serve,
    setting,
    table,
    two_commits,
    write_report,
)

BASELINE = "a11b467"
COLUMNS = {
    "model": "model", "job": "asked for", "old": "old", "new": "new", "ratio": "times as fast", "low": "lowest", "high": "highest", "note": "",
}  # fmt: skip
PEERS = {"peer": "peer", "job": "asked for", "speed": "value"}
N_SINGLE, N_THREADS = 200, 8
# Rows that a fresh process predicts from a model file.
N_FROM_FILE = 50
FROM_FILE = f"""
import sys
import numpy as np
import dsmgp
X = np.random.default_rng(2).uniform(-1.0, 1.0, size=({N_FROM_FILE}, 4))
dsmgp.load(sys.argv[1]).predict(X, return_std=True)
"""
Clock = Callable[[], float]


def rows(n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four inputs: smooth, faster in some places than in others, noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(n_rows, 4))
    f = np.sin(4.0 * X[:, 0] * np.exp(X[:, 1])) + np.tanh(6.0 * (X[:, 2] + 0.5 * X[:, 3]))
    return X, f + 0.1 * rng.normal(size=n_rows)


MODELS: dict[str, tuple[int, dict[str, object]]] = {
    "3,000 rows, defaults": (3000, {}),
    "20,000 rows, M=500, 8 partitions": (20_000, {"leaf_size": 500, "sum_children": 8}),
}
FILE_MODEL = "a file of 45,000 rows"
FILES: dict[str, tuple[int, dict[str, object]]] = {FILE_MODEL: (45_000, {})}
# More rows than fits of several hypotheses take, which the old commit does not know.
QUICK = {"600 rows, defaults": (600, {"max_iter": 5})}
QUICK_FILES = {"a file of 700 rows": (700, {"max_iter": 5})}


def predict_many(model: DSMGPRegressor, X: np.ndarray, clock: Clock, std: bool) -> dict:
    start = clock()
    model.predict(X, return_std=std)
    return {"speed": len(X) / (clock() - start)}


def predict_cold(model: DSMGPRegressor, X: np.ndarray, clock: Clock) -> dict:
    return predict_many(model, X, clock, True)


def predict_single(model: DSMGPRegressor, X: np.ndarray, clock: Clock) -> dict:
    spent = []
    for k in range(N_SINGLE):
        start = clock()
        model.predict(X[k : k + 1], return_std=True)
        spent.append(clock() - start)
    milliseconds = 1e3 * np.quantile(spent, [0.5, 0.99])
    return {"speed": 1.0 / statistics.median(spent), "ms": milliseconds.round(3).tolist()}


def predict_threads(model: DSMGPRegressor, X: np.ndarray, clock: Clock) -> dict:
    # By the clock on the wall in any case: that threads run side by side is the point.
    def ask(k: int) -> tuple[float, float]:
        mean, std = model.predict(X[k : k + 1], return_std=True)
        return float(mean[0]), float(std[0])

    start = time.perf_counter()
    alone = [ask(k) for k in range(N_SINGLE)]
    one = N_SINGLE / (time.perf_counter() - start)
    with ThreadPoolExecutor(N_THREADS) as pool:
        start = time.perf_counter()
        answers = list(pool.map(ask, range(N_SINGLE)))
        speed = N_SINGLE / (time.perf_counter() - start)
    return {"speed": speed, "over_one": speed / one, "identical": answers == alone}


def accuracy(model: DSMGPRegressor, X: np.ndarray, clock: Clock) -> dict:
    """The largest and the median relative error of the standard deviation."""
    X = X[:4000]
    model.predict(X, return_std=True)
    std = model.predict(X, return_std=True)[1]
    exact = model.set_params(variances="exact").predict(X, return_std=True)[1]
    model.set_params(variances="auto")
    error = np.abs(std / exact - 1.0)
    text = f"std off by {error.max():.1e} at most, {np.median(error):.0e} in the median"
    return {"accuracy": text}


def fresh_process(command: list[str], processor: bool) -> dict:
    """Run a command in a process of its own; its seconds, as rounds per second."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(
        [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir()
    )
    seconds, after = time.perf_counter() - start, os.times()
    if processor:
        seconds = after.children_user - before.children_user
        seconds += after.children_system - before.children_system
    return {"speed": 1.0 / seconds}


ACCURACY, COLD, DEMO = "accuracy", "rows/s, mean and std, cold", "demo"
IN_FILE = f"{N_FROM_FILE} rows in a fresh process"
JOBS: dict[str, Callable[[DSMGPRegressor, np.ndarray, Clock], dict]] = {
    COLD: predict_cold,
    "rows/s, mean and std": partial(predict_many, std=True),
    "rows/s, mean": partial(predict_many, std=False),
    "single rows/s": predict_single,
    "single rows/s, 8 threads": predict_threads,
}


def served() -> Callable[[dict], dict]:
    """Return a function that fits a model, unless it has, and runs a job on it."""
    fitted: dict[str, DSMGPRegressor] = {}
    unused: dict[str, bytes] = {}
    folder = tempfile.TemporaryDirectory()

    def run(task: dict) -> dict:
        name, job = task["model"], task["job"]
        if job == DEMO:
            return fresh_process(["-m", "dsmgp.demo"], task["processor"])
        if name not in fitted:
            fitted.clear()
            n_rows, settings = (MODELS | FILES | QUICK | QUICK_FILES)[name]
            fitted[name] = DSMGPRegressor(random_state=0, **settings).fit(*rows(n_rows))
            unused[name] = pickle.dumps(fitted[name])
            fitted[name].save(Path(folder.name) / "model.dsmgp")
        if job == IN_FILE:
            path = str(Path(folder.name) / "model.dsmgp")
            return fresh_process(["-c", FROM_FILE, path], task["processor"])
        X = rows(task["n_test"], seed=1)[0]
        clock = time.process_time if task["processor"] else time.perf_counter
        model = pickle.loads(unused[name]) if job == COLD else fitted[name]
        return (JOBS | {ACCURACY: accuracy})[job](model, X, clock)

    return run


def compared(old: Ask, new: Ask, task: dict, rounds: int) -> list[dict]:
    """Rows of the table of one model."""
    found = []
    jobs = (
        [DEMO]
        if task["model"] == DEMO
        else [IN_FILE]
        if task["model"] in FILES | QUICK_FILES
        else JOBS
    )
    for job in jobs:
        pairs = in_turn(old, new, task | {"job": job}, rounds)
        row = {"model": task["model"], "job": job} | new_over_old(pairs, "speed")
        last = [pair[1] for pair in pairs]
        if job in (IN_FILE, DEMO):
            before, after = (
                statistics.median(1.0 / pair[k]["speed"] for pair in pairs) for k in (0, 1)
            )
            row["note"] = f"{after:.2f} s in all (old {before:.2f})"
        if "ms" in last[0]:
            median, high = np.median([each["ms"] for each in last], axis=0)
            before = np.median([pair[0]["ms"] for pair in pairs], axis=0)
            row["note"] = (
                f"median {median:.2f} ms, 99% {high:.2f} (old {before[0]:.2f}, {before[1]:.2f})"
            )
        if "identical" in last[0]:
            over = statistics.median(each["over_one"] for each in last)
            same = "identical" if all(each["identical"] for each in last) else "not all identical"
            row["note"] = f"{over:.2f} times one thread; answers {same}"
        found.append(row)
        print(json.dumps(row), flush=True)
    return found


def peers(n_rows: int, n_test: int, clock: Clock) -> list[dict]:
    """The same rows by scikit-learn's exact GP with a given kernel, and by CatBoost where it is installed."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    (X, y), X_test = rows(n_rows), rows(n_test, seed=1)[0]
    kernel = RBF([0.4, 0.6, 0.6, 0.6]) + WhiteKernel(0.01)
    gp = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    models: dict[str, Callable[[np.ndarray], object]] = {
        "scikit-learn GP": lambda A: gp.predict(A, return_std=True)
    }
    if importlib.util.find_spec("catboost"):
        from catboost import CatBoostRegressor

        boosted = CatBoostRegressor(loss_function="RMSEWithUncertainty", verbose=False).fit(X, y)
        models["CatBoost, with uncertainty"] = boosted.predict
    found = []
    for name, predict in models.items():
        predict(X_test[:1])
        start = clock()
        predict(X_test[:5000])
        many = min(5000, n_test) / (clock() - start)
        spent = []
        for k in range(N_SINGLE):
            start = clock()
            predict(X_test[k : k + 1])
            spent.append(clock() - start)
        found.append({"peer": name, "job": "rows/s, mean and std", "speed": round(many)})
        single = round(1e3 * statistics.median(spent), 2)
        found.append({"peer": name, "job": "one row, ms", "speed": single})
    return found


def page(report: dict) -> str:
    clock = "the processor, all cores together" if report["processor"] else "the clock"
    parts = [
        f"Old: {report['against']}. Seconds are those of {clock}.",
        table(COLUMNS, report["rows"]),
    ]
    parts += [f"{name}: {text}." for name, text in report["accuracy"].items()]
    parts.append(f"Peers on {report['peer_rows']} training rows:")
    return "\n\n".join([*parts, table(PEERS, report["peers"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT|FOLDER", default=BASELINE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n-test", type=int, default=20_000)
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(served())
        return
    models, files = (QUICK, QUICK_FILES) if arguments.quick else (MODELS, FILES)
    rounds, n_test = (1, 300) if arguments.quick else (arguments.rounds, arguments.n_test)
    found, errors = [], {}
    clock = time.process_time if arguments.processor else time.perf_counter
    with two_commits(__file__, arguments.against) as (old, new):
        for name in models:
            task = {"model": name, "n_test": n_test, "processor": arguments.processor}
            found += compared(old, new, task, rounds)
            errors[name] = new(task | {"job": ACCURACY})["accuracy"]
        for name in (*files, DEMO):
            task = {"model": name, "n_test": n_test, "processor": arguments.processor}
            found += compared(old, new, task, rounds)
    n_peer_rows = next(iter(models.values()))[0]
    report = {
        "setting": setting(), "against": Path(arguments.against).name, "processor": arguments.processor,
        "rows": found, "accuracy": errors, "peers": peers(n_peer_rows, n_test, clock), "peer_rows": n_peer_rows,
    }  # fmt: skip
    print(page(report))
    write_report(arguments.results or results_path("serving", arguments.quick), report)


if __name__ == "__main__":
    main()
