"""``dsmgp evaluate`` and ``report``: how a model does on a table that has its targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsmgp.cli.given import Data, Model, loaded, observed
from dsmgp.cli.talk import (
    AsJson,
    Debug,
    as_table,
    command,
    print_json,
    refuse,
    refuse_to_replace,
    say,
)

__all__ = ["evaluate", "report"]

WORDS = {
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

    fitted, recipe = loaded(model)
    X, y, remarks = observed(fitted, recipe, data)
    law = fitted.predict_dist(X)
    each = score_each(y, law, fitted._rows[1].mean(axis=0))
    together = joint_nlpd(y, law)
    if as_json:
        about = {"model": str(model), "rows": len(X), "targets": recipe.targets}
        common = each[0] if len(each) == 1 else {"joint_nlpd": together}
        by_target = dict(zip(recipe.targets, each, strict=True))
        print_json({**about, **common, "by_target": by_target, "remarks": remarks})
        return
    for target, scores in zip(recipe.targets, each, strict=True):
        lines = [(WORDS[name], f"{value:,.5g}") for name, value in scores.items()]
        as_table(f"{target}: {len(X):,} rows", lines)
    if len(each) > 1:
        as_table("all targets together", [(WORDS["nlpd"], f"{together:,.5g}")])


@command
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Write a page about a model and how it does on a table: one HTML file that needs no network.

    Example: dsmgp report price.dsmgp test.csv --out report.html
    """
    if out.is_dir():
        refuse(f"{out} is a folder; give the name of a file")
    if not out.parent.is_dir():
        refuse(f"the folder {out.parent} does not exist; create it first")
    refuse_to_replace(out, model, data)
    from dsmgp.report import write_report

    fitted, recipe = loaded(model)
    X, y, remarks = observed(fitted, recipe, data)
    write_report(
        out, fitted, X, y, targets=recipe.targets, title=title or f"{model.name} on {data}"
    )
    if as_json:
        print_json({"model": str(model), "rows": len(X), "file": str(out), "remarks": remarks})
    else:
        say(f"report written: {out}")
