"""``figure-sharing``: time to factorise all leaves, separately and with shared factors, against the number of partitions."""

from __future__ import annotations

import math
import time

import numpy as np
from matplotlib.figure import Figure

from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.reproduce import paper
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, mean_of, select, table
from dsmgp.reproduce.runs import load_average
from dsmgp.tree.growing import grow_paper
from dsmgp.tree.nodes import leaves

__all__ = ["EXPERIMENT"]

N_ROWS, LEAF_SIZE, PARTS = 1000, 100, 2
PARTITIONS = (4, 9, 16, 25, 36, 49, 64)
DEPTHS = (1, 2)


def jobs(plan: Plan) -> list[Job]:
    return [
        {"partitions": n, "depth": depth, "seed": seed, "quick": plan.quick}
        for seed in range(plan.n_seeds(3))
        for depth in DEPTHS
        for n in (PARTITIONS[::3] if plan.quick else PARTITIONS)
    ]


def run(job: Job) -> list[Row]:
    """Time what a fit does with every leaf: kernel, factor, evidence and alpha.

    The paper's setting: synthetic rows of one input, products of two children, fixed kernel.
    """
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
    kernel = StationaryKernel("rbf", (0,), "zero")
    kernel_parameters = np.array([0.2, 1.0, 0.01])
    leaf_gps = InMemoryLeafGPs(leaves(tree), LeafData(X, y[:, None]), [kernel])
    spent: dict[str, list[float]] = {"naive": [], "shared": []}
    for _ in range(1 + (3 if job["quick"] else 7)):  # in turn, so that a busy moment hits both
        for name, seconds in spent.items():
            start = time.perf_counter()
            conditioned = condition(leaf_gps, [kernel_parameters], share=name == "shared")
            seconds.append(time.perf_counter() - start)
    plan = conditioned.sharing
    naive = condition(leaf_gps, [kernel_parameters], share=False)
    difference = np.abs(naive.log_evidence - conditioned.log_evidence).max()
    return [
        {
            **job,
            "leaves": leaf_gps.n_leaves,
            **{
                f"{name}_ms": float(f"{1e3 * np.median(seconds[1:]):.4g}")
                for name, seconds in spent.items()
            },
            "used": plan is not None,
            "work_saved": 0.0 if plan is None else round(plan.saving, 3),
            "difference": float(f"{difference:.1e}"),
            "load": load_average(),
        }
    ]


def page(rows: list[Row]) -> str:
    lines = []
    for depth in DEPTHS:
        for n in sorted({r["partitions"] for r in rows}):
            chosen = select(rows, depth=depth, partitions=n)
            if not chosen:
                continue
            naive, shared = (mean_of(chosen, f"{k}_ms") for k in ("naive", "shared"))
            reported = [paper.SHARING[k].get(n) for k in ("naive", "shared")]
            lines.append(
                {
                    "depth": depth,
                    "partitions": n,
                    "leaves": chosen[0]["leaves"],
                    "used": "yes" if chosen[0]["used"] else "no",
                    "naive": naive,
                    "shared": shared,
                    "faster": f"{naive / shared:.2f}",
                    "work": mean_of(chosen, "work_saved"),
                    "difference": max(r["difference"] for r in chosen),
                    "paper": None
                    if reported[0] is None or reported[1] is None
                    else f"{reported[0] / reported[1]:.2f}",
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
        sizes = sorted({r["partitions"] for r in select(rows, depth=depth)})
        for name, mark in (("naive", "s:"), ("shared", "o-")):
            means = [mean_of(select(rows, depth=depth, partitions=n), f"{name}_ms") for n in sizes]
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
    remark=(
        "The paper's naive times are of a slower factorisation, and its shared ones include one full factorisation; here factors are "
        "shared only where the estimated cost is lower, and otherwise both columns time the same. The present plans, which no longer extend factors, are timed in docs/speed.md."
    ),
    settings={"kernel": "rbf", "N": N_ROWS, "M": LEAF_SIZE, "K_P": PARTS},
)
