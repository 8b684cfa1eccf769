"""Leave-one-out over the whole mixture: every row predicted from all other rows, at no further fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dsmgp.components import Components
from dsmgp.experts import Conditioned
from dsmgp.gate import leaf_scales
from dsmgp.tree import Leaf

__all__ = ["LeaveOneOut", "equal_rows"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def equal_rows(X: Array) -> Index:
    """A number for each row, the same for rows that are equal."""
    return np.unique(X, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


class LeaveOneOut:
    """Laws of y at training rows, each given all other rows, and the scales of the leaves.

    Parameters
    ----------
    leaves : sequence of Leaf
    conditioned : Conditioned
        With ``left_out`` computed.
    """

    def __init__(self, leaves: Sequence[Leaf], conditioned: Conditioned) -> None:
        self.leaves, self.left_out = leaves, conditioned.left_out
        self.Y = conditioned.experts.Y.cpu().double().numpy()
        self.squares = np.zeros((len(leaves), self.Y.shape[1]))
        self.n_rows = np.array([leaf.n_rows for leaf in leaves])
        for number, found in self.left_out.items():
            rows = leaves[number].rows
            self.squares[number] = ((self.Y[rows] - found.mean) ** 2 / found.variance).sum(axis=0)

    @property
    def scales(self) -> Array:
        """Each leaf's scale, (n_leaves, n_outputs)."""
        return leaf_scales(self.squares, self.n_rows[:, None])

    def components(self, rows: Index, grouped: bool = False) -> Components:
        """What the leaves say at ``rows``; ``grouped``: without all rows of the same inputs."""
        position = np.full(len(self.Y), -1, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        tasks, answers = [], []
        for number, found in self.left_out.items():
            at = position[self.leaves[number].rows]
            chosen = at >= 0
            if chosen.any():
                mean = found.grouped_mean if grouped else found.mean
                variance = found.grouped_variance if grouped else found.variance
                tasks.append((number, at[chosen]))
                answers.append((mean[chosen], variance[chosen]))
        return Components.stack(len(rows), tasks, answers, self.Y.shape[1])

    def scales_without(self, rows: Index) -> Array:
        """Scales of the leaves at ``rows``, each without the row itself: (n, n_components, n_outputs)."""
        found = self.components(rows)
        own = (self.Y[rows][:, None, :] - found.mean) ** 2 / found.variance
        others = np.maximum(found.of_leaves(self.squares, 0.0) - own, 0.0)
        count = found.of_leaves(self.n_rows[:, None].astype(np.float64), 1.0) - 1.0
        return leaf_scales(others, count)
