"""Rows outside the training data: their share, the columns responsible, and when users are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index

__all__ = ["OutsideRows"]

# Distances in length scales: a column in which no row is further out does not matter; from the second on a row is far outside.
NEAR, FAR = 0.01, 0.5
# Users are told if this share of the rows is far outside; or this share of at least so many rows is outside at all.
FAR_SHARE, SHARE, MANY_ROWS = 0.05, 0.5, 20
# Columns that are named, those with most such rows first.
MOST_NAMED = 5


@dataclass(frozen=True)
class OutsideRows:
    """How many of some rows lie outside the training data, and by which columns.

    Attributes
    ----------
    n_rows, n_outside, n_far : int
        All rows; those outside; and those outside by more than half a length scale. A column counts if it takes a row outside by more
        than a hundredth of one.
    columns : dict of str to tuple of int and float
        By column, how many rows it takes outside, and how far in length scales at most.

    Examples
    --------
    >>> by_input = np.array([[0.0, 0.0], [2.5, 0.0], [0.0, 0.001]])
    >>> rows = OutsideRows.of(by_input, [("date", np.array([0])), ("size", np.array([1]))])
    >>> rows.is_notable, rows.share
    (True, 0.3333333333333333)
    >>> print(rows.remark)
    1 of 3 rows (33%) outside the training data: 'date' (1 row, up to 2.5 length scales beyond)
    """

    n_rows: int
    n_outside: int
    n_far: int
    columns: dict[str, tuple[int, float]]

    @classmethod
    def of(cls, by_input: Array, groups: Sequence[tuple[str, Index]]) -> OutsideRows:
        """Count rows, given how far each lies outside by each input (n, n_inputs), and the inputs of each column."""
        columns: dict[str, tuple[int, float]] = {}
        squares = np.zeros(len(by_input))
        if not by_input.any():  # as nearly always
            return cls(len(by_input), 0, 0, columns)
        for name, inputs in groups:
            away = by_input[:, inputs].max(axis=1, initial=0.0)
            if away.max(initial=0.0) > NEAR:
                columns[name] = (int((away > 0.0).sum()), float(away.max()))
                squares += np.square(away)
        counts = int((squares > 0.0).sum()), int((squares > FAR**2).sum())
        return cls(len(by_input), *counts, columns)

    def joined(self, other: OutsideRows) -> OutsideRows:
        """Return the counts of these rows and others."""
        columns = dict(self.columns)
        for name, (n, far) in other.columns.items():
            n_before, far_before = columns.get(name, (0, 0.0))
            columns[name] = (n_before + n, max(far_before, far))
        return OutsideRows(
            self.n_rows + other.n_rows,
            self.n_outside + other.n_outside,
            self.n_far + other.n_far,
            columns,
        )

    @property
    def share(self) -> float:
        """Share of the rows that lie outside."""
        return self.n_outside / max(self.n_rows, 1)

    @property
    def is_notable(self) -> bool:
        """Whether so many rows lie so far outside that users are told: rows of a test set a little beyond the range are common."""
        if not self.n_rows:
            return False
        many = self.n_rows >= MANY_ROWS and self.share >= SHARE
        return many or self.n_far / self.n_rows >= FAR_SHARE

    @property
    def remark(self) -> str:
        """The rows and columns in words."""
        most = sorted(self.columns.items(), key=lambda item: (-item[1][0], -item[1][1]))
        named = [
            f"{name!r} ({n} row{'s' * (n > 1)}, up to {far:.2g} length scales beyond)"
            for name, (n, far) in most[:MOST_NAMED]
        ]
        if len(most) > MOST_NAMED:
            named.append(f"{len(most) - MOST_NAMED} more")
        return (
            f"{self.n_outside} of {self.n_rows} rows ({100 * self.share:.0f}%) outside the training data: "
            f"{', '.join(named)}"
        )

    @property
    def remarks(self) -> list[str]:
        """The remark, where there is something to tell."""
        return [self.remark] if self.is_notable else []
