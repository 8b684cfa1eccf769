"""``figure-illustration``: split hypotheses of a DSMGP of depth one, with their prior and posterior weights."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from dsmgp import DSMGPRegressor
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, draw_band, select, table
from dsmgp.tree.nodes import Product, Sum

__all__ = ["EXPERIMENT"]

N_ROWS, JUMP = 120, 0.35
LEAF_SIZE, CHILDREN, PARTS = 10, 4, 3


def jobs(plan: Plan) -> list[Job]:
    return [{"seed": seed, "quick": plan.quick} for seed in range(plan.n_seeds(1))]


def run(job: Job) -> list[Row]:
    """Fit a curve that jumps once: hypotheses that split there should win."""
    rng = np.random.default_rng(job["seed"])
    X = np.sort(rng.uniform(-1.0, 1.0, size=(N_ROWS, 1)), axis=0)
    y = np.sin(3.0 * X[:, 0]) + 1.5 * (X[:, 0] > JUMP) + 0.1 * rng.normal(size=N_ROWS)
    model = DSMGPRegressor(
        "rbf",
        structure="paper",
        leaf_size=LEAF_SIZE,
        sum_children=CHILDREN,
        product_children=PARTS,
        depth=1,
        weights="posterior",
        objective="full",
        random_state=job["seed"],
    ).fit(X, y)
    root = model.tree_
    assert isinstance(root, Sum)
    grid = np.linspace(-1.0, 1.0, 200)
    mean, std = model.predict(grid[:, None], return_std=True)
    weights = model.posterior_weights_[root]
    rows = []
    for k, child in enumerate(root.children):
        assert isinstance(child, Product)
        alone = DSMGPRegressor(
            model.kernel_,
            noise_variance=model.noise_,  # type: ignore[arg-type]
            structure=Sum((child,)),
            optimizer=None,
            weights="posterior",
        ).fit(X, y)
        rows.append(
            {
                **job,
                "hypothesis": k,
                "splits": [round(split, 4) for split in child.splits],
                "prior": round(float(np.exp(root.log_weights[k])), 4),
                "posterior": float(f"{weights[k]:.4g}"),
                "x": np.round(grid, 3).tolist(),
                "mean": np.round(alone.predict(grid[:, None]), 4).tolist(),
                "rows": np.round(np.column_stack([X[:, 0], y]), 3).tolist() if k == 0 else [],
                "mixture_mean": np.round(mean, 4).tolist() if k == 0 else [],
                "mixture_std": np.round(std, 4).tolist() if k == 0 else [],
            }
        )
    return rows


def page(rows: list[Row]) -> str:
    lines = [
        {**r, "cuts": ", ".join(f"{split:.2f}" for split in r["splits"])} for r in _first_seed(rows)
    ]
    titles = {"hypothesis": "child", "cuts": "cuts at", "prior": "prior weight",
              "posterior": "posterior weight"}  # fmt: skip
    return f"A curve that jumps at {JUMP}.\n\n{table(titles, lines)}"


def _first_seed(rows: list[Row]) -> list[Row]:
    return select(rows, seed=min(r["seed"] for r in rows))


def draw(rows: list[Row]) -> Figure:
    shown = _first_seed(rows)
    figure = Figure(figsize=(2.7 * (len(shown) + 1), 2.9), layout="constrained")
    panels = figure.subplots(1, len(shown) + 1, sharey=True)
    data = np.array(shown[0]["rows"])
    for axes, row in zip(panels, shown, strict=False):
        axes.plot(data[:, 0], data[:, 1], ".", color="0.5", markersize=2.5)
        edges = [-np.inf, *row["splits"], np.inf]
        x, mean = np.array(row["x"]), np.array(row["mean"])
        for low, high in pairwise(edges):
            part = (x >= low) & (x < high)
            axes.plot(x[part], mean[part], color="C0")
        for split in row["splits"]:
            axes.axvline(split, color="C3", linestyle="--", linewidth=1.0)
        axes.set_title(f"weight {row['prior']:.2f} → {row['posterior']:.2g}", fontsize=9)
        axes.set_xlabel("x")
    panels[-1].plot(data[:, 0], data[:, 1], ".", color="0.5", markersize=2.5)
    first = shown[0]
    draw_band(panels[-1], first["x"], first["mixture_mean"], first["mixture_std"], "C1")
    panels[-1].set_title("their mixture, two sd", fontsize=9)
    panels[-1].set_xlabel("x")
    panels[0].set_ylabel("y")
    figure.suptitle("Hypotheses of where to split (red), weights prior → posterior", fontsize=10)
    return figure


EXPERIMENT = Experiment(
    name="figure-illustration",
    title="Split hypotheses of a DSMGP of depth one",
    keys=("seed", "quick"),
    jobs=jobs,
    run=run,
    page=page,
    draw=draw,
    remark="The paper draws a sketch; these are the hypotheses of a fitted model, with hyperparameters learned on the whole mixture, and their posterior weights.",
    settings={"kernel": "rbf", "N": N_ROWS, "M": LEAF_SIZE, "K_S": CHILDREN, "K_P": PARTS, "R": 1},
)
