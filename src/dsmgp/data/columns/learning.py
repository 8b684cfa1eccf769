"""Learning how the columns of a training table become inputs: a :class:`~dsmgp.data.columns.schema.ColumnSchema`, and the training rows encoded.

Where several columns of a table cannot be used, one ``TableError`` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import QUANTILE_ROWS
from dsmgp._util.dates import MICROSECONDS_PER_DAY
from dsmgp._util.validation import check_choice
from dsmgp._util.weighted import weighted_quantiles
from dsmgp.data.columns.effects import RowEffects, bins_of, level_effects, normal_scores
from dsmgp.data.columns.encoding import (
    N_LISTED,
    as_in_training,
    check_finite,
    check_no_missing,
    check_targets,
    encode_column,
    level_codes,
    missing_counts,
    table_values,
    target_table,
)
from dsmgp.data.columns.folds import dealt_folds, levels_by_content, n_held_out
from dsmgp.data.columns.remarks import training_remarks
from dsmgp.data.columns.schema import Column, ColumnSchema
from dsmgp.data.columns.values import Values, dates_of_numbers, dates_of_texts
from dsmgp.data.rows import N_ALTERNATIVES
from dsmgp.data.table_error import TableError, check_columns

__all__ = [
    "CATEGORIES",
    "MISSING",
    "MOST_INDICATORS",
    "ColumnRules",
    "EncodedTable",
    "column_effects",
    "encode_table",
    "has_effects",
    "learn_columns",
    "with_effects",
    "with_fill",
]

#: What becomes of categories: indicators for few levels and effects for many, indicators for all, or an error.
CATEGORIES = ("auto", "onehot", "refuse")
#: What becomes of missing values: they are part of the model, their rows are left out, or they are an error.
MISSING = ("model", "drop", "error")
#: Former names of these.
FORMER = {"refuse": "error", "impute": "model"}
#: Categories with more levels have no indicators, and those with more than so many have effects.
MOST_INDICATORS, FEWEST_EFFECTS = 64, 8
# A text that is a different one in so large a share of the rows, of at least so many, names the rows.
IDENTIFIER_SHARE, IDENTIFIER_LEVELS = 0.9, 20


@dataclass(frozen=True)
class ColumnRules:
    """How columns are to be treated.

    Attributes
    ----------
    categories : "auto", "onehot", or "refuse"
    missing : "model", "drop", or "error"
    categorical : collection of str
        Columns whose numbers are levels of a category.
    first_row : int
        The number of the first row in errors.
    leave_out : callable
        Says how a column of some name is left out, for errors.
    """

    categories: str = "auto"
    missing: str = "model"
    categorical: Collection[str] = ()
    first_row: int = 1
    leave_out: Callable[[str], str] = lambda name: f"leave it out with --drop {name!r}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "missing", FORMER.get(self.missing, self.missing))
        check_choice("categories", self.categories, CATEGORIES)
        check_choice("missing", self.missing, MISSING)


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Training rows, and how they came out of a table.

    Attributes
    ----------
    schema : ColumnSchema
    X, Y : ndarray of shape (n_rows, n_inputs) and (n_rows, n_outputs)
    rows : ndarray of int, or None
        The rows of the table that are left; None if all are.
    remarks : tuple of str
        What was left out, encoded and filled in.
    effects : RowEffects or None
        How the effects among the inputs were learned; None if there are none.
    """

    schema: ColumnSchema
    X: Array
    Y: Array
    rows: Index | None
    remarks: tuple[str, ...]
    effects: RowEffects | None = None


def encode_table(
    table: Any,
    targets: Sequence[str],
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: str = "auto",
    missing: str = "model",
) -> EncodedTable:
    """Learn how the columns of a training table become inputs, and encode its rows.

    Parameters
    ----------
    table : Arrow table or frame
    targets : sequence of str
        Columns to predict.
    features, drop : sequence of str
        Input columns (all columns but the targets if empty), and columns to ignore.
    categories, missing : str
        See :class:`ColumnRules`.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"size": [1.0, 2.0], "colour": ["red", "blue"], "y": [3.0, 4.0]})
    >>> encoded = encode_table(table, ["y"])
    >>> encoded.schema.input_names
    ['size', 'colour=blue', 'colour=red']
    >>> encoded.X
    array([[1., 0., 1.],
           [2., 1., 0.]])
    """
    present = list(getattr(table, "column_names", None) or table.columns)
    check_columns(present, [*targets, *features, *drop])
    if not targets:
        raise TableError("expected at least one target column")
    targets = list(dict.fromkeys(targets))
    not_inputs = {*targets, *drop}
    names = [name for name in features or present if name not in not_inputs]
    if not names:
        raise TableError("no column is left to predict from; every one is a target or dropped")
    values = table_values(table, [*targets, *names])
    Y = target_table(values, targets)
    rules = ColumnRules(categories, missing)
    return learn_columns({name: values[name] for name in names}, Y, targets, rules)


