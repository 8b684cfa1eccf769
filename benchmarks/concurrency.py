"""Requests from many threads to models of every kind that have answered nothing yet: errors, answers unlike those of one thread, memory.

    python benchmarks/concurrency.py [--kind memory ...] [--requests 10_000] [--threads 8] [--quick]

Each kind runs in a process of its own. The answers that are expected come from another copy of the model, which one thread asks; the threads share out the
requests among fresh copies, one after the other, so that leaves are conditioned and low-rank variances made while eight threads ask (on a cluster, where a
copy is a fit, there is one of either). Answers are compared bit for bit, those of a model that makes low-rank variances with exact ones, of which they may be
a thousandth of the standard deviation off. What shards take together is compared with the memory they may take. Results are kept in
benchmarks/results/concurrency.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from dsmgp import DSMGPRegressor, load
from dsmgp.fitting.datasets import fit as dataset
from dsmgp.mixture.variance_error import exact_variances
from harness import Runs, results_path, setting, table

KINDS = ("memory", "little memory", "file", "low-rank variances", "shards", "ray", "change points")
N_TRAIN, N_LARGE, N_DISTINCT, N_ROWS = 400, 1500, 100, 2
# Fresh copies that the requests are shared out among.
N_COPIES = 20
# Low-rank variances are this exact, in standard deviations.
TOLERANCE = 1e-3
COLUMNS = {
    "kind": "model", "requests": "requests", "copies": "fresh copies", "threads": "threads", "errors": "errors", "different": "answers that differ",
    "seconds": "seconds", "seconds_one": "one thread (s)", "shard_share": "most that shards took of their memory", "growth_mb": "resident growth (MB)",
}  # fmt: skip


def saved(model: DSMGPRegressor, path: Path) -> Callable[[], DSMGPRegressor]:
    """Save a model, and return what reads it."""
    model.save(path)
    return lambda: load(path)


def fitted(kind: str, folder: Path) -> tuple[Callable[[], DSMGPRegressor], Callable]:
    """What returns fresh copies of a model of a kind, and a function that turns inputs into what it takes."""
    rng = np.random.default_rng(0)
    n_rows = N_LARGE if kind == "low-rank variances" else N_TRAIN
    X = rng.uniform(-2, 2, size=(n_rows, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=n_rows)
    options = {"kernel": "rbf", "leaf_size": 40, "random_state": 0, "max_iter": 5}
    if kind == "change points":
        one = DSMGPRegressor("rbf", structure="changepoint", random_state=0, max_iter=5)
        fresh = saved(one.fit(X[:60, :1], y[:60]), folder / "model.dsmgp")
        return fresh, lambda table: table[:, :1]
    if kind == "shards":
        frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
        frame.to_parquet(folder / "rows.parquet")
        dataset.LEAST_SAMPLE = dataset.MOST_SAMPLE = N_TRAIN // 2
        model = DSMGPRegressor(memory_limit="800kB", **options)
        model.fit_dataset(folder / "rows.parquet", target="y", store=folder / "model")
        return lambda: load(folder / "model"), lambda table: pd.DataFrame(table, columns=["a", "b"])
    if kind == "ray":
        os.environ["RAY_ADDRESS"] = "local"  # a cluster of its own
        # In one process single rows are predicted by other code, which rounds differently.
        return lambda: DSMGPRegressor(executor="ray", **options).fit(X, y), lambda table: table
    changes = {
        "little memory": {"memory_limit": "300kB"}, "low-rank variances": {"leaf_size": 400, "sum_children": 2}
    }  # fmt: skip
    model = DSMGPRegressor(**{**options, **changes.get(kind, {})}).fit(X, y)
    if kind == "file":
        return saved(model, folder / "model.dsmgp"), lambda table: table
    return lambda: copy.deepcopy(model), lambda table: table


def resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def is_same(kind: str, found: tuple, expected: tuple) -> bool:
    """Whether mean and standard deviation are those that were expected."""
    if kind != "low-rank variances":
        return all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    off = [np.abs(one - other) / expected[1] for one, other in zip(found, expected, strict=True)]
    return bool(np.max(off) <= TOLERANCE)


def shard_share(model: DSMGPRegressor) -> float | None:
    """Most bytes that shards took, as a share of those they may take; None without shards here."""
    leaf_gps = getattr(getattr(model.state_.model, "leaf_posterior", None), "leaf_gps", None)
    cache = getattr(getattr(leaf_gps, "pool", None), "cache", None)
    return None if cache is None else cache.most_bytes / cache.memory


def n_bases(model: DSMGPRegressor) -> int:
    """Leaves with low-rank variances."""
    bases = getattr(getattr(model.state_.model, "leaf_posterior", None), "bases", None)
    return 0 if bases is None else len(bases.of_leaf)


def work(kind: str, n_requests: int, n_threads: int) -> dict:
    """Ask models of a kind, in this process."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        fresh, prepared = fitted(kind, Path(folder))
        rng = np.random.default_rng(1)
        tables = [prepared(rng.uniform(-2, 2, size=(N_ROWS, 2))) for _ in range(N_DISTINCT)]
        other, start = fresh(), time.perf_counter()
        with exact_variances(kind == "low-rank variances"):
            expected = [other.predict(each, return_std=True) for each in tables]
        alone = (time.perf_counter() - start) * n_requests / N_DISTINCT
        before, errors, shares, bases, n_different, seconds = resident(), [], [], [], 0, 0.0
        n_copies = 1 if kind == "ray" else N_COPIES
        for _ in range(n_copies):
            model = fresh()
            assert not n_bases(model)

            def ask(k: int, model: DSMGPRegressor = model) -> bool:
                try:
                    found = model.predict(tables[k % N_DISTINCT], return_std=True)
                except Exception as error:
                    errors.append(repr(error))
                    return True
                return is_same(kind, found, expected[k % N_DISTINCT])

            start = time.perf_counter()
            with ThreadPoolExecutor(n_threads) as threads:
                n_different += list(threads.map(ask, range(n_requests // n_copies))).count(False)
            seconds += time.perf_counter() - start
            shares.append(shard_share(model))
            bases.append(n_bases(model))
        if kind == "low-rank variances":
            assert n_requests < 2000 or min(bases) > 0, "no low-rank variances were made"
        return {
            "kind": kind, "requests": n_copies * (n_requests // n_copies), "copies": n_copies, "threads": n_threads, "errors": len(errors),
            "first_error": errors[:1], "different": n_different, "seconds": round(seconds, 1), "seconds_one": round(alone, 1),
            "shard_share": None if shares[0] is None else round(max(shares), 3), "growth_mb": round(resident() - before, 1), "bases": max(bases),
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
