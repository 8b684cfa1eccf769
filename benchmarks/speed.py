"""Our default fit and prediction beside the peers', with what each scores.

    DSMGP_DATA=... python benchmarks/speed.py [kin40k protein ...] [--methods a,b] [--quick] [--table]

On a CPU: fit and prediction of the test rows against the fits of boosted trees (HistGradientBoosting with two quantiles for the spread,
and its mean alone; CatBoost's loss for uncertainty, and its default) and of GPBoost (Vecchia), on kin40k, protein and ``duplicates``,
40,000 generated rows of which 60% have the inputs of others; on kin40k also against GPyTorch's exact GP, which is trained until its test NLPD is ours, for at most ten times our seconds: ``curve`` in the results is its
way there. On a GPU: kin40k, protein and flight_mixed, with GPyTorch's exact GP and SVGP of 1024 points beside it. Each run has a
process of its own and makes a small fit first, so that starting up does not count. Seconds of the processor are kept beside those of
the clock, for a machine that is shared. Seconds to import dsmgp and what it stands on come last, unless data sets are named. Results are kept in benchmarks/results/speed.json (on a GPU speed-gpu.json), with commit and
machine; what is there is not run again (``--again`` does). ``--quick`` uses generated rows.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

import duplicates
import peers
from harness import (
    Runs,
    brief_score,
    generated,
    interleaved,
    on_gpu,
    peak_memory,
    results_path,
    run_apart,
    setting,
    standardise,
    standardised,
    table,
)
from peers import Method, gaussian, per_output

# Methods by data set, ours first.
TREES = ["hist-boosting", "hist-boosting-mean", "catboost-uncertainty", "catboost"]
ON_CPU = {
    "kin40k": ["dsmgp", *TREES, "gpboost", "gpytorch-exact", "gpytorch-cholesky"],
    "protein": ["dsmgp", *TREES, "gpboost"],
    "duplicates": ["dsmgp", *TREES, "gpboost"],
}
ON_GPU = {
    "kin40k": ["dsmgp", "gpytorch-exact", "gpytorch-cholesky", "svgp"],
    "protein": ["dsmgp", "gpytorch-exact", "gpytorch-cholesky", "svgp"],
    "flight_mixed": ["dsmgp", "svgp"],
}
QUICK = {"generated": ["dsmgp", "gpytorch-cholesky"]}
# Seconds on one H200, and our fit and prediction over a peer's fit on two cores: at most.
SECONDS_ON_GPU = {"kin40k": 6, "protein": 15, "flight_mixed": 60}
RATIO_ON_CPU = {"gpboost": 0.5, "gpytorch-exact": 0.1, "gpytorch-cholesky": 0.1}
# Rows with the inputs of others, as a share of the training rows.
N_DUPLICATES, N_DUPLICATES_TEST, SHARE = 40_000, 10_000, 0.6
# Seconds that importing us may take over importing torch and gpytorch.
IMPORT_SECONDS = 0.2
# A peer that is raced is trained for at most so many times our seconds; rows that its way is scored on, and how often: after
# so large a share of the time.
PATIENCE, CURVE_ROWS, SCORED_EVERY = 10.0, 3000, 0.25
# SVGP's training, per output, on rows that 30 epochs would take too long for.
SVGP_SECONDS = 120.0
LIMIT = 3600.0
COLUMNS = {
    "data": "data", "method": "method", "rows": "rows", "test_rows": "test rows",
    "fit_seconds": "fit (s)", "fit_processor": "fit (processor s)", "predict_seconds": "predict (s)",
    "predict_processor": "predict (processor s)", "rmse": "RMSE", "nlpd": "NLPD",
    "n_evaluations": "evaluations", "ratio": "our fit + predict over its fit", "target": "at most",
    "peak_gb": "peak GB", "note": "",
}  # fmt: skip


def data(name: str, seed: int) -> tuple[np.ndarray, ...]:
    if name == "generated":
        return standardise(*generated(400, 200))
    if name == "duplicates":
        kind = "random inputs"
        X, y = duplicates.rows_of(N_DUPLICATES, kind, SHARE, seed)
        X_test, y_test = duplicates.rows_of(N_DUPLICATES_TEST, kind, 0.0, seed + 1)
        return standardise(X, y[:, None], X_test, y_test[:, None])
    return standardised(name, seed)


def race(job: dict, X_test: np.ndarray, Y_test: np.ndarray) -> Method:
    """GPyTorch's exact GP until it scores as we do on the test rows, or is out of time."""
    some = np.random.default_rng(0).permutation(len(X_test))[:CURVE_ROWS]
    curve: list[dict] = []

    def fit(X, y, seed):
        cholesky = job["method"] == "gpytorch-cholesky"
        seen = 0.0
        for seconds, prediction in peers.exact_gp_steps(X, y, seed, cholesky, 10**6):
            # Scoring takes longer than many steps, and is not counted: it is done now and then.
            if seconds - seen < SCORED_EVERY * job["within"] and seconds < job["within"]:
                continue
            seen, predict = seconds, prediction()
            found = brief_score(gaussian(*predict(X_test[some])), Y_test[some])
            curve.append({"seconds": round(seconds, 3)} | found)
            if found["nlpd"] <= job["until"] or seconds > job["within"]:
                return predict
        raise AssertionError("the race never ends without an answer")

    def run(X, Y, X_test, seed):
        law, note = per_output(fit)(X, Y, X_test, seed)
        reached = curve[-1]["nlpd"] <= job["until"]
        # What was counted by the race: training, without the scores on the way.
        said = "our NLPD reached" if reached else "our NLPD not reached"
        return law, note | {"fit_seconds": curve[-1]["seconds"], "curve": curve, "note": said}

    return run


