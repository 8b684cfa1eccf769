"""Leave-one-out over the whole mixture: every row predicted from all other rows, at no further fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsmgp.components import Components
from dsmgp.gate import leaf_scales, normal_log_density, standardised, without_known
from dsmgp.ragged import Ragged

__all__ = [
    "KNOWN",
    "LeaveOneOut",
    "LeftLeaves",
    "LeftOut",
    "Pairs",
    "any_equal",
    "equal_rows",
    "twins",
]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# The tables of Pairs.values: mean and variance without the row, the same without its twins and the log density
# of all of them together, what they have of the leaf's squares and count, what was observed at the row and is
# known of its noise.
(
    MEAN, VARIANCE, GROUPED_MEAN, GROUPED_VARIANCE, GROUPED_LOG_DENSITY, SQUARES, COUNT, OBSERVED,
    KNOWN,
) = range(9)  # fmt: skip


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


def any_equal(labels: Index) -> bool:
    """Whether fewer labels, counted from 0, were given than there are rows."""
    return bool(labels.max(initial=-1) < len(labels) - 1)


def twins(labels: Index) -> list[Index]:
    """Positions that share a label with another, one (groups, size) array for each size of group.

    Examples
    --------
    >>> twins(np.array([0, 1, 2, 0, 1, 3]))
    [array([[0, 3],
           [1, 4]])]
    """
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    return [
        order[starts[counts == size][:, None] + np.arange(size)]
        for size in np.unique(counts)
        if size > 1
    ]


def _hashes(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number for each row; those of different rows are different but for very bad luck."""
    found = np.zeros(len(bits), dtype=np.uint64)
    for column in bits.T:
        found ^= column
        found *= np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(32)
    return found


@dataclass(frozen=True)
class LeftOut:
    """Laws of y at the rows of leaves, each given its leaf's other rows: (rows, outputs), one leaf after the other.

    ``grouped`` leaves out with a row all rows that have the same inputs: what the leaf would say at
    inputs it has never seen. ``grouped_log_density`` is that of all these rows together; None where no rows are alike.
    """

    mean: Array
    variance: Array
    grouped_mean: Array
    grouped_variance: Array
    grouped_log_density: Array | None


@dataclass(frozen=True)
class Pairs:
    """What leaves say of some rows without them, one entry a pair of leaf and row, leaf by leaf.

    Attributes
    ----------
    leaf : ndarray of shape (n_pairs,)
    place : ndarray of shape (n_pairs,)
        Which of the rows that were asked for.
    values : ndarray of shape (9, n_pairs, n_outputs)
        One table after the other: :data:`MEAN` to :data:`KNOWN`.
    """

    leaf: Index
    place: Index
    values: Array

    def only(self, places: Index, n_asked: int) -> Pairs:
        """Those of some of the rows that were asked for, of which there were ``n_asked``."""
        new = np.full(n_asked, -1, dtype=np.int64)
        new[places] = np.arange(len(places))
        chosen = np.flatnonzero(new[self.place] >= 0)
        return Pairs(self.leaf[chosen], new[self.place[chosen]], self.values[:, chosen])

    @classmethod
    def joined(cls, parts: Sequence[Pairs]) -> Pairs:
        """Of leaves that were asked elsewhere."""
        leaf = np.concatenate([part.leaf for part in parts])
        order = np.argsort(leaf, kind="stable")
        place = np.concatenate([part.place for part in parts])
        values = np.concatenate([part.values for part in parts], axis=1)
        return cls(leaf[order], place[order], values[:, order])


