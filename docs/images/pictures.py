"""Draws ``pictures.png`` of the page on plots: ``python docs/images/pictures.py``."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")
from matplotlib import pyplot as plt

from dsmgp import DSMGPRegressor
from dsmgp.plots.style import styled

rng = np.random.default_rng(0)
X = pd.DataFrame(rng.uniform(size=(900, 3)), columns=["size", "age", "floor"])
noise = 0.05 + 0.3 * (X["age"] > 0.6)
y = np.sin(7 * X["size"]) + (X["age"] > 0.6) + 0.3 * X["floor"] + noise * rng.normal(size=900)
model = DSMGPRegressor(effort="low", random_state=0).fit(X[:600], y[:600])
new = X[600:], y[600:]

DRAWN = [
    ("plot_dependence", (X, "size")),
    ("plot_dependence", (X, "age")),
    ("plot_relevance", ()),
    ("plot_observed", new),
    ("plot_residuals", new),
    ("plot_calibration", new),
    ("plot_pit", new),
    ("plot_tree", ()),
    ("plot_learning", ()),
]
with styled():
    figure, axes = plt.subplots(3, 3, figsize=(13, 10), layout="constrained")
for ax, (name, arguments) in zip(axes.ravel(), DRAWN, strict=True):
    getattr(model, name)(*arguments, ax=ax)
    ax.set_title(name, pad=26, loc="left", fontweight="bold")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=80)
