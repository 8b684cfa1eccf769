"""Folds of rows by content: whatever the order of the rows, the same rows are in the same folds.

Effects of levels and hypotheses are judged with the same folds, so that the score of a row leaves out all that has seen its output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsmgp._util.arrays import Array, Index

__all__ = ["N_FOLDS", "dealt_folds", "equal_inputs", "levels_by_content", "n_held_out"]

#: Parts into which training rows are divided. With many parts the effect of a level without a row's part tells how the row's own output
#: differs from those of its level: what is left out of an average can be recovered from the others.
N_FOLDS = 5
# With more rows one fold is enough to judge how new rows are best encoded.
MANY_ROWS = 2000
# Share of rows with an input that another row has, too, up to which it makes no difference whether folds divide such rows.
FEW_DUPLICATES = 0.1


def dealt_folds(
    X: Array, y: Array, labels: Index | None = None, levels: Index | None = None
) -> Index:
    """Return the fold of each row; rows with equal inputs share one, unless there are many such rows.

    Rows are put in order of their outputs, and each five neighbours are dealt to five folds. Scores then depend less on the draw than
    with folds whose outputs happen to differ. The draw is the same for any order of the rows, and for any seed of the fit.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_inputs)
    y : ndarray of shape (n_rows,)
    labels : ndarray of shape (n_rows,), optional
        Equal for rows with equal inputs.
    levels : ndarray of shape (n_rows,), optional
        Levels that are to be divided evenly over the folds: rows are put in order of these first.

    Examples
    --------
    >>> x = np.arange(10.0)
    >>> fold = dealt_folds(x[:, None], x)
    >>> np.bincount(fold), np.array_equal(dealt_folds(x[::-1, None], x[::-1]), fold[::-1])
    (array([2, 2, 2, 2, 2]), True)
    """
    labels = equal_inputs(list(X.T)) if labels is None else labels
    counts = np.bincount(labels)
    first: Index | slice = slice(None)
    group = np.arange(len(y))
    if counts[counts > 1].sum() <= FEW_DUPLICATES * len(y):
        _, first, group, counts = np.unique(
            labels, return_index=True, return_inverse=True, return_counts=True
        )
        group = group.reshape(-1)
        y = np.bincount(group, y) / counts
    keys = [*X[first].T, y]
    if levels is not None:
        keys.append(levels[first])
    return _dealt(np.lexsort(keys))[group]


def equal_inputs(columns: Sequence[Array]) -> Index:
    """Return a number for each row, equal for rows with equal values in all columns."""
    order = np.lexsort(columns)
    differs = np.zeros(len(order), dtype=bool)
    for column in columns:
        differs[1:] |= column[order[1:]] != column[order[:-1]]
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = np.cumsum(differs)
    return labels


def levels_by_content(codes: Index, y: Array, n_levels: int, share: bool = False) -> Index:
    """Return a number for each level, by how many rows have it and by their outputs: one that does not depend on its name.

    Levels whose rows have the same outputs have numbers in the order of their codes, or the same number if they ``share`` it.

    Examples
    --------
    >>> print(levels_by_content(np.array([0, 1, 1, 2]), np.array([5.0, 1.0, 2.0, 3.0]), 3))
    [2 0 1]
    """
    order = np.lexsort((y, codes))  # sums are then the same for any order of the rows
    counts = np.bincount(codes, minlength=n_levels)
    moments = [
        np.bincount(codes[order], y[order] ** power, minlength=n_levels) for power in (3, 2, 1)
    ]
    keys = [np.asarray(each, dtype=np.float64) for each in (*moments, -counts)]
    if share:
        return equal_inputs(keys)
    place = np.empty(n_levels, dtype=np.int64)
    place[np.lexsort(keys)] = np.arange(n_levels)
    return place


def n_held_out(n_rows: int) -> int:
    """Return how many folds are held out to judge how new rows are best encoded (:mod:`dsmgp.fitting.effect_encoding`)."""
    return N_FOLDS if n_rows <= MANY_ROWS else 1


def _dealt(order: Index) -> Index:
    """Deal rows in some order to folds."""
    hands = np.tile(np.arange(N_FOLDS), (-(-len(order) // N_FOLDS), 1))
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = np.random.default_rng(0).permuted(hands, axis=1).reshape(-1)[: len(order)]
    return fold
