"""Errors in the user's words: what was expected, what came, and what to do."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dsmgp.notices import warn_user

# Beyond this squares overflow.
LARGEST = 1e150
# The same in single precision, with room for small length-scales.
SINGLE_LARGEST = 1e12
# The least variance of outputs there: noise that is a ten-thousandth of it must still be a number.
SINGLE_LEAST_VARIANCE = 1e-32
# Beyond this double precision leaves whole numbers out.
EXACT = 2**53

__all__ = [
    "check_choice",
    "check_count",
    "check_finite",
    "check_noise",
    "check_reach",
    "check_row_ids",
    "check_spread",
    "check_variance",
    "input_number",
    "random_generator",
    "refuse_text",
]


def check_choice(name: str, value: Any, valid: Iterable[str], otherwise: str = "") -> None:
    """Refuse a name that is none of the valid ones, and list them."""
    names = list(valid)
    if not (isinstance(value, str) and value in names):
        listed = ", ".join(repr(v) for v in names)
        raise ValueError(
            f"expected {name} to be one of {listed}{' ' + otherwise if otherwise else ''}, got {value!r}"
        )


def check_count(name: str, value: Any, least: int = 1, none: bool = False) -> Any:
    """A whole number of at least ``least`` (or None where that is allowed)."""
    if value is None and none:
        return None
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"expected {name} to be a whole number of at least {least}, got {value!r}")
    return int(value)


def check_finite(
    values: NDArray[np.float64], what: str, names: Sequence[str] | None = None
) -> None:
    """Refuse NaN, infinity and numbers whose square is out of range, naming the first row and column."""
    with np.errstate(invalid="ignore"):
        finite = np.abs(values) < LARGEST
    if finite.all():
        return
    row, *rest = np.argwhere(~finite)[0]
    column = int(rest[0]) if rest else None
    entry = values[tuple(np.argwhere(~finite)[0])]
    kind = "NaN" if np.isnan(entry) else "infinity (inf)" if np.isinf(entry) else f"{entry:g}"
    where = f"row {row}"
    if column is not None:
        label = f" ({names[column]!r})" if names is not None else ""
        where += f", column {column}{label}"
    n_bad = int((~finite).sum())
    raise ValueError(
        f"{what} contains {kind} in {where}"
        + (f", and {n_bad - 1} more such entries" if n_bad > 1 else "")
        + ("; rescale the data" if np.isfinite(entry) else "; drop or impute such rows first")
    )


def check_spread(y: NDArray[np.float64]) -> None:
    """Refuse outputs that vary by so little that their variance is out of range."""
    for output, spread in enumerate(np.atleast_1d(np.ptp(y, axis=0))):
        if 0.0 < spread < 1.0 / LARGEST:
            which = f" in column {output}" if y.ndim > 1 else ""
            raise ValueError(
                f"y varies by {spread:g} only{which}, and squares of that are out of range; rescale the data"
            )


def check_variance(variance: float, single: bool) -> float:
    """The same variance, of outputs in the units of the experts; refused where it is out of the range of their precision."""
    if single and variance < SINGLE_LEAST_VARIANCE:
        raise ValueError(
            f"y varies by {np.sqrt(variance):g} only, and squares of that are out of range in single precision; rescale the data, or "
            "use standardize=True or dtype='float64'"
        )
    return variance


def check_reach(
    values: NDArray[np.float64], what: str, single: bool = False
) -> NDArray[np.float64]:
    """The same values, in the units of the experts; refused where these are out of the range of their precision."""
    limit = SINGLE_LARGEST if single else LARGEST
    beyond = ~(np.abs(values) < limit)
    if beyond.any():
        raise ValueError(
            f"row {np.argwhere(beyond)[0][0]} of {what} lies more than {limit:g} units away from the training rows, which is out of "
            f"range{' in single precision' if single else ''}; check the units of that row"
            + (", or use dtype='float64'" if single else "")
        )
    return values


def input_number(dimension: Any, n_inputs: int, names: Sequence[str] | None = None) -> int:
    """The number of an input that was given by number or name."""
    if isinstance(dimension, str):
        known = [] if names is None else list(names)
        if dimension in known:
            return known.index(dimension)
        listed = ", ".join(map(repr, known[:20])) + (", ..." if len(known) > 20 else "")
        raise ValueError(
            f"unknown input {dimension!r}: "
            + (f"expected one of {listed}" if known else "inputs have no names; give a number")
        )
    whole = isinstance(dimension, numbers.Integral) and not isinstance(dimension, bool)
    if not whole or not 0 <= dimension < n_inputs:
        raise ValueError(
            f"expected the number of an input, 0..{n_inputs - 1}, or its name, got {dimension!r}"
        )
    return int(dimension)


def refuse_text(values: Any, what: str) -> None:
    """Refuse what is no number, naming column and row, before anything converts it: text, dates, entries that are masked or missing."""
    _refuse_kind(values, what)
    columns = getattr(values, "columns", None)
    if columns is not None:
        seen: set[Any] = set()
        for name in columns:
            if name in seen:
                raise ValueError(f"{what} has more than one column {name!r}; rename one of them")
            seen.add(name)
            column = values[name]
            label = f"column {name!r} of {what}"
            if str(getattr(column, "dtype", "")).startswith(("Time", "Duration")):  # of polars
                raise ValueError(f"{label} holds times; turn them into numbers first")
            _refuse_text_in(np.asarray(column), label)
        return
    array = np.asarray(values) if hasattr(values, "dtype") else None
    if array is None and isinstance(values, (list, tuple)):
        try:
            array = np.asarray(values)
        except ValueError:
            return  # ragged: the shape check says so
    if array is not None and array.dtype.kind in "OUSmMiu" and array.ndim in (1, 2):
        for k in range(array.shape[1] if array.ndim == 2 else 1):
            label = f"column {k} of {what}" if array.ndim == 2 else what
            _refuse_text_in(array[:, k] if array.ndim == 2 else array.reshape(-1), label)


def _refuse_kind(values: Any, what: str) -> None:
    """Tables and arrays that are not what they seem."""
    if hasattr(values, "collect_schema") and not hasattr(values, "to_numpy"):
        raise ValueError(f"{what} is a lazy frame; call .collect() on it first")
    if hasattr(values, "to_pandas") and hasattr(values, "column_names"):
        raise ValueError(f"{what} is an Arrow table; call .to_pandas() on it first")
    if getattr(values, "requires_grad", False):
        raise ValueError(f"{what} is a tensor that records gradients; call .detach() on it first")
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        mask = np.ma.getmaskarray(values)
        n_more = int(mask.sum()) - 1
        raise ValueError(
            f"{what} is masked in row {np.argwhere(mask)[0][0]}"
            + (f" and in {n_more} more places" if n_more else "")
            + "; drop or impute such rows first"
        )


def _refuse_text_in(column: NDArray[Any], label: str) -> None:
    if column.dtype.kind in "mM":
        raise ValueError(f"{label} holds dates or times; turn them into numbers first")
    if column.dtype.kind in "iu" and column.size and max(column.max(), -int(column.min())) > EXACT:
        warn_user(
            f"{label} holds whole numbers beyond 2**53, of which the last digits are lost; subtract an offset first",
            topic=f"digits of {label}",
        )
    if column.dtype.kind not in "OUS":
        return
    for row, entry in enumerate(column):
        if isinstance(entry, (str, bytes)):
            try:
                float(entry)
            except ValueError:
                raise ValueError(
                    f"could not convert text to float: {str(entry)!r} in {label}, row {row}; encode "
                    "categories as numbers first (for example with OneHotEncoder)"
                ) from None
        elif entry is not None:  # which is a number that is missing, and said to be so
            _refuse_entry(entry, f"in {label}, row {row}")


def _refuse_entry(entry: Any, where: str) -> None:
    if type(entry).__name__ == "NAType":  # pandas' own, which has no truth value
        raise ValueError(f"missing value {where}; drop or impute such rows first")
    if hasattr(entry, "year") or isinstance(entry, (np.datetime64, np.timedelta64)):
        raise ValueError(  # days, moments, periods
            f"a {type(entry).__name__} {where}, which is no number; turn the column into dates first "
            "(with pandas.to_datetime) or into numbers"
        )
    try:
        float(entry)
    except OverflowError:
        raise ValueError(f"a number out of range {where}; rescale the data") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"a {type(entry).__name__} {where}: {error}") from None


def check_noise(noise: Any, shape: tuple[int, int]) -> NDArray[np.float64] | None:
    """Known noise variances as a table of rows and outputs."""
    if noise is None:
        return None
    refuse_text(noise, "noise")
    try:
        given = np.asarray(noise, dtype=np.float64)
    except TypeError:
        raise ValueError(f"expected noise variances as numbers, got {noise!r}") from None
    if given.ndim == 1:
        given = given[:, None]
    if given.shape not in ((), (shape[0], 1), shape):
        raise ValueError(
            f"expected one noise variance for each of the {shape[0]} rows (and each of the {shape[1]} outputs), "
            f"got shape {np.shape(noise)}"
        )
    check_finite(np.atleast_1d(given), "noise")
    if (given < 0).any():
        where = np.argwhere(np.broadcast_to(given, shape) < 0)[0]
        raise ValueError(
            f"noise variances cannot be negative, got {np.broadcast_to(given, shape)[tuple(where)]} in row {where[0]}; "
            "give variances, not logarithms or deviations with a sign"
        )
    return np.array(np.broadcast_to(given, shape))


def check_row_ids(row_ids: Any) -> NDArray[np.int64]:
    """Numbers of rows, each once."""
    given = np.atleast_1d(np.asarray(row_ids))
    if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
        raise ValueError(
            f"expected row_ids to be a list of whole numbers, got {given.dtype} of shape {np.shape(row_ids)}"
        )
    ids = given.astype(np.int64)
    if len(np.unique(ids)) < len(ids):
        values, counts = np.unique(ids, return_counts=True)
        raise ValueError(f"expected each row once in row_ids, got {values[counts > 1][0]} twice")
    return ids


def random_generator(random_state: Any) -> np.random.Generator:
    """A generator from an int, None, a RandomState (which moves on) or a Generator (used as it is)."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(2**31, size=4))
