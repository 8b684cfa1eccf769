"""``dsmgp predict`` and ``dsmgp info``: predictions of a model file for a table, and the contents of a model file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmgp.cli.inputs import (
    Data,
    DayFirst,
    Decimal,
    Encoding,
    Model,
    NotAvailable,
    columns_of_files,
    load_model,
    named_columns,
    read_for_model,
    split_list,
    table_rows,
    text_format,
)
from dsmgp.cli.output import (
    AsJson,
    Debug,
    check_not_an_input,
    command,
    fail,
    print_json,
    print_note,
    print_table,
    showing_progress,
)
from dsmgp.progress import span

if TYPE_CHECKING:
    from dsmgp.data.files.tables import TextFormat

__all__ = ["info", "predict"]


@command
def predict(
    model: Model,
    data: Data,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Table to write; standard output, as CSV, if left out. For a folder of Parquet files also a folder, which gets a file for each part, or a URL of either.")] = "-",
    interval: Annotated[list[float], typer.Option(metavar="PROBABILITY", help="Probability of a central interval; may be repeated.")] = [0.9],  # noqa: B006
    quantiles: Annotated[list[str], typer.Option(metavar="LEVELS", help="Levels of quantiles, such as 0.05,0.5,0.95; may be repeated.")] = [],  # noqa: B006
    keep: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column of the data to copy to the predictions; may be repeated, or a list with commas.")] = [],  # noqa: B006
    function: Annotated[bool, typer.Option("--function", help="Uncertainty of the function, without observation noise.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Exact standard deviations; otherwise those of large leaves may be off by a thousandth.")] = False,
    encoding: Encoding = None,
    decimal: Decimal = None,
    dayfirst: DayFirst = None,
    na: NotAvailable = [],  # noqa: B006
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Predict the rows of a table: mean, standard deviation, intervals and quantiles.

    \b
    Examples:
      dsmgp predict price.dsmgp new.csv --out predictions.csv
      dsmgp predict price.dsmgp new.csv -o predictions.csv --interval 0.5 --interval 0.9 --keep id
      cat new.csv | dsmgp predict price.dsmgp - --quantiles 0.05,0.5,0.95 > predictions.csv
    """
    from dsmgp.data.files.tables import check_target, is_dataset
    from dsmgp.data.parquet.files import is_url
    from dsmgp.data.parquet.parts import is_folder
    from dsmgp.data.parquet.predictions import check_kept_columns
    from dsmgp.fitting.datasets.predict import predict_files
    from dsmgp.mixture.variance_error import exact_variances

    levels = _levels(",".join(quantiles))
    for level in interval:
        if not 0 < level < 1:
            fail(f"expected --interval between 0 and 1, such as 0.9, got {level}")
    if as_json and out == "-":
        fail("with --json predictions are written to a file; give --out predictions.csv")
    from_files = is_dataset(data)
    to_folder = from_files and (is_folder(out) or is_url(out))
    if is_url(out) and not from_files:
        fail(
            f"predictions of one local table are written to a local file, got {out}; give the data as a folder or a URL, too"
        )
    if not to_folder and check_target(out) != "parquet" and from_files:
        fail(
            "predictions of a folder of files are Parquet; give --out predictions.parquet, or a folder for a file of each part: --out predictions/"
        )
    check_not_an_input(out, model, data)
    with showing_progress("predicting"):
        with span(0.0, 0.3, "loading the model"):
            fitted, schema = load_model(model)
        check_kept_columns([*keep, *split_list(keep)], schema.targets, interval, levels)
        exactly = exact or fitted.variances == "exact"
        with span(0.3, 1.0, "predicting rows"), exact_variances(exactly):
            if from_files:
                state = fitted.state_
                keep = named_columns(keep, columns_of_files(data)) if keep else []
                n_rows, remarks = predict_files(
                    state.predictive, state.schema, data, out, interval, levels, keep, not function
                )
            else:
                columns = (interval, levels, not function)
                form = text_format(encoding, decimal, dayfirst, na)
                n_rows, remarks = _predict_table(fitted, schema, data, form, out, keep, columns)
    print_note(*remarks)
    if as_json:
        print_json({"model": str(model), "rows": n_rows, "file": out, "remarks": remarks})
    elif out != "-":
        print_note(f"{n_rows:,} row{'s' * (n_rows != 1)} predicted: {out}")


