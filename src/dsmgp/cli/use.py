"""``dsmgp predict``, ``evaluate``, ``report`` and ``info``: what one does with a model file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmgp.cli.talk import AsJson, Debug, as_table, command, print_json, refuse, remark, say

if TYPE_CHECKING:
    from dsmgp.recipe import Recipe
    from dsmgp.regressor import DSMGPRegressor

__all__ = ["evaluate", "info", "predict", "report"]

Model = Annotated[Path, typer.Argument(help="A model that dsmgp fit wrote.")]
Data = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV, Parquet or Feather file; - for standard input; predict also takes a folder of Parquet files."
    ),
]


def _loaded(path: Path) -> tuple[DSMGPRegressor, Recipe]:
    """A model, and how its table is read; one that was saved by Python code reads columns by its feature names."""
    from dsmgp import load
    from dsmgp.recipe import Column, Recipe

    model = load(path)
    if hasattr(model, "_table"):
        return model, Recipe.from_dict(model._table)
    n_outputs = model._rows[1].shape[1]
    names = getattr(model, "feature_names_in_", [f"x{k}" for k in range(model.n_features_in_)])
    targets = ["y"] if n_outputs == 1 else [f"y{k}" for k in range(n_outputs)]
    return model, Recipe([Column(str(name), "number") for name in names], targets)


def _rows(model: DSMGPRegressor, recipe: Recipe, table: Any) -> Any:
    X = recipe.inputs(table)
    if not hasattr(model, "feature_names_in_"):
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=list(model.feature_names_in_), copy=False)


@command
def predict(
    model: Model,
    data: Data,
    out: Annotated[str, typer.Option("--out", "-o", help="Table to write; standard output, as CSV, if left out.")] = "-",
    interval: Annotated[list[float], typer.Option(help="Probability of a central interval; may be repeated.")] = [0.9],  # noqa: B006
    quantiles: Annotated[str, typer.Option(help="Levels of quantiles, such as 0.05,0.5,0.95.")] = "",
    keep: Annotated[list[str], typer.Option(help="Column of the data to write beside the predictions; may be repeated.")] = [],  # noqa: B006
    function: Annotated[bool, typer.Option("--function", help="Spread of the function itself, without noise.")] = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Predict the rows of a table: mean, standard deviation, intervals and quantiles.

    Example: dsmgp predict price.dsmgp new.csv --out predictions.csv --interval 0.9
    """
    import pyarrow as pa

    from dsmgp.predicted import predicted
    from dsmgp.tables import is_dataset, read_table, write_table

    levels = _levels(quantiles)
    for level in interval:
        if not 0 < level < 1:
            refuse(f"expected --interval between 0 and 1, such as 0.9, got {level}")
    fitted, recipe = _loaded(model)
    if is_dataset(data):
        if out == "-":
            refuse(
                "predictions of a folder of files are written to a file; give --out predictions.parquet"
            )
        n_rows, remarks = fitted._predict_files(data, out, interval, levels, keep, not function)
        remark(remarks)
        say(f"{n_rows} rows predicted: {out}")
        return
    table = read_table(data, text=recipe.categories)
    for name in keep:
        if name not in table.column_names:
            refuse(f"there is no column {name!r} to keep in {data}")
    X = _rows(fitted, recipe, table)
    remark(recipe.told(recipe.missing(table)))
    said = predicted(fitted, X, recipe.targets, interval, levels, not function)
    columns = {name: table[name] for name in keep} | {n: pa.array(v) for n, v in said.items()}
    write_table(pa.table(columns), out)
    if out != "-":
        say(f"{len(X)} rows predicted: {out}")


