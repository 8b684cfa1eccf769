"""Predictions as the named columns of a table: mean, standard deviation, intervals and quantiles of every target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.data.rows import Rows
from dsmgp.data.unknown_inputs import mixture_at, moments_at
from dsmgp.progress import span, tick

__all__ = ["check_kept_columns", "prediction_columns"]

# Rows whose quantiles are computed at once.
CHUNK_ROWS = 20_000


def check_kept_columns(
    keep: Sequence[str],
    targets: Sequence[str],
    intervals: Sequence[float] = (),
    quantiles: Sequence[float] = (),
) -> None:
    """Raise an error if a column to keep has the name of a prediction: one of the two would be lost."""
    suffixes = _suffixes(intervals, quantiles)
    predictions = {f"{target}_{suffix}" for target in targets for suffix in suffixes}
    for name in keep:
        if name in predictions:
            raise InputError(
                f"the column {name!r} cannot be kept: a column of the predictions has that name; rename it first"
            )


def prediction_columns(
    model: Any,
    rows: Rows,
    targets: Sequence[str],
    intervals: Sequence[float] = (),
    quantiles: Sequence[float] = (),
    include_noise: bool = True,
) -> dict[str, Array]:
    """Predict rows; return the columns by name, such as ``price_mean``, ``price_low_90`` and ``price_q5``.

    Parameters
    ----------
    model : FittedModel
    rows : Rows
    targets : sequence of str
        Names of the outputs.
    intervals, quantiles : sequence of float
        Probabilities of central intervals and levels of quantiles, in (0, 1).
    include_noise : bool
        Whether the spread is that of a new observation y, or of the function f.
    """
    intervals, quantiles = list(dict.fromkeys(intervals)), list(dict.fromkeys(quantiles))
    if not intervals and not quantiles:
        tables = list(moments_at(model, rows, include_noise))
    else:
        with span(0.0, 0.5, "predicting rows"):
            distribution = mixture_at(model, rows, include_noise, squeeze=False)
        tails = [0.5 * (1.0 - level) for level in intervals]
        levels = [end for tail in tails for end in (tail, 1.0 - tail)] + quantiles
        with span(0.5, 1.0, "computing intervals"):
            tables = [distribution.mean, distribution.std, *_quantiles(distribution, levels)]
    names = _suffixes(intervals, quantiles)
    return {
        f"{target}_{name}": np.ascontiguousarray(table[:, k])
        for k, target in enumerate(targets)
        for name, table in zip(names, tables, strict=True)
    }


def _quantiles(distribution: Any, levels: Sequence[float]) -> list[Array]:
    """Return a table (n_rows, n_outputs) for each level, computed chunk by chunk."""
    tables = [np.empty_like(distribution.mean) for _ in levels]
    for first in range(0, len(distribution), CHUNK_ROWS):
        rows = slice(first, first + CHUNK_ROWS)
        chunk = distribution[rows]
        for level, table in zip(levels, tables, strict=True):
            table[rows] = chunk.quantile(level)
        tick(min(first + CHUNK_ROWS, len(distribution)) / len(distribution))
    return tables


def _suffixes(intervals: Sequence[float], quantiles: Sequence[float]) -> list[str]:
    """Return what is appended to a target's name for each column of its prediction."""
    ends = [f"{end}_{100 * level:g}" for level in intervals for end in ("low", "high")]
    return ["mean", "std", *ends, *(f"q{100 * level:g}" for level in quantiles)]