def learn_columns(
    columns: Mapping[str, Values],
    Y: Array,
    targets: Sequence[str],
    rules: ColumnRules,
    weights: Array | None = None,
) -> EncodedTable:
    """Learn how columns become inputs, and encode the training rows, which may have weights above zero.

    Rows without a target are left out, and with ``missing="drop"`` those with any missing value.
    """
    remarks: list[str] = []
    rows = np.asarray(~np.isnan(Y).any(axis=1))
    if not rows.all():
        n = int((~rows).sum())
        remarks.append(f"{n} row{'s' * (n > 1)} without a target left out")
    if rules.missing == "drop":
        # A column without any value is left out; its rows are not.
        gaps = [values.missing for values in columns.values() if not values.all_missing]
        complete = ~np.any(gaps, axis=0)
        n = int((rows & ~complete).sum())
        if n:
            remarks.append(f"{n} row{'s' * (n > 1)} with missing values left out")
        rows &= complete
    kept = None if rows.all() else np.flatnonzero(rows)
    if kept is not None:
        if len(kept) < 2:
            raise TableError(
                f"{len(kept)} of {len(rows)} rows have a target"
                + (" and no missing values; use missing='model'" if rules.missing == "drop" else "")
            )
        Y, weights = Y[kept], None if weights is None else weights[kept]
        columns = {name: values.taken(kept) for name, values in columns.items()}
    check_targets(Y, targets, rules.first_row)

    learned: list[Column] = []
    problems: list[str] = []
    for name, values in columns.items():
        try:
            column, remark = _learn_column(values, name, rules, weights)
        except TableError as error:
            problems.append(str(error))
            continue
        if remark:
            remarks.append(remark)
        if column is not None:
            learned.append(column)
    if problems:
        raise TableError.of_columns(problems)
    if not learned:
        raise TableError("no column is left to predict from: " + "; ".join(remarks))
    columns = as_in_training(learned, columns)
    learned = _without_repeated_indicators(learned, columns)
    by_level: dict[str, Array] = {}
    effects = None
    if rules.categories == "auto":
        by_level, effects = column_effects(learned, columns, Y, n_held_out(len(Y)), weights)
    finished, parts = [], []
    for column in learned:
        if effects is not None and column.name in by_level:
            of_rows = effects.of_rows(column.name)
            column = with_effects(column, by_level[column.name])
            encoded = encode_column(columns[column.name], column, rules.first_row)
            encoded[:, -of_rows.shape[1] :] = of_rows
        else:
            encoded = encode_column(columns[column.name], column, rules.first_row)
        finished.append(column)
        parts.append(encoded)
    schema = ColumnSchema(tuple(finished), tuple(targets))
    X = np.ascontiguousarray(np.column_stack(parts))
    remarks += schema.encoding_remarks()
    remarks += schema.missing_remarks(missing_counts(schema, columns))
    used = {column.name: columns[column.name] for column in finished}
    remarks += training_remarks(used, Y, targets, rules.leave_out)
    return EncodedTable(schema, X, Y, kept, tuple(remarks), effects)


def with_effects(column: Column, effects: Array) -> Column:
    """Return a category with the effects of its levels, (n_levels, n_outputs)."""
    return replace(column, effects=tuple(map(tuple, effects.tolist())))


def column_effects(
    learned: Sequence[Column],
    columns: Mapping[str, Values],
    Y: Array,
    held_out: int = 0,
    weights: Array | None = None,
) -> tuple[dict[str, Array], RowEffects | None]:
    """Return the effects of the levels of categories with many of them, by column, and those of the training rows; None if there are none.

    They depend on the order of neither rows nor columns, and on no names of levels. ``held_out`` is the number of folds that
    :func:`~dsmgp.data.columns.effects.level_effects` holds out.
    """
    if not any(map(has_effects, learned)):
        return {}, None
    in_order = sorted(learned, key=lambda column: (not has_effects(column), column.name))
    wanted = [column for column in in_order if has_effects(column)]
    scores = normal_scores(Y, weights)
    inputs: list[Array] = []  # by which rows are told apart
    codes: list[Index] = []  # in the additive model
    places: dict[str, Index] = {}  # of levels among the codes
    levels: dict[str, Index] = {}  # of rows, by content alone
    for column in in_order:
        if column.kind == "category":
            of_rows = level_codes(columns[column.name], column)
            place = levels_by_content(of_rows, scores[:, 0], len(column.levels))
            places[column.name] = place
            codes.append(place[of_rows])
            shared = levels_by_content(of_rows, scores[:, 0], len(column.levels), share=True)
            inputs.append(shared[of_rows].astype(np.float64))
            levels[column.name] = shared[of_rows]
        else:
            encoded = encode_column(columns[column.name], column, 0)
            codes.append(bins_of(encoded[:, 0], weights))
            inputs += [*encoded.T]
    finest = max(wanted, key=lambda column: len(column.levels)).name
    folds = dealt_folds(np.column_stack(inputs), scores[:, 0], levels=levels[finest])
    n_wanted = len(wanted)
    n_levels = [len(column.levels) for column in wanted]
    found = level_effects(
        codes[:n_wanted], codes[n_wanted:], scores, folds, n_levels, held_out, weights
    )
    names = [column.name for column in wanted]

    def by_name(tables: Sequence[Array]) -> dict[str, Array]:
        pairs = zip(names, tables, strict=True)
        return {name: table[..., places[name], :] for name, table in pairs}

    of_levels = {column.name: level_codes(columns[column.name], column) for column in wanted}
    rows = RowEffects(folds, of_levels, by_name(found.by_fold), by_name(found.by_pair))
    return by_name(found.effects), rows


