"""``mixture-sizes``: how many partitions a DSMGP averages over, and how many of them count."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from dsmgp import DSMGPRegressor
from dsmgp.inference import Posterior
from dsmgp.reproduce import paper
from dsmgp.reproduce.data import QUICK_ROWS, split
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, table
from dsmgp.tree import Leaf, Node, Product, Sum, log_n_induced_trees, nodes

__all__ = ["EXPERIMENT", "posterior_entropy"]

LEAF_SIZE, SUM_CHILDREN = 100, 4


def posterior_entropy(tree: Node, posterior: Posterior) -> float:
    """Entropy of the posterior over induced trees, in nats: its exponential is how many of them count.

    Choices at sum nodes are independent given those above them: entropies of a product's children add up, and a sum's
    is that of its choice plus what its children have on average.
    """
    entropy: dict[int, float] = {}
    for node in reversed(list(nodes(tree))):
        match node:
            case Leaf():
                entropy[id(node)] = 0.0
            case Product():
                entropy[id(node)] = math.fsum(entropy[id(child)] for child in node.children)
            case Sum():
                log_weights = posterior.log_weights[node]
                below = np.array([entropy[id(child)] for child in node.children])
                weights = np.exp(log_weights)
                # A weight of nothing has no entropy, and its logarithm may be minus infinity.
                own = -np.where(weights > 0, log_weights, 0.0)
                entropy[id(node)] = float(weights @ (own + below))
    return entropy[id(tree)]


def jobs(plan: Plan) -> list[Job]:
    names = plan.chosen(tuple(paper.SIZES), ("airfoil", "kin40k"))
    return [
        {"data": name, "seed": seed, "quick": plan.quick}
        for seed in range(plan.reruns(5))
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
    inner = model._model
    return [
        {
            **job,
            "n_train": len(X),
            "log10_trees": round(log_n_induced_trees(inner.tree) / math.log(10.0), 4),
            "effective": float(f"{math.exp(posterior_entropy(inner.tree, inner.posterior)):.5g}"),
            "leaves": inner.experts.experts.n_leaves,
        }
    ]


def page(rows: list[Row]) -> str:
    lines = []
    for name in paper.SIZES:
        some = [r for r in rows if r["data"] == name]
        if some:
            lines.append(
                {
                    "data": name,
                    "seeds": len(some),
                    "trees": _power(float(np.mean([r["log10_trees"] for r in some]))),
                    "paper": f"{paper.SIZES[name]:.2e}",
                    "effective": float(np.mean([r["effective"] for r in some])),
                    "leaves": round(float(np.mean([r["leaves"] for r in some]))),
                }
            )
    titles = {
        "data": "data", "seeds": "seeds", "trees": "induced trees (geometric mean)", "paper": "paper",
        "effective": "effective number, exp(entropy)", "leaves": "leaves",
    }  # fmt: skip
    return table(titles, lines)


def _power(log10: float) -> str:
    whole = math.floor(log10)
    return f"{10.0 ** (log10 - whole):.2f}e{whole:+03d}"


def draw(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    names = [name for name in paper.SIZES if any(r["data"] == name for r in rows)]
    for k, name in enumerate(names):
        some = [r for r in rows if r["data"] == name]
        place = np.full(len(some), float(k))
        labels = ("induced trees", "effective") if k == 0 else ("_", "_")
        axes.plot(place, [r["log10_trees"] for r in some], "o", color="C0", label=labels[0])
        axes.plot(place, np.log10([r["effective"] for r in some]), "o", color="C1", label=labels[1])
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
    says=(
        "The paper calls the number of induced trees effective; its structures have 12 parts where the text says ten, and so "
        "other numbers. The posterior puts nearly all its weight on few of them: exp(entropy) says on how many."
    ),
    settings={"kernel": "rbf", "M": LEAF_SIZE, "K_S": SUM_CHILDREN, "R": 2},
    quick_settings={"N": QUICK_ROWS},
)
