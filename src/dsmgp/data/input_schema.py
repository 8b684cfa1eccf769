"""How the rows that a user gives become numbers, and how predictions go back.

An :class:`InputSchema` is learned from the training data and kept with the fitted model. It checks and converts
arrays and frames at ``fit``, ``partial_fit`` and ``predict``, and shapes predictions like the training targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array, Index
from dsmgp._util.dates import Dates
from dsmgp._util.errors import InputError
from dsmgp._util.validation import (
    check_finite,
    check_spread,
    is_whole_number,
)
from dsmgp._util.warnings import warn_user
from dsmgp.data.columns.effects import RowEffects
from dsmgp.data.columns.encoding import (
    as_in_training,
    encode_inputs,
    missing_counts,
    table_remarks,
    unknown_levels,
)
from dsmgp.data.columns.folds import levels_by_content
from dsmgp.data.columns.learning import ColumnRules, EncodedTable, learn_columns, with_fill
from dsmgp.data.columns.remarks import training_remarks
from dsmgp.data.columns.schema import ColumnSchema, input_names, output_names
from dsmgp.data.columns.values import Values, dates_of_numbers
from dsmgp.data.frames import column_names, framed, kind_of
from dsmgp.data.rows import Rows
from dsmgp.data.user_tables import (
    Validated,
    check_lengths,
    check_weights,
    read_inputs,
    target_numbers,
)

__all__ = ["InputSchema", "TableRows"]


@dataclass(frozen=True, eq=False)
class TableRows:
    """Training rows as numbers.

    Attributes
    ----------
    X : ndarray of shape (n, n_inputs)
    Y : ndarray of shape (n, n_outputs)
    rows : ndarray of int, or None
        The rows of the table that are left, where some were left out.
    n_given : int
        Number of rows of the table.
    effects : RowEffects or None
        How the effects among the inputs of training rows were learned.
    """

    X: Array
    Y: Array
    rows: Index | None
    n_given: int
    effects: RowEffects | None = None


@dataclass(frozen=True, eq=False)
class InputSchema:
    """Columns and shape of the training data.

    Attributes
    ----------
    columns : ColumnSchema
        How the columns of a table become inputs.
    feature_names : tuple of str, or None
        Names of the columns of X; None if it was an array.
    target_names : tuple of str, or None
        None if y was an array.
    n_outputs : int
    single_output : bool
        Whether y had one dimension; predictions then have shape (n,) instead of (n, n_outputs).
    remarks : tuple of str
        What was left out of the training table, how columns were encoded, what was filled in.
    n_array_columns : int, or None
        Number of columns of X where it was an array, of which some may have been left out; None if all became inputs.
    """

    columns: ColumnSchema
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    n_outputs: int = 1
    single_output: bool = True
    remarks: tuple[str, ...] = ()
    n_array_columns: int | None = None

    @classmethod
    def learn(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        missing: str = "model",
        categorical_features: Any = "from_dtype",
        sample_weight: ArrayLike | None = None,
    ) -> tuple[InputSchema, TableRows]:
        """Learn the schema of training data, from the rows with a weight above zero.

        Parameters
        ----------
        X : array-like or frame
        y : array-like, series, or frame
        missing : "model", "drop", or "error"
        categorical_features : as in :class:`~dsmgp.DSMGPRegressor`
        sample_weight : array-like, optional

        Returns
        -------
        schema : InputSchema
        rows : TableRows
        """
        target_names = column_names(y)
        Y, single = target_numbers(y)
        targets = output_names(target_names, Y.shape[1], single)
        validated = Validated()
        table, names = read_inputs(validated, X, reset=True)
        check_lengths(table, Y)
        if isinstance(table, np.ndarray):
            _check_not_infinite(table, names)
        n_given, given = len(Y), None
        weights = check_weights(sample_weight, n_given, least=2)
        if weights is not None and not weights.all():
            given = np.flatnonzero(weights)
            table, Y, weights = _taken(table, given), Y[given], weights[given]
        if weights is not None and (weights == 1.0).all():
            weights = None
        is_plain = isinstance(table, np.ndarray) and bool(np.isfinite(table).all())
        if is_plain and names is not None:
            is_plain = not _has_day_numbers(table)
        if is_plain and np.isfinite(Y).all() and not _has_entries(categorical_features):
            numbers = ColumnSchema.of_numbers(input_names(names, table.shape[1]), targets)
            if missing == "model":
                numbers = _with_medians(numbers, table, weights)
            remarks = training_remarks(_as_columns(table, names), Y, targets, _leave_out)
            encoded = EncodedTable(numbers, table, Y, None, tuple(remarks))
        else:
            columns = _as_columns(table, names)
            rules = ColumnRules(
                "auto",
                missing,
                _categorical(categorical_features, list(columns)),
                first_row=0,
                leave_out=_leave_out,
            )
            encoded = learn_columns(columns, Y, targets, rules, weights)
        if len(encoded.X) < 2:
            raise InputError(f"found {len(encoded.X)} sample(s), and a minimum of 2 is required")
        check_finite(encoded.X, "X", encoded.schema.input_names)
        check_spread(encoded.Y)
        schema = cls(
            encoded.schema,
            None if names is None else tuple(names),
            None if target_names is None else tuple(target_names),
            Y.shape[1],
            single,
            encoded.remarks,
            validated.n_features_in_ if names is None else None,
        )
        kept = encoded.rows
        if given is not None:
            kept = given if kept is None else given[kept]
        return schema, TableRows(encoded.X, encoded.Y, kept, n_given, encoded.effects)

    @classmethod
    def of_encoded(cls, table: EncodedTable) -> InputSchema:
        """Return the schema of a table of a file, whose columns have names."""
        columns = table.schema
        names = tuple(column.name for column in columns.columns)
        n_outputs = len(columns.targets)
        return cls(columns, names, columns.targets, n_outputs, n_outputs == 1, table.remarks)

    @property
    def n_features(self) -> int:
        """Number of inputs of the model, which may be more than the columns of X."""
        return len(self.input_names)

    @property
    def n_columns(self) -> int:
        """Number of columns of X."""
        return len(self.column_names)

    @cached_property
    def column_names(self) -> list[str]:
        """Names of the columns of X; x0, x1, ... if it was an array."""
        return input_names(self.feature_names, self.n_array_columns or len(self.columns.columns))

    @cached_property
    def input_names(self) -> list[str]:
        """Names of the inputs; x0, x1, ... if X was an array."""
        return self.columns.input_names

    @cached_property
    def output_names(self) -> list[str]:
        """Names of the outputs; y, or y0, y1, ..., if they have none."""
        return output_names(self.target_names, self.n_outputs, self.single_output)

    @property
    def displayed_dates(self) -> dict[int, Dates]:
        """Inputs whose numbers stand for dates."""
        return self.columns.date_inputs

    @cached_property
    def groups(self) -> list[tuple[str, Index]]:
        """The name of each column of the table, and the numbers of its inputs."""
        return self.columns.groups

    def input_order(self, X: Array, Y: Array) -> Index | None:
        """Return the inputs by the names of their columns, and those of a category by how many rows have a level and what their outputs are.

        What a fit draws at random for an input is then the same wherever its column stands in the table, and whatever a level is
        called. Columns of arrays have no names, and are in the order given; None if all inputs are.

        Parameters
        ----------
        X, Y : ndarray of shape (n_rows, n_inputs) and (n_rows, n_outputs)
            Encoded training rows.
        """
        groups = self.groups
        if self.feature_names is not None:
            groups = sorted(groups, key=lambda group: group[0])
        order: list[int] = []
        for name, inputs in groups:
            found = self.columns.category(name)
            n_levels = len(found[0].levels) if found is not None and found[0].one_hot else 0
            if n_levels:
                row, level = np.nonzero(X[:, inputs[:n_levels]])
                place = levels_by_content(level, Y[row, 0], n_levels)
                order += inputs[:n_levels][np.argsort(place)].tolist()
            order += inputs[n_levels:].tolist()
        return None if order == sorted(order) else np.array(order, dtype=np.int64)

    def to_rows(self, X: ArrayLike) -> Rows:
        """Check test inputs and convert them to rows of the model."""
        table, _ = read_inputs(self._validated, X, reset=False)
        return self._encoded(table)

    def _encoded(self, table: Any) -> Rows:
        """Convert an array or columns to rows of the model, and warn of what is not known."""
        if isinstance(table, np.ndarray) and self._is_plain:
            _check_not_infinite(table, self.feature_names)
            if not np.isnan(table).any():
                return Rows(table)
        columns = self._table_columns(table)
        rows = encode_inputs(self.columns, columns, first_row=0)
        if rows.unknown:
            remarks = unknown_levels(self.columns, columns)
            for remark in (*remarks, *self._unexpected_missing(columns)):
                warn_user(remark, topic=remark.split(":")[0])
        return rows

    def remarks_on(self, X: ArrayLike) -> list[str]:
        """Describe missing values and new levels of a table to predict from, for the user."""
        table, _ = read_inputs(self._validated, X, reset=False)
        return table_remarks(self.columns, self._table_columns(table))

    def to_numbers(self, X: ArrayLike) -> Array:
        """Return the inputs of rows, (n, n_features), with a typical value where one is not known."""
        return self.to_rows(X).X

    def training_rows(self, X: ArrayLike, y: ArrayLike, missing: str = "model") -> TableRows:
        """Check further training data; rows without a target are left out, and with ``missing="drop"`` those with missing values."""
        Y, _ = target_numbers(y)
        table, _ = read_inputs(self._validated, X, reset=False)
        check_lengths(table, Y)
        if Y.shape[1] != self.n_outputs:
            raise InputError(
                f"expected y with {self.n_outputs} outputs, as in fit, got {Y.shape[1]}"
            )
        kept = ~np.isnan(Y).any(axis=1)
        if missing == "drop":
            gaps = [values.missing for values in self._table_columns(table).values()]
            kept &= ~np.any(gaps, axis=0)
        if kept.all():
            return TableRows(self._encoded(table).X, Y, None, len(Y))
        rows, n = np.flatnonzero(kept), int((~kept).sum())
        warn_user(
            f"{n} row{'s' * (n > 1)} without a target or with missing values left out",
            topic="rows left out",
        )
        if not rows.size:
            raise InputError(
                "expected rows with a target, and with missing='drop' without missing values, got none"
            )
        return TableRows(self._encoded(_taken(table, rows)).X, Y[rows], rows, len(Y))

    def shaped(self, values: Array) -> Array:
        """Drop the last axis, that of the outputs, if y had one dimension."""
        return values[..., 0] if self.single_output else values

    def framed(self, values: Array, X: Any, output: str) -> Any:
        """Shape predictions as :meth:`DSMGPRegressor.set_output` demands.

        Parameters
        ----------
        values : ndarray of shape (n, n_outputs)
        X : the inputs as the user gave them, whose index and kind may be taken over
        output : one of :data:`dsmgp.data.frames.OUTPUTS`
        """
        kind = kind_of(X) if output == "input" else output
        shaped = self.shaped(values)
        return shaped if kind == "default" else framed(shaped, kind, X, self.output_names)

    def framed_quantiles(self, values: Array, levels: Array, X: Any, output: str) -> Any:
        """Shape quantiles as :meth:`framed` does: in a frame those of each output are side by side.

        Parameters
        ----------
        values : ndarray of shape (n_levels, n) or (n_levels, n, n_outputs)
        levels : ndarray of shape (n_levels,)
        X, output : see :meth:`framed`
        """
        last = np.moveaxis(values, 0, -1)
        kind = kind_of(X) if output == "input" else output
        if kind == "default":
            return last
        names = [f"{name}_q{100 * q:g}" for name in self.output_names for q in levels.tolist()]
        if len(set(names)) < len(names):
            raise InputError(f"expected distinct levels of quantiles, got {levels.tolist()}")
        return framed(last.reshape(len(last), -1), kind, X, names)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether inputs are the columns themselves, all of them."""
        kept = self.columns.columns
        are_numbers = all(column.kind == "number" and not column.indicator for column in kept)
        return are_numbers and len(kept) == self.n_columns

    def _table_columns(self, table: Any) -> dict[str, Values]:
        """Return the columns of X that became inputs."""
        columns = _as_columns(table, self.feature_names)
        used = {column.name: columns[column.name] for column in self.columns.columns}
        return as_in_training(self.columns.columns, used)

    def _unexpected_missing(self, columns: dict[str, Values]) -> list[str]:
        """Describe missing values of columns that had none in training."""
        counts = missing_counts(self.columns, columns)
        expected = {c.name for c in self.columns.columns if c.had_missing or None in c.levels}
        return self.columns.missing_remarks({k: n for k, n in counts.items() if k not in expected})

    @cached_property
    def _validated(self) -> Validated:
        validated = Validated()
        validated.n_features_in_ = self.n_columns
        if self.feature_names is not None:
            validated.feature_names_in_ = np.array(self.feature_names, dtype=object)
        return validated


