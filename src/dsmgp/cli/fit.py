"""``dsmgp fit``: from a table to a model file, and a summary of the model."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from dsmgp.cli.inputs import (
    DayFirst,
    Decimal,
    Encoding,
    NotAvailable,
    columns_of_files,
    named_columns,
    split_list,
    text_format,
)
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
from dsmgp.cli.verdict import next_command, verdict_numbers, verdict_rows

if TYPE_CHECKING:
    from dsmgp.data.columns.learning import EncodedTable
    from dsmgp.data.files.tables import TextFormat

__all__ = ["fit", "interruptible", "print_summary"]

# Change points that are listed one by one.
MAX_CHANGES = 20


# Choices of the options, as users write them.
Categories = Literal["auto", "onehot", "refuse"]
Missing = Literal["drop", "model", "error"]
Effort = Literal["low", "medium", "high"]
InputWarp = Literal["auto", "none", "rank", "both"]
Metric = Literal["auto", "diagonal", "full", "deep"]
OutputWarp = Literal["auto", "none", "rank", "log", "positive"]
Structure = Literal["balanced", "paper", "learned"]
Priors = Literal["lognormal", "none"]
Hypotheses = Literal["auto", "average", "none"]
BoostedTrees = Literal["auto", "always", "none"]
Executor = Literal["local", "ray"]
Weights = Literal["auto", "gated", "posterior", "uniform"]
OnInterrupt = Literal["abort", "save"]

# Former words for what to do with missing values, which still work.
FORMER_MISSING = {"refuse": "error", "impute": "model"}


def _parse_missing(word: str) -> str:
    """Return what to do with missing values, also by a former word."""
    word, choices = FORMER_MISSING.get(word, word), get_args(Missing)
    if word not in choices:
        raise typer.BadParameter(f"{word!r} is not one of {', '.join(map(repr, choices))}.")
    return word


def _none_or(word: str) -> str | None:
    """Return a choice as the estimator takes it, where the command line writes none for None."""
    return None if word == "none" else word


@command
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help="CSV, TSV, JSON, Parquet or Feather file; - for standard input; a folder or glob of Parquet files of any size.")],
    target: Annotated[list[str], typer.Option("--target", "-t", metavar="COLUMN", help="Column to predict; repeat, or separate by commas.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The model file to write, such as model.dsmgp; for a folder of data it is a folder.")],
    feature: Annotated[list[str], typer.Option(metavar="COLUMN", help="Input column; all columns but the targets by default. Repeat, or separate by commas.")] = [],  # noqa: B006
    drop: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column to ignore; repeat, or separate by commas.")] = [],  # noqa: B006
    text: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column to read as text although its values look like numbers or dates; repeat, or separate by commas.")] = [],  # noqa: B006
    categories: Annotated[Categories, typer.Option(help="What to do with columns of text.")] = "auto",
    missing: Annotated[Missing, typer.Option(parser=_parse_missing, metavar="<drop|model|error>", help="What to do with missing values of inputs: drop such rows, let the model handle them, or end with an error.")] = "model",
    encoding: Encoding = None,
    decimal: Decimal = None,
    dayfirst: DayFirst = None,
    na: NotAvailable = [],  # noqa: B006
    kernel: Annotated[str, typer.Option(metavar="NAME", help="auto, rbf, matern12, matern32, matern52, rq, linear, periodic, a sum such as matern32+periodic, or a product such as rbf*periodic; several with commas for inference over kernels.")] = "auto",
    mean: Annotated[str, typer.Option(metavar="NAME", help="auto, zero, constant or linear.")] = "auto",
    effort: Annotated[Effort, typer.Option(help="How much computation the fit may take.")] = "medium",
    weights: Annotated[Weights, typer.Option(help="How the predictions of leaves are weighted; auto: posterior for learned structures and several kernels, else gated.")] = "auto",
    structure: Annotated[Structure, typer.Option(help="How the input space is partitioned: balanced, the paper's algorithm, or learned, for functions that break along unknown boundaries.")] = "balanced",
    leaf_size: Annotated[list[int], typer.Option(metavar="NUMBER", help="Largest number of rows in a leaf; may be repeated.")] = [],  # noqa: B006
    changes_along: Annotated[str | None, typer.Option(metavar="COLUMN", help="Input, such as a date, along which the function may change abruptly.")] = None,
    outliers: Annotated[bool, typer.Option("--outliers", help="With --changes-along: treat outliers as outliers, not as changes.")] = False,
    max_iter: Annotated[int | None, typer.Option(metavar="NUMBER", help="Maximum number of iterations of the optimiser.")] = None,
    input_warp: Annotated[InputWarp, typer.Option(help="Transform inputs to normal scores: rank, all of them; both, beside the original inputs; auto, if leave-one-out improves clearly.")] = "auto",
    metric: Annotated[Metric, typer.Option(help="How rows are compared: by a length scale per input (diagonal), a learned linear map (full) or a small network (deep); auto tries a map, with high effort also a network, and keeps it if leave-one-out improves clearly.")] = "auto",
    output_warp: Annotated[OutputWarp, typer.Option(help="Transform skewed or bounded outputs: rank, to normal scores; log, to logarithms; positive, as rank with predictions above 0; auto, if leave-one-out improves clearly.")] = "auto",
    boosted_trees: Annotated[BoostedTrees, typer.Option(help="Use predictions of boosted trees as a further input: always; none, never; auto, if leave-one-out improves clearly.")] = "auto",
    hypotheses: Annotated[Hypotheses, typer.Option(help="auto: a small table is fitted under several hypotheses, weighted by cross-validation; average: by their posterior probability.")] = "auto",
    priors: Annotated[Priors, typer.Option(help="Priors on the hyperparameters of named kernels; none is maximum likelihood.")] = "lognormal",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, ...")] = "auto",
    memory_limit: Annotated[str | None, typer.Option(metavar="SIZE", help="Most memory for matrices, such as 4GB.")] = None,
    executor: Annotated[Executor, typer.Option(help="Where to compute: in this process, or on a Ray cluster.")] = "local",
    checkpoint: Annotated[Path | None, typer.Option(metavar="FILE", help="File from which the same fit resumes if it is interrupted.")] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="Seed of all random numbers.")] = 0,
    include_factors: Annotated[bool, typer.Option("--include-factors", help="Ignored: files without factors load faster.")] = False,
    on_interrupt: Annotated[OnInterrupt, typer.Option(help="On Ctrl-C: write nothing, or the best model so far.")] = "abort",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Fit a model to a table, and write it to a file.

    \b
    Examples:
      dsmgp fit train.csv --target price --out price.dsmgp
      dsmgp fit train.csv -t price -o price.dsmgp --drop id --effort low
      dsmgp fit demand.csv -t demand -o demand.dsmgp --changes-along day
      dsmgp fit rows/ -t price -o price-model        (a folder of Parquet files)
    """
    from dsmgp.data.files.tables import is_dataset

    if seed >= 2**32:
        fail(f"expected --seed below {2**32}, got {seed}")

    from_files = is_dataset(data)
    _check_out(out, data, from_files, force)
    if outliers and changes_along is None:
        fail("--outliers needs --changes-along")
    if changes_along is not None and structure != "balanced":
        fail("--structure cannot be combined with --changes-along, which is a structure of its own")
    if include_factors:
        print_note("--include-factors is ignored: a model file without factors loads faster")
    if text and from_files:
        fail("--text is for tables in one file: store such columns as text in the Parquet files")
    from dsmgp import ChangePoints, DSMGPRegressor
    from dsmgp.regressor import fit_table

    change_points = (
        None if changes_along is None else ChangePoints(changes_along, outliers=outliers)
    )
    model = DSMGPRegressor(
        kernel=kernel if "," not in kernel else [name.strip() for name in kernel.split(",")],
        mean=mean,
        structure=change_points or structure,
        effort=effort,
        weights=weights,
        leaf_size=leaf_size[0] if len(leaf_size) == 1 else list(leaf_size) or "auto",
        max_iter=max_iter,
        input_warp=_none_or(input_warp),
        metric=metric,
        boosted_trees=_none_or(boosted_trees),
        output_warp=_none_or(output_warp),
        hypotheses=_none_or(hypotheses),
        priors=_none_or(priors),
        device=device,
        memory_limit=memory_limit,
        executor=executor,
        checkpoint=checkpoint,
        random_state=seed,
        missing=missing,
    )
    columns: dict[str, Any] = {
        "targets": target,
        "features": feature,
        "drop": drop,
        "categories": categories,
        "missing": missing,
    }
    context = interruptible(quiet, save=on_interrupt == "save")
    start = time.perf_counter()
    if from_files:
        with context as listener:
            columns = _split_names(columns, columns_of_files(data))
            columns["target"] = columns.pop("targets")
            model.fit_dataset(data, store=out, **columns)
        if not quiet:
            print_note(*model.state_.schema.remarks)
    else:
        form = text_format(encoding, decimal, dayfirst, na)
        table = _training_table(data, columns, text, form)
        if not quiet:
            print_note(*table.remarks)
        start = time.perf_counter()
        with context as listener:
            fit_table(model, table)
        model.save(out)
    if not quiet:
        print_note(*model.state_.prediction_remarks)
    seconds = time.perf_counter() - start
    print_summary(model, out, seconds, listener.stopping, as_json)
    if not as_json:
        print_table("verdict", verdict_rows(model, quiet))
    if not (as_json or quiet):
        print_note(f"next, with rows that the model has not seen: {next_command(out, from_files)}")
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


