"""Pictures of a fitted model. Each function draws on Axes and returns them. Needs ``dsmgp[plots]``."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

from dsmgp.regressor import DSMGPRegressor

__all__ = ["plot_changepoints", "plot_predictive", "plot_splits"]


def plot_predictive(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    level: float = 0.9,
    n_points: int = 400,
    ax: Axes | None = None,
) -> Axes:
    """The predictive law over one input: its density as shading, its mean and a central interval.

    Parameters
    ----------
    model : DSMGPRegressor
        Fitted to one input and one output.
    X, y : array-like
        Rows that set the range shown; with ``y`` they are drawn as points.
    level : float
        Probability that the interval holds.
    n_points : int
        Points of the grid along the input.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> ax = plot_predictive(model, X, n_points=50)
    >>> ax.get_ylabel()
    'y'
    """
    if model.n_features_in_ != 1:
        raise ValueError(f"expected a model of one input, got {model.n_features_in_}")
    x = model._test_rows(X)  # dates as days
    ax = ax or plt.figure().gca()
    margin = 0.03 * np.ptp(x)
    grid = np.linspace(x.min() - margin, x.max() + margin, n_points)
    law = model._model.mixture(grid[:, None])
    low, high = law.interval(level)
    bottom, top = np.min(low), np.max(high)
    if y is not None:
        bottom, top = min(bottom, np.min(y)), max(top, np.max(y))
    pad = 0.08 * (top - bottom)
    heights = np.linspace(bottom - pad, top + pad, 300)
    density = np.stack([law.pdf(height) for height in heights])
    ax.imshow(
        density
        / density.max(axis=0),  # each column against its own peak, or sharp spots drown the rest
        extent=(grid[0], grid[-1], heights[0], heights[-1]),
        origin="lower",
        aspect="auto",
        cmap="Blues",
        vmax=1.4,
        interpolation="bilinear",
    )
    ax.plot(grid, law.mean, color="#08306b", linewidth=1.6, label="mean")
    ax.plot(
        grid, low, color="#2171b5", linewidth=0.9, linestyle="--", label=f"{level:.0%} interval"
    )
    ax.plot(grid, high, color="#2171b5", linewidth=0.9, linestyle="--")
    if y is not None:
        ax.plot(x[:, 0], np.asarray(y), ".", color="0.2", markersize=2.5, alpha=0.6, label="rows")
    ax.set_xlim(grid[0], grid[-1])
    ax.set_ylabel("y")
    _show_dates(ax, model, 0)
    return ax


def plot_splits(
    model: DSMGPRegressor, dimension: int | str = 0, *, n_bins: int = 60, ax: Axes | None = None
) -> Axes:
    """Posterior of the positions of cuts or changes along one input.

    The height of a bar is the expected number of cuts inside it.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor(leaf_size=20, random_state=0).fit(X, X[:, 0] > 0.5)
    >>> plot_splits(model).get_ylabel()
    'expected cuts'
    """
    ax = ax or plt.figure().gca()
    splits = model.split_posterior(dimension)
    if len(splits):
        ax.hist(
            splits.position, bins=n_bins, weights=splits.probability, color="#cb181d", alpha=0.85
        )
    ax.set_ylabel("expected cuts")
    _show_dates(ax, model, dimension)
    return ax


def plot_changepoints(
    model: DSMGPRegressor,
    level: float = 0.5,
    dimension: int | str | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Changes that are at least so probable: a line at each, with the interval that holds it, over the probabilities of all gaps.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> y = (X[:, 0] > 0.5) + 0.05 * np.random.default_rng(0).normal(size=40)
    >>> model = DSMGPRegressor("rbf", structure="changepoint", max_iter=5).fit(X, y)
    >>> plot_changepoints(model).get_ylabel()
    'probability of a change'
    """
    ax = ax or plt.figure().gca()
    if dimension is None:
        dimension = getattr(model._model, "dimension", 0)
    splits = replace(model.split_posterior(dimension), dates=None)
    ax.vlines(splits.position, 0.0, splits.probability, color="0.35", linewidth=0.8)
    for change in splits.change_points(level):
        ax.axvspan(change.low, change.high, color="#cb181d", alpha=0.25, linewidth=0.0)
        ax.axvline(change.position, color="#cb181d", linewidth=1.0, alpha=change.probability)
    ax.set_ylim(0.0, max(1.0, float(splits.probability.max(initial=0.0))))
    ax.set_ylabel("probability of a change")
    _show_dates(ax, model, dimension)
    return ax


def _show_dates(ax: Axes, model: DSMGPRegressor, dimension: int | str) -> None:
    """Days since the first row as dates, where the input is one of dates."""
    dates = model.split_posterior(dimension).dates
    if dates is None:
        return

    def written(days: float, _: int) -> str:
        low, high = sorted(ax.get_xlim())
        text = str(dates.to_dates(days))
        return text[:10] if high - low > 3.0 else text[:16].replace("T", " ")

    ax.xaxis.set_major_formatter(FuncFormatter(written))
    ax.xaxis.set_major_locator(MaxNLocator(6))
