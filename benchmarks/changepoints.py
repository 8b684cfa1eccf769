"""Where does it break? Positions of changes against ruptures': ``python benchmarks/changepoints.py``.

Generated: 400 rows of a GP that is drawn anew in every segment, five jumps at known rows, each of at least four standard deviations of the noise, with and without outliers (2% of the rows,
ten times the noise), and series without any jump; several seeds. Found is what ``changepoints(0.5)`` says; a jump counts as found if a position lies within 3 rows of it, each
position for one jump only. ruptures: PELT and dynamic programming, the latter told the true number of changes; penalties as
its documentation has them (2 sigma^2 log n, sigma from differences of neighbours; log n for its kernel cost).
well_log: no truth is known, so the methods' positions are compared with one another within 10 rows. Its outliers come in runs: robust, segments have
at least 15 rows.
Prints a table, writes benchmarks/results/changepoints.json and, with well_log, docs/images/changes.png. Needs ruptures.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dsmgp import ChangePoints, DSMGPRegressor
from dsmgp.datasets import load
from harness import HERE, Runs, results_path, setting, table

FIGURE = HERE.parent / "docs" / "images" / "changes.png"
N_ROWS, N_JUMPS, NOISE, TOLERANCE, WELL_TOLERANCE = 400, 5, 0.15, 3, 10
WELL_SHORTEST = 15
KEYS = ("data", "method", "seed")
COLUMNS = {
    "data": "data", "method": "method", "seeds": "seeds", "n_true": "jumps", "n_found": "found",
    "precision": "precision", "recall": "recall", "f1": "F1", "away": "rows away (mean)", "seconds": "seconds",
}  # fmt: skip
WELL_COLUMNS = {
    "method": "method", "n_found": "changes", "agrees": "of them near one of dsmgp robust", "met": "of dsmgp robust near one of these",
    "seconds": "seconds",
}  # fmt: skip


def broken(seed: int, outliers: bool) -> tuple[np.ndarray, np.ndarray]:
    """Observations of a GP drawn anew in each segment, and the rows at which segments begin."""
    rng = np.random.default_rng(seed)
    while True:
        jumps = np.sort(rng.choice(np.arange(25, N_ROWS - 25), N_JUMPS, replace=False))
        if np.diff(jumps).min() >= 25:
            break
    y = np.empty(N_ROWS)
    for own in np.split(np.arange(N_ROWS), jumps):
        r = (own[:, None] - own) / 60.0
        K = np.exp(-0.5 * r**2) + 1e-9 * np.eye(len(own))
        while True:  # until it jumps by four standard deviations of the noise
            y[own] = np.linalg.cholesky(K) @ rng.normal(size=len(own))
            if own[0] == 0 or abs(y[own[0]] - y[own[0] - 1]) > 4 * NOISE:
                break
    y += NOISE * rng.normal(size=N_ROWS)
    if outliers:
        rows = rng.choice(N_ROWS, N_ROWS // 50, replace=False)
        y[rows] += 10 * NOISE * rng.normal(size=len(rows))
    return y, jumps


UNBROKEN = {
    "noise alone": lambda rng: NOISE * rng.normal(size=N_ROWS),
    "a sine": lambda rng: np.sin(np.arange(N_ROWS) / 25) + NOISE * rng.normal(size=N_ROWS),
    "a line": lambda rng: np.arange(N_ROWS) / 100 + NOISE * rng.normal(size=N_ROWS),
    "random walk": lambda rng: np.cumsum(NOISE * rng.normal(size=N_ROWS)),
}


def series(data: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations, and the rows at which they jump."""
    if data in UNBROKEN:
        return UNBROKEN[data](np.random.default_rng(seed)), np.empty(0, dtype=int)
    return broken(seed, "outliers" in data)


def ours(y: np.ndarray, outliers: bool, shortest: int = 1, **options: object) -> DSMGPRegressor:
    changes = ChangePoints(outliers=outliers, shortest=shortest)
    model = DSMGPRegressor(structure=changes, **options)
    with warnings.catch_warnings(record=True) as told:
        model.fit(np.arange(float(len(y)))[:, None], y)
    for each in told:
        print(each.message)
    return model


