"""``mixture-sizes``: the number of partitions a DSMGP averages over, and their effective number."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from dsmgp import DSMGPRegressor
from dsmgp.reproduce import paper
from dsmgp.reproduce.data import QUICK_ROWS, split
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, mean_of, present, select, table
from dsmgp.tree.nodes import leaves, log_n_induced_trees

__all__ = ["EXPERIMENT"]

LEAF_SIZE, SUM_CHILDREN = 100, 4


def jobs(plan: Plan) -> list[Job]:
    names = plan.data_sets(tuple(paper.SIZES), ("airfoil", "kin40k"))
    return [
        {"data": name, "seed": seed, "quick": plan.quick}
        for seed in range(plan.n_seeds(5))
        for name in names
        if plan.quick or seed == 0 or name != "year"
    ]


def run(job: Job) -> list[Row]:
    X, Y, _, _ = split(job["data"], job["seed"], job["quick"])
    model = DSMGPRegressor(
        "rbf",
        structure="paper",
        leaf_size=LEAF_SIZE,
        sum_children=SUM_CHILDREN,
        weights="posterior",
        random_state=job["seed"],
    ).fit(X, Y)
    n_effective = model.state_.model.posterior.n_effective_trees
    return [
        {
            **job,
            "n_train": len(X),
            "log10_trees": round(log_n_induced_trees(model.tree_) / math.log(10.0), 4),
            "effective": float(f"{n_effective:.5g}"),
            "leaves": len(leaves(model.tree_)),
        }
    ]


def page(rows: list[Row]) -> str:
    lines = []
    for name in present(paper.SIZES, rows):
        chosen = select(rows, data=name)
        lines.append(
            {
                "data": name,
                "seeds": len(chosen),
                "trees": _scientific(mean_of(chosen, "log10_trees")),
                "paper": f"{paper.SIZES[name]:.2e}",
                "effective": float(np.exp(np.mean(np.log([row["effective"] for row in chosen])))),
                "leaves": round(mean_of(chosen, "leaves")),
            }
        )
    titles = {
        "data": "data", "seeds": "seeds", "trees": "induced trees (geometric mean)", "paper": "paper",
        "effective": "effective number, exp(entropy) (geometric mean)", "leaves": "leaves",
    }  # fmt: skip
    return table(titles, lines)


def _scientific(log10: float) -> str:
    """Return 10 to some power, which may be beyond the range of floats."""
    whole = math.floor(log10)
    return f"{10.0 ** (log10 - whole):.2f}e{whole:+03d}"


def draw(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    names = present(paper.SIZES, rows)
    for k, name in enumerate(names):
        chosen = select(rows, data=name)
        place = np.full(len(chosen), float(k))
        labels = ("induced trees", "effective") if k == 0 else ("_", "_")
        axes.plot(place, [r["log10_trees"] for r in chosen], "o", color="C0", label=labels[0])
        axes.plot(
            place, np.log10([r["effective"] for r in chosen]), "o", color="C1", label=labels[1]
        )
        axes.plot(
            k,
            math.log10(paper.SIZES[name]),
            "x",
            color="0.4",
            label="_" if k else "paper: induced trees",
        )
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("log10 of the number")
    axes.grid(axis="y", alpha=0.4)
    axes.legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="mixture-sizes",
    title="Sizes of the mixtures",
    keys=("data", "seed", "quick"),
    jobs=jobs,
    run=run,
    page=page,
    draw=draw,
    remark=(
        "The paper calls the number of induced trees effective; its structures have 12 parts where the text says ten, and hence "
        "other numbers. The posterior puts nearly all its weight on few trees: exp(entropy) is their effective number."
    ),
    settings={"kernel": "rbf", "M": LEAF_SIZE, "K_S": SUM_CHILDREN, "R": 2},
    quick_settings={"N": QUICK_ROWS},
)
