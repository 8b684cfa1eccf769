"""``figure-contour``: test NLPD against the number of children of a sum node and the rows of a leaf."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dsmgp import DSMGPRegressor, scores
from dsmgp.reproduce.data import QUICK_ROWS, split
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, mean_of, present, select, table

__all__ = ["EXPERIMENT"]

DATA = ("airfoil", "parkinsons", "kin40k")
SIZES, CHILDREN = (25, 50, 100, 200), (1, 2, 4, 8)
WEIGHTS = ("posterior", "gated")


def jobs(plan: Plan) -> list[Job]:
    names = plan.data_sets(DATA, DATA[:1])
    sizes = (50, 200) if plan.quick else SIZES
    return [
        {"data": name, "size": size, "seed": seed, "quick": plan.quick}
        for seed in range(plan.n_seeds(10, 2))
        for name in names
        for size in sizes
    ]


def run(job: Job) -> list[Row]:
    """Fit trees with more and more children, with hyperparameters learned once, on one partition, as in the paper."""
    X, Y, X_test, Y_test = split(job["data"], job["seed"], job["quick"])
    rows: list[Row] = []
    learned: dict[str, Any] = {"kernel": "rbf"}
    for children in (1, 4) if job["quick"] else CHILDREN:
        for weights in WEIGHTS:
            model = DSMGPRegressor(
                structure="paper",
                leaf_size=job["size"],
                sum_children=children,
                weights=weights,
                random_state=job["seed"],
                **learned,
            ).fit(X, Y)
            if Y.shape[1] == 1:  # several outputs learn again, each for itself
                learned = {
                    "kernel": model.kernel_, "noise_variance": model.noise_, "optimizer": None,
                }  # fmt: skip
            predicted = model.predict_dist(X_test)
            rows.append(
                {
                    **job,
                    "children": children,
                    "weights": weights,
                    "nlpd": round(scores.nlpd(Y_test, predicted), 5),
                    "rmse": round(scores.rmse(Y_test, predicted.mean), 5),
                }
            )
    return rows


def _mean_nlpd(rows: list[Row], **fields: object) -> float:
    chosen = select(rows, **fields)
    return mean_of(chosen, "nlpd") if chosen else np.nan


def page(rows: list[Row]) -> str:
    lines = []
    children = sorted({r["children"] for r in rows})
    for name in present(DATA, rows):
        for weights in WEIGHTS:
            for size in sorted({r["size"] for r in select(rows, data=name)}):
                key = {"data": name, "weights": weights, "size": size}
                seeds = {r["seed"] for r in select(rows, **key)}
                means = {f"K{k}": _mean_nlpd(rows, **key, children=k) for k in children}
                lines.append({**key, "reruns": len(seeds), **means})
    titles = {"data": "data", "weights": "weights", "size": "M", "reruns": "reruns"}
    return table(titles | {f"K{k}": f"NLPD, K_S = {k}" for k in children}, lines)


def draw(rows: list[Row]) -> Figure:
    names = present(DATA, rows)
    figure = Figure(figsize=(3.6 * len(names) + 0.6, 6.0), layout="constrained")
    panels = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        of_data = select(rows, data=name)
        sizes, children = (sorted({r[key] for r in of_data}) for key in ("size", "children"))
        for line, weights in enumerate(WEIGHTS):
            axes = panels[line, column]
            nlpd = np.array(
                [
                    [_mean_nlpd(of_data, size=size, children=k, weights=weights) for k in children]
                    for size in sizes
                ]
            )
            if min(nlpd.shape) < 2:
                continue  # no contours yet: a run that was stopped early
            shown = axes.contourf(np.log2(children), np.log2(sizes), nlpd, levels=10)
            figure.colorbar(shown, ax=axes, label="NLPD")
            axes.set_xticks(np.log2(children), [str(k) for k in children])
            axes.set_yticks(np.log2(sizes), [str(size) for size in sizes])
            axes.set_title(f"{name}, {weights}", fontsize=9)
            axes.set_xlabel("children of a sum node")
            axes.set_ylabel("rows of a leaf")
    return figure


EXPERIMENT = Experiment(
    name="figure-contour",
    title="Test NLPD over the children of a sum node and the rows of a leaf",
    keys=("data", "size", "seed", "quick"),
    jobs=jobs,
    run=run,
    page=page,
    draw=draw,
    remark=(
        "The paper shows three contour plots without naming data sets or ranges; these are ours. "
        "With posterior weights, more children help only if one of them fits better; with the gate, all of them contribute."
    ),
    settings={"kernel": "rbf", "R": 2},
    quick_settings={"N": QUICK_ROWS},
)
