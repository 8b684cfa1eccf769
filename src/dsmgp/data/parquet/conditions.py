"""Conditions on the columns of a dataset, for rows of which a model keeps the inputs. Needs ``dsmgp[data]``.

Columns are decoded from the inputs as far as these determine them; a condition on any other column is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.data.columns.schema import Column, ColumnSchema
from dsmgp.data.columns.values import KINDS
from dsmgp.data.table_error import TableError

__all__ = ["RowCondition", "reason"]

# What the columns of each kind are decoded to.
TYPES = {"number": pa.float64(), "date": pa.timestamp("us"), "category": pa.string()}


@dataclass(frozen=True)
class RowCondition:
    """A condition on inputs and targets by the names and kinds of their columns.

    Attributes
    ----------
    expression : pyarrow.compute.Expression
    schema : ColumnSchema
    names : tuple of str
        Columns that the condition is about.

    Examples
    --------
    >>> size, colour = Column("size", "number"), Column("colour", "category", ("blue", "red"))
    >>> schema = ColumnSchema((size, colour), ("price",))
    >>> condition = RowCondition.of((pc.field("colour") == "red") & (pc.field("size") > 1), schema)
    >>> X = np.array([[2.0, 0.0, 1.0], [0.0, 0.0, 1.0], [3.0, 1.0, 0.0]])
    >>> condition.names, condition.holds(X, np.zeros((3, 1)))
    (('size', 'colour'), array([0]))
    """

    expression: Any
    schema: ColumnSchema
    names: tuple[str, ...]

    @classmethod
    def of(cls, expression: Any, schema: ColumnSchema) -> RowCondition:
        """Check a condition before rows are read; raise an error if it cannot be evaluated."""
        if not isinstance(expression, pc.Expression):
            raise InputError(
                f"expected a condition such as pyarrow.compute.field('year') < 2015, got {expression!r}"
            )
        kinds = {column.name: column.kind for column in schema.columns}
        kinds |= dict.fromkeys(schema.targets, "number")
        empty = pa.table({name: pa.array([], TYPES[kind]) for name, kind in kinds.items()})
        try:
            _places(empty, 0, expression)
        except (pa.ArrowException, ValueError) as error:
            columns = ", ".join(f"{name!r} ({KINDS[kind]})" for name, kind in kinds.items())
            raise TableError(
                f"the condition cannot be evaluated: {reason(error)}; the columns are {columns}"
            ) from error
        asked = tuple(name for name in kinds if _needs(expression, empty, name))
        for column in schema.columns:
            if column.name in asked:
                _check_decodable(column, schema)
        return cls(expression, schema, asked)

    def holds(self, X: Array, Y: Array) -> Index:
        """Return which of some rows fulfil the condition, from their inputs and outputs."""
        columns = dict(zip(self.schema.targets, Y.T, strict=True))
        for column, (name, inputs) in zip(self.schema.columns, self.schema.groups, strict=True):
            if name in self.names:
                indicator = _indicator(column, self.schema)
                missing = np.zeros(len(X), bool) if indicator is None else X[:, indicator] != 0
                columns[name] = _decoded(column, X[:, inputs], missing)
        table = pa.table({name: pa.array(columns[name]) for name in self.names})
        return _places(table, len(X), self.expression)


def reason(error: Exception) -> str:
    """Return the first line of an error of pyarrow."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _places(table: Any, n_rows: int, expression: Any) -> Index:
    """Return the positions of the rows that fulfil an expression; a table without columns has rows, too."""
    numbered = table.append_column("", pa.array(np.arange(n_rows)))
    return np.asarray(numbered.filter(expression)[""].to_numpy())


def _needs(expression: Any, table: Any, name: str) -> bool:
    """Return whether an expression is about a column."""
    try:
        _places(table.drop_columns([name]), 0, expression)
    except (pa.ArrowException, ValueError):
        return True
    return False


def _check_decodable(column: Column, schema: ColumnSchema) -> None:
    """Raise an error if the inputs do not determine the values of a column."""
    if column.kind == "category" and not column.one_hot:
        raise TableError(
            f"conditions on column {column.name!r} are not supported: the model stores only the effects of its {len(column.levels)} levels, "
            "not the levels of rows; use another column, or fit_dataset with categories='onehot'"
        )
    if _may_be_missing(column) and len(_indicators(schema, column)) > 1:
        raise TableError(
            f"conditions on column {column.name!r} are not supported: the model does not store in which rows its values were missing; "
            "use another column"
        )


def _may_be_missing(column: Column) -> bool:
    return column.kind != "category" and column.had_missing


def _indicators(schema: ColumnSchema, column: Column) -> list[int]:
    """Return the inputs that may be one where a number or date is missing: its own, or that of a column before it which is missing in the same rows."""
    found: list[int] = []
    for other, (_, inputs) in zip(schema.columns, schema.groups, strict=True):
        if other.indicator:
            found.append(int(inputs[-1]))
        if other is column:
            break
    return found[-1:] if column.indicator else found


def _indicator(column: Column, schema: ColumnSchema) -> int | None:
    """Return the input that is one where a column has no value, if there is one."""
    return _indicators(schema, column)[0] if _may_be_missing(column) else None


def _decoded(column: Column, inputs: Array, missing: NDArray[np.bool_]) -> Any:
    """Return the values of a column from its inputs; null where one is missing."""
    if column.kind == "category":
        return _levels(column, inputs[:, : len(column.levels)])
    values = column.dates.to_dates(inputs[:, 0]) if column.kind == "date" else inputs[:, 0]
    return pa.array(values, TYPES[column.kind], mask=missing)


def _levels(column: Column, one_hot: Array) -> Any:
    """Return the levels of a category from an input for each of them."""
    if not (one_hot == 1).any(axis=1).all():
        raise TableError(
            f"conditions on column {column.name!r} are not supported: rows with new levels were added after the fit, and the model does "
            "not store new levels; use another column"
        )
    levels: Sequence[str | None] = column.levels
    return pa.array(levels, pa.string()).take(pa.array(one_hot.argmax(axis=1)))
