"""Pictures of a fitted model. Each function draws on Axes and returns them. Needs ``dsmgp[plots]``.

Every one is a method of :class:`~dsmgp.DSMGPRegressor` too: ``model.plot_relevance()``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from dsmgp.mixture import Mixture
from dsmgp.regressor import DSMGPRegressor
from dsmgp.relevance import relevance
from dsmgp.scores import pit
from dsmgp.tree import Leaf, Node, Product, Sum

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
# One hue for what the model says, one for what was observed, one for where the model cuts.
MODEL, BAND, ROWS, CUTS = "#08306b", "#2171b5", "#333333", "#cb181d"
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#c6dbef", "#6baed6"])
# Rows on whose other inputs a partial dependence is averaged, and nodes that a picture of a tree can show.
MAX_BACKGROUND, MAX_NODES = 100, 400
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
    ax.set_xlabel(_names(model)[0])
    ax.set_ylabel("y")
    _show_dates(ax, model, 0)
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
    no uncertainty. Ticks below show where the input's values lie.

    Parameters
    ----------
    model : DSMGPRegressor
    X : array-like
        Rows whose other inputs are averaged over (a sample of them if there are many).
    feature : int or str
        Number or name of the input.
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
    rows, names = model._test_rows(X), _names(model)  # dates as days
    column = _number(feature, names)
    values = rows[:, column]
    low, high = np.quantile(values, [0.01, 0.99])
    if not low < high:
        low, high = values.min() - 0.5, values.max() + 0.5
    grid = np.linspace(low, high, n_points)
    if len(rows) > MAX_BACKGROUND:
        chosen = np.random.default_rng(0).choice(len(rows), MAX_BACKGROUND, replace=False)
        rows = rows[np.sort(chosen)]
    set_rows = np.repeat(rows[None], n_points, axis=0)
    set_rows[:, :, column] = grid[:, None]
    flat = set_rows.reshape(-1, rows.shape[1])
    law, means = _averaged(model._model.mixture(flat), n_points, output)
    bottom, top = law.interval(level)
    pad = 0.08 * float(np.max(top) - np.min(bottom))
    _shade(ax, law, grid, float(np.min(bottom)) - pad, float(np.max(top)) + pad)
    ax.plot(grid, means, color=MODEL, linewidth=1.6, label="average of the means")
    ax.plot(grid, bottom, color=BAND, linewidth=0.9, linestyle="--", label=f"{level:.0%} interval")
    ax.plot(grid, top, color=BAND, linewidth=0.9, linestyle="--")
    ax.plot(values, np.full(len(values), 0.01), "|", transform=ax.get_xaxis_transform(), color=ROWS, alpha=0.25, markersize=7)  # fmt: skip
    ax.set_xlim(grid[0], grid[-1])
    ax.set_xlabel(names[column])
    ax.set_ylabel("y")
    _show_dates(ax, model, column)
    return ax


def plot_splits(
    model: DSMGPRegressor, dimension: int | str = 0, *, n_bins: int = 60, ax: Axes | None = None
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
    names = _names(model)
    column = _number(dimension, names)
    model._fitted  # noqa: B018  # refused before a fit
    splits = model.split_posterior(column)
    if len(splits):
        ax.hist(splits.position, bins=n_bins, weights=splits.probability, color=CUTS, alpha=0.85)
    ax.set_xlabel(names[column])
    ax.set_ylabel("expected cuts")
    _show_dates(ax, model, column)
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
        ax.axvspan(change.low, change.high, color=CUTS, alpha=0.25, linewidth=0.0)
        ax.axvline(change.position, color=CUTS, linewidth=1.0, alpha=change.probability)
    ax.set_ylim(0.0, max(1.0, float(splits.probability.max(initial=0.0))))
    ax.set_ylabel("probability of a change")
    _show_dates(ax, model, dimension)
    return ax


def plot_tree(model: DSMGPRegressor, *, ax: Axes | None = None) -> Axes:
    """The structure: sums, products and leaves, each as heavy as its posterior probability.

    A tree of very many nodes is cut off below; the title says so.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor(leaf_size=20, sum_children=2, random_state=0).fit(X, X[:, 0] > 0.5)
    >>> plot_tree(model).get_title()
    '11 nodes, 6 leaves'
    """
    ax = ax or plt.figure().gca()
    root, reach = model._fitted.tree, model._fitted.posterior.log_reach
    shown, n_nodes, n_leaves = _first_levels(root)
    place = _places(root, shown)
    for node in shown:
        x, depth = place[id(node)]
        for child in () if isinstance(node, Leaf) else node.children:
            if id(child) in place:
                below, down = place[id(child)]
                weight = float(np.exp(reach[child])) if child in reach else 1.0
                ax.plot([x, below], [-depth, -down], color="0.55", linewidth=0.4 + 1.8 * weight, zorder=1)  # fmt: skip
    looks = {
        Sum: ("o", MODEL, "sum"),
        Product: ("s", CUTS, "product"),
        Leaf: ("o", "#74c476", "leaf"),
    }
    for kind, (marker, colour, label) in looks.items():
        at = np.array([place[id(n)] for n in shown if isinstance(n, kind)]).reshape(-1, 2)
        size = 60 if kind is not Leaf else 25
        ax.scatter(at[:, 0], -at[:, 1], marker=marker, s=size, color=colour, label=label, zorder=2)
    ax.set_axis_off()
    ax.legend(loc="lower center", ncols=3, frameon=False, bbox_to_anchor=(0.5, -0.14))
    hidden = n_nodes - len(shown)
    ax.set_title(
        f"{n_nodes:,} nodes, {n_leaves:,} leaves" + (f" ({hidden:,} not shown)" if hidden else ""),
        fontsize="medium",
    )
    return ax


def plot_relevance(model: DSMGPRegressor, *, n_most: int = 20, ax: Axes | None = None) -> Axes:
    """How fast the function varies along each input, over the fastest: inverse length-scales per standard deviation.

    The average over the leaves' kernels, weighed as the model weighs its leaves. Needs kernels with length-scales.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(size=(80, 2))
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(9 * X[:, 1]))
    >>> [label.get_text() for label in plot_relevance(model).get_yticklabels()]
    ['x0', 'x1']
    """
    ax = ax or plt.figure().gca()
    found, names = relevance(model._fitted), _names(model)
    order = np.argsort(found)[-n_most:]
    ax.barh([names[k] for k in order], found[order], color=BAND)
    ax.set_xlim(0, 1)
    ax.set_xlabel("relevance")
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
    u = _columns(pit(np.asarray(y, dtype=np.float64), model.predict_dist(X)))
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
    mean = _columns(law.mean)[:, output]
    low, high = (_columns(end)[:, output] - mean for end in law.interval(0.9))
    residual = _columns(np.asarray(y, dtype=np.float64))[:, output] - mean
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
    ax.legend(loc="best", frameon=False)
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


def _first_levels(root: Node) -> tuple[list[Node], int, int]:
    """The nodes of as many levels as can be shown, and how many nodes and leaves there are."""
    shown: list[Node] = []
    level, n_nodes, n_leaves = [root], 0, 0
    while level:
        if n_nodes + len(level) <= MAX_NODES or not shown:
            shown += level
        n_nodes += len(level)
        n_leaves += sum(isinstance(node, Leaf) for node in level)
        level = [c for node in level if not isinstance(node, Leaf) for c in node.children]
    return shown, n_nodes, n_leaves


def _places(root: Node, shown: list[Node]) -> dict[int, tuple[float, int]]:
    """Across, in the middle of what is below; and down."""
    known = {id(node) for node in shown}
    place: dict[int, tuple[float, int]] = {}
    n_ends = 0

    def put(node: Node, depth: int) -> float:
        nonlocal n_ends
        below = [] if isinstance(node, Leaf) else [c for c in node.children if id(c) in known]
        if below:
            across = [put(child, depth + 1) for child in below]
            x = 0.5 * (across[0] + across[-1])
        else:
            x = float(n_ends)
            n_ends += 1
        place[id(node)] = (x, depth)
        return x

    put(root, 0)
    return place


def _names(model: DSMGPRegressor) -> list[str]:
    names = getattr(model, "feature_names_in_", None)
    return [f"x{k}" for k in range(model.n_features_in_)] if names is None else list(names)


def _number(feature: int | str, names: list[str]) -> int:
    if isinstance(feature, str) and feature in names:
        return names.index(feature)
    if not isinstance(feature, str) and 0 <= int(feature) < len(names):
        return int(feature)
    raise ValueError(
        f"expected an input by number or name, one of {', '.join(names)}, got {feature!r}"
    )


def _like(model: DSMGPRegressor, X: Array) -> Any:
    """Rows with the names that the model was fitted with, if it was."""
    if not hasattr(model, "feature_names_in_"):
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=list(model.feature_names_in_))


def _columns(values: Array) -> Array:
    return values.reshape(len(values), -1)


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