def method_of(job: dict, X_test: np.ndarray, Y_test: np.ndarray) -> Method:
    if "until" in job:
        return race(job, X_test, Y_test)
    if job["method"] == "svgp" and job["data"] == "flight_mixed":
        return per_output(peers.svgp(most_seconds=SVGP_SECONDS))
    return peers.METHODS[job["method"]]


def measure(job: dict) -> dict:
    """One run, in this process."""
    X, Y, X_test, Y_test = data(job["data"], job["seed"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peers.warm_up(peers.METHODS[job["method"]], Y.shape[1])
        law, note = method_of(job, X_test, Y_test)(X, Y, X_test, job["seed"])
    kept = (
        "fit_seconds", "fit_processor", "predict_seconds", "predict_processor", "n_evaluations", "curve", "note",
    )  # fmt: skip
    peak = peak_memory()
    return {
        "rows": len(X),
        "test_rows": len(X_test),
        **{key: note[key] for key in kept if key in note},
        **brief_score(law, Y_test),
        "peak_gb": round(peak, 2),
    }


def run(
    runs: Runs, name: str, method: str, seed: int, limit: float, patience: float = PATIENCE
) -> None:
    """A row of the results, made unless it is there."""
    key = {"data": name, "method": method, "seed": seed}
    if runs.is_due(**key):
        job, ours = dict(key), runs.find(data=name, method="dsmgp", seed=seed)
        if method.startswith("gpytorch") and not on_gpu() and ours and "failed" not in ours:
            job |= {"until": ours["nlpd"], "within": patience * total(ours)}
        row = key | run_apart(__file__, job, limit) | setting()
        runs.add([row])
        print({k: v for k, v in row.items() if k != "curve"}, flush=True)


def total(row: dict) -> float:
    return row["fit_seconds"] + row["predict_seconds"]


def compared(rows: list[dict]) -> list[dict]:
    """The rows with ratios, where ours is of the same machine: ours over the peers' fit, and the targets."""
    fits = [row for row in rows if row["method"] == "dsmgp" and "rows" in row]
    ours = {row["data"]: total(row) for row in fits}
    machines = {row["data"]: row["machine"] for row in fits}
    found = []
    for row in rows:
        row = {**row, "note": row.get("failed", row.get("note"))}
        gpu = "cores" not in row["machine"]
        if row["method"] == "dsmgp":
            row["note"] = f"fit + predict {ours.get(row['data'], math.nan):.1f} s"
            seconds = SECONDS_ON_GPU.get(row["data"])
            row["target"] = f"{seconds} s" if gpu and seconds else None
        elif (
            "rows" in row
            and machines.get(row["data"]) == row["machine"]
            and not row["method"].startswith("dsmgp")
        ):
            row["ratio"] = ours[row["data"]] / row["fit_seconds"]
            row["target"] = None if gpu else RATIO_ON_CPU.get(row["method"])
        found.append(row)
    return found


def page(rows: list[dict]) -> str:
    return table(COLUMNS, compared(rows))


def run_imports(runs: Runs, seed: int, seconds: float) -> None:
    """The least time fresh interpreters take to import us, and what we stand on.

    ``import dsmgp`` loads the regressor when it is asked for; a row with scikit-learn says what that takes of it.
    """
    variants = {
        what: lambda what=what: subprocess.run([sys.executable, "-c", what], check=True)
        for what in (
            "import torch, gpytorch",
            "import torch, gpytorch, sklearn.base",
            "import dsmgp",
            "from dsmgp import DSMGPRegressor",
        )
    }
    least = {what: min(times) for what, times in interleaved(variants, seconds, least=1).items()}
    most = least["import torch, gpytorch"] + IMPORT_SECONDS
    rows = []
    for what, taken in least.items():
        row = {"data": "", "method": what, "seed": seed, "note": f"{taken:.2f} s"}
        if "dsmgp" in what:
            row |= {
                "target": f"{most:.2f} s",
                "note": f"{taken:.2f} s ({taken - most:+.2f} s against the target)",
            }
        print(f"{what}: {row['note']}", flush=True)
        rows.append(row | setting())
    runs.add(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--methods", help="instead of those that belong to the data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one run")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(measure(arguments.job)))
        return
    path = arguments.results or results_path("speed", arguments.quick)
    runs = Runs(path, ("data", "method", "seed"), arguments.again)
    plan = QUICK if arguments.quick else ON_GPU if on_gpu() else ON_CPU
    if not arguments.table:
        for name in arguments.data or plan:
            methods = arguments.methods.split(",") if arguments.methods else plan[name]
            for method in methods:
                patience = 1.0 if arguments.quick else PATIENCE
                run(runs, name, method, arguments.seed, arguments.limit, patience)
        if not arguments.data:
            run_imports(runs, arguments.seed, 0.0 if arguments.quick else 60.0)
    print(page(runs.rows))


if __name__ == "__main__":
    main()
