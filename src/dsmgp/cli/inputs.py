"""What the commands read: a model file, and a table whose columns become the model's inputs and targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmgp.cli.output import print_note

if TYPE_CHECKING:
    from dsmgp.data.schema import ColumnSchema
    from dsmgp.regressor import DSMGPRegressor

__all__ = ["Data", "Model", "load_model", "table_inputs", "table_rows"]

Model = Annotated[
    Path, typer.Argument(help="A model file, written by dsmgp fit or DSMGPRegressor.save.")
]
Data = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV, Parquet or Feather file; - for standard input; predict also takes a folder of Parquet files."
    ),
]


def load_model(path: Path) -> tuple[DSMGPRegressor, ColumnSchema]:
    """Load a model, and the schema by which columns of a table become its inputs."""
    from dsmgp import load

    model = load(path)
    return model, model.state_.schema.columns


def table_rows(
    model: DSMGPRegressor, schema: ColumnSchema, data: str
) -> tuple[Any, Any, list[str]]:
    """Read a table; return inputs and targets as the model takes them, and remarks on imputed values."""
    from dsmgp.data.encoding import encode_targets
    from dsmgp.data.tables import read_table

    table = read_table(data, text=schema.categorical)
    # Before the inputs: a table without targets is likely to be the wrong one.
    y = encode_targets(schema, table)
    X, remarks = table_inputs(model, schema, table)
    return X, model.state_.schema.shaped(y), remarks


def table_inputs(model: DSMGPRegressor, schema: ColumnSchema, table: Any) -> tuple[Any, list[str]]:
    """Return the inputs of a table as the model takes them, and remarks on imputed values, which are printed."""
    from dsmgp.data.encoding import missing_counts

    X = _like_training_inputs(model, schema, table)
    remarks = schema.imputation_remarks(missing_counts(schema, table))
    print_note(*remarks)
    return X, remarks


def _like_training_inputs(model: DSMGPRegressor, schema: ColumnSchema, table: Any) -> Any:
    """Return inputs with the names of the training frame, and dates where that had dates."""
    from dsmgp._util.dates import EPOCH
    from dsmgp.data.encoding import encode_inputs

    X = encode_inputs(schema, table)
    if not hasattr(model, "feature_names_in_"):
        return EPOCH.to_dates(X) if model.state_.schema.dates else X
    import pandas as pd

    frame = pd.DataFrame(X, columns=list(model.feature_names_in_), copy=False)
    for number in model.state_.schema.dates:
        frame[frame.columns[number]] = EPOCH.to_dates(X[:, number])
    return frame
