"""Plots that compare predictions with observations: one against the other, coverage, probability integral transform, residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array
from dsmgp.plots.style import (
    BAND,
    INTERVAL,
    MODEL,
    MUTED,
    OBSERVED,
    REFERENCE,
    SERIES,
    THIN,
    add_legend,
    axes_or_new,
    per_output,
)
from dsmgp.scores import pit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dsmgp.regressor import DSMGPRegressor

__all__ = ["plot_calibration", "plot_observed", "plot_pit", "plot_residuals"]

# Rows whose intervals are drawn; with more, the lines would cover the plot.
MAX_INTERVALS = 200


def plot_observed(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    *,
    output: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Plot observations against predictions; on the diagonal they are equal.

    Up to 200 rows have their 90% intervals, as horizontal lines.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator.
    X, y : array-like
        Rows to compare with, preferably not in the training set.
    output : int
        Which of several outputs.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0])
    >>> model.plot_observed(X, X[:, 0]).get_ylabel()
    'observed'
    """
    distribution = model.predict_dist(X)
    ax = axes_or_new(ax)
    mean = per_output(distribution.mean)[:, output]
    observed = per_output(np.asarray(y, dtype=np.float64))[:, output]
    ends = (min(mean.min(), observed.min()), max(mean.max(), observed.max()))
    ax.plot(ends, ends, color=REFERENCE, linewidth=THIN, label="predicted = observed")
    if len(mean) <= MAX_INTERVALS:
        low, high = (per_output(end)[:, output] for end in distribution.interval(0.9))
        ax.hlines(observed, low, high, color=BAND, linewidth=THIN, alpha=0.6, label="90% interval")
    ax.plot(mean, observed, ".", color=OBSERVED, markersize=3, alpha=0.5, label="rows")
    ax.set_xlabel("predicted")
    ax.set_ylabel("observed")
    add_legend(ax)
    return ax


def plot_calibration(
    model: DSMGPRegressor, X: ArrayLike, y: ArrayLike, *, ax: Axes | None = None
) -> Axes:
    """Plot the coverage of central intervals against their nominal probability.

    The grey band holds 95% of calibrated models for this number of rows.

    Parameters
    ----------
    model, X, y, ax
        See :func:`plot_observed`.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0])
    >>> model.plot_calibration(X, X[:, 0]).get_xlabel()
    'probability of the interval'
    """
    u = per_output(pit(np.asarray(y, dtype=np.float64), model.predict_dist(X)))
    ax = axes_or_new(ax)
    levels = np.linspace(0.01, 0.99, 99)
    # The outputs of a row are not independent, so the band is that of the number of rows.
    margin = 1.96 * np.sqrt(levels * (1 - levels) / len(u))
    ax.fill_between(
        levels, levels - margin, levels + margin, color=MUTED, label="95% if calibrated"
    )
    ax.plot([0, 1], [0, 1], color=REFERENCE, linewidth=THIN)
    for k in range(u.shape[1]):
        inside = np.abs(u[:, k] - 0.5)[:, None] <= 0.5 * levels
        label = "this model" if u.shape[1] == 1 else model.state_.schema.output_names[k]
        ax.plot(levels, inside.mean(axis=0), label=label, color=SERIES[k % len(SERIES)])
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_xlabel("probability of the interval")
    ax.set_ylabel("share of rows inside")
    add_legend(ax)
    return ax


def plot_pit(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    *,
    n_bins: int = 20,
    ax: Axes | None = None,
) -> Axes:
    """Plot the histogram of the probability integral transform: flat if the model is calibrated.

    A hump means intervals that are too wide, a bowl intervals that are too narrow, a slope a bias.

    Parameters
    ----------
    n_bins : int
        Number of bars.
    model, X, y, ax
        See :func:`plot_observed`.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0])
    >>> model.plot_pit(X, X[:, 0], n_bins=5).get_ylabel()
    'density of rows'
    """
    u = pit(np.asarray(y, dtype=np.float64), model.predict_dist(X)).reshape(-1)
    ax = axes_or_new(ax)
    counts, edges = np.histogram(u, bins=n_bins, range=(0.0, 1.0))
    density = counts / len(u) * n_bins
    ax.bar(
        edges[:-1],
        density,
        width=1 / n_bins,
        align="edge",
        color=BAND,
        edgecolor="white",
        linewidth=0.5,
    )
    margin = 1.96 * np.sqrt((1 / n_bins) * (1 - 1 / n_bins) / len(u)) * n_bins
    bounds = (max(1 - margin, 0.0), 1 + margin)
    ax.axhspan(*bounds, color=OBSERVED, alpha=0.15, linewidth=0, label="95% if calibrated")
    ax.axhline(1.0, color=OBSERVED, linewidth=THIN)
    ax.set_xlim(0, 1)
    ax.set_xlabel("predicted probability of a smaller observation")
    ax.set_ylabel("density of rows")
    add_legend(ax)
    return ax


def plot_residuals(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    *,
    output: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Plot residuals (observed minus predicted) against predictions, with the 90% interval as a band.

    Parameters
    ----------
    model, X, y, output, ax
        See :func:`plot_observed`.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0])
    >>> model.plot_residuals(X, X[:, 0]).get_ylabel()
    'observed - predicted'
    """
    distribution = model.predict_dist(X)
    ax = axes_or_new(ax)
    mean = per_output(distribution.mean)[:, output]
    low, high = (per_output(end)[:, output] - mean for end in distribution.interval(0.9))
    residual = per_output(np.asarray(y, dtype=np.float64))[:, output] - mean
    order = np.argsort(mean)
    # A running mean over rows with similar predictions: unsmoothed, the band would look like a comb.
    window = max(1, len(order) // 50)
    kernel = np.ones(window) / window

    def smoothed(values: Array) -> Array:
        padded = np.pad(values[order], (window // 2, window - 1 - window // 2), mode="edge")
        return np.convolve(padded, kernel, mode="valid")

    band = (smoothed(low), smoothed(high))
    ax.fill_between(mean[order], *band, color=INTERVAL, linewidth=0, label="90% interval")
    ax.plot(mean, residual, ".", color=OBSERVED, markersize=3, alpha=0.5, label="rows")
    ax.axhline(0.0, color=MODEL, linewidth=THIN)
    ax.set_xlabel("predicted")
    ax.set_ylabel("observed - predicted")
    add_legend(ax)
    return ax
