"""What users give as X, y, noise and weights of rows, as numbers where all of it is numbers; X also as columns.

scikit-learn checks names and shape of X.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_finite
from dsmgp.data.columns.encoding import values_as_numbers
from dsmgp.data.columns.values import KINDS, Values, column_values, frame_values
from dsmgp.data.frames import kind_of

__all__ = [
    "Validated",
    "check_lengths",
    "check_noise",
    "check_numbers",
    "check_weights",
    "read_inputs",
    "target_numbers",
]

# Noise variances over smaller weights, squared, would overflow.
LEAST_WEIGHT = 1e-100


class Validated(BaseEstimator):  # type: ignore[misc]
    """Carries names and number of the features through scikit-learn's validation, which keeps them on an estimator."""

    n_features_in_: int
    feature_names_in_: NDArray[np.object_]


# The name in scikit-learn's messages.
Validated.__name__ = "DSMGPRegressor"


def target_numbers(y: Any) -> tuple[Array, bool]:
    """Return the outputs (n, n_outputs), NaN where one is missing, and whether y has one dimension."""
    if y is None:
        raise InputError("this estimator requires y to be passed, but the target y is None")
    numbers = _numbers(y, "y")
    if numbers.ndim not in (1, 2) or 0 in numbers.shape[1:]:
        raise InputError(f"expected y with one or two dimensions, got shape {numbers.shape}")
    check_finite(np.where(np.isnan(numbers), 0.0, numbers), "y")
    single = numbers.ndim == 1
    return np.ascontiguousarray(numbers[:, None] if single else numbers), single


def check_noise(noise: Any, shape: tuple[int, int]) -> Array | None:
    """Return known noise variances as an array of shape (n_rows, n_outputs)."""
    if noise is None:
        return None
    given = _numbers(noise, "noise")
    if given.ndim == 1:
        given = given[:, None]
    if given.shape not in ((), (shape[0], 1), shape):
        raise InputError(
            f"expected one noise variance for each of the {shape[0]} rows (and each of the {shape[1]} outputs), "
            f"got shape {np.shape(noise)}"
        )
    check_finite(np.atleast_1d(given), "noise")
    if (given < 0).any():
        where = np.argwhere(np.broadcast_to(given, shape) < 0)[0]
        raise InputError(
            f"noise variances cannot be negative, got {np.broadcast_to(given, shape)[tuple(where)]} in row {where[0]}; "
            "give variances, not logarithms or deviations with a sign"
        )
    return np.array(np.broadcast_to(given, shape))


def check_weights(sample_weight: Any, n_rows: int, least: int = 1) -> Array | None:
    """Return the weights of rows, (n_rows,), of which at least ``least`` must be above zero."""
    if sample_weight is None:
        return None
    weights = _numbers(sample_weight, "sample_weight")
    if weights.shape != (n_rows,):
        raise InputError(
            f"expected sample_weight to have one weight for each of the {n_rows} rows, got shape {weights.shape}"
        )
    check_finite(weights, "sample_weight")
    outside = (weights != 0) & ~((weights >= LEAST_WEIGHT) & (weights <= 1.0 / LEAST_WEIGHT))
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise InputError(
            f"expected weights from {LEAST_WEIGHT:g} to {1.0 / LEAST_WEIGHT:g} in sample_weight, or 0 to leave a row out, got "
            f"{weights[row]:g} in row {row}; rescale the weights, and do not use negative ones"
        )
    if np.count_nonzero(weights) < least:
        raise InputError(
            f"expected at least {least} {'row' if least == 1 else 'rows'} with a weight above zero in sample_weight, got "
            f"{np.count_nonzero(weights)}; give weights, or leave sample_weight out"
        )
    return weights


def read_inputs(validated: BaseEstimator, X: Any, reset: bool) -> tuple[Any, list[str] | None]:
    """Check names and number of the columns of X; return an array where all of it is numbers, else the columns, and the names."""
    check_container(X, "X")
    if getattr(X, "ndim", 2) == 1 and hasattr(X, "name") and kind_of(X) != "default":
        raise InputError(
            "expected X as a table, got a series: of one row use X.iloc[[0]] in place of X.iloc[0], of one column X[['a']] in place of "
            "X['a']. Reshape your data"
        )
    least = 2 if reset else 1
    if kind_of(X) != "default" and hasattr(X, "columns"):
        columns = frame_values(X)
        validate_data(validated, X, reset=reset, skip_check_array=True)
        names = getattr(validated, "feature_names_in_", None)
        if not columns or len(X) < least:
            raise InputError(
                f"found array with {len(X)} sample(s) and {len(columns)} feature(s), and a minimum of {least} sample(s) and of 1 "
                "feature(s) is required"
            )
        listed = None if names is None else list(names)
        if all(values.kind == "number" for values in columns.values()):
            return np.column_stack([values.data for values in columns.values()]), listed
        return list(columns.values()), listed
    array = _as_array(X, "X")
    if getattr(array, "dtype", np.dtype(float)).kind in "OUSMm" and np.ndim(array) == 2:
        validate_data(validated, array, reset=reset, skip_check_array=True)
        if not array.size or len(array) < least:
            raise InputError(
                f"found array with {len(array)} sample(s), and a minimum of {least} is required"
            )
        values = list(_array_columns(array, "X").values())
        if all(each.kind == "number" for each in values):
            return np.column_stack([each.data for each in values]), None
        return values, None
    checked = validate_data(
        validated,
        X,
        reset=reset,
        dtype=np.float64,
        order="C",
        accept_sparse=False,
        ensure_all_finite=False,
        ensure_min_samples=least,
    )
    return checked, None


