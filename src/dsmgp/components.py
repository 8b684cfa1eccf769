"""What the leaves that a row reaches say about it, side by side."""

from __future__ import annotations

from collections.abc import Sequence
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
    def stack(
        cls,
        n_rows: int,
        tasks: Sequence[tuple[int, Index]],
        answers: Sequence[tuple[Array, Array]],
        n_outputs: int,
    ) -> Components:
        """From each leaf's answers (means, variances) for its rows."""
        used = np.zeros(n_rows, dtype=np.int64)
        slots = []
        for _, points in tasks:
            slots.append(used[points])
            used[points] += 1
        shape = (n_rows, int(used.max(initial=1)))
        leaf = np.full(shape, -1, dtype=np.int64)
        mean, variance = np.zeros((*shape, n_outputs)), np.ones((*shape, n_outputs))
        for (number, points), slot, (m, v) in zip(tasks, slots, answers, strict=True):
            leaf[points, slot], mean[points, slot], variance[points, slot] = number, m, v
        return cls(leaf, mean, variance)

    def of_leaves(self, values: Array, missing: float) -> Array:
        """Each leaf's value where the leaf stands, ``missing`` where there is none."""
        table = np.concatenate([values, np.full((1, *values.shape[1:]), missing)])
        return table[self.leaf]
