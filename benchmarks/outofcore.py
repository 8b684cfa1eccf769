"""Rows that do not fit in memory: a generated dataset in Parquet files, fitted and predicted out of core.

    python benchmarks/outofcore.py [--rows 1_000_000] [--memory-limit 2GB] [--executor local] [--ingest] [--quick]

Writes the files to a temporary folder, then fits and predicts all of them in a process of its own, whose largest resident memory is what the system
says of it. Results are kept in benchmarks/results/outofcore.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dsmgp import DSMGPRegressor
from dsmgp.data.parquet.dataset import RowStream
from dsmgp.distributed.row_writer import RowWriter
from dsmgp.distributed.workers import LocalWorkers
from dsmgp.fitting.datasets.fit import MOST_SAMPLE, RouteAndWrite
from harness import HERE, Runs, results_path, setting, table

N_INPUTS, NOISE, PER_FILE = 8, 0.1, 250_000
# What a leaf and its part of the tree take at the driver: memory of a loaded model of 9,418 leaves, by tracemalloc, without its sample, for each leaf (2,634).
TREE_BYTES = 2600
# Conditioning and predicting variances takes so many times as long as conditioning: M squared flops a row, where a factor takes a third of that.
SOLVES = 4


def function(X: np.ndarray) -> np.ndarray:
    """Smooth, with an interaction, and two inputs that do nothing; its variance is about one."""
    return (
        np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3]) + 0.5 * np.cos(4 * X[:, 4]) * X[:, 5]
    )  # fmt: skip


def write(folder: Path, n_rows: int) -> int:
    """Files of 250,000 rows each; the bytes that they hold once they are numbers."""
    for k, first in enumerate(range(0, n_rows, PER_FILE)):
        rng = np.random.default_rng([1, k])
        X = rng.uniform(-1, 1, size=(min(PER_FILE, n_rows - first), N_INPUTS))
        columns = {f"x{j}": X[:, j] for j in range(N_INPUTS)}
        columns["y"] = function(X) + NOISE * rng.normal(size=len(X))
        parquet.write_table(pa.table(columns), folder / f"{k:04d}.parquet")
    return 8 * n_rows * (N_INPUTS + 1)


@contextmanager
def limited(n_workers: int) -> Iterator[None]:
    """Let the process use so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:n_workers]))
    os.environ["OMP_NUM_THREADS"] = str(n_workers)
    pa.set_cpu_count(n_workers)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        del os.environ["OMP_NUM_THREADS"]
        pa.set_cpu_count(len(before))


