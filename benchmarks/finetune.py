"""What fine-tuning buys where noise changes: ``python benchmarks/finetune.py [--quick] [--results PATH] [--data NAMES]``

Held-out rows before and after ``finetune``, with posterior and gated weights:

- ``tolvanen``: the data of the paper's figure of heteroscedastic noise, by the recipe of Tolvanen et al. (2014) as it stands in
  GPstuff's demonstrations: 500 rows, two bumps of noise. Each seed draws noise anew; rows to predict are drawn anywhere.
- ``lidar`` and ``motorcycle``: cross-validation in ten parts, each seed with other parts.

Beside NLPD and RMSE: how far the noise is from the truth where that is known (root mean square of the log ratio of standard
deviations), and how evenly predictions are spread: standardised residuals in the quarters of the input, the largest root mean
square over the smallest (1 is even). ``--quick`` needs no data. The figure goes to docs/images.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import stats

from dsmgp import DSMGPRegressor
from dsmgp.datasets import load
from harness import HERE, Array, Runs, results_path, setting, table

#: Models by name: small leaves, with which noise can change over short distances, and the default.
MODELS = {
    "posterior, leaves of 30": {"weights": "posterior", "leaf_size": 30},
    "gated without scales, leaves of 30": {"leaf_size": 30, "local_scale": False},
    "gated, leaves of 30": {"leaf_size": 30},
    "gated, default leaves": {},
}
STAGES = ("before", "noise", "all")
SEEDS = {"tolvanen": 6, "lidar": 2, "motorcycle": 3}
N_PARTS = 10


class Tolvanen:
    """The recipe: a curve that is fast, slow and fast again, and noise with two bumps."""

    start, end, n_rows = -100.0, 200.0, 500

    def __init__(self) -> None:
        raw = self._raw(np.linspace(self.start, self.end, self.n_rows))
        self.centre, self.scale = raw.mean(), raw.std(ddof=1)

    def _raw(self, x: Array) -> Array:
        share = (x - self.start) / (self.end - self.start)
        pieces = [5 * np.sin(0.2 * x - 3), 20 * np.sin(0.1 * x), 5 * np.sin(0.2 * x + 2.8)]
        return np.select([share <= 0.23, share <= 0.85], pieces[:2], pieces[2])

    def f(self, x: Array) -> Array:
        return (self._raw(x) - self.centre) / self.scale

    def noise(self, x: Array) -> Array:
        """Its standard deviation."""
        bumps = stats.norm.pdf(x, 110, 20) + stats.norm.pdf(x, -10, 20)
        return np.sqrt(0.5 * np.exp(100 * bumps))

    def rows(self, x: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return x[:, None], self.f(x) + self.noise(x) * rng.normal(size=len(x))


def splits(name: str, seed: int) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Rows to learn from and rows to predict, X and y of each."""
    rng = np.random.default_rng(seed)
    if name == "tolvanen":
        truth = Tolvanen()
        grid = np.linspace(truth.start, truth.end, truth.n_rows)
        x = rng.uniform(truth.start, truth.end, 2000)
        yield *truth.rows(grid, rng), *truth.rows(x, rng)
        return
    data = load(name)
    X, y = data.X, data.Y[:, 0]
    for part in np.array_split(rng.permutation(len(X)), N_PARTS):
        kept = np.setdiff1d(np.arange(len(X)), part)
        yield X[kept], y[kept], X[part], y[part]


def stages(options: dict, seed: int, X: Array, y: Array) -> Iterator[tuple[str, DSMGPRegressor]]:
    model = DSMGPRegressor(random_state=seed, **options).fit(X, y)
    yield "before", model
    for parameters in STAGES[1:]:
        yield parameters, copy.deepcopy(model).finetune(parameters=parameters)


def measure(name: str, label: str, seed: int) -> list[dict]:
    """One row for each stage, over all held-out rows of a seed."""
    found: dict[str, list[tuple[Array, ...]]] = {stage: [] for stage in STAGES}
    for X, y, X_test, y_test in splits(name, seed):
        for stage, model in stages(MODELS[label], seed, X, y):
            law = model.predict_dist(X_test)
            noise = np.sqrt(model.noise_at(X_test))
            low, high = law.interval(0.9)
            found[stage].append(
                (X_test[:, 0], y_test - law.mean, law.logpdf(y_test), law.std, noise,
                 (low <= y_test) & (y_test <= high))
            )  # fmt: skip
    rows, before = [], None
    for stage, parts in found.items():
        x, away, log_density, std, noise, inside = (
            np.concatenate(c) for c in zip(*parts, strict=True)
        )
        quarter = np.searchsorted(np.quantile(x, (0.25, 0.5, 0.75)), x)
        spread = [np.sqrt(np.mean((away / std)[quarter == q] ** 2)) for q in range(4)]
        row = {
            "data": name, "model": label, "stage": stage, "seed": seed,
            "nlpd": -log_density.mean(), "rmse": np.sqrt(np.mean(away**2)), "coverage90": inside.mean(),
            "uneven": max(spread) / min(spread), **setting(),
        }  # fmt: skip
        if name == "tolvanen":
            truth = Tolvanen()
            off = np.log(noise / truth.noise(x))
            row["noise_error"] = np.sqrt(np.mean(off**2))
        before = log_density if before is None else before
        gain = log_density - before
        row |= {"gain": gain.mean(), "gain_se": gain.std() / np.sqrt(len(gain))}
        rows.append(
            {k: round(float(v), 5) if isinstance(v, np.floating) else v for k, v in row.items()}
        )
    return rows


