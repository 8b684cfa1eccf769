"""A plot of the posterior over kernels along an input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsmgp._util.errors import InputError
from dsmgp._util.validation import input_number
from dsmgp.mixture.kernel_posterior import kernel_probabilities
from dsmgp.plots.style import SERIES, add_legend, axes_or_new, show_dates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dsmgp.regressor import DSMGPRegressor

__all__ = ["plot_kernels"]


def plot_kernels(
    model: DSMGPRegressor, dimension: int | str = 0, *, n_bins: int = 40, ax: Axes | None = None
) -> Axes:
    """Plot the posterior probability of each kernel along one input, averaged over training rows.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator with a list of kernels.
    dimension : int or str
        The input, by number or name.
    n_bins : int
        Parts of the input's range, each with as many training rows, that are averaged over.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor(["rbf", "matern12"], leaf_size=20, random_state=0)
    >>> model.fit(X, np.sin(6 * X[:, 0])).plot_kernels().get_ylabel()
    'posterior probability'
    """
    state, names = model.state_, model.state_.schema.input_names
    column = input_number(dimension, len(names), names)
    ax = axes_or_new(ax)
    if not state.model.kernel_sums:
        raise InputError(
            "plot_kernels needs a model that was fitted with a list of kernels, such as ['rbf', 'matern32']"
        )
    x = state.rows.X[:, column]
    probabilities = kernel_probabilities(state.mixture, state.rows.X)
    edges = np.unique(np.quantile(x, np.linspace(0.0, 1.0, n_bins + 1)))
    inside = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(len(edges) - 2, 0))
    count = np.maximum(np.bincount(inside, minlength=max(len(edges) - 1, 1)), 1)
    floor = np.zeros(len(count))
    for k, family in enumerate(state.model.families):
        share = np.bincount(inside, probabilities[:, k], len(count)) / count
        top = floor + share
        if len(edges) > 1:
            low, high = (np.append(each, each[-1]) for each in (floor, top))
            area: dict[str, Any] = {"color": SERIES[k % len(SERIES)], "label": family.kernel}
            ax.fill_between(edges, low, high, step="post", linewidth=0.0, **area)
        floor = top
    ax.set_ylim(0.0, 1.0)
    ax.set_xlabel(names[column])
    ax.set_ylabel("posterior probability")
    show_dates(ax, model, column)
    add_legend(ax)
    return ax
