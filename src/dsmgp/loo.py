"""Leave-one-out over the whole mixture: every row predicted from all other rows, at no further fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsmgp.components import Components
from dsmgp.conditioned import Conditioned
from dsmgp.execution import as_numpy
from dsmgp.gate import leaf_scales, standardised, without_known

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
        known = conditioned.experts.known
        self._known = None if known is None else as_numpy(known)
        found, rows = self.left_out, self.leaf_rows.flat
        square, count = standardised(
            (self.Y[rows] - found.mean) ** 2,
            found.variance,
            None if self._known is None else self._known[rows],
        )
        #: By leaf and output: the sum of squares, and the rows that it is worth.
        self.squares, self.counts = (_sums(a, leaf, len(self.leaf_rows)) for a in (square, count))
        # Each row's share of them, with its twins'.
        self._own = square, count
        if conditioned.has_twins:
            self._own = _summed_over_twins(square, count, leaf, labels[rows])

    @property
    def scales(self) -> Array:
        """Each leaf's scale, (n_leaves, n_outputs)."""
        return leaf_scales(self.squares, self.counts)

    def known(self, rows: Index) -> Array | None:
        """Noise variances of rows that were given, beside the noise that was learned: (n, n_outputs)."""
        return None if self._known is None else self._known[rows]

    def components(self, rows: Index, grouped: bool = False) -> Components:
        """What the leaves say of y at ``rows``, as if nothing were known of their noise; ``grouped``: without all rows of
        the same inputs."""
        found = self.left_out
        mean, variance = found.mean, found.variance
        if grouped:
            mean, variance = found.grouped_mean, found.grouped_variance
        if self._known is not None:
            variance = without_known(variance, self._known[self.leaf_rows.flat])
        return self._stack(rows, mean, variance)

    def scales_without(self, rows: Index) -> Array:
        """Scales of the leaves at ``rows``, each without the row: (n, n_components, n_outputs).

        Without its twins too: a twin's residual is against the row itself, and would betray it.
        """
        own = self._stack(rows, *self._own)
        others = own.of_leaves(self.squares, 0.0) - own.mean
        count = own.of_leaves(self.counts, 1.0) - own.variance
        return leaf_scales(others, np.maximum(count, 0.0))

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


def _summed_over_twins(
    square: Array, count: Array, leaf: Index, labels: Index
) -> tuple[Array, Array]:
    """For each row the sums over the rows of the same leaf and label."""
    found, group = np.unique(leaf * (labels.max() + 1) + labels, return_inverse=True)
    sums = [_sums(values, group, len(found))[group] for values in (square, count)]
    return sums[0], sums[1]
