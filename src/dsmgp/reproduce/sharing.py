"""``figure-sharing``: Cholesky factors of all leaves, each for itself and shared, over the number of partitions."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from matplotlib.figure import Figure

from dsmgp.conditioned import Conditioned
from dsmgp.experts import Experts
from dsmgp.grow import grow_paper
from dsmgp.reproduce import paper
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, table
from dsmgp.reproduce.runs import load
from dsmgp.stationary import Stationary
from dsmgp.tree import leaves

__all__ = ["EXPERIMENT"]

N_ROWS, LEAF_SIZE, PARTS = 1000, 100, 2
PARTITIONS = (4, 9, 16, 25, 36, 49, 64)
DEPTHS = (1, 2)


def jobs(plan: Plan) -> list[Job]:
    return [
        {"partitions": n, "depth": depth, "seed": seed, "quick": plan.quick}
        for seed in range(plan.reruns(3))
        for depth in DEPTHS
        for n in (PARTITIONS[::3] if plan.quick else PARTITIONS)
    ]


def run(job: Job) -> list[Row]:
    """The paper's setting: synthetic rows of one input, cut in two, kernel fixed. Timed is what a fit does with a leaf:
    kernel, factor, evidence and alpha."""
    rng = np.random.default_rng(job["seed"])
    X = rng.uniform(size=(N_ROWS, 1))
    y = np.sin(6.0 * X[:, 0]) + 0.1 * rng.normal(size=N_ROWS)
    children = job["partitions"] if job["depth"] == 1 else math.isqrt(job["partitions"])
    tree = grow_paper(
        X,
        leaf_size=LEAF_SIZE,
        sum_children=children,
        product_children=PARTS,
        depth=job["depth"],
        rng=rng,
    )
    law = Stationary("rbf", (0,), "zero")
    natural = torch.tensor([0.2, 1.0, 0.01], dtype=torch.float64)
    targets = torch.from_numpy(y).unsqueeze(-1)
    experts = Experts(leaves(tree), torch.from_numpy(X), targets, [law])
    spent: dict[str, list[float]] = {"naive": [], "shared": []}
    for _ in range(1 + (3 if job["quick"] else 7)):  # in turn, so that a busy moment hits both
        for name, found in spent.items():
            start = time.perf_counter()
            conditioned = Conditioned(experts, [natural], share=name == "shared")
            found.append(time.perf_counter() - start)
    plan = conditioned.sharing
    naive = Conditioned(experts, [natural], share=False)
    difference = np.abs(naive.log_evidence - conditioned.log_evidence).max()
    return [
        {
            **job,
            "leaves": experts.n_leaves,
            **{
                f"{name}_ms": float(f"{1e3 * np.median(found[1:]):.4g}")
                for name, found in spent.items()
            },
            "used": plan is not None,
            "work_saved": 0.0 if plan is None else round(plan.saving, 3),
            "difference": float(f"{difference:.1e}"),
            "load": load(),
        }
    ]


def page(rows: list[Row]) -> str:
    lines = []
    for depth in DEPTHS:
        for n in sorted({r["partitions"] for r in rows}):
            some = [r for r in rows if (r["depth"], r["partitions"]) == (depth, n)]
            if not some:
                continue
            naive, shared = (
                float(np.mean([r[f"{k}_ms"] for r in some])) for k in ("naive", "shared")
            )
            theirs = [paper.SHARING[k].get(n) for k in ("naive", "shared")]
            lines.append(
                {
                    "depth": depth,
                    "partitions": n,
                    "leaves": some[0]["leaves"],
                    "used": "yes" if some[0]["used"] else "no",
                    "naive": naive,
                    "shared": shared,
                    "faster": f"{naive / shared:.2f}",
                    "work": float(np.mean([r["work_saved"] for r in some])),
                    "difference": max(r["difference"] for r in some),
                    "paper": None
                    if theirs[0] is None or theirs[1] is None
                    else f"{theirs[0] / theirs[1]:.2f}",
                }
            )
    titles = {
        "depth": "R", "partitions": "partitions", "leaves": "leaves", "used": "shared", "naive": "naive (ms)",
        "shared": "shared (ms)", "faster": "faster", "work": "work saved", "difference": "largest difference",
        "paper": "paper: faster",
    }  # fmt: skip
    return table(titles, lines)


def draw(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for depth in DEPTHS:
        sizes = sorted({r["partitions"] for r in rows if r["depth"] == depth})
        for name, mark in (("naive", "s:"), ("shared", "o-")):
            means = [
                np.mean(
                    [r[f"{name}_ms"] for r in rows if (r["depth"], r["partitions"]) == (depth, n)]
                )
                for n in sizes
            ]
            axes.plot(sizes, means, mark, color=f"C{depth}", label=f"{name}, R = {depth}")
    axes.set_xlabel("partitions")
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.4)
    axes.legend(fontsize=8)
    axes.set_title(f"Conditioning all leaves of {N_ROWS} rows")
    return figure


EXPERIMENT = Experiment(
    name="figure-sharing",
    title="Shared Cholesky decompositions",
    keys=("partitions", "depth", "seed", "quick"),
    jobs=jobs,
    run=run,
    page=page,
    draw=draw,
    says=(
        "The paper's naive times are of a slower factorisation, and its shared ones first do the full one; here sharing is "
        "used where a rule says that it pays, and both columns time the same where it does not."
    ),
    settings={"kernel": "rbf", "N": N_ROWS, "M": LEAF_SIZE, "K_P": PARTS},
)
