"""How the columns of a table become numbers: learned from the training table, kept in the model file, and used again.

Numbers stay, dates become days, flags become 0 and 1, and each of a category's levels becomes a column of zeros and
ones. What is missing is refused, or filled in where that was asked for. Needs ``dsmgp[cli]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dsmgp.predicted import output_names
from dsmgp.tables import TableError
from dsmgp.timeline import day_text
from dsmgp.validation import LARGEST

__all__ = ["Column", "Recipe"]

Array = NDArray[np.float64]
# A category with more levels is likely to be a name or a number of each row.
MAX_LEVELS = 50
DAY = 86_400.0
# Dates that are not read as such, as nothing says which of two numbers is the day.
OTHER_DATE = r"^[0-9]{1,2}[./-][0-9]{1,2}[./-](19|20)[0-9]{2}([ T]|$)"
WORDS = {"number": "numbers", "date": "dates", "category": "text"}


@dataclass(frozen=True)
class Column:
    """A column of the table: ``kind`` is number, date or category; ``fill`` stands in where a value is missing."""

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    fill: float | str | None = None

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that it becomes."""
        return [f"{self.name}={level}" for level in self.levels] or [self.name]

    @property
    def filler(self) -> str:
        """What stands in for a missing value, in words."""
        if self.kind == "category":
            return f"the most frequent level of the training rows, {self.fill!r}"
        if self.kind == "date":
            return f"the median of the training rows, {day_text(float(self.fill or 0.0))}"
        return f"the median of the training rows, {self.fill:g}"


