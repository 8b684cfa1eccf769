"""The command ``dsmgp``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dsmgp import __version__
from dsmgp.cli.fit import fit
from dsmgp.cli.talk import Debug, command, refuse
from dsmgp.cli.use import evaluate, info, predict, report

__all__ = ["app", "main"]

app = typer.Typer(
    name="dsmgp",
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
def demo(debug: Debug = False) -> None:
    """Fit a curve that jumps, score it beside an exact GP, and draw it: out/demo.png.

    Example: dsmgp demo
    """
    from dsmgp import demo as script

    script.main()


@app.command()
@command
def reproduce(
    name: Annotated[str, typer.Argument(help="What to reproduce; all for everything.")] = "all",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and figures.")] = Path("out"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and methods: minutes, not hours.")] = False,
    seeds: Annotated[int, typer.Option(help="Random splits of each data set.")] = 1,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Run the comparisons of the paper again.

    Example: dsmgp reproduce table1 --quick
    """
    if find_spec("dsmgp.reproduce") is None:
        refuse("this version of dsmgp has nothing to reproduce yet; install a later one")
    import_module("dsmgp.reproduce").reproduce(name, out, quick=quick, seeds=seeds)


def main() -> None:
    app()
