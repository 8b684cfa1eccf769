"""What it takes to learn a row more, or to forget one, beside fitting again.

    python benchmarks/updates.py [--rows 100000] [--effort medium] [--quick]

Generated rows of 8 inputs. A fit, then rows one at a time (each leaf that a row reaches for the first time has its matrices copied
once: the median is what it takes after that, the first row stands apart), a batch of 100, and rows forgotten one at a time; all
without what is due after many changes. Results go to benchmarks/results/updates.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dsmgp import DSMGPRegressor
from harness import HERE, generated, setting, table, write_report

RESULTS = HERE / "results" / "updates.json"
# A row more must be so many times faster than a fit.
LEAST_RATIO = 50
COLUMNS = {
    "work": "work", "rows": "rows at once", "milliseconds": "ms (median)",
    "ratio": "a fit takes so many times as long", "least": "at least",
}  # fmt: skip


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(n_rows: int, effort: str, n_single: int) -> dict:
    X, Y, more, more_Y = generated(n_rows, n_single + 100)
    y, more_y = Y[:, 0], more_Y[:, 0]
    DSMGPRegressor(random_state=0).fit(X[:500], y[:500]).partial_fit(X[:1], y[:1])  # warms up
    model = DSMGPRegressor(effort=effort, random_state=0)
    fit = timed(lambda: model.fit(X, y))
    largest = int(model.state_.model.leaf_posterior.leaf_rows.sizes.max())
    single = [
        timed(lambda k=k: model.partial_fit(more[k : k + 1], more_y[k : k + 1], adapt=False))
        for k in range(n_single)
    ]
    batch = timed(lambda: model.partial_fit(more[n_single:], more_y[n_single:], adapt=False))
    forgotten = [
        timed(lambda k=k: model.forget([k], adapt=False))
        for k in np.random.default_rng(0).permutation(n_rows)[:n_single].tolist()
    ]
    rows = [
        {"work": "fit", "rows": n_rows, "milliseconds": 1e3 * fit},
        {"work": "partial_fit, the first row", "rows": 1, "milliseconds": 1e3 * single[0]},
        {"work": "partial_fit", "rows": 1, "milliseconds": 1e3 * float(np.median(single[1:])),
         "least": LEAST_RATIO},
        {"work": "partial_fit", "rows": 100, "milliseconds": 1e3 * batch},
        {"work": "forget", "rows": 1, "milliseconds": 1e3 * float(np.median(forgotten))},
    ]  # fmt: skip
    for row in rows[1:]:
        row["ratio"] = 1e3 * fit / row["milliseconds"]
    described = setting() | {
        "rows": n_rows, "effort": effort, "partitions": len(model.tree_.children),
        "largest_leaf": largest,
    }  # fmt: skip
    return {"setting": described, "rows": rows}


def page(report: dict) -> str:
    told = report["setting"]
    head = (
        f"{told['rows']} rows, effort {told['effort']}: {told['partitions']} partitions, "
        f"leaves of up to {told['largest_leaf']} rows."
    )
    return f"{head}\n\n{table(COLUMNS, report['rows'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--effort", default="medium")
    parser.add_argument("--single", type=int, default=40)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.single = 1000, 5
    report = measure(arguments.rows, arguments.effort, arguments.single)
    write_report(arguments.results, report)
    print(page(report))


if __name__ == "__main__":
    main()