class LeftLeaves:
    """Leaves that have left out each of their rows.

    Parameters
    ----------
    left_out : LeftOut
    leaf_rows : Ragged
        The leaves' rows in its order.
    Y : ndarray of shape (n_rows, n_outputs)
    known : ndarray of shape (n_rows, n_outputs), optional
        Noise that is known.
    labels : ndarray of shape (n_rows,), optional
        From :func:`equal_rows`, where any rows are.
    """

    def __init__(
        self,
        left_out: LeftOut,
        leaf_rows: Ragged,
        Y: Array,
        known: Array | None,
        labels: Index | None,
    ) -> None:
        self.left_out, self.leaf_rows, self.Y, self.known = left_out, leaf_rows, Y, known
        self.leaf, rows = leaf_rows.owner, leaf_rows.flat
        square, count = standardised(
            (Y[rows] - left_out.mean) ** 2,
            left_out.variance,
            None if known is None else known[rows],
        )
        #: By leaf and output: the sum of squares, and the rows that it is worth.
        self.squares, self.counts = (_sums(a, self.leaf, len(leaf_rows)) for a in (square, count))
        # Each row's share of them, with its twins'.
        self._own = square, count
        if labels is not None:
            self._own = _summed_over_twins(square, count, self.leaf, labels[rows])

    def pairs(self, rows: Index) -> Pairs:
        """What is said of some rows."""
        place = np.full(len(self.Y), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        at = place[self.leaf_rows.flat]
        chosen = np.flatnonzero(at >= 0)
        found = self.left_out
        laws = (found.mean, found.variance, found.grouped_mean, found.grouped_variance)
        said = [table[chosen] for table in laws]
        own = self.leaf_rows.flat[chosen]
        observed = self.Y[own]
        known = np.zeros_like(observed) if self.known is None else self.known[own]
        if found.grouped_log_density is None:
            density = normal_log_density(observed - said[MEAN], said[VARIANCE])
        else:
            density = found.grouped_log_density[chosen]
        shares = (table[chosen] for table in self._own)
        values = np.stack([*said, density, *shares, observed, known])
        return Pairs(self.leaf[chosen], at[chosen], values)


class LeaveOneOut:
    """Laws of y at training rows, each given all other rows, and the scales of the leaves.

    Parameters
    ----------
    squares, counts : ndarray of shape (n_leaves, n_outputs)
        By leaf, the sum of standardised squares, and the rows that it is worth.
    pairs : callable
        From rows to what their leaves say of them (:class:`Pairs`).
    is_known : bool
        Whether anything is known of the rows' noise.
    """

    def __init__(
        self, squares: Array, counts: Array, pairs: Callable[[Index], Pairs], is_known: bool
    ) -> None:
        self.squares, self.counts = squares, counts
        self._ask, self._is_known = pairs, is_known
        self._asked: tuple[Index, Pairs] | None = None

    @property
    def scales(self) -> Array:
        """Each leaf's scale, (n_leaves, n_outputs)."""
        return leaf_scales(self.squares, self.counts)

    def observed(self, rows: Index) -> Array:
        """The outputs of rows, (n, n_outputs)."""
        return self._of_rows(rows, OBSERVED)

    def known(self, rows: Index) -> Array | None:
        """Noise variances of rows that were given, beside the noise that was learned: (n, n_outputs)."""
        return self._of_rows(rows, KNOWN) if self._is_known else None

    def components(self, rows: Index, grouped: bool = False) -> Components:
        """What the leaves say of y at ``rows``, as if nothing were known of their noise; ``grouped``: without
        all rows of the same inputs."""
        values = self._pairs(rows).values
        mean = values[GROUPED_MEAN if grouped else MEAN]
        variance = values[GROUPED_VARIANCE if grouped else VARIANCE]
        if self._is_known:
            variance = without_known(variance, values[KNOWN])
        return self._stack(rows, mean, variance)

    def log_density(self, rows: Index, grouped: bool = False) -> Array:
        """What a leaf's log evidence owes to the observations at ``rows``, given its other rows: (n,
        n_components), summed over outputs; ``grouped``: to those of all rows of the same inputs."""
        values = self._pairs(rows).values
        density = values[GROUPED_LOG_DENSITY]
        if not grouped:
            density = normal_log_density(values[OBSERVED] - values[MEAN], values[VARIANCE])
        return np.asarray(self._stack(rows, density, density).mean.sum(-1))

    def scales_without(self, rows: Index) -> Array:
        """Scales of the leaves at ``rows``, each without the row: (n, n_components, n_outputs).

        Without its twins too: a twin's residual is against the row itself, and would betray it.
        """
        values = self._pairs(rows).values
        own = self._stack(rows, values[SQUARES], values[COUNT])
        others = own.of_leaves(self.squares, 0.0) - own.mean
        count = own.of_leaves(self.counts, 1.0) - own.variance
        return leaf_scales(others, np.maximum(count, 0.0))

    def _pairs(self, rows: Index) -> Pairs:
        """Several things are asked of the same rows."""
        if self._asked is None or not np.array_equal(self._asked[0], rows):
            self._asked = rows, self._ask(rows)
        return self._asked[1]

    def _of_rows(self, rows: Index, kind: int) -> Array:
        pairs = self._pairs(rows)
        table = np.empty((len(rows), pairs.values.shape[2]))
        table[pairs.place] = pairs.values[kind]
        return table

    def _stack(self, rows: Index, first: Array, second: Array) -> Components:
        """Two values for each pair, side by side."""
        pairs = self._pairs(rows)
        return Components.of_pairs(len(rows), pairs.leaf, pairs.place, first, second)


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
