"""From a table to arrays: learn a :class:`~dsmgp.data.schema.ColumnSchema` from a training table, apply it to others.

Tables are Arrow tables, or frames of pandas or polars. Values that the schema does not allow raise a ``TableError`` that names
column and row. Needs ``dsmgp[data]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dsmgp._util.arrays import Array
from dsmgp._util.dates import MICROSECONDS_PER_DAY
from dsmgp._util.validation import LARGEST
from dsmgp.data.frames import kind_of
from dsmgp.data.schema import KINDS, Column, ColumnSchema
from dsmgp.data.tables import TableError, check_columns

__all__ = ["MAX_LEVELS", "encode_inputs", "encode_targets", "learn_schema", "missing_counts"]

# A category with more levels is likely to identify the rows.
MAX_LEVELS = 50
# Dates whose order of day and month is ambiguous.
AMBIGUOUS_DATE = r"^[0-9]{1,2}[./-][0-9]{1,2}[./-](19|20)[0-9]{2}([ T]|$)"


def learn_schema(
    table: Any,
    targets: Sequence[str],
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: str = "onehot",
    missing: str = "refuse",
) -> ColumnSchema:
    """Learn how the columns of a training table become inputs.

    Parameters
    ----------
    table : Arrow table or frame
    targets : sequence of str
        Columns to predict.
    features, drop : sequence of str
        Input columns (all columns but the targets if empty), and columns to ignore.
    categories : {"onehot", "refuse"}
        Whether columns of text become indicators or are an error.
    missing : {"refuse", "impute"}
        Whether missing values are an error or replaced by the median or the most frequent level.

    Examples
    --------
    >>> table = pa.table({"size": [1.0, 2.0], "colour": ["red", "blue"], "y": [3.0, 4.0]})
    >>> schema = learn_schema(table, ["y"])
    >>> schema.input_names
    ['size', 'colour=blue', 'colour=red']
    >>> encode_inputs(schema, table)
    array([[1., 0., 1.],
           [2., 1., 0.]])
    """
    table = _arrow_table(table)
    check_columns(table.column_names, [*targets, *features, *drop])
    if not targets:
        raise TableError("expected at least one target column")
    not_inputs = {*targets, *drop}
    names = [name for name in features or table.column_names if name not in not_inputs]
    if not names:
        raise TableError("no column is left to predict from; every one is a target or dropped")
    columns = [_learn_column(table[name], name, categories, missing) for name in names]
    schema = ColumnSchema(tuple(columns), tuple(dict.fromkeys(targets)))
    encode_targets(schema, table)  # invalid targets are an error now rather than later
    return schema


def encode_inputs(schema: ColumnSchema, table: Any, first_row: int = 0) -> Array:
    """Return the inputs of a table, (n_rows, n_inputs); error messages count rows from ``first_row``."""
    table = _arrow_table(table)
    check_columns(table.column_names, [column.name for column in schema.columns])
    parts = [_encode(table[column.name], column, first_row) for column in schema.columns]
    return np.ascontiguousarray(np.column_stack(parts))


def encode_targets(schema: ColumnSchema, table: Any, first_row: int = 0) -> Array:
    """Return the targets of a table, (n_rows, n_targets); error messages count rows from ``first_row``."""
    table = _arrow_table(table)
    check_columns(table.column_names, schema.targets)
    targets = []
    for name in schema.targets:
        kind = _kind(table[name], name)
        if kind != "number":
            raise TableError(
                f"the target {name!r} holds {KINDS[kind]}, expected numbers" + _example(table[name])
            )
        _check_no_missing(
            table[name], name, "remove such rows: a target is never filled in", first_row
        )
        targets.append(_floats(table[name]))
        _check_finite(targets[-1], name, first_row)
    return np.column_stack(targets)


def missing_counts(schema: ColumnSchema, table: Any) -> dict[str, int]:
    """Return the number of missing values of each column that has any and whose missing values are filled in."""
    table = _arrow_table(table)
    counts = {
        column.name: int(_is_missing(table[column.name]).sum())
        for column in schema.columns
        if column.fill is not None
    }
    return {name: count for name, count in counts.items() if count}


def _arrow_table(table: Any) -> pa.Table:
    """Return an Arrow table of an Arrow table or a frame."""
    if isinstance(table, pa.Table):
        return table
    try:
        if kind_of(table) == "pandas":
            return pa.Table.from_pandas(table, preserve_index=False)
        return pa.table(table)
    except pa.ArrowException as error:
        raise TableError(f"the frame cannot be used as a table: {error}") from error


def _learn_column(values: pa.ChunkedArray, name: str, categories: str, missing: str) -> Column:
    kind = _kind(values, name)
    levels: tuple[str, ...] = ()
    if kind == "category":
        if categories == "refuse":
            raise TableError(
                f"column {name!r} holds text{_example(values)}; use --categories onehot, or leave it "
                f"out with --drop {name!r}"
            )
        levels = _learn_levels(values, name)
    if missing == "refuse":
        remedy = "remove such rows, or fill them in with --missing impute"
        _check_no_missing(values, name, remedy)
        return Column(name, kind, levels)
    return Column(name, kind, levels, _learn_fill(values, name, kind))


def _learn_levels(values: pa.ChunkedArray, name: str) -> tuple[str, ...]:
    levels = pc.unique(_text(values)).drop_null()
    if not len(levels):
        raise TableError(f"column {name!r} is empty; leave it out with --drop {name!r}")
    if pc.all(pc.match_substring_regex(levels, AMBIGUOUS_DATE)).as_py():
        raise TableError(
            f"column {name!r} holds dates that are not understood{_example(values)}; write them as 2020-12-31, or leave "
            f"it out with --drop {name!r}"
        )
    if len(levels) > MAX_LEVELS:
        raise TableError(
            f"column {name!r} has {len(levels)} different texts{_example(values)}, more than the "
            f"{MAX_LEVELS} that are made into inputs; leave it out with --drop {name!r}"
        )
    return tuple(sorted(levels.to_pylist()))


def _learn_fill(values: pa.ChunkedArray, name: str, kind: str) -> float | str:
    """Return the value that replaces missing ones."""
    if _is_missing(values).all():
        raise TableError(f"column {name!r} is empty; leave it out with --drop {name!r}")
    if kind == "category":
        counts = pc.value_counts(_text(values).drop_null()).to_pylist()
        return str(max(counts, key=lambda c: (c["counts"], c["values"]))["values"])
    return float(np.nanmedian(_floats(values)))


def _kind(values: pa.ChunkedArray, name: str) -> str:
    """Return which of ``KINDS`` a column is."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "date"
    number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    if any(test(kind) for test in number) or pa.types.is_null(kind):
        return "number"
    if any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string)) or str(
        kind
    ).startswith("string"):
        return "category"
    raise TableError(
        f"column {name!r} is of type {kind}, which cannot be used; turn it into numbers or text first, or leave it "
        f"out with --drop {name!r}"
    )


