"""How the columns of a table become the inputs of a model: numbers stay, dates become days, categories become indicators or effects.

A :class:`ColumnSchema` is a plain description that model files keep. :mod:`dsmgp.data.columns.learning` learns one from a training table,
:mod:`dsmgp.data.columns.encoding` applies it to other tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from dsmgp._util.archive import ModelFileError
from dsmgp._util.arrays import Array, Index
from dsmgp._util.dates import Dates, format_day
from dsmgp._util.errors import InputError
from dsmgp.data.columns.values import KINDS
from dsmgp.data.rows import N_ALTERNATIVES

__all__ = ["Column", "ColumnSchema", "input_names", "level_name", "output_names"]


def input_names(names: Sequence[str] | None, n_inputs: int) -> list[str]:
    """Return the names of the inputs; x0, x1, ... if they have none."""
    return list(names or (f"x{k}" for k in range(n_inputs)))


def output_names(names: Sequence[str] | None, n_outputs: int, single_output: bool) -> list[str]:
    """Return the names of the outputs; y, or y0, y1, ..., if they have none."""
    return list(names or (["y"] if single_output else [f"y{k}" for k in range(n_outputs)]))


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    name : str
    kind : "number", "date", or "category"
        Numbers (flags are 0 and 1), dates in days, or levels of a category.
    levels : tuple of str or None
        The levels of a category, in the order of their inputs; None is the level of missing values.
    fill : float, str, or None
        The value that replaces missing ones; None if missing values are an error, or a level like others.
    had_missing : bool
        Whether numbers or dates were missing in training rows.
    indicator : bool
        Whether an input says that the number or date is missing; one is enough for columns that are missing together.
    origin : int
        Of dates, the moment from which days are counted, in microseconds since 1970.
    one_hot : bool
        Whether each level has an input of its own, 0 or 1.
    effects : tuple of tuple of float
        By level and output, see :mod:`dsmgp.data.columns.effects`; empty if they are no inputs.
    fold_effects : tuple of tuple of tuple of float
        By fold, level and output: the same without the rows of each fold, as training rows have them. Rows to predict then get those of the
        fold that is nearest to ``effects``; empty if they get ``effects``.
    quantiles : tuple of float
        Of the training values, in the middle of parts of equal probability: what a missing number may be if none was missing in
        training.
    required : bool
        Whether a missing level of a category is an error.
    respelt : bool
        Whether levels that differ only in case and blanks are one.
    """

    name: str
    kind: str
    levels: tuple[str | None, ...] = ()
    fill: float | str | None = None
    had_missing: bool = False
    indicator: bool = False
    origin: int = 0
    one_hot: bool = True
    effects: tuple[tuple[float, ...], ...] = ()
    fold_effects: tuple[tuple[tuple[float, ...], ...], ...] = ()
    quantiles: tuple[float, ...] = ()
    required: bool = False
    respelt: bool = False

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs that the column becomes."""
        if self.kind != "category":
            return [self.name, f"{self.name} missing"] if self.indicator else [self.name]
        names = [f"{self.name}={level_name(level)}" for level in self.levels if self.one_hot]
        several = len(self.effects[0]) > 1 if self.effects else False
        effects = range(len(self.effects[0])) if self.effects else ()
        return names + [f"{self.name} effect{f' {k}' if several else ''}" for k in effects]

    @property
    def level_inputs(self) -> Array:
        """The inputs of each level, and in the last row the average of them, for a level that is not known, (n_levels + 1, n_inputs)."""
        parts = [np.eye(len(self.levels))] if self.one_hot else []
        if self.effects:
            parts.append(np.array(self.effects))
        inputs = np.hstack(parts)
        return np.vstack([inputs, inputs.mean(axis=0)])

    @property
    def alternatives(self) -> Array:
        """Inputs that are equally likely where a value is not known, (N_ALTERNATIVES, n_inputs): those of some levels, or quantiles."""
        if self.kind != "category":
            values = np.array(self.quantiles or [self.fill] * N_ALTERNATIVES)
            return values[:, None]
        inputs = self.level_inputs[:-1]
        places = (np.arange(N_ALTERNATIVES) + 0.5) / N_ALTERNATIVES * len(inputs)
        order = np.argsort(inputs[:, -1], kind="stable")  # by effect, where there are effects
        return np.asarray(inputs[order[places.astype(np.int64)]])

    @property
    def dates(self) -> Dates:
        """How the column's dates become days."""
        return Dates(np.datetime64(self.origin, "us"))

    @property
    def fill_text(self) -> str:
        """The value that replaces missing ones, in words."""
        if self.kind == "category":
            return f"the most frequent level of the training rows, {self.fill!r}"
        if self.kind == "date":
            day = format_day(float(self.fill or 0.0), self.dates)
            return f"the median of the training rows, {day}"
        return f"the median of the training rows, {self.fill:g}"


def level_name(level: str | None) -> str:
    """Return a level as users read it."""
    return "missing" if level is None else level


