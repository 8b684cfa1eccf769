"""Components of predictive mixtures: lists of (row, weight, mean, variance) as tables, the smallest components merged."""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array, Index

__all__ = ["merge_small", "moments_by_row", "pad"]

# Components of a row that together weigh less than this are replaced by one with their mean and variance.
MERGED = 1e-7
# And no row has more components than this.
MOST_COMPONENTS = 1024


def moments_by_row(
    n: int, row: Index, weight: Array, mean: Array, variance: Array
) -> tuple[Array, Array]:
    """Return mean and variance of the mixture at each row, (n, n_outputs) each; zeros at rows without components.

    Parameters
    ----------
    n : int
        Number of rows.
    row, weight : ndarray of shape (n_components,)
        The weights of each row sum to one.
    mean, variance : ndarray of shape (n_components, n_outputs)
    """
    centre = _sum_by_row(row, weight, mean, n)
    # Around the mean: a difference of second moments would lose digits to a large offset.
    away = mean - centre[row]
    return centre, _sum_by_row(row, weight, variance + away * away, n)


def _sum_by_row(row: Index, weight: Array, values: Array, n: int) -> Array:
    """Return weighted sums of values (n_components, n_outputs) by row, (n, n_outputs)."""
    return np.stack([np.bincount(row, weight * column, n) for column in values.T], axis=1)


def merge_small(
    n: int, row: Index, weight: Array, mean: Array, variance: Array
) -> tuple[Array, Array, Array]:
    """Arrange components by row: the heaviest of each, and one with the moments of all others.

    Mean and variance of each row's mixture stay exactly the same.

    Parameters
    ----------
    n : int
        Number of rows.
    row, weight : ndarray of shape (n_components,)
        The weights of each row sum to one.
    mean, variance : ndarray of shape (n_components, n_outputs)

    Returns
    -------
    weights : ndarray of shape (n, k)
    means, variances : ndarray of shape (n, k, n_outputs)
    """
    sort = np.lexsort((-weight, row))
    row, weight, mean, variance = row[sort], weight[sort], mean[sort], variance[sort]
    starts = np.searchsorted(row, np.arange(n + 1))
    rank = np.arange(len(row)) - starts[row]
    up_to = np.cumsum(weight)
    before_row = np.concatenate([[0.0], up_to])[starts[:-1]]
    remaining = 1.0 - (up_to - weight - before_row[row])  # of this component and lighter ones
    small = ((remaining < MERGED) | (rank >= MOST_COMPONENTS)) & (rank > 0)
    width = int(rank[~small].max(initial=0)) + 2
    weights = np.zeros((n, width))
    means = np.zeros((n, width, mean.shape[1]))
    variances = np.ones((n, width, mean.shape[1]))
    kept = ~small
    weights[row[kept], rank[kept]] = weight[kept]
    means[row[kept], rank[kept]] = mean[kept]
    variances[row[kept], rank[kept]] = variance[kept]
    total = np.bincount(row[small], weight[small], n)
    has_small = total > 0
    share = weight[small] / total[row[small]]
    merged_mean, merged = moments_by_row(n, row[small], share, mean[small], variance[small])
    weights[:, -1], means[:, -1] = total, merged_mean
    variances[:, -1] = np.where(has_small[:, None], merged, 1.0)
    if not has_small.any():
        weights, means, variances = weights[:, :-1], means[:, :-1], variances[:, :-1]
    return weights, means, variances


def pad(table: Array, width: int, fill: float) -> Array:
    """Widen a table (n, k, ...) to (n, width, ...) with a fill value."""
    missing = width - table.shape[1]
    if not missing:
        return table
    shape = (len(table), missing, *table.shape[2:])
    return np.concatenate([table, np.full(shape, fill)], axis=1)