def _levels(text: str) -> list[float]:
    try:
        levels = [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        refuse(f"expected --quantiles as numbers, such as 0.05,0.5,0.95, got {text!r}")
    if not all(0 < level < 1 for level in levels):
        refuse(f"expected --quantiles between 0 and 1, such as 0.05,0.5,0.95, got {text!r}")
    return levels


@command
def evaluate(model: Model, data: Data, as_json: AsJson = False, debug: Debug = False) -> None:
    """Score a model on a table that has its targets.

    Example: dsmgp evaluate price.dsmgp test.csv --json
    """
    from dsmgp.scores import score_table
    from dsmgp.tables import read_table

    fitted, recipe = _loaded(model)
    table = read_table(data, text=recipe.categories)
    observed = recipe.outputs(table)
    X = _rows(fitted, recipe, table)
    remarks = recipe.told(recipe.missing(table))
    remark(remarks)
    law = fitted.predict_dist(X)
    y = observed[:, 0] if fitted._squeeze else observed
    scores = score_table(y, law, fitted._rows[1].mean(axis=0))
    if as_json:
        about = {"model": str(model), "rows": len(X), "targets": recipe.targets}
        print_json({**about, **scores, "remarks": remarks})
        return
    words = {
        "mae": "mean absolute error",
        "rmse": "root mean square error",
        "r2": "R squared (share of the variance explained)",
        "nlpd": "negative log predictive density",
        "crps": "continuous ranked probability score",
        "coverage_50": "share of rows in their 50% interval",
        "coverage_90": "share of rows in their 90% interval",
        "interval_width_90": "mean width of the 90% interval",
    }
    rows = [(words[name], f"{value:.4g}") for name, value in scores.items()]
    as_table(f"{', '.join(recipe.targets)}: {len(X):,} rows", rows)


@command
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    debug: Debug = False,
) -> None:  # fmt: skip
    """Write a page about a model and how it does on a table: one HTML file that needs no network.

    Example: dsmgp report price.dsmgp test.csv --out report.html
    """
    if out.is_dir():
        refuse(f"{out} is a folder; give the name of a file")
    if not out.parent.is_dir():
        refuse(f"the folder {out.parent} does not exist; create it first")
    from dsmgp.report import write_report
    from dsmgp.tables import read_table

    fitted, recipe = _loaded(model)
    table = read_table(data, text=recipe.categories)
    y = recipe.outputs(table)
    X = _rows(fitted, recipe, table)
    remark(recipe.told(recipe.missing(table)))
    write_report(
        out, fitted, X, y, targets=recipe.targets, title=title or f"{model.name} on {data}"
    )
    say(f"report written: {out}")


@command
def info(model: Model, as_json: AsJson = False, debug: Debug = False) -> None:
    """Say what a model file holds, without loading the model.

    Example: dsmgp info price.dsmgp
    """
    from dsmgp.archive import read_archive
    from dsmgp.storage import model_file

    file = model_file(model)
    archive = read_archive(file)
    header = archive.header
    written = [p for p in model.rglob("*") if p.is_file()] if model.is_dir() else [file]
    table = header.get("table") or {}
    n_rows, n_inputs = archive.arrays["X"].shape
    about = {
        "format": header["format"],
        "dsmgp": header["dsmgp"],
        "torch": header["torch"],
        "rows": header.get("store", {}).get("n_rows", n_rows),
        "inputs": header.get("feature_names") or [f"x{k}" for k in range(n_inputs)],
        "targets": table.get("targets") or archive.arrays["Y"].shape[1],
        "kernels": [family["kernel"] for family in header["families"]],
        "leaves": len(archive.arrays["leaf.family"]),
        "loo_nlpd": header["scores"]["loo"],
        "loo_nlpd_new_inputs": header["scores"]["loo_new_inputs"],
        "factors": "factor.alpha" in archive,
        "bytes": sum(p.stat().st_size for p in written),
        "settings": {k: v for k, v in header["parameters"].items() if not isinstance(v, dict)},
    }
    if as_json:
        print_json(about)
        return
    rows = [(name, _words(value)) for name, value in about.items() if name != "settings"]
    rows += [(f"  {name}", _words(value)) for name, value in about["settings"].items()]
    as_table(str(model), rows)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
