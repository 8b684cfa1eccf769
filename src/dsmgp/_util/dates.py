"""Dates as numbers, and numbers as dates: a column of dates is counted in days since its first training row.

Dates are exact to the microsecond; times with a time zone are converted to UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array

__all__ = [
    "EPOCH",
    "MICROSECONDS_PER_DAY",
    "Dates",
    "format_day",
    "format_position",
]

MICROSECONDS_PER_DAY = 86_400_000_000


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
