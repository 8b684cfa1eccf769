"""Frames and series of pandas and polars: recognise them, read their names, and return predictions as such."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index

__all__ = ["OUTPUTS", "column_names", "framed", "kind_of", "taken"]

#: What :meth:`DSMGPRegressor.set_output` takes: arrays, the kind of the input, or always one kind.
OUTPUTS = ("default", "input", "pandas", "polars")


def kind_of(data: Any) -> str:
    """Return ``"pandas"``, ``"polars"`` or ``"default"``, without importing either library."""
    for kind in ("pandas", "polars"):
        library = sys.modules.get(kind)
        if library is not None and isinstance(data, (library.DataFrame, library.Series)):
            return kind
    return "default"


def column_names(y: Any) -> list[str] | None:
    """Return the names of a frame's columns or of a series, or None if there are none."""
    if kind_of(y) == "default":
        return None
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    return [str(y.name)] if y.name not in (None, "") else None


def taken(X: Any, rows: Index) -> Any:
    """Return some rows of a frame or an array-like.

    Examples
    --------
    >>> import numpy as np
    >>> taken([[1.0], [2.0], [3.0]], np.array([0, 2]))
    array([[1.],
           [3.]])
    """
    kind = kind_of(X)
    if kind == "pandas":
        return X.iloc[rows]
    return X[rows] if kind == "polars" else np.asarray(X)[rows]


def framed(values: Array, kind: str, X: Any, names: Sequence[str]) -> Any:
    """Return predictions as a series (one output) or a frame.

    Parameters
    ----------
    values : ndarray of shape (n,) or (n, n_outputs)
    kind : "pandas" or "polars"
    X : the inputs, whose index is taken over if it has one
    names : sequence of str
        Names of the outputs.
    """
    library = import_module(kind)
    if kind == "pandas":
        index = X.index if kind_of(X) == "pandas" else None
        if values.ndim == 1:
            return library.Series(values, index=index, name=names[0])
        return library.DataFrame(values, index=index, columns=list(names))
    if values.ndim == 1:
        return library.Series(names[0], values)
    return library.DataFrame(dict(zip(names, values.T, strict=True)))
