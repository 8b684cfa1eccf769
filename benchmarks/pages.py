"""Put the tables of results into the documentation.

    python benchmarks/pages.py [--check]

A page says ``<!-- table: accuracy -->`` where it wants the table of benchmarks/results/accuracy.json, and ``<!-- end -->``
where it ends; what stands between is replaced, with the commits and machines that the figures came from on top. ``summary``,
``unseen-brief``, ``unseen-1-brief`` and ``timings`` are the README's. ``--check`` only says whether pages are up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from statistics import mean

import accuracy
import changepoints
import cluster
import compare
import concurrency
import deep
import duplicates
import edges
import engine
import finetune
import footprint
import forecast
import learned
import memory
import outofcore
import scales
import scaling
import serving
import sharing
import sizes
import small
import soak
import sparse
import speed
import structures
import tables
import unseen
import updates
import walk
from harness import HERE, table

MODULES = (
    accuracy, changepoints, cluster, compare, concurrency, deep, duplicates, edges, engine, finetune, footprint, forecast, learned, memory, outofcore, scales, scaling, serving, sharing, sizes, small, soak, sparse, speed,
    structures, tables, unseen, updates, walk,
)  # fmt: skip
PAGES: dict[str, Callable[..., str]] = {module.__name__: module.page for module in MODULES}
# The README's peers.
SUMMARY = {
    "exact": "exact GP: RMSE, NLPD (seeds)",
    "svgp": "SVGP",
    "gpboost": "GPBoost",
    "hist-boosting": "HistGradientBoosting",
    "lightgbm": "LightGBM",
    "catboost": "CatBoost",
}
# CatBoost's default loss gives no density, its loss for uncertainty another mean: each is scored for what it is made for.
DENSITY = {"catboost": "catboost-uncertainty"}
TABLE = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def made(name: str) -> str:
    """A table between its marks: that of a file of results, or the summary."""
    if name == "summary":
        text = summary(results("accuracy"), results("accuracy-gpu"))
    elif name.startswith("side-by-side"):
        found = results(name)
        text = f"*{origin(name, found)}*\n\n{side_by_side(found)}"
    elif name == "coordinates":
        found = [
            row
            for row in results("accuracy")
            if row["method"] in accuracy.STEPS and row["seed"] == 0
        ]
        text = f"{accuracy.coordinate_steps(found)}\n\n*{origin('accuracy', found)}*"
    elif name == "timings":
        text = timings()
    elif name.startswith("unseen") and name.endswith("-brief"):
        file = name.removesuffix("-brief")
        found = results(file)
        text = f"{unseen.brief(found)}\n\n*{origin(file, found)}*"
    else:
        found = results(name)
        text = f"*{origin(name, found)}*\n\n{PAGES[name.partition('-')[0]](found)}"
    return f"<!-- table: {name} -->\n{text}\n<!-- end -->"


def results(name: str) -> list | dict:
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def summary(rows: list[dict], on_gpu: list[dict]) -> str:
    """Ours beside other GPs, boosted trees and the best of the paper's columns; means over seeds."""

    def peer(name: str, method: str, key: str) -> tuple[str, int]:
        # The same seeds: one that was run on both machines counts once.
        found = {r["seed"]: r for r in rows + on_gpu if (r["data"], r["method"]) == (name, method)}
        return _means(found.values(), (key,)), len(found)

    lines = []
    for name, ours in (
        (n, [r for r in rows if (r["data"], r["method"]) == (n, "dsmgp")]) for n in accuracy.DATA
    ):
        peers = {}
        for method in SUMMARY:
            rmse, n_seeds = peer(name, method, "rmse")
            nlpd, _ = peer(name, DENSITY.get(method, method), "nlpd")
            peers[method] = f"{rmse}, {nlpd} ({n_seeds})" if n_seeds else ""
        paper = accuracy.PAPER.get(name, {})
        best = [f"{min(cell[k] for cell in paper.values()):.2f}" for k in (0, 1)] if paper else []
        lines.append(
            {
                "data": name,
                "seeds": len(ours),
                "ours": _means(ours, ("mae", "rmse", "nlpd")),
                "covers": _means(ours, ("coverage90",)),
                **peers,
                "paper": ", ".join(best),
            }
        )
    titles = {
        "data": "data", "seeds": "seeds", "ours": "dsmgp: MAE, RMSE, NLPD", "covers": "90% covers",
        **SUMMARY, "paper": "paper's best: MAE, NLPD",
    }  # fmt: skip
    commits = ", ".join(dict.fromkeys(r["commit"] for r in rows if r["method"] == "dsmgp"))
    return f"{table(titles, lines)}\n\n*dsmgp at commit {commits}.*"


def timings() -> str:
    """The largest runs of ours, on both machines."""
    lines = []
    for source in ("scaling", "scaling-gpu", "memory"):
        ours = [r for r in results(source) if r["method"] in ("dsmgp", "dsmgp-low")]
        most = max(row["rows"] for row in ours)
        for row in (row for row in ours if row["rows"] == most):
            effort = "low" if row["method"] == "dsmgp-low" else "default"
            predicted = row.get("test_rows", row["rows"])
            lines.append(row | {"effort": effort, "predicted": predicted})
    titles = {
        "data": "data", "rows": "rows", "predicted": "predicted", "effort": "effort",
        "machine": "machine", "fit_seconds": "fit (s)", "predict_seconds": "predict (s)",
        "peak_gb": "peak of resident memory (GB)", "commit": "commit",
    }  # fmt: skip
    return table(titles, lines)


def side_by_side(rows: list[dict]) -> str:
    """Seconds of two commits in turn, runs of ``speed.py`` and ``scaling.py`` (``--job``) on one machine."""
    lines = []
    for script, data in dict.fromkeys((row["script"], row["data"]) for row in rows):
        line = {"what": f"{script}, {data}"}
        for commit in dict.fromkeys(row["commit"] for row in rows):
            own = [
                r for r in rows if (r["script"], r["data"], r["commit"]) == (script, data, commit)
            ]
            for key in ("fit", "predict"):
                seconds = (f"{row[f'{key}_seconds']:.2f}" for row in own)
                line[f"{key} {commit}"] = ", ".join(seconds)
        lines.append(line)
    return table({key: key.replace("what", "") for key in lines[0]}, lines)


def _means(rows: Collection[dict], keys: tuple[str, ...]) -> str:
    return ", ".join(f"{mean([row[key] for row in rows]):.3f}" for key in keys) if rows else ""


def origin(name: str, found: list | dict) -> str:
    rows = found if isinstance(found, list) else [found.get("setting", {}), *found.get("rows", [])]
    commits = dict.fromkeys(row["commit"] for row in rows if "commit" in row)
    machines = dict.fromkeys(row["machine"] for row in rows if "machine" in row)
    return f"benchmarks/results/{name}.json: commit {', '.join(commits)}; {'; '.join(machines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    root, stale = HERE.parent, []
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        before = path.read_text()
        after = TABLE.sub(lambda match: made(match[1]), before)
        if after != before:
            stale.append(path.relative_to(root))
            if not arguments.check:
                Path(path).write_text(after)
    for path in stale:
        print(f"{path} {'is out of date' if arguments.check else 'written'}")
    sys.exit(arguments.check and bool(stale))


if __name__ == "__main__":
    main()
