"""Seconds of the main operations at this commit and at another, side by side.

    python benchmarks/compare.py --against COMMIT|FOLDER [--jobs fit-300,predict-3000,...] [--rounds 7] [--quick] [--results FILE]

Two processes, one for each commit, run every operation in turn, so that a busy moment of the machine hits both alike; the
first round warms up. Only the public interface is used, on generated rows. The ratio is the median over rounds of this
commit's seconds over the other's. Results are kept in benchmarks/results/compare.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dsmgp
from dsmgp import DSMGPRegressor
from harness import (
    generated,
    in_turn,
    new_over_old,
    peak_memory,
    results_path,
    serve,
    setting,
    standardised,
    synchronise,
    table,
    two_commits,
    write_report,
)

COLUMNS = {
    "job": "operation", "ratio": "new over old", "low": "lowest", "high": "highest", "old": "old (s)", "new": "new (s)",
}  # fmt: skip


def fit(n_rows: int, **settings: object) -> Callable[[], object]:
    X, Y, _, _ = generated(n_rows, 0)
    return lambda: DSMGPRegressor(random_state=0, **settings).fit(X, Y[:, 0])


def predict(n_rows: int, n_test: int, return_std: bool = True) -> Callable[[], object]:
    X, Y, X_test, _ = generated(n_rows, n_test)
    model = DSMGPRegressor(random_state=0).fit(X, Y[:, 0])
    return lambda: model.predict(X_test, return_std=return_std)


def fit_data(name: str) -> Callable[[], object]:
    X, Y, _, _ = standardised(name, 0)
    return lambda: DSMGPRegressor(random_state=0).fit(X, Y)


def predict_data(name: str) -> Callable[[], object]:
    X, Y, X_test, _ = standardised(name, 0)
    model = DSMGPRegressor(random_state=0).fit(X, Y)
    return lambda: model.predict(X_test, return_std=True)


def update(n_rows: int, n_new: int) -> Callable[[], object]:
    X, Y, X_new, Y_new = generated(n_rows, n_new)
    model = DSMGPRegressor(random_state=0).fit(X, Y[:, 0])

    def run() -> object:
        model.partial_fit(X_new, Y_new[:, 0], adapt=False)
        return model.forget(model.row_ids_[-n_new:], adapt=False)

    return run


def save_and_load(n_rows: int) -> Callable[[], object]:
    X, Y, _, _ = generated(n_rows, 0)
    model = DSMGPRegressor(random_state=0).fit(X, Y[:, 0])
    path = Path(tempfile.mkdtemp()) / "model.dsmgp"

    def run() -> object:
        model.save(path)
        return dsmgp.load(path)

    return run


def finetune(n_rows: int) -> Callable[[], object]:
    X, Y, _, _ = generated(n_rows, 0)
    model = DSMGPRegressor("rbf", leaf_size=100, random_state=0).fit(X, Y[:, 0])
    return lambda: model.finetune(max_iter=5)


def changepoints(n_rows: int) -> Callable[[], object]:
    X, Y, _, _ = generated(n_rows, 0)
    return lambda: DSMGPRegressor("rbf", structure="changepoint").fit(X[:, :1], Y[:, 0])


# Each makes what it needs once, and returns what is timed.
JOBS: dict[str, Callable[[], Callable[[], object]]] = {
    "fit-300": lambda: fit(300),
    "fit-3000": lambda: fit(3000),
    "fit-20000": lambda: fit(20_000),
    "fit-1000000": lambda: fit(1_000_000),
    "fit-posterior-3000": lambda: fit(3000, kernel="rbf", weights="posterior"),
    "fit-paper-1000": lambda: fit(1000, kernel="rbf", structure="paper"),
    "predict-1": lambda: predict(3000, 1),
    "predict-mean-3000": lambda: predict(3000, 3000, return_std=False),
    "predict-3000": lambda: predict(3000, 3000),
    "predict-20000": lambda: predict(20_000, 5000),
    "predict-1000000": lambda: predict(1_000_000, 100_000),
    "update-3000": lambda: update(3000, 50),
    "save-load-3000": lambda: save_and_load(3000),
    "save-load-20000": lambda: save_and_load(20_000),
    "finetune-1000": lambda: finetune(1000),
    "changepoint-300": lambda: changepoints(300),
}
# Benchmark data, where DSMGP_DATA is set.
for _name in ("airfoil", "house", "kin40k", "parkinsons", "protein"):
    JOBS[f"fit-{_name}"] = partial(fit_data, _name)
    JOBS[f"predict-{_name}"] = partial(predict_data, _name)
QUICK = ("fit-300", "predict-1")
# Run only where they are named.
LONG = tuple(name for name in JOBS if not name.rpartition("-")[2].isdigit() or "1000000" in name)


def timed() -> Callable[[str], dict]:
    """Return a function that runs a job by its name, and returns seconds and peak memory."""
    ready: dict[str, Callable[[], object]] = {}

    def run(name: str) -> dict:
        if name not in ready:
            ready.clear()  # one at a time: what others keep would take memory
            ready[name] = JOBS[name]()
        repeat = 20 if name == "predict-1" else 1
        synchronise()
        start = time.perf_counter()
        for _ in range(repeat):
            ready[name]()
        synchronise()
        return {"seconds": (time.perf_counter() - start) / repeat, "peak_gb": peak_memory()}

    return run


def page(report: dict) -> str:
    return f"Old: {report['against']}.\n\n{table(COLUMNS, report['rows'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT|FOLDER", default="HEAD")
    parser.add_argument("--jobs", default=",".join(job for job in JOBS if job not in LONG))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(timed())
        return
    jobs = QUICK if arguments.quick else arguments.jobs.split(",")
    rounds = 1 if arguments.quick else arguments.rounds
    rows = []
    with two_commits(__file__, arguments.against) as (old, new):
        for job in jobs:
            rows.append({"job": job} | new_over_old(in_turn(old, new, job, rounds), "seconds"))
            print(json.dumps(rows[-1]), flush=True)
    report = {"setting": setting(), "against": Path(arguments.against).name, "rows": rows}
    print(page(report))
    write_report(arguments.results or results_path("compare", arguments.quick), report)


if __name__ == "__main__":
    main()
