"""Pictures of a fitted model. Each function draws on Axes and returns them. Needs ``dsmgp[plots]``.

Every one is a method of :class:`~dsmgp.DSMGPRegressor` too: ``model.plot_relevance()``.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import ArrayLike, NDArray

from dsmgp.canvas import (
    BAND,
    CUTS,
    MODEL,
    ROWS,
    columns,
    explain,
    levels_of,
    names_of,
    number_of,
    output_of,
    show_dates,
)
from dsmgp.mixture import Mixture
from dsmgp.regressor import DSMGPRegressor
from dsmgp.scores import pit
from dsmgp.structure_plots import plot_changepoints, plot_relevance, plot_splits, plot_tree

__all__ = [
    "plot_calibration",
    "plot_changepoints",
    "plot_dependence",
    "plot_learning",
    "plot_pit",
    "plot_predictive",
    "plot_relevance",
    "plot_residuals",
    "plot_splits",
    "plot_tree",
]

Array = NDArray[np.float64]
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#c6dbef", "#6baed6"])
# Rows on whose other inputs a partial dependence is averaged.
MAX_BACKGROUND = 100
# Components of an averaged law that are drawn, the heaviest first.
MAX_COMPONENTS = 1000


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
        raise ValueError(
            f"expected a model of one input, got {model.n_features_in_}; use plot_dependence"
        )
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
    _shade(ax, law, grid, float(bottom - pad), float(top + pad))
    ax.plot(grid, law.mean, color=MODEL, linewidth=1.6, label="mean")
    ax.plot(grid, low, color=BAND, linewidth=0.9, linestyle="--", label=f"{level:.0%} interval")
    ax.plot(grid, high, color=BAND, linewidth=0.9, linestyle="--")
    if y is not None:
        ax.plot(x[:, 0], np.asarray(y), ".", color="0.2", markersize=2.5, alpha=0.6, label="rows")
    ax.set_xlim(grid[0], grid[-1])
    ax.set_xlabel(names_of(model)[0])
    ax.set_ylabel(output_of(model))
    show_dates(ax, model, 0)
    explain(ax)
    return ax


def plot_dependence(
    model: DSMGPRegressor,
    X: ArrayLike,
    feature: int | str = 0,
    *,
    output: int = 0,
    level: float = 0.9,
    n_points: int = 60,
    ax: Axes | None = None,
) -> Axes:
    """Partial dependence on one input: what is predicted with that input set, averaged over the rows of ``X``.

    The line is the average of the means. Around it, as shading and as an interval, is how sure the model is of an
    observation: the average of the rows' laws, each moved to the average mean, since how rows differ in their other inputs is
    no uncertainty. Ticks below show where the input's values lie. A column of text in the table that a model was fitted to by ``dsmgp fit``
    is drawn level by level.

    Parameters
    ----------
    model : DSMGPRegressor
    X : array-like
        Rows whose other inputs are averaged over (a sample of them if there are many).
    feature : int or str
        Number or name of the input, or the name of a column of text.
    output : int
        Which of several outputs.
    level : float
        Probability that the interval of a new observation holds.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(size=(60, 2))
    >>> model = DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, X[:, 0])
    >>> plot_dependence(model, X, feature=1, n_points=10).get_xlabel()
    'x1'
    """
    ax = ax or plt.figure().gca()
    rows, names = model._test_rows(X), names_of(model)  # dates as days
    levels = levels_of(model).get(feature) if isinstance(feature, str) else None
    if levels is not None and feature not in names:
        numbers = list(levels.values())
        law, means = _set(model, rows, numbers, np.eye(len(levels)), output)
        _draw_levels(ax, list(levels), means, law, level)
        ax.set_xlabel(str(feature))
    else:
        column = number_of(feature, names)
        values = rows[:, column]
        low, high = np.quantile(values, [0.01, 0.99])
        if not low < high:
            low, high = values.min() - 0.5, values.max() + 0.5
        grid = np.linspace(low, high, n_points)
        law, means = _set(model, rows, [column], grid[:, None], output)
        _draw_curve(ax, grid, means, law, level)
        ax.plot(values, np.full(len(values), 0.01), "|", transform=ax.get_xaxis_transform(), color=ROWS, alpha=0.25, markersize=7)  # fmt: skip
        ax.set_xlabel(names[column])
        show_dates(ax, model, column)
    ax.set_ylabel(output_of(model, output))
    explain(ax)
    return ax


def plot_calibration(
    model: DSMGPRegressor, X: ArrayLike, y: ArrayLike, *, ax: Axes | None = None
) -> Axes:
    """Coverage of central intervals: the share of rows inside, against the probability they should hold.

    The grey band is where 95% of calibrated models would lie with so many rows.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0])
    >>> plot_calibration(model, X, X[:, 0]).get_xlabel()
    'probability of the interval'
    """
    ax = ax or plt.figure().gca()
    u = columns(pit(np.asarray(y, dtype=np.float64), model.predict_dist(X)))
    levels = np.linspace(0.01, 0.99, 99)
    # Repeated outputs of a row are not independent: rows count.
    spread = 1.96 * np.sqrt(levels * (1 - levels) / len(u))
    ax.fill_between(
        levels, levels - spread, levels + spread, color="0.88", label="95% if calibrated"
    )
    ax.plot([0, 1], [0, 1], color="0.5", linewidth=0.8)
    for k in range(u.shape[1]):
        inside = np.abs(u[:, k] - 0.5)[:, None] <= 0.5 * levels
        label = "this model" if u.shape[1] == 1 else f"output {k}"
        ax.plot(levels, inside.mean(axis=0), linewidth=1.6, label=label, color=[MODEL, CUTS, "#238b45"][k % 3])  # fmt: skip
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_xlabel("probability of the interval")
    ax.set_ylabel("share of rows inside")
    ax.legend(loc="upper left", frameon=False)
    return ax


def plot_pit(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    *,
    n_bins: int = 20,
    ax: Axes | None = None,
) -> Axes:
    """Where in its law each observation lies (probability integral transform): flat if the model is calibrated.

    A hump means intervals that are too wide, a bowl means intervals that are too narrow, a slope means a bias.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0])
    >>> plot_pit(model, X, X[:, 0], n_bins=5).get_ylabel()
    'density of rows'
    """
    ax = ax or plt.figure().gca()
    u = pit(np.asarray(y, dtype=np.float64), model.predict_dist(X)).reshape(-1)
    counts, edges = np.histogram(u, bins=n_bins, range=(0.0, 1.0))
    ax.bar(edges[:-1], counts / len(u) * n_bins, width=1 / n_bins, align="edge", color=BAND, edgecolor="white", linewidth=0.5)  # fmt: skip
    spread = 1.96 * np.sqrt((1 / n_bins) * (1 - 1 / n_bins) / len(u)) * n_bins
    ax.axhspan(max(1 - spread, 0.0), 1 + spread, color="0.3", alpha=0.15, linewidth=0, label="95% if calibrated")  # fmt: skip
    ax.axhline(1.0, color="0.3", linewidth=0.8)
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of its law below the observation")
    ax.set_ylabel("density of rows")
    explain(ax)
    return ax


def plot_residuals(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    *,
    output: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """What was observed less what was predicted, against the prediction; shaded where 90% should lie.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0])
    >>> plot_residuals(model, X, X[:, 0]).get_ylabel()
    'observed - predicted'
    """
    ax = ax or plt.figure().gca()
    law = model.predict_dist(X)
    mean = columns(law.mean)[:, output]
    low, high = (columns(end)[:, output] - mean for end in law.interval(0.9))
    residual = columns(np.asarray(y, dtype=np.float64))[:, output] - mean
    order = np.argsort(mean)
    # Intervals of rows with like predictions, smoothed, or a band would be a comb.
    window = max(1, len(order) // 50)
    smooth = np.ones(window) / window

    def smoothed(values: Array) -> Array:
        padded = np.pad(values[order], (window // 2, window - 1 - window // 2), mode="edge")
        return np.convolve(padded, smooth, mode="valid")

    ax.fill_between(mean[order], smoothed(low), smoothed(high), color=SHADES(0.5), linewidth=0, label="90% interval")  # fmt: skip
    ax.plot(mean, residual, ".", color=ROWS, markersize=3, alpha=0.5, label="rows")
    ax.axhline(0.0, color=MODEL, linewidth=0.8)
    ax.set_xlabel("predicted")
    ax.set_ylabel("observed - predicted")
    explain(ax)
    return ax


def plot_learning(model: DSMGPRegressor, *, ax: Axes | None = None) -> Axes:
    """The objective during learning, one line for each search: how far each evaluation was from the best.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> plot_learning(model).get_xlabel()
    'evaluation'
    """
    ax = ax or plt.figure().gca()
    model._fitted  # noqa: B018  # refused before a fit
    paths = [np.asarray(one.path) for one in model._learned if len(one.path) > 1]
    for k, path in enumerate(paths):
        best = np.maximum.accumulate(np.where(np.isfinite(path), path, -np.inf))
        away = best[-1] - best
        kept = np.isfinite(away) & (away > 0)
        steps = np.arange(1, len(path) + 1)
        ax.plot(steps[kept], away[kept], ".-", linewidth=1.2, markersize=3, label=f"search {k + 1}")
    if paths:
        ax.set_yscale("log")
        ax.legend(frameon=False)
    else:
        ax.text(0.5, 0.5, "nothing was learned", ha="center", transform=ax.transAxes)
    ax.set_xlabel("evaluation")
    ax.set_ylabel("log evidence below the best")
    return ax


def _set(
    model: DSMGPRegressor, rows: Array, numbers: list[int], values: Array, output: int
) -> tuple[Mixture, Array]:
    """The average law of rows whose inputs of these ``numbers`` are set, to each line of ``values`` in turn."""
    if len(rows) > MAX_BACKGROUND:
        chosen = np.random.default_rng(0).choice(len(rows), MAX_BACKGROUND, replace=False)
        rows = rows[np.sort(chosen)]
    set_rows = np.repeat(rows[None], len(values), axis=0)
    set_rows[:, :, numbers] = values[:, None, :]
    flat = set_rows.reshape(-1, rows.shape[1])
    return _averaged(model._model.mixture(flat), len(values), output)


def _draw_curve(ax: Axes, grid: Array, means: Array, law: Mixture, level: float) -> None:
    bottom, top = law.interval(level)
    pad = 0.08 * float(np.max(top) - np.min(bottom))
    _shade(ax, law, grid, float(np.min(bottom)) - pad, float(np.max(top)) + pad)
    ax.plot(grid, means, color=MODEL, linewidth=1.6, label="average of the means")
    ax.plot(grid, bottom, color=BAND, linewidth=0.9, linestyle="--", label=f"{level:.0%} interval")
    ax.plot(grid, top, color=BAND, linewidth=0.9, linestyle="--")
    ax.set_xlim(grid[0], grid[-1])


def _draw_levels(ax: Axes, levels: list[str], means: Array, law: Mixture, level: float) -> None:
    bottom, top = (end.reshape(-1) for end in law.interval(level))
    places = np.arange(len(levels))
    ax.vlines(places, bottom, top, color=BAND, linewidth=1.6, label=f"{level:.0%} interval")
    ax.plot(places, means, "o", color=MODEL, label="average of the means")
    ax.set_xticks(places, levels, rotation=90 if sum(map(len, levels)) > 40 else 0)
    ax.set_xlim(-0.5, len(levels) - 0.5)


def _shade(ax: Axes, law: Mixture, grid: Array, bottom: float, top: float) -> None:
    """The density over a grid, each column against its own peak, or sharp spots drown the rest."""
    heights = np.linspace(bottom, top, 300)
    density = np.stack([law.pdf(height) for height in heights])
    ax.imshow(
        density / density.max(axis=0),
        extent=(grid[0], grid[-1], heights[0], heights[-1]),
        origin="lower",
        aspect="auto",
        cmap="Blues",
        vmax=1.4,
        interpolation="bilinear",
    )


def _averaged(law: Mixture, n_points: int, output: int) -> tuple[Mixture, Array]:
    """Laws of consecutive rows, so many for each point, moved to their average mean and mixed; and those means."""
    n_rows = len(law) // n_points
    own = (law.weights * law.component_means[:, :, output]).sum(axis=1).reshape(n_points, n_rows)
    moved = (own.mean(axis=1, keepdims=True) - own).reshape(-1, 1)
    weights = law.weights.reshape(n_points, -1) / n_rows
    means = (law.component_means[:, :, output] + moved).reshape(n_points, -1)
    variances = law.component_variances[:, :, output].reshape(n_points, -1)
    # Components that weigh next to nothing cost as much as those that do.
    kept = min(MAX_COMPONENTS, weights.shape[1])
    heavy = np.argpartition(-weights, kept - 1, axis=1)[:, :kept]
    weights, means, variances = (
        np.take_along_axis(a, heavy, axis=1) for a in (weights, means, variances)
    )
    weights /= weights.sum(axis=1, keepdims=True)
    return Mixture(weights, means[:, :, None], variances[:, :, None]), own.mean(axis=1)
