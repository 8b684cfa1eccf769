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
            n_blocks = len(blocks)
            where = (blocks, np.arange(n_blocks)[:, None])
            slots = n_blocks
        else:
            order = np.argsort(row, kind="stable")
            leaf, row, mean, variance = leaf[order], row[order], mean[order], variance[order]
            count = np.bincount(row, minlength=n_rows)
            where = (row, np.arange(len(row)) - (np.cumsum(count) - count)[row])
            slots = int(count.max(initial=1))
        leaves = np.full((n_rows, slots), -1, dtype=np.int64)
        means = np.zeros((n_rows, slots, mean.shape[1]))
        variances = np.ones_like(means)
        leaves[where] = leaf.reshape(where[0].shape)
        means[where] = mean.reshape(*where[0].shape, -1)
        variances[where] = variance.reshape(*where[0].shape, -1)
        return cls(leaves, means, variances)

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