def page(rows: list[dict]) -> str:
    """Means over seeds, one line per data set and model."""
    lines = []
    for name, label in dict.fromkeys((row["data"], row["model"]) for row in rows):
        line: dict = {"data": name, "model": label}
        for stage in STAGES:
            own = [r for r in rows if (r["data"], r["model"], r["stage"]) == (name, label, stage)]
            mean = {
                k: np.mean([r[k] for r in own]) for k in ("nlpd", "rmse", "coverage90", "uneven")
            }
            line |= {f"{key} {stage}": f"{value:.3f}" for key, value in mean.items()}
            line["seeds"] = len(own)
            if stage != "before":
                # Seeds of real data share their rows: the error is that of one seed, which is not too small.
                error = np.mean([r["gain_se"] for r in own])
                if name == "tolvanen" and len(own) > 1:
                    error = np.std([r["gain"] for r in own], ddof=1) / np.sqrt(len(own))
                line[f"gain {stage}"] = f"{np.mean([r['gain'] for r in own]):.3f} ± {error:.3f}"
            if "noise_error" in own[0]:
                line[f"noise {stage}"] = f"{np.mean([r['noise_error'] for r in own]):.2f}"
        for key, places in (
            ("rmse", STAGES),
            ("coverage90", STAGES),
            ("uneven", STAGES),
            ("noise", STAGES),
        ):
            line[key] = ", ".join(line.get(f"{key} {stage}", "") for stage in places).strip(", ")
        lines.append(line)
    titles = {
        "data": "data", "model": "model", "seeds": "seeds", "nlpd before": "NLPD before",
        "nlpd noise": "noise tuned", "nlpd all": "all tuned", "gain noise": "gain by noise",
        "gain all": "gain by all", "rmse": "RMSE (before, noise, all)", "coverage90": "90% covers",
        "uneven": "unevenness", "noise": "error of log noise std",
    }  # fmt: skip
    return table(titles, lines)


def draw(path: Path) -> None:
    """Learned noise over the input: before, after, and the truth or the residuals' own spread."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12, 5.6), sharex="col", layout="constrained")
    for column, name in enumerate(SEEDS):
        if name == "tolvanen":
            X, y, _, _ = next(splits(name, 0))
        else:
            data = load(name)
            X, y = data.X, data.Y[:, 0]
        grid = np.linspace(X.min(), X.max(), 400)[:, None]
        found = dict(stages(MODELS["posterior, leaves of 30"], 0, X, y))
        above, below = axes[:, column]
        above.scatter(X[:, 0], y, s=5, color="0.6", linewidths=0)
        for stage, colour in (("before", "C0"), ("noise", "C3")):
            label = "one noise for all" if stage == "before" else "fine-tuned noise"
            law = found[stage].predict_dist(grid)
            low, high = law.interval(0.9)
            above.plot(grid[:, 0], law.mean, color=colour, lw=1)
            above.fill_between(grid[:, 0], low, high, color=colour, alpha=0.2, lw=0)
            noise = np.sqrt(found[stage].noise_at(grid))
            below.plot(grid[:, 0], noise, color=colour, lw=1.5, label=label)
        if name == "tolvanen":
            below.plot(grid[:, 0], Tolvanen().noise(grid[:, 0]), "k--", lw=1, label="truth")
        else:
            away = np.abs(y - found["noise"].predict(X)) * 1.4826
            order = np.argsort(X[:, 0])
            width = max(len(y) // 10, 5)
            windows = np.lib.stride_tricks.sliding_window_view(away[order], width)
            middle = np.lib.stride_tricks.sliding_window_view(X[order, 0], width).mean(axis=1)
            below.plot(
                middle, np.median(windows, axis=1), "k:", lw=1, label="residuals nearby (median)"
            )
        above.set_title(name)
        below.set_ylim(bottom=0)
        below.set_xlabel({"tolvanen": "x", "lidar": "range", "motorcycle": "time"}[name])
    axes[0, 0].set_ylabel("y, and 90% intervals")
    axes[1, 0].set_ylabel("noise, std")
    for axis in axes[1]:
        axis.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--data", nargs="*", choices=SEEDS)
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_args()
    path = arguments.results or results_path("finetune", arguments.quick)
    runs = Runs(path, ("data", "model", "stage", "seed"), arguments.again)
    names = ["tolvanen"] if arguments.quick else arguments.data or list(SEEDS)
    for name in names:
        for seed in range(1 if arguments.quick else SEEDS[name]):
            for label in list(MODELS)[:1] if arguments.quick else MODELS:
                if runs.is_due(data=name, model=label, stage="before", seed=seed):
                    runs.add(measure(name, label, seed))
    print(page(runs.rows))
    if not arguments.quick:
        draw(HERE.parent / "docs" / "images" / "finetune.png")


if __name__ == "__main__":
    main()
