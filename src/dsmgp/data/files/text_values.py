"""Columns of text as what they mean: numbers, dates, flags, missing values, or text. Needs ``dsmgp[data]``.

A column is of a kind if all its texts are, but for those that stand for missing values. A few texts of another kind in a column of
numbers or dates are a problem for the user to decide: they would make a category out of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dsmgp.data.files.text_column import (
    N_JUDGED,
    ColumnReading,
    TextColumn,
    TextFormat,
    listed,
)
from dsmgp.data.files.text_dates import DateReading, read_dates, read_hours
from dsmgp.data.files.text_numbers import NumberReading, read_numbers

__all__ = ["read_columns"]

PLAIN_NUMBER = r"^-?[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?$"


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
    found = {name: TextColumn.of(name, values, form) for name, values in columns.items()}
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


def _number_column(
    column: TextColumn, reading: NumberReading, decimal: str | None
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
            f"has amounts in different currencies ({listed(reading.currencies)}); convert them to one of them"
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


def _other_column(column: TextColumn, form: TextFormat) -> ColumnReading:
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


def _date_column(column: TextColumn, reading: DateReading) -> ColumnReading:
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
