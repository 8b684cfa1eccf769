"""``dsmgp evaluate`` and ``dsmgp report``: scores of a model on a table that has its targets."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from dsmgp.cli.inputs import (
    DayFirst,
    Decimal,
    Encoding,
    Model,
    NotAvailable,
    SampledData,
    load_model,
    read_for_model,
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
def evaluate(
    model: Model,
    data: SampledData,
    encoding: Encoding = None,
    decimal: Decimal = None,
    dayfirst: DayFirst = None,
    na: NotAvailable = [],  # noqa: B006
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score a model on a table that has its targets.

    \b
    Examples:
      dsmgp evaluate price.dsmgp test.csv
      dsmgp evaluate price.dsmgp test.csv --json
    """
    from dsmgp.data.unknown_inputs import mixture_at
    from dsmgp.scores import joint_nlpd, score_each

    fitted, schema = load_model(model)
    form = text_format(encoding, decimal, dayfirst, na)
    table = table_rows(fitted, read_for_model(schema, data, form))
    X, y, state = table.rows.X, table.y, fitted.state_
    distribution = mixture_at(state.predictive, table.rows, squeeze=state.schema.single_output)
    Y = y.reshape(len(y), -1)
    remarks = table.remarks + state.evaluation_remarks(X, Y, distribution, schema.targets)
    print_note(*remarks)
    scores = score_each(y, distribution, fitted.state_.rows.Y.mean(axis=0))
    joint = joint_nlpd(y, distribution)
    if as_json:
        print_json(
            {
                "model": str(model),
                "rows": len(X),
                "targets": list(schema.targets),
                **(scores[0] if len(scores) == 1 else {"joint_nlpd": joint}),
                "outside": float((distribution.outside > 0).mean()),
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
    data: SampledData,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(metavar="TEXT", help="Heading of the page.")] = "",
    encoding: Encoding = None,
    decimal: Decimal = None,
    dayfirst: DayFirst = None,
    na: NotAvailable = [],  # noqa: B006
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Write a report on a model and its predictions for a table: one HTML file that needs no network.

    \b
    Examples:
      dsmgp report price.dsmgp test.csv --out report.html
      dsmgp report price.dsmgp test.csv -o report.html --title "House prices"
    """
    if out.is_dir():
        fail(f"{out} is a folder; give the name of a file")
    if not out.parent.is_dir():
        fail(f"the folder {out.parent} does not exist; create it first")
    check_not_an_input(out, model, data)
    from dsmgp.report.evaluation import Evaluation
    from dsmgp.report.report import write_page

    with showing_progress("reporting"):
        with span(0.0, 0.2, "loading the model"):
            fitted, schema = load_model(model)
        form = text_format(encoding, decimal, dayfirst, na)
        table = table_rows(fitted, read_for_model(schema, data, form))
        with warnings.catch_warnings():
            # Of new levels and missing values: the remarks are printed.
            warnings.simplefilter("ignore")
            with span(0.2, 0.4, "predicting rows"):
                evaluation = Evaluation.of(
                    fitted, table.X, table.y, schema.targets, table.reading, table.row_numbers
                )
            with span(0.4, 1.0, "drawing"):
                write_page(out, evaluation, title or f"{model.name} on {data}")
    print_note(*evaluation.remarks)
    if as_json:
        print_json(
            {
                "model": str(model),
                "rows": len(evaluation.rows),
                "file": str(out),
                "remarks": evaluation.remarks,
            }
        )
    else:
        print_note(f"report written: {out}")
