"""Which input of a table is a time: a column of dates, or numbers in equal steps."""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.dates import Dates
from dsmgp.data.input_schema import InputSchema
from dsmgp.gp.transforms.coordinates import Coordinates, InputWarp

__all__ = ["CALENDAR", "find_time", "is_equally_spaced", "month_steps", "time_coordinates"]

#: Periods of dates, in days.
CALENDAR = {"a day": 1.0, "a week": 7.0, "a year": 365.2425}
# Months beyond the ends of the rows, relative to those between them, up to which steps are exact.
MONTHS_BEYOND = 2
# Distinct times at least: a forecast is judged by the second half of them.
LEAST_TIMES = 40
# Of dates that are to be monthly.
LEAST_MONTHS = 3
# How far a step may be from a whole number of usual steps, and the share of steps that may be missing.
STEP_TOLERANCE, MOST_MISSING = 0.1, 0.5


def find_time(X: Array, schema: InputSchema) -> int | None:
    """Return the number of the input that is a time; None if there is none, or several.

    Names do not matter, nor does the order of the rows. A column of dates is a time. Without dates it is a column of numbers that are
    all different and equally spaced, as are years, months and numbered days; some may be missing.
    """
    dates = list(schema.columns.date_inputs)
    if dates:
        enough = len(np.unique(X[:, dates[0]])) >= LEAST_TIMES
        return dates[0] if len(dates) == 1 and enough else None
    found = [k for k in range(X.shape[1]) if is_equally_spaced(X[:, k])]
    return found[0] if len(found) == 1 else None


def is_equally_spaced(values: Array) -> bool:
    """Return whether numbers are all different and in equal steps.

    Examples
    --------
    >>> months = 1958 + np.arange(2, 60) / 12
    >>> is_equally_spaced(np.delete(months, [4, 5])), is_equally_spaced(np.exp(months - 1958))
    (True, False)
    """
    if len(values) < LEAST_TIMES:
        return False
    steps = np.diff(np.sort(values))
    if not steps.min() > 0:
        return False
    in_steps = steps / np.median(steps)
    whole = np.maximum(np.rint(in_steps), 1.0)
    return bool(
        (np.abs(in_steps - whole) < STEP_TOLERANCE).all()
        and whole.sum() - len(whole) <= MOST_MISSING * len(whole)
    )


def time_coordinates(X: Array, time: int, schema: InputSchema) -> Coordinates | None:
    """Return coordinates in which the steps of a monthly time are equal; None for any other time."""
    dates = schema.columns.date_inputs.get(time)
    warp = None if dates is None else month_steps(X[:, time], dates)
    if warp is None:
        return None
    warps = tuple(warp if k == time else None for k in range(X.shape[1]))
    return Coordinates(X.shape[1], np.arange(X.shape[1]), warps)


def month_steps(days: Array, dates: Dates) -> InputWarp | None:
    """Return the warp that makes months equally long, if all dates are the same day of their months; None otherwise.

    Months have 28 to 31 days: in days, monthly rows are not equally spaced, and no season repeats exactly.

    Examples
    --------
    >>> dates = Dates(np.datetime64("2021-01-31", "us"))
    >>> warp = month_steps(np.array([0.0, 28.0, 59.0, 89.0, 120.0]), dates)  # ends of months
    >>> np.diff(warp(np.array([0.0, 28.0, 59.0, 150.0]))).round(3)
    array([30.437, 30.437, 91.311])
    >>> month_steps(np.arange(5.0), dates) is None
    True
    """
    distinct = np.unique(days)
    month = dates.to_dates(distinct).astype("datetime64[M]")
    since_start = dates.to_dates(distinct) - month
    # Of the longest months; shorter ones may end before it.
    day = since_start.max()
    if len(distinct) < LEAST_MONTHS or not np.array_equal(
        _same_day(month, day), since_start + month
    ):
        return None
    beyond = MONTHS_BEYOND * (month[-1] - month[0])
    months = np.arange(month[0] - beyond, month[-1] + beyond + 1)
    knots = dates.to_numbers(_same_day(months, day))
    length = CALENDAR["a year"] / 12.0
    values = knots[0] + length * np.arange(len(knots))
    slopes = np.gradient(values, knots)
    return InputWarp(knots, values, slopes, np.ones(2))


def _same_day(months: Array, day: np.timedelta64) -> Array:
    """Return the moment of each month that is so long after its beginning, or on its last day at that time."""
    start = months.astype("datetime64[us]")
    last = (months + 1).astype("datetime64[us]") - np.timedelta64(1, "D")
    time_of_day = day % np.timedelta64(1, "D")
    return np.minimum(start + day, last + time_of_day)
