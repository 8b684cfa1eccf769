"""Pictures of what a model is made of: its tree, its cuts, the relevance of its inputs. They are part of :mod:`dsmgp.plots`."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from dsmgp.canvas import BAND, CUTS, MODEL, names_of, number_of, show_dates
from dsmgp.regressor import DSMGPRegressor
from dsmgp.relevance import relevance
from dsmgp.tree import Leaf, Node, Product, Sum

__all__ = ["plot_changepoints", "plot_relevance", "plot_splits", "plot_tree"]

# Nodes that a picture of a tree can show.
MAX_NODES = 400


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
    names = names_of(model)
    column = number_of(dimension, names)
    model._fitted  # noqa: B018  # refused before a fit
    splits = model.split_posterior(column)
    if len(splits):
        ax.hist(splits.position, bins=n_bins, weights=splits.probability, color=CUTS, alpha=0.85)
    ax.set_xlabel(names[column])
    ax.set_ylabel("expected cuts")
    show_dates(ax, model, column)
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
    names = names_of(model)
    ax.set_xlabel(names[number_of(dimension, names)])
    ax.set_ylabel("probability of a change")
    show_dates(ax, model, dimension)
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
    found, names = relevance(model._fitted), names_of(model)
    order = np.argsort(found)[-n_most:]
    ax.barh([names[k] for k in order], found[order], color=BAND)
    ax.set_xlim(0, 1)
    ax.set_xlabel("relevance")
    return ax


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
