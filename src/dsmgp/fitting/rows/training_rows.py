"""Training data in the user's units, row by row: what a fit starts from, and what online updates add to and remove from.

Rows are numbered in order of arrival. :mod:`dsmgp.fitting.rows.scaled_rows` scales them for the leaf GPs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.data.columns.effects import RowEffects
from dsmgp.data.input_schema import TableRows
from dsmgp.data.user_tables import check_noise, check_weights
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.points import equal_rows, joined_weights
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling

__all__ = ["TrainingRows"]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Training data in the user's units.

    Attributes
    ----------
    X : ndarray of shape (n, n_features)
    Y : ndarray of shape (n, n_outputs)
    noise : ndarray of shape (n, n_outputs), or None
        Known noise variances.
    weights : ndarray of shape (n,), or None
        Positive weights; None if all are one.
    ids : ndarray of shape (n,)
        Row numbers in order of arrival. A number is never used twice; those of rows with weight zero, which are not kept, are
        left out.
    next_id : int
        The number of the next row.
    effects : RowEffects or None
        How the effects of levels among the inputs were learned; None if there are none, or if some rows came later.
    """

    X: Array
    Y: Array
    noise: Array | None
    weights: Array | None
    ids: Index
    next_id: int
    effects: RowEffects | None = None

    @classmethod
    def first(
        cls,
        X: Array,
        Y: Array,
        noise: Array | None = None,
        weights: Array | None = None,
        first_id: int = 0,
        positions: Index | None = None,
        n_given: int | None = None,
        effects: RowEffects | None = None,
    ) -> TrainingRows:
        """Number rows from ``first_id`` on, and drop those with weight zero.

        Where some of the ``n_given`` rows were left out before, ``positions`` says where the others stood among them.

        Parameters
        ----------
        X : ndarray of shape (n, n_features)
        Y : ndarray of shape (n, n_outputs)
        noise : ndarray of shape (n, n_outputs), optional
            Known noise variances.
        weights : ndarray of shape (n,), optional
            Not negative.
        first_id : int
        positions : ndarray of shape (n,), optional
        n_given : int, optional
        """
        places = np.arange(len(X)) if positions is None else positions
        next_id = first_id + (len(X) if n_given is None else n_given)
        rows = cls(X, Y, noise, weights, first_id + places, next_id, effects)
        if weights is None:
            return rows
        rows = rows.removed(np.flatnonzero(weights == 0))
        return replace(rows, weights=None) if np.all(rows.weights == 1.0) else rows

    @classmethod
    def of_table(
        cls,
        table: TableRows,
        noise: ArrayLike | None,
        sample_weight: ArrayLike | None,
        first_id: int = 0,
        least: int = 1,
    ) -> TrainingRows:
        """Check known noise and weights of the rows of a table, and number the rows from ``first_id`` on.

        ``least`` is how many rows must have a positive weight.
        """
        kept = slice(None) if table.rows is None else table.rows
        known_noise = check_noise(noise, (table.n_given, table.Y.shape[1]))
        weights = check_weights(sample_weight, table.n_given, least)
        # Copies: online updates need these rows again, whatever the caller does to theirs.
        return cls.first(
            table.X.copy(),
            table.Y.copy(),
            None if known_noise is None else known_noise[kept],
            None if weights is None else weights[kept],
            first_id,
            table.rows,
            table.n_given,
            table.effects,
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def arrays(self) -> list[Array]:
        """X, Y and, if there are any, noise and weights."""
        return [self.X, self.Y, *(a for a in (self.noise, self.weights) if a is not None)]

    def leaf_data(self, inputs: InputScaling, outputs: OutputScaling) -> LeafData:
        """Return the rows as leaf GPs see them, by the scaling of a fit."""
        return LeafData(
            inputs.to_experts(self.X),
            outputs.to_experts(self.Y),
            None if self.noise is None else outputs.noise_to_experts(self.noise),
            equal_rows(self.X),
            self.weights,
        )

    @property
    def n_observations(self) -> float | None:
        """Sum of the weights; None if all are one."""
        return None if self.weights is None else float(self.weights.sum())

    def added(self, other: TrainingRows) -> TrainingRows:
        """Return these rows and further ones; noise that is not given is zero, and weights are one."""
        parts = (self, other)
        noise = None
        if any(rows.noise is not None for rows in parts):
            known = [np.zeros_like(rows.Y) if rows.noise is None else rows.noise for rows in parts]
            noise = np.concatenate(known)
        return TrainingRows(
            np.concatenate([self.X, other.X]),
            np.concatenate([self.Y, other.Y]),
            noise,
            joined_weights([(rows.weights, len(rows)) for rows in parts]),
            np.concatenate([self.ids, other.ids]),
            other.next_id,
        )

    def take(self, positions: Index | slice) -> TrainingRows:
        """Return the rows at some positions."""
        noise, weights = (
            None if table is None else table[positions] for table in (self.noise, self.weights)
        )
        effects = None if self.effects is None else self.effects.taken(positions)
        X, Y = self.X[positions], self.Y[positions]
        return TrainingRows(X, Y, noise, weights, self.ids[positions], self.next_id, effects)

    def removed(self, positions: Index) -> TrainingRows:
        """Return the rows without those at some positions."""
        return self.take(np.delete(np.arange(len(self)), positions))

    def positions(self, ids: Index) -> Index:
        """Positions of rows that are to be removed; refuse unknown rows, and to remove all but one."""
        where = np.searchsorted(self.ids, ids)
        exists = where < len(self.ids)
        exists[exists] = self.ids[where[exists]] == ids[exists]
        if not exists.all():
            raise InputError(
                f"row {ids[~exists][0]} cannot be forgotten: it is not among the training rows, or was forgotten before; "
                f"row_ids_ lists the {len(self)} training rows"
            )
        if len(ids) > len(self) - 2:
            raise InputError(
                f"cannot forget {len(ids)} of {len(self)} rows: at least two must stay"
            )
        return np.asarray(where)
