"""What users give as X and y: read as numbers where all of it is numbers, else as columns; scikit-learn checks names and shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from dsmgp._util.arrays import Array
from dsmgp._util.validation import check_container, check_finite, check_numeric, check_target_shape
from dsmgp.data.columns.encoding import values_as_numbers
from dsmgp.data.columns.values import column_values, frame_values
from dsmgp.data.frames import kind_of

__all__ = ["Validated", "read_inputs", "target_numbers"]


class Validated(BaseEstimator):  # type: ignore[misc]
    """Carries names and number of the features through scikit-learn's validation, which keeps them on an estimator."""

    n_features_in_: int
    feature_names_in_: NDArray[np.object_]


# The name in scikit-learn's messages.
Validated.__name__ = "DSMGPRegressor"


def target_numbers(y: Any) -> tuple[Array, bool]:
    """Return the outputs (n, n_outputs), NaN where one is missing, and whether y has one dimension."""
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    check_container(y, "y")
    if kind_of(y) == "default":
        check_numeric(y, "y")
        given = np.asarray(y)
        if given.dtype.kind == "c":
            raise ValueError("Complex data not supported: y holds complex numbers")
        numbers = given.astype(np.float64)
    else:
        is_frame = hasattr(y, "columns")
        columns = frame_values(y, "y") if is_frame else {"y": column_values(y, "y")}
        for name, values in columns.items():
            if values.kind != "number":
                label = f"column {name!r} of y" if is_frame else "y"
                what = "text" if values.kind == "category" else "dates"
                raise ValueError(f"{label} holds {what}{values.example()}; expected numbers")
        numbers = np.column_stack([values.data for values in columns.values()])
        numbers = numbers if is_frame else numbers[:, 0]
    check_target_shape(numbers)
    check_finite(np.where(np.isnan(numbers), 0.0, numbers), "y")
    single = numbers.ndim == 1
    return np.ascontiguousarray(numbers[:, None] if single else numbers), single


def read_inputs(validated: Validated, X: Any, reset: bool) -> tuple[Any, list[str] | None]:
    """Check names and number of the columns of X; return an array where all of it is numbers, else the columns, and the names."""
    check_container(X, "X")
    if kind_of(X) != "default" and hasattr(X, "columns"):
        columns = frame_values(X)
        validate_data(validated, X, reset=reset, skip_check_array=True)
        names = getattr(validated, "feature_names_in_", None)
        if not columns or not len(X):
            raise ValueError(f"found array with {len(X)} sample(s) and {len(columns)} feature(s)")
        listed = None if names is None else list(names)
        if all(values.kind == "number" for values in columns.values()):
            return np.column_stack([values.data for values in columns.values()]), listed
        return list(columns.values()), listed
    array = _as_array(X)
    if getattr(array, "dtype", np.dtype(float)).kind in "OUSMm" and np.ndim(array) == 2:
        validate_data(validated, array, reset=reset, skip_check_array=True)
        if not array.size:
            raise ValueError(f"found array with {len(array)} sample(s)")
        values = [column_values(column, f"column {k} of X") for k, column in enumerate(array.T)]
        # Texts that are all numbers count as numbers, as in scikit-learn.
        values = [v if v.kind != "category" else values_as_numbers(v) or v for v in values]
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
        ensure_min_samples=2 if reset else 1,
    )
    return checked, None


def _as_array(X: Any) -> Any:
    """Return lists and what has a dtype as an array, anything else as it is."""
    if not isinstance(X, (list, tuple)) and not hasattr(X, "dtype"):
        return X
    try:
        return np.asarray(X)
    except ValueError:
        raise ValueError(
            "expected X with as many entries in each row, got rows of different lengths"
        ) from None
