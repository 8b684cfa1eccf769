"""Dates as numbers, and numbers as dates: a column of dates is counted in days since its first training row.

Dates are exact to the microsecond; times with a time zone are converted to UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array

__all__ = [
    "EPOCH",
    "LIKELY_YEARS",
    "MICROSECONDS_PER_DAY",
    "Dates",
    "format_day",
    "format_position",
    "period_starts",
]

MICROSECONDS_PER_DAY = 86_400_000_000
#: Texts and numbers that could be something else are taken as dates only within these years.
LIKELY_YEARS = (1900, 2100)
# Months, quarters and weeks: 2020-01, 2020/01, 01/2020, 2020Q1, Q1 2020, 2020-W01.
PERIOD = re.compile(
    r"\s*(?:(?P<year>\d{4})[-/](?P<month>\d{1,2})|(?P<month_first>\d{1,2})/(?P<year_last>\d{4})"
    r"|(?P<year_of_quarter>\d{4})[-/ ]?[qQ](?P<quarter>[1-4])|[qQ](?P<quarter_first>[1-4])[-/ ]?(?P<year_of_first>\d{4})"
    r"|(?P<year_of_week>\d{4})-?[wW](?P<week>\d{2}))\s*"
)


@dataclass(frozen=True)
class Dates:
    """A column of dates: numbers are days since ``origin``.

    Examples
    --------
    >>> dates = Dates(np.datetime64("2020-01-01", "us"))
    >>> print(dates.to_numbers(np.array(["2020-01-02T12:00"], dtype="datetime64")))
    [1.5]
    >>> print(dates.to_dates(1.5))
    2020-01-02T12:00:00.000000
    """

    origin: np.datetime64

    def to_numbers(self, dates: ArrayLike) -> Array:
        since = np.asarray(dates, dtype="datetime64[us]") - self.origin
        numbers = since.astype(np.int64) / MICROSECONDS_PER_DAY
        return np.where(np.isnat(since), np.nan, numbers)

    def to_dates(self, numbers: ArrayLike) -> Any:
        steps = np.rint(np.asarray(numbers, dtype=np.float64) * MICROSECONDS_PER_DAY).astype(
            "timedelta64[us]"
        )
        return self.origin + steps


#: Days since 1970, as tables in files count them.
EPOCH = Dates(np.datetime64(0, "us"))


def format_day(days: float, dates: Dates = EPOCH) -> str:
    """Return a number of days as the date that it stands for, with its time where that is not midnight.

    Examples
    --------
    >>> format_day(0.0), format_day(1.5)
    ('1970-01-01', '1970-01-02 12:00:00')
    """
    return format_position(dates.to_dates(days))


def format_position(place: Any) -> str:
    """Return a position along an input as text: a number, or a date with its time where that is not midnight.

    Examples
    --------
    >>> (
    ...     format_position(1600000000.5),
    ...     format_position(np.datetime64("2020-01-01T00:00:00.25", "us")),
    ... )
    ('1600000000.5', '2020-01-01 00:00:00.25')
    """
    if not isinstance(place, np.datetime64):
        return f"{place:.12g}"
    text = str(place.astype("datetime64[us]")).rstrip("0").removesuffix(".")
    return text.removesuffix("T00:00:00").removesuffix("T00:00:").replace("T", " ")


def period_starts(texts: Sequence[str], are_dates: bool = False) -> Any:
    """Return the first days of months, quarters and weeks that are written as texts, NaT for other texts.

    Weeks are those of ISO 8601. Pairs of years that follow one another, such as 2001-02 and 2011-12, are seasons and no months, and
    texts with years outside of 1900 to 2100, such as 4711-01, are codes: unless the texts are known to be dates (``are_dates``).

    Examples
    --------
    >>> print(period_starts(["2020-02", "2/2020", "2020Q2", "2020-W01", "May"]))
    ['2020-02-01' '2020-02-01' '2020-04-01' '2019-12-30'        'NaT']
    >>> print(period_starts(["2001-02", "2002-03"]))
    ['NaT' 'NaT']
    >>> print(period_starts(["2001-02", "2002-03"], are_dates=True))
    ['2001-02-01' '2002-03-01']
    """
    found = [PERIOD.fullmatch(text) for text in texts]
    if are_dates:
        starts = [None if match is None else _first_day(match) for match in found]
        return np.array(starts, dtype="datetime64[D]")
    pairs = [(match["year"], match["month"]) for match in found if match and match["year"]]
    follow = [len(month) == 2 and (int(year) + 1) % 100 == int(month) for year, month in pairs]
    are_seasons = len(pairs) > 1 and all(follow)
    starts = [
        None
        if match is None or (are_seasons and match["year"]) or not _is_likely(match)
        else _first_day(match)
        for match in found
    ]
    return np.array(starts, dtype="datetime64[D]")


def _is_likely(match: re.Match[str]) -> bool:
    """Return whether the year of a period is one that tables are likely to have."""
    first, last = LIKELY_YEARS
    return first <= _year_and_number(match)[0] <= last


def _year_and_number(match: re.Match[str]) -> tuple[int, int]:
    """Return the year of a period, and the number of the month, quarter or week."""
    given = {name: int(text) for name, text in match.groupdict().items() if text}
    year, *_ = (number for name, number in given.items() if name.startswith("year"))
    number, *_ = (number for name, number in given.items() if not name.startswith("year"))
    return year, number


def _first_day(match: re.Match[str]) -> date | None:
    """Return the first day of a period; None if there is no such month or week."""
    year, number = _year_and_number(match)
    try:
        if match["week"]:
            return date.fromisocalendar(year, number, 1)
        if match["quarter"] or match["quarter_first"]:
            number = 3 * number - 2
        return date(year, number, 1)
    except ValueError:
        return None
