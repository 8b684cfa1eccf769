"""Rows that lie outside the training data, where a model extrapolates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array

__all__ = ["columns_left", "rows_outside"]


def rows_outside(rows: Array, training: Array) -> NDArray[np.bool_]:
    """Return which rows lie outside the range of the training rows in some input.

    Examples
    --------
    >>> rows_outside(np.array([[0.5], [2.0]]), np.array([[0.0], [1.0]]))
    array([False,  True])
    """
    return np.asarray(_beyond(rows, training).any(axis=1))


def columns_left(rows: Array, training: Array, names: list[str]) -> list[str]:
    """Return the names of the inputs whose training range some rows leave, the most frequent first.

    Examples
    --------
    >>> training = np.array([[0.0, 0.0], [1.0, 1.0]])
    >>> columns_left(np.array([[0.5, 2.0], [3.0, 4.0]]), training, ["a", "b"])
    ['b', 'a']
    """
    counts = _beyond(rows, training).sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    return [names[k] for k in order.tolist() if counts[k]]


def _beyond(rows: Array, training: Array) -> NDArray[np.bool_]:
    """Return which inputs of which rows are smaller or larger than in all training rows."""
    return np.asarray((rows < training.min(axis=0)) | (rows > training.max(axis=0)))
