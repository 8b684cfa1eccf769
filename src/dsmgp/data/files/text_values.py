"""Columns of text as what they mean: numbers, dates, flags, missing values, or text. Needs ``dsmgp[data]``.

A column is of a kind if all its texts are, but for those that stand for missing values. A few texts of another kind in a column of
numbers or dates are a problem for the user to decide: they would make a category out of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from dsmgp.data.files.text_dates import DateReading, read_dates, read_hours
from dsmgp.data.files.text_numbers import NumberReading, read_numbers

__all__ = ["ColumnReading", "TextFormat", "read_columns"]

# Texts that are missing values among numbers and dates, in any case.
MISSING = (
    "",
    "?",
    "-",
    "--",
    ".",
    "na",
    "n/a",
    "nan",
    "null",
    "none",
    "#n/a",
    "#na",
    "<na>",
    "nat",
)
# Texts that are missing values in a column of text too; a dash may be a level there.
TEXT_MISSING = (*csv.ConvertOptions().null_values, "<NA>")
# Texts by which the kind of a column with many different ones is judged before all are read.
N_JUDGED = 2000
# Texts of another kind in a column of numbers or dates: the largest share, and the least number of different numbers or dates.
STRAY_SHARE, MIN_REGULAR = 0.05, 8
# The same where all of them are one text or two, such as "unknown".
STRAY_WORDS, STRAY_WORD_SHARE, MIN_REGULAR_BESIDE_WORDS = 2, 0.5, 20
# Texts of another kind that a message lists.
MAX_LISTED = 3
NUMBER_WITH_UNIT = r"^[-+(]?[0-9][0-9., ]*\s*(?P<unit>[\p{L}°][\p{L}°/²³0-9]*)$"
PLAIN_NUMBER = r"^-?[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True)
class TextFormat:
    """How a text file is written, where the file alone does not say it.

    Attributes
    ----------
    encoding : str or None
        Such as "latin-1"; None is UTF-8, or UTF-16 with a byte order mark.
    decimal : {".", ","} or None
        The decimal sign of numbers such as 1,234, which may be read in two ways.
    day_first : bool or None
        Whether 03/04/2020 is in April.
    missing : tuple of str
        Further texts that stand for missing values.
    """

    encoding: str | None = None
    decimal: str | None = None
    day_first: bool | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnReading:
    """What became of a column.

    Attributes
    ----------
    values : pyarrow.ChunkedArray or pyarrow.Array
        As text if there is a problem.
    remarks : tuple of str
        How texts were understood, for the user.
    problem : str or None
        Why the column cannot be read, with the remedy.
    decimal : {".", ","} or None
        What its numbers say about the decimal sign of the whole file.
    """

    values: pa.ChunkedArray | pa.Array
    remarks: tuple[str, ...] = ()
    problem: str | None = None
    decimal: str | None = None


def read_columns(
    columns: dict[str, pa.ChunkedArray],
    text: Iterable[str],
    form: TextFormat,
    commas_group: bool,
) -> dict[str, ColumnReading]:
    """Read columns of text.

    Parameters
    ----------
    columns : dict of str to pyarrow.ChunkedArray
        Columns of text by their names.
    text : iterable of str
        Columns that stay text.
    form : TextFormat
    commas_group : bool
        Whether 1,234 is 1234 where nothing else in the file says what a comma means.

    Examples
    --------
    >>> column = pa.chunked_array([["$1,200", "?", "$950"]])
    >>> read_columns({"price": column}, [], TextFormat(), True)["price"].values.to_pylist()
    [1200.0, None, 950.0]
    """
    stay = set(text)
    found = {name: _TextColumn.of(name, values, form) for name, values in columns.items()}
    numbers = {
        name: read_numbers(column.without_unit)
        for name, column in found.items()
        if name not in stay and _are_mostly(_are_numbers, column.without_unit)
    }
    numbers = {
        name: reading
        for name, reading in numbers.items()
        if found[name].strays(reading.number_like) is not None
    }
    signs = {name: reading.decimal(found[name].counts) for name, reading in numbers.items()}
    evidence = {
        sign
        for name, sign in signs.items()
        if sign == "," or (sign == "." and found[name].has_commas)
    }
    usual = form.decimal or (evidence.pop() if len(evidence) == 1 else None)
    readings = {}
    for name, column in found.items():
        if name in stay:
            readings[name] = ColumnReading(column.as_text())
        elif name in numbers:
            decimal = signs[name] or usual
            if decimal is None and (commas_group or not column.has_commas):
                decimal = "."
            readings[name] = _number_column(column, numbers[name], decimal)
        else:
            readings[name] = _other_column(column, form)
    return readings


class _TextColumn:
    """A column of text by its distinct texts, without surrounding blanks."""

    def __init__(
        self,
        name: str,
        values: pa.ChunkedArray,
        form: TextFormat,
        texts: pa.Array,
        codes: NDArray[np.int32],
    ) -> None:
        self.name, self.values = name, values
        self.all_texts = pc.utf8_trim_whitespace(texts)
        self.unchanged = self.all_texts.equals(texts)
        lower = pc.utf8_lower(self.all_texts)
        self.user_missing = pc.is_in(
            lower, value_set=pa.array([t.strip().lower() for t in form.missing], pa.string())
        )
        missing = pc.or_(pc.is_in(lower, value_set=pa.array(MISSING)), self.user_missing)
        self.missing = missing.to_numpy(zero_copy_only=False)
        self.all_codes = codes
        self.all_counts = np.bincount(codes[codes >= 0], minlength=len(texts))

    @classmethod
    def of(cls, name: str, values: pa.ChunkedArray, form: TextFormat) -> _TextColumn:
        # In one piece: dictionaries of many chunks would be merged again and again.
        whole = values.cast(pa.large_string()) if values.nbytes >= 2**31 else values
        encoded = whole.combine_chunks().dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy()
        return cls(name, values, form, encoded.dictionary.cast(pa.string()), codes)

    @cached_property
    def texts(self) -> pa.Array:
        """Distinct texts that are not missing values."""
        return self.all_texts.filter(pa.array(~self.missing))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """In how many rows each of ``texts`` occurs."""
        return self.all_counts[~self.missing]

    @cached_property
    def has_commas(self) -> bool:
        return bool(pc.any(pc.match_substring(self.texts, ",")).as_py())

    @cached_property
    def unit(self) -> str:
        """A unit that all texts end in, as in "3 kg"; empty if there is none."""
        for texts in (self.texts.slice(0, N_JUDGED), self.texts):
            unit = pc.extract_regex(texts, NUMBER_WITH_UNIT).field("unit").unique()
            if len(self.texts) < MIN_REGULAR or len(unit) != 1 or not unit[0].is_valid:
                return ""
        return str(unit[0])

    @cached_property
    def without_unit(self) -> pa.Array:
        """``texts`` without the unit that all of them have."""
        if not self.unit:
            return self.texts
        return pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(self.texts, 0, -len(self.unit)))

    def strays(self, regular: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        """Return which texts are not regular; None if they are too many to be mistakes."""
        strays = np.flatnonzero(~regular)
        n_strays, n_rows, n_regular = self.counts[strays].sum(), self.counts.sum(), regular.sum()
        few = n_strays <= max(1, STRAY_SHARE * n_rows) and n_regular >= MIN_REGULAR
        few_words = (
            len(strays) <= STRAY_WORDS
            and n_strays <= STRAY_WORD_SHARE * n_rows
            and n_regular >= MIN_REGULAR_BESIDE_WORDS
        )
        return strays if few or few_words or not len(strays) else None

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an array with a value for each row, from one for each of ``texts``; missing ones are NaN or NaT."""
        missing = np.array(["NaT" if values.dtype.kind == "M" else np.nan], dtype=values.dtype)
        table = np.repeat(missing, len(self.all_texts) + 1)
        table[np.flatnonzero(~self.missing)] = values
        return table[self.all_codes]  # the code -1, no text at all, is the last entry

    def as_text(self) -> pa.ChunkedArray | pa.Array:
        """Return the texts without surrounding blanks, and without those that stand for missing values."""
        missing = pc.or_(
            pc.is_in(self.all_texts, value_set=pa.array(TEXT_MISSING)), self.user_missing
        )
        if self.unchanged and not pc.any(missing).as_py():
            return self.values
        texts = pc.if_else(missing, None, self.all_texts)
        codes = pa.array(self.all_codes, mask=self.all_codes < 0)
        return texts.take(codes)

    def missing_remarks(self) -> tuple[str, ...]:
        """Say which texts are read as missing values, but for those that always are."""
        always = pc.is_in(self.all_texts, value_set=pa.array(TEXT_MISSING))
        unusual = np.flatnonzero(self.missing & ~always.to_numpy(zero_copy_only=False))
        texts = [text for text in self.all_texts.take(pa.array(unusual)).to_pylist() if text]
        if not texts:
            return ()
        rows = int(self.all_counts[unusual].sum())
        quoted = _listed([repr(text) for text in texts])
        verb = "are read as missing values" if len(texts) > 1 else "is read as a missing value"
        return (f"column {self.name!r}: {quoted} {verb} ({_rows(rows)})",)

    def problem(self, what: str, strays: NDArray[np.int64]) -> ColumnReading:
        """Report texts that do not fit the rest of the column."""
        positions = np.flatnonzero(~self.missing)[strays]
        places = []
        for position, text in zip(positions, self.texts.take(pa.array(strays)).to_pylist(), strict=True):  # fmt: skip
            rows = np.flatnonzero(self.all_codes == position)
            more = f" and {_rows(len(rows) - 1, 'other ')}" if len(rows) > 1 else ""
            places.append(f"{text!r} in row {rows[0] + 1}{more}")
            if len(places) == MAX_LISTED and len(strays) > MAX_LISTED:
                places.append(f"{len(strays) - MAX_LISTED} further texts")
                break
        example = self.texts[int(strays[0])].as_py()
        return self.refused(
            f"holds {what} but for {', '.join(places)}; correct it, give --na {example!r} if it stands for a missing value, "
            f"--text {self.name!r} if the column is a category"
        )

    def refused(self, problem: str) -> ColumnReading:
        """Report a problem of the column, which can always be left out."""
        message = f"column {self.name!r} {problem}, or leave it out with --drop {self.name!r}"
        return ColumnReading(self.as_text(), problem=message)


