"""Dates that are written as text, such as ``31.12.2020``, ``12/31/2020 4:30 PM``, ``5 January 2020`` or ``2020Q1``. Needs ``dsmgp[data]``.

ISO dates, 2020-12-31, are found by the parser of a file already. Here are the others. Whether the day or the month comes first is
decided over a whole column: some day after the 12th settles it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dsmgp._util.dates import period_starts

__all__ = ["DateReading", "read_dates", "read_hours"]

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = (
    "(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
DAY = "(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?"
YEAR = "(?P<year>[0-9]{4})"
SHORT_YEAR = "(?P<year>[0-9]{4}|[0-9]{2})"
WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+)?"
TIME = (
    r"(?:(?:\s*t\s*|,?\s+)(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]{1,9}))?)?"
    r"\s*(?P<half>[ap])?(?:\.?m\.?)?\s*(?P<zone>z|utc|gmt|[+-][0-9]{2}:?[0-9]{2})?)?"
)
# Dates in which the order of day and month is clear, and those in which it is not.
CLEAR_FORMS = (
    rf"(?i)^{YEAR}[-/.](?P<month>[0-9]{{1,2}})[-/.]{DAY}{TIME}$",
    rf"(?i)^{WEEKDAY}{DAY}(?:\.\s*|[-/\s]\s*|){MONTH}(?:[-/\s,]\s*|){SHORT_YEAR}{TIME}$",
    rf"(?i)^{WEEKDAY}{MONTH}[-/\s]\s*{DAY}(?:,\s*|[-/\s]\s*){YEAR}{TIME}$",
    rf"(?i)^{YEAR}[-/\s]\s*{MONTH}(?:[-/\s]\s*{DAY})?{TIME}$",
    rf"(?i)^{MONTH}[-/\s,]\s*{YEAR}$",
)
NUMERIC_FORM = rf"(?i)^(?P<first>[0-9]{{1,2}})[-/.](?P<other>[0-9]{{1,2}})[-/.]{SHORT_YEAR}{TIME}$"
# Jan-20 is January 2020 to some and the 20th of January to others.
MONTH_AND_NUMBER = (
    rf"(?i)^(?:{MONTH}[-/\s]*[0-9]{{1,2}}|[0-9]{{1,2}}[-/\s]*{MONTH.replace('name', 'also')})$"
)
TIME_OF_DAY = (
    r"(?i)^(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
    r"\s*(?P<half>[ap])?(?:\.?m\.?)?(?P<zone>)$"
)
# Years of two digits are those from 1969 to 2068, as in POSIX.
FIRST_SHORT_YEAR = 69


@dataclass(frozen=True)
class DateReading:
    """Texts as dates.

    Attributes
    ----------
    dates : ndarray of datetime64[us], shape (n,)
        NaT where a text is not a date.
    day_and_month : ndarray of bool, shape (n,)
        Texts such as 03/04/2020, whose order of day and month the column does not settle.
    unclear : ndarray of bool, shape (n,)
        Texts such as Jan-20, which name a month and a day or a year.
    both_orders : bool
        Whether the day is first in some texts and the month in others.
    """

    dates: NDArray[np.datetime64]
    day_and_month: NDArray[np.bool_]
    unclear: NDArray[np.bool_]
    both_orders: bool = False

    @property
    def date_like(self) -> NDArray[np.bool_]:
        """Which texts are dates, understood or not."""
        return ~np.isnat(self.dates) | self.day_and_month | self.unclear


def read_dates(
    texts: pa.Array, counts: NDArray[np.int64], day_first: bool | None = None
) -> DateReading:
    """Read texts as dates.

    Parameters
    ----------
    texts : pyarrow.Array of str
        The distinct texts of a column.
    counts : ndarray of int
        In how many rows each of them occurs.
    day_first : bool or None
        Whether the day comes before the month where a column does not settle it; None: such texts are not read.

    Examples
    --------
    >>> texts = pa.array(["1/2/2020", "1/31/2020 4:30 PM", "5 Jan 2020"])
    >>> print(read_dates(texts, np.ones(3, int)).dates.astype("datetime64[m]"))
    ['2020-01-02T00:00' '2020-01-31T16:30' '2020-01-05T00:00']
    """
    dates = np.full(len(texts), np.datetime64("NaT"), dtype="datetime64[us]")
    others = np.arange(len(texts))
    for form in CLEAR_FORMS:
        found, fields = _extract(texts.take(pa.array(others)), form)
        if not len(found):
            continue
        rows, others = others[found], np.delete(others, found)
        month = _month_numbers(fields["name"]) if "name" in fields else _integers(fields["month"])
        day = _integers(fields["day"], 1) if "day" in fields else np.ones(len(rows), np.int64)
        dates[rows] = _assemble(fields, month, day)
    found, fields = _extract(texts.take(pa.array(others)), NUMERIC_FORM)
    rows = others[found]
    day_and_month, both_orders = np.zeros(len(texts), dtype=bool), False
    if len(rows):
        first, other = _integers(fields["first"]), _integers(fields["other"])
        order = _day_is_first(first, other, counts[rows]) if day_first is None else day_first
        day, month = (other, first) if order is False else (first, other)
        dates[rows] = _assemble(fields, month, day)
        if order is None:
            day_and_month[rows] = first != other
            dates[day_and_month] = np.datetime64("NaT")
            both_orders = bool((first > 12).any())
    left = others[np.isnat(dates[others])]
    dates[left] = period_starts(texts.take(pa.array(left)).to_pylist()).astype("datetime64[us]")
    unclear = np.zeros(len(texts), dtype=bool)
    is_unclear = pc.match_substring_regex(texts.take(pa.array(others)), MONTH_AND_NUMBER)
    unclear[others] = is_unclear.to_numpy(zero_copy_only=False)
    return DateReading(dates, day_and_month, unclear, both_orders)


def read_hours(texts: pa.Array) -> NDArray[np.float64]:
    """Read times of day as hours since midnight; NaN where a text is not such a time.

    Examples
    --------
    >>> print(read_hours(pa.array(["9:30", "12:15:00", "4:45 pm", "25:00"])))
    [ 9.5  12.25 16.75   nan]
    """
    hours = np.full(len(texts), np.nan)
    rows, fields = _extract(texts, TIME_OF_DAY)
    if len(rows):
        time, exists = _time_of_day(fields)
        hours[rows] = np.where(exists, time.astype(np.int64) / 3.6e9, np.nan)
    return hours


def _day_is_first(
    first: NDArray[np.int64], other: NDArray[np.int64], counts: NDArray[np.int64]
) -> bool | None:
    """Return which of two numbers is the day, by the days after the 12th; None if that does not settle it."""
    day_first, month_first = counts[first > 12].sum(), counts[other > 12].sum()
    if day_first != month_first:
        return bool(day_first > month_first)
    return None


def _extract(texts: pa.Array, form: str) -> tuple[NDArray[np.int64], dict[str, pa.Array]]:
    """Return the positions of the texts that have a form, and their fields; a field that is not there is empty."""
    found = pc.extract_regex(texts, form)
    rows = np.flatnonzero(pc.is_valid(found).to_numpy(zero_copy_only=False))
    found = found.take(pa.array(rows))
    return rows, {field.name: found.field(k) for k, field in enumerate(found.type)}


def _integers(field: pa.Array, default: int = 0) -> NDArray[np.int64]:
    known = pc.if_else(pc.equal(field, ""), str(default), field)
    return known.cast(pa.int64()).to_numpy()


def _month_numbers(field: pa.Array) -> NDArray[np.int64]:
    starts = pc.utf8_lower(pc.utf8_slice_codeunits(field, 0, 3))
    return pc.index_in(starts, value_set=pa.array(MONTHS)).to_numpy().astype(np.int64) + 1


def _assemble(
    fields: dict[str, pa.Array], month: NDArray[np.int64], day: NDArray[np.int64]
) -> NDArray[np.datetime64]:
    """Return dates in UTC; NaT where a day or an hour does not exist, such as February 30."""
    year = _integers(fields["year"])
    short = pc.equal(pc.utf8_length(fields["year"]), 2).to_numpy(zero_copy_only=False)
    year = np.where(short, year + np.where(year < FIRST_SHORT_YEAR, 2000, 1900), year)
    valid = (month >= 1) & (month <= 12) & (day >= 1)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    valid &= days.astype("datetime64[M]") == months
    dates = days.astype("datetime64[us]")
    if "hour" in fields:
        time, exists = _time_of_day(fields)
        dates, valid = dates + time, valid & exists
    dates[~valid] = np.datetime64("NaT")
    return dates


def _time_of_day(
    fields: dict[str, pa.Array],
) -> tuple[NDArray[np.timedelta64], NDArray[np.bool_]]:
    """Return the time since midnight in UTC, and whether there is such a time."""
    hour, minute, second = (_integers(fields[name]) for name in ("hour", "minute", "second"))
    half = pc.utf8_lower(fields["half"]).to_numpy(zero_copy_only=False)
    exists = (hour < 24) & (minute < 60) & (second < 60)
    exists &= (half == "") | ((hour >= 1) & (hour <= 12))
    hour = np.where(half == "", hour, hour % 12 + 12 * (half == "p"))
    micro = _integers(pc.utf8_rpad(pc.utf8_slice_codeunits(fields["fraction"], 0, 6), 6, "0"))
    zone = pc.replace_substring(fields["zone"], ":", "")
    has_offset = pc.match_substring_regex(zone, "^[+-]").to_numpy(zero_copy_only=False)
    offset = _integers(pc.if_else(pa.array(has_offset), pc.utf8_slice_codeunits(zone, 1), "0"))
    sign = np.where(pc.starts_with(zone, "-").to_numpy(zero_copy_only=False), -1, 1)
    minutes = hour * 60 + minute - sign * (offset // 100 * 60 + offset % 100)
    return ((minutes * 60 + second) * 1_000_000 + micro).astype("timedelta64[us]"), exists
