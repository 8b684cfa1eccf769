"""Columns of tables as NumPy values: numbers, dates or categories, whatever library they come from.

Frames of pandas and polars, arrays and Arrow tables all become :class:`Values`, from which :mod:`dsmgp.data.columns.encoding` makes inputs. Missing
values are NaN among numbers, NaT among dates, and the code -1 among categories.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.constants import EXACT
from dsmgp._util.dates import LIKELY_YEARS, MICROSECONDS_PER_DAY, PERIOD, period_starts
from dsmgp._util.errors import InputError
from dsmgp._util.warnings import warn_user

__all__ = [
    "KINDS",
    "NotANumberError",
    "Values",
    "column_values",
    "dates_of_numbers",
    "dates_of_texts",
    "frame_values",
    "level_text",
]

#: Kinds of columns, and the word for what they hold.
KINDS = {"number": "numbers", "date": "dates", "category": "text"}

ISO_DATE = re.compile(r"\s*\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?\s*")


# Of numbers that are dates in the order of year, month and day, a column has so many different ones at least.
FEWEST_DAYS = 20


class NotANumberError(InputError, TypeError):
    """An entry is neither a number nor a text or a date; scikit-learn's contract has a TypeError there."""


@dataclass(frozen=True, eq=False)
class Values:
    """The values of one column.

    Attributes
    ----------
    kind : "number", "date", or "category"
    data : ndarray of shape (n_rows,)
        Numbers (flags are 0 and 1), dates as datetime64[us] in UTC, or for a category the position of each row's level.
    levels : tuple of str
        Of a category, each once.

    Examples
    --------
    >>> colour = Values.of_texts(["red", None, "blue", "red"])
    >>> colour.levels, colour.data
    (('blue', 'red'), array([ 1, -1,  0,  1]))
    """

    kind: str
    data: NDArray[Any]
    levels: tuple[str, ...] = ()

    @classmethod
    def of_numbers(cls, numbers: Any) -> Values:
        return cls("number", np.asarray(numbers, dtype=np.float64))

    @classmethod
    def of_dates(cls, dates: Any) -> Values:
        return cls("date", np.asarray(dates, dtype="datetime64[us]"))

    @classmethod
    def of_texts(cls, entries: Sequence[Any]) -> Values:
        """Return the values of a category from its texts; entries that are not texts are written as texts, None is missing."""
        texts = [None if entry is None else level_text(entry) for entry in entries]
        levels = sorted({text for text in texts if text is not None})
        code = {level: k for k, level in enumerate(levels)}
        codes = [-1 if text is None else code[text] for text in texts]
        return cls("category", np.array(codes, dtype=np.int64), tuple(levels))

    @classmethod
    def of_codes(cls, codes: Any, levels: Iterable[Any]) -> Values:
        """Return the values of a category from codes, negative where one is missing; levels that do not occur are dropped."""
        texts = [level_text(level) for level in levels]
        codes = np.maximum(np.asarray(codes, dtype=np.int64), -1)
        occurring = sorted({texts[code] for code in np.unique(codes).tolist() if code >= 0})
        place = {text: k for k, text in enumerate(occurring)}
        new_codes = np.array([*(place.get(text, -1) for text in texts), -1])
        return cls("category", new_codes[codes], tuple(occurring))

    def __len__(self) -> int:
        return len(self.data)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Whether each row has no value."""
        if self.kind == "category":
            return np.asarray(self.data < 0)
        return np.asarray(np.isnan(self.data) if self.kind == "number" else np.isnat(self.data))

    @property
    def all_missing(self) -> bool:
        return bool(self.missing.all())

    def respelt(self, levels: Sequence[str | None] = ()) -> Values:
        """Return a category whose levels that differ only in case and blanks are one, spelt as in ``levels`` or else as in most rows.

        Levels of one letter that differ in case are different.

        Examples
        --------
        >>> Values.of_texts(["Yes", "no", "YES ", "Yes", "N", "n"]).respelt().levels
        ('N', 'Yes', 'n', 'no')
        """
        counts = np.bincount(self.data[~self.missing], minlength=len(self.levels))
        spelling = {_spelling_key(level): level for level in levels if level is not None}
        for k in np.argsort(-counts, kind="stable").tolist():
            spelling.setdefault(_spelling_key(self.levels[k]), self.levels[k])
        texts = [spelling[_spelling_key(level)] for level in self.levels]
        return self if texts == list(self.levels) else Values.of_codes(self.data, texts)

    def as_category(self) -> Values:
        """Return the same values as levels; numbers and dates are written as texts."""
        if self.kind == "category":
            return self
        missing = self.missing
        distinct, codes = np.unique(self.data[~missing], return_inverse=True)
        all_codes = np.full(len(missing), -1, dtype=np.int64)
        all_codes[~missing] = codes
        return Values.of_codes(all_codes, distinct.tolist())

    def taken(self, rows: Any) -> Values:
        """Return the values of some rows."""
        if self.kind == "category":
            return Values.of_codes(self.data[rows], self.levels)
        return Values(self.kind, self.data[rows])

    def example(self, first_row: int = 0) -> str:
        """Quote the first value that there is, with its row."""
        present = np.flatnonzero(~self.missing)
        if not present.size:
            return ""
        row, value = int(present[0]), self.data[present[0]]
        text = self.levels[value] if self.kind == "category" else str(value)
        return f" ({text!r} in row {first_row + row})"


def _spelling_key(level: str) -> str:
    words = " ".join(level.split())
    return words.casefold() if len(words) > 1 else words


def level_text(level: Any) -> str:
    """Return a level as text. Whole numbers are the same level whether they are integers or not.

    Examples
    --------
    >>> level_text(3.0), level_text(3), level_text("3"), level_text(True)
    ('3', '3', '3', '1')
    """
    if isinstance(level, (bool, np.bool_)):
        return str(int(level))  # a flag is the same level as the number
    if isinstance(level, (float, np.floating)) and float(level).is_integer():
        return str(int(level))
    return str(level)


def dates_of_texts(values: Values, are_dates: bool = False) -> Values | None:
    """Return the dates that the levels of a category are in the form 2020-12-31, with or without a time; None if they are not.

    Months, quarters and weeks such as 2020-12, 2020Q4 and 2020-W51 are the dates of their first days. Where the column is known to
    hold dates (``are_dates``), texts are not taken for anything else (:func:`~dsmgp._util.dates.period_starts`).

    Examples
    --------
    >>> dates_of_texts(Values.of_texts(["2020-12-31", None])).data.astype("datetime64[D]").tolist()
    [datetime.date(2020, 12, 31), None]
    """
    if not values.levels:
        return None
    if not all(map(ISO_DATE.fullmatch, values.levels)):
        if not PERIOD.fullmatch(values.levels[0]):
            return None
        starts = period_starts(values.levels, are_dates)
        if np.isnat(starts).any():
            return None
        return Values.of_dates(np.append(starts, np.datetime64("NaT"))[values.data])
    try:
        dates = [np.datetime64(text.strip().replace(" ", "T"), "us") for text in values.levels]
    except ValueError:  # such as the 31st of June
        return None
    return Values.of_dates(np.array([*dates, np.datetime64("NaT")])[values.data])


def dates_of_numbers(values: Values, fewest: int = FEWEST_DAYS) -> Values | None:
    """Return the dates that numbers such as 20201231 are; None if they are not, or if fewer than ``fewest`` differ.

    Examples
    --------
    >>> days = Values.of_numbers([20200100 + day for day in range(1, 29)])
    >>> str(dates_of_numbers(days).data[0])[:10]
    '2020-01-01'
    """
    present = values.data[~values.missing]
    if values.kind != "number" or not len(present):
        return None
    first, last = LIKELY_YEARS
    is_likely = (present >= first * 10_000) & (present < (last + 1) * 10_000)
    if not (is_likely & (present == np.floor(present))).all():
        return None
    numbers, place = np.unique(present.astype(np.int64), return_inverse=True)
    year, month, day = numbers // 10_000, numbers // 100 % 100, numbers % 100
    if len(numbers) < fewest or not ((month >= 1) & (month <= 12) & (day >= 1)).all():
        return None
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    if not (days.astype("datetime64[M]") == months).all():
        return None
    dates = np.full(len(values), np.datetime64("NaT"), dtype="datetime64[us]")
    dates[~values.missing] = days[place]
    return Values.of_dates(dates)


def frame_values(frame: Any, what: str = "X") -> dict[str, Values]:
    """Return the columns of a frame of pandas or polars, by name."""
    names = list(map(str, frame.columns))
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{what} has more than one column {name!r}; rename one of them")
    pairs = zip(names, frame.columns, strict=True)
    return {
        name: column_values(frame[label], f"column {name!r} of {what}") for name, label in pairs
    }


def column_values(column: Any, label: str) -> Values:
    """Return the values of a series or an array.

    Parameters
    ----------
    column : series of pandas or polars, or array of shape (n_rows,)
    label : str
        Name of the column, for errors.
    """
    name = str(getattr(column, "dtype", ""))
    if name in ("Categorical", "Enum") or name.startswith(("Categorical(", "Enum(")):
        return Values.of_texts(column.cast(_polars().String).to_list())
    if name in ("String", "Utf8") and hasattr(column, "to_list"):
        return Values.of_texts(column.to_list())
    if name.startswith("Duration") or getattr(column.dtype, "kind", "") == "m":
        return _durations(column.to_numpy() if hasattr(column, "to_numpy") else column)
    if name.startswith("Time"):
        raise InputError(f"{label} holds times; turn them into numbers first")
    if name.startswith("period["):
        return Values.of_dates(column.dt.to_timestamp().to_numpy())
    if name.endswith("Int128"):  # of polars
        return Values.of_numbers(column.cast(_polars().Float64).to_numpy())
    if name.startswith(("List(", "Array(", "Struct(")):
        raise InputError(
            f"{label} holds several values in one row; split it into several columns first"
        )
    if name.startswith(("Date", "Datetime")):  # of polars, whose missing values become NaT
        return Values.of_dates(column.to_numpy())
    if name == "category":
        categories = column.cat.categories
        if categories.dtype.kind == "M":
            return Values.of_dates(np.asarray(column, dtype="datetime64[us]"))
        return Values.of_codes(column.cat.codes.to_numpy(), categories.tolist())
    if name.startswith(("string", "str")) and hasattr(column, "isna"):
        return Values.of_texts(column.astype(object).where(column.notna(), None).tolist())
    if hasattr(column, "isna") and getattr(column.dtype, "kind", "O") in "iufb" and column.hasnans:
        return Values.of_numbers(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if str(name).startswith("datetime64[") and hasattr(column, "dt"):  # with or without time zone
        if getattr(column.dt, "tz", None) is not None:
            column = column.dt.tz_convert("UTC").dt.tz_localize(None)
        return Values.of_dates(column.to_numpy())
    return _array_values(np.asarray(column), label)


def _polars() -> Any:
    return sys.modules["polars"]


def _array_values(column: NDArray[Any], label: str) -> Values:
    kind = column.dtype.kind
    if kind == "M":
        return Values.of_dates(column)
    if kind == "m":
        return _durations(column)
    if kind == "c":
        raise InputError(f"Complex data not supported: {label} holds complex numbers")
    if kind in "iu" and column.size and max(column.max(), -int(column.min())) > EXACT:
        warn_user(
            f"{label} holds whole numbers beyond 2**53, of which the last digits are lost; subtract an offset first",
            topic=f"digits of {label}",
        )
    if kind in "US":
        return Values.of_texts(column.astype(str).tolist())
    if kind != "O":
        return Values.of_numbers(column)
    entries = [None if _is_missing(entry) else entry for entry in column.tolist()]
    present = [entry for entry in entries if entry is not None]
    if not present:
        return Values.of_numbers(np.full(len(entries), np.nan))
    if any(isinstance(entry, (str, bytes)) for entry in present):
        return Values.of_texts(
            [e.decode(errors="replace") if isinstance(e, bytes) else e for e in entries]
        )
    if all(isinstance(entry, (date, np.datetime64)) for entry in present):
        return Values.of_dates([np.datetime64("NaT") if e is None else _moment(e) for e in entries])
    if all(isinstance(entry, (timedelta, np.timedelta64)) for entry in present):
        return _durations(np.array(entries, dtype="timedelta64[us]"))
    if all(hasattr(entry, "to_timestamp") for entry in present):  # periods of pandas
        starts = [None if e is None else e.to_timestamp() for e in entries]
        return Values.of_dates([np.datetime64("NaT") if e is None else _moment(e) for e in starts])
    return Values.of_numbers([_number(entry, row, label) for row, entry in enumerate(entries)])


def _durations(times: Any) -> Values:
    """Return spans of time as numbers of days."""
    spans = np.asarray(times).astype("timedelta64[us]")
    days = spans.astype(np.int64) / MICROSECONDS_PER_DAY
    return Values.of_numbers(np.where(np.isnat(spans), np.nan, days))


def _is_missing(entry: Any) -> bool:
    if entry is None or type(entry).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(entry, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(entry))
    return isinstance(entry, (float, np.floating)) and entry != entry


def _moment(entry: Any) -> Any:
    """Return a date or a moment without its time zone, in UTC."""
    if getattr(entry, "tzinfo", None) is not None:
        entry = (entry - entry.utcoffset()).replace(tzinfo=None)
    return np.datetime64(entry, "us")


def _number(entry: Any, row: int, label: str) -> float:
    where = f"in {label}, row {row}"
    if entry is None:
        return np.nan
    if isinstance(entry, (time, timedelta, np.timedelta64)):
        raise InputError(f"a {type(entry).__name__} {where}; turn times into numbers first")
    what = f"a {type(entry).__name__} {where}, which is not a number; turn the column into"
    if hasattr(entry, "year") or isinstance(entry, np.datetime64):
        # Days, moments, periods among other things.
        raise InputError(f"{what} dates first (with pandas.to_datetime) or into numbers")
    try:
        return float(entry)
    except OverflowError:
        raise InputError(f"a number out of range {where}; rescale the data") from None
    except (TypeError, ValueError) as error:
        raise NotANumberError(f"{what} numbers, texts or dates first: {error}") from None
