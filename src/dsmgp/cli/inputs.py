"""What the commands read: a model file, and a table whose columns become the model's inputs and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmgp.cli.output import fail, print_note

if TYPE_CHECKING:
    from dsmgp._util.arrays import Index
    from dsmgp.data.columns.schema import ColumnSchema
    from dsmgp.data.files.tables import TextFormat
    from dsmgp.data.input_schema import InputSchema
    from dsmgp.data.rows import Rows
    from dsmgp.regressor import DSMGPRegressor

__all__ = [
    "Data",
    "DayFirst",
    "Decimal",
    "Encoding",
    "Model",
    "NotAvailable",
    "SampledData",
    "TableRows",
    "columns_of_files",
    "load_model",
    "named_columns",
    "read_for_model",
    "split_list",
    "table_rows",
    "text_format",
]

# Rows of a dataset that a model is evaluated on.
MOST_SAMPLED = 100_000

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A model file, written by dsmgp fit or DSMGPRegressor.save."
    ),
]
FORMATS = (
    "CSV, TSV, JSON, Parquet or Feather file; - for standard input; or a folder of Parquet files"
)
Data = Annotated[str, typer.Argument(metavar="DATA", help=f"{FORMATS}.")]
SampledData = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help=f"{FORMATS}, of which at most {MOST_SAMPLED:,} rows are drawn."
    ),
]


# How a text file is written; see :class:`dsmgp.data.files.text_column.TextFormat`.
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", help="Encoding of a text file, such as latin-1, cp1252 or utf-16; UTF-8 if left out."),
]  # fmt: skip
Decimal = Annotated[
    str | None,
    typer.Option("--decimal", metavar="<.|,>", help="Decimal separator, for numbers such as 1,234 that are ambiguous in the file."),
]  # fmt: skip
DayFirst = Annotated[
    bool | None,
    typer.Option("--dayfirst/--monthfirst", help="Order of day and month, for columns of dates such as 03/04/2020 that are ambiguous."),
]  # fmt: skip
NotAvailable = Annotated[
    list[str],
    typer.Option("--na", metavar="TEXT", help="Text that marks a missing value, in addition to NA, ?, - and the like; repeat, or separate by commas."),
]  # fmt: skip


def text_format(
    encoding: str | None, decimal: str | None, dayfirst: bool | None, na: Sequence[str]
) -> TextFormat:
    """Return how text files are written, by the options of a command."""
    from dsmgp.data.files.tables import TextFormat

    if decimal not in (None, ".", ","):
        fail(f"expected --decimal as . or , got {decimal!r}")
    return TextFormat(encoding, decimal, dayfirst, (*na, *split_list(na)))


def split_list(given: Sequence[str]) -> list[str]:
    """Return the parts of lists with commas."""
    return [part.strip() for entry in given for part in entry.split(",") if part.strip()]


def named_columns(given: Sequence[str], present: Sequence[str]) -> list[str]:
    """Return the columns that an option names, one by one or as lists with commas; fail if one of them is not present."""
    from dsmgp.data.table_error import check_columns

    names: list[str] = []
    for entry in given:
        names += [entry] if entry in present else split_list([entry]) or [entry]
    check_columns(present, names)
    return names


def columns_of_files(data: str) -> list[str]:
    """Return the columns of a folder of Parquet files, by the first of them."""
    import pyarrow as pa
    from pyarrow import parquet

    from dsmgp.data.parquet.dataset import parquet_files

    first = parquet_files(data)[0]
    try:
        return list(parquet.read_schema(first.path, filesystem=first.filesystem).names)
    except (pa.ArrowException, OSError) as error:
        fail(f"{first} cannot be read as Parquet: {str(error).splitlines()[0]}")


def load_model(path: Path) -> tuple[DSMGPRegressor, ColumnSchema]:
    """Load a model, and the schema by which columns of a table become its inputs."""
    from dsmgp import load

    model = load(path)
    return model, model.state_.schema.columns


def read_for_model(
    schema: ColumnSchema, data: str, form: TextFormat, with_targets: bool = True
) -> Any:
    """Read a table as the training table was read, unless ``form`` says otherwise; of its texts, those are understood that the model uses.

    Of a dataset a sample is read.
    """
    from dsmgp.data.files.tables import TextFormat, is_dataset, read_table

    if is_dataset(data):
        return _sampled(schema, data, with_targets)
    form = TextFormat(
        form.encoding,
        schema.decimal if form.decimal is None else form.decimal,
        schema.day_first if form.day_first is None else form.day_first,
        (*schema.missing_texts, *form.missing),
    )
    names = [column.name for column in schema.columns]
    names += schema.targets if with_targets else []
    return read_table(data, schema.categorical, lambda present: names, form)


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a table.

    Attributes
    ----------
    X : frame or array
        As the estimator takes them.
    rows : Rows
        As the model takes them.
    y : ndarray of shape (n,) or (n, n_outputs)
        The targets, where they were asked for.
    reading : list of str
        Remarks on texts that were read as something else, and on rows that are left out.
    values : list of str
        Remarks on missing values and new levels.
    row_numbers : ndarray of shape (n,)
        Their numbers in the table, from 1.
    """

    X: Any
    rows: Rows
    y: Any
    reading: list[str]
    values: list[str]
    row_numbers: Index

    @property
    def remarks(self) -> list[str]:
        """All remarks on the table."""
        return self.reading + self.values


