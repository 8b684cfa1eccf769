"""Columns of dates as numbers, and numbers as dates: days since the first training row.

Dates are kept as they are to the microsecond; time zones are taken to UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "EPOCH",
    "Dates",
    "date_inputs",
    "dates_as_numbers",
    "day_text",
    "numbers_like",
    "place_text",
    "since_origins",
]

Array = NDArray[np.float64]
DAY = 86_400_000_000  # microseconds


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
        numbers = since.astype(np.int64) / DAY
        return np.where(np.isnat(since), np.nan, numbers)

    def to_dates(self, numbers: ArrayLike) -> Any:
        steps = np.rint(np.asarray(numbers, dtype=np.float64) * DAY).astype("timedelta64[us]")
        return self.origin + steps


#: Days since 1970, as tables count them.
EPOCH = Dates(np.datetime64(0, "us"))


def day_text(days: float, dates: Dates = EPOCH) -> str:
    """A number of days as the date that it stands for; with its time to the second, where it has one.

    Examples
    --------
    >>> day_text(0.0), day_text(1.5)
    ('1970-01-01', '1970-01-02 12:00:00')
    """
    return place_text(dates.to_dates(days))


def place_text(place: Any) -> str:
    """A place along an input: a number, or a date with its time, where it has one.

    Examples
    --------
    >>> place_text(1600000000.5), place_text(np.datetime64("2020-01-01T00:00:00.25", "us"))
    ('1600000000.5', '2020-01-01 00:00:00.25')
    """
    if not isinstance(place, np.datetime64):
        return f"{place:.12g}"
    text = str(place.astype("datetime64[us]")).rstrip("0").removesuffix(".")
    return text.removesuffix("T00:00:00").removesuffix("T00:00:").replace("T", " ")


def dates_as_numbers(X: Any) -> tuple[Any, dict[int, Dates]]:
    """Training rows with their columns of dates turned into numbers, and what these columns were."""
    found = {}
    for number, column in _date_columns(X):
        known = column[~np.isnat(column)]
        origin = known.min() if len(known) else np.datetime64(0, "us")
        found[number] = Dates(origin)
    return (_replaced(X, found), found) if found else (X, {})


def numbers_like(X: Any, known: Mapping[int, Dates], names: Any = None) -> Any:
    """Rows with the columns turned into numbers that were dates in training, and no others."""
    given = {number for number, _ in _date_columns(X)}
    columns = getattr(X, "columns", None)
    if columns is not None and names is not None and list(columns) != list(names):
        # Other columns than those of the fit: scikit-learn says so, once these are numbers.
        own = {number: known.get(number, EPOCH) for number in given}
        return _replaced(X, own) if own else X

    def label(number: int) -> str:
        return f"column {number}" if names is None else f"column {names[number]!r}"

    for number in sorted(given ^ set(known)):
        if number in given:
            raise ValueError(
                f"{label(number)} of X holds dates or times, but held numbers when the model was fitted"
            )
        raise ValueError(
            f"{label(number)} of X held dates when the model was fitted; give dates, not numbers"
        )
    return _replaced(X, known) if known else X


def since_origins(X: Array, known: Mapping[int, Dates]) -> Array:
    """Rows whose dates are in days since 1970, with those days counted as the model does."""
    if not known:
        return X
    days = X.copy()
    for number, dates in known.items():
        days[:, number] = dates.to_numbers(EPOCH.to_dates(X[:, number]))
    return days


def date_inputs(table: Any) -> dict[int, Dates]:
    """Which inputs are dates in the description of a table that a model file has."""
    kinds = [
        column["kind"]
        for column in (table or {}).get("columns", [])
        for _ in range(max(1, len(column["levels"])))
    ]
    return {number: EPOCH for number, kind in enumerate(kinds) if kind == "date"}


def _is_date(values: Any) -> bool:
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    if kind == "O":  # days and moments as Python has them, which is how databases hand them out
        entries = np.asarray(values).reshape(-1)
        return len(entries) > 0 and all(isinstance(one, date) for one in entries)
    return kind == "M" or str(getattr(values, "dtype", "")).startswith(("Date", "Datetime"))


def _date_columns(X: Any) -> Iterator[tuple[int, NDArray[np.datetime64]]]:
    """Number and values of each column of dates, in a frame or an array."""
    if hasattr(X, "collect_schema") and not hasattr(X, "to_numpy"):
        return  # a lazy frame: refused later
    if hasattr(X, "column_names"):
        return  # an Arrow table: refused later
    columns = getattr(X, "columns", None)
    if columns is not None:
        for number, name in enumerate(columns):
            if _is_date(X[name]):
                yield number, np.asarray(X[name], dtype="datetime64[us]")
    elif _is_date(X) and np.ndim(X) == 2:
        for number in range(X.shape[1]):
            yield number, np.asarray(X[:, number], dtype="datetime64[us]")


def _replaced(X: Any, known: Mapping[int, Dates]) -> Any:
    if getattr(X, "columns", None) is None:
        return np.stack([known[k].to_numbers(X[:, k]) for k in range(X.shape[1])], axis=1)
    table = {
        name: known[k].to_numbers(np.asarray(X[name], dtype="datetime64[us]"))
        if k in known
        else np.asarray(X[name])
        for k, name in enumerate(X.columns)
    }
    return type(X)(table)
