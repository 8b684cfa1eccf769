"""Put the tables of results into the documentation.

    python benchmarks/pages.py [--check]

A page says ``<!-- table: accuracy -->`` where it wants the table of benchmarks/results/accuracy.json, and ``<!-- end -->``
where it ends; what stands between is replaced, with the commits and machines that the figures came from on top. ``claim``, ``answer``, ``summary``,
``unseen-brief``, ``unseen-1-brief`` and ``timings`` are those of the README and the home page. ``--check`` only says whether pages are up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import accuracy
import boosting
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
import invariance
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
    accuracy, boosting, changepoints, cluster, compare, concurrency, deep, duplicates, edges, engine, finetune, footprint, forecast, invariance, learned, memory, outofcore, scales, scaling, serving, sharing, sizes, small, soak, sparse, speed,
    structures, tables, unseen, updates, walk,
)  # fmt: skip
PAGES: dict[str, Callable[..., str]] = {module.__name__: module.page for module in MODULES}
# The README's methods.
SUMMARY = {
    "dsmgp": "dsmgp",
    "exact": "exact GP",
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
    elif name == "claim":
        text = unseen.claim(results("unseen"), results("unseen-1"))
    elif name == "answer":
        text = unseen.answer(results("unseen-1"))
    elif name == "tables-brief":
        text = tables.verdict(results("tables"))
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
    """RMSE and NLPD of ours and of its peers, means over seeds, the best of each table in bold."""
    # Ours by one machine: accuracy-gpu also has earlier runs of it.
    rows = rows + [row for row in on_gpu if row["method"] != "dsmgp"]
    lines = []
    for name in accuracy.DATA:
        ours = [r for r in rows if (r["data"], r["method"]) == (name, "dsmgp")]
        scores = {
            method: [
                # The same seeds: one that was run on both machines counts once.
                {r["seed"]: r[key] for r in rows if (r["data"], r["method"]) == (name, of)}
                for key, of in (("rmse", method), ("nlpd", DENSITY.get(method, method)))
            ]
            for method in SUMMARY
        }
        means = {m: [mean(s.values()) for s in both] for m, both in scores.items() if all(both)}
        best = [min(both[k] for both in means.values()) for k in (0, 1)]
        line = {"data": name}
        for method, both in means.items():
            shown = (
                f"**{m:.3f}**" if m == b else f"{m:.3f}" for m, b in zip(both, best, strict=True)
            )
            n_seeds = len(scores[method][0])
            line[method] = ", ".join(shown) + (f" ({n_seeds})" if n_seeds < len(ours) else "")
        lines.append(line)
    commits = ", ".join(dict.fromkeys(r["commit"] for r in rows if r["method"] == "dsmgp"))
    note = (
        "RMSE, NLPD; lower is better, the best in bold. In brackets: the number of seeds, where a "
        "peer was run on fewer than dsmgp."
    )
    return f"{table({'data': 'data', **SUMMARY}, lines)}\n\n*{note} dsmgp at commit {commits}.*"


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
