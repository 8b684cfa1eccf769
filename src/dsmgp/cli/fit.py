"""``dsmgp fit``: from a table to a model file."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dsmgp.cli.fitted import say_fitted
from dsmgp.cli.talk import (
    INTERRUPTED,
    AsJson,
    Debug,
    command,
    refuse,
    refuse_to_replace,
    remark,
    say_at_once,
)

__all__ = ["fit"]


class OnInterrupt(StrEnum):
    abort = "abort"
    save = "save"


class Categories(StrEnum):
    onehot = "onehot"
    refuse = "refuse"


class Missing(StrEnum):
    refuse = "refuse"
    impute = "impute"


class Effort(StrEnum):
    low = "low"
    medium = "medium"
    high = "high"


class Executor(StrEnum):
    local = "local"
    ray = "ray"


class Weights(StrEnum):
    gated = "gated"
    posterior = "posterior"
    uniform = "uniform"


@command
def fit(
    data: Annotated[str, typer.Argument(help="CSV, TSV, Parquet or Feather file; - for standard input; a folder or glob of Parquet files of any size.")],
    target: Annotated[list[str], typer.Option("--target", "-t", help="Column to predict; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file to write, such as model.dsmgp; for a folder of data it is a folder.")],
    feature: Annotated[list[str], typer.Option(help="Column to predict from; all others if left out. May be repeated.")] = [],  # noqa: B006
    drop: Annotated[list[str], typer.Option(help="Column to leave out; may be repeated.")] = [],  # noqa: B006
    categories: Annotated[Categories, typer.Option(help="What to do with columns of text.")] = Categories.onehot,
    missing: Annotated[Missing, typer.Option(help="What to do with missing values.")] = Missing.refuse,
    kernel: Annotated[str, typer.Option(help="auto, rbf, matern12, matern32, matern52, rq, periodic, or a sum such as matern32+periodic.")] = "auto",
    mean: Annotated[str, typer.Option(help="zero, constant or linear.")] = "zero",
    effort: Annotated[Effort, typer.Option(help="What the fit may cost.")] = Effort.medium,
    weights: Annotated[Weights, typer.Option(help="How leaves are weighed.")] = Weights.gated,
    leaf_size: Annotated[list[int], typer.Option(help="Most rows in a leaf; may be repeated.")] = [],  # noqa: B006
    changes_along: Annotated[str | None, typer.Option(help="Input, such as a date, along which the function may change abruptly.")] = None,
    outliers: Annotated[bool, typer.Option("--outliers", help="With --changes-along: rows far off the rest are no changes.")] = False,
    max_iter: Annotated[int | None, typer.Option(help="Most iterations of the optimiser.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    memory_limit: Annotated[str | None, typer.Option(help="What matrices may take, such as 4GB.")] = None,
    executor: Annotated[Executor, typer.Option(help="Where leaves are worked on: here, or on a Ray cluster.")] = Executor.local,
    checkpoint: Annotated[Path | None, typer.Option(help="File from which the same fit goes on if it is cut short.")] = None,
    seed: Annotated[int, typer.Option(help="Seeds everything random.")] = 0,
    include_factors: Annotated[bool, typer.Option("--include-factors", help="A larger file that loads faster.")] = False,
    on_interrupt: Annotated[OnInterrupt, typer.Option(help="On Ctrl-C: write nothing, or the best found so far.")] = OnInterrupt.abort,
    force: Annotated[bool, typer.Option("--force", help="Replace a model file that is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Fit a model to a table, and write it to a file.

    Example: dsmgp fit train.csv --target price --out price.dsmgp
    """
    from dsmgp.tables import is_dataset, read_table

    # The folder of a model is never replaced, and may hold what a fit that was cut short has left.
    if out.exists() and not force and not is_dataset(data):
        refuse(f"{out} is there already; give another name, or --force to replace it")
    if out.is_dir() and not is_dataset(data):
        refuse(f"{out} is a folder; give the name of a file")
    if not out.parent.is_dir():
        refuse(f"the folder {out.parent} does not exist; create it first")
    refuse_to_replace(out, data)
    if outliers and changes_along is None:
        refuse("--outliers goes with --changes-along")
    if include_factors and changes_along is not None:
        refuse(
            "--include-factors does not go with --changes-along: such factors are made again when a file is read"
        )
    from dsmgp import ChangePoints, DSMGPRegressor
    from dsmgp.recipe import Recipe

    model = DSMGPRegressor(
        kernel=kernel,
        mean=mean,
        structure="balanced"
        if changes_along is None
        else ChangePoints(changes_along, outliers=outliers),
        effort=effort.value,
        weights=weights.value,
        leaf_size=list(leaf_size) or "auto",
        max_iter=max_iter,
        device=device,
        memory_limit=memory_limit,
        executor=executor.value,
        checkpoint=checkpoint,
        random_state=seed,
    )
    start = time.perf_counter()
    if is_dataset(data):
        if include_factors:
            refuse(
                "--include-factors is for tables in one file: the model of a folder makes factors when it is asked"
            )
        with _watched(quiet, on_interrupt is OnInterrupt.save) as listener:
            model.fit_dataset(
                data,
                target,
                features=feature,
                drop=drop,
                categories=categories.value,
                missing=missing.value,
                store=out,
            )
        recipe = Recipe.from_dict(model._table)
        recipe.remarks = model._remarks
        if not quiet:
            remark(recipe.remarks)
    else:
        table = read_table(data)
        recipe = Recipe.learn(table, target, feature, drop, categories.value, missing.value)
        if changes_along is not None and recipe.missing(table).get(changes_along):
            refuse(
                f"the column {changes_along!r} orders the rows and has missing values; remove such rows"
            )
        X, Y = recipe.inputs(table), recipe.outputs(table)
        if not quiet:
            remark(recipe.remarks)
        start = time.perf_counter()
        with _watched(quiet, on_interrupt is OnInterrupt.save) as listener:
            named = _framed(Y, recipe.targets)
            single = len(recipe.targets) == 1
            model.fit(_framed(X, recipe.input_names), named[recipe.targets[0]] if single else named)
        model._table = recipe.as_dict()
        model.save(out, include_factors=include_factors)
    seconds = time.perf_counter() - start
    stopped = bool(listener.stopping)
    say_fitted(model, recipe, out, seconds, stopped, as_json)
    if stopped:
        raise typer.Exit(INTERRUPTED)


def _framed(X: Any, names: list[str]) -> Any:
    """With names, so that a notebook that loads the model sees them."""
    import pandas as pd

    return pd.DataFrame(X, columns=names, copy=False)


@contextmanager
def _watched(quiet: bool, save: bool) -> Iterator[Any]:
    """A bar where one can be drawn; with ``save`` the first Ctrl-C asks the fit to end, and the second ends it."""
    from dsmgp import bars
    from dsmgp.progress import Listener, listening

    shown = bars.bar() if not quiet and sys.stderr.isatty() else listening(Listener())
    with shown as listener:
        if not save:
            yield listener
            return

        def end(signum: int, frame: Any) -> None:
            if listener.stopping:
                raise KeyboardInterrupt
            listener.stop()
            say_at_once(
                "interrupted: finishing with the best found so far (Ctrl-C again to give up)"
            )

        before = signal.signal(signal.SIGINT, end)
        try:
            yield listener
        finally:
            signal.signal(signal.SIGINT, before)
