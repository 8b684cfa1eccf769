"""Dates as numbers, and numbers as dates: a column of dates is counted in days since its first training row.

Dates are exact to the microsecond; times with a time zone are converted to UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp._util.arrays import Array

__all__ = [
    "EPOCH",
    "MICROSECONDS_PER_DAY",
    "Dates",
    "days_since_origins",
    "encode_dates",
    "encode_training_dates",
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


def encode_training_dates(X: Any) -> tuple[Any, dict[int, Dates]]:
    """Turn the columns of dates of training rows into numbers.

    Parameters
    ----------
    X : frame or array of shape (n_rows, n_columns)
        Training inputs.

    Returns
    -------
    X
        With numbers in place of dates; as it was given if there are none.
    dates : dict of int to Dates
        By number, the columns that held dates.
    """
    dates = {}
    for number, column in _date_columns(X):
        present = column[~np.isnat(column)]
        dates[number] = Dates(present.min() if len(present) else np.datetime64(0, "us"))
    return (_replaced(X, dates), dates) if dates else (X, {})


def encode_dates(X: Any, dates: Mapping[int, Dates], names: Any = None) -> Any:
    """Turn the columns that held dates in training into numbers; raise if these are not the columns of dates.

    Parameters
    ----------
    X : frame or array of shape (n_rows, n_columns)
        New inputs.
    dates : mapping of int to Dates
        Columns of dates of the training rows.
    names : sequence of str, optional
        Names of the columns of the training rows.
    """
    given = {number for number, _ in _date_columns(X)}
    columns = getattr(X, "columns", None)
    if columns is not None and names is not None and list(columns) != list(names):
        # Other columns than those of the fit: scikit-learn raises, once these are numbers.
        assumed = {number: dates.get(number, EPOCH) for number in given}
        return _replaced(X, assumed) if assumed else X

    def label(number: int) -> str:
        return f"column {number}" if names is None else f"column {names[number]!r}"

    for number in sorted(given ^ set(dates)):
        if number in given:
            raise ValueError(
                f"{label(number)} of X holds dates or times, but held numbers when the model was fitted"
            )
        raise ValueError(
            f"{label(number)} of X held dates when the model was fitted; give dates, not numbers"
        )
    return _replaced(X, dates) if dates else X


def days_since_origins(X: Array, dates: Mapping[int, Dates]) -> Array:
    """Turn days since 1970 in the columns of dates into days since the origin of each column."""
    if not dates:
        return X
    days = X.copy()
    for number, column in dates.items():
        days[:, number] = column.to_numbers(EPOCH.to_dates(X[:, number]))
    return days


def _is_date(values: Any) -> bool:
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    if kind == "O":  # Python's own dates, which databases return
        entries = np.asarray(values).reshape(-1)
        return len(entries) > 0 and all(isinstance(entry, date) for entry in entries)
    return kind == "M" or str(getattr(values, "dtype", "")).startswith(("Date", "Datetime"))


def _date_columns(X: Any) -> Iterator[tuple[int, NDArray[np.datetime64]]]:
    """Yield number and values of each column of dates in a frame or an array."""
    if hasattr(X, "collect_schema") and not hasattr(X, "to_numpy"):
        return  # a lazy frame, for which check_numeric raises
    if hasattr(X, "column_names"):
        return  # an Arrow table, for which check_numeric raises
    columns = getattr(X, "columns", None)
    if columns is not None:
        for number, name in enumerate(columns):
            if _is_date(X[name]):
                yield number, np.asarray(X[name], dtype="datetime64[us]")
    elif _is_date(X) and np.ndim(X) == 2:
        for number in range(X.shape[1]):
            yield number, np.asarray(X[:, number], dtype="datetime64[us]")


def _replaced(X: Any, dates: Mapping[int, Dates]) -> Any:
    """Return a frame or array like ``X`` with numbers in place of dates."""
    if getattr(X, "columns", None) is None:
        return np.stack([dates[k].to_numbers(X[:, k]) for k in range(X.shape[1])], axis=1)
    table = {
        name: dates[k].to_numbers(np.asarray(X[name], dtype="datetime64[us]"))
        if k in dates
        else np.asarray(X[name])
        for k, name in enumerate(X.columns)
    }
    return type(X)(table)
