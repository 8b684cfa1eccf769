"""What commands are given: a model file, and a table for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmgp.cli.talk import remark

if TYPE_CHECKING:
    from dsmgp.recipe import Recipe
    from dsmgp.regressor import DSMGPRegressor

__all__ = ["Data", "Model", "loaded", "observed", "rows_of"]

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


def observed(model: DSMGPRegressor, recipe: Recipe, data: str) -> tuple[Any, Any, list[str]]:
    """Inputs and targets of a table, and what was filled in."""
    from dsmgp.tables import read_table

    table = read_table(data, text=recipe.categories)
    y = recipe.outputs(table)  # before inputs: a table without targets is another table
    X, remarks = rows_of(model, recipe, table)
    return X, y[:, 0] if model._squeeze else y, remarks


def rows_of(model: DSMGPRegressor, recipe: Recipe, table: Any) -> tuple[Any, list[str]]:
    """The inputs of a table as the model was given them, and what was filled in, which is said."""
    X, remarks = _as_given(model, recipe, table), recipe.told(recipe.missing(table))
    remark(remarks)
    return X, remarks


def _as_given(model: DSMGPRegressor, recipe: Recipe, table: Any) -> Any:
    """With names, and dates as dates if the model had such."""
    from dsmgp.timeline import EPOCH

    X = recipe.inputs(table)
    if not hasattr(model, "feature_names_in_"):
        return EPOCH.to_dates(X) if model._dates else X
    import pandas as pd

    frame = pd.DataFrame(X, columns=list(model.feature_names_in_), copy=False)
    for number in model._dates:
        frame[frame.columns[number]] = EPOCH.to_dates(X[:, number])
    return frame