def positions(model: DSMGPRegressor) -> list[int]:
    """The rows before which changes lie."""
    return [int(np.ceil(change.position)) for change in model.changepoints(0.5)]


def by_ruptures(y: np.ndarray, cost: str, n_changes: int | None = None) -> list[int]:
    import ruptures  # here, so that pages.py can do without

    if cost == "linear":  # a line in each segment: it wants the regressors beside y
        sigma = np.median(np.abs(np.diff(y))) / (0.6745 * np.sqrt(2.0))
        signal = np.column_stack([y, np.arange(len(y)), np.ones(len(y))])
        search = ruptures.Pelt(model="linear", min_size=5, jump=1).fit(signal)
        return search.predict(pen=3.0 * sigma**2 * np.log(len(y)))[:-1]
    if n_changes is not None:
        return ruptures.Dynp(model=cost, min_size=3, jump=2).fit(y).predict(n_changes)[:-1]
    sigma = np.median(np.abs(np.diff(y))) / (0.6745 * np.sqrt(2.0))
    penalty = np.log(len(y)) * (1.0 if cost == "rbf" else 2.0 * sigma**2)
    return ruptures.Pelt(model=cost, min_size=3, jump=1).fit(y).predict(pen=penalty)[:-1]


def matched(found: Sequence[int], true: Sequence[int], tolerance: int) -> list[int]:
    """Distances of positions from jumps, each used once, the nearest pairs first."""
    pairs = sorted((abs(f - t), i, j) for i, f in enumerate(found) for j, t in enumerate(true))
    used_found, used_true, distances = set(), set(), []
    for distance, i, j in pairs:
        if distance <= tolerance and i not in used_found and j not in used_true:
            used_found.add(i)
            used_true.add(j)
            distances.append(distance)
    return distances


def generated(data: str, seed: int) -> list[dict]:
    y, jumps = series(data, seed)
    methods = {
        "dsmgp": lambda: positions(ours(y, False)),
        "dsmgp robust": lambda: positions(ours(y, True)),
        "ruptures PELT l2": lambda: by_ruptures(y, "l2"),
        "ruptures PELT rbf": lambda: by_ruptures(y, "rbf"),
        "ruptures PELT linear": lambda: by_ruptures(y, "linear"),
    }
    if len(jumps):
        methods["ruptures DP l2, true number"] = lambda: by_ruptures(y, "l2", len(jumps))
    rows = []
    for name, run in methods.items():
        start = time.perf_counter()
        found = run()
        seconds = time.perf_counter() - start
        distances = matched(found, jumps.tolist(), TOLERANCE)
        rows.append(
            {
                "data": data, "method": name, "seed": seed, "true": jumps.tolist(), "found": [int(f) for f in found],
                "hits": len(distances), "away": float(np.sum(distances)), "seconds": round(seconds, 2),
            }
            | setting()
        )  # fmt: skip
    return rows


def well_log(n_rows: int | None) -> list[dict]:
    import ruptures

    y = load("well_log").Y[:n_rows, 0]
    rows = []

    def add(name: str, found: Sequence[int], start: float, **more: object) -> None:
        seconds = round(time.perf_counter() - start, 2)
        row = {"data": "well_log", "method": name, "seed": 0, "rows": len(y), "found": [int(f) for f in found], "seconds": seconds}  # fmt: skip
        rows.append(row | more | setting())
        print(name, len(found), seconds, flush=True)

    for name, outliers in (("dsmgp robust", True), ("dsmgp", False)):
        start = time.perf_counter()
        shortest = WELL_SHORTEST if outliers else 1
        model = ours(
            y, outliers, shortest, kernel="matern32", mean="constant", leaf_size=500, effort="low"
        )
        own = model.state_.model.outlier_probability
        flagged = None if own is None else int((own > 0.5).sum())
        add(
            name,
            positions(model),
            start,
            outliers=flagged,
            log_evidence=model.log_marginal_likelihood_,
        )
        print(model.summary(), flush=True)
        if outliers:
            draw(model, y)
    sigma = np.median(np.abs(np.diff(y))) / (0.6745 * np.sqrt(2.0))
    for cost in ("l2", "l1"):
        start = time.perf_counter()
        # Absolute deviations of Gaussian noise: their penalty is in units of sigma.
        penalty = 2.0 * np.log(len(y)) * (sigma**2 if cost == "l2" else sigma)
        kind = ruptures.KernelCPD(kernel="linear", min_size=3) if cost == "l2" else ruptures.Pelt(model="l1", min_size=3, jump=5)  # fmt: skip
        add(f"ruptures PELT {cost}", kind.fit(y).predict(pen=penalty)[:-1], start)
    return rows


