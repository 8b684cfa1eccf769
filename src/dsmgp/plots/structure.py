"""Plots of what a model has learned: its splits and change points, its tree, the course of its optimisation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsmgp._util.validation import input_number
from dsmgp.plots.style import (
    MODEL,
    OBSERVED,
    REFERENCE,
    SERIES,
    SPLIT,
    THIN,
    add_legend,
    axes_or_new,
    show_dates,
)
from dsmgp.tree.nodes import Leaf, Node, Product, Sum

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dsmgp.regressor import DSMGPRegressor

__all__ = ["plot_changepoints", "plot_learning", "plot_splits", "plot_tree"]

# Nodes that a plot of a tree shows at most.
MAX_NODES = 400


def plot_splits(
    model: DSMGPRegressor, dimension: int | str = 0, *, n_bins: int = 60, ax: Axes | None = None
) -> Axes:
    """Plot the posterior over the positions of splits along one input.

    The height of a bar is the expected number of splits inside it. Splits are those that were drawn when the tree was grown, weighted
    by their posterior probability; predictions use these weights with ``weights="posterior"`` only.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator.
    dimension : int or str
        The input, by number or name.
    n_bins : int
        Number of bars.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor(leaf_size=20, random_state=0).fit(X, X[:, 0] > 0.5)
    >>> model.plot_splits().get_ylabel()
    'expected splits'
    """
    names = model.state_.schema.input_names
    column = input_number(dimension, len(names), names)
    splits = model.split_posterior(column)
    ax = axes_or_new(ax)
    values = model.state_.rows.X[:, column]
    ends = (float(values.min()), float(values.max()))
    if len(splits):
        bars: dict[str, Any] = {"bins": n_bins, "range": ends, "weights": splits.probability}
        ax.hist(splits.position, color=SPLIT, **bars)
    if ends[0] < ends[1]:
        ax.set_xlim(*ends)
    ax.set_xlabel(names[column])
    ax.set_ylabel("expected splits")
    show_dates(ax, model, column)
    return ax


def plot_changepoints(
    model: DSMGPRegressor,
    level: float = 0.5,
    dimension: int | str | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Plot the probability of a change in every gap between rows, and mark the probable change points.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator.
    level : float
        Least probability of a change point that is marked, by a triangle and the interval that holds it.
    dimension : int or str, optional
        The input; the one that orders the rows with ``structure="changepoint"``, else the first.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> y = (X[:, 0] > 0.5) + 0.05 * np.random.default_rng(0).normal(size=40)
    >>> model = DSMGPRegressor("rbf", structure="changepoint", max_iter=5).fit(X, y)
    >>> model.plot_changepoints().get_ylabel()
    'probability of a change'
    """
    fitted, names = model.state_.model, model.state_.schema.input_names
    if dimension is None:
        dimension = fitted.split_dimension
    column = input_number(dimension, len(names), names)
    splits = replace(model.split_posterior(column), dates=None)
    ax = axes_or_new(ax)
    probabilities = (splits.position, 0.0, splits.probability)
    ax.vlines(*probabilities, color=OBSERVED, linewidth=THIN, label="probability")
    above = ax.get_xaxis_transform()
    for k, change in enumerate(splits.change_points(level)):
        label, interval = ("change point", "its interval") if k == 0 else (None, None)
        span = (change.low, change.high)
        ax.axvspan(*span, color=SPLIT, alpha=0.25, linewidth=0.0, label=interval)
        # Above the lines of the probabilities, which it would hide.
        ax.plot([change.position], [0.96], "v", color=SPLIT, transform=above, label=label)
    ax.set_ylim(0.0, 1.1 * max(1.0, float(splits.probability.max(initial=0.0))))
    ax.set_xlabel(names[column])
    ax.set_ylabel("probability of a change")
    show_dates(ax, model, column)
    add_legend(ax)
    return ax


