"""Hours of use in one process: fit, predict (also from eight threads at once), partial_fit, forget, fine-tune, save, load, again and again on random rows; and faults.

    python benchmarks/soak.py [--minutes 60] [--seed 0] [--quick] [--results FILE]

After every round the model is read back from a file, which conditions its leaves anew: what it says must be what the model says that
has been updated row by row (drift, in predictive standard deviations). After every other round a fault of benchmarks/faults.py is put in, in turn: a full disk, signals at any time, a process or a Ray worker that is
killed, threads that predict while rows are added and removed, a GPU that is shared. Resident memory is read after each round; the first fifth of the
rounds warms up, and the rest is split in halves, whose medians are compared. Results are kept in
benchmarks/results/soak.json. ``--quick`` takes half a minute.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import dsmgp
from dsmgp import DSMGPRegressor
from faults import possible_faults
from harness import results_path, setting, table, write_report

# Models that take different ways: compiled, in batches, with GPyTorch's kernels, with several outputs.
KINDS = (
    {"kernel": "matern32"},
    {"kernel": "rbf", "weights": "posterior", "mean": "linear"},
    {"kernel": "rbf", "dtype": "float32", "weights": "uniform"},
    {"kernel": "rbf+matern12", "max_iter": 2},
    {"kernel": "auto", "effort": "low", "memory_limit": "2MB"},
)
# Threads that share a model.
N_THREADS = 8
COLUMNS = {
    "minutes": "minutes", "rounds": "rounds", "calls": "calls", "first_mb": "first half (MB)",
    "last_mb": "second half (MB)", "growth": "growth (MB)", "drift": "drift of mean (std)",
    "spread_drift": "drift of std (relative)", "single_drift": "drift in single precision (std)",
    "faults": "faults put in",
}  # fmt: skip


def resident() -> float:
    """Memory of this process now, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def rows(rng: np.random.Generator, n: int, n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.uniform(-2, 2, size=(n, 3))
    f = np.sin(2 * X[:, 0]) + np.abs(X[:, 1])
    Y = np.column_stack([f + k * X[:, 2] for k in range(n_outputs)])
    return X, Y + 0.1 * rng.normal(size=Y.shape)


def one_round(rng: np.random.Generator, kind: dict, path: Path) -> tuple[int, float, float]:
    """A model's life; how many calls it took, and how far mean and standard deviation drifted in it."""
    n_outputs = int(rng.integers(1, 3))
    options = {"leaf_size": 60, "sum_children": 2, "max_iter": 5, **kind}
    model = DSMGPRegressor(**options, random_state=int(rng.integers(1000)))
    model.fit(*rows(rng, int(rng.integers(100, 400)), n_outputs))
    n_calls = 1
    for _ in range(int(rng.integers(3, 10))):
        match rng.integers(5):
            case 0 | 1:
                model.partial_fit(*rows(rng, int(rng.integers(1, 40)), n_outputs))
            case 2:
                ids = model.row_ids_
                model.forget(rng.choice(ids, size=min(len(ids) // 3, 30), replace=False))
            case 3:
                model.predict_dist(rows(rng, 50, 1)[0]).interval(0.9)
                n_calls += ask_from_threads(model, rows(rng, 20, 1)[0])
            case _:
                model.finetune(max_iter=2)
        n_calls += 1
    new, _ = rows(rng, 100, 1)
    mean, std = model.predict(new, return_std=True)
    model.save(path)
    again, again_std = dsmgp.load(path).predict(new, return_std=True)
    drift = float(np.abs((again - mean) / std).max())
    return n_calls + 4, drift, float(np.abs(again_std / std - 1).max())


def ask_from_threads(model: DSMGPRegressor, X: np.ndarray) -> int:
    """Ask from several threads at once; the number of calls. An answer that differs from that of one thread is an error."""
    expected = model.predict(X, return_std=True)
    with ThreadPoolExecutor(N_THREADS) as threads:
        asked = [threads.submit(model.predict, X, return_std=True) for _ in range(4 * N_THREADS)]
        for each in asked:
            np.testing.assert_array_equal(each.result(), expected)
    return len(asked) + 1


def soak(minutes: float, seed: int, quick: bool = False) -> dict:
    rng, end = np.random.default_rng(seed), time.monotonic() + 60 * minutes
    memory, drifts, spreads, single, n_calls = [], [0.0], [0.0], [0.0], 0
    possible, faults = possible_faults(quick), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end or len(memory) < 2 * len(KINDS):
            kind = KINDS[len(memory) % len(KINDS)]
            calls, drift, spread = one_round(rng, kind, Path(folder) / "model.dsmgp")
            n_calls += calls
            (single if kind.get("dtype") == "float32" else drifts).append(drift)
            if kind.get("dtype") != "float32":
                spreads.append(spread)
            if len(memory) % 2:
                name = list(possible)[faults.total() % len(possible)]
                with tempfile.TemporaryDirectory() as other:
                    possible[name](rng, Path(other))
                faults[name] += 1
            memory.append(resident())
    warm = memory[len(memory) // 5 :]
    first, last = (float(np.median(m)) for m in np.array_split(warm, 2))
    return {
        "minutes": minutes, "rounds": len(memory), "calls": n_calls, "first_mb": first,
        "last_mb": last, "growth": last - first, "drift": max(drifts),
        "spread_drift": max(spreads), "single_drift": max(single),
        "faults": ", ".join(f"{name} {n}" for name, n in faults.items()), **setting(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    report = soak(0.5 if given.quick else given.minutes, given.seed, given.quick)
    path = given.results or results_path("soak", given.quick)
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {"rows": [row for row in before if row["minutes"] != report["minutes"]] + [report]}
    write_report(path, found)
    print(page(found))


def page(report: dict) -> str:
    return table(COLUMNS, report["rows"])


if __name__ == "__main__":
    main()
