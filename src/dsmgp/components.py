"""What the leaves that a row reaches say about it, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Components"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Components:
    """Laws of y at n rows by the leaves each of them reaches, in the units of the experts.

    Attributes
    ----------
    leaf : ndarray of shape (n, n_components)
        The number of the leaf, or -1: rows may reach different numbers of leaves.
    mean, variance : ndarray of shape (n, n_components, n_outputs)
    """

    leaf: Index
    mean: Array
    variance: Array

    @classmethod
    def of_pairs(
        cls, n_rows: int, leaf: Index, row: Index, mean: Array, variance: Array
    ) -> Components:
        """From what leaves say at rows, one entry a pair; those of a row side by side in the order given."""
        if (blocks := _blocks(row, n_rows)) is not None:
            slots = len(blocks)
            where = (np.arange(slots)[:, None], blocks)
        else:
            order = np.argsort(row, kind="stable")
            leaf, row, mean, variance = leaf[order], row[order], mean[order], variance[order]
            count = np.bincount(row, minlength=n_rows)
            slots = int(count.max(initial=1))
            where = (np.arange(len(row)) - (np.cumsum(count) - count)[row], row)
        # One component after the other: that is how they come, and sums over components are sums of long rows.
        leaves = np.full((slots, n_rows), -1, dtype=np.int64)
        means = np.zeros((slots, n_rows, mean.shape[1]))
        variances = np.ones_like(means)
        leaves[where] = leaf.reshape(where[1].shape)
        means[where] = mean.reshape(*where[1].shape, -1)
        variances[where] = variance.reshape(*where[1].shape, -1)
        return cls(leaves.T, means.swapaxes(0, 1), variances.swapaxes(0, 1))

    def of_leaves(self, values: Array, missing: float) -> Array:
        """Each leaf's value where the leaf stands, ``missing`` where there is none."""
        table = np.concatenate([values, np.full((1, *values.shape[1:]), missing)])
        return table[self.leaf]


def _blocks(row: Index, n_rows: int) -> Index | None:
    """The rows by partition, where every row stands once in each of them, one partition after the other: which is so
    unless sum nodes are nested, and saves a sort."""
    if not n_rows or len(row) % n_rows:
        return None
    blocks = row.reshape(-1, n_rows)
    seen = np.zeros(blocks.shape, dtype=bool)
    np.put_along_axis(seen, blocks, True, axis=1)
    return blocks if seen.all() else None