def draw(model: DSMGPRegressor, y: np.ndarray) -> None:
    """The figure of docs/changes.md."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from dsmgp.plots import plot_changepoints

    X = np.arange(float(len(y)))[:, None]
    mean, std = model.predict(X, return_std=True, include_noise=False)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 5.6), sharex=True, height_ratios=[3, 1], layout="constrained"
    )
    outlier = model.state_.model.outlier_probability > 0.5
    above.plot(X[~outlier, 0], y[~outlier], ".", color="0.6", markersize=2, label="rows")
    above.plot(
        X[outlier, 0], y[outlier], "x", color="#d94801", markersize=4, label="taken for outliers"
    )
    above.plot(X[:, 0], mean, color="#08306b", linewidth=1.2, label="mean of f")
    above.fill_between(X[:, 0], mean - 2 * std, mean + 2 * std, color="#2171b5", alpha=0.3)
    above.set_ylabel("nuclear magnetic response")
    above.legend(loc="lower right", framealpha=0.9)
    plot_changepoints(model, ax=below)
    below.set_xlabel("t")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


def page(rows: list[dict]) -> str:
    made = [r for r in rows if r["data"] != "well_log"]
    lines = []
    for data, method in dict.fromkeys((r["data"], r["method"]) for r in made):
        own = [r for r in made if (r["data"], r["method"]) == (data, method)]
        hits, n_found = sum(r["hits"] for r in own), sum(len(r["found"]) for r in own)
        n_true = sum(len(r["true"]) for r in own)
        line = {
            "data": data, "method": method, "seeds": len(own), "n_true": n_true, "n_found": n_found,
            "seconds": float(np.median([r["seconds"] for r in own])),
        }  # fmt: skip
        if n_true:
            precision, recall = hits / max(n_found, 1), hits / n_true
            line |= {
                "precision": precision, "recall": recall,
                "f1": 2 * precision * recall / max(precision + recall, 1e-12),
                "away": sum(r["away"] for r in own) / max(hits, 1),
            }  # fmt: skip
        lines.append(line)
    text = table(COLUMNS, lines)
    well = [r for r in rows if r["data"] == "well_log"]
    robust = next((r for r in well if r["method"] == "dsmgp robust"), None)
    if robust is None:
        return text
    for row in well:
        met = len(matched(row["found"], robust["found"], WELL_TOLERANCE))
        row |= {"n_found": len(row["found"]), "agrees": met / max(len(row["found"]), 1), "met": met / len(robust["found"])}  # fmt: skip
    return f"{text}\n\nwell_log, {robust['rows']} rows, {robust['outliers']} of them taken for outliers:\n\n{table(WELL_COLUMNS, well)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=["generated", "well_log"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    path = arguments.results or results_path("changepoints", arguments.quick)
    runs = Runs(path, KEYS, arguments.again)
    if arguments.only != "well_log":
        for seed in range(1 if arguments.quick else arguments.seeds):
            for data in ("piecewise GP", "piecewise GP, 2% outliers", *UNBROKEN):
                if runs.is_due(data=data, method="dsmgp", seed=seed):
                    runs.add(generated(data, seed))
    wanted = arguments.only != "generated" and not arguments.quick
    if wanted and runs.is_due(data="well_log", method="dsmgp", seed=0):
        runs.add(well_log(None))
    print(page(runs.rows))


if __name__ == "__main__":
    main()