def check_lengths(table: Any, Y: Array) -> None:
    """Raise unless there are as many outputs as rows of an array or of a list of columns."""
    n_rows = len(table) if isinstance(table, np.ndarray) else len(table[0])
    if len(Y) != n_rows:
        raise InputError(
            f"expected as many values of y as rows of X, got {len(Y)} and {n_rows}: inconsistent numbers of samples"
        )


def check_numbers(columns: Mapping[str, Values]) -> None:
    """Raise for a column that does not hold numbers; names of columns are those for errors."""
    for label, values in columns.items():
        if values.kind != "number":
            raise InputError(
                f"{label} holds {KINDS[values.kind]}{values.example()}; expected numbers"
            )


def _numbers(given: Any, what: str) -> Array:
    """Return an array, a series or a frame of numbers as floats, NaN where one is missing."""
    check_container(given, what)
    if kind_of(given) == "default":
        array = _as_array(given, what)
        kind = getattr(array, "dtype", np.dtype(float)).kind
        if kind == "c":
            raise InputError(f"Complex data not supported: {what} holds complex numbers")
        if kind not in "OUSmMiu" or np.ndim(array) not in (1, 2) or not np.size(array):
            try:
                return np.array(array, dtype=np.float64)
            except TypeError:
                raise InputError(f"expected {what} as numbers, got {given!r}") from None
        columns = _array_columns(array, what)
    elif hasattr(given, "columns"):
        named = frame_values(given, what).items()
        columns = {f"column {name!r} of {what}": values for name, values in named}
    else:
        columns = {what: column_values(given, what)}
    check_numbers(columns)
    if list(columns) == [what]:  # one dimension
        return np.array(columns[what].data)
    return np.column_stack([values.data for values in columns.values()])


def _array_columns(array: NDArray[Any], what: str) -> dict[str, Values]:
    """Return the columns of an array by their names for errors; texts that are all numbers count as numbers, as in scikit-learn."""
    labelled = (
        {f"column {k} of {what}": column for k, column in enumerate(array.T)}
        if array.ndim == 2
        else {what: array}
    )
    columns = {label: column_values(column, label) for label, column in labelled.items()}
    return {
        label: values if values.kind != "category" else values_as_numbers(values) or values
        for label, values in columns.items()
    }


def check_container(values: Any, what: str) -> None:
    """Raise for tables and arrays of unsupported kinds."""
    if hasattr(values, "collect_schema") and not hasattr(values, "to_numpy"):
        raise InputError(f"{what} is a lazy frame; call .collect() on it first")
    if hasattr(values, "to_pandas") and hasattr(values, "column_names"):
        raise InputError(f"{what} is an Arrow table; call .to_pandas() on it first")
    first = values[0] if isinstance(values, (list, tuple)) and len(values) else values
    # A sparse matrix may be a dict, too.
    by_name = isinstance(first, dict) and not hasattr(first, "dtype")
    if by_name or getattr(getattr(first, "dtype", None), "names", None):
        raise InputError(
            f"{what} holds values by name; turn it into a frame first, as with pandas.DataFrame"
        )
    if getattr(values, "requires_grad", False):
        raise InputError(f"{what} is a tensor that records gradients; call .detach() on it first")
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        mask = np.ma.getmaskarray(values)
        n_more = int(mask.sum()) - 1
        raise InputError(
            f"{what} is masked in row {np.argwhere(mask)[0][0]}"
            + (f" and in {n_more} more places" if n_more else "")
            + "; drop or impute such rows first"
        )


def _as_array(given: Any, what: str) -> Any:
    """Return lists and what has a dtype as an array, anything else as it is."""
    if not isinstance(given, (list, tuple)) and not hasattr(given, "dtype"):
        return given
    try:
        return np.asarray(given)
    except ValueError:
        raise InputError(
            f"expected {what} with as many entries in each row, got rows of different lengths"
        ) from None