def _split_names(columns: dict[str, Any], present: Sequence[str]) -> dict[str, Any]:
    """Return the options with the columns that lists with commas name."""
    kinds = ("targets", "features", "drop")
    return columns | {kind: named_columns(columns[kind], present) for kind in kinds}


def _training_table(
    data: str,
    columns: dict[str, Any],
    text: list[str],
    form: TextFormat,
) -> EncodedTable:
    """Read a table, and encode its columns."""
    from dsmgp.data.columns.learning import encode_table
    from dsmgp.data.files.tables import read_table, reading_remarks

    def used(present: Sequence[str]) -> set[str]:
        named = _split_names(columns, present)
        return {*named["targets"], *(named["features"] or present)} - {*named["drop"]}

    rows = read_table(data, [*text, *split_list(text)], used, form)
    named_columns(text, rows.column_names)
    table = encode_table(rows, **_split_names(columns, rows.column_names))
    schema = replace(
        table.schema, decimal=form.decimal, day_first=form.day_first, missing_texts=form.missing
    )
    return replace(table, schema=schema, remarks=(*reading_remarks(rows), *table.remarks))


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
                **verdict_numbers(model),
                "seconds": seconds,
                "interrupted": stopped,
                "remarks": model.remarks_,
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
    fitted = model.state_.model
    if not fitted.has_change_points:
        return {"loo_nlpd": model.loo_score_, "loo_nlpd_new_inputs": model.loo_score_new_inputs_}
    splits = model.split_posterior(fitted.split_dimension)
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
    """Return a line with the leave-one-out or cross-validated score; or the expected number of changes, and a line for each probable one."""
    from dsmgp._util.dates import format_position

    fitted = model.state_.model
    if not fitted.has_change_points:
        return [(f"{model.state_.score_kind} NLPD", f"{model.loo_score_:.4g}")]
    changes, splits = model.changepoints(), model.split_posterior(fitted.split_dimension)
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
