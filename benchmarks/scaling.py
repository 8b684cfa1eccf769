"""Cost against the number of rows, and accuracy against time, for us and the peers.

    [DSMGP_DATA=...] python benchmarks/scaling.py [--sizes 1000,...] [--methods a,b] [--limit 120] [--quick] [--table]

Generated rows of 8 inputs, a tenth as many predicted: seconds to fit and to predict, and the peak of resident memory. ``dsmgp-fixed`` has
leaves of fixed sizes, so its cost should grow as N; ``dsmgp-low`` and ``dsmgp`` are the efforts "low" and "medium". A
peer that does not end within the limit is not tried on more rows. On kin40k (where DSMGP_DATA is
set) all methods are scored too. Each run has a process of its own and makes a small fit first, which is not counted. Results
are kept in benchmarks/results/scaling.json (on a GPU scaling-gpu.json), one row per run, and what is there is not run
again (``--again`` does); plots go to docs/images.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path

import numpy as np
import torch

import peers
from harness import (
    HERE,
    Runs,
    brief_score,
    generated,
    on_gpu,
    peak_memory,
    results_path,
    run_apart,
    setting,
    standardise,
    standardised,
    table,
)

SIZES = (1_000, 10_000, 100_000, 1_000_000)
FIXED_SIZES = (125, 250, 500)
METHODS = peers.METHODS | {"dsmgp-fixed": peers.ours("low", leaf_size=list(FIXED_SIZES))}
OURS = ["dsmgp-fixed", "dsmgp-low", "dsmgp"]
PEERS = ["hist-boosting", "svgp", "gpytorch-exact", "gpboost", "ngboost", "sklearn-2000"]
# Beyond, these are not what their name says, or hopeless.
MOST_ROWS = {"sklearn-2000": 2_000, "gpytorch-exact": 20_000, "gpboost": 100_000}
# Where accuracy is plotted against time.
SCORED = "kin40k"
QUICK_METHODS = ["dsmgp-fixed", "hist-boosting"]
# Exponent of fixed leaf sizes from 1e4 to 1e6 rows; seconds to fit 1e6 rows and predict 1e5: at most.
MOST_SLOPE, SLOPE_FROM = 1.1, 10_000
MOST_SECONDS = {"cpu": {"dsmgp-low": 120}, "gpu": {"dsmgp": 20}}
COLUMNS = {
    "data": "data", "method": "method", "rows": "rows", "test_rows": "predicted",
    "fit_seconds": "fit (s)", "predict_seconds": "predict (s)", "target": "both at most",
    "peak_gb": "peak GB", "rmse": "RMSE", "nlpd": "NLPD", "failed": "",
}  # fmt: skip


def measure(job: dict) -> dict:
    """One run, in this process."""
    method = METHODS[job["method"]]
    if job["data"] == "generated":
        split = standardise(*generated(job["rows"], max(job["rows"] // 10, 100)))
    else:
        split = standardised(job["data"], 0)
    X, Y, X_test, Y_test = split
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peers.warm_up(method)
        loaded = peak_memory()
        law, note = method(X, Y, X_test, 0)
    peak = peak_memory()  # before the scores, which are not ours to answer for
    return {
        "rows": len(X),
        "test_rows": len(X_test),
        **{k: note[k] for k in ("fit_seconds", "predict_seconds", "n_evaluations") if k in note},
        **brief_score(law, Y_test),
        "loaded_gb": round(loaded, 3),
        "peak_gb": round(peak, 3),
        "gpu_gb": round(torch.cuda.max_memory_allocated() / 1e9, 3) if on_gpu() else None,
    }


def run(runs: Runs, key: dict, limit: float) -> dict:
    """A row of the results, made unless it is there."""
    if runs.is_due(**key):
        row = key | run_apart(__file__, key, limit) | key | setting()
        runs.add([row])
        print(row, flush=True)
    return runs.find(**key)


def run_all(runs: Runs, sizes: list[int], methods: list[str], limit: float) -> None:
    """Every method on more and more rows, as long as it ends within the limit; ours are given ten times that."""
    for method in methods:
        patience = 10 * limit if method in OURS else limit
        for n_rows in sizes:
            if n_rows > MOST_ROWS.get(method, n_rows):
                break
            key = {"data": "generated", "method": method, "rows": n_rows}
            if "failed" in run(runs, key, patience):
                break


def run_scored(runs: Runs, methods: list[str], limit: float) -> None:
    for method in methods:
        run(runs, {"data": SCORED, "method": method, "rows": 10_000}, limit)


def slopes(rows: list[dict]) -> list[dict]:
    """Exponents b of ``seconds = a N^b``, by least squares in logarithms, of methods with two sizes or more."""
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in done(rows, "generated") if row["method"] == method]
        own = [row for row in own if row["rows"] >= SLOPE_FROM] or own
        if len({row["rows"] for row in own}) < 2:
            continue
        n = np.log([row["rows"] for row in own])
        times = {
            "fit": [row["fit_seconds"] for row in own],
            "predict": [row["predict_seconds"] for row in own],
            "both": [seconds(row) for row in own],
        }
        line = {name: float(np.polyfit(n, np.log(t), 1)[0]) for name, t in times.items()}
        sizes = f"{min(row['rows'] for row in own):g} to {max(row['rows'] for row in own):g}"
        target = MOST_SLOPE if method == "dsmgp-fixed" else None
        found.append({"method": method, "sizes": sizes, **line, "target": target})
    return found


def done(rows: list[dict], data: str) -> list[dict]:
    return [row for row in rows if row["data"] == data and "failed" not in row]


def seconds(row: dict) -> float:
    return row["fit_seconds"] + row["predict_seconds"]


def page(rows: list[dict]) -> str:
    """The results in words."""
    order = {"generated": 0}
    lines = []
    for row in sorted(rows, key=lambda row: order.get(row["data"], 1)):
        targets = MOST_SECONDS["gpu" if "cores" not in row["machine"] else "cpu"]
        last = row["rows"] == SIZES[-1]
        lines.append(row | {"target": targets.get(row["method"]) if last else None})
    columns = {"method": "method", "sizes": "rows", "fit": "fit", "predict": "predict"}
    columns |= {"both": "both", "target": "both at most"}
    parts = [table(COLUMNS, lines), "Exponent of the seconds:", table(columns, slopes(rows))]
    return "\n\n".join(parts)


def draw(rows: list[dict], folder: Path) -> None:
    """Cost against N, and accuracy against time, as PNG and SVG."""
    try:
        import matplotlib
    except ImportError:
        print("no plots: matplotlib is missing")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    methods = list(dict.fromkeys(row["method"] for row in rows))
    colours = {m: f"C{k % 10}" for k, m in enumerate(methods)}
    figure, axis = plt.subplots(figsize=(6, 4.2), layout="constrained")
    for method in methods:
        own = [row for row in done(rows, "generated") if row["method"] == method]
        own.sort(key=lambda row: row["rows"])
        if own:
            style = "o-" if method.startswith("dsmgp") else "s--"
            axis.loglog(
                [r["rows"] for r in own],
                [seconds(r) for r in own],
                style,
                color=colours[method],
                label=method,
            )
    axis.set(xlabel="training rows", ylabel="seconds to fit, and predict a tenth as many")
    axis.legend(fontsize=8)
    save(figure, folder / "scaling")
    scored = done(rows, SCORED)
    if scored:
        figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
        for axis, key, title in zip(axes, ("rmse", "nlpd"), ("RMSE", "NLPD"), strict=True):
            for row in scored:
                marker = "o" if row["method"].startswith("dsmgp") else "s"
                axis.plot(seconds(row), row[key], marker, color=colours[row["method"]])
                axis.annotate(
                    row["method"], (seconds(row), row[key]), (4, 4), textcoords="offset points",
                    fontsize=8,
                )  # fmt: skip
            axis.set(xscale="log", xlabel="seconds to fit and predict", ylabel=f"{SCORED}: {title}")
        save(figure, folder / "accuracy_time")


def save(figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = "-gpu" if on_gpu() else ""
    for kind in ("png", "svg"):
        figure.savefig(path.with_name(f"{path.name}{suffix}.{kind}"), dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--methods", default=",".join(OURS + PEERS))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a peer's run")
    parser.add_argument("--scored-limit", type=float, default=1800.0, help=f"the same on {SCORED}")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true", help="only print and draw what is there")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--images", type=Path, default=HERE.parent / "docs" / "images")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(measure(arguments.job)))
        return
    path = arguments.results or results_path("scaling", arguments.quick)
    runs = Runs(path, ("data", "method", "rows"), arguments.again)
    if arguments.quick:
        arguments.images = path.parent
        run_all(runs, [300, 600], QUICK_METHODS, arguments.limit)
    elif not arguments.table:
        methods = arguments.methods.split(",")
        run_all(runs, [int(n) for n in arguments.sizes.split(",")], methods, arguments.limit)
        if "DSMGP_DATA" in os.environ:
            scored = [m for m in methods if m != "dsmgp-fixed"]
            scored += ["dsmgp-high"] if "dsmgp" in methods else []
            run_scored(runs, scored, arguments.scored_limit)
    print(page(runs.rows))
    draw(runs.rows, arguments.images)


if __name__ == "__main__":
    main()