@dataclass
class Recipe:
    """Columns that are inputs and columns that are outputs.

    Examples
    --------
    >>> table = pa.table({"size": [1.0, 2.0], "colour": ["red", "blue"], "y": [3.0, 4.0]})
    >>> recipe = Recipe.learn(table, ["y"])
    >>> recipe.input_names
    ['size', 'colour=blue', 'colour=red']
    >>> recipe.inputs(table)
    array([[1., 0., 1.],
           [2., 1., 0.]])
    """

    columns: list[Column]
    targets: list[str]
    #: What was done beyond what was asked for, in words, while the recipe was learned.
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def learn(
        cls,
        table: pa.Table,
        targets: Sequence[str],
        features: Sequence[str] = (),
        drop: Sequence[str] = (),
        categories: str = "onehot",
        missing: str = "refuse",
    ) -> Recipe:
        """From the training table; every column that is no target is an input unless ``features`` names them."""
        _check_there(table, [*targets, *features, *drop])
        if not targets:
            raise TableError("expected at least one target column")
        names = list(features) or [c for c in table.column_names if c not in {*targets, *drop}]
        names = [name for name in names if name not in {*targets, *drop}]
        if not names:
            raise TableError("no column is left to predict from; every one is a target or dropped")
        recipe = cls([], list(dict.fromkeys(targets)))
        for name in names:
            recipe.columns.append(_column(table[name], name, categories, missing))
        recipe.outputs(table)  # refused now rather than later
        recipe.remarks = [*recipe.described(), *recipe.told(recipe.missing(table))]
        return recipe

    @property
    def input_names(self) -> list[str]:
        return [name for column in self.columns for name in column.inputs]

    @property
    def categories(self) -> list[str]:
        """Columns of text; a file without types is to be read with these as they are written."""
        return [column.name for column in self.columns if column.kind == "category"]

    def inputs(self, table: pa.Table, before: int = 0) -> Array:
        """The inputs of a table, (n_rows, n_inputs); errors count its rows on from so many ``before``."""
        _check_there(table, [column.name for column in self.columns])
        parts = [_numbers(table[column.name], column, before) for column in self.columns]
        return np.ascontiguousarray(np.column_stack(parts))

    def described(self) -> list[str]:
        """What columns become that are no numbers, in words."""
        words = {
            "category": "{} levels, an input for each",
            "date": "dates, counted in days since 1970",
        }
        return [
            f"column {column.name!r}: {words[column.kind].format(len(column.levels))}"
            for column in self.columns
            if column.kind in words
        ]

    def missing(self, table: pa.Table) -> dict[str, int]:
        """How many values of each column are filled in, where any are."""
        _check_there(table, [column.name for column in self.columns])
        counts = {
            column.name: int(_is_missing(table[column.name]).sum())
            for column in self.columns
            if column.fill is not None
        }
        return {name: count for name, count in counts.items() if count}

    def told(self, missing: Mapping[str, int]) -> list[str]:
        """What is filled in, in words; ``missing`` has how many values of each column are."""
        return [
            f"column {column.name!r}: {missing[column.name]} missing, filled in with {column.filler}"
            for column in self.columns
            if missing.get(column.name)
        ]

    def outputs(self, table: pa.Table, before: int = 0) -> Array:
        """The targets of a table, (n_rows, n_targets); errors count its rows on from so many ``before``."""
        _check_there(table, self.targets)
        found = []
        for name in self.targets:
            kind = _kind(table[name], name)
            if kind != "number":
                raise TableError(
                    f"the target {name!r} holds {WORDS[kind]}, expected numbers"
                    + _example(table[name])
                )
            remedy = "remove such rows: a target is never filled in"
            _refuse_missing(table[name], name, remedy, before)
            found.append(_floats(table[name]))
            _refuse_infinite(found[-1], name, before)
        return np.column_stack(found)

    def as_dict(self) -> dict[str, Any]:
        """For the header of a model file."""
        columns = [{**asdict(c), "levels": list(c.levels)} for c in self.columns]
        return {"columns": columns, "targets": self.targets}

    @classmethod
    def of(cls, model: Any) -> Recipe:
        """That of a fitted model; one that was fitted to arrays or frames takes columns by its names."""
        if hasattr(model, "_table"):
            return cls.from_dict(model._table)
        names = getattr(model, "feature_names_in_", [f"x{k}" for k in range(model.n_features_in_)])
        kinds = ["date" if k in model._dates else "number" for k in range(len(names))]
        columns = [Column(str(name), kind) for name, kind in zip(names, kinds, strict=True)]
        n_outputs = model._rows[1].shape[1]
        return cls(columns, output_names(model._target_names, model._squeeze, n_outputs))

    @classmethod
    def from_dict(cls, written: Any) -> Recipe:
        try:
            columns = [
                Column(str(c["name"]), str(c["kind"]), tuple(map(str, c["levels"])), c["fill"])
                for c in written["columns"]
            ]
            return cls(columns, [str(name) for name in written["targets"]])
        except (KeyError, TypeError) as error:
            raise TableError(f"the model does not say how it reads a table: {error}") from error


def _column(values: pa.ChunkedArray, name: str, categories: str, missing: str) -> Column:
    kind = _kind(values, name)
    levels: tuple[str, ...] = ()
    if kind == "category":
        if categories == "refuse":
            raise TableError(
                f"column {name!r} holds text{_example(values)}; use --categories onehot, or leave it "
                f"out with --drop {name!r}"
            )
        found = pc.unique(_text(values)).drop_null()
        if len(found) and pc.all(pc.match_substring_regex(found, OTHER_DATE)).as_py():
            raise TableError(
                f"column {name!r} holds dates that are not understood{_example(values)}; write them as 2020-12-31, or leave "
                f"it out with --drop {name!r}"
            )
        levels = tuple(sorted(found.to_pylist()))
        if len(levels) > MAX_LEVELS:
            raise TableError(
                f"column {name!r} has {len(levels)} different texts{_example(values)}, more than the "
                f"{MAX_LEVELS} that are made into inputs; leave it out with --drop {name!r}"
            )
        if not levels:
            raise TableError(f"column {name!r} is empty; leave it out with --drop {name!r}")
    if missing == "refuse":
        _refuse_missing(values, name, "remove such rows, or fill them in with --missing impute")
        return Column(name, kind, levels)
    return Column(name, kind, levels, _fill(values, name, kind))


