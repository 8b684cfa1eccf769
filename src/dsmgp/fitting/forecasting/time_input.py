"""Which input of a table is a time: a column of dates, or numbers in equal steps."""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.data.input_schema import InputSchema

__all__ = ["CALENDAR", "find_time", "is_equally_spaced"]

#: Periods of dates, in days.
CALENDAR = {"a day": 1.0, "a week": 7.0, "a year": 365.2425}
# Distinct times at least: a forecast is judged by the second half of them.
LEAST_TIMES = 40
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
