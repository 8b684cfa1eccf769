"""How many files and functions of the package one ``fit`` and one ``predict`` pass through.

    python benchmarks/walk.py [--against COMMIT] [--list fit|predict] [--results FILE]

A measure of how far a reader has to go to follow a row of data. Counts distinct Python functions and methods of
``dsmgp`` that are entered (lambdas, comprehensions and compiled code not counted) by a second fit with default
settings on 300 generated rows, by one with ``hypotheses=None``, and by a second ``predict`` of 10 rows. With ``--against``, another commit is checked
out to a temporary folder and measured in the same way. Results are kept in benchmarks/results/walk.json, with those of
other commits that were measured before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dsmgp
from dsmgp import DSMGPRegressor
from harness import checked_out, results_path, setting, table, write_report

PACKAGE = os.path.dirname(dsmgp.__file__) + os.sep
COLUMNS = {
    "commit": "commit", "fit_files": "fit: files", "fit_functions": "functions",
    "plain_fit_files": "fit without hypotheses: files", "plain_fit_functions": "functions",
    "predict_files": "predict: files", "predict_functions": "functions", "lines": "lines in src",
}  # fmt: skip


def functions_entered(call: Callable[[], object]) -> set[tuple[str, str]]:
    """File and qualified name of every function of the package that a call enters, on this thread and on those it starts."""
    entered: set[tuple[str, str]] = set()

    def profile(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "call" and code.co_filename.startswith(PACKAGE):
            name = code.co_qualname
            if not name.endswith(">"):  # <lambda>, <listcomp>, <genexpr>, <module>
                entered.add((code.co_filename.removeprefix(PACKAGE), name))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return entered


def walks() -> dict[str, set[tuple[str, str]]]:
    """Functions that ``fit`` and ``predict`` enter, after a first call of each has loaded and compiled what they need."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=300)
    model = DSMGPRegressor(random_state=0).fit(X, y)
    model.predict(X[:10])
    # Earlier versions had no hypotheses.
    plain = {"hypotheses": None} if hasattr(model, "hypotheses") else {}
    return {
        "fit": functions_entered(lambda: DSMGPRegressor(random_state=0).fit(X, y)),
        "plain_fit": functions_entered(lambda: DSMGPRegressor(random_state=0, **plain).fit(X, y)),
        "predict": functions_entered(lambda: model.predict(X[:10])),
    }


def measure() -> dict[str, object]:
    counts: dict[str, object] = {"commit": setting()["commit"]}
    for name, entered in walks().items():
        counts[f"{name}_files"] = len({file for file, _ in entered})
        counts[f"{name}_functions"] = len(entered)
    sources = Path(PACKAGE).rglob("*.py")
    counts["lines"] = sum(len(path.read_text().splitlines()) for path in sources)
    return counts


def measure_commit(commit: str) -> dict[str, object]:
    """The same of another commit, in a process of its own."""
    with checked_out(commit) as source:
        environment = {**os.environ, "PYTHONPATH": str(source), "DSMGP_COMMIT": commit}
        command = [sys.executable, __file__, "--json"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def page(report: dict) -> str:
    return table(COLUMNS, report["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument(
        "--list", choices=("fit", "plain_fit", "predict"), help="print the functions entered"
    )
    parser.add_argument("--json", action="store_true", help="print the counts of this commit only")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    if arguments.list:
        for file, name in sorted(walks()[arguments.list]):
            print(f"{file}: {name}")
        return
    if arguments.json:
        print(json.dumps(measure()))
        return
    rows = [measure_commit(arguments.against)] if arguments.against else []
    rows.append(measure())
    path = arguments.results or results_path("walk", False)
    earlier = json.loads(path.read_text())["rows"] if path.exists() else []
    measured = {row["commit"] for row in rows}
    rows = [*(row for row in earlier if row["commit"] not in measured), *rows]
    report = {"setting": setting(), "rows": rows}
    print(page(report))
    write_report(path, report)


if __name__ == "__main__":
    main()
