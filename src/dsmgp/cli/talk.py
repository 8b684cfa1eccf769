"""How the command line speaks: results on standard output, everything else on standard error, errors in one line."""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "REFUSED",
    "AsJson",
    "Debug",
    "OneLine",
    "as_table",
    "command",
    "print_json",
    "refuse",
    "refuse_to_replace",
    "remark",
    "say",
    "say_at_once",
]

#: Exit codes, beside 0: something failed that should not; the request or the data are wrong; Ctrl-C.
FAILED, REFUSED, INTERRUPTED = 1, 2, 130

# Typer has click within it in some releases and beside it in others; this is the class of either.
UsageError: Any = typer.BadParameter.__mro__[1]
Command = TypeVar("Command", bound=Callable[..., Any])
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]


class Refused(Exception):
    """A request that cannot be granted, in the user's words."""


def refuse(message: str) -> NoReturn:
    raise Refused(message)


def refuse_to_replace(out: str | Path, *read: str | Path) -> None:
    """Where what would be written is one of the files that are read."""
    for each in map(Path, read):
        if each.exists() and Path(out).exists() and each.samefile(out):
            refuse(f"{out} is read here, and would be replaced; give --out another name")


def say(message: str) -> None:
    """A remark, on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(message, markup=False)


def say_at_once(message: str) -> None:
    """The same where a signal is handled: what it interrupted may be writing, and a stream cannot be entered twice."""
    os.write(2, f"{message}\n".encode())


def remark(remarks: Sequence[str]) -> None:
    """What was done beyond what was asked for, on standard error."""
    for each in remarks:
        say(each)


def print_json(result: Any) -> None:
    sys.stdout.write(json.dumps(result, indent=2, default=_plain) + "\n")


def as_table(title: str, rows: list[tuple[str, str]]) -> None:
    """Names and values, on standard output."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width
        console = Console(highlight=False, width=100)
    console.print(table, markup=False)


class OneLine(TyperGroup):
    """Commands whose errors of usage are one line too."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        options["standalone_mode"] = False
        try:
            code = super().main(*arguments, **options)
        except UsageError as error:
            if not error.format_message() or type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # no command at all: the help
            else:
                say(f"error: {_usage(error)}")
            sys.exit(error.exit_code)
        sys.exit(
            code if isinstance(code, int) else 0
        )  # commands return nothing; what ends early, a code

    # Ctrl-C before a command has begun: Typer would end without a word.
    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _interrupts_told():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _interrupts_told():
            return super().invoke(ctx)


@contextmanager
def _interrupts_told() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def _usage(error: Any) -> str:
    message = _line(error.format_message()).replace("Value error, ", "").removesuffix(".")
    where = "dsmgp" if error.ctx is None else error.ctx.command_path
    return f"{message[:1].lower()}{message[1:]}; see {where} --help"


def command(function: Command) -> Command:
    """Errors of the user in one line, with exit code 2; others in one line, with 1; with ``--debug`` as they are."""

    @functools.wraps(function)
    def told(*arguments: Any, **options: Any) -> Any:
        if options.get("debug"):
            return function(*arguments, **options)
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: say(f"warning: {_line(message)}")
                return function(*arguments, **options)
        except KeyboardInterrupt:
            say("interrupted; nothing was written")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever read the output has seen enough
            sys.stderr.close()
            raise typer.Exit(0) from None
        except (Refused, ValueError, OSError, MemoryError) as error:
            say(f"error: {_line(error) or type(error).__name__}")
            raise typer.Exit(REFUSED) from None
        except ModuleNotFoundError as error:
            say(f"error: {error.name} is not installed; pip install 'dsmgp[cli]'")
            raise typer.Exit(FAILED) from None
        except typer.Exit:
            raise
        except Exception as error:
            kind = type(error).__name__
            say(f"error: {kind}: {_line(error)} (run again with --debug for the traceback)")
            raise typer.Exit(FAILED) from None

    return told  # type: ignore[return-value]


def _line(error: Any) -> str:
    return " ".join(str(error).split())


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
