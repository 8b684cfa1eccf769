"""Predictions as users wait for them, at this commit and at another: rows per second, single rows, eight threads.

    python benchmarks/serving.py [--against COMMIT|FOLDER] [--rounds 5] [--quick] [--results FILE]

Both commits load the same model files, which this one fits, and run every job in turn, so that a busy moment of the machine hits both alike; the
first round warms up. The ratio is the median over rounds of this commit's speed over the other's. Peers run in this process, in the
same minutes. Standard deviations are compared with exact ones (``variances="exact"``). Results are kept in benchmarks/results/serving.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import dsmgp
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

BASELINE = "306489d"
COLUMNS = {
    "model": "model", "job": "asked for", "old": "old", "new": "new", "ratio": "times as fast", "low": "lowest", "high": "highest", "note": "",
}  # fmt: skip
PEERS = {"peer": "peer", "job": "asked for", "speed": "value"}
N_SINGLE, N_THREADS = 200, 8


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
QUICK = {"300 rows, defaults": (300, {"max_iter": 5})}


def predict_many(model: DSMGPRegressor, X: np.ndarray, std: bool) -> dict:
    start = time.perf_counter()
    model.predict(X, return_std=std)
    return {"speed": len(X) / (time.perf_counter() - start)}


def predict_single(model: DSMGPRegressor, X: np.ndarray) -> dict:
    spent = []
    for k in range(N_SINGLE):
        start = time.perf_counter()
        model.predict(X[k : k + 1], return_std=True)
        spent.append(time.perf_counter() - start)
    milliseconds = 1e3 * np.quantile(spent, [0.5, 0.99])
    return {"speed": 1.0 / statistics.median(spent), "ms": milliseconds.round(3).tolist()}


def predict_threads(model: DSMGPRegressor, X: np.ndarray) -> dict:
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


JOBS: dict[str, Callable[[DSMGPRegressor, np.ndarray], dict]] = {
    "rows/s, mean and std": lambda model, X: predict_many(model, X, True),
    "rows/s, mean": lambda model, X: predict_many(model, X, False),
    "single rows/s": predict_single,
    "single rows/s, 8 threads": predict_threads,
}


def served() -> Callable[[dict], dict]:
    """Return a function that runs a job on a model file."""
    loaded: dict[str, DSMGPRegressor] = {}

    def run(task: dict) -> dict:
        if task["path"] not in loaded:
            loaded.clear()
            loaded[task["path"]] = dsmgp.load(task["path"])
        X = rows(task["n_test"], seed=1)[0]
        return JOBS[task["job"]](loaded[task["path"]], X)

    return run


def accuracy(model: DSMGPRegressor, X: np.ndarray) -> str:
    """The largest and the median relative error of the standard deviation."""
    model.predict(X, return_std=True)
    std = model.predict(X, return_std=True)[1]
    exact = model.set_params(variances="exact").predict(X, return_std=True)[1]
    error = np.abs(std / exact - 1.0)
    return f"std off by {error.max():.1e} at most, {np.median(error):.0e} in the median"


def compared(old: Ask, new: Ask, name: str, path: Path, n_test: int, rounds: int) -> list[dict]:
    """Rows of the table of one model."""
    found = []
    for job in JOBS:
        task = {"path": str(path), "job": job, "n_test": n_test}
        pairs = in_turn(old, new, task, rounds)
        row = {"model": name, "job": job} | new_over_old(pairs, "speed")
        last = [pair[1] for pair in pairs]
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


def peers(n_rows: int, n_test: int) -> list[dict]:
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
        start = time.perf_counter()
        predict(X_test[:5000])
        many = min(5000, n_test) / (time.perf_counter() - start)
        spent = []
        for k in range(N_SINGLE):
            start = time.perf_counter()
            predict(X_test[k : k + 1])
            spent.append(time.perf_counter() - start)
        found.append({"peer": name, "job": "rows/s, mean and std", "speed": round(many)})
        single = round(1e3 * statistics.median(spent), 2)
        found.append({"peer": name, "job": "one row, ms", "speed": single})
    return found


def page(report: dict) -> str:
    parts = [f"Old: {report['against']}.", table(COLUMNS, report["rows"])]
    parts += [f"{name}: {text}." for name, text in report["accuracy"].items()]
    parts.append(f"Peers on {report['peer_rows']} training rows:")
    return "\n\n".join([*parts, table(PEERS, report["peers"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT|FOLDER", default=BASELINE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n-test", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(served())
        return
    models = QUICK if arguments.quick else MODELS
    rounds, n_test = (1, 300) if arguments.quick else (arguments.rounds, arguments.n_test)
    found, errors = [], {}
    with (
        tempfile.TemporaryDirectory() as folder,
        two_commits(__file__, arguments.against) as (old, new),
    ):
        for number, (name, (n_rows, settings)) in enumerate(models.items()):
            path = Path(folder) / f"{number}.dsmgp"
            model = DSMGPRegressor(random_state=0, **settings).fit(*rows(n_rows))
            model.save(path)
            errors[name] = accuracy(model, rows(min(n_test, 4000), seed=2)[0])
            found += compared(old, new, name, path, n_test, rounds)
        n_peer_rows = next(iter(models.values()))[0]
        others = peers(n_peer_rows, n_test)
    report = {
        "setting": setting(), "against": Path(arguments.against).name, "rows": found, "accuracy": errors,
        "peers": others, "peer_rows": n_peer_rows,
    }  # fmt: skip
    print(page(report))
    write_report(arguments.results or results_path("serving", arguments.quick), report)


if __name__ == "__main__":
    main()