def clocks() -> np.ndarray:
    """Seconds by the clock, and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def passes(data: str | Path, model: DSMGPRegressor, firsts: np.ndarray) -> dict[str, float]:
    """CPU seconds of a pass that reads all rows, and of one that routes and writes them too, with one worker; and how much faster two are."""
    stream, inner, seconds = RowStream.learn(data, ["y"]), model.state_.model, {}
    router = inner.router.without_tree()
    router.route(np.zeros((1, N_INPUTS)))  # compiles
    for n_workers in (1, 2):
        with limited(n_workers), tempfile.TemporaryDirectory() as folder:
            stream.tasks = pool = LocalWorkers(1e9, "cpu")
            writer = RowWriter.into(Path(folder), firsts, N_INPUTS, 1)
            reader = replace(stream.reader, batch_rows=2**15)
            work = RouteAndWrite(reader, router, inner.inputs, inner.outputs, writer)
            begun = clocks()
            stream.sample(1000, np.random.default_rng(0))
            read = clocks()
            list(pool.map(work, stream.pieces))
            seconds[n_workers] = read - begun, clocks() - read
    return {
        "read_cpu_seconds": round(seconds[1][0][1], 2),
        "route_and_write_cpu_seconds": round(seconds[1][1][1], 2),
        "read_speedup": round(seconds[1][0][0] / seconds[2][0][0], 2),
        "route_and_write_speedup": round(seconds[1][1][0] / seconds[2][1][0], 2),
    }


def ingest(data: Path) -> dict[str, float]:
    """The passes by themselves, with the tree of a fit to the first rows in memory."""
    frame = parquet.read_table(sorted(data.glob("*.parquet"))[0]).slice(0, 60_000).to_pandas()
    model = DSMGPRegressor("rbf", leaf_size=60, effort="low", max_iter=1, random_state=0)
    model.fit(frame.drop(columns="y"), frame["y"])
    n_leaves = len(model.state_.model.family)
    firsts = np.unique(np.linspace(0, n_leaves, 41).astype(np.int64))
    found = passes(data, model, firsts)
    return {**found, "n_reached": model.state_.model.router.max_reached, "n_leaves": n_leaves}


def work(data: str, out: str, memory_limit: str, executor: str) -> dict[str, float]:
    """Fit and predict, in this process."""
    model = DSMGPRegressor(memory_limit=memory_limit, executor=executor, random_state=0)
    start = time.perf_counter()
    model.fit_dataset(data, target="y")
    fitted = time.perf_counter()
    n_rows = model.predict_dataset(data, out)
    done = time.perf_counter()
    store = model.state_.model.leaf_posterior.leaf_gps.store
    return {
        **passes(data, model, store.firsts),
        "fit_seconds": round(fitted - start, 1),
        "predict_seconds": round(done - fitted, 1),
        "predicted_rows": n_rows,
        "resident_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "n_leaves": len(store.sizes),
        "n_shards": store.n_shards,
        "mean_leaf": round(float(store.sizes.mean()), 1),
        "loo": round(model.loo_score_, 4),
        "store_gb": round(sum(path.stat().st_size for path in store.files.paths) / 1e9, 2),
    }  # fmt: skip


def error(folder: Path, out: Path) -> float:
    """Root mean square of what predictions of the training inputs are off the function by, file after file."""
    import pyarrow.dataset as pads

    total, n_rows, predicted = 0.0, 0, parquet_column(out)
    for file in sorted(folder.glob("*.parquet")):
        table = pads.dataset(str(file)).to_table()
        X = np.column_stack([table[f"x{j}"].to_numpy() for j in range(N_INPUTS)])
        mean = predicted[n_rows : n_rows + len(X)]
        total += float(np.square(mean - function(X)).sum())
        n_rows += len(X)
    return float(np.sqrt(total / n_rows))


def parquet_column(path: Path) -> np.ndarray:
    return parquet.read_table(path, columns=["y_mean"])["y_mean"].to_numpy()


def condition_seconds(size: float) -> float:
    """Core seconds in which a leaf of a size is conditioned, for each of its rows: those that benchmarks/engine.py measured on two cores."""
    engine = json.loads((HERE / "results" / "engine.json").read_text())
    sizes, micros = zip(
        *((row["M"], row["measured_us"]) for row in engine["cost_model"]["per_row"]), strict=True
    )
    return 2e-6 * float(np.interp(size, sizes, micros))


def page(rows: list[dict]) -> str:
    """The tables of docs/scaling.md: what was measured, and what follows from it on paper."""
    told = next((row for row in reversed(rows) if "route_and_write_cpu_seconds" in row), None)
    rows = sorted((row for row in rows if "fit_seconds" in row), key=lambda row: row["rows"])
    assert all(row[k] > 0 for row in rows for k in ("fit_seconds", "predict_seconds"))
    columns = {
        "rows": "rows", "memory_limit": "memory_limit", "data_gb": "data (GB)", "fit_seconds": "fit (s)", "predict_seconds": "predict all (s)",
        "resident_gb": "resident (GB)", "store_gb": "files (GB)", "n_leaves": "leaves", "mean_leaf": "rows a leaf",
        "rmse_to_function": "RMSE to the function", "loo": "leave-one-out NLPD",
    }  # fmt: skip
    last, cores = rows[-1], 2
    fit, predict = (last[k] * cores / last["rows"] for k in ("fit_seconds", "predict_seconds"))
    # What a core does with a row while it is read, routed and written; it is read twice more, for the sample and the regions that are learned on.
    ingest = (
        np.nan
        if told is None
        else (2 * told["read_cpu_seconds"] + told["route_and_write_cpu_seconds"]) / told["rows"]
    )
    # Partitions, and leaves: no more than one for each row of the largest sample, beyond which they hold more rows.
    reached = round(last["n_leaves"] * last["mean_leaf"] / last["rows"])
    on_paper = []
    for n, n_cores in ((1e8, 16), (1e8, 128), (1e9, 128), (1e9, 1024)):
        n_leaves = min(n * last["n_leaves"] / last["rows"], reached * MOST_SAMPLE)
        size = reached * n / n_leaves
        larger = reached * (condition_seconds(size) - condition_seconds(last["mean_leaf"]))
        on_paper.append({
            "rows": f"{n:.0e}".replace("e+0", "e"), "cores": n_cores, "fit": f"{n * (fit + larger) / n_cores / 60:.0f} min",
            "ingest": f"{n * ingest / n_cores / 60:.1f} min", "predict": f"{n * (predict + SOLVES * larger) / n_cores / 60:.0f} min",
            "files": f"{n * last['store_gb'] / last['rows']:,.0f} GB", "size": f"{size:.0f}",
            "tree": f"{n_leaves * TREE_BYTES / 1e9:.0f} GB",
        })  # fmt: skip
    words = {
        "rows": "rows", "cores": "cores", "fit": "fit", "ingest": "of which reading, routing, writing", "predict": "predict all",
        "files": "files", "size": "rows a leaf", "tree": "tree at the driver",
    }  # fmt: skip
    return (
        table(columns, rows)
        + f"\n\nOn paper, from the last of these: {1e6 * fit:.0f} core-microseconds a row to fit, {1e6 * predict:.0f} to predict, "
        f"{1e6 * ingest:.1f} of the fit to read, route and write, "
        f"{last['store_gb'] * 1e9 / last['rows']:.0f} bytes of files a row.\n\n"
        + table(words, on_paper)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=lambda s: int(s.replace("_", "")), default=1_000_000)
    parser.add_argument("--memory-limit", default="2GB")
    parser.add_argument("--executor", default="local")
    parser.add_argument("--ingest", action="store_true", help="only read, route and write")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--work", nargs=2, metavar=("DATA", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="few rows")
    asked = parser.parse_args()
    if asked.work:
        print(json.dumps(work(*asked.work, asked.memory_limit, asked.executor)))
        return
    if asked.quick:
        asked.rows, asked.memory_limit = 20_000, "50MB"
    path = asked.results or results_path("outofcore", asked.quick)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        data, out = Path(folder) / "data", Path(folder) / "predicted.parquet"
        data.mkdir()
        n_bytes = write(data, asked.rows)
        if asked.ingest:
            row = {
                "rows": asked.rows,
                "executor": "ingest",
                "memory_limit": "",
                **ingest(data),
                **setting(),
            }
            Runs(path, ("rows", "executor", "memory_limit")).add([row])
            print(row)
            return
        command = [
            sys.executable,
            __file__,
            "--memory-limit",
            asked.memory_limit,
            "--executor",
            asked.executor,
        ]
        found = subprocess.run(
            [*command, "--work", str(data), str(out)], stdout=subprocess.PIPE, text=True, check=True
        )
        row = {
            "rows": asked.rows, "executor": asked.executor, "memory_limit": asked.memory_limit, "data_gb": round(n_bytes / 1e9, 2),
            **json.loads(found.stdout.splitlines()[-1]), "rmse_to_function": round(error(data, out), 4), "noise": NOISE,
            **setting(),
        }  # fmt: skip
    runs = Runs(path, ("rows", "executor", "memory_limit"))
    runs.add([row])
    print(page(runs.rows))


if __name__ == "__main__":
    main()
