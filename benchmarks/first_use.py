"""What the first user of a fresh installation waits for: import, first fit, first prediction; with an empty cache of compiled code.

    python benchmarks/first_use.py [--against COMMIT|FOLDER] [--rows 1000] [--rounds 3] [--quick]

Each round starts two processes, one for each commit, with a new folder as NUMBA_CACHE_DIR, and fits generated rows of 8 inputs
twice. "allowed" is 1.5 times the second fit plus 2 s, in the same process. A third process finds the cache filled. Seconds of the processor are given too: on a busy
machine they say more than those of the clock. Results go to benchmarks/results/first_use.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import HERE, checked_out, results_path, setting, table, write_report

PROGRAM = """
import json, sys, time
def now(): return time.perf_counter(), time.process_time()
def since(start): return [b - a for a, b in zip(start, now())]
start = now()
import numpy as np
from dsmgp import DSMGPRegressor
found = {"import": since(start)}
rng = np.random.default_rng(0)
X = rng.uniform(size=(int(sys.argv[1]), 8))
y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=len(X))
for name in ("first", "second"):
    start = now()
    model = DSMGPRegressor(random_state=0).fit(X, y)
    found[name + " fit"] = since(start)
    start = now()
    model.predict(X[:100], return_std=True)
    found[name + " prediction"] = since(start)
print(json.dumps(found))
"""
COLUMNS = {
    "commit": "commit", "cache": "cache", "import": "import (s)", "first fit": "first fit (s)", "second fit": "second fit (s)",
    "allowed": "allowed (s)", "first prediction": "first prediction (s)", "processor": "first fit, processor (s)",
}  # fmt: skip


def run(source: Path, n_rows: int, cache: str) -> dict[str, list[float]]:
    environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-c", PROGRAM, str(n_rows)]
    return json.loads(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    )


def row(commit: str, cache: str, rounds: list[dict[str, list[float]]]) -> dict:
    clock = {name: statistics.median(r[name][0] for r in rounds) for name in rounds[0]}
    numbers = {name: round(seconds, 2) for name, seconds in clock.items()}
    numbers["allowed"] = round(1.5 * clock["second fit"] + 2.0, 2)
    numbers["processor"] = round(statistics.median(r["first fit"][1] for r in rounds), 2)
    return {"commit": commit, "cache": cache, **numbers}


def measure(sources: dict[str, Path], n_rows: int, n_rounds: int) -> list[dict]:
    found: dict[tuple[str, str], list[dict[str, list[float]]]] = {}
    for _ in range(n_rounds):
        for name, source in sources.items():
            with tempfile.TemporaryDirectory() as cache:
                for state in ("empty", "filled"):
                    found.setdefault((name, state), []).append(run(source, n_rows, cache))
                    print(name, state, json.dumps(found[name, state][-1]), flush=True)
    return [row(*key, rounds) for key, rounds in found.items()]


def page(report: dict) -> str:
    return table(COLUMNS, report["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT|FOLDER")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.rounds = 100, 1
    new = {"this": HERE.parent / "src"}
    if arguments.against is None:
        rows = measure(new, arguments.rows, arguments.rounds)
    else:
        with checked_out(arguments.against) as old:
            rows = measure({arguments.against: old, **new}, arguments.rows, arguments.rounds)
    report = {"setting": setting() | {"rows": arguments.rows}, "rows": rows}
    print(page(report))
    write_report(arguments.results or results_path("first_use", arguments.quick), report)


if __name__ == "__main__":
    main()