def _number_column(
    column: _TextColumn, reading: NumberReading, decimal: str | None
) -> ColumnReading:
    """Return a column of numbers, or say why there are none."""
    if decimal is None:
        k = int(np.argmax(reading.ambiguous))
        return column.refused(
            f"has numbers such as {column.texts[k].as_py()!r}, whose comma may separate thousands or decimals; give --decimal . "
            f"for {reading.by_point[k]:g}, --decimal , for {reading.by_comma[k]:g}"
        )
    numbers = reading.numbers(decimal)
    strays = np.flatnonzero(np.isnan(numbers))
    if len(strays):
        sign = "commas" if decimal == "," else "points"
        mixed = bool(reading.number_like[strays].any())
        return column.problem("numbers" + f" with decimal {sign}" * mixed, strays)
    if len(reading.currencies) > 1:
        return column.refused(
            f"has amounts in different currencies ({_listed(reading.currencies)}); convert them to one of them"
        )
    if reading.percent.any() and not reading.percent.all():
        with_sign, without = (
            column.texts[int(np.flatnonzero(reading.percent == wanted)[0])].as_py()
            for wanted in (True, False)
        )
        return column.refused(
            f"has numbers with a percent sign ({with_sign!r}) and without ({without!r}); write all of them in one way"
        )
    unusual = pc.invert(pc.match_substring_regex(column.texts, PLAIN_NUMBER))
    remarks = column.missing_remarks()
    if pc.any(unusual).as_py():
        k = pc.index(unusual, True).as_py()
        unit = f", in {'percent' if reading.percent.any() else column.unit}".removesuffix(", in ")
        remarks = (
            f"column {column.name!r}: {column.texts[k].as_py()!r} is read as the number {numbers[k]:.10g}{unit}",
            *remarks,
        )
    says = decimal if column.has_commas or decimal == "," else None
    return ColumnReading(pa.array(column.spread(numbers), from_pandas=True), remarks, decimal=says)


