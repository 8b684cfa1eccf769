"""What commands are given: a model file, and a table for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dsmgp.recipe import Recipe
    from dsmgp.regressor import DSMGPRegressor

__all__ = ["Data", "Model", "loaded", "rows_of"]

Model = Annotated[Path, typer.Argument(help="A model that dsmgp fit wrote, or Python code.")]
Data = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV, Parquet or Feather file; - for standard input; predict also takes a folder of Parquet files."
    ),
]


def loaded(path: Path) -> tuple[DSMGPRegressor, Recipe]:
    """A model, and how its table is read."""
    from dsmgp import load
    from dsmgp.recipe import Recipe

    model = load(path)
    return model, Recipe.of(model)


def rows_of(model: DSMGPRegressor, recipe: Recipe, table: Any) -> Any:
    """The inputs of a table as the model was given them: with names, and dates as dates if it had such."""
    from dsmgp.timeline import EPOCH

    X = recipe.inputs(table)
    if not hasattr(model, "feature_names_in_"):
        return EPOCH.to_dates(X) if model._dates else X
    import pandas as pd

    frame = pd.DataFrame(X, columns=list(model.feature_names_in_), copy=False)
    for number in model._dates:
        frame[frame.columns[number]] = EPOCH.to_dates(X[:, number])
    return frame
