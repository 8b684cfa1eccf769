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
        order = np.argsort(row, kind="stable")
        count = np.bincount(row, minlength=n_rows)
        at = row[order]
        slot = np.arange(len(row)) - (np.cumsum(count) - count)[at]
        shape = (n_rows, int(count.max(initial=1)))
        full = len(row) == shape[0] * shape[1]  # every row reaches as many leaves
        if full:
            return cls(
                leaf[order].reshape(shape),
                mean[order].reshape(*shape, -1),
                variance[order].reshape(*shape, -1),
            )
        leaves = np.full(shape, -1, dtype=np.int64)
        means, variances = np.zeros((*shape, mean.shape[1])), np.ones((*shape, mean.shape[1]))
        leaves[at, slot], means[at, slot], variances[at, slot] = (
            leaf[order],
            mean[order],
            variance[order],
        )
        return cls(leaves, means, variances)

    def of_leaves(self, values: Array, missing: float) -> Array:
        """Each leaf's value where the leaf stands, ``missing`` where there is none."""
        table = np.concatenate([values, np.full((1, *values.shape[1:]), missing)])
        return table[self.leaf]
