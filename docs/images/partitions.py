"""Draws ``partitions.png`` of the page on how it works: ``python docs/images/partitions.py``."""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from dsmgp import DSMGPRegressor
from dsmgp.plots.style import MODEL, OBSERVED, SPLIT, THICK, styled

rng = np.random.default_rng(2)
x = np.sort(rng.uniform(0, 1, 90))
y = np.sin(9 * x) + 0.25 * rng.normal(size=90)
grid = np.linspace(0, 1, 1000)[:, None]
settings = {"kernel": "rbf", "leaf_size": 20, "hypotheses": None, "output_warp": None}

with styled():
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
for seed, ax in enumerate(axes[:2]):
    one = DSMGPRegressor(
        **settings, structure="paper", sum_children=1, weights="posterior", random_state=seed
    ).fit(x[:, None], y)
    ax.plot(grid, one.predict(grid), color=MODEL, linewidth=THICK)
    for split in one.changepoints(0.5):
        ax.axvline(split.position, color=SPLIT, linewidth=1, linestyle=":")
    ax.set_title("one partition" if seed == 0 else "another", loc="left")
both = DSMGPRegressor(**settings, random_state=0).fit(x[:, None], y)
distribution = both.predict_dist(grid)
axes[2].plot(grid, distribution.mean, color=MODEL, linewidth=THICK)
axes[2].fill_between(grid[:, 0], *distribution.interval(0.9), color=MODEL, alpha=0.15)
axes[2].set_title("the mixture, with its 90% interval", loc="left")
for ax in axes:
    ax.plot(x, y, ".", color=OBSERVED, markersize=3, alpha=0.5)
    ax.set_xlabel("x")
axes[0].set_ylabel("y")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
