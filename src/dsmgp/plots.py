"""Pictures of a fitted model. Each function draws on Axes and returns them. Needs ``dsmgp[plots]``."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from dsmgp.regressor import DSMGPRegressor

__all__ = ["plot_predictive", "plot_splits"]


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
    x = np.asarray(X, dtype=np.float64).reshape(len(np.asarray(X)), -1)
    if x.shape[1] != 1 or model.n_features_in_ != 1:
        raise ValueError(f"expected a model of one input, got {model.n_features_in_}")
    ax = ax or plt.figure().gca()
    margin = 0.03 * np.ptp(x)
    grid = np.linspace(x.min() - margin, x.max() + margin, n_points)
    law = model.predict_dist(grid[:, None])
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
    return ax


def plot_splits(
    model: DSMGPRegressor, dimension: int = 0, *, n_bins: int = 60, ax: Axes | None = None
) -> Axes:
    """Posterior probability of the cuts along one input, by position.

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
    positions, probabilities = model._model.splits(dimension)
    if len(positions):
        ax.hist(positions, bins=n_bins, weights=probabilities, color="#cb181d", alpha=0.85)
    ax.set_ylabel("expected cuts")
    return ax
