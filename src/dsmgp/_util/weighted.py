"""Statistics of weighted rows: a row of weight w counts as w copies of itself, whole or not.

Means are NumPy's: ``np.average(values, axis=0, weights=weights)``, where no weights are all ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dsmgp._util.arrays import Array

__all__ = ["mid_rank_scores", "weighted_median", "weighted_quantiles", "weighted_values"]


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


def weighted_quantiles(values: Array, levels: Array, weights: Array | None) -> Array:
    """Return quantiles, interpolated between neighbours as NumPy's are.

    Weights that add up to less than the number of values only count relative to each other: between neighbours of tiny weights there would
    be nothing to interpolate.

    Examples
    --------
    >>> weighted_quantiles(np.array([5.0, 1.0]), np.array([0.5, 0.75]), np.array([1.0, 3.0]))
    array([1., 2.])
    >>> np.quantile([5.0, 1.0, 1.0, 1.0], [0.5, 0.75])
    array([1., 2.])
    """
    if weights is None:
        return np.asarray(np.quantile(values, levels))
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    ends *= max(1.0, len(values) / ends[-1])
    place = levels * (ends[-1] - 1.0)
    whole = np.floor(place)
    last = len(values) - 1
    low, high = (
        values[order][np.minimum(np.searchsorted(ends, k, side="right"), last)]
        for k in (whole, whole + 1.0)
    )
    return np.asarray(low + (place - whole) * (high - low))


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
