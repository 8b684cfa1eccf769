"""Rows as they come to an estimator: checked, in double precision, with errors that say what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from dsmgp.validation import check_finite, check_spread, refuse_text

__all__ = ["new_rows", "training_rows"]

Array = NDArray[np.float64]


def training_rows(
    estimator: Any, X: ArrayLike, y: ArrayLike, reset: bool = True
) -> tuple[Array, Array]:
    """Inputs (n, features) and outputs (n,) or (n, n_outputs).

    The estimator notes names and number of its features, or, without ``reset``, holds the rows to those it knows.
    """
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    refuse_text(X, "X")
    refuse_text(y, "y")
    # Sums over columns depend, in their last digits, on how rows lie in memory: always the same way.
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
    if checked_y.ndim not in (1, 2) or 0 in checked_y.shape[1:]:
        raise ValueError(f"expected y with one or two dimensions, got shape {checked_y.shape}")
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


def new_rows(estimator: Any, X: ArrayLike) -> Array:
    """Inputs (n, features) for an estimator that is fitted."""
    check_is_fitted(estimator)
    refuse_text(X, "X")
    checked = validate_data(
        estimator, X, dtype=np.float64, order="C", reset=False, ensure_all_finite=False
    )
    check_finite(checked, "X", getattr(estimator, "feature_names_in_", None))
    return checked
