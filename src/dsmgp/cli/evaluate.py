"""``dsmgp evaluate`` and ``dsmgp report``: scores of a model on a table that has its targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsmgp.cli.inputs import Data, Model, load_model, table_rows
from dsmgp.cli.output import (
    AsJson,
    Debug,
    check_not_an_input,
    command,
    fail,
    print_json,
    print_note,
    print_table,
)

__all__ = ["evaluate", "report"]

LABELS = {
    "mae": "mean absolute error",
    "rmse": "root mean square error",
    "r2": "R squared (share of the variance explained)",
    "nlpd": "negative log predictive density",
    "crps": "continuous ranked probability score",
    "coverage_50": "share of rows in their 50% interval",
    "coverage_90": "share of rows in their 90% interval",
    "interval_width_90": "mean width of the 90% interval",
}


@command
def evaluate(model: Model, data: Data, as_json: AsJson = False, debug: Debug = False) -> None:
    """Score a model on a table that has its targets.

    Example: dsmgp evaluate price.dsmgp test.csv --json
    """
    from dsmgp.scores import joint_nlpd, score_each

    fitted, schema = load_model(model)
    X, y, remarks = table_rows(fitted, schema, data)
    distribution = fitted.predict_dist(X)
    scores = score_each(y, distribution, fitted.state_.rows.Y.mean(axis=0))
    joint = joint_nlpd(y, distribution)
    if as_json:
        print_json(
            {
                "model": str(model),
                "rows": len(X),
                "targets": list(schema.targets),
                **(scores[0] if len(scores) == 1 else {"joint_nlpd": joint}),
                "by_target": dict(zip(schema.targets, scores, strict=True)),
                "remarks": remarks,
            }
        )
        return
    for target, values in zip(schema.targets, scores, strict=True):
        lines = [(LABELS[name], f"{value:,.5g}") for name, value in values.items()]
        print_table(f"{target}: {len(X):,} rows", lines)
    if len(scores) > 1:
        print_table("all targets together", [(LABELS["nlpd"], f"{joint:,.5g}")])


@command
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Write a report on a model and its predictions for a table: one HTML file that needs no network.

    Example: dsmgp report price.dsmgp test.csv --out report.html
    """
    if out.is_dir():
        fail(f"{out} is a folder; give the name of a file")
    if not out.parent.is_dir():
        fail(f"the folder {out.parent} does not exist; create it first")
    check_not_an_input(out, model, data)
    from dsmgp.report import write_report

    fitted, schema = load_model(model)
    X, y, remarks = table_rows(fitted, schema, data)
    title = title or f"{model.name} on {data}"
    write_report(out, fitted, X, y, targets=schema.targets, title=title)
    if as_json:
        print_json({"model": str(model), "rows": len(X), "file": str(out), "remarks": remarks})
    else:
        print_note(f"report written: {out}")
