"""Plots of a fitted model: its predictions, its structure, its calibration. Needs ``dsmgp[plots]``.

Every function draws on Axes, returns them, and is a method of :class:`~dsmgp.DSMGPRegressor` too:
``plot_relevance(model)`` and ``model.plot_relevance()`` are the same.
"""

from dsmgp.plots.calibration import plot_calibration, plot_observed, plot_pit, plot_residuals
from dsmgp.plots.kernels import plot_kernels
from dsmgp.plots.predictive import plot_dependence, plot_predictive
from dsmgp.plots.relevance import plot_relevance
from dsmgp.plots.structure import plot_changepoints, plot_learning, plot_splits, plot_tree

__all__ = [
    "plot_calibration",
    "plot_changepoints",
    "plot_dependence",
    "plot_kernels",
    "plot_learning",
    "plot_observed",
    "plot_pit",
    "plot_predictive",
    "plot_relevance",
    "plot_residuals",
    "plot_splits",
    "plot_tree",
]