def _encode(values: pa.ChunkedArray, column: Column, first_row: int) -> Array:
    """Return the inputs of one column, (n_rows, 1 or n_levels)."""
    kind = _kind(values, column.name)
    if pa.types.is_null(values.type):
        kind = column.kind
    if column.kind == "category" and kind == "number":
        kind = "category"  # a table in which only levels that look like numbers occur
    if kind != column.kind:
        raise TableError(
            f"column {column.name!r} holds {KINDS[kind]}{_example(values, first_row)}, and held {KINDS[column.kind]} when the "
            "model was fitted"
        )
    if column.fill is None:
        remedy = "remove such rows, or fit the model with --missing impute"
        _check_no_missing(values, column.name, remedy, first_row)
    if column.kind == "category":
        text = np.array(
            [column.fill if entry is None else entry for entry in _text(values).to_pylist()],
            dtype=object,
        )
        known = np.isin(text.astype(str), np.array(column.levels, dtype=str))
        if not known.all():
            row = int(np.flatnonzero(~known)[0])
            raise TableError(
                f"column {column.name!r} has {text[row]!r} in row {first_row + row + 1}, a level that was not there when the "
                "model was fitted; remove such rows, or fit again"
            )
        return np.stack([text == level for level in column.levels], axis=1).astype(np.float64)
    numbers = _floats(values)
    if column.fill is not None:
        numbers = np.where(np.isnan(numbers), float(column.fill), numbers)
    _check_finite(numbers, column.name, first_row)
    return numbers[:, None]


def _text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.string())


def _floats(values: pa.ChunkedArray) -> Array:
    """Return numbers, NaN where they are missing; of dates, days since 1970."""
    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        # Floats cannot hold nanoseconds, nor integers beyond 2**53.
        steps = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64(), safe=False)
        return steps.to_numpy().astype(np.float64) / MICROSECONDS_PER_DAY
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    return values.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)


def _is_missing(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.is_null(values, nan_is_null=True).to_numpy(), dtype=bool)


def _check_no_missing(values: pa.ChunkedArray, name: str, remedy: str, first_row: int = 0) -> None:
    missing = np.flatnonzero(_is_missing(values))
    if missing.size:
        others = missing.size - 1
        more = f", and in {others} other row{'s' * (others > 1)}" if others else ""
        row = first_row + missing[0] + 1
        raise TableError(f"column {name!r} has no value in row {row}{more}; {remedy}")


def _check_finite(numbers: Array, name: str, first_row: int) -> None:
    """Check for infinite and huge values here, as the estimator would count rows from 0."""
    bad = np.flatnonzero(~(np.abs(numbers) < LARGEST))
    if not bad.size:
        return
    value, row = numbers[bad[0]], first_row + bad[0] + 1
    remedy = "remove such rows" if np.isinf(value) else "rescale it, or remove such rows"
    raise TableError(f"column {name!r} has {value:g} in row {row}; {remedy}")


def _example(values: pa.ChunkedArray, first_row: int = 0) -> str:
    """Quote a value of the column, preferably one that is not a number."""
    missing = _is_missing(values)
    present = [(row, str(v)) for row, v in enumerate(values.to_pylist()) if not missing[row]]
    if not present:
        return ""
    row, value = next(((row, text) for row, text in present if not _is_number(text)), present[0])
    return f" ({value!r} in row {first_row + row + 1})"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