def plot_tree(model: DSMGPRegressor, *, ax: Axes | None = None) -> Axes:
    """Plot the tree of sums, products and leaves; the width of a line is the posterior probability of the node below.

    The lower levels of a very large tree are left out; the title says so.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor(leaf_size=20, sum_children=2, random_state=0).fit(X, X[:, 0] > 0.5)
    >>> model.plot_tree().get_title()
    '11 nodes, 6 leaves'
    """
    fitted = model.state_.model
    root, log_reach = fitted.tree, fitted.posterior.log_reach
    ax = axes_or_new(ax)
    shown, n_nodes, n_leaves = _first_levels(root)
    position = _positions(root, shown)
    for node in shown:
        x, depth = position[id(node)]
        for child in () if isinstance(node, Leaf) else node.children:
            if id(child) in position:
                child_x, child_depth = position[id(child)]
                width = 0.4 + 1.8 * float(np.exp(log_reach.get(child, 0.0)))
                ends = ([x, child_x], [-depth, -child_depth])
                ax.plot(*ends, color=REFERENCE, linewidth=width, zorder=1)
    for kind, marker, size, colour in (
        (Sum, "o", 60, MODEL),
        (Product, "s", 60, SPLIT),
        (Leaf, "^", 25, SERIES[2]),
    ):
        at = np.array([position[id(n)] for n in shown if isinstance(n, kind)]).reshape(-1, 2)
        label = kind.__name__.lower()
        ax.scatter(at[:, 0], -at[:, 1], marker=marker, s=size, color=colour, label=label, zorder=2)
    ax.set_axis_off()
    ax.legend(loc="lower center", ncols=3, frameon=False, bbox_to_anchor=(0.5, -0.14))
    n_hidden = n_nodes - len(shown)
    hidden = f" ({n_hidden:,} not shown)" if n_hidden else ""
    ax.set_title(f"{n_nodes:,} nodes, {n_leaves:,} leaves{hidden}", fontsize="medium")
    return ax


def plot_learning(model: DSMGPRegressor, *, ax: Axes | None = None) -> Axes:
    """Plot how the hyperparameter optimisation converged: log evidence below the best, by evaluation and run.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.plot_learning().get_xlabel()
    'evaluation'
    """
    paths = [np.asarray(search.path) for search in model.state_.search.results]
    paths = [path for path in paths if len(path) > 1]
    ax = axes_or_new(ax)
    for k, path in enumerate(paths):
        best = np.maximum.accumulate(np.where(np.isfinite(path), path, -np.inf))
        distance = best[-1] - best
        drawn = np.isfinite(distance) & (distance > 0)
        evaluations = np.arange(1, len(path) + 1)[drawn]
        ax.plot(
            evaluations,
            distance[drawn],
            ".-",
            color=SERIES[k % len(SERIES)],
            linewidth=THIN,
            markersize=3,
            label=f"run {k + 1}",
        )
    if paths:
        ax.set_yscale("log")
        add_legend(ax)
    else:
        ax.text(0.5, 0.5, "nothing was learned", ha="center", transform=ax.transAxes)
    ax.set_xlabel("evaluation")
    ax.set_ylabel("log evidence below the best")
    return ax


def _first_levels(root: Node) -> tuple[list[Node], int, int]:
    """Return the nodes of as many levels as can be shown, and the numbers of all nodes and leaves."""
    shown: list[Node] = []
    level, n_nodes, n_leaves = [root], 0, 0
    while level:
        if n_nodes + len(level) <= MAX_NODES or not shown:
            shown += level
        n_nodes += len(level)
        n_leaves += sum(isinstance(node, Leaf) for node in level)
        level = [c for node in level if not isinstance(node, Leaf) for c in node.children]
    return shown, n_nodes, n_leaves


def _positions(root: Node, shown: list[Node]) -> dict[int, tuple[float, int]]:
    """Return position across (centred over the children) and depth of the shown nodes, by their ids."""
    shown_ids = {id(node) for node in shown}
    position: dict[int, tuple[float, int]] = {}
    n_ends = 0

    def place(node: Node, depth: int) -> float:
        nonlocal n_ends
        below = [] if isinstance(node, Leaf) else [c for c in node.children if id(c) in shown_ids]
        if below:
            across = [place(child, depth + 1) for child in below]
            x = 0.5 * (across[0] + across[-1])
        else:
            x = float(n_ends)
            n_ends += 1
        position[id(node)] = (x, depth)
        return x

    place(root, 0)
    return position
