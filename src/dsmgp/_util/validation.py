"""Checks of arguments and data, with errors in the user's terms: what was expected, what was given, what to do."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LARGEST
from dsmgp._util.errors import InputError

# The same in single precision, with room for small length scales.
SINGLE_LARGEST = 1e12
# Least variance of outputs in single precision: a noise variance of a ten-thousandth of it must be representable.
SINGLE_LEAST_VARIANCE = 1e-32

__all__ = [
    "check_choice",
    "check_count",
    "check_finite",
    "check_in_range",
    "check_levels",
    "check_row_ids",
    "check_spread",
    "check_variance",
    "input_number",
    "is_whole_number",
    "random_generator",
]


def check_choice(name: str, value: Any, valid: Iterable[str], otherwise: str = "") -> None:
    """Raise unless ``value`` is one of the valid names, which are listed."""
    names = list(valid)
    if not (isinstance(value, str) and value in names):
        listed = ", ".join(repr(v) for v in names)
        raise InputError(
            f"expected {name} to be one of {listed}{' ' + otherwise if otherwise else ''}, got {value!r}"
        )


def is_whole_number(value: Any) -> bool:
    """Return whether a value is an integer of Python or NumPy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, least: int = 1, none: bool = False) -> Any:
    """Return a whole number of at least ``least`` (or None where ``none`` allows it); raise for anything else."""
    if value is None and none:
        return None
    if not is_whole_number(value) or value < least:
        raise InputError(f"expected {name} to be a whole number of at least {least}, got {value!r}")
    return int(value)


def check_finite(values: Array, what: str, names: Sequence[str] | None = None) -> None:
    """Raise for NaN, infinity and numbers whose square overflows, naming the first row and column."""
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
    raise InputError(
        f"{what} contains {kind} in {where}"
        + (f", and {n_bad - 1} more such entries" if n_bad > 1 else "")
        + ("; rescale the data" if np.isfinite(entry) else "; drop or impute such rows first")
    )


def check_spread(y: Array) -> None:
    """Raise for outputs that vary by so little that their variance underflows."""
    for output, spread in enumerate(np.atleast_1d(np.ptp(y, axis=0))):
        if 0.0 < spread < 1.0 / LARGEST:
            which = f" in column {output}" if y.ndim > 1 else ""
            raise InputError(
                f"y varies by {spread:g} only{which}, and squares of that are out of range; rescale the data"
            )


def check_variance(variance: float, single: bool) -> float:
    """Return the variance of the scaled outputs; raise if it underflows in single precision."""
    if single and variance < SINGLE_LEAST_VARIANCE:
        raise InputError(
            f"y varies by {np.sqrt(variance):g} only, and squares of that are out of range in single precision; rescale the data, or "
            "use standardize=True or dtype='float64'"
        )
    return variance


def check_in_range(values: Array, what: str, single: bool = False) -> Array:
    """Return scaled rows; raise if they are out of the range of the precision.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        Rows, scaled as the leaf GPs take them.
    what : str
        Name of the argument, for the error.
    single : bool
        Whether the leaf GPs compute in single precision.
    """
    limit = SINGLE_LARGEST if single else LARGEST
    beyond = ~(np.abs(values) < limit)
    if beyond.any():
        raise InputError(
            f"row {np.argwhere(beyond)[0][0]} of {what} lies more than {limit:g} units away from the training rows, which is out of "
            f"range{' in single precision' if single else ''}; check the units of that row"
            + (", or use dtype='float64'" if single else "")
        )
    return values


def input_number(dimension: Any, n_inputs: int, names: Sequence[str] | None = None) -> int:
    """Return the number of an input that is given by number or name."""
    if isinstance(dimension, str):
        known = [] if names is None else list(names)
        if dimension in known:
            return known.index(dimension)
        listed = ", ".join(map(repr, known[:20])) + (", ..." if len(known) > 20 else "")
        raise InputError(
            f"unknown input {dimension!r}: "
            + (f"expected one of {listed}" if known else "inputs have no names; give a number")
        )
    if not is_whole_number(dimension) or not 0 <= dimension < n_inputs:
        raise InputError(
            f"expected the number of an input, 0..{n_inputs - 1}, or its name, got {dimension!r}"
        )
    return int(dimension)


def check_levels(quantiles: Any) -> Array:
    """Return the levels of quantiles, a number or a list of numbers, as an array of shape (n_levels,)."""
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    if levels.ndim > 1:
        raise InputError(f"expected quantiles to be a list of levels, got {quantiles!r}")
    return levels


def check_row_ids(row_ids: Any) -> Index:
    """Return row ids as an array; raise for duplicates."""
    given = np.atleast_1d(np.asarray(row_ids))
    if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
        raise InputError(
            f"expected row_ids to be a list of whole numbers, got {given.dtype} of shape {np.shape(row_ids)}"
        )
    ids = given.astype(np.int64)
    if len(np.unique(ids)) < len(ids):
        values, counts = np.unique(ids, return_counts=True)
        raise InputError(f"expected each row once in row_ids, got {values[counts > 1][0]} twice")
    return ids


def random_generator(random_state: Any) -> np.random.Generator:
    """Return a generator from an int, None, a RandomState (from which numbers are drawn) or a Generator (returned as it is)."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(2**31, size=4))
