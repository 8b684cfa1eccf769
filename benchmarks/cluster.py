"""Ray against one process at equal cores: what it costs to have leaves elsewhere, and what more workers gain.

    python benchmarks/cluster.py [--rows 100_000] [--leaf-size 500] [--repeats 3] [--results PATH] [--quick]

A Ray cluster is started on this machine. The same fit and the same predictions are made in turn by one process on as many threads as there are cores, by as many
workers of one core each, by one thread and by one worker; medians of several rounds after a first are kept, in benchmarks/results/cluster.json. Workers are running when the
clock starts: how long they take to start is told apart.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from dsmgp import DSMGPRegressor
from dsmgp.ray import RayExecutor
from harness import generated, results_path, setting, table, write_report

N_TEST = 20_000


def timed(X, y, X_test, leaf_size: int, executor, n_threads: int) -> dict[str, float]:
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        model = DSMGPRegressor("matern32", leaf_size=leaf_size, executor=executor, random_state=0)
        start = time.perf_counter()
        model.fit(X, y)
        fitted = time.perf_counter()
        mean, std = model.predict(X_test, return_std=True)
        done = time.perf_counter()
    finally:
        torch.set_num_threads(before)
    return {
        "fit": fitted - start, "predict": done - fitted, "evidence": model.log_marginal_likelihood_,
        "mean": float(mean.sum()), "std": float(std.sum()), "n_evaluations": model.n_evaluations_,
    }  # fmt: skip


def moved(executor: RayExecutor, before) -> dict[str, float]:
    """Bytes for each evaluation of the evidence and its gradient, since ``before``."""
    now = executor.traffic
    n_calls = now.calls["gradient"] - before.calls.get("gradient", 0)
    n_workers = executor.workers.n_shards
    sent = now.sent["gradient"] - before.sent.get("gradient", 0)
    received = now.received["gradient"] - before.received.get("gradient", 0)
    return {
        "sent": sent / (n_calls / n_workers), "received": received / (n_calls / n_workers),
    }  # fmt: skip


def page(report: dict) -> str:
    """The table of docs/scaling.md."""
    rows = [
        {"where": name, "fit": seconds["fit"], "predict": seconds["predict"]}
        for name, seconds in report["seconds"].items()
    ]
    told = report["bytes_per_evaluation"]
    return "\n".join(
        [
            table(
                {"where": "where", "fit": "fit (s)", "predict": f"predict {N_TEST:,} rows (s)"},
                rows,
            ),
            "",
            f"{report['n_rows']:,} rows, leaves of {report['leaf_size']}, medians of {report['repeats']} rounds. With {report['cores']} workers a fit "
            f"takes {report['overhead']['fit']:.2f} times, a prediction {report['overhead']['predict']:.2f} times as long as on {report['cores']} threads "
            f"of one process; one worker against one thread: {report['overhead_1']['fit']:.2f} and "
            f"{report['overhead_1']['predict']:.2f}. {report['cores']} workers are {report['strong_scaling']:.2f} times as fast as one "
            f"(strong scaling); one worker on its share of the rows takes {report['weak_scaling']:.2f} of the time of all on all rows (weak "
            f"scaling). An evaluation of the evidence and its gradient sends {told['sent']:,} bytes and gets {told['received']:,} back. Evidence and predictions "
            f"were {'equal' if report['equal_to_local'] else 'NOT equal'} to those of one process to 1e-9. The cluster took "
            f"{report['cluster_start_seconds']:g} s to start, workers {report['workers_start_seconds']:g} s.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=lambda s: int(s.replace("_", "")), default=100_000)
    parser.add_argument("--leaf-size", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    asked = parser.parse_args()
    if asked.quick:
        asked.rows, asked.leaf_size, asked.repeats = 3000, 100, 1
    path = asked.results or results_path("cluster", asked.quick)
    import ray

    warnings.simplefilter("ignore")
    n_cores = len(os.sched_getaffinity(0))
    X, Y, X_test, _ = generated(asked.rows, N_TEST)
    y = Y[:, 0]
    half = asked.rows // n_cores
    start = time.perf_counter()
    ray.init(
        num_cpus=n_cores + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )  # fmt: skip
    up = time.perf_counter() - start
    executors = {n: RayExecutor(n_workers=n) for n in (n_cores, 1)}
    start = time.perf_counter()
    for executor in executors.values():
        _ = executor.workers
    started = (time.perf_counter() - start) / len(executors)

    def fit(name: str, rows: int, executor, n: int) -> None:
        found.setdefault(name, []).append(
            timed(X[:rows], y[:rows], X_test, asked.leaf_size, executor, n)
        )

    found: dict[str, list[dict[str, float]]] = {}
    traffic: dict[str, float] = {}
    for round_ in range(asked.repeats + 1):
        if round_ == 1:
            found.clear()  # the first round loads compiled code, and gets memory from the system, in all processes
        for n, executor in executors.items():
            fit(f"threads {n}", asked.rows, "local", n)
            before = copy.deepcopy(executor.traffic)
            fit(f"workers {n}", asked.rows, executor, n)
            if n > 1:
                traffic = moved(executor, before)
        fit("workers 1, its share of rows", half, executors[1], 1)  # weak scaling
        print(round_, {name: round(rows[-1]["fit"], 2) for name, rows in found.items()})

    def median(name: str, key: str) -> float:
        return float(np.median([row[key] for row in found[name]]))

    reference = found[f"threads {n_cores}"][0]
    report = {
        "n_rows": asked.rows, "leaf_size": asked.leaf_size, "cores": n_cores, "repeats": asked.repeats,
        "seconds": {name: {k: round(median(name, k), 3) for k in ("fit", "predict")} for name in found},
        "overhead": {k: round(median(f"workers {n_cores}", k) / median(f"threads {n_cores}", k), 3) for k in ("fit", "predict")},
        "overhead_1": {k: round(median("workers 1", k) / median("threads 1", k), 3) for k in ("fit", "predict")},
        "strong_scaling": round(median("workers 1", "fit") / median(f"workers {n_cores}", "fit"), 3),
        "weak_scaling": round(median("workers 1, its share of rows", "fit") / median(f"workers {n_cores}", "fit"), 3),
        "equal_to_local": all(
            abs(row[k] - reference[k]) <= 1e-9 * abs(reference[k])
            for name in (f"workers {n_cores}", "workers 1") for row in found[name] for k in ("evidence", "mean", "std")
        ),
        "bytes_per_evaluation": {k: round(v) for k, v in traffic.items()},
        "cluster_start_seconds": round(up, 1), "workers_start_seconds": round(started, 1),
        "setting": setting(),
    }  # fmt: skip
    write_report(path, report)
    print(page(report))


if __name__ == "__main__":
    main()
