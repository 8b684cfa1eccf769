"""Training inputs column by column, as cuts see them: in order, and how wide they are in many nodes at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Columns", "begins_of", "rows_of", "runs"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Rows of a node on which spreads are measured, which are 7% off then, and the odds of a draw less. Where nodes are
# few, more of their rows cost nothing. Primes, or the rows taken of a grid might all lie on one line of it.
SPREAD_ROWS, LEVEL_ROWS = 101, 10_007


class Columns:
    """Training inputs column by column, ranked once for all cuts.

    Cells are numbered in the order of their values, one column after the other; ``codes`` has for each
    cell the first number of those that are equal to it, and ``order`` for each number its row. Codes
    compare as values do, and being whole numbers they can be sorted for many nodes at once.
    """

    def __init__(self, X: ArrayLike) -> None:
        self.X = X = np.asarray(X, dtype=np.float64)
        self.n_rows, self.n_dims = n, n_dims = X.shape
        dtype = np.int32 if X.size < np.iinfo(np.int32).max else np.int64
        self.codes, self.order = np.empty((2, n_dims, n), dtype=dtype)
        # From the median, relative to the range: for spreads rough numbers will do.
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
        return X if isinstance(X, Columns) else cls(X)

    def differ(self, rows: Index) -> bool:
        """Whether any column varies over the rows."""
        return any((codes[rows] != codes[rows[0]]).any() for codes in self.codes)

    def code(self, rows: Index, size: Index, dimension: Index) -> Index:
        """The codes of nodes' rows, ``size`` of each node, along its dimension."""
        return self.codes.ravel().take(rows + np.repeat(dimension * self.n_rows, size))

    def value(self, codes: Index, dimension: Index) -> Array:
        """In the user's units; one dimension for every line of codes."""
        return self.X[self.order.ravel().take(codes), dimension[:, None]]

    def spread(self, rows: Index, size: Index, unit: Array) -> Array:
        """Standard deviations of the columns in each node, up to a factor of its own: (n_nodes, n_dims).

        In ``unit``, relative to the widest column of all rows.

        A column that is constant over the rows looked at counts as constant: if it is not, to cut it would
        split off a sliver. Only where all columns seem so are they looked at more closely.
        """
        count = np.minimum(size, max(SPREAD_ROWS, LEVEL_ROWS // len(size)))
        first = begins_of(count)
        away = (np.arange(count.sum()) - np.repeat(first, count)) * np.repeat(size / count, count)
        seen = rows.take(np.repeat(begins_of(size), count) + away.astype(np.int64))
        spread = np.empty((len(size), self.n_dims))
        width = self.range / unit
        width = np.where(
            np.isfinite(width), width / width.max(where=np.isfinite(width), initial=0.0), 1.0
        )
        for k, column in enumerate(self.rough):
            cells = column.take(seen)
            cells -= np.repeat(cells[first], count)  # exactly zero where the column is constant
            cells -= np.repeat(np.add.reduceat(cells, first) / count.astype(np.float32), count)
            spread[:, k] = width[k] * np.sqrt(np.add.reduceat(cells * cells, first))
        spread[spread > 0] = np.maximum(spread[spread > 0], 1e-100)  # draws divide by it
        alike = np.flatnonzero(~spread.any(axis=1))
        if alike.size:
            codes, first = self.codes[:, rows_of(rows, size, alike)], begins_of(size[alike])
            low, high = (f.reduceat(codes, first, axis=1) for f in (np.minimum, np.maximum))
            spread[alike] = (low < high).T
        return spread


def begins_of(count: Index) -> Index:
    """Where each of several runs begins, one after the other."""
    return np.cumsum(count) - count


def runs(start: Index, count: Index) -> Index | slice:
    """Places from each start on, so many; a slice, which nothing needs to be copied for, if they join up."""
    if len(start) and (start[1:] == start[:-1] + count[:-1]).all():
        return slice(start[0], start[-1] + count[-1])
    return np.arange(count.sum()) + np.repeat(start - begins_of(count), count)


def rows_of(rows: Index, size: Index, some: Index) -> Index:
    """The rows of some nodes, out of those of all."""
    return rows[runs(begins_of(size)[some], size[some])]


def _sorted(column: Array) -> tuple[Index, Array]:
    """The rows by value, and the values.

    Numbers made of a rounded value and its row sort three times as fast as rows do by value. Where values
    are too close to each other for that, it shows.
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
