"""The rows that a model is least certain of, and the columns that make it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp.data.frames import kind_of, taken
from dsmgp.report.numbers import number

if TYPE_CHECKING:
    from dsmgp.report.evaluation import Evaluation

__all__ = ["least_certain"]

# Rows that are listed.
MAX_ROWS = 10
# Least number of rows for which a twentieth of them is a meaningful share.
MIN_RANKED = 20
# Columns that are named for each row, and the least share of the typical standard deviation that they add.
MAX_NAMED, LEAST_SHARE = 3, 0.05
# Training rows with which rows are compared, and columns beyond which that would take long.
BACKGROUND, MAX_COLUMNS = 16, 100


def least_certain(evaluation: Evaluation) -> dict[str, Any]:
    """Return a table of the least certain rows, and how much less certain than the median they are."""
    uncertainty, n_rows = evaluation.uncertainty, len(evaluation.rows)
    chosen = np.argsort(-uncertainty, kind="stable")[:MAX_ROWS]
    distribution = evaluation.distribution[chosen]
    low, high = (end.reshape(len(chosen), -1) for end in distribution.interval(0.9))
    mean = distribution.mean.reshape(len(chosen), -1)
    reasons = _reasons(evaluation, chosen)
    heads, rows = ["row"], []
    for name in evaluation.targets:
        heads += [f"{name} predicted", "90% from", "to", "observed"]
    for place, row in enumerate(chosen.tolist()):
        cells = [str(evaluation.row_numbers[row])]
        for k in range(len(evaluation.targets)):
            ends = (mean[place, k], low[place, k], high[place, k], evaluation.observed[row, k])
            cells += [number(value) for value in ends]
        rows.append([*cells, reasons[place]] if reasons else cells)
    median, ratio = float(np.median(uncertainty)), None
    if n_rows >= MIN_RANKED and median > 0:
        ratio = float(np.quantile(uncertainty, 0.95)) / median
    names = [name for name, _ in evaluation.model.state_.schema.groups]
    if reasons:
        heads.append(names[0] if len(names) == 1 else "columns that matter")
    explained = bool(reasons) and len(names) > 1
    return {"heads": heads, "rows": rows, "ratio": ratio, "has_reasons": explained}


def _reasons(evaluation: Evaluation, chosen: Index) -> list[str]:
    """Return for each row the columns that add most to its standard deviation, with their values; the value of an only column.

    Nothing if there are too many columns.
    """
    groups = evaluation.model.state_.schema.groups
    n_columns = len(groups)
    if n_columns > MAX_COLUMNS:
        return []
    X = taken(evaluation.X, chosen)
    if n_columns == 1:
        return [_value(evaluation, X, row, groups[0][0]) for row in range(len(chosen))]
    found = evaluation.model.explain(X, background=BACKGROUND, n_samples=4)
    shape = (len(chosen), n_columns, -1)
    base = np.maximum(np.ravel(found.std_base), np.finfo(np.float64).tiny)
    shares = (found.std_values.reshape(shape) / base).mean(axis=2)
    texts = []
    for row in range(len(chosen)):
        order = np.argsort(-shares[row], kind="stable")[:MAX_NAMED]
        named = [
            f"{found.columns[k]} = {_value(evaluation, X, row, found.columns[k])} ({shares[row, k]:+.0%})"
            for k in order.tolist()
            if shares[row, k] >= LEAST_SHARE
        ]
        texts.append(", ".join(named) or "none in particular")
    return texts


def _value(evaluation: Evaluation, X: Any, row: int, column: str) -> str:
    """Return a value of the user's table as text."""
    if kind_of(X) == "default":
        place = evaluation.model.state_.schema.column_names.index(column)
        value = np.asarray(X)[row, place]
    else:
        value = np.asarray(X[column])[row]
    if isinstance(value, (float, np.floating, int, np.integer)) and not isinstance(value, bool):
        return "missing" if np.isnan(value) else number(float(value))
    if isinstance(value, np.datetime64):
        value = str(value.astype("datetime64[s]")).removesuffix("T00:00:00").replace("T", " ")
    text = str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
