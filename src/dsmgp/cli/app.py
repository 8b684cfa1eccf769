"""The command ``dsmgp``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsmgp import __version__
from dsmgp.cli.fit import fit
from dsmgp.cli.judge import evaluate, report
from dsmgp.cli.talk import INTERRUPTED, AsJson, Debug, OneLine, command, print_json, refuse, say
from dsmgp.cli.use import info, predict

__all__ = ["app", "main"]

app = typer.Typer(
    name="dsmgp",
    cls=OneLine,
    help="Gaussian-process regression that scales: fit a table, predict with honest uncertainty.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for each in (fit, predict, evaluate, report, info):
    app.command()(each)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dsmgp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Gaussian-process regression that scales: fit a table, predict with honest uncertainty."""


@app.command()
@command
def demo(as_json: AsJson = False, debug: Debug = False) -> None:
    """Fit a curve that jumps, score it beside an exact GP, and draw it: out/demo.png.

    Example: dsmgp demo
    """
    from dsmgp import demo as script

    found = script.main(say if as_json else print)
    if as_json:
        print_json(found)


@app.command()
@command
def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment of the paper by name; all for every one.")] = "all",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and figures.")] = Path("out/reproduction"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and methods: minutes, not hours.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Random splits of each data set; as many as the experiment has.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Run the paper's experiments again: results, table and figure of each in one folder.

    Example: dsmgp reproduce figure-illustration --quick
    """
    from dsmgp.reproduce import NAMES, reproduce_all
    from dsmgp.reproduce import reproduce as run

    if name not in (*NAMES, "all"):
        refuse(f"there is no experiment {name!r}; expected all or one of {', '.join(NAMES)}")
    try:
        if name == "all":
            paths = reproduce_all(out, quick, seeds, progress=say)
        else:
            paths = run(name, out, quick=quick, seeds=seeds, progress=say)
    except KeyboardInterrupt:
        say("interrupted; what was run is kept, and the same command goes on")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json({"paths": [str(path) for path in paths]})
        return
    for path in paths:
        typer.echo(str(path))


def main() -> None:
    app()
