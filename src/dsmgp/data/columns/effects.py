"""Effects of levels: what each level of a category adds to the outputs, in one number per output.

A category with many levels (airports, products, subjects) becomes the effect of its level in an additive model of all columns: numbers cut
into bins, categories with their levels, fitted by backfitting. The effect of a level is the average of what the other columns leave
unexplained, shrunk by ``n / (n + within / between)`` for a level of n rows, with the variances within and between levels, as in a model
with random effects. Outputs are taken as normal scores, so that a few large ones do not decide. A training row gets the effect of its
level without the rows of its own fold: otherwise the model would see its output among the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.weighted import mid_rank_scores
from dsmgp.data.columns.folds import N_FOLDS

__all__ = ["MOST_ROWS", "LevelEffects", "bins_of", "level_effects", "normal_scores"]

# Bins of a number in the additive model, and sweeps of backfitting over its columns.
N_BINS, N_SWEEPS = 16, 8
#: Rows from which effects are learned at most; those of other rows follow from their levels.
MOST_ROWS = 200_000


def normal_scores(Y: Array) -> Array:
    """Return the normal scores of the ranks of each output, (n_rows, n_outputs)."""
    scores = np.empty_like(Y)
    for k, y in enumerate(Y.T):
        _, place, counts = np.unique(y, return_inverse=True, return_counts=True)
        scores[:, k] = mid_rank_scores(counts)[place]
    return scores


def bins_of(numbers: Array) -> Index:
    """Return the bin of each number, between quantiles; a missing number has a bin of its own."""
    present = numbers[~np.isnan(numbers)]
    edges = np.unique(np.quantile(present, np.linspace(0, 1, N_BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, numbers, side="right")
    return np.where(np.isnan(numbers), len(edges) + 1, bins)


@dataclass(frozen=True, eq=False)
class LevelEffects:
    """Effects of the levels of some columns, and of training rows without their own fold.

    Attributes
    ----------
    effects : list of ndarray of shape (n_levels, n_outputs)
        By column, those of all rows.
    of_rows : list of ndarray of shape (n_rows, n_outputs)
        By column, those of the training rows, each without the rows of its fold.
    """

    effects: list[Array]
    of_rows: list[Array]


def level_effects(
    wanted: Sequence[Index],
    others: Sequence[Index],
    scores: Array,
    fold: Index,
    n_levels: Sequence[int] | None = None,
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

    Examples
    --------
    >>> level = np.repeat([0, 1], 50)
    >>> scores = np.where(level == 0, -1.0, 1.0)[:, None]
    >>> found = level_effects([level], [], scores, np.arange(100) % 5)
    >>> found.effects[0].round(2), found.of_rows[0][[0, -1]].round(2)
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
    else:
        chosen = np.arange(n_rows)
    learned = [codes[chosen] for codes in columns]
    of_rows = [np.zeros_like(scores) for _ in wanted]
    all_effects = [np.zeros((size, scores.shape[1])) for size in sizes[: len(wanted)]]
    for output, y in enumerate(scores.T):
        full = _backfit(learned, sizes, y[chosen])
        for k in range(len(wanted)):
            all_effects[k][:, output] = full[k]
            of_rows[k][:, output] = full[k][columns[k]]
        for part in range(N_FOLDS):
            inside = fold[chosen] == part
            if inside.all() or not inside.any():
                continue
            without = [codes[~inside] for codes in learned]
            effects = _backfit(without, sizes, y[chosen][~inside])
            rows = chosen[inside]
            for k in range(len(wanted)):
                of_rows[k][rows, output] = effects[k][columns[k][rows]]
    return LevelEffects(all_effects, of_rows)


def _backfit(columns: Sequence[Index], sizes: Sequence[int], y: Array) -> list[Array]:
    """Fit an additive model; return the effects of each column's levels."""
    effects = [np.zeros(size) for size in sizes]
    counts = [np.bincount(c, minlength=size) for c, size in zip(columns, sizes, strict=True)]
    residual = y - y.mean()
    for _ in range(N_SWEEPS):
        for k, codes in enumerate(columns):
            residual += effects[k][codes]
            effects[k] = _shrunk(codes, counts[k], residual)
            residual -= effects[k][codes]
    return effects


def _shrunk(codes: Index, counts: Index, y: Array) -> Array:
    """Return the average of each level, shrunk towards zero."""
    sums = np.bincount(codes, y, minlength=len(counts))
    means = sums / np.maximum(counts, 1)
    n, n_levels = len(y), int((counts > 0).sum())
    if n <= n_levels or n_levels < 2:  # every row its own level: nothing is known of it
        return np.zeros(len(counts))
    # Moments of a one-way model with random effects.
    grand = sums.sum() / n
    within = max(float(y @ y - sums @ means), 0.0) / (n - n_levels)
    between = float(counts @ np.square(means - grand)) / (n_levels - 1)
    size = (n - np.square(counts).sum() / n) / (n_levels - 1)
    # Without a difference between levels, averages count little.
    variance = max((between - within) / size, 1e-3 * within, 1e-12)
    # A level without rows has no effect, also where rows do not differ within levels.
    return np.where(counts > 0, sums - counts * grand, 0.0) / (
        np.maximum(counts, 1) + within / variance
    )