def _sampled(schema: ColumnSchema, data: str, with_targets: bool) -> Any:
    """Return some rows of Parquet files: enough for scores and plots, and always the same."""
    import numpy as np

    from dsmgp.data.parquet.dataset import RowStream

    stream = RowStream(data, schema, with_targets)
    if stream.n_rows > MOST_SAMPLED:
        print_note(f"{MOST_SAMPLED:,} of {stream.n_rows:,} rows, drawn at random")
    return stream.sample_table(MOST_SAMPLED, np.random.default_rng(0))


def table_rows(model: DSMGPRegressor, table: Any, with_targets: bool = True) -> TableRows:
    """Return the rows of a table; those without a target are left out, where targets are asked for."""
    import numpy as np

    from dsmgp.data.columns.encoding import (
        as_in_training,
        encode_inputs,
        encode_targets,
        table_remarks,
        table_values,
    )
    from dsmgp.data.files.tables import reading_remarks
    from dsmgp.data.table_error import check_columns

    schema, remarks, y = model.state_.schema, reading_remarks(table), None
    row_numbers = np.arange(1, len(table) + 1)
    columns = schema.columns
    if with_targets:  # before the inputs: a table without targets is likely to be the wrong one
        check_columns(table.column_names, columns.targets)
        y = encode_targets(columns, table_values(table, columns.targets))
        known = ~np.isnan(y).any(axis=1)
        n = int((~known).sum())
        if n:
            remarks.append(f"{n} row{'s' * (n > 1)} without a target left out")
            table, y, row_numbers = table.filter(known), y[known], row_numbers[known]
        y = schema.shaped(y)
    names = [column.name for column in columns.columns]
    check_columns(table.column_names, names)
    values = as_in_training(columns.columns, table_values(table, names))
    rows = encode_inputs(columns, values)
    unknown = table_remarks(columns, values)
    return TableRows(_frame(schema, table), rows, y, remarks, unknown, row_numbers)


def _frame(schema: InputSchema, table: Any) -> Any:
    """Return the columns of the training frame, empty where the table lacks one that is not used; an array if X was one."""
    import pandas as pd

    present = [name for name in schema.column_names if name in table.column_names]
    frame = table.select(present).to_pandas()
    frame = frame.reindex(columns=schema.column_names, fill_value=pd.NA)
    return frame.to_numpy() if schema.feature_names is None else frame