def _fill(values: pa.ChunkedArray, name: str, kind: str) -> float | str:
    n_missing = int(_is_missing(values).sum())
    if n_missing == len(values):
        raise TableError(f"column {name!r} is empty; leave it out with --drop {name!r}")
    if kind == "category":
        counts = pc.value_counts(_text(values).drop_null()).to_pylist()
        return str(max(counts, key=lambda c: (c["counts"], c["values"]))["values"])
    return float(np.nanmedian(_floats(values)))


def _check_there(table: pa.Table, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.column_names:
            have = ", ".join(map(repr, table.column_names[:12]))
            more = ", ..." if table.num_columns > 12 else ""
            raise TableError(f"there is no column {name!r}; the table has {have}{more}")


def _kind(values: pa.ChunkedArray, name: str) -> str:
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


def _numbers(values: pa.ChunkedArray, column: Column, before: int) -> Array:
    """A column of a table as the recipe says, (n_rows, 1 or n_levels)."""
    kind = _kind(values, column.name)
    if pa.types.is_null(values.type):
        kind = column.kind
    if column.kind == "category" and kind == "number":
        kind = "category"  # levels that look like numbers, where no other came with them
    if kind != column.kind:
        raise TableError(
            f"column {column.name!r} holds {WORDS[kind]}{_example(values, before)}, and held {WORDS[column.kind]} when the "
            "model was fitted"
        )
    if column.fill is None:
        remedy = "remove such rows, or fit the model with --missing impute"
        _refuse_missing(values, column.name, remedy, before)
    if column.kind == "category":
        found = _text(values).to_pylist()
        fill = column.fill
        text = np.array([fill if entry is None else entry for entry in found], dtype=object)
        known = np.isin(text.astype(str), np.array(column.levels, dtype=str))
        if not known.all():
            row = int(np.flatnonzero(~known)[0])
            raise TableError(
                f"column {column.name!r} has {text[row]!r} in row {before + row + 1}, a level that was not there when the "
                "model was fitted; remove such rows, or fit again"
            )
        return np.stack([text == level for level in column.levels], axis=1).astype(np.float64)
    numbers = _floats(values)
    if column.fill is not None:
        numbers = np.where(np.isnan(numbers), float(column.fill), numbers)
    _refuse_infinite(numbers, column.name, before)
    return numbers[:, None]


def _text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.string())


def _floats(values: pa.ChunkedArray) -> Array:
    """Numbers, with NaN where one is missing; dates in days."""
    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        # Nanoseconds are cut off, and whole numbers beyond 2**53 rounded: floats have no room for them.
        steps = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64(), safe=False)
        return steps.to_numpy().astype(np.float64) / (1e6 * DAY)
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    return values.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)


def _is_missing(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.is_null(values, nan_is_null=True).to_numpy(), dtype=bool)


def _refuse_missing(values: pa.ChunkedArray, name: str, remedy: str, before: int = 0) -> None:
    missing = np.flatnonzero(_is_missing(values))
    if missing.size:
        others = missing.size - 1
        more = f", and in {others} other row{'s' * (others > 1)}" if others else ""
        row = before + missing[0] + 1
        raise TableError(f"column {name!r} has no value in row {row}{more}; {remedy}")


def _refuse_infinite(numbers: Array, name: str, before: int) -> None:
    """Here, where rows are counted as the user counts them; the model counts from 0."""
    bad = np.flatnonzero(~(np.abs(numbers) < LARGEST))
    if not bad.size:
        return
    value, row = numbers[bad[0]], before + bad[0] + 1
    remedy = "remove such rows" if np.isinf(value) else "rescale it, or remove such rows"
    raise TableError(f"column {name!r} has {value:g} in row {row}; {remedy}")


def _example(values: pa.ChunkedArray, before: int = 0) -> str:
    """A value that shows what is meant: one that is no number, where there are others."""
    missing = _is_missing(values)
    there = [(row, str(v)) for row, v in enumerate(values.to_pylist()) if not missing[row]]
    if not there:
        return ""
    row, found = next(((row, text) for row, text in there if not _is_number(text)), there[0])
    return f" ({found!r} in row {before + row + 1})"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
