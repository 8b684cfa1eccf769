"""The command ``dsmgp``: its subcommands, and ``demo`` and ``reproduce``, which have no module of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsmgp import __version__
from dsmgp.cli.evaluate import evaluate, report
from dsmgp.cli.fit import fit
from dsmgp.cli.help import HelpfulCommand
from dsmgp.cli.output import (
    INTERRUPTED,
    AsJson,
    CommandGroup,
    Debug,
    command,
    fail,
    print_json,
    print_note,
)
from dsmgp.cli.predict import info, predict

__all__ = ["app", "main"]

app = typer.Typer(
    name="dsmgp",
    cls=CommandGroup,
    help="Gaussian-process regression that scales: fit a table, predict with calibrated uncertainty.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in (fit, predict, evaluate, report, info):
    app.command(cls=HelpfulCommand)(function)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dsmgp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Gaussian-process regression that scales: fit a table, predict with calibrated uncertainty."""


@app.command(cls=HelpfulCommand)
@command
def demo(as_json: AsJson = False, debug: Debug = False) -> None:
    """Fit a curve with jumps, compare with an exact GP, and plot it: out/demo.png.

    \b
    Examples:
      dsmgp demo
      dsmgp demo --json
    """
    from dsmgp import demo as script

    result = script.main(print_note if as_json else print)
    if as_json:
        print_json(result)


@app.command(cls=HelpfulCommand)
@command
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an experiment of the paper, or all.")] = "all",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for tables and figures.")] = Path("out/reproduction"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and methods: minutes, not hours.")] = False,
    seeds: Annotated[int | None, typer.Option(metavar="NUMBER", help="Number of random splits of each data set; that of the experiment if left out.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Reproduce the paper's experiments: results, table and figure of each in one folder.

    \b
    Examples:
      dsmgp reproduce figure-illustration --quick
      dsmgp reproduce all --quick --out reproduction
    """
    from dsmgp.reproduce import NAMES, reproduce_all
    from dsmgp.reproduce import reproduce as run

    if name not in (*NAMES, "all"):
        fail(f"unknown experiment {name!r}; expected all or one of {', '.join(NAMES)}")
    try:
        if name == "all":
            paths = reproduce_all(out, quick, seeds, progress=print_note)
        else:
            paths = run(name, out, quick=quick, seeds=seeds, progress=print_note)
    except KeyboardInterrupt:
        print_note("interrupted; results so far are kept, and the same command resumes")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json({"paths": [str(path) for path in paths]})
        return
    for path in paths:
        typer.echo(str(path))


def main() -> None:
    app()
