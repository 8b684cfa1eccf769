"""From the columns of a table to inputs: a :class:`~dsmgp.data.columns.schema.ColumnSchema` applied to rows.

Columns are :class:`~dsmgp.data.columns.values.Values`, whatever library the table comes from. Values that the schema does not allow raise a
``TableError`` that names column and row. :mod:`dsmgp.data.columns.learning` learns the schema.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LARGEST
from dsmgp.data.columns.effects import nearest_folds
from dsmgp.data.columns.schema import Column, ColumnSchema
from dsmgp.data.columns.values import KINDS, Values, column_values, dates_of_numbers, dates_of_texts
from dsmgp.data.rows import Rows, Unknown
from dsmgp.data.table_error import TableError, check_columns

__all__ = [
    "N_LISTED",
    "as_in_training",
    "check_finite",
    "check_no_missing",
    "check_targets",
    "encode_column",
    "encode_inputs",
    "encode_targets",
    "level_codes",
    "missing_counts",
    "new_level_remarks",
    "new_levels",
    "table_remarks",
    "table_values",
    "target_table",
    "unknown_levels",
    "values_as_numbers",
]


#: New levels that are listed.
N_LISTED = 3


def table_values(table: Any, names: Sequence[str]) -> dict[str, Values]:
    """Return columns of an Arrow table or a frame of pandas or polars, by name; one error lists all that cannot be used."""
    of_column: Callable[[Any, str], Values] = _frame_column
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(table, arrow.Table):
        from dsmgp.data.columns.arrow_values import column_of_arrow as of_column
    values, problems = {}, []
    for name in dict.fromkeys(names):
        try:
            values[name] = of_column(table[name], name)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise TableError.of_columns(problems)
    return values


def _frame_column(column: Any, name: str) -> Values:
    return column_values(column, f"column {name!r}")


def as_in_training(learned: Iterable[Column], columns: Mapping[str, Values]) -> dict[str, Values]:
    """Return the columns of a table; texts become numbers or dates where the training table had these, if all of them can be."""
    return {
        **columns,
        **{column.name: _converted(columns[column.name], column) for column in learned},
    }


def _converted(values: Values, column: Column) -> Values:
    if values.kind == "number" and column.kind == "date":
        return dates_of_numbers(values, fewest=1) or values
    if column.respelt:
        return values.as_category().respelt(column.levels)
    if values.kind != "category" or column.kind == "category":
        return values
    return _conversion(column)(values) or values


def _conversion(column: Column) -> Callable[[Values], Values | None]:
    # What the training table has settled is not asked again of each table to predict from.
    return values_as_numbers if column.kind == "number" else partial(dates_of_texts, are_dates=True)


def _first_stray(values: Values, column: Column, first_row: int) -> str:
    """Quote the first value that is not of the column's kind, with its row."""
    if values.kind == "category":
        convert = _conversion(column)
        fits = [k for k, v in enumerate(values.levels) if convert(Values.of_texts([v])) is not None]
        values = replace(values, data=np.where(np.isin(values.data, fits), -1, values.data))
    return values.example(first_row)


def level_codes(values: Values, column: Column) -> Index:
    """Return the position of each row's level among those of a category; their number for a level that is not among them."""
    values = values.as_category()
    place = {level: k for k, level in enumerate(column.levels)}
    unknown = len(column.levels)
    known = [place.get(level, unknown) for level in values.levels]
    missing = place.get(None if column.fill is None else str(column.fill), unknown)
    return np.array([*known, missing], dtype=np.int64)[values.data]


def encode_inputs(schema: ColumnSchema, columns: Mapping[str, Values], first_row: int = 1) -> Rows:
    """Return the inputs of a table, whose columns are :func:`as_in_training`; errors count rows from ``first_row``."""
    check_columns(list(columns), [column.name for column in schema.columns])
    parts, problems = [], []
    for column in schema.columns:
        try:
            parts.append(encode_column(columns[column.name], column, first_row))
        except TableError as error:
            problems.append(str(error))
    if problems:
        raise TableError.of_columns(problems)
    X = np.ascontiguousarray(np.column_stack(parts))
    _take_nearest_folds(schema, columns, X)
    unknown = []
    for column, (_, inputs) in zip(schema.columns, schema.groups, strict=True):
        rows = _unknown(columns[column.name], column)
        if rows.any():
            places = np.flatnonzero(rows)
            unknown.append(Unknown(column.name, places, inputs, column.alternatives))
    return Rows(X, tuple(unknown))


def _take_nearest_folds(schema: ColumnSchema, columns: Mapping[str, Values], X: Array) -> None:
    """Replace effects of all rows by those of a fold, where training rows have such."""
    found = [column for column in schema.columns if column.fold_effects]
    if found:
        encoded = nearest_folds(
            [np.array(column.fold_effects) for column in found],
            [np.array(column.effects) for column in found],
            [level_codes(columns[column.name], column) for column in found],
        )
        for column, effects in zip(found, encoded, strict=True):
            X[:, schema.effect_inputs[column.name]] = effects


def _unknown(values: Values, column: Column) -> NDArray[np.bool_]:
    """Return the rows of a column whose value is not known: new levels, and missing values where none was missing in training."""
    if column.kind == "category":
        return np.asarray(level_codes(values, column) == len(column.levels))
    return values.missing & (not column.had_missing)


