"""Structure learned by posterior inference: ``python benchmarks/learned.py [--quick] [--results PATH] [--data NAMES] [--seeds N]``

2,000 training and 1,000 test rows of five uniform inputs, noise .1, by

- ``structure="learned"``, all else by default;
- the balanced default;
- scikit-learn's HistGradientBoosting, with a Gaussian predictive distribution whose standard deviation is that of five-fold cross-validated residuals.

``piecewise-2``, ``-3`` and ``-4``: so many regions bounded along two of the inputs, each with a sine ridge and a level of its own. A boundary counts as found if
``split_posterior`` has a probability of at least one half within 3% of the range around it, and as extra what it expects elsewhere. ``friedman``, ``additive``,
``fourier`` and ``ridge`` are smooth: Friedman's first function, a sum of sines, a draw from an RBF prior, and a function of one direction.

The search was developed on other draws of the piecewise functions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dsmgp import DSMGPRegressor
from harness import Array, Runs, results_path, setting, table

N_INPUTS, NOISE, WITHIN = 5, 0.1, 0.03
PIECEWISE, SMOOTH = (
    ("piecewise-2", "piecewise-3", "piecewise-4"),
    ("friedman", "additive", "fourier", "ridge"),
)
METHODS = ("learned", "balanced", "boosting")
Function = Callable[[Array], Array]
Boundary = tuple[int, float]


def piecewise(n_regions: int, rng: np.random.Generator) -> tuple[Function, list[Boundary]]:
    """A function with a sine ridge and a level of its own in each region, and its boundaries."""
    dims = rng.choice(N_INPUTS, 2, replace=False)
    regions, boundaries = [(np.zeros(N_INPUTS), np.ones(N_INPUTS))], []
    while len(regions) < n_regions:  # cut the largest
        low, high = regions.pop(int(np.argmax([np.prod(b - a) for a, b in regions])))
        dim = int(dims[len(boundaries) % 2])
        split = low[dim] + (high[dim] - low[dim]) * rng.uniform(0.3, 0.7)
        below, above = high.copy(), low.copy()
        below[dim] = above[dim] = split
        regions += [(low, below), (above, high)]
        boundaries.append((dim, float(split)))
    slopes = 1.5 * rng.normal(size=(n_regions, N_INPUTS))
    phases = rng.uniform(0.0, 2.0 * np.pi, n_regions)
    levels = rng.permutation(n_regions) + rng.uniform(-0.2, 0.2, n_regions)

    def function(X: Array) -> Array:
        y = np.zeros(len(X))
        for (low, high), slope, phase, level in zip(regions, slopes, phases, levels, strict=True):
            inside = ((low <= X) & (high > X)).all(axis=1)
            y[inside] = level + np.sin(X[inside] @ slope + phase)
        return y

    return function, boundaries


def smooth(name: str, rng: np.random.Generator) -> Function:
    """A smooth function of standard deviation about one."""
    a = rng.permutation(N_INPUTS)
    if name == "friedman":
        return lambda X: (
            (
                10 * np.sin(np.pi * X[:, a[0]] * X[:, a[1]])
                + 20 * (X[:, a[2]] - 0.5) ** 2
                + 10 * X[:, a[3]]
                + 5 * X[:, a[4]]
            )
            / 5
        )
    if name == "additive":
        rates, phases = rng.uniform(2, 6, N_INPUTS), rng.uniform(0, 2 * np.pi, N_INPUTS)
        return lambda X: np.sin(rates * X + phases).sum(axis=1) / 1.5
    if name == "fourier":
        frequencies = rng.normal(size=(N_INPUTS, 500)) / rng.uniform(0.3, 1.5, (N_INPUTS, 1))
        phases, heights = rng.uniform(0, 2 * np.pi, 500), rng.normal(size=500) * np.sqrt(2 / 500)
        return lambda X: np.cos(X @ frequencies + phases) @ heights
    direction = rng.normal(size=N_INPUTS)
    return lambda X: np.sin(4 * (X - 0.5) @ direction)


def rows_of(name: str, seed: int, n_rows: int) -> tuple[Array, Array, Array, Array, list[Boundary]]:
    rng = np.random.default_rng([seed, *name.encode()])
    boundaries: list[Boundary] = []
    if name in PIECEWISE:
        function, boundaries = piecewise(int(name[-1]), rng)
    else:
        function = smooth(name, rng)
    X = rng.uniform(size=(n_rows + 1000, N_INPUTS))
    y = function(X) + NOISE * rng.normal(size=len(X))
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:], boundaries


def boosting(X: Array, y: Array, X_test: Array, y_test: Array) -> dict[str, float]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import cross_val_predict

    model = HistGradientBoostingRegressor(random_state=0)
    left_out = y - cross_val_predict(model, X, y, cv=5)
    variance, away = np.mean(left_out**2), y_test - model.fit(X, y).predict(X_test)
    nlpd = 0.5 * np.log(2 * np.pi * variance) + 0.5 * np.mean(away**2) / variance
    return {"nlpd": float(nlpd), "rmse": float(np.sqrt(np.mean(away**2)))}


def recovery(model: DSMGPRegressor, boundaries: list[Boundary]) -> dict[str, float]:
    """How many boundaries were found, and how many splits are expected elsewhere."""
    splits = [model.split_posterior(k) for k in range(N_INPUTS)]
    near = [splits[k].within(at - WITHIN, at + WITHIN) for k, at in boundaries]
    found, expected = sum(p >= 0.5 for p in near), sum(each.expected for each in splits)
    # Boundaries on both sides of another may lie within the same distance: no split counts twice.
    elsewhere = expected
    for k in range(N_INPUTS):
        spans = sorted((at - WITHIN, at + WITHIN) for d, at in boundaries if d == k)
        end = -np.inf
        for low, high in spans:
            elsewhere -= splits[k].within(max(low, end), high)
            end = high
    return {
        "boundaries": len(boundaries),
        "found": found,
        "extra": round(max(float(elsewhere), 0.0), 4),
    }


def measure(name: str, seed: int, method: str, quick: bool) -> dict:
    X, y, X_test, y_test, boundaries = rows_of(name, seed, 300 if quick else 2000)
    start = time.perf_counter()
    if method == "boosting":
        scores = boosting(X, y, X_test, y_test)
    else:
        effort = "low" if quick else "medium"
        model = DSMGPRegressor(structure=method, effort=effort, random_state=seed).fit(X, y)
        law = model.predict_dist(X_test)
        away = y_test - law.mean
        scores = {
            "nlpd": float(-law.logpdf(y_test).mean()),
            "rmse": float(np.sqrt(np.mean(away**2))),
        }
        if method == "learned":
            scores |= recovery(model, boundaries) | {"trees": model.n_induced_trees_}
    seconds = time.perf_counter() - start
    scores = {k: round(v, 5) if isinstance(v, float) else v for k, v in scores.items()}
    return {
        "data": name, "seed": seed, "method": method, **scores, "seconds": round(seconds, 1), **setting(),
    }  # fmt: skip


def page(rows: list[dict]) -> str:
    """One line per data set and seed."""
    lines = []
    for name, seed in dict.fromkeys((row["data"], row["seed"]) for row in rows):
        own = {r["method"]: r for r in rows if (r["data"], r["seed"]) == (name, seed)}
        line: dict = {"data": name, "seed": seed}
        for method, row in own.items():
            line[f"nlpd {method}"] = f"{row['nlpd']:.3f}"
            line[f"rmse {method}"] = f"{row['rmse']:.3f}"
            line[f"seconds {method}"] = row["seconds"]
        if "learned" in own:
            learned = own["learned"]
            found = f"{learned['found']} of {learned['boundaries']}"
            line |= {
                "found": found if learned["boundaries"] else "",
                "extra": f"{learned['extra']:.2f}",
                "trees": learned["trees"],
            }
        line["rmse"] = ", ".join(line.get(f"rmse {method}", "") for method in METHODS)
        line["seconds"] = ", ".join(str(line.get(f"seconds {m}", "")) for m in METHODS[:2])
        lines.append(line)
    order = (*PIECEWISE, *SMOOTH)
    lines.sort(key=lambda line: (order.index(line["data"]), line["seed"]))
    titles = {
        "data": "data", "seed": "seed", "found": "boundaries found", "extra": "splits elsewhere", "trees": "trees",
        "nlpd learned": "NLPD learned", "nlpd balanced": "balanced", "nlpd boosting": "boosting",
        "rmse": "RMSE (learned, balanced, boosting)", "seconds": "seconds (learned, balanced)",
    }  # fmt: skip
    return table(titles, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--data", nargs="+", default=[*PIECEWISE, *SMOOTH])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+")
    options = parser.parse_args()
    path = options.results or results_path("learned", options.quick)
    runs = Runs(path, ("data", "seed", "method"))
    for name in ["piecewise-2", "friedman"] if options.quick else options.data:
        # Ten seeds of piecewise functions in all, two of each smooth one.
        some = range(4 if name == "piecewise-4" else 3) if name in PIECEWISE else range(2)
        for seed in range(1) if options.quick else options.seeds or some:
            for method in options.methods:
                if runs.is_due(data=name, seed=seed, method=method):
                    runs.add([measure(name, seed, method, options.quick)])
                    print(runs.rows[-1], flush=True)
    print(page(runs.rows))


if __name__ == "__main__":
    main()
