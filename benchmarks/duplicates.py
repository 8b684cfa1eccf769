"""Processor seconds of a fit and of predictions where rows share their inputs.

    python benchmarks/duplicates.py [--rows 10000] [--rounds 3] [--quick]

Generated rows (``harness.generated``), of which a share have the inputs of others: either all of them one and the same (a
table full of zeros), or each those of a row drawn at random (repeated measurements). Observations are made anew. Every share is run in
turn, and its processor seconds, of all threads, are divided by those without duplicates in the same round. Results are kept in
benchmarks/results/duplicates.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from dsmgp import DSMGPRegressor
from harness import Array, generated, results_path, setting, table, write_report

SHARES = (0.0, 0.5, 0.9, 0.97, 0.99)
KINDS = ("one input", "random inputs")
MOST = 1.2
COLUMNS = {
    "kind": "duplicates share", "share": "share of rows", "distinct": "distinct inputs", "fit": "fit (processor s)",
    "fit_ratio": "over without", "predict": "predict (processor s)", "predict_ratio": "over without", "most": "at most",
}  # fmt: skip


def rows_of(n_rows: int, kind: str, share: float, seed: int = 0) -> tuple[Array, Array]:
    X, _, _, _ = generated(n_rows, 0, seed=seed)
    rng = np.random.default_rng(seed + 1)
    n_distinct = max(1, round((1.0 - share) * n_rows))
    if share:
        X[n_distinct:] = (
            0.0 if kind == "one input" else X[rng.integers(n_distinct, size=n_rows - n_distinct)]
        )
    f = np.sin(4.0 * X[:, 0] * np.exp(X[:, 1])) + np.tanh(6.0 * (X[:, 2] + 0.5 * X[:, 3]))
    return X, f + 0.1 * rng.normal(size=n_rows)


def measure(n_rows: int, kind: str, share: float) -> tuple[float, float]:
    X, y = rows_of(n_rows, kind, share)
    start = time.process_time()
    model = DSMGPRegressor(random_state=0).fit(X, y)
    fitted = time.process_time()
    model.predict(X, return_std=True)
    return fitted - start, time.process_time() - fitted


def page(report: dict) -> str:
    return table(COLUMNS, report["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    n_rows, rounds = (600, 1) if arguments.quick else (arguments.rows, arguments.rounds)
    jobs = [(KINDS[0], 0.0), *((kind, share) for kind in KINDS for share in SHARES[1:])]
    measure(600, KINDS[0], 0.0)  # compiled code is loaded
    seconds = [{job: measure(n_rows, *job) for job in jobs} for _ in range(rounds)]
    rows = []
    for kind, share in jobs:
        found = {"kind": kind if share else "none", "share": share, "most": MOST}
        found["distinct"] = len(np.unique(rows_of(n_rows, kind, share)[0], axis=0))
        for k, name in enumerate(("fit", "predict")):
            found[name] = round(statistics.median(r[kind, share][k] for r in seconds), 3)
            ratios = [r[kind, share][k] / r[KINDS[0], 0.0][k] for r in seconds]
            found[f"{name}_ratio"] = round(statistics.median(ratios), 3)
        rows.append(found)
    report = {"setting": setting(), "n_rows": n_rows, "rounds": rounds, "rows": rows}
    print(page(report))
    write_report(arguments.results or results_path("duplicates", arguments.quick), report)


if __name__ == "__main__":
    main()
