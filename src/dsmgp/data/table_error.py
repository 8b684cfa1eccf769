"""The error of tables that cannot be read or used, and the check that columns are there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from dsmgp._util.errors import InputError

__all__ = ["TableError", "check_columns", "suggestion"]


class TableError(InputError):
    """A table cannot be read or used; the message says what to do.

    Attributes
    ----------
    problems : tuple of str
        All problems that were found, each with its remedy; the message has a line for each.

    Examples
    --------
    >>> raise TableError.of("rows.csv", ["column 'x' is empty", "column 'y' is empty"])
    Traceback (most recent call last):
    dsmgp.data.table_error.TableError: rows.csv has 2 problems:
      column 'x' is empty
      column 'y' is empty
    """

    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, problems: Sequence[str]) -> TableError:
        """Return one error for all problems of a table."""
        if len(problems) == 1:
            return cls._listing([f"{name}: {problems[0]}"], problems)
        return cls._listing([f"{name} has {len(problems)} problems:", *problems], problems)

    @classmethod
    def of_columns(cls, problems: Sequence[str]) -> TableError:
        """Return one error for all columns that cannot be used."""
        head = [f"{len(problems)} columns cannot be used:"] if len(problems) > 1 else []
        return cls._listing([*head, *problems], problems)

    @classmethod
    def _listing(cls, lines: Sequence[str], problems: Sequence[str]) -> TableError:
        error = cls("\n  ".join(lines))
        error.problems = tuple(problems)
        return error


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return the words "; did you mean ...?" if one of the known names is much like a name, and else nothing.

    Examples
    --------
    >>> suggestion("Dtae", ["price", "date"])
    "; did you mean 'date'?"
    >>> suggestion("colour", ["price", "date"])
    ''
    """
    by_lower = {other.strip().lower(): other for other in reversed(known)}
    close = get_close_matches(name.strip().lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def check_columns(present: Sequence[str], names: Sequence[str], where: str = "the table") -> None:
    """Raise an error if names are not among the columns that are present: one that lists all of them."""
    absent = [name for name in dict.fromkeys(names) if name not in present]
    if not absent:
        return
    listed = ", ".join(map(repr, present[:12])) + (", ..." if len(present) > 12 else "")
    problems = []
    for name in absent:
        hint = suggestion(name, present)
        if all(re.fullmatch(r"\s*[-+]?[0-9.]+(e[-+]?[0-9]+)?", other) for other in present):
            hint = "; its first line seems to be data, expected the names of the columns there"
        problems.append(f"there is no column {name!r}; {where} has {listed}{hint}")
    raise TableError.of(where, problems) if len(problems) > 1 else TableError(problems[0])
