"""Effects of levels: what each level of a category adds to the outputs, in one number per output.

A category with many levels (airports, products, subjects) becomes the effect of its level in an additive model of all columns: numbers cut
into bins, categories with their levels, fitted by backfitting. The effect of a level is the average of what the other columns leave
unexplained, shrunk by ``n / (n + within / between)`` for a level of n rows, with the variances within and between levels, as in a model
with random effects. Outputs are taken as normal scores, so that a few large ones do not decide. A training row gets the effect of its
level without the rows of its own fold: otherwise the model would see its output among the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.weighted import mid_rank_scores, weighted_quantiles
from dsmgp.data.columns.folds import N_FOLDS

__all__ = [
    "MOST_ROWS",
    "LevelEffects",
    "RowEffects",
    "bins_of",
    "level_effects",
    "nearest_folds",
    "normal_scores",
]

# Bins of a number in the additive model, and sweeps of backfitting over its columns.
N_BINS, N_SWEEPS = 16, 8
#: Rows from which effects are learned at most; those of other rows follow from their levels.
MOST_ROWS = 200_000


def normal_scores(Y: Array, weights: Array | None = None) -> Array:
    """Return the normal scores of the ranks of each output, (n_rows, n_outputs)."""
    scores = np.empty_like(Y)
    for k, y in enumerate(Y.T):
        _, place = np.unique(y, return_inverse=True)
        scores[:, k] = mid_rank_scores(np.bincount(place, weights))[place]
    return scores


def bins_of(numbers: Array, weights: Array | None = None) -> Index:
    """Return the bin of each number, between quantiles; a missing number has a bin of its own."""
    missing = np.isnan(numbers)
    present = None if weights is None else weights[~missing]
    levels = np.linspace(0, 1, N_BINS + 1)[1:-1]
    edges = np.unique(weighted_quantiles(numbers[~missing], levels, present))
    bins = np.searchsorted(edges, numbers, side="right")
    return np.where(missing, len(edges) + 1, bins)


@dataclass(frozen=True, eq=False)
class LevelEffects:
    """Effects of the levels of some columns, of all rows and without some of them.

    Attributes
    ----------
    effects : list of ndarray of shape (n_levels, n_outputs)
        By column, those of all rows.
    by_fold : list of ndarray of shape (N_FOLDS, n_levels, n_outputs)
        By column, those without each fold.
    by_pair : list of ndarray of shape (n_held_out, N_FOLDS, n_levels, n_outputs)
        By column, those without each of the first folds, and then without any second one.
    """

    effects: list[Array]
    by_fold: list[Array]
    by_pair: list[Array]


def level_effects(
    wanted: Sequence[Index],
    others: Sequence[Index],
    scores: Array,
    fold: Index,
    n_levels: Sequence[int] | None = None,
    n_held_out: int = 0,
    weights: Array | None = None,
) -> LevelEffects:
    """Fit the additive model, to all rows and without each fold.

    Parameters
    ----------
    wanted : sequence of ndarray of shape (n_rows,)
        Codes of the columns whose effects are wanted, from 0 on.
    others : sequence of ndarray of shape (n_rows,)
        Codes of the other columns: bins of numbers, levels of categories.
    scores : ndarray of shape (n_rows, n_outputs)
    fold : ndarray of shape (n_rows,)
        The fold of each row, see :func:`dsmgp.data.columns.folds.dealt_folds`.
    n_levels : sequence of int, optional
        Levels of the columns whose effects are wanted, of which some may have no rows; by default those that occur.
    n_held_out : int
        Folds that are left out together with each other one.
    weights : ndarray of shape (n_rows,), optional
        Above zero. Rows count as so many copies, but no less than one on average: otherwise weights that add up to one would leave
        nothing of any effect.

    Examples
    --------
    >>> level = np.repeat([0, 1], 50)
    >>> scores = np.where(level == 0, -1.0, 1.0)[:, None]
    >>> found = level_effects([level], [], scores, np.arange(100) % 5)
    >>> found.effects[0].round(2), found.by_fold[0][4].round(2)
    (array([[-1.],
           [ 1.]]), array([[-1.],
           [ 1.]]))
    """
    columns = [*wanted, *others]
    sizes = [int(codes.max(initial=0)) + 1 for codes in columns]
    if n_levels is not None:
        sizes[: len(wanted)] = n_levels
    n_rows = len(scores)
    if n_rows > MOST_ROWS:
        chosen = np.sort(np.random.default_rng(0).choice(n_rows, MOST_ROWS, replace=False))
        columns, scores, fold = [codes[chosen] for codes in columns], scores[chosen], fold[chosen]
        weights = None if weights is None else weights[chosen]
    if weights is not None:
        weights = weights * max(1.0, len(weights) / weights.sum())

    @cache
    def without(*folds: int) -> list[Array]:
        """Return the effects of each wanted column, (n_levels, n_outputs), without some folds; of all rows if none would be left."""
        rows = ~np.isin(fold, folds)
        if not rows.any():
            rows[:] = True
        learned = [codes[rows] for codes in columns]
        counts = None if weights is None else weights[rows]
        by_output = [_backfit(learned, sizes, y[rows], counts) for y in scores.T]
        return [np.stack(of_column, axis=1) for of_column in zip(*by_output, strict=True)]

    by_fold = [without(first) for first in range(N_FOLDS)]
    by_pair = [
        [without(*sorted({first, second})) for second in range(N_FOLDS)]
        for first in range(n_held_out)
    ]
    return LevelEffects(
        without()[: len(wanted)],
        [np.stack([each[k] for each in by_fold]) for k in range(len(wanted))],
        [
            np.array([[each[k] for each in of_first] for of_first in by_pair]).reshape(
                n_held_out, N_FOLDS, *by_fold[0][k].shape
            )
            for k in range(len(wanted))
        ],
    )


def nearest_folds(
    by_fold: Sequence[Array], effects: Sequence[Array], codes: Sequence[Index]
) -> list[Array]:
    """Encode new rows as training rows are: by effects without one fold, that which is nearest to the effects of all rows.

    A level without rows in a fold has about the same effect with and without the fold: rare levels are encoded by all of their rows.

    Parameters
    ----------
    by_fold : sequence of ndarray of shape (n_folds, n_levels, n_outputs)
        By column.
    effects : sequence of ndarray of shape (n_levels, n_outputs)
        Those of all rows.
    codes : sequence of ndarray of shape (n_rows,)
        The level of each row; ``n_levels`` for one that is not known, which gets the average of all levels.

    Returns
    -------
    list of ndarray of shape (n_rows, n_outputs)
    """
    candidates, away = [], 0.0
    for of_folds, of_all, levels in zip(by_fold, effects, codes, strict=True):
        typical = of_all.mean(axis=0, keepdims=True)
        full = np.concatenate([of_all, typical])
        repeated = np.broadcast_to(typical, (len(of_folds), *typical.shape))
        encoded = np.concatenate([of_folds, repeated], axis=1)
        spread = of_all.std(axis=0)
        scaled = (encoded - full) / np.where(spread > 0, spread, 1.0)
        away = away + np.square(scaled).sum(axis=2)[:, levels]
        candidates.append(encoded[:, levels])
    nearest = np.argmin(away, axis=0)
    return [each[nearest, np.arange(len(nearest))] for each in candidates]


@dataclass(frozen=True, eq=False)
class RowEffects:
    """How the effects among the inputs of training rows were learned, and would be without some of the rows.

    Attributes
    ----------
    folds : ndarray of shape (n_rows,)
        The fold of each row, without which its effects were learned.
    codes : dict of str to ndarray of shape (n_rows,)
        By column, the level of each row.
    by_fold, by_pair : dict of str to ndarray
        By column, as in :class:`LevelEffects`.
    """

    folds: Index
    codes: dict[str, Index]
    by_fold: dict[str, Array]
    by_pair: dict[str, Array]

    def taken(self, rows: Any) -> RowEffects:
        """Return the effects of some rows."""
        codes = {name: of_rows[rows] for name, of_rows in self.codes.items()}
        return replace(self, folds=self.folds[rows], codes=codes)

    def of_rows(self, name: str) -> Array:
        """Return the effects of a column without the fold of each row, (n_rows, n_outputs)."""
        return np.asarray(self.by_fold[name][self.folds, self.codes[name]])

    @property
    def n_held_out(self) -> int:
        """Number of folds without which effects can be had."""
        return len(next(iter(self.by_pair.values())))


def _backfit(
    columns: Sequence[Index], sizes: Sequence[int], y: Array, weights: Array | None
) -> list[Array]:
    """Fit an additive model; return the effects of each column's levels."""
    effects = [np.zeros(size) for size in sizes]
    counts = [np.bincount(c, weights, size) for c, size in zip(columns, sizes, strict=True)]
    residual = y - np.average(y, weights=weights)
    for _ in range(N_SWEEPS):
        for k, codes in enumerate(columns):
            residual += effects[k][codes]
            effects[k] = _shrunk(codes, counts[k], residual, weights)
            residual -= effects[k][codes]
    return effects


def _shrunk(codes: Index, counts: NDArray[Any], y: Array, weights: Array | None) -> Array:
    """Return the average of each level, shrunk towards zero."""
    weighted = y if weights is None else weights * y
    sums = np.bincount(codes, weighted, minlength=len(counts))
    sizes = np.where(counts > 0, counts, 1)
    means = sums / sizes
    n, n_levels = counts.sum(), int((counts > 0).sum())
    # Every row its own level: nothing is known of it. Sums of weights are rounded.
    if n - n_levels < 1e-9 * n or n_levels < 2:
        return np.zeros(len(counts))
    # Moments of a one-way model with random effects.
    grand = sums.sum() / n
    within = max(float(weighted @ y - sums @ means), 0.0) / (n - n_levels)
    between = float(counts @ np.square(means - grand)) / (n_levels - 1)
    size = (n - np.square(counts).sum() / n) / (n_levels - 1)
    # Without a difference between levels, averages count little.
    variance = max((between - within) / size, 1e-3 * within, 1e-12)
    # A level without rows has no effect, also where rows do not differ within levels.
    return np.where(counts > 0, sums - counts * grand, 0.0) / (sizes + within / variance)
