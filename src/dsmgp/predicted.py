"""Predictions of rows as columns of a table, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_kept", "output_names", "predicted"]

# Rows whose quantiles are found at once.
CHUNK = 20_000


def output_names(given: Sequence[str] | None, squeeze: bool, n_outputs: int) -> list[str]:
    """What outputs are called; y, or y0, y1 and so on, where they came without names."""
    return list(given or (["y"] if squeeze else [f"y{k}" for k in range(n_outputs)]))


def check_kept(
    keep: Sequence[str],
    targets: Sequence[str],
    intervals: Sequence[float] = (),
    quantiles: Sequence[float] = (),
) -> None:
    """Refuse to keep a column that has the name of a prediction: one of the two would be lost."""
    own = {f"{target}_{name}" for target in targets for name in _columns(intervals, quantiles)}
    for name in keep:
        if name in own:
            raise ValueError(
                f"the column {name!r} cannot be kept: a column of the predictions has that name; rename it first"
            )


def _columns(intervals: Sequence[float], quantiles: Sequence[float]) -> list[str]:
    ends = [f"{end}_{100 * level:g}" for level in intervals for end in ("low", "high")]
    return ["mean", "std", *ends, *(f"q{100 * level:g}" for level in quantiles)]


def predicted(
    model: Any,
    X: Any,
    targets: Sequence[str],
    intervals: Sequence[float] = (),
    quantiles: Sequence[float] = (),
    include_noise: bool = True,
) -> dict[str, NDArray[np.float64]]:
    """Mean and standard deviation of every target, and ends of intervals and quantiles where they are asked for."""
    are_numbers = isinstance(X, np.ndarray) and X.dtype.kind == "f"
    rows = X if are_numbers else model._test_rows(X)
    levels = list(dict.fromkeys(quantiles))
    tails = [0.5 * (1.0 - level) for level in dict.fromkeys(intervals)]
    ends = [end for tail in tails for end in (tail, 1.0 - tail)]
    if not ends and not levels:
        mean, std = model._model.moments(rows, include_noise)
        tables = {"mean": mean, "std": std}
    else:
        law = model._model.mixture(rows, include_noise, squeeze=False)
        found = {level: np.empty_like(law.mean) for level in [*ends, *levels]}
        for first in range(0, len(rows), CHUNK):
            part = slice(first, first + CHUNK)
            for level, table in found.items():
                table[part] = law[part].quantile(level)
        names = _columns(list(dict.fromkeys(intervals)), levels)
        values = [law.mean, law.std, *(found[level] for level in [*ends, *levels])]
        tables = dict(zip(names, values, strict=True))
    return {
        f"{target}_{name}": np.ascontiguousarray(table[:, k])
        for k, target in enumerate(targets)
        for name, table in tables.items()
    }
