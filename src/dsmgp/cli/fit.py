"""``dsmgp fit``: from a table to a model file, and a summary of the model."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmgp.cli.output import (
    INTERRUPTED,
    AsJson,
    Debug,
    check_not_an_input,
    command,
    fail,
    print_json,
    print_note,
    print_note_in_handler,
    print_table,
)

if TYPE_CHECKING:
    from dsmgp.data.schema import ColumnSchema

__all__ = ["fit", "interruptible", "print_summary"]

# Change points that are listed one by one.
MAX_CHANGES = 20


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


class InputWarp(StrEnum):
    auto = "auto"
    none = "none"
    rank = "rank"
    both = "both"


class Metric(StrEnum):
    auto = "auto"
    diagonal = "diagonal"
    full = "full"


class OutputWarp(StrEnum):
    auto = "auto"
    none = "none"
    rank = "rank"
    log = "log"
    positive = "positive"


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
    feature: Annotated[list[str], typer.Option(help="Input column; all columns but the targets if left out. May be repeated.")] = [],  # noqa: B006
    drop: Annotated[list[str], typer.Option(help="Column to ignore; may be repeated.")] = [],  # noqa: B006
    categories: Annotated[Categories, typer.Option(help="What to do with columns of text.")] = Categories.onehot,
    missing: Annotated[Missing, typer.Option(help="What to do with missing values.")] = Missing.refuse,
    kernel: Annotated[str, typer.Option(help="auto, rbf, matern12, matern32, matern52, rq, periodic, or a sum such as matern32+periodic.")] = "auto",
    mean: Annotated[str, typer.Option(help="zero, constant or linear.")] = "zero",
    effort: Annotated[Effort, typer.Option(help="How much computation the fit may take.")] = Effort.medium,
    weights: Annotated[Weights, typer.Option(help="How the predictions of leaves are weighted.")] = Weights.gated,
    leaf_size: Annotated[list[int], typer.Option(help="Most rows in a leaf; may be repeated.")] = [],  # noqa: B006
    changes_along: Annotated[str | None, typer.Option(help="Input, such as a date, along which the function may change abruptly.")] = None,
    outliers: Annotated[bool, typer.Option("--outliers", help="With --changes-along: treat outliers as outliers, not as changes.")] = False,
    max_iter: Annotated[int | None, typer.Option(help="Most iterations of the optimiser.")] = None,
    input_warp: Annotated[InputWarp, typer.Option(help="Whether inputs are transformed to normal scores: where leave-one-out says so, never, all of them, or beside the inputs as they are.")] = InputWarp.auto,
    metric: Annotated[Metric, typer.Option(help="A length scale per input, or a linear map of the inputs; auto learns one and keeps it if leave-one-out says so.")] = Metric.auto,
    output_warp: Annotated[OutputWarp, typer.Option(help="How outputs that are skewed or bounded are transformed: by ranks, by logarithms, or by ranks of positive outputs.")] = OutputWarp.auto,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    memory_limit: Annotated[str | None, typer.Option(help="Most memory for matrices, such as 4GB.")] = None,
    executor: Annotated[Executor, typer.Option(help="Where to compute: in this process, or on a Ray cluster.")] = Executor.local,
    checkpoint: Annotated[Path | None, typer.Option(help="File from which the same fit resumes if it is interrupted.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of all random numbers.")] = 0,
    include_factors: Annotated[bool, typer.Option("--include-factors", help="Write a larger file that loads faster.")] = False,
    on_interrupt: Annotated[OnInterrupt, typer.Option(help="On Ctrl-C: write nothing, or the best model so far.")] = OnInterrupt.abort,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Fit a model to a table, and write it to a file.

    Example: dsmgp fit train.csv --target price --out price.dsmgp
    """
    from dsmgp.data.tables import is_dataset

    from_files = is_dataset(data)
    _check_out(out, data, from_files, force)
    if outliers and changes_along is None:
        fail("--outliers goes with --changes-along")
    if include_factors and changes_along is not None:
        fail(
            "--include-factors does not go with --changes-along: factors of such models are computed when a file is loaded"
        )
    if include_factors and from_files:
        fail(
            "--include-factors is for tables in one file: the model of a folder computes factors when it predicts"
        )
    from dsmgp import ChangePoints, DSMGPRegressor
    from dsmgp.regressor import fit_table

    change_points = (
        None if changes_along is None else ChangePoints(changes_along, outliers=outliers)
    )
    model = DSMGPRegressor(
        kernel=kernel,
        mean=mean,
        structure=change_points or "balanced",
        effort=effort.value,
        weights=weights.value,
        leaf_size=list(leaf_size) or "auto",
        max_iter=max_iter,
        input_warp=None if input_warp is InputWarp.none else input_warp.value,
        metric=metric.value,
        output_warp=None if output_warp is OutputWarp.none else output_warp.value,
        device=device,
        memory_limit=memory_limit,
        executor=executor.value,
        checkpoint=checkpoint,
        random_state=seed,
    )
    columns: dict[str, Any] = {
        "features": feature,
        "drop": drop,
        "categories": categories.value,
        "missing": missing.value,
    }
    context = interruptible(quiet, save=on_interrupt is OnInterrupt.save)
    start = time.perf_counter()
    if from_files:
        with context as listener:
            model.fit_dataset(data, target, store=out, **columns)
        if not quiet:
            print_note(*model.state_.schema.remarks)
    else:
        schema, remarks, X, Y = _training_data(data, target, columns, changes_along)
        if not quiet:
            print_note(*remarks)
        start = time.perf_counter()
        with context as listener:
            fit_table(model, X, Y, schema, remarks)
        model.save(out, include_factors=include_factors)
    seconds = time.perf_counter() - start
    print_summary(model, out, seconds, listener.stopping, as_json)
    if listener.stopping:
        raise typer.Exit(INTERRUPTED)


