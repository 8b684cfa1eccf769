"""Output of the command line: results on standard output, everything else on standard error, errors in one line."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from dsmgp._util.errors import InputError
from dsmgp.cli.help import hidden_type, without_types_of_flags
from dsmgp.data.table_error import suggestion

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "REFUSED",
    "AsJson",
    "CommandGroup",
    "Debug",
    "check_not_an_input",
    "command",
    "fail",
    "print_json",
    "print_note",
    "print_note_in_handler",
    "print_table",
    "showing_progress",
]

#: Exit codes other than 0: an internal error, an error in the request or the data, Ctrl-C.
FAILED, REFUSED, INTERRUPTED = 1, 2, 130

# Some releases of Typer contain click, others depend on it; this is the class of either.
UsageError: Any = typer.BadParameter.__mro__[1]
Command = TypeVar("Command", bound=Callable[..., Any])
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def fail(message: str) -> NoReturn:
    """End the command with an error message."""
    raise InputError(message)


def check_not_an_input(out: str | Path, *inputs: str | Path) -> None:
    """Fail if the file to write is one of the files that are read."""
    for path in map(Path, inputs):
        if path.exists() and Path(out).exists() and path.samefile(out):
            fail(f"{out} is read by this command and would be replaced; give --out another name")


def print_note(*lines: str) -> None:
    """Print lines on standard error."""
    for line in lines:
        Console(stderr=True, highlight=False, soft_wrap=True).print(line, markup=False)


def print_note_in_handler(message: str) -> None:
    """Print a line from a signal handler, which may have interrupted a write to the same stream."""
    os.write(2, f"{message}\n".encode())


def print_json(result: Any) -> None:
    """Print a result on standard output, for machines."""
    sys.stdout.write(json.dumps(result, indent=2, default=_plain) + "\n")


def print_table(title: str, rows: list[tuple[str, str]]) -> None:
    """Print names and values on standard output."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width
        console = Console(highlight=False, width=100)
    console.print(table, markup=False)


@contextmanager
def showing_progress(doing: str) -> Iterator[None]:
    """Show a progress bar on standard error while what is inside runs, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from dsmgp._util.progress_bar import progress_bar

    with progress_bar(doing):
        yield


class CommandGroup(TyperGroup):
    """Commands whose usage errors are one line too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        without_types_of_flags(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        return hidden_type(super().get_help_option(ctx))

    def main(self, *arguments: Any, **options: Any) -> Any:
        options["standalone_mode"] = False
        try:
            code = super().main(*arguments, **options)
        except UsageError as error:
            if not error.format_message() or type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # no command at all: the help
            else:
                print_note(f"error: {_usage_message(error)}")
            sys.exit(error.exit_code)
        # A command returns None, and one that ended early its exit code.
        sys.exit(code if isinstance(code, int) else 0)

    # Ctrl-C before a command has begun: Typer alone would end without a message.
    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _interrupt_is_one_line():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _interrupt_is_one_line():
            return super().invoke(ctx)


@contextmanager
def _interrupt_is_one_line() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_note("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def _usage_message(error: Any) -> str:
    message = _one_line(error.format_message()).replace("Value error, ", "").removesuffix(".")
    if choice := re.search(r"'([^']*)' is not one of (.*)", message):
        message += suggestion(choice[1], re.findall(r"'([^']*)'", choice[2]))
    where = "dsmgp" if error.ctx is None else error.ctx.command_path
    end = "" if message.endswith("?") else ";"
    return f"{message[:1].lower()}{message[1:]}{end} see {where} --help"


def command(function: Command) -> Command:
    """Show errors of a command in one line and set the exit code; with ``--debug`` let them pass."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        if options.get("debug"):
            return function(*arguments, **options)
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: print_note(
                    f"warning: {_one_line(message)}"
                )
                return function(*arguments, **options)
        except KeyboardInterrupt:
            print_note("interrupted; nothing was written")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of the output has closed it
            sys.stderr.close()
            raise typer.Exit(0) from None
        except typer.Exit:
            raise
        except Exception as error:
            message, code = _explained(error)
            print_note(f"error: {message}")
            raise typer.Exit(code) from None

    return run  # type: ignore[return-value]


def _explained(error: Exception) -> tuple[str, int]:
    """Return the message of an error and the exit code."""
    text, kind = _one_line(error), type(error).__name__
    if getattr(error, "problems", ()):  # of a table, a line for each
        text = str(error)
    if _is_users(error):
        return text or kind, REFUSED
    if isinstance(error, ModuleNotFoundError):
        has_remedy = "pip install" in text
        remedy = text if has_remedy else f"{error.name} is not installed; pip install 'dsmgp[cli]'"
        return remedy, FAILED
    return (
        f"internal error, {kind}: {text} (please report it, with the traceback of --debug)",
        FAILED,
    )


def _is_users(error: Exception) -> bool:
    """Return whether an error is about the request, the data or the machine rather than a fault of the program."""
    if isinstance(error, (InputError, OSError, MemoryError)):
        return True
    if not isinstance(error, ValueError) or error.__traceback__ is None:
        return False
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__") == "sklearn.utils.validation"  # checks what was given


def _one_line(message: Any) -> str:
    return " ".join(str(message).split())


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
