"""``dsmgp predict`` and ``info``: what one does with a model file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsmgp.cli.given import Data, Model, loaded, rows_of
from dsmgp.cli.talk import (
    AsJson,
    Debug,
    as_table,
    command,
    print_json,
    refuse,
    refuse_to_replace,
    remark,
    say,
)

__all__ = ["info", "predict"]


@command
def predict(
    model: Model,
    data: Data,
    out: Annotated[str, typer.Option("--out", "-o", help="Table to write; standard output, as CSV, if left out.")] = "-",
    interval: Annotated[list[float], typer.Option(help="Probability of a central interval; may be repeated.")] = [0.9],  # noqa: B006
    quantiles: Annotated[list[str], typer.Option(help="Levels of quantiles, such as 0.05,0.5,0.95; may be repeated.")] = [],  # noqa: B006
    keep: Annotated[list[str], typer.Option(help="Column of the data to write beside the predictions; may be repeated.")] = [],  # noqa: B006
    function: Annotated[bool, typer.Option("--function", help="Spread of the function itself, without noise.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Predict the rows of a table: mean, standard deviation, intervals and quantiles.

    Example: dsmgp predict price.dsmgp new.csv --out predictions.csv --interval 0.9
    """
    from dsmgp.predicted import check_kept
    from dsmgp.tables import check_target, is_dataset

    levels = _levels(",".join(quantiles))
    for level in interval:
        if not 0 < level < 1:
            refuse(f"expected --interval between 0 and 1, such as 0.9, got {level}")
    if as_json and out == "-":
        refuse("with --json predictions are written to a file; give --out predictions.csv")
    written, keep = check_target(out), list(dict.fromkeys(keep))
    if is_dataset(data) and (out == "-" or written != "parquet"):
        refuse("predictions of a folder of files are Parquet; give --out predictions.parquet")
    refuse_to_replace(out, model, data)
    fitted, recipe = loaded(model)
    check_kept(keep, recipe.targets, interval, levels)
    if is_dataset(data):
        n_rows, remarks = fitted._predict_files(data, out, interval, levels, keep, not function)
        remark(remarks)
    else:
        asked = (interval, levels, not function)
        n_rows, remarks = _predict_table(fitted, recipe, data, out, keep, asked)
    if as_json:
        print_json({"model": str(model), "rows": n_rows, "file": out, "remarks": remarks})
    elif out != "-":
        say(f"{n_rows} rows predicted: {out}")


def _predict_table(
    model: Any, recipe: Any, data: str, out: str, keep: list[str], asked: tuple[Any, ...]
) -> tuple[int, list[str]]:
    """How many rows there were, and what was filled in."""
    import pyarrow as pa

    from dsmgp.predicted import predicted
    from dsmgp.tables import read_table, write_table

    table = read_table(data, text=recipe.categories)
    for name in keep:
        if name not in table.column_names:
            refuse(f"there is no column {name!r} to keep in {data}")
    X, remarks = rows_of(model, recipe, table)
    said = predicted(model, X, recipe.targets, *asked)
    columns = {name: table[name] for name in keep} | {n: pa.array(v) for n, v in said.items()}
    write_table(pa.table(columns), out)
    return len(X), remarks


def _levels(text: str) -> list[float]:
    try:
        levels = [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        refuse(f"expected --quantiles as numbers, such as 0.05,0.5,0.95, got {text!r}")
    if not all(0 < level < 1 for level in levels):
        refuse(f"expected --quantiles between 0 and 1, such as 0.05,0.5,0.95, got {text!r}")
    return levels


@command
def info(model: Model, as_json: AsJson = False, debug: Debug = False) -> None:
    """Say what a model file holds, without loading the model.

    Example: dsmgp info price.dsmgp
    """
    from dsmgp.archive import read_archive
    from dsmgp.predicted import output_names
    from dsmgp.storage import model_file

    file = model_file(model)
    archive = read_archive(file)
    header = archive.header
    written = [p for p in model.rglob("*") if p.is_file()] if model.is_dir() else [file]
    table = header.get("table") or {}
    n_rows, n_inputs = archive.arrays["X"].shape
    n_outputs = archive.arrays["Y"].shape[1]
    about = {
        "format": header["format"],
        "dsmgp": header["dsmgp"],
        "torch": header["torch"],
        "rows": header.get("store", {}).get("n_rows", n_rows),
        "inputs": header.get("feature_names") or [f"x{k}" for k in range(n_inputs)],
        "targets": table.get("targets")
        or output_names(header["target_names"], header["squeeze"], n_outputs),
        "kernels": [family["kernel"] for family in header["families"]],
        "leaves": len(archive.arrays["leaf.most_rows"]),
        "changes_along": _changes_along(header),
        "loo_nlpd": header["scores"]["loo"],
        "loo_nlpd_new_inputs": header["scores"]["loo_new_inputs"],
        "factors": "factor.alpha" in archive,
        "bytes": sum(p.stat().st_size for p in written),
        "units": header.get("units"),
        "settings": {k: _setting(v) for k, v in header["parameters"].items()},
    }
    if as_json:
        print_json(about)
        return
    for_machines = ("settings", "units")
    rows = [
        (name, _words(value))
        for name, value in about.items()
        if name not in for_machines and value is not None
    ]
    rows += [(f"  {name}", _words(value)) for name, value in about["settings"].items()]
    as_table(str(model), rows)


def _setting(value: Any) -> Any:
    """As it was given, but for what is no plain value."""
    match value:
        case {"module": described}:
            return described.get("class", "of your own")
        case {"tree": _}:
            return "a tree of your own"
        case {"changes": asked}:
            return asked
    return value


def _changes_along(header: dict[str, Any]) -> str | None:
    """The input that orders rows, where the function may change."""
    asked = next((each for each in header.get("breaks", {}).get("changes", []) if each), None)
    if asked is None:
        return None
    names = header.get("feature_names")
    return str(names[asked["dimension"]] if names else f"x{asked['dimension']}")


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(entry)}" for name, entry in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
