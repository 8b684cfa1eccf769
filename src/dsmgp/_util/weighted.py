"""Statistics of weighted rows: a row of weight w counts as w copies of itself, whole or not.

Means are NumPy's: ``np.average(values, axis=0, weights=weights)``, where no weights are all ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dsmgp._util.arrays import Array

__all__ = ["mid_rank_scores", "weighted_median", "weighted_values"]


def weighted_values(x: Array, weights: Array | None) -> tuple[Array, NDArray[Any]]:
    """Return the distinct values of x, sorted, and how often each of them occurs.

    Examples
    --------
    >>> weighted_values(np.array([1.0, 3.0, 1.0]), np.array([0.5, 1.0, 2.0]))
    (array([1., 3.]), array([2.5, 1. ]))
    """
    if weights is None:
        return np.unique(x, return_counts=True)
    distinct, inverse = np.unique(x, return_inverse=True)
    return distinct, np.bincount(inverse, weights)


def mid_rank_scores(counts: NDArray[Any]) -> Array:
    """Return the normal scores of the mid-ranks of sorted distinct values that occur so often.

    Examples
    --------
    >>> mid_rank_scores(np.array([1, 2, 1])).round(2) + 0.0
    array([-1.15,  0.  ,  1.15])
    """
    return np.asarray(ndtri((np.cumsum(counts) - 0.5 * counts) / counts.sum()))


def weighted_median(values: Array, weights: Array | None) -> Array:
    """Return the median over the first axis.

    Examples
    --------
    >>> weighted_median(np.array([1.0, 2.0, 5.0]), np.array([1.0, 1.0, 2.0]))
    array(3.5)
    """
    if weights is None:
        return np.asarray(np.median(values, axis=0))
    order = np.argsort(values, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0)
    ordered, half = np.take_along_axis(values, order, axis=0), 0.5 * below[-1]
    # The first value that half of the weight reaches, and the first that it does not exceed.
    middle = [np.argmax(reached, axis=0)[None] for reached in (below >= half, below > half)]
    low, high = (np.take_along_axis(ordered, place, axis=0)[0] for place in middle)
    return np.asarray(0.5 * (low + high))