def _leave_out(name: str) -> str:
    return f"drop the column {name!r} of X"


def _as_columns(table: Any, names: Sequence[str] | None) -> dict[str, Values]:
    """Return the columns of an array, or of a list of values, by name."""
    values = [Values.of_numbers(c) for c in table.T] if isinstance(table, np.ndarray) else table
    return dict(zip(input_names(names, len(values)), values, strict=True))


def _taken(table: Any, rows: Index) -> Any:
    """Return some rows of an array, or of a list of values."""
    return table[rows] if isinstance(table, np.ndarray) else [v.taken(rows) for v in table]


def _check_not_infinite(table: Array, names: Sequence[str] | None) -> None:
    missing = np.isnan(table)
    check_finite(np.where(missing, 0.0, table) if missing.any() else table, "X", names)


def _with_medians(schema: ColumnSchema, X: Array, weights: Array | None) -> ColumnSchema:
    """Return the schema of numbers that may be missing in later tables, where medians take their place."""
    pairs = zip(schema.columns, X.T, strict=True)
    columns = tuple(with_fill(column, x, weights=weights) for column, x in pairs)
    return replace(schema, columns=columns)


def _has_day_numbers(table: Array) -> bool:
    """Return whether a column of a frame holds dates such as 20201231."""
    return any(dates_of_numbers(Values.of_numbers(column)) is not None for column in table.T)


def _has_entries(categorical_features: Any) -> bool:
    return categorical_features is not None and not isinstance(categorical_features, str)


def _categorical(categorical_features: Any, names: Sequence[str]) -> set[str]:
    """Return the names of the columns that are declared as categories: by a mask, numbers or names."""
    if isinstance(categorical_features, str) and categorical_features == "from_dtype":
        return set()
    if categorical_features is None:
        return set()
    given = np.atleast_1d(np.asarray(categorical_features, dtype=object)).tolist()
    if given and all(isinstance(each, (bool, np.bool_)) for each in given):
        if len(given) != len(names):
            raise InputError(
                f"expected categorical_features with an entry for each of the {len(names)} columns of X, got {len(given)}"
            )
        return {name for name, wanted in zip(names, given, strict=True) if wanted}
    chosen = set()
    for each in given:
        if is_whole_number(each) and 0 <= each < len(names):
            chosen.add(names[each])
        elif isinstance(each, str) and each in names:
            chosen.add(each)
        else:
            raise InputError(
                f"expected categorical_features to be 'from_dtype', None, or names or numbers of columns of X, got {each!r}"
            )
    return chosen
