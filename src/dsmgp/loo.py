"""Leave-one-out over the whole mixture: every row predicted from all other rows, at no further fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dsmgp.components import Components
from dsmgp.conditioned import Conditioned
from dsmgp.gate import leaf_scales
from dsmgp.tree import Leaf

__all__ = ["LeaveOneOut", "equal_rows"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def equal_rows(X: Array) -> Index:
    """A number for each row, the same for rows that are equal."""
    X = np.asarray(X, dtype=np.float64) + 0.0  # -0.0 is 0.0 now, in its bits too
    labels = np.unique(_hashes(X.view(np.uint64)), return_inverse=True)[1].astype(np.int64)
    rows = np.arange(len(X))
    last = np.empty_like(rows)
    last[labels] = rows  # of each label
    twins = np.flatnonzero(last[labels] != rows)
    if (X[twins] == X[last[labels[twins]]]).all():
        return labels
    # Different rows of one hash: sort the rows themselves, which takes twenty times as long.
    return np.unique(X, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _hashes(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number for each row; those of different rows are different but for very bad luck."""
    found = np.zeros(len(bits), dtype=np.uint64)
    for column in bits.T:
        found ^= column
        found *= np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(32)
    return found


class LeaveOneOut:
    """Laws of y at training rows, each given all other rows, and the scales of the leaves.

    Parameters
    ----------
    leaves : sequence of Leaf
    conditioned : Conditioned
        With ``left_out`` computed.
    labels : ndarray of shape (n_rows,)
        From :func:`equal_rows`.
    """

    def __init__(self, leaves: Sequence[Leaf], conditioned: Conditioned, labels: Index) -> None:
        self.left_out = dict(sorted(conditioned.left_out.items()))  # whichever came first
        self.leaf_rows = [rows.cpu().numpy() for rows in conditioned.leaf_rows]
        self.Y = conditioned.experts.Y.cpu().double().numpy()
        self.squares = np.zeros((len(leaves), self.Y.shape[1]))
        self.n_rows = np.array([leaf.n_rows for leaf in leaves])
        # By leaf: each row's share of the sum of squares, with its twins', and how many they are.
        self._own: dict[int, tuple[Array, Array]] = {}
        for number, found in self.left_out.items():
            rows = self.leaf_rows[number]
            square = (self.Y[rows] - found.mean) ** 2 / found.variance
            self.squares[number] = square.sum(axis=0)
            self._own[number] = _summed_over_twins(square, labels[rows])

    @property
    def scales(self) -> Array:
        """Each leaf's scale, (n_leaves, n_outputs)."""
        return leaf_scales(self.squares, self.n_rows[:, None])

    def components(self, rows: Index, grouped: bool = False) -> Components:
        """What the leaves say at ``rows``; ``grouped``: without all rows of the same inputs."""
        if grouped:
            return self._stack(
                rows, {k: (f.grouped_mean, f.grouped_variance) for k, f in self.left_out.items()}
            )
        return self._stack(rows, {k: (f.mean, f.variance) for k, f in self.left_out.items()})

    def scales_without(self, rows: Index) -> Array:
        """Scales of the leaves at ``rows``, each without the row: (n, n_components, n_outputs).

        Without its twins too: a twin's residual is against the row itself, and would betray it.
        """
        own = self._stack(rows, self._own)
        others = np.maximum(own.of_leaves(self.squares, 0.0) - own.mean, 0.0)
        count = own.of_leaves(self.n_rows[:, None].astype(np.float64), 1.0) - own.variance
        return leaf_scales(others, count)

    def _stack(self, rows: Index, values: dict[int, tuple[Array, Array]]) -> Components:
        """By leaf, two values for each of its rows: both at ``rows``, side by side."""
        position = np.full(len(self.Y), -1, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        tasks, answers = [], []
        for number, (first, second) in values.items():
            at = position[self.leaf_rows[number]]
            chosen = at >= 0
            if chosen.any():
                tasks.append((number, at[chosen]))
                answers.append((first[chosen], second[chosen]))
        return Components.stack(len(rows), tasks, answers, self.Y.shape[1])


def _summed_over_twins(square: Array, labels: Index) -> tuple[Array, Array]:
    """For each row the sum over the rows of the same label, and their number."""
    _, group, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(counts) == len(labels):
        return square, np.ones_like(square)
    total = np.zeros((len(counts), square.shape[1]))
    np.add.at(total, group, square)
    return total[group], np.broadcast_to(counts[group][:, None], square.shape).astype(np.float64)
