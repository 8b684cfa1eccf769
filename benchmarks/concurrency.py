"""Requests from many threads to one model of every kind: errors, answers unlike those of one thread, memory.

    python benchmarks/concurrency.py [--kind memory ...] [--requests 10_000] [--threads 8] [--quick]

Each kind runs in a process of its own. Answers are compared bit for bit; what shards take together is compared with the memory they may take.
Results are kept in benchmarks/results/concurrency.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from harness import Runs, results_path, setting, table

KINDS = ("memory", "little memory", "file", "shards", "ray", "change points")
N_TRAIN, N_DISTINCT, N_ROWS = 400, 100, 2
COLUMNS = {
    "kind": "model", "requests": "requests", "threads": "threads", "errors": "errors", "different": "answers that differ", "seconds": "seconds",
    "seconds_one": "one thread (s)", "shard_share": "most that shards took of their memory", "growth_mb": "resident growth (MB)",
}  # fmt: skip


def fitted(kind: str, folder: Path):
    """A model of a kind, and a function that turns inputs into what it takes."""
    import pandas as pd

    from dsmgp import DSMGPRegressor, load
    from dsmgp.fitting.datasets import fit as dataset

    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(N_TRAIN, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=N_TRAIN)
    options = {"kernel": "rbf", "leaf_size": 40, "random_state": 0, "max_iter": 5}
    if kind == "little memory":
        return DSMGPRegressor(memory_limit="300kB", **options).fit(X, y), lambda table: table
    if kind == "ray":
        return DSMGPRegressor(executor="ray", **options).fit(X, y), lambda table: table
    if kind == "change points":
        one = DSMGPRegressor("rbf", structure="changepoint", random_state=0, max_iter=5)
        return one.fit(X[:60, :1], y[:60]), lambda table: table[:, :1]
    if kind == "shards":
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(folder / "rows.parquet")
        dataset.LEAST_SAMPLE = dataset.MOST_SAMPLE = N_TRAIN // 2
        model = DSMGPRegressor(memory_limit="800kB", **options)
        model.fit_dataset(folder / "rows.parquet", target="y")
        return model, lambda table: pd.DataFrame(table, columns=["a", "b"])
    model = DSMGPRegressor(**options).fit(X, y)
    if kind == "file":
        model.save(folder / "model.dsmgp")
        model = load(folder / "model.dsmgp")
    return model, lambda table: table


def resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def work(kind: str, n_requests: int, n_threads: int) -> dict:
    """Ask one model, in this process."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        model, prepared = fitted(kind, Path(folder))
        rng = np.random.default_rng(1)
        tables = [prepared(rng.uniform(-2, 2, size=(N_ROWS, 2))) for _ in range(N_DISTINCT)]
        start = time.perf_counter()
        expected = [model.predict(each, return_std=True) for each in tables]
        alone = (time.perf_counter() - start) * n_requests / N_DISTINCT
        before, start, errors = resident(), time.perf_counter(), []

        def ask(k: int) -> bool:
            try:
                found = model.predict(tables[k % N_DISTINCT], return_std=True)
            except Exception as error:
                errors.append(repr(error))
                return True
            pairs = zip(found, expected[k % N_DISTINCT], strict=True)
            return all(np.array_equal(one, other) for one, other in pairs)

        with ThreadPoolExecutor(n_threads) as threads:
            equal = list(threads.map(ask, range(n_requests)))
        seconds = time.perf_counter() - start
        pool = getattr(getattr(model.state_.model, "leaf_posterior", None), "leaf_gps", None)
        cache = getattr(getattr(pool, "pool", None), "cache", None)
        share = None if cache is None else round(cache.most_bytes / cache.memory, 3)
        return {
            "kind": kind, "requests": n_requests, "threads": n_threads, "errors": len(errors), "first_error": errors[:1],
            "different": equal.count(False), "seconds": round(seconds, 1), "seconds_one": round(alone, 1),
            "shard_share": share, "growth_mb": round(resident() - before, 1),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--requests", type=lambda s: int(s.replace("_", "")), default=10_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--work", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="few requests, no cluster")
    asked = parser.parse_args()
    if asked.work:
        print(json.dumps(work(asked.work, asked.requests, asked.threads)))
        return
    if asked.quick:
        asked.requests, asked.kind = 100, [k for k in asked.kind if k != "ray"]
    runs = Runs(asked.results or results_path("concurrency", asked.quick), ("kind", "threads"))
    for kind in asked.kind:
        command = [sys.executable, __file__, "--work", kind]
        command += ["--requests", str(asked.requests), "--threads", str(asked.threads)]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        runs.add([{**json.loads(found.stdout.splitlines()[-1]), **setting()}])
    print(page(runs.rows))


def page(rows: list[dict]) -> str:
    return table(COLUMNS, sorted(rows, key=lambda row: KINDS.index(row["kind"])))


if __name__ == "__main__":
    main()
