"""Relevance of the inputs by the length scales that the leaves have learned, as numbers and as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.process import Family
from dsmgp.mixture.model import Model
from dsmgp.plots.style import BAND, axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dsmgp.regressor import DSMGPRegressor

__all__ = ["plot_relevance", "relevance"]

# Training rows at which mixture weights are averaged.
MAX_ROWS = 1000


def plot_relevance(model: DSMGPRegressor, *, n_most: int = 20, ax: Axes | None = None) -> Axes:
    """Plot how fast the function varies along each column: inverse length scales per standard deviation.

    They are relative to the largest, and averaged over the leaves with their mixture weights. Needs kernels with a
    length scale per input.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator.
    n_most : int
        Number of columns shown, the most relevant ones.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.random.default_rng(0).uniform(size=(80, 2))
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(9 * X[:, 1]))
    >>> [label.get_text() for label in model.plot_relevance().get_yticklabels()]
    ['x0', 'x1']
    """
    values, names = relevance(model), [name for name, _ in model.state_.schema.groups]
    ax = axes_or_new(ax)
    order = np.argsort(values)[-n_most:]
    ax.barh([names[k] for k in order], values[order], color=BAND)
    ax.set_xlim(0, 1)
    ax.set_xlabel("relevance")
    return ax


def relevance(model: DSMGPRegressor) -> Array:
    """Return the inverse length scale per standard deviation of each column, relative to the largest.

    That of a column with several inputs, such as the levels of a category, is the root of their sum of squares.

    It is the average over outputs, and over leaves with the mixture weights that they have at training rows.
    Leaves that were fine-tuned count with their own length scales.

    Returns
    -------
    ndarray of shape (n_columns,)
    """
    fitted = model.state_.model
    inputs, rows = fitted.inputs, model.state_.rows.X
    n_dims = inputs.n_coordinates
    if len(rows) > MAX_ROWS:
        rows = rows[np.random.default_rng(0).choice(len(rows), MAX_ROWS, replace=False)]
    if fitted.thetas is None and len(fitted.families) == 1:
        (family,) = fitted.families
        tables = [vector[None] for vector in family.kernel_parameters]
        rates = _inverse_length_scales(family, n_dims, tables)[0]
    else:
        rates = fitted.leaf_weights(rows) @ _leaf_rates(model.state_.mixture, n_dims)
    if inputs.coordinates is not None:
        spread = inputs.coordinates.features(rows).std(axis=0)
        rates = inputs.coordinates.input_rates(rates / inputs.scale, spread, rows.std(axis=0))
    groups = model.state_.schema.groups
    by_column = np.array([np.linalg.norm(rates[inputs]) for _, inputs in groups])
    return np.asarray(by_column / (by_column.max() or 1.0))


def _leaf_rates(model: Model, n_dims: int) -> Array:
    """Return the inverse length scales of leaves that differ in their hyperparameters, (n_leaves, n_dims)."""
    tables = model.leaf_posterior.kernel_parameters
    rates = np.empty((len(model.family), n_dims))
    for number, family in enumerate(model.families):
        leaves = np.flatnonzero(model.family == number)
        rates[leaves] = _inverse_length_scales(family, n_dims, [table[leaves] for table in tables])
    return rates


def _inverse_length_scales(family: Family, n_dims: int, kernel_parameters: list[Array]) -> Array:
    """Return the inverse length scales of leaves of one family, averaged over outputs, (n_leaves, n_dims).

    Parameters
    ----------
    family : Family
    n_dims : int
    kernel_parameters : list of ndarray of shape (n_leaves, n_kernel_parameters)
        By output.
    """
    total = np.zeros((len(kernel_parameters[0]), n_dims))
    for kernel, parameters in zip(family.leaf_kernels, kernel_parameters, strict=True):
        if not isinstance(kernel, StationaryKernel):
            raise InputError(
                "the kernel has no length scale for each input; use plot_dependence to see what inputs do"
            )
        columns = list(kernel.columns)
        total[:, columns] += 1.0 / parameters[:, : len(columns)] / len(kernel_parameters)
    return total