def _other_column(column: _TextColumn, form: TextFormat) -> ColumnReading:
    """Return a column of dates, of flags or of text."""
    if not len(column.texts):
        return ColumnReading(pa.nulls(len(column.values)), column.missing_remarks())
    lower = pc.utf8_lower(column.texts)
    if pc.all(pc.is_in(lower, value_set=pa.array(["true", "false"]))).as_py():
        flags = pc.equal(lower, "true").to_numpy(zero_copy_only=False).astype(np.float64)
        values = pa.array(column.spread(flags), from_pandas=True).cast(pa.bool_())
        return ColumnReading(values, column.missing_remarks())
    if _are_mostly(_are_times, column.texts):
        hours = read_hours(column.texts)
        strays = column.strays(~np.isnan(hours))
        if strays is not None and len(strays):
            return column.problem("times of day", strays)
        if strays is not None:
            remark = f"column {column.name!r}: {column.texts[0].as_py()!r} is read as {hours[0]:.6g} hours"
            values = pa.array(column.spread(hours), from_pandas=True)
            return ColumnReading(values, (remark, *column.missing_remarks()))
    if _are_mostly(_are_dates, column.texts):
        reading = read_dates(column.texts, column.counts, form.day_first)
        strays = column.strays(reading.date_like)
        if strays is not None:
            return _date_column(column, reading)
    return ColumnReading(column.as_text())


