"""How the columns of a table become the inputs of a model: numbers stay, dates become days, categories become indicators.

A :class:`ColumnSchema` is a plain description that model files keep. :mod:`dsmgp.data.encoding` learns one from a training table
and applies it to other tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dsmgp._util.archive import ModelFileError
from dsmgp._util.dates import EPOCH, Dates, format_day

__all__ = ["KINDS", "Column", "ColumnSchema", "input_names", "output_names"]

#: Kinds of columns, and the word for what they hold.
KINDS = {"number": "numbers", "date": "dates", "category": "text"}


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
    kind : {"number", "date", "category"}
        Numbers (flags are 0 and 1), dates in days since 1970, or text with a 0/1 input for each level.
    levels : tuple of str
        The levels of a category, in the order of their inputs.
    fill : float, str or None
        The value that replaces missing ones; None if missing values are an error.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    fill: float | str | None = None

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs that the column becomes."""
        return [f"{self.name}={level}" for level in self.levels] or [self.name]

    @property
    def fill_text(self) -> str:
        """The value that replaces missing ones, in words."""
        if self.kind == "category":
            return f"the most frequent level of the training rows, {self.fill!r}"
        if self.kind == "date":
            return f"the median of the training rows, {format_day(float(self.fill or 0.0))}"
        return f"the median of the training rows, {self.fill:g}"


@dataclass(frozen=True)
class ColumnSchema:
    """The input columns of a table, and the names of its target columns.

    Examples
    --------
    >>> size, colour = Column("size", "number"), Column("colour", "category", ("blue", "red"))
    >>> schema = ColumnSchema((size, colour), ("price",))
    >>> schema.input_names
    ['size', 'colour=blue', 'colour=red']
    >>> schema.category_inputs
    {'colour': {'blue': 1, 'red': 2}}
    >>> ColumnSchema.from_dict(schema.to_dict()) == schema
    True
    """

    columns: tuple[Column, ...]
    targets: tuple[str, ...]

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return [name for column in self.columns for name in column.input_names]

    @property
    def categorical(self) -> list[str]:
        """Names of the columns of text; files without types must be read with these as text."""
        return [column.name for column in self.columns if column.kind == "category"]

    @property
    def date_inputs(self) -> dict[int, Dates]:
        """Numbers of the inputs that are dates."""
        kinds = [column.kind for column in self.columns for _ in column.input_names]
        return {number: EPOCH for number, kind in enumerate(kinds) if kind == "date"}

    @property
    def category_inputs(self) -> dict[str, dict[str, int]]:
        """By categorical column, its levels and the numbers of their inputs."""
        inputs, n_before = {}, 0
        for column in self.columns:
            if column.levels:
                inputs[column.name] = {level: n_before + k for k, level in enumerate(column.levels)}
            n_before += len(column.input_names)
        return inputs

    def encoding_remarks(self) -> list[str]:
        """Describe the conversion of columns that are not numbers, for the user."""
        words = {
            "category": "{} levels, an input for each",
            "date": "dates, counted in days since 1970",
        }
        return [
            f"column {column.name!r}: {words[column.kind].format(len(column.levels))}"
            for column in self.columns
            if column.kind in words
        ]

    def imputation_remarks(self, missing: Mapping[str, int]) -> list[str]:
        """Describe how missing values were filled in, for the user; ``missing`` has their number by column."""
        return [
            f"column {column.name!r}: {missing[column.name]} missing, filled in with {column.fill_text}"
            for column in self.columns
            if missing.get(column.name)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the header of a model file."""
        columns = [{**asdict(column), "levels": list(column.levels)} for column in self.columns]
        return {"columns": columns, "targets": list(self.targets)}

    @classmethod
    def from_dict(cls, stored: Any) -> ColumnSchema:
        """Return the schema that :meth:`to_dict` has stored."""
        try:
            columns = tuple(
                Column(str(c["name"]), str(c["kind"]), tuple(map(str, c["levels"])), c["fill"])
                for c in stored["columns"]
            )
            targets = tuple(str(name) for name in stored["targets"])
        except (KeyError, TypeError) as error:
            raise ModelFileError(
                f"the model file has an invalid description of its table: {error!r}"
            ) from error
        for column in columns:
            if column.kind not in KINDS:
                raise ModelFileError(
                    f"the model file has an invalid description of its table: column {column.name!r} is of kind {column.kind!r}"
                )
        return cls(columns, targets)
