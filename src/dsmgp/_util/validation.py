"""Checks of arguments and data, with errors in the user's terms: what was expected, what was given, what to do."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import EXACT, LARGEST
from dsmgp._util.warnings import warn_user

# The same in single precision, with room for small length scales.
SINGLE_LARGEST = 1e12
# Least variance of outputs in single precision: a noise variance of a ten-thousandth of it must be representable.
SINGLE_LEAST_VARIANCE = 1e-32
# Noise variances over smaller weights, squared, would overflow.
LEAST_WEIGHT = 1e-100

__all__ = [
    "check_choice",
    "check_container",
    "check_count",
    "check_finite",
    "check_in_range",
    "check_levels",
    "check_new_rows",
    "check_noise",
    "check_numeric",
    "check_row_ids",
    "check_spread",
    "check_target_shape",
    "check_training_rows",
    "check_variance",
    "check_weights",
    "input_number",
    "is_whole_number",
    "random_generator",
]


def check_choice(name: str, value: Any, valid: Iterable[str], otherwise: str = "") -> None:
    """Raise unless ``value`` is one of the valid names, which are listed."""
    names = list(valid)
    if not (isinstance(value, str) and value in names):
        listed = ", ".join(repr(v) for v in names)
        raise ValueError(
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
        raise ValueError(f"expected {name} to be a whole number of at least {least}, got {value!r}")
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
    raise ValueError(
        f"{what} contains {kind} in {where}"
        + (f", and {n_bad - 1} more such entries" if n_bad > 1 else "")
        + ("; rescale the data" if np.isfinite(entry) else "; drop or impute such rows first")
    )


def check_spread(y: Array) -> None:
    """Raise for outputs that vary by so little that their variance underflows."""
    for output, spread in enumerate(np.atleast_1d(np.ptp(y, axis=0))):
        if 0.0 < spread < 1.0 / LARGEST:
            which = f" in column {output}" if y.ndim > 1 else ""
            raise ValueError(
                f"y varies by {spread:g} only{which}, and squares of that are out of range; rescale the data"
            )


def check_variance(variance: float, single: bool) -> float:
    """Return the variance of the scaled outputs; raise if it underflows in single precision."""
    if single and variance < SINGLE_LEAST_VARIANCE:
        raise ValueError(
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
        raise ValueError(
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
        raise ValueError(
            f"unknown input {dimension!r}: "
            + (f"expected one of {listed}" if known else "inputs have no names; give a number")
        )
    if not is_whole_number(dimension) or not 0 <= dimension < n_inputs:
        raise ValueError(
            f"expected the number of an input, 0..{n_inputs - 1}, or its name, got {dimension!r}"
        )
    return int(dimension)


def check_numeric(values: Any, what: str) -> None:
    """Raise for entries that are not numbers (text, dates, masked or missing), naming column and row, before anything converts them."""
    check_container(values, what)
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
            _check_column(np.asarray(column), label)
        return
    array = np.asarray(values) if hasattr(values, "dtype") else None
    if array is None and isinstance(values, (list, tuple)):
        try:
            array = np.asarray(values)
        except ValueError:
            return  # ragged: the check of its shape raises
    if array is not None and array.dtype.kind in "OUSmMiu" and array.ndim in (1, 2):
        for k in range(array.shape[1] if array.ndim == 2 else 1):
            label = f"column {k} of {what}" if array.ndim == 2 else what
            _check_column(array[:, k] if array.ndim == 2 else array.reshape(-1), label)


def check_container(values: Any, what: str) -> None:
    """Raise for tables and arrays of unsupported kinds."""
    if hasattr(values, "collect_schema") and not hasattr(values, "to_numpy"):
        raise ValueError(f"{what} is a lazy frame; call .collect() on it first")
    if hasattr(values, "to_pandas") and hasattr(values, "column_names"):
        raise ValueError(f"{what} is an Arrow table; call .to_pandas() on it first")
    first = values[0] if isinstance(values, (list, tuple)) and len(values) else values
    # A sparse matrix may be a dict, too.
    by_name = isinstance(first, dict) and not hasattr(first, "dtype")
    if by_name or getattr(getattr(first, "dtype", None), "names", None):
        raise ValueError(
            f"{what} holds values by name; turn it into a frame first, as with pandas.DataFrame"
        )
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


def _check_column(column: NDArray[Any], label: str) -> None:
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
        elif entry is not None:  # None becomes NaN, for which check_finite raises
            _check_entry(entry, f"in {label}, row {row}")


def _check_entry(entry: Any, where: str) -> None:
    if type(entry).__name__ == "NAType":  # of pandas; it has no truth value
        raise ValueError(f"missing value {where}; drop or impute such rows first")
    if hasattr(entry, "year") or isinstance(entry, (np.datetime64, np.timedelta64)):
        raise ValueError(  # days, moments, periods
            f"a {type(entry).__name__} {where}, which is not a number; turn the column into dates first "
            "(with pandas.to_datetime) or into numbers"
        )
    try:
        float(entry)
    except OverflowError:
        raise ValueError(f"a number out of range {where}; rescale the data") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"a {type(entry).__name__} {where}: {error}") from None


def check_training_rows(
    estimator: Any, X: ArrayLike, y: ArrayLike, reset: bool = True
) -> tuple[Array, Array]:
    """Validate training data.

    Parameters
    ----------
    estimator : BaseEstimator
        Gets ``n_features_in_`` and ``feature_names_in_``, or, without ``reset``, has them already.
    X, y : array-like or frames
    reset : bool
        Whether this is the first training data of the estimator.

    Returns
    -------
    X : ndarray of shape (n, n_features)
    y : ndarray of shape (n,) or (n, n_outputs)
    """
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    check_numeric(X, "X")
    check_numeric(y, "y")
    # The last digits of sums over columns depend on the memory layout: always use the same one.
    checks = {"dtype": np.float64, "order": "C", "ensure_all_finite": False}
    checked_X, checked_y = validate_data(
        estimator,
        X,
        y,
        reset=reset,
        validate_separately=(
            {**checks, "accept_sparse": False, "ensure_min_samples": 2 if reset else 1},
            {
                **checks,
                "ensure_2d": False,
                "allow_nd": True,
                "ensure_min_samples": 0,
                "ensure_min_features": 0,
            },
        ),
    )
    check_target_shape(checked_y)
    if len(checked_y) != len(checked_X):
        raise ValueError(
            f"expected as many values of y as rows of X, got {len(checked_y)} and "
            f"{len(checked_X)}: inconsistent numbers of samples"
        )
    check_finite(checked_X, "X", getattr(estimator, "feature_names_in_", None))
    check_finite(checked_y, "y")
    if reset:
        check_spread(checked_y)
    return checked_X, checked_y


def check_target_shape(y: Array) -> None:
    """Raise unless outputs have one dimension, or two with a column at least."""
    if y.ndim not in (1, 2) or 0 in y.shape[1:]:
        raise ValueError(f"expected y with one or two dimensions, got shape {y.shape}")


def check_new_rows(estimator: Any, X: ArrayLike) -> Array:
    """Validate test inputs of a fitted estimator; return an array of shape (n, n_features)."""
    check_numeric(X, "X")
    checked = validate_data(
        estimator, X, dtype=np.float64, order="C", reset=False, ensure_all_finite=False
    )
    check_finite(checked, "X", getattr(estimator, "feature_names_in_", None))
    return checked


def check_noise(noise: Any, shape: tuple[int, int]) -> Array | None:
    """Return known noise variances as an array of shape (n_rows, n_outputs)."""
    if noise is None:
        return None
    check_numeric(noise, "noise")
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


def check_weights(sample_weight: Any, n_rows: int, least: int = 1) -> Array | None:
    """Return the weights of rows, (n_rows,), of which at least ``least`` must be above zero."""
    if sample_weight is None:
        return None
    check_numeric(sample_weight, "sample_weight")
    try:
        weights = np.array(sample_weight, dtype=np.float64)
    except TypeError:
        raise ValueError(f"expected weights as numbers, got {sample_weight!r}") from None
    if weights.shape != (n_rows,):
        raise ValueError(
            f"expected sample_weight to have one weight for each of the {n_rows} rows, got shape {weights.shape}"
        )
    check_finite(weights, "sample_weight")
    outside = (weights != 0) & ~((weights >= LEAST_WEIGHT) & (weights <= 1.0 / LEAST_WEIGHT))
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"expected weights from {LEAST_WEIGHT:g} to {1.0 / LEAST_WEIGHT:g} in sample_weight, or 0 to leave a row out, got "
            f"{weights[row]:g} in row {row}; rescale the weights, and do not use negative ones"
        )
    if np.count_nonzero(weights) < least:
        raise ValueError(
            f"expected at least {least} {'row' if least == 1 else 'rows'} with a weight above zero in sample_weight, got "
            f"{np.count_nonzero(weights)}; give weights, or leave sample_weight out"
        )
    return weights


def check_levels(quantiles: Any) -> Array:
    """Return the levels of quantiles, a number or a list of numbers, as an array of shape (n_levels,)."""
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    if levels.ndim > 1:
        raise ValueError(f"expected quantiles to be a list of levels, got {quantiles!r}")
    return levels


def check_row_ids(row_ids: Any) -> Index:
    """Return row ids as an array; raise for duplicates."""
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
    """Return a generator from an int, None, a RandomState (from which numbers are drawn) or a Generator (returned as it is)."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(2**31, size=4))
