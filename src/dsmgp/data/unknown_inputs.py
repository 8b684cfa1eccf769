"""Predictions at rows in which some inputs are not known: mixtures over what these may be.

A level that was not there in training, or a missing value of a column that had none, may be any of those that were. The
predictive distribution is then the mixture of those at the possible inputs, which is wide where the input matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.data.rows import Rows

__all__ = [
    "covariance_at",
    "draws_at",
    "mean_at",
    "mixture_at",
    "moments_at",
    "noise_at",
    "tables_at",
]


def mixture_at(model: Any, rows: Rows, include_noise: bool = True, squeeze: bool = True) -> Any:
    """Return the predictive distribution of a fitted model at rows, and how far these lie outside the training data.

    Parameters
    ----------
    model : Predictive
    rows : Rows
        Where inputs are unknown, the mixtures at several alternatives are merged.
    include_noise : bool
        Whether to predict a new observation y, or the function f.
    squeeze : bool
        Whether moments of a single output have no axis for it.
    """
    mixture = model.mixture(rows.X, include_noise, squeeze)
    outside = model.outside(rows.X)
    uncertain = rows.uncertain
    if not len(uncertain):
        return mixture.with_outside(outside)
    possible = rows.possible(uncertain)
    flat = possible.reshape(-1, possible.shape[-1])
    at_each = model.mixture(flat, include_noise, squeeze)
    return mixture.replaced(uncertain, at_each.merged(possible.shape[1])).with_outside(outside)


def moments_at(model: Any, rows: Rows, include_noise: bool = True) -> tuple[Array, Array]:
    """Return predictive mean and standard deviation at rows, (n, n_outputs) each."""
    mean, std = model.moments(rows.X, include_noise)
    uncertain = rows.uncertain
    if len(uncertain):
        possible = rows.possible(uncertain)
        n, n_alternatives, n_inputs = possible.shape
        means, stds = (
            each.reshape(n, n_alternatives, -1)
            for each in model.moments(possible.reshape(-1, n_inputs), include_noise)
        )
        mean[uncertain] = means.mean(axis=1)
        away = means - mean[uncertain, None]
        std[uncertain] = np.sqrt((np.square(stds) + np.square(away)).mean(axis=1))
    return mean, std


def tables_at(rows: Rows) -> list[Array]:
    """Return the inputs at which :func:`moments_at` and :func:`mixture_at` ask a model, in this order."""
    uncertain = rows.uncertain
    if not len(uncertain):
        return [rows.X]
    return [rows.X, rows.possible(uncertain).reshape(-1, rows.X.shape[1])]


def mean_at(model: Any, rows: Rows) -> Array:
    """Return the predictive mean at rows, (n, n_outputs)."""
    mean = model.mean(rows.X)
    uncertain = rows.uncertain
    if len(uncertain):
        possible = rows.possible(uncertain)
        n, n_alternatives, n_inputs = possible.shape
        means = model.mean(possible.reshape(-1, n_inputs))
        mean[uncertain] = means.reshape(n, n_alternatives, -1).mean(axis=1)
    return mean


def covariance_at(model: Any, rows: Rows, include_noise: bool = True) -> tuple[Array, Array]:
    """Return predictive mean (n, n_outputs) and joint covariance of each output (n_outputs, n, n).

    Rows share the number of the alternative that stands for what is not known, as in :func:`draws_at`.
    """
    parts = [model.covariance(X, include_noise) for X in _alternatives(rows)]
    if len(parts) == 1:
        return parts[0]
    means, covariances = (np.stack(part) for part in zip(*parts, strict=True))
    mean = means.mean(axis=0)
    away = means - mean
    between = np.einsum("aip,ajp->pij", away, away) / len(parts)
    return mean, covariances.mean(axis=0) + between


def draws_at(
    model: Any, rows: Rows, n_samples: int, rng: np.random.Generator, include_noise: bool = False
) -> Array:
    """Return joint draws, (n, n_outputs, n_samples); each is one at alternatives drawn for what is not known."""
    tables = _alternatives(rows)
    if len(tables) == 1:
        return np.asarray(model.draws(rows.X, n_samples, rng, include_noise))
    chosen = rng.integers(len(tables), size=n_samples)
    drawn = np.empty((len(rows), model.outputs.n_outputs, n_samples))
    for k, X in enumerate(tables):
        of_table = np.flatnonzero(chosen == k)
        if len(of_table):
            drawn[..., of_table] = model.draws(X, len(of_table), rng, include_noise)
    return drawn


def noise_at(model: Any, rows: Rows) -> Array:
    """Return the noise variance at rows, (n, n_outputs), averaged over the alternatives."""
    noise = np.asarray(model.noise_at(rows.X))
    uncertain = rows.uncertain
    if len(uncertain):
        possible = rows.possible(uncertain)
        n, n_alternatives, n_inputs = possible.shape
        each = model.noise_at(possible.reshape(-1, n_inputs))
        noise[uncertain] = each.reshape(n, n_alternatives, -1).mean(axis=1)
    return noise


def _alternatives(rows: Rows) -> list[Array]:
    """Return the inputs of all rows, once for each alternative; once if all is known."""
    uncertain = rows.uncertain
    if not len(uncertain):
        return [rows.X]
    possible = rows.possible(uncertain)
    tables = []
    for k in range(possible.shape[1]):
        X = rows.X.copy()
        X[uncertain] = possible[:, k]
        tables.append(X)
    return tables
