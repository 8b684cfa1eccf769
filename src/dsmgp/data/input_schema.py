"""How the rows that a user gives become numbers, and how predictions go back.

An :class:`InputSchema` is learned from the training data and kept with the fitted model. It checks and converts
arrays and frames at ``fit``, ``partial_fit`` and ``predict``, and shapes predictions like the training targets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from dsmgp._util.arrays import Array
from dsmgp._util.dates import Dates, encode_dates, encode_training_dates
from dsmgp._util.validation import check_new_rows, check_training_rows
from dsmgp.data.frames import column_names, framed, kind_of
from dsmgp.data.schema import Column, ColumnSchema, input_names, output_names

__all__ = ["InputSchema"]


@dataclass(frozen=True, eq=False)
class InputSchema:
    """Names, dates and shape of the training data.

    Attributes
    ----------
    n_features, n_outputs : int
    feature_names : tuple of str, or None
        None if X was an array.
    target_names : tuple of str, or None
        None if y was an array.
    single_output : bool
        Whether y had one dimension; predictions then have shape (n,) instead of (n, n_outputs).
    dates : dict of int to Dates
        The inputs that were given as dates.
    table : ColumnSchema or None
        How the columns of the training file became inputs; None if X was an array or a frame.
    remarks : tuple of str
        Remarks of the conversion of a file: columns that were dropped or encoded, values that were filled in.
    """

    n_features: int
    n_outputs: int = 1
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    single_output: bool = True
    dates: dict[int, Dates] = field(default_factory=dict)
    table: ColumnSchema | None = None
    remarks: tuple[str, ...] = ()

    @classmethod
    def learn(cls, X: ArrayLike, y: ArrayLike) -> tuple[InputSchema, Array, Array]:
        """Learn the schema of training data.

        Returns
        -------
        schema : InputSchema
        X : ndarray of shape (n, n_features)
        Y : ndarray of shape (n, n_outputs)
        """
        target_names = column_names(y)
        X, dates = encode_training_dates(X)
        validated = _Validated()
        X, y = check_training_rows(validated, X, y)
        Y = y.reshape(len(y), -1)
        names = getattr(validated, "feature_names_in_", None)
        schema = cls(
            n_features=X.shape[1],
            n_outputs=Y.shape[1],
            feature_names=None if names is None else tuple(names),
            target_names=None if target_names is None else tuple(target_names),
            single_output=y.ndim == 1,
            dates=dates,
        )
        return schema, X, Y

    @cached_property
    def input_names(self) -> list[str]:
        """Names of the inputs; x0, x1, ... if they have none."""
        return input_names(self.feature_names, self.n_features)

    @cached_property
    def output_names(self) -> list[str]:
        """Names of the outputs; y, or y0, y1, ..., if they have none."""
        return output_names(self.target_names, self.n_outputs, self.single_output)

    @property
    def displayed_dates(self) -> dict[int, Dates]:
        """Inputs whose numbers stand for dates, in X itself or in the file that it was read from."""
        return self.dates or ({} if self.table is None else self.table.date_inputs)

    @property
    def columns(self) -> ColumnSchema:
        """How the columns of a file become inputs; by their names if the model was fitted to an array or a frame."""
        if self.table is not None:
            return self.table
        columns = (
            Column(name, "date" if number in self.dates else "number")
            for number, name in enumerate(self.input_names)
        )
        return ColumnSchema(tuple(columns), tuple(self.output_names))

    def to_numbers(self, X: ArrayLike) -> Array:
        """Check test inputs and convert them to an array of shape (n, n_features)."""
        X = encode_dates(X, self.dates, self.feature_names)
        return check_new_rows(self._validated, X)

    def training_rows(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        """Check further training data; return arrays of shapes (n, n_features) and (n, n_outputs)."""
        X = encode_dates(X, self.dates, self.feature_names)
        X, y = check_training_rows(self._validated, X, y, reset=False)
        Y = y.reshape(len(y), -1)
        if Y.shape[1] != self.n_outputs:
            raise ValueError(
                f"expected y with {self.n_outputs} outputs, as in fit, got {Y.shape[1]}"
            )
        return X, Y

    def shaped(self, values: Array) -> Array:
        """Drop the last axis, that of the outputs, if y had one dimension."""
        return values[..., 0] if self.single_output else values

    def framed(self, values: Array, X: Any, output: str) -> Any:
        """Shape predictions as :meth:`DSMGPRegressor.set_output` demands.

        Parameters
        ----------
        values : ndarray of shape (n, n_outputs)
        X : the inputs as the user gave them, whose index and kind may be taken over
        output : one of :data:`dsmgp.data.frames.OUTPUTS`
        """
        kind = kind_of(X) if output == "input" else output
        shaped = self.shaped(values)
        return shaped if kind == "default" else framed(shaped, kind, X, self.output_names)

    @cached_property
    def _validated(self) -> _Validated:
        validated = _Validated()
        validated.n_features_in_ = self.n_features
        if self.feature_names is not None:
            validated.feature_names_in_ = np.array(self.feature_names, dtype=object)
        return validated


class _Validated(BaseEstimator):  # type: ignore[misc]
    """Carries names and number of the features through scikit-learn's validation, which keeps them on an estimator."""

    n_features_in_: int
    feature_names_in_: NDArray[np.object_]


# The name in scikit-learn's messages.
_Validated.__name__ = "DSMGPRegressor"
