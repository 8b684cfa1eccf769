"""Leave-one-out (LOO) predictions: every training row predicted from all other rows, without another fit.

A leaf predicts each of its rows from its others in closed form (R&W section 5.4.2). :class:`LeafLOO` holds these
predictions for all leaves, :class:`LeaveOneOut` combines those of the leaves that a row reaches into
:class:`Components`, which the gate weighs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.ragged import Ragged

__all__ = [
    "KNOWN",
    "Components",
    "LOOMoments",
    "LeafLOO",
    "LeaveOneOut",
    "Pairs",
    "leaf_scales",
    "normal_log_density",
    "standardised",
    "without_known_noise",
]

# The tables of Pairs.values: LOO mean and variance; the same without the row's duplicates, and the log density of all of
# these together; their part of the leaf's sum of squares and count; observation and known noise variance of the row, and its
# weight, if rows have weights.
(
    MEAN, VARIANCE, GROUPED_MEAN, GROUPED_VARIANCE, GROUPED_LOG_DENSITY, SQUARES, COUNT, OBSERVED,
    KNOWN, WEIGHT,
) = range(10)  # fmt: skip
# Rows of pseudo-data at scale one: the scale of a leaf with few rows stays near one.
PRIOR_ROWS = 1.0


@dataclass(frozen=True)
class Components:
    """Predictions of y at n rows by the leaves that each reaches, in the units of the leaf GPs.

    Attributes
    ----------
    leaf : ndarray of shape (n, n_components)
        Numbers of the leaves; -1 where a row reaches fewer leaves than others.
    mean, variance : ndarray of shape (n, n_components, n_outputs)
    """

    leaf: Index
    mean: Array
    variance: Array

    @classmethod
    def of_pairs(
        cls, n_rows: int, leaf: Index, row: Index, mean: Array, variance: Array | None
    ) -> Components:
        """Put predictions for pairs of leaf and row side by side.

        Parameters
        ----------
        n_rows : int
        leaf, row : ndarray of shape (n_pairs,)
        mean, variance : ndarray of shape (n_pairs, n_outputs)
            Without a variance, all are one.
        """
        if (blocks := _blocks(row, n_rows)) is not None:
            slots = len(blocks)
            where = (np.arange(slots)[:, None], blocks)
        else:
            order = np.argsort(row, kind="stable")
            leaf, row, mean = leaf[order], row[order], mean[order]
            variance = None if variance is None else variance[order]
            count = np.bincount(row, minlength=n_rows)
            slots = int(count.max(initial=1))
            where = (np.arange(len(row)) - (np.cumsum(count) - count)[row], row)
        # Component by component in memory, as they come: sums over components then add long rows.
        leaves = np.full((slots, n_rows), -1, dtype=np.int64)
        means = np.zeros((slots, n_rows, mean.shape[1]))
        variances = np.ones_like(means)
        leaves[where] = leaf.reshape(where[1].shape)
        means[where] = mean.reshape(*where[1].shape, -1)
        if variance is not None:
            variances[where] = variance.reshape(*where[1].shape, -1)
        return cls(leaves.T, means.swapaxes(0, 1), variances.swapaxes(0, 1))

    def of_leaves(self, values: Array, missing: float) -> Array:
        """Return the values (n_leaves, ...) of the leaf of each component, ``missing`` where there is none."""
        table = np.concatenate([values, np.full((1, *values.shape[1:]), missing)])
        return table[self.leaf]


def _blocks(row: Index, n_rows: int) -> Index | None:
    """Rows as (n_partitions, n_rows), if each row stands once in every partition, one partition after the other.

    That is the case unless sum nodes are nested, and saves a sort.
    """
    if not n_rows or len(row) % n_rows:
        return None
    blocks = row.reshape(-1, n_rows)
    present = np.zeros(blocks.shape, dtype=bool)
    np.put_along_axis(present, blocks, True, axis=1)
    return blocks if present.all() else None


def normal_log_density(residual: Array, variance: Array) -> Array:
    """Return the log density of observations at given distances from the mean."""
    return np.asarray(-0.5 * (residual**2 / variance + np.log(variance) + LOG_2PI))


def leaf_scales(squares: Array, n_rows: Array) -> Array:
    """Return the scales of leaves, from the sums of squares of their standardised LOO residuals."""
    return np.asarray((PRIOR_ROWS + np.maximum(squares, 0.0)) / (PRIOR_ROWS + n_rows))


def standardised(square: Array, variance: Array, known_noise: Array | None) -> tuple[Array, Array]:
    """Standardise squared LOO residuals.

    Known noise is not for the leaf's scale to explain, so it is subtracted from the square. The rest is the more
    uncertain the larger the noise, and counts by the inverse of its variance.

    Returns
    -------
    square : ndarray
        Divided by the variance.
    count : ndarray
        The weight of each row: one without known noise.
    """
    if known_noise is None:
        return square / variance, np.ones_like(square)
    share = without_known_noise(variance, known_noise) / variance
    return share * (square - known_noise) / variance, share**2


def without_known_noise(variance: Array, known_noise: Array) -> Array:
    """Return the variance of y without known noise, which is less than the whole."""
    return np.maximum(variance - known_noise, 1e-9 * variance)


@dataclass(frozen=True)
class LOOMoments:
    """LOO predictions of y by each leaf for its rows, one leaf after the other.

    Attributes
    ----------
    mean, variance : ndarray of shape (n, n_outputs)
    grouped_mean, grouped_variance : ndarray of shape (n, n_outputs)
        Without a row and its duplicates: what the leaf predicts at new inputs.
    grouped_log_density : ndarray of shape (n, n_outputs), optional
        Of a row and its duplicates together; None if there are no duplicates.
    """

    mean: Array
    variance: Array
    grouped_mean: Array
    grouped_variance: Array
    grouped_log_density: Array | None


@dataclass(frozen=True)
class Pairs:
    """LOO predictions for pairs of a leaf and one of its rows, leaf by leaf.

    Attributes
    ----------
    leaf : ndarray of shape (n_pairs,)
    place : ndarray of shape (n_pairs,)
        Position of the row among those requested.
    values : ndarray of shape (9 or 10, n_pairs, n_outputs)
        The tables :data:`MEAN` to :data:`KNOWN`, and :data:`WEIGHT` if rows have weights.
    """

    leaf: Index
    place: Index
    values: Array

    def only(self, places: Index, n_requested: int) -> Pairs:
        """Return the pairs of some of the ``n_requested`` rows."""
        new_place = np.full(n_requested, -1, dtype=np.int64)
        new_place[places] = np.arange(len(places))
        chosen = np.flatnonzero(new_place[self.place] >= 0)
        return Pairs(self.leaf[chosen], new_place[self.place[chosen]], self.values[:, chosen])

    @classmethod
    def joined(cls, parts: Sequence[Pairs]) -> Pairs:
        """Return the pairs of several sets of leaves, for the same rows, in the order of the leaves."""
        leaf = np.concatenate([part.leaf for part in parts])
        order = np.argsort(leaf, kind="stable")
        place = np.concatenate([part.place for part in parts])
        values = np.concatenate([part.values for part in parts], axis=1)
        return cls(leaf[order], place[order], values[:, order])


class LeafLOO:
    """LOO predictions of all leaves for their rows.

    Parameters
    ----------
    moments : LOOMoments
    leaf_rows : Ragged
        Rows of the leaves, in the order of ``moments``.
    Y : ndarray of shape (n_rows, n_outputs)
    known_noise : ndarray of shape (n_rows, n_outputs), optional
    labels : ndarray of shape (n_rows,), optional
        From :func:`equal_rows`, if there are duplicates.
    row_weights : ndarray of shape (n_rows,), optional

    Attributes
    ----------
    squares, counts : ndarray of shape (n_leaves, n_outputs)
        Sum of squared standardised residuals, and the number of rows it counts for; both are weighted.
    """

    def __init__(
        self,
        moments: LOOMoments,
        leaf_rows: Ragged,
        Y: Array,
        known_noise: Array | None,
        labels: Index | None,
        row_weights: Array | None = None,
    ) -> None:
        self.row_weights = row_weights
        self.moments, self.leaf_rows, self.Y, self.known_noise = moments, leaf_rows, Y, known_noise
        self.leaf, rows = leaf_rows.owner, leaf_rows.flat
        square, count = standardised(
            (Y[rows] - moments.mean) ** 2,
            moments.variance,
            None if known_noise is None else known_noise[rows],
        )
        if row_weights is not None:
            square, count = (row_weights[rows, None] * a for a in (square, count))
        self.squares, self.counts = (_sums(a, self.leaf, len(leaf_rows)) for a in (square, count))
        # Contribution of each row and its duplicates to these.
        self._contributions = square, count
        if labels is not None:
            self._contributions = _summed_over_duplicates(square, count, self.leaf, labels[rows])

    def pairs(self, rows: Index) -> Pairs:
        """Return the predictions for some rows."""
        place = np.full(len(self.Y), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        place = place[self.leaf_rows.flat]
        chosen = np.flatnonzero(place >= 0)
        m, row = self.moments, self.leaf_rows.flat[chosen]
        tables = (m.mean, m.variance, m.grouped_mean, m.grouped_variance)
        mean, variance, *grouped = (table[chosen] for table in tables)
        observed = self.Y[row]
        known_noise = np.zeros_like(observed) if self.known_noise is None else self.known_noise[row]
        if m.grouped_log_density is None:
            log_density = normal_log_density(observed - mean, variance)
        else:
            log_density = m.grouped_log_density[chosen]
        contributions = (table[chosen] for table in self._contributions)
        values = [mean, variance, *grouped, log_density, *contributions, observed, known_noise]
        if self.row_weights is not None:
            values.append(np.broadcast_to(self.row_weights[row, None], observed.shape))
        return Pairs(self.leaf[chosen], place[chosen], np.stack(values))


class LeaveOneOut:
    """Predictions of y at training rows, each given all other rows, and the scales of the leaves.

    Parameters
    ----------
    squares, counts : ndarray of shape (n_leaves, n_outputs)
        Sum of squared standardised residuals of each leaf, and the number of rows it counts for.
    pairs : callable
        Returns the :class:`Pairs` of some rows.
    has_known_noise : bool
        Whether noise variances of the rows are known.
    """

    def __init__(
        self, squares: Array, counts: Array, pairs: Callable[[Index], Pairs], has_known_noise: bool
    ) -> None:
        self.squares, self.counts = squares, counts
        self._compute_pairs, self._has_known_noise = pairs, has_known_noise
        self._last: tuple[Index, Pairs] | None = None

    @property
    def scales(self) -> Array:
        """Scale of each leaf, (n_leaves, n_outputs)."""
        return leaf_scales(self.squares, self.counts)

    def observed(self, rows: Index) -> Array:
        """Return the outputs of rows, (n, n_outputs)."""
        return self._of_rows(rows, OBSERVED)

    def known_noise(self, rows: Index) -> Array | None:
        """Return the known noise variances of rows, in addition to the noise that was learned, (n, n_outputs)."""
        return self._of_rows(rows, KNOWN) if self._has_known_noise else None

    def weights(self, rows: Index) -> Array | None:
        """Return the weights of rows, (n,), if they have any."""
        has_weights = len(self._pairs(rows).values) > WEIGHT
        return self._of_rows(rows, WEIGHT)[:, 0] if has_weights else None

    def components(self, rows: Index, grouped: bool = False) -> Components:
        """Return LOO predictions of y at ``rows``, without known noise.

        With ``grouped``, all rows with the same inputs are left out.
        """
        values = self._pairs(rows).values
        mean = values[GROUPED_MEAN if grouped else MEAN]
        variance = values[GROUPED_VARIANCE if grouped else VARIANCE]
        if self._has_known_noise:
            variance = without_known_noise(variance, values[KNOWN])
        return self._stack(rows, mean, variance)

    def log_density(self, rows: Index, grouped: bool = False) -> Array:
        """Return the LOO log density of the observations at ``rows``, (n, n_components), summed over outputs.

        It is what a leaf's log evidence owes to these observations; with ``grouped``, to those of all rows with the
        same inputs.
        """
        values = self._pairs(rows).values
        density = values[GROUPED_LOG_DENSITY]
        if not grouped:
            density = normal_log_density(values[OBSERVED] - values[MEAN], values[VARIANCE])
            if len(values) > WEIGHT:  # there may be less than one copy to leave out
                density = density * np.minimum(values[WEIGHT], 1.0)
        return np.asarray(self._stack(rows, density, density).mean.sum(-1))

    def scales_without(self, rows: Index) -> Array:
        """Return the scales of the leaves at ``rows``, each without the row, (n, n_components, n_outputs).

        Duplicates are left out too: the residual of a duplicate depends on the row itself.
        """
        values = self._pairs(rows).values
        of_row = self._stack(rows, values[SQUARES], values[COUNT])
        squares = of_row.of_leaves(self.squares, 0.0) - of_row.mean
        counts = of_row.of_leaves(self.counts, 1.0) - of_row.variance
        return leaf_scales(squares, np.maximum(counts, 0.0))

    def _pairs(self, rows: Index) -> Pairs:
        """The pairs of some rows, kept until other rows are requested."""
        if self._last is None or not np.array_equal(self._last[0], rows):
            self._last = rows, self._compute_pairs(rows)
        return self._last[1]

    def _of_rows(self, rows: Index, table: int) -> Array:
        """A table whose values are the same for all leaves of a row."""
        pairs = self._pairs(rows)
        values = np.empty((len(rows), pairs.values.shape[2]))
        values[pairs.place] = pairs.values[table]
        return values

    def _stack(self, rows: Index, first: Array, second: Array) -> Components:
        """Two values of each pair, as components."""
        pairs = self._pairs(rows)
        return Components.of_pairs(len(rows), pairs.leaf, pairs.place, first, second)


def _sums(values: Array, group: Index, n_groups: int) -> Array:
    """Sums of rows by group, (n_groups, columns)."""
    sums = [np.bincount(group, weights=column, minlength=n_groups) for column in values.T]
    return np.stack(sums, axis=1)


def _summed_over_duplicates(
    square: Array, count: Array, leaf: Index, labels: Index
) -> tuple[Array, Array]:
    """For each row the sums over the rows of the same leaf and label."""
    groups, group = np.unique(leaf * (labels.max() + 1) + labels, return_inverse=True)
    sums = [_sums(values, group, len(groups))[group] for values in (square, count)]
    return sums[0], sums[1]
