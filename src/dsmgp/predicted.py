"""Predictions of rows as columns of a table, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["predicted"]

# Rows whose quantiles are found at once.
CHUNK = 20_000


def predicted(
    model: Any,
    X: Any,
    targets: Sequence[str],
    intervals: Sequence[float] = (),
    quantiles: Sequence[float] = (),
    include_noise: bool = True,
) -> dict[str, NDArray[np.float64]]:
    """Mean and standard deviation of every target, and ends of intervals and quantiles where they are asked for."""
    rows = model._test_rows(X) if not isinstance(X, np.ndarray) else X
    levels = list(dict.fromkeys(quantiles))
    tails = [0.5 * (1.0 - level) for level in dict.fromkeys(intervals)]
    ends = [end for tail in tails for end in (tail, 1.0 - tail)]
    if not ends and not levels:
        mean, std = model._model.moments(rows, include_noise)
        tables = {"mean": mean, "std": std}
    else:
        law = model._model.mixture(rows, include_noise, squeeze=False)
        tables = {"mean": law.mean, "std": law.std}
        found = {level: np.empty_like(tables["mean"]) for level in [*ends, *levels]}
        for first in range(0, len(rows), CHUNK):
            part = slice(first, first + CHUNK)
            for level, table in found.items():
                table[part] = law[part].quantile(level)
        for k, level in enumerate(dict.fromkeys(intervals)):
            tables[f"low_{100 * level:g}"] = found[ends[2 * k]]
            tables[f"high_{100 * level:g}"] = found[ends[2 * k + 1]]
        tables |= {f"q{100 * level:g}": found[level] for level in levels}
    return {
        f"{target}_{name}": np.ascontiguousarray(table[:, k])
        for k, target in enumerate(targets)
        for name, table in tables.items()
    }
