"""Draws ``pictures.png`` of the page on plots: ``python docs/images/pictures.py``."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")
from matplotlib import pyplot as plt

from dsmgp import DSMGPRegressor

rng = np.random.default_rng(0)
X = pd.DataFrame(rng.uniform(size=(900, 3)), columns=["size", "age", "floor"])
noise = 0.05 + 0.3 * (X["age"] > 0.6)
y = np.sin(7 * X["size"]) + (X["age"] > 0.6) + 0.3 * X["floor"] + noise * rng.normal(size=900)
model = DSMGPRegressor(effort="low", random_state=0).fit(X[:600], y[:600])
new = X[600:], y[600:]

figure, axes = plt.subplots(2, 4, figsize=(16, 7), layout="constrained")
flat = iter(axes.ravel())
model.plot_dependence(X, "size", ax=next(flat)).set_title("plot_dependence: size")
model.plot_dependence(X, "age", ax=next(flat)).set_title("plot_dependence: age")
model.plot_relevance(ax=next(flat)).set_title("plot_relevance")
model.plot_tree(ax=next(flat)).set_title("plot_tree")
model.plot_calibration(*new, ax=next(flat)).set_title("plot_calibration")
model.plot_pit(*new, ax=next(flat)).set_title("plot_pit")
model.plot_residuals(*new, ax=next(flat)).set_title("plot_residuals")
model.plot_learning(ax=next(flat)).set_title("plot_learning")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=75)
