"""Calibration of predictions beyond the training data, by rows that leaves have not seen.

A factor of variances (:class:`~dsmgp.mixture.edges.Edges`) maximises the density of what was observed at the
edges of the data, predicted without it: of rows beyond the leaves that predict them
(:mod:`dsmgp.fitting.outside.edge_rows`), and of blocks left out of one leaf (:mod:`dsmgp.fitting.outside.edge_blocks`). That
takes no other fit, only predictions of a few hundred rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from scipy.optimize import minimize

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.points import equal_rows
from dsmgp.fitting.learning.family import length_scales
from dsmgp.fitting.outside.edge_blocks import left_out_blocks
from dsmgp.fitting.outside.edge_rows import RowsBeyondLeaves, rows_beyond_leaves
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.linalg.threads import one_thread
from dsmgp.mixture.edges import Edges, range_of
from dsmgp.mixture.fitted_model import FittedModel
from dsmgp.mixture.model import Model
from dsmgp.mixture.weights.row_scale import ScaledDensity

__all__ = ["calibrate_edges", "with_edges"]

Fitted = TypeVar("Fitted", bound=FittedModel)

# Rate of the exponential prior of jump and growth: a few rows do not move them.
PRIOR_RATE = 2.0
# Of jump and growth, when they are fitted.
LARGEST = 1e4


def with_edges(model: Fitted, X: Array, measured: Index) -> Fitted:
    """Return a model that knows the ranges of its inputs; variances beyond them stay as they are.

    Parameters
    ----------
    model : Model or ChangePointModel
    X : ndarray of shape (n_rows, n_inputs)
        Training rows; where rows are in files, their ranges are known from when they were written.
    measured : ndarray of int
        Numbers of the inputs that have a range.
    """
    low, high = _range(model, X)
    is_measured = np.zeros(len(low), dtype=bool)
    is_measured[measured] = True
    edges = Edges(
        np.where(is_measured, low, -np.inf),
        np.where(is_measured, high, np.inf),
        length_scales(model.families[0], np.ones(model.inputs.n_coordinates)),
    )
    return cast(Fitted, replace(cast(Any, model), edges=edges))


def _range(model: Any, X: Array) -> tuple[Array, Array]:
    store = model.leaf_posterior.leaf_gps.store if model.has_rows_in_files else None
    return range_of(X) if store is None or store.input_range is None else store.input_range


def calibrate_edges(model: Model, rows: TrainingRows) -> Model:
    """Return a model whose variances beyond the ranges of its inputs are as wide as rows left out at edges demand.

    Parameters
    ----------
    model : Model
        With the ranges of its inputs.
    rows : TrainingRows
        Those that the leaves of the tree list.
    """
    # Many small matrices: threads would wait for one another. What is out of range is left out below.
    with one_thread(), np.errstate(all="ignore"):
        return replace(model, edges=_calibrated(model, rows))


def _calibrated(model: Model, rows: TrainingRows) -> Edges:
    X, Y, noise, row_weights = rows.X, rows.Y, rows.noise, rows.weights
    edges = model.edges
    assert edges is not None
    fits = []
    # Each distinct input counts once: rows of weight w and w equal rows then demand the same.
    first, of_point = _points(X)
    left_out = rows_beyond_leaves(model, edges, X, first)
    if left_out is not None:
        fits.append(_fit_left_out(model, left_out, rows))
    weights = np.bincount(of_point, row_weights).astype(np.float64)
    means = [np.bincount(of_point, _weighted(y, row_weights)) / weights for y in Y.T]
    known_noise = None if noise is None else noise[first]
    blocks = left_out_blocks(model, edges, X[first], np.stack(means, axis=1), known_noise, weights)
    if blocks is not None:
        terms, squares = blocks
        fits.append(_fit(terms, partial(_normal_log_density, squares), np.ones(len(squares))))
    largest = np.max(fits, axis=0) if fits else np.zeros(1 + len(edges.low))
    return replace(edges, jump=float(largest[0]), growth=largest[1:])


def _fit_left_out(model: Model, left_out: RowsBeyondLeaves, rows: TrainingRows) -> Array:
    """Return jump and growth by rows that the mixture of the model predicts, (1 + n_inputs,)."""
    X, Y, noise = rows.X[left_out.rows], rows.Y[left_out.rows], rows.noise
    predicted = model.distribution(
        left_out.components,
        squeeze=False,
        known_noise=None if noise is None else model.outputs.noise_to_experts(noise[left_out.rows]),
        row_scale=None if model.row_scale is None else model.row_scale(X),
    )
    return _fit(left_out.terms, partial(predicted.scaled_log_density, Y), np.ones(len(Y)))


def _points(X: Array) -> tuple[Index, Index]:
    """Return the first row of each distinct input, in order, and the number of each row's input among them."""
    _, first, of_row = np.unique(equal_rows(X), return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[of_row.reshape(-1)]


def _weighted(values: Array, row_weights: Array | None) -> Array:
    return values if row_weights is None else values * row_weights


def _fit(terms: Array, log_density: ScaledDensity, weights: Array) -> Array:
    """Return jump and growth that maximise the density of rows under exponential priors, (1 + n_inputs,)."""
    used = np.flatnonzero(terms.any(axis=0))
    A = terms[:, used]

    def loss(b: Array) -> tuple[float, Array]:
        factor = 1.0 + A @ b
        density, slope = log_density(np.log(factor))
        value = PRIOR_RATE * b.sum() - weights @ density
        return float(value), PRIOR_RATE - A.T @ (weights * slope / factor)

    start, bounds = np.full(len(used), 0.1), [(0.0, LARGEST)] * len(used)
    found = np.zeros(terms.shape[1])
    found[used] = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return np.where(np.isfinite(found), found, 0.0)


def _normal_log_density(squares: Array, log_factor: Array) -> tuple[Array, Array]:
    """Log density of standardised squares if variances were multiplied by factors, up to a constant, and its slope."""
    scaled = squares * np.exp(-log_factor)
    return -0.5 * (scaled + log_factor), 0.5 * (scaled - 1.0)