def _check_out(out: Path, data: str, from_files: bool, force: bool) -> None:
    """Fail before anything is read if the model cannot be written.

    The model of a folder of files is a folder, is never replaced, and may hold an interrupted fit to resume.
    """
    if out.exists() and not force and not from_files:
        fail(f"{out} exists already; give another name, or --force to replace it")
    if out.is_dir() and not from_files:
        fail(f"{out} is a folder; give the name of a file")
    if not out.parent.is_dir():
        fail(f"the folder {out.parent} does not exist; create it first")
    check_not_an_input(out, data)


def _training_data(
    data: str, targets: list[str], columns: dict[str, Any], changes_along: str | None
) -> tuple[ColumnSchema, list[str], Any, Any]:
    """Read a table; return its schema, remarks on its encoding, and inputs and targets with names, which the model keeps."""
    import pandas as pd

    from dsmgp.data.encoding import encode_inputs, encode_targets, learn_schema, missing_counts
    from dsmgp.data.tables import read_table

    table = read_table(data)
    schema = learn_schema(table, targets, **columns)
    missing = missing_counts(schema, table)
    if changes_along is not None and missing.get(changes_along):
        fail(
            f"the column {changes_along!r} orders the rows and has missing values; remove such rows"
        )
    remarks = [*schema.encoding_remarks(), *schema.imputation_remarks(missing)]
    names = list(schema.targets)
    X = pd.DataFrame(encode_inputs(schema, table), columns=schema.input_names, copy=False)
    Y = pd.DataFrame(encode_targets(schema, table), columns=names, copy=False)
    return schema, remarks, X, Y[names[0]] if len(names) == 1 else Y


@contextmanager
def interruptible(quiet: bool, save: bool) -> Iterator[Any]:
    """Show a progress bar in a terminal; with ``save`` the first Ctrl-C stops the fit early, the second aborts it."""
    from dsmgp._util.progress_bar import progress_bar
    from dsmgp.progress import Listener, listening

    bar = progress_bar() if not quiet and sys.stderr.isatty() else listening(Listener())
    with bar as listener:
        if not save:
            yield listener
            return

        def stop(signum: int, frame: Any) -> None:
            if listener.stopping:
                raise KeyboardInterrupt
            listener.stop()
            print_note_in_handler(
                "interrupted: finishing with the best found so far (Ctrl-C again to give up)"
            )

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield listener
        finally:
            signal.signal(signal.SIGINT, before)


def print_summary(model: Any, out: Path, seconds: float, stopped: bool, as_json: bool) -> None:
    """Print what was fitted, and how well."""
    fitted, schema = model.state_.model, model.state_.schema
    kernels = list(dict.fromkeys(family.kernel for family in fitted.families))
    if as_json:
        print_json(
            {
                "model": str(out),
                "rows": fitted.n_rows,
                "inputs": schema.input_names,
                "targets": schema.output_names,
                "kernels": kernels,
                **_scores(model),
                "seconds": seconds,
                "interrupted": stopped,
                "remarks": list(schema.remarks),
            }
        )
        return
    n_inputs = len(schema.input_names)
    inputs = f"{n_inputs}: {', '.join(schema.input_names[:8])}{', ...' * (n_inputs > 8)}"
    lines = [
        ("rows", f"{fitted.n_rows:,}"),
        ("inputs", inputs),
        ("targets", ", ".join(schema.output_names)),
        ("kernel" + "s" * (len(kernels) > 1), ", ".join(kernels)),
        *_score_lines(model),
        ("seconds", f"{seconds:.1f}" + (", interrupted" if stopped else "")),
    ]
    print_table(f"{out} written", lines)


def _scores(model: Any) -> dict[str, Any]:
    """Return the leave-one-out scores, or the probable change points."""
    dimension = model.state_.model.change_dimension
    if dimension is None:
        return {"loo_nlpd": model.loo_score_, "loo_nlpd_new_inputs": model.loo_score_new_inputs_}
    splits = model.split_posterior(dimension)
    changes = [
        {
            "position": _position(change.position),
            "probability": change.probability,
            "low": _position(change.low),
            "high": _position(change.high),
            # the probability that the change lies between low and high
            "within": splits.within(change.low, change.high),
        }
        for change in model.changepoints()
    ]
    return {"changes_expected": splits.expected, "changes": changes}


def _score_lines(model: Any) -> list[tuple[str, str]]:
    """Return a line with the leave-one-out score; or the expected number of changes, and a line for each probable one."""
    from dsmgp._util.dates import format_position

    dimension = model.state_.model.change_dimension
    if dimension is None:
        return [("leave-one-out NLPD", f"{model.loo_score_:.4g}")]
    changes, splits = model.changepoints(), model.split_posterior(dimension)
    lines = [("changes expected", f"{splits.expected:.3g}")]
    for change in changes[:MAX_CHANGES]:
        position, low, high = map(format_position, (change.position, change.low, change.high))
        inside = f"{splits.within(change.low, change.high):.2f} between {low} and {high}"
        lines.append((f"  {position}", f"probability {change.probability:.2f}, {inside}"))
    if len(changes) > MAX_CHANGES:
        lines.append(("", f"and {len(changes) - MAX_CHANGES} more; --json lists all"))
    return lines


def _position(position: Any) -> Any:
    """Return a number as it is, and a date as text."""
    from dsmgp._util.dates import format_position

    return position if isinstance(position, float) else format_position(position)
