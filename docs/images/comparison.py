"""Draw docs/images/comparison.png: peers against dsmgp on the benchmark data, from benchmarks/results/accuracy.json (the exact GP of large tables: accuracy-gpu.json).

python docs/images/comparison.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
DATA = ("airfoil", "parkinsons", "kin40k", "house", "protein", "flight_nyc13")
# The method of the mean and that of the distribution, the colour and the mark. Colours are Okabe and Ito's, safe for the colour-blind.
PEERS = {
    "exact GP": ("exact", "exact", "#009E73", "s"),
    "GPBoost (Vecchia GP)": ("gpboost", "gpboost", "#56B4E9", "D"),
    "HistGradientBoosting": ("hist-boosting", "hist-boosting", "#E69F00", "v"),
    "LightGBM": ("lightgbm", "lightgbm", "#CC79A7", "^"),
    "CatBoost": ("catboost", "catboost-uncertainty", "#D55E00", "o"),
}
MOST_NATS, MOST_RATIO = 3.0, 4.0


def mean(rows: list[dict], data: str, method: str, score: str) -> float:
    """The mean over seeds; NaN without results."""
    values = [r[score] for r in rows if (r["data"], r["method"]) == (data, method) and score in r]
    return float(np.mean(values)) if values else float("nan")


def draw(rows: list[dict]) -> Figure:
    figure = Figure(figsize=(9.0, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(DATA))[::-1]
    for k, (name, (of_mean, of_density, colour, mark)) in enumerate(PEERS.items()):
        shift = 0.12 * (k - (len(PEERS) - 1) / 2)
        gains = [mean(rows, d, of_density, "nlpd") - mean(rows, d, "dsmgp", "nlpd") for d in DATA]
        ratios = [mean(rows, d, of_mean, "rmse") / mean(rows, d, "dsmgp", "rmse") for d in DATA]
        for axes, values, most in ((left, gains, MOST_NATS), (right, ratios, MOST_RATIO)):
            beyond = np.array(values) > most
            shown = np.minimum(values, most)
            axes.plot(shown[~beyond], places[~beyond] - shift, mark, color=colour, ms=5, label=name)
            axes.plot(shown[beyond], places[beyond] - shift, ">", color=colour, ms=6, mfc="none")
    left.axvline(0.0, color="0.3", lw=1)
    right.axvline(1.0, color="0.3", lw=1)
    left.set_yticks(places, DATA)
    left.set_xlabel("NLPD minus that of dsmgp, in nats (above 0: dsmgp is better)", fontsize=8)
    left.set_xticks([0, 0.5, 1, 1.5, 2, 2.5, 3], ["0", "0.5", "1", "1.5", "2", "2.5", "3+"])
    right.set_xlabel("RMSE divided by that of dsmgp (above 1: dsmgp is better)", fontsize=8)
    right.set_xscale("log")
    right.set_xticks([0.9, 1, 1.5, 2, 3, 4], ["0.9", "1", "1.5", "2", "3", "4+"])
    right.minorticks_off()
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(PEERS), fontsize=8, frameon=False)  # fmt: skip
    return figure


if __name__ == "__main__":
    measured = json.loads((RESULTS / "accuracy.json").read_text())
    on_gpu = json.loads((RESULTS / "accuracy-gpu.json").read_text())
    there = {row["data"] for row in measured if row["method"] == "exact"}
    measured += [r for r in on_gpu if r["method"] == "exact" and r["data"] not in there]
    draw(measured).savefig(HERE / "comparison.png", dpi=110)
