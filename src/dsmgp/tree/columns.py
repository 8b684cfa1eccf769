"""Training inputs by column, ranked once, so that many nodes can be measured and cut at the same time.

Used by the split rules and by :mod:`.partition`. The rows of several nodes are handed over as one array, node after
node, together with the number of rows of each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array, Index

__all__ = ["Columns", "index_ranges", "rows_of_nodes", "starts_of"]

# Rows of a node on which spreads are measured: they are off by about 7% then, and so are the odds of a draw. Where
# nodes are few, more of their rows cost nothing. Primes: rows taken of a grid might otherwise all lie on one line of it.
SPREAD_ROWS, LEVEL_ROWS = 101, 10_007


class Columns:
    """Training inputs by column, with ranks.

    Cells are numbered in the order of their values, one column after the other. Codes compare as values do, and as
    integers they can be sorted for many nodes at once.

    Parameters
    ----------
    X : array-like of shape (n_rows, n_dims)
        Training inputs.
    drawing_order : ndarray of shape (n_dims,), optional
        The columns in the order in which they are drawn for random cuts.

    Attributes
    ----------
    codes : ndarray of shape (n_dims, n_rows)
        For each cell the first number of the cells of its column with the same value.
    order : ndarray of shape (n_dims, n_rows)
        For each number the row of its cell.
    rough : ndarray of shape (n_dims, n_rows)
        Differences from the median, relative to the range, in single precision: accurate enough for spreads.
    range : ndarray of shape (n_dims,)
        Half the range of each column; one where it is zero.
    """

    def __init__(self, X: ArrayLike, drawing_order: Index | None = None) -> None:
        self.X = X = np.asarray(X, dtype=np.float64)
        self.drawing_order = np.arange(X.shape[1]) if drawing_order is None else drawing_order
        self.n_rows, self.n_dims = n, n_dims = X.shape
        dtype = np.int32 if X.size < np.iinfo(np.int32).max else np.int64
        self.codes, self.order = np.empty((2, n_dims, n), dtype=dtype)
        self.rough = np.empty((n_dims, n), dtype=np.float32)
        self.range = np.ones(n_dims)
        for k in range(n_dims):
            column = X[:, k].copy()
            order, ordered = _sorted(column)
            self.order[k] = order
            numbers = np.arange(k * n, (k + 1) * n, dtype=dtype)
            numbers[1:][ordered[1:] == ordered[:-1]] = 0
            self.codes[k][order] = np.maximum.accumulate(numbers, out=numbers)
            # By halves, which cannot overflow.
            self.range[k] = (0.5 * ordered[-1] - 0.5 * ordered[0]) or 1.0
            self.rough[k] = (0.5 * column - 0.5 * ordered[n // 2]) / self.range[k]

    @classmethod
    def of(cls, X: ArrayLike | Columns) -> Columns:
        """Return columns as they are, or those of an array."""
        return X if isinstance(X, Columns) else cls(X)

    def differ(self, rows: Index) -> bool:
        """Return whether any column varies over the rows."""
        return any((codes[rows] != codes[rows[0]]).any() for codes in self.codes)

    def code(self, rows: Index, size: Index, dimension: Index) -> Index:
        """Return the codes of the rows of several nodes, each along a dimension of its own.

        Parameters
        ----------
        rows : ndarray of shape (n_rows,)
            Rows of all nodes, node after node.
        size, dimension : ndarray of shape (n_nodes,)
            For each node how many rows it has, and along which dimension.
        """
        return self.codes.ravel().take(rows + np.repeat(dimension * self.n_rows, size))

    def value(self, codes: Index, dimension: Index) -> Array:
        """Return the values, in the user's units, of codes (n_nodes, k) along a dimension for each node (n_nodes,)."""
        return self.X[self.order.ravel().take(codes), dimension[:, None]]

    def spread(self, rows: Index, size: Index, unit: Array) -> Array:
        """Return the standard deviation of each column in each node, up to a factor per node.

        A column that is constant over the sampled rows of a node counts as constant: if it is not, cutting it would
        split off a sliver. Only where all columns seem constant, all rows are looked at.

        Parameters
        ----------
        rows, size
            See :meth:`code`.
        unit : ndarray of shape (n_dims,)
            Columns are divided by it.

        Returns
        -------
        ndarray of shape (n_nodes, n_dims)
            Zero for constant columns.
        """
        count = np.minimum(size, max(SPREAD_ROWS, LEVEL_ROWS // len(size)))
        first = starts_of(count)
        away = (np.arange(count.sum()) - np.repeat(first, count)) * np.repeat(size / count, count)
        sampled = rows.take(np.repeat(starts_of(size), count) + away.astype(np.int64))
        spread = np.empty((len(size), self.n_dims))
        width = self.range / unit
        width = np.where(
            np.isfinite(width), width / width.max(where=np.isfinite(width), initial=0.0), 1.0
        )
        for k, column in enumerate(self.rough):
            cells = column.take(sampled)
            cells -= np.repeat(cells[first], count)  # exactly zero where the column is constant
            cells -= np.repeat(np.add.reduceat(cells, first) / count.astype(np.float32), count)
            spread[:, k] = width[k] * np.sqrt(np.add.reduceat(cells * cells, first))
        spread[spread > 0] = np.maximum(spread[spread > 0], 1e-100)  # draws divide by it
        alike = np.flatnonzero(~spread.any(axis=1))
        if alike.size:
            codes, first = self.codes[:, rows_of_nodes(rows, size, alike)], starts_of(size[alike])
            low, high = (f.reduceat(codes, first, axis=1) for f in (np.minimum, np.maximum))
            spread[alike] = (low < high).T
        return spread


def starts_of(count: Index) -> Index:
    """Return where each of several consecutive runs of these lengths starts."""
    return np.cumsum(count) - count


def index_ranges(start: Index, count: Index) -> Index | slice:
    """Return the concatenated ranges ``start[k] : start[k] + count[k]``; a slice, which copies nothing, if they join up."""
    if len(start) and (start[1:] == start[:-1] + count[:-1]).all():
        return slice(start[0], start[-1] + count[-1])
    return np.arange(count.sum()) + np.repeat(start - starts_of(count), count)


def rows_of_nodes(rows: Index, size: Index, chosen: Index) -> Index:
    """Return the rows of the chosen nodes, out of those of all nodes."""
    return rows[index_ranges(starts_of(size)[chosen], size[chosen])]


def _sorted(column: Array) -> tuple[Index, Array]:
    """Return the rows ordered by value, and the ordered values.

    Sorting integers made of a rounded value and its row takes a third of the time of argsort. Where values are too
    close to each other for that, the result is out of order, and argsort is used.
    """
    bits, low = len(column).bit_length(), column.min()
    width = 0.5 * column.max() - 0.5 * low or 1.0  # by halves, which cannot overflow
    rows = ((0.5 * column - 0.5 * low) / width * 2.0 ** (62 - bits)).astype(np.int64)
    rows <<= bits
    rows |= np.arange(len(column))
    rows.sort()
    rows &= 2**bits - 1
    values = column.take(rows)
    if (values[1:] < values[:-1]).any():
        rows = np.argsort(column)
        values = column.take(rows)
    return rows, values
