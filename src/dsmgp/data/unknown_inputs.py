"""Predictions at rows in which some inputs are not known: mixtures over what these may be.

A level that was not there in training, or a missing value of a column that had none, may be any of those that were. The
predictive distribution is then the mixture of those at the possible inputs, which is wide where the input matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.data.rows import Rows

__all__ = ["mean_at", "mixture_at", "moments_at"]


def mixture_at(model: Any, rows: Rows, include_noise: bool = True, squeeze: bool = True) -> Any:
    """Return the predictive distribution of a fitted model at rows, and how far these lie outside the training data."""
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
