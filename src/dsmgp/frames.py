"""Predictions as frames of the kind that the rows came in: pandas or polars."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["OUTPUTS", "column_names", "framed", "kind_of"]

Array = NDArray[np.float64]
#: What :meth:`DSMGPRegressor.set_output` takes: arrays, what the input was, or always one kind.
OUTPUTS = ("default", "input", "pandas", "polars")


def kind_of(rows: Any) -> str:
    """``"pandas"``, ``"polars"`` or ``"default"``; nothing is imported to find out."""
    for kind in ("pandas", "polars"):
        library = sys.modules.get(kind)
        if library is not None and isinstance(rows, (library.DataFrame, library.Series)):
            return kind
    return "default"


def column_names(y: Any) -> list[str] | None:
    """Names of the outputs, where y has them."""
    if kind_of(y) == "default":
        return None
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    return [str(y.name)] if y.name not in (None, "") else None


def framed(values: Array, kind: str, rows: Any, names: list[str] | None) -> Any:
    """Values of one output as a series, and of several as a frame, with the index of the rows if they have one."""
    if kind == "default":
        return values
    library = import_module(kind)
    if kind == "pandas":
        index = rows.index if kind_of(rows) == "pandas" else None
        if values.ndim == 1:
            return library.Series(values, index=index, name=(names or ["y"])[0])
        return library.DataFrame(values, index=index, columns=names or _numbered(values))
    if values.ndim == 1:
        return library.Series((names or ["y"])[0], values)
    # By name: polars has names of its own for columns without one.
    return library.DataFrame(dict(zip(names or _numbered(values), values.T, strict=True)))


def _numbered(values: Array) -> list[str]:
    return [f"y{k}" for k in range(values.shape[1])]
