"""Rows that do not fit in memory: a generated dataset in Parquet files, fitted and predicted out of core.

    python benchmarks/outofcore.py [--rows 1_000_000] [--memory-limit 2GB] [--executor local] [--ingest] [--driver] [--quick]

Writes the files to a temporary folder, then fits and predicts all of them in a process of its own, whose largest resident memory is what the system
says of it. With --driver the rows are read and the leaves computed by one Ray worker, so that the process has the memory of the driver alone; what it
holds for each leaf is measured by tracemalloc in the model that it saves. Results are kept in benchmarks/results/outofcore.json.
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
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dsmgp import DSMGPRegressor, load
from dsmgp.data.parquet.dataset import RowStream
from dsmgp.data.parquet.row_reader import BATCH_ROWS
from dsmgp.distributed.row_files import N_PART
from dsmgp.distributed.row_store import N_PREFIX, shard_bytes
from dsmgp.distributed.row_writer import RowWriter
from dsmgp.distributed.workers import LocalWorkers
from dsmgp.fitting.datasets.fit import MOST_SAMPLE, PART_BYTES, SHARDS_HELD, RouteAndWrite
from dsmgp.progress import StageTimes, listening
from harness import HERE, Runs, results_path, setting, table

N_INPUTS, NOISE, PER_FILE = 8, 0.1, 250_000
# Of the table that is extrapolated: memory_limit for each core of a machine, of which a shard takes at most what ParquetRows.set_up leaves it.
CORE_BYTES = 4e9
SHARD_BYTES = 0.5 * CORE_BYTES / SHARDS_HELD
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
        "resident_gb": peak_resident_gb(),
        "n_leaves": len(store.sizes),
        "n_shards": store.n_shards,
        "mean_leaf": round(float(store.sizes.mean()), 1),
        "loo": round(model.loo_score_, 4),
        "store_gb": round(sum(path.stat().st_size for path in store.files.paths) / 1e9, 2),
    }  # fmt: skip


def peak_resident_gb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def driver(data: str, out: str, memory_limit: str) -> dict[str, float]:
    """Fit and predict by a Ray worker, in this process: what the driver holds, and how long it takes for what it does alone."""
    import ray

    from dsmgp.ray import RayExecutor

    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    store, times = Path(out).with_name("model"), StageTimes()
    with RayExecutor(n_workers=1) as executor:
        _ = executor.workers
        before = peak_resident_gb()
        model = DSMGPRegressor(memory_limit=memory_limit, executor=executor, random_state=0)
        with listening(times):
            model.fit_dataset(data, target="y", store=store)
        fitted = peak_resident_gb()
        model.predict_dataset(data, out)
        resident = peak_resident_gb()
    n_leaves, n_sample = len(model.state_.model.family), len(model.state_.rows)
    del model
    tracemalloc.start()
    model = load(store)
    _ = model.state_.model.posterior, model.state_.model.component_weights
    held, _ = tracemalloc.get_traced_memory()
    held -= sum(table.nbytes for table in (*model.state_.rows.arrays, model.state_.rows.ids))
    return {
        "before_gb": before, "fitted_gb": fitted, "resident_gb": resident, "n_leaves": n_leaves, "n_sample": n_sample,
        "leaf_bytes": round(held / n_leaves), "growing_seconds": round(times.seconds["growing the tree"], 2),
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
    """The tables of docs/scaling.md: what was measured, and what is extrapolated from it."""
    rows = sorted(rows, key=lambda row: row["rows"])
    ingested = next((row for row in rows if "route_and_write_cpu_seconds" in row), None)
    drivers = [row for row in rows if row["executor"] == "driver"]
    fits = [row for row in rows if "fit_seconds" in row]
    assert all(row[k] > 0 for row in fits for k in ("fit_seconds", "predict_seconds"))
    measured = {
        "rows": "rows", "memory_limit": "memory_limit", "data_gb": "data (GB)", "fit_seconds": "fit (s)", "predict_seconds": "predict all (s)",
        "resident_gb": "resident (GB)", "store_gb": "files (GB)", "n_leaves": "leaves", "mean_leaf": "rows a leaf",
        "rmse_to_function": "RMSE to the function", "loo": "leave-one-out NLPD",
    }  # fmt: skip
    at_driver = {
        "rows": "rows", "memory_limit": "memory_limit", "before_gb": "resident before (GB)", "fitted_gb": "after the fit", "resident_gb": "after prediction",
        "n_sample": "rows of the sample", "n_leaves": "leaves", "leaf_bytes": "bytes a leaf", "growing_seconds": "growing the tree (s)",
    }  # fmt: skip
    parts = [table(measured, fits)]
    if drivers:
        parts += ["The driver alone, its largest resident memory:", table(at_driver, drivers)]
    if drivers and ingested:
        parts += extrapolated(fits[-1], ingested, drivers[-1])
    return "\n\n".join(parts)


def extrapolated(last: dict, ingested: dict, driver: dict) -> list[str]:
    """What the largest fit says of more rows and cores, and a table."""
    cores = 2
    fit, predict = (last[k] * cores / last["rows"] for k in ("fit_seconds", "predict_seconds"))
    # What a core does with a row while it is read, routed and written; it is read twice more, for the sample and the regions that are learned on.
    ingest = 2 * ingested["read_cpu_seconds"] + ingested["route_and_write_cpu_seconds"]
    ingest /= ingested["rows"]
    # Partitions, and leaves: no more than one for each row of the largest sample, beyond which they hold more rows.
    reached = round(last["n_leaves"] * last["mean_leaf"] / last["rows"])
    row_bytes = 8 * reached * (N_PREFIX + N_INPUTS + 1)
    lines = []
    for n, n_cores in ((1e8, 16), (1e8, 128), (1e9, 128), (1e9, 1024)):
        n_leaves = min(n * last["n_leaves"] / last["rows"], reached * MOST_SAMPLE)
        size = reached * n / n_leaves
        larger = reached * (condition_seconds(size) - condition_seconds(last["mean_leaf"]))
        n_shards = max(np.ceil(n_leaves * shard_bytes(size, N_INPUTS, 1) / SHARD_BYTES), n_cores)
        batch = max(BATCH_ROWS, np.ceil(n_shards * PART_BYTES / row_bytes))
        index = 8 * N_PART * n_shards * np.ceil(n / batch)
        alone = driver["growing_seconds"] / driver["n_sample"] * MOST_SAMPLE
        lines.append({
            "rows": f"{n:.0e}".replace("e+0", "e"), "cores": n_cores, "fit": f"{n * (fit + larger) / n_cores / 60:.0f} min",
            "ingest": f"{n * ingest / n_cores / 60:.1f} min", "alone": f"{alone / 60:.1f} min",
            "predict": f"{n * (predict + SOLVES * larger) / n_cores / 60:.0f} min",
            "files": f"{(n * row_bytes + index) / 1e9:,.0f} GB", "size": f"{size:.0f}", "n_shards": f"{n_shards:,.0f}", "batch": f"{batch:,.0f}",
            "tree": f"{n_leaves * driver['leaf_bytes'] / 1e9:.1f} GB",
        })  # fmt: skip
    words = {
        "rows": "rows", "cores": "cores", "fit": "fit", "ingest": "of which reading, routing, writing", "alone": "growing the tree, at the driver",
        "predict": "predict all", "files": "files", "size": "rows a leaf", "n_shards": "shards", "batch": "rows of a batch", "tree": "tree at the driver",
    }  # fmt: skip
    constants = (
        f"Extrapolated from the largest of these fits: {1e6 * fit:.0f} core-microseconds a row to fit, {1e6 * predict:.0f} to predict, "
        f"{1e6 * ingest:.1f} of the fit to read, route and write, {row_bytes} bytes of files a row; and from the driver's rows: {driver['leaf_bytes']:,} bytes "
        f"a leaf at the driver, {1e6 * driver['growing_seconds'] / driver['n_sample']:.0f} microseconds for each row of the sample to grow the tree. A core "
        f"has {CORE_BYTES / 1e9:g} GB of memory_limit, a shard at most {SHARD_BYTES / 1e9:.2f} GB."
    )
    return [constants, table(words, lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=lambda s: int(s.replace("_", "")), default=1_000_000)
    parser.add_argument("--memory-limit", default="2GB")
    parser.add_argument("--executor", default="local")
    parser.add_argument("--ingest", action="store_true", help="only read, route and write")
    parser.add_argument("--driver", action="store_true", help="the memory of the driver alone")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--work", nargs=2, metavar=("DATA", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="few rows")
    asked = parser.parse_args()
    if asked.work:
        done = (
            driver(*asked.work, asked.memory_limit)
            if asked.driver
            else work(*asked.work, asked.memory_limit, asked.executor)
        )
        print(json.dumps(done))
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
            [*command, *["--driver"] * asked.driver, "--work", str(data), str(out)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        if asked.driver:
            asked.executor = "driver"
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