def _date_column(column: _TextColumn, reading: DateReading) -> ColumnReading:
    """Return a column of dates, or say why there are none."""
    if reading.unclear.all():
        return column.refused(
            f"has dates such as {column.texts[0].as_py()!r}, which may be a day or a year; write them as 2020-01-20 or Jan 2020, "
            f"give --text {column.name!r} if the column is a category"
        )
    if reading.both_orders:
        return column.refused(
            "has dates with the day first and others with the month first; write them as 2020-12-31"
        )
    if reading.day_and_month.any():
        example = column.texts[int(np.argmax(reading.day_and_month))].as_py()
        return column.refused(
            f"has dates such as {example!r}, whose order of day and month is ambiguous; give --dayfirst or --monthfirst, or "
            "write them as 2020-12-31"
        )
    strays = np.flatnonzero(np.isnat(reading.dates))
    if len(strays):
        return column.problem("dates", strays)
    dates = column.spread(reading.dates)
    first = column.texts[0].as_py()
    moment = np.datetime_as_string(reading.dates[0], unit="s").replace("T", " ")
    remark = (
        f"column {column.name!r}: {first!r} is read as the date {moment.removesuffix(' 00:00:00')}"
    )
    return ColumnReading(pa.array(dates), (remark, *column.missing_remarks()))


def _are_mostly(test: Callable[[pa.Array], NDArray[np.bool_]], texts: pa.Array) -> bool:
    """Return whether at least half of the first texts pass a test; a column of many names is then not read in vain."""
    first = texts.slice(0, N_JUDGED)
    return len(first) > 0 and bool(np.mean(test(first)) >= 0.5)


def _are_numbers(texts: pa.Array) -> NDArray[np.bool_]:
    return read_numbers(texts).number_like


def _are_times(texts: pa.Array) -> NDArray[np.bool_]:
    return ~np.isnan(read_hours(texts))


def _are_dates(texts: pa.Array) -> NDArray[np.bool_]:
    return read_dates(texts, np.ones(len(texts), np.int64)).date_like


def _listed(words: Sequence[str]) -> str:
    """Return some words with commas, at most :data:`MAX_LISTED` of them."""
    more = ", ..." if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + more


def _rows(n: int, kind: str = "") -> str:
    return f"{n:,} {kind}row{'s' * (n != 1)}"