def encode_targets(
    schema: ColumnSchema, columns: Mapping[str, Values], first_row: int = 1
) -> Array:
    """Return the targets of a table, (n_rows, n_targets), NaN where one is missing; errors count rows from ``first_row``."""
    check_columns(list(columns), schema.targets)
    Y = target_table(columns, schema.targets, first_row)
    check_targets(np.where(np.isnan(Y), 0.0, Y), schema.targets, first_row)
    return Y


def missing_counts(schema: ColumnSchema, columns: Mapping[str, Values]) -> dict[str, int]:
    """Return the number of missing values of each column that has any."""
    counts = {column.name: int(columns[column.name].missing.sum()) for column in schema.columns}
    return {name: count for name, count in counts.items() if count}


def table_remarks(schema: ColumnSchema, columns: Mapping[str, Values]) -> list[str]:
    """Describe missing values and new levels of a table to predict from, for the user."""
    return [
        *schema.missing_remarks(missing_counts(schema, columns)),
        *unknown_levels(schema, columns),
    ]


def unknown_levels(schema: ColumnSchema, columns: Mapping[str, Values]) -> list[str]:
    """Describe the levels of a table that were not there in training, for the user."""
    return new_level_remarks(new_levels(schema, columns))


def new_levels(
    schema: ColumnSchema, columns: Mapping[str, Values]
) -> dict[str, tuple[int, list[str]]]:
    """Return, by column, the number of rows with levels that the training rows do not have, and the first of these levels."""
    found = {}
    for column in schema.columns:
        if column.kind != "category":
            continue
        values = columns[column.name].as_category()
        codes = level_codes(values, column)
        n = int(((codes == len(column.levels)) & ~values.missing).sum())
        if n:
            known = set(column.levels)
            new = [level for level in values.levels if level not in known]
            found[column.name] = (n, new[: N_LISTED + 1])
    return found


def new_level_remarks(found: Mapping[str, tuple[int, Sequence[str]]]) -> list[str]:
    """Describe what :func:`new_levels` has found, for the user."""
    remarks = []
    for name, (n, new) in found.items():
        listed = ", ".join(map(repr, new[:N_LISTED])) + ", ..." * (len(new) > N_LISTED)
        remarks.append(
            f"column {name!r}: {n} row{'s' * (n > 1)} with levels that the training rows do not have ({listed})"
        )
    return remarks


def target_table(
    columns: Mapping[str, Values], targets: Sequence[str], first_row: int = 1
) -> Array:
    """Return the targets as numbers, NaN where one is missing."""
    numbers = []
    for name in targets:
        values = columns[name]
        if values.kind != "number":
            raise TableError(
                f"the target {name!r} holds {KINDS[values.kind]}, expected numbers"
                + values.example(first_row)
            )
        numbers.append(values.data)
    return np.column_stack(numbers)


def check_targets(Y: Array, targets: Sequence[str], first_row: int) -> None:
    for name, y in zip(targets, Y.T, strict=True):
        check_finite(y, name, first_row)


def encode_column(values: Values, column: Column, first_row: int) -> Array:
    """Return the inputs of one column, (n_rows, n_inputs)."""
    remedy = "remove such rows, or fit the model with missing='model' (--missing model)"
    if column.kind == "category":
        if column.required:
            check_no_missing(values, column.name, remedy, first_row)
        return np.asarray(column.level_inputs[level_codes(values, column)])
    missing = values.missing
    if values.kind != column.kind and not missing.all():
        raise TableError(
            f"column {column.name!r} holds {KINDS[values.kind]}{_first_stray(values, column, first_row)}, and held "
            f"{KINDS[column.kind]} when the model was fitted"
        )
    if column.fill is None:
        check_no_missing(values, column.name, remedy, first_row)
    if values.kind == "date":
        numbers = column.dates.to_numbers(values.data)
    elif values.kind == "number":
        numbers = np.asarray(values.data)
    else:
        numbers = np.full(len(missing), np.nan)
    check_finite(numbers, column.name, first_row)
    filled = numbers if column.fill is None else np.where(missing, float(column.fill), numbers)
    if column.indicator:
        return np.column_stack([filled, missing])
    return filled[:, None]


def values_as_numbers(values: Values) -> Values | None:
    """Return the values of a category whose levels are all numbers as numbers, else None."""
    try:
        numbers = np.array([*map(float, values.levels), np.nan])
    except ValueError:
        return None
    return Values.of_numbers(numbers[values.data])


def check_no_missing(values: Values, name: str, remedy: str, first_row: int) -> None:
    """Refuse missing values."""
    missing: NDArray[Any] = np.flatnonzero(values.missing)
    if missing.size:
        others = missing.size - 1
        more = f", and in {others} other row{'s' * (others > 1)}" if others else ""
        raise TableError(
            f"column {name!r} has no value in row {first_row + missing[0]}{more}; {remedy}"
        )


def check_finite(numbers: Array, name: str, first_row: int) -> None:
    """Refuse infinite and huge values; NaN is a missing value."""
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(np.abs(numbers) >= LARGEST)
    if not bad.size:
        return
    value, row = numbers[bad[0]], first_row + bad[0]
    remedy = "remove such rows" if np.isinf(value) else "rescale it, or remove such rows"
    raise TableError(f"column {name!r} has {value:g} in row {row}; {remedy}")