def has_effects(column: Column) -> bool:
    """Return whether a column has so many levels that their effects are inputs."""
    return column.kind == "category" and len(column.levels) > FEWEST_EFFECTS


def _learn_column(
    values: Values, name: str, rules: ColumnRules, weights: Array | None
) -> tuple[Column | None, str | None]:
    """Return what a column becomes, and a remark; no column if it is left out."""
    if name in rules.categorical:
        values = values.as_category()
    elif values.kind == "category":
        values = dates_of_texts(values) or values
    elif values.kind == "number":
        values = dates_of_numbers(values) or values
    if values.all_missing:
        return None, f"column {name!r} is empty and left out"
    n_missing = int(values.missing.sum())
    if n_missing and rules.missing == "error":
        remedy = "remove such rows, or use missing='model' (--missing model)"
        check_no_missing(values, name, remedy, rules.first_row)
    if values.kind == "category":
        return _learn_category(values, name, rules)
    if not n_missing and (values.data == values.data[0]).all():
        return None, f"column {name!r} is constant and left out"
    if values.kind == "date":
        dates = values.data[~values.missing]
        origin = int(dates.min().astype(np.int64))
        days = (dates.astype(np.int64) - origin) / MICROSECONDS_PER_DAY
        column = Column(name, "date", origin=origin)
        present = days
    else:
        check_finite(values.data, name, rules.first_row)
        column = Column(name, "number")
        present = values.data[~values.missing]
    if rules.missing == "model":
        weights = None if weights is None else weights[~values.missing]
        column = with_fill(column, present, n_missing > 0, weights)
    return column, None


def with_fill(
    column: Column, present: Array, had_missing: bool = False, weights: Array | None = None
) -> Column:
    """Return a column of numbers or dates whose missing values are replaced by the median of those that are there."""
    if len(present) > QUANTILE_ROWS:
        some = slice(None, None, len(present) // QUANTILE_ROWS + 1)
        present, weights = present[some], None if weights is None else weights[some]
    levels = (np.arange(N_ALTERNATIVES) + 0.5) / N_ALTERNATIVES
    fill, *quantiles = weighted_quantiles(present, np.append(0.5, levels), weights).tolist()
    return replace(
        column,
        fill=fill,
        had_missing=had_missing,
        indicator=had_missing,
        quantiles=() if had_missing else tuple(quantiles),
    )


def _without_repeated_indicators(
    learned: Sequence[Column], columns: Mapping[str, Values]
) -> list[Column]:
    """Drop the indicators of columns that are missing in the same rows as one before them."""
    seen: set[bytes] = set()
    kept = []
    for column in learned:
        if column.indicator:
            pattern = np.packbits(columns[column.name].missing).tobytes()
            column = replace(column, indicator=pattern not in seen)
            seen.add(pattern)
        kept.append(column)
    return kept


def _learn_category(
    values: Values, name: str, rules: ColumnRules
) -> tuple[Column | None, str | None]:
    if rules.categories == "refuse":
        raise TableError(
            f"column {name!r} holds text{values.example(rules.first_row)}; use categories='auto', or {rules.leave_out(name)}"
        )
    given, values = values, values.respelt() if name not in rules.categorical else values
    is_respelt = len(values.levels) < len(given.levels)
    n_levels, n_present = len(values.levels), int((~values.missing).sum())
    if n_levels == 1 and n_present == len(values):
        return None, f"column {name!r} is constant and left out"
    if rules.categories == "auto" and n_levels > max(
        IDENTIFIER_LEVELS, IDENTIFIER_SHARE * n_present
    ):
        return None, f"column {name!r} has a different text in nearly every row and is left out"
    if rules.categories == "onehot" and n_levels > MOST_INDICATORS:
        raise TableError(
            f"column {name!r} has {n_levels} different texts{values.example(rules.first_row)}, more than the {MOST_INDICATORS} "
            f"that are made into inputs; use categories='auto', or {rules.leave_out(name)}"
        )
    levels: tuple[str | None, ...] = values.levels
    if values.missing.any():
        levels = (*levels, None)
    one_hot = rules.categories == "onehot" or n_levels <= MOST_INDICATORS
    required = rules.missing != "model"
    remark = None
    if is_respelt:
        others = [repr(level) for level in given.levels if level not in values.levels]
        listed = ", ".join(others[:N_LISTED]) + ", ..." * (len(others) > N_LISTED)
        remark = (
            f"column {name!r}: levels that differ only in case and blanks are taken as one (such as {listed}); declare the column as "
            "a category in categorical_features, or rename levels, if they are different"
        )
    return (
        Column(name, "category", levels, one_hot=one_hot, required=required, respelt=is_respelt),
        remark,
    )
