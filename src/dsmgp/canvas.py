"""What all pictures have in common: colours, names of inputs and outputs, legends, axes of dates."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from dsmgp.predicted import output_names
from dsmgp.regressor import DSMGPRegressor

__all__ = [
    "BAND",
    "CUTS",
    "MODEL",
    "ROWS",
    "columns",
    "explain",
    "levels_of",
    "like",
    "names_of",
    "number_of",
    "output_of",
    "show_dates",
]

Array = NDArray[np.float64]
# One hue for what the model says, one for what was observed, one for where the model cuts.
MODEL, BAND, ROWS, CUTS = "#08306b", "#2171b5", "#333333", "#cb181d"


def names_of(model: DSMGPRegressor) -> list[str]:
    names = getattr(model, "feature_names_in_", None)
    return [f"x{k}" for k in range(model.n_features_in_)] if names is None else list(names)


def number_of(feature: int | str, names: list[str]) -> int:
    if isinstance(feature, str) and feature in names:
        return names.index(feature)
    if not isinstance(feature, str) and 0 <= int(feature) < len(names):
        return int(feature)
    raise ValueError(
        f"expected an input by number or name, one of {', '.join(names)}, got {feature!r}"
    )


def output_of(model: DSMGPRegressor, output: int = 0) -> str:
    """What an output is called."""
    n_outputs = model._rows[1].shape[1]
    return output_names(model._target_names, model._squeeze, n_outputs)[output]


def levels_of(model: DSMGPRegressor) -> dict[str, dict[str, int]]:
    """Columns of text in the table that a model was fitted to: the number of the input that each level has become."""
    found, before = {}, 0
    for column in (getattr(model, "_table", None) or {}).get("columns", []):
        levels = column["levels"]
        if levels:
            found[column["name"]] = {level: before + k for k, level in enumerate(levels)}
        before += max(1, len(levels))
    return found


def like(model: DSMGPRegressor, X: Array) -> Any:
    """Rows with the names that the model was fitted with, if it was."""
    if not hasattr(model, "feature_names_in_"):
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=list(model.feature_names_in_))


def columns(values: Array) -> Array:
    return values.reshape(len(values), -1)


def explain(ax: Axes) -> None:
    """A legend that what is below it shines through; a place above would be the title's, and to seek one takes long."""
    ax.legend(loc="upper right", framealpha=0.7, edgecolor="none", fontsize="small")


def show_dates(ax: Axes, model: DSMGPRegressor, dimension: int | str) -> None:
    """Days since the first row as dates, where the input is one of dates."""
    dates = model.split_posterior(dimension).dates
    if dates is None:
        return

    def written(days: float, _: int) -> str:
        low, high = sorted(ax.get_xlim())
        text = str(dates.to_dates(days))
        return text[:10] if high - low > 3.0 else text[:16].replace("T", "\n")

    ax.xaxis.set_major_formatter(FuncFormatter(written))
    ax.xaxis.set_major_locator(MaxNLocator(4))
