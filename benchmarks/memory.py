"""Resident memory of a large fit under ``memory_limit``.

    DSMGP_DATA=... python benchmarks/memory.py [--memory-limit 2GB] [--rows N] [--methods dsmgp,hist-boosting] [--quick]

All 768,808 flights of flight_mixed (8 inputs, 2 outputs) are fitted, and all are predicted, by a process of its own,
which reports its peak of resident memory after each step: once started (and warmed up by a small fit), loaded, fitted, predicted. Boosted trees stand beside it. Results are
kept in benchmarks/results/memory.json. ``--quick`` uses generated rows.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np

import peers
from dsmgp import DSMGPRegressor
from dsmgp.datasets import load
from harness import (
    Runs,
    generated,
    peak_memory,
    results_path,
    run_apart,
    setting,
    standardise,
    table,
)

DATA = "flight_mixed"
MOST_GB = 4.0
LIMIT = 7200.0
COLUMNS = {
    "data": "data", "method": "method", "rows": "rows", "memory_limit": "memory_limit",
    "fit_seconds": "fit (s)", "predict_seconds": "predict (s)", "started_gb": "started (GB)",
    "loaded_gb": "data loaded", "fitted_gb": "peak at fit", "peak_gb": "peak", "target": "at most",
    "loo": "leave-one-out NLPD", "failed": "",
}  # fmt: skip


def rows_of(job: dict) -> tuple[np.ndarray, np.ndarray]:
    if job["data"] == "generated":
        X, Y, _, _ = generated(job["rows"], 0, n_outputs=2)
    else:
        data = load(job["data"])
        chosen = np.sort(np.random.default_rng(0).permutation(len(data.X))[: job["rows"]])
        X, Y = data.X[chosen], data.Y[chosen]
    return standardise(X, Y, X[:1], Y[:1])[:2]


def measure(job: dict) -> dict:
    """One run, in this process."""
    warnings.simplefilter("ignore")
    peers.warm_up(peers.METHODS[job["method"]], 2)
    found = {"started_gb": peak_memory()}
    X, Y = rows_of(job)
    found["loaded_gb"] = peak_memory()
    if job["method"] == "dsmgp":
        found |= measure_ours(X, Y, job["memory_limit"])
    else:
        _, note = peers.METHODS[job["method"]](X, Y, X, 0)
        found |= {k: note[k] for k in ("fit_seconds", "predict_seconds")}
    return found | {"peak_gb": peak_memory()}


def measure_ours(X: np.ndarray, Y: np.ndarray, memory_limit: str) -> dict:
    start = time.perf_counter()
    model = DSMGPRegressor(memory_limit=memory_limit, random_state=0).fit(X, Y)
    fitted, fitted_gb = time.perf_counter(), peak_memory()
    model.predict(X, return_std=True)
    return {
        "fit_seconds": fitted - start,
        "predict_seconds": time.perf_counter() - fitted,
        "fitted_gb": fitted_gb,
        "n_evaluations": model.n_evaluations_,
        "loo": model.loo_score_,
    }


def page(rows: list[dict]) -> str:
    return table(
        COLUMNS, [row | {"target": MOST_GB if "cores" in row["machine"] else None} for row in rows]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=768_808)
    parser.add_argument("--memory-limit", default="2GB")
    parser.add_argument("--methods", default="dsmgp,hist-boosting")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one run")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(measure(arguments.job)))
        return
    data, n_rows = ("generated", 500) if arguments.quick else (DATA, arguments.rows)
    methods = ["dsmgp"] if arguments.quick else arguments.methods.split(",")
    path = arguments.results or results_path("memory", arguments.quick)
    runs = Runs(path, ("data", "method", "rows", "memory_limit"), arguments.again)
    for method in methods:
        limit = arguments.memory_limit if method == "dsmgp" else None
        key = {"data": data, "method": method, "rows": n_rows, "memory_limit": limit}
        if runs.is_due(**key):
            runs.add([key | run_apart(__file__, key, arguments.limit) | setting()])
    print(page(runs.rows))


if __name__ == "__main__":
    main()
