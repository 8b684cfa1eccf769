"""``figure-noise``: one noise for all leaves against a noise for each, on data whose noise varies."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dsmgp import DSMGPRegressor, scores
from dsmgp.reproduce.data import available, loaded
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, table

__all__ = ["EXPERIMENT", "synthetic"]

Array = NDArray[np.float64]
DATA = ("synthetic", "lidar", "motorcycle")
AXES = {
    "synthetic": ("x", "y"), "lidar": ("range", "log ratio"),
    "motorcycle": ("milliseconds after impact", "acceleration (g)"),
}  # fmt: skip
LEAF_SIZE, SUM_CHILDREN = 25, 4
N_SYNTHETIC = 300


def synthetic(rng: np.random.Generator, n_rows: int) -> tuple[Array, Array]:
    """A smooth curve whose noise grows by a factor of ten and falls again, after Tolvanen et al. (2014)."""
    x = np.sort(rng.uniform(0.0, 1.0, size=n_rows))
    signal = np.sin(2.0 * np.pi * 2.0 * x) + 0.5 * x
    return x[:, None], signal + noise_of(x) * rng.normal(size=n_rows)


def noise_of(x: Array) -> Array:
    """Standard deviation of the synthetic noise."""
    return np.asarray(0.05 + 0.45 * np.exp(-0.5 * ((x - 0.6) / 0.15) ** 2))


def jobs(plan: Plan) -> list[Job]:
    names = plan.chosen(DATA, DATA)
    return [
        {"data": name, "seed": seed, "quick": plan.quick}
        for seed in range(plan.reruns(10))
        for name in names
        if name == "synthetic" or not plan.quick or available(name)
    ]


def run(job: Job) -> list[Row]:
    if not hasattr(DSMGPRegressor, "finetune"):
        raise NotImplementedError(
            "figure-noise needs DSMGPRegressor.finetune, which this version does not have; upgrade dsmgp"
        )
    seed = job["seed"]
    rng = np.random.default_rng(seed)
    if job["data"] == "synthetic":
        X, y = synthetic(rng, N_SYNTHETIC)
        X_test, y_test = synthetic(rng, 1000)
    else:
        data = loaded(job["data"])
        order, n_train = rng.permutation(len(data.X)), int(0.7 * len(data.X))
        train, test = order[:n_train], order[n_train:]
        X, y = data.X[train], data.Y[train, 0]
        X_test, y_test = data.X[test], data.Y[test, 0]
    grid = np.linspace(X.min(), X.max(), 100)
    rows = []
    for noise in ("global", "fine-tuned"):
        model: Any = DSMGPRegressor(
            "rbf", structure="paper", leaf_size=LEAF_SIZE, sum_children=SUM_CHILDREN,
            weights="posterior", random_state=seed,
        ).fit(X, y)  # fmt: skip
        if noise == "fine-tuned":
            model.finetune(similarity="overlap", parameters="noise")
        law, curve = model.predict_dist(X_test), model.predict(grid[:, None], return_std=True)
        scale = np.std(y)
        rows.append(
            {
                **job,
                "noise": noise,
                "nlpd": round(scores.nlpd(y_test, law) - float(np.log(scale)), 5),
                "rmse": round(scores.rmse(y_test, law.mean) / float(scale), 5),
                "coverage90": round(scores.coverage(y_test, law, 0.9), 4),
                # One picture is drawn, of the first seed.
                **({"x": np.round(grid, 3).tolist()} if not seed else {}),
                **({"mean": np.round(curve[0], 4).tolist()} if not seed else {}),
                **({"std": np.round(curve[1], 4).tolist()} if not seed else {}),
                **(
                    {"rows": np.round(np.column_stack([X[:, 0], y]), 3).tolist()}
                    if not seed
                    else {}
                ),
            }
        )
    return rows


def page(rows: list[Row]) -> str:
    lines = []
    for name in DATA:
        for noise in ("global", "fine-tuned"):
            some = [r for r in rows if (r["data"], r["noise"]) == (name, noise)]
            if some:
                means = {
                    key: float(np.mean([r[key] for r in some]))
                    for key in ("nlpd", "rmse", "coverage90")
                }
                lines.append({"data": name, "noise": noise, "seeds": len(some), **means})
    titles = {
        "data": "data", "noise": "noise", "seeds": "seeds", "nlpd": "NLPD", "rmse": "RMSE", "coverage90": "90% covers",
    }  # fmt: skip
    return table(titles, lines)


def draw(rows: list[Row]) -> Figure:
    pictured = {(r["data"], r["noise"]): r for r in rows if "x" in r}
    names = [name for name in DATA if (name, "global") in pictured]
    figure = Figure(figsize=(8.0, 2.6 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 2, squeeze=False, sharey="row")
    for line, name in zip(panels, names, strict=True):
        for axes, noise in zip(line, ("global", "fine-tuned"), strict=True):
            row = pictured[name, noise]
            x, mean, std = (np.array(row[key]) for key in ("x", "mean", "std"))
            seen = np.array(row["rows"])
            axes.plot(seen[:, 0], seen[:, 1], ".", color="0.4", markersize=3)
            axes.fill_between(x, mean - 2 * std, mean + 2 * std, color="C1", alpha=0.3)
            axes.plot(x, mean, color="C1")
            axes.set_title(f"{name}: {noise} noise, mean and two sd", fontsize=9)
            axes.set_xlabel(AXES[name][0])
        line[0].set_ylabel(AXES[name][1])
    return figure


EXPERIMENT = Experiment(
    name="figure-noise",
    title="Global against fine-tuned noise",
    keys=("data", "seed", "quick"),
    jobs=jobs,
    run=run,
    page=page,
    draw=draw,
    says=(
        "The paper draws one synthetic example and gives no numbers, nor its recipe: this one has noise that grows tenfold "
        "and falls again. Fine-tuning by the paper's equation, with a leaf's own data counted."
    ),
    settings={"kernel": "rbf", "M": LEAF_SIZE, "K_S": SUM_CHILDREN, "R": 2, "weights": "posterior"},
)