def _predict_table(
    model: Any,
    schema: Any,
    data: str,
    form: TextFormat,
    out: str,
    keep: list[str],
    columns: tuple[Any, ...],
) -> tuple[int, list[str]]:
    """Predict a table in one file; return the number of rows, and remarks on the table."""
    import pyarrow as pa

    from dsmgp.data.files.tables import write_table
    from dsmgp.data.parquet.predictions import prediction_columns

    table = read_for_model(schema, data, form, with_targets=False)
    keep = named_columns(keep, table.column_names)
    rows = table_rows(model, table, with_targets=False)
    remarks = rows.remarks + model.state_.outside_rows(rows.rows.X).remarks
    fitted = model.state_.predictive
    predictions = prediction_columns(fitted, rows.rows, schema.targets, *columns)
    kept = {name: table[name] for name in keep}
    arrays = {name: pa.array(values) for name, values in predictions.items()}
    write_table(pa.table(kept | arrays), out)
    return len(rows.rows), remarks


def _levels(text: str) -> list[float]:
    """Return the levels of quantiles that are written in a text."""
    try:
        levels = [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        fail(f"expected --quantiles as numbers, such as 0.05,0.5,0.95, got {text!r}")
    if not all(0 < level < 1 for level in levels):
        fail(f"expected --quantiles between 0 and 1, such as 0.05,0.5,0.95, got {text!r}")
    return levels


@command
def info(model: Model, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the contents of a model file, without loading the model.

    \b
    Examples:
      dsmgp info price.dsmgp
      dsmgp info price.dsmgp --json
    """
    contents = _contents(model)
    if as_json:
        print_json(contents)
        return
    only_in_json = ("settings", "units")
    rows = [
        (name, _as_text(value))
        for name, value in contents.items()
        if name not in only_in_json and value is not None
    ]
    rows += [(f"  {name}", _as_text(value)) for name, value in contents["settings"].items()]
    print_table(str(model), rows)


def _contents(model: Model) -> dict[str, Any]:
    """Return the contents of a model file, by the names that ``info`` prints."""
    # Nothing that imports scikit-learn, which takes longer than reading the file.
    from dsmgp._util.archive import read_archive
    from dsmgp.data.columns.schema import ColumnSchema, input_names, output_names
    from dsmgp.persistence.model_path import model_file

    file = model_file(model)
    archive = read_archive(file)
    header = archive.header
    files = [path for path in model.rglob("*") if path.is_file()] if model.is_dir() else [file]
    n_rows, n_inputs = archive.arrays["X"].shape
    n_outputs = archive.arrays["Y"].shape[1]
    table = header.get("table")
    inputs = input_names(header.get("feature_names"), n_inputs)
    if table is not None:
        inputs = ColumnSchema.from_dict(table).input_names
    stacking = header.get("stacking")
    return {
        "format": header["format"],
        "dsmgp": header["dsmgp"],
        "torch": header.get("torch"),
        "rows": header.get("store", {}).get("n_rows", n_rows),
        "inputs": inputs,
        "targets": output_names(header["target_names"], n_outputs, header["squeeze"]),
        "kernels": [family["kernel"] for family in header["families"]],
        "leaves": len(archive.arrays["leaf.most_rows"]),
        "changes_along": _changes_along(header, inputs),
        "hypotheses": None if stacking is None else _hypotheses(stacking),
        "loo_nlpd": (stacking or {}).get("score", header["scores"]["loo"]),
        "loo_nlpd_new_inputs": (stacking or {}).get(
            "score_new_inputs", header["scores"]["loo_new_inputs"]
        ),
        "factors": "factor.alpha" in archive,
        "bytes": sum(path.stat().st_size for path in files),
        "units": header.get("units"),
        "settings": {name: _setting(value) for name, value in header["parameters"].items()},
    }


def _hypotheses(stacking: dict[str, Any]) -> list[str]:
    """Return the hypotheses with their weights."""
    pairs = zip(stacking["weights"], stacking["names"], strict=True)
    return [f"{weight:.2f} ({name})" for weight, name in pairs]


def _setting(value: Any) -> Any:
    """Return a parameter of the estimator; of an object, what kind of object it was."""
    match value:
        case {"module": description}:
            return description.get("class", "your own module")
        case {"terms": [*terms]}:
            return "+".join(str(term.get("kernel")) for term in terms)
        case {"tree": _}:
            return "your own tree"
        case {"changes": change_points}:
            return change_points
    return value


def _changes_along(header: dict[str, Any], names: list[str]) -> str | None:
    """Return the input along which the function may change, or None."""
    all_changes = header.get("breaks", {}).get("changes", [])
    changes = next((changes for changes in all_changes if changes), None)
    return None if changes is None else names[changes["dimension"]]


def _as_text(value: Any) -> str:
    match value:
        case list():
            return ", ".join(map(str, value))
        case dict():
            return ", ".join(f"{name} {_as_text(entry)}" for name, entry in value.items())
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
    return str(value)
