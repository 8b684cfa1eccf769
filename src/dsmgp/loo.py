"""Leave-one-out over the whole mixture: every row predicted from all other rows, at no further fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsmgp.components import Components
from dsmgp.conditioned import Conditioned
from dsmgp.execution import as_numpy
from dsmgp.gate import leaf_scales

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
    # Different rows of one hash: sort the rows themselves, which takes far longer.
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
    conditioned : Conditioned
        With ``left_out`` computed.
    labels : ndarray of shape (n_rows,)
        From :func:`equal_rows`.
    """

    def __init__(self, conditioned: Conditioned, labels: Index) -> None:
        assert conditioned.left_out is not None, "rows were not left out"
        self.left_out = conditioned.left_out
        self.leaf_rows = conditioned.leaf_rows
        self.n_rows = self.leaf_rows.sizes
        self.Y = as_numpy(conditioned.experts.Y)
        self.leaf = leaf = self.leaf_rows.owner
        found, rows = self.left_out, self.leaf_rows.flat
        square = (self.Y[rows] - found.mean) ** 2 / found.variance
        self.squares = _sums(square, leaf, len(self.leaf_rows))
        # Each row's share of its leaf's sum of squares, with its twins', and how many they are.
        self._own = square, np.ones_like(square)
        if conditioned.has_twins:
            self._own = _summed_over_twins(square, leaf, labels[rows])

    @property
    def scales(self) -> Array:
        """Each leaf's scale, (n_leaves, n_outputs)."""
        return leaf_scales(self.squares, self.n_rows[:, None].astype(np.float64))

    def components(self, rows: Index, grouped: bool = False) -> Components:
        """What the leaves say at ``rows``; ``grouped``: without all rows of the same inputs."""
        found = self.left_out
        if grouped:
            return self._stack(rows, found.grouped_mean, found.grouped_variance)
        return self._stack(rows, found.mean, found.variance)

    def scales_without(self, rows: Index) -> Array:
        """Scales of the leaves at ``rows``, each without the row: (n, n_components, n_outputs).

        Without its twins too: a twin's residual is against the row itself, and would betray it.
        """
        own = self._stack(rows, *self._own)
        others = np.maximum(own.of_leaves(self.squares, 0.0) - own.mean, 0.0)
        count = own.of_leaves(self.n_rows[:, None].astype(np.float64), 1.0) - own.variance
        return leaf_scales(others, count)

    def _stack(self, rows: Index, first: Array, second: Array) -> Components:
        """Two values for each row of each leaf: both at ``rows``, side by side."""
        position = np.full(len(self.Y), -1, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        at = position[self.leaf_rows.flat]
        chosen = np.flatnonzero(at >= 0)
        leaf = self.leaf[chosen]
        return Components.of_pairs(len(rows), leaf, at[chosen], first[chosen], second[chosen])


def _sums(values: Array, group: Index, n_groups: int) -> Array:
    """Sums of rows by group, (n_groups, columns)."""
    sums = [np.bincount(group, weights=column, minlength=n_groups) for column in values.T]
    return np.stack(sums, axis=1)


def _summed_over_twins(square: Array, leaf: Index, labels: Index) -> tuple[Array, Array]:
    """For each row the sum over the rows of the same leaf and label, and their number."""
    _, group, counts = np.unique(
        leaf * (labels.max() + 1) + labels, return_inverse=True, return_counts=True
    )
    count = np.broadcast_to(counts[group][:, None].astype(np.float64), square.shape)
    return _sums(square, group, len(counts))[group], count