@dataclass(frozen=True)
class ColumnSchema:
    """The input columns of a table, and the names of its target columns.

    Attributes
    ----------
    columns : tuple of Column
    targets : tuple of str
    decimal, day_first, missing_texts
        How the text file of the training table was to be read, where that was said: the decimal sign, whether the day comes first,
        and texts that stand for missing values. Files to predict from are read the same way.

    Examples
    --------
    >>> size, colour = Column("size", "number"), Column("colour", "category", ("blue", "red"))
    >>> schema = ColumnSchema((size, colour), ("price",))
    >>> schema.input_names
    ['size', 'colour=blue', 'colour=red']
    >>> [(name, inputs.tolist()) for name, inputs in schema.groups]
    [('size', [0]), ('colour', [1, 2])]
    >>> ColumnSchema.from_dict(schema.to_dict()) == schema
    True
    """

    columns: tuple[Column, ...]
    targets: tuple[str, ...]
    decimal: str | None = None
    day_first: bool | None = None
    missing_texts: tuple[str, ...] = ()

    @classmethod
    def of_numbers(cls, names: Sequence[str], targets: Sequence[str]) -> ColumnSchema:
        """Return the schema of columns that are all numbers, none of them missing."""
        return cls(tuple(Column(name, "number") for name in names), tuple(targets))

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return [name for column in self.columns for name in column.input_names]

    @property
    def groups(self) -> list[tuple[str, Index]]:
        """The name of each column, and the numbers of its inputs."""
        found, n_before = [], 0
        for column in self.columns:
            n_inputs = len(column.input_names)
            found.append((column.name, np.arange(n_before, n_before + n_inputs)))
            n_before += n_inputs
        return found

    def with_fold_effects(self, by_fold: Mapping[str, Array]) -> ColumnSchema:
        """Return the schema of a table whose new rows get effects without a fold, (N_FOLDS, n_levels, n_outputs) by column."""
        return replace(
            self,
            columns=tuple(
                replace(column, fold_effects=_nested(by_fold[column.name]))
                if column.name in by_fold
                else column
                for column in self.columns
            ),
        )

    @property
    def effect_inputs(self) -> dict[str, Index]:
        """By column, the numbers of the inputs that are effects of levels."""
        return {
            column.name: inputs[-len(column.effects[0]) :]
            for column, (_, inputs) in zip(self.columns, self.groups, strict=True)
            if column.effects
        }

    @property
    def input_ties(self) -> Index | None:
        """A number for each input, equal for those of the levels of one category; None if no inputs belong together."""
        ties = np.arange(len(self.input_names))
        for column, (_, inputs) in zip(self.columns, self.groups, strict=True):
            if column.kind == "category" and column.one_hot:
                ties[inputs[: len(column.levels)]] = inputs[0]
        return None if len(np.unique(ties)) == len(ties) else ties

    @property
    def indicator_inputs(self) -> Index | None:
        """Numbers of the inputs that are one where a value is missing; None if there are none."""
        found = []
        for column, (_, inputs) in zip(self.columns, self.groups, strict=True):
            if column.indicator:
                found.append(inputs[-1])
            elif column.kind == "category" and column.one_hot and None in column.levels:
                found.append(inputs[column.levels.index(None)])
        return np.array(found, dtype=np.int64) if found else None

    @property
    def direct_inputs(self) -> Index:
        """Numbers of the inputs that depend on their row alone: effects of levels differ between training and other rows."""
        effects = list(self.effect_inputs.values())
        every = np.arange(len(self.input_names))
        return np.setdiff1d(every, np.concatenate(effects)) if effects else every

    @property
    def measured_inputs(self) -> Index:
        """Numbers of the inputs that are numbers or dates of the table, which have a range."""
        pairs = zip(self.columns, self.groups, strict=True)
        found = [inputs[0] for column, (_, inputs) in pairs if column.kind != "category"]
        return np.array(found, dtype=np.int64)

    @property
    def indirect_columns(self) -> list[str]:
        """Names of the columns without an input that depends on its row alone: those of which the effects are all there is."""
        return [column.name for column in self.columns if column.effects and not column.one_hot]

    @property
    def categorical(self) -> list[str]:
        """Names of the categories; files without types must be read with these as text."""
        return [column.name for column in self.columns if column.kind == "category"]

    @property
    def date_inputs(self) -> dict[int, Dates]:
        """Numbers of the inputs that are dates."""
        pairs = zip(self.columns, self.groups, strict=True)
        return {
            int(inputs[0]): column.dates for column, (_, inputs) in pairs if column.kind == "date"
        }

    def category(self, name: Any) -> tuple[Column, Index] | None:
        """Return a category and the numbers of its inputs; None if no category has this name."""
        for column, (_, inputs) in zip(self.columns, self.groups, strict=True):
            if column.name == name and column.kind == "category":
                return column, inputs
        return None

    def encoding_remarks(self) -> list[str]:
        """Describe the conversion of columns that are not numbers, for the user."""
        remarks = []
        for column in self.columns:
            if column.kind == "category":
                how = ["one-hot encoded"] * column.one_hot
                how += ["encoded by their effects on the target"] * bool(column.effects)
                remarks.append(
                    f"column {column.name!r}: {len(column.levels)} levels, {' and '.join(how)}"
                )
            elif column.kind == "date":
                first = format_day(0.0, column.dates)
                remarks.append(f"column {column.name!r}: dates, as days since {first}")
        return remarks

    def missing_remarks(self, missing: Mapping[str, int]) -> list[str]:
        """Describe how missing values are treated, for the user; ``missing`` has their number by column."""
        remarks = []
        for column in self.columns:
            n = missing.get(column.name)
            if not n:
                continue
            if column.fill is None:
                how = (
                    "treated as a level of its own"
                    if None in column.levels
                    else "treated as a new level"
                )
            else:
                how = f"filled with {column.fill_text}"
                how += ", and marked by an indicator" * column.had_missing
                # Training rows had none: see dsmgp.data.unknown_inputs.
                how += ", and predictions average over the values it may have" * bool(
                    column.quantiles
                )
            remarks.append(f"column {column.name!r}: {n} missing value{'s' * (n > 1)}, {how}")
        return remarks

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the header of a model file."""
        columns = []
        for column in self.columns:
            stored = asdict(column)
            kept = {f.name: stored[f.name] for f in fields(column) if stored[f.name] != f.default}
            columns.append(
                kept
                | {
                    "levels": list(column.levels),
                    "effects": [list(row) for row in column.effects],
                    "fold_effects": [[list(row) for row in fold] for fold in column.fold_effects],
                    "quantiles": list(column.quantiles),
                }
            )
        reading = {
            "decimal": self.decimal,
            "day_first": self.day_first,
            "missing_texts": list(self.missing_texts),
        }
        return {
            "columns": columns,
            "targets": list(self.targets),
            **{name: value for name, value in reading.items() if value not in (None, [])},
        }

    @classmethod
    def from_dict(cls, stored: Any) -> ColumnSchema:
        """Return the schema that :meth:`to_dict` has stored."""
        try:
            columns = tuple(_read_column(entries) for entries in stored["columns"])
            targets = tuple(str(name) for name in stored["targets"])
            decimal, day_first = stored.get("decimal"), stored.get("day_first")
            if decimal not in (None, ".", ",") or day_first not in (None, True, False):
                raise InputError("it has no valid settings for reading numbers or dates")
            texts = tuple(str(text) for text in stored.get("missing_texts", ()))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"the model file has an invalid description of its table: {error!r}"
            ) from error
        return cls(columns, targets, decimal, day_first, texts)


def _read_column(stored: dict[str, Any]) -> Column:
    known = {field.name: field for field in fields(Column)}
    given = {name: value for name, value in stored.items() if name in known}
    missing = [n for n, f in known.items() if f.default is MISSING and n not in given]
    if missing:
        raise KeyError(missing[0])
    levels = tuple(None if level is None else str(level) for level in given.get("levels", ()))
    effects = tuple(tuple(float(e) for e in row) for row in given.get("effects", ()))
    fold_effects = tuple(
        tuple(tuple(float(e) for e in row) for row in fold)
        for fold in given.get("fold_effects", ())
    )
    quantiles = tuple(float(q) for q in given.get("quantiles", ()))
    read = {"levels": levels, "effects": effects, "fold_effects": fold_effects}
    column = Column(**(given | read | {"quantiles": quantiles}))
    if column.kind not in KINDS:
        raise InputError(f"column {column.name!r} is of kind {column.kind!r}")
    if not isinstance(column.origin, int) or not isinstance(column.name, str):
        raise InputError(f"column {column.name!r} has an invalid name or origin")
    is_category = column.kind == "category"
    if is_category and not (levels and (column.one_hot or effects)):
        raise InputError(f"column {column.name!r} has no levels")
    widths = {len(row) for row in effects}
    finite = all(math.isfinite(e) for row in effects for e in row)
    if effects and not (len(effects) == len(levels) and len(widths) == 1 and finite):
        raise InputError(f"column {column.name!r} has invalid effects")
    shapes = {(len(fold), *sorted({len(row) for row in fold})) for fold in fold_effects}
    finite = all(math.isfinite(e) for fold in fold_effects for row in fold for e in row)
    if fold_effects and not (shapes == {(len(effects), *widths)} and finite):
        raise InputError(f"column {column.name!r} has invalid effects of folds")
    if quantiles and not (len(quantiles) == N_ALTERNATIVES and all(map(math.isfinite, quantiles))):
        raise InputError(f"column {column.name!r} has invalid quantiles")
    valid_fill = isinstance(column.fill, str) if is_category else _is_number(column.fill)
    if column.fill is not None and not valid_fill:
        raise InputError(f"column {column.name!r} is filled in with {column.fill!r}")
    return column


def _nested(table: Array) -> Any:
    """Return an array as tuples of tuples."""
    return tuple(map(_nested, table)) if table.ndim > 1 else tuple(table.tolist())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
