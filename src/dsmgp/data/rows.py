"""Rows of a table as the model takes them, with what inputs may be where they are not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from dsmgp._util.arrays import Array, Index

__all__ = ["N_ALTERNATIVES", "Rows", "Unknown"]

#: Values that stand for one that is not known.
N_ALTERNATIVES = 8


@dataclass(frozen=True, eq=False)
class Unknown:
    """Rows in which the value of a column is not known, and what it may be.

    Attributes
    ----------
    name : str
        The column.
    rows : ndarray of int
    inputs : ndarray of int
        The inputs of the column.
    alternatives : ndarray of shape (N_ALTERNATIVES, n_inputs)
        Equally likely.
    """

    name: str
    rows: Index
    inputs: Index
    alternatives: Array


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as the model takes them.

    Attributes
    ----------
    X : ndarray of shape (n_rows, n_inputs)
        With a typical value where one is not known.
    unknown : tuple of Unknown
        By column.
    """

    X: Array
    unknown: tuple[Unknown, ...] = ()

    def __len__(self) -> int:
        return len(self.X)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of several tables, one after the other."""
        firsts = np.cumsum([0, *map(len, parts)])
        unknown = [
            replace(each, rows=each.rows + first)
            for first, part in zip(firsts, parts, strict=False)
            for each in part.unknown
        ]
        return cls(np.concatenate([part.X for part in parts]), tuple(unknown))

    @property
    def uncertain(self) -> Index:
        """Numbers of the rows that have a value which is not known."""
        if not self.unknown:
            return np.empty(0, dtype=np.int64)
        return np.unique(np.concatenate([each.rows for each in self.unknown]))

    def possible(self, rows: Index) -> Array:
        """Return what the inputs of some rows may be, equally likely, (n, N_ALTERNATIVES, n_inputs).

        Several columns that are not known are combined at random, each of their values once; whatever other
        rows there are, and wherever the columns stand.
        """
        possible = np.repeat(self.X[rows, None], N_ALTERNATIVES, axis=1)
        for each in self.unknown:
            inside = np.isin(rows, each.rows)
            order = np.random.default_rng(crc32(each.name.encode())).permutation(N_ALTERNATIVES)
            possible[np.ix_(inside, np.arange(N_ALTERNATIVES), each.inputs)] = each.alternatives[
                order
            ]
        return possible
