"""Tables in files and on standard input: CSV, TSV, Parquet, Feather and Arrow. Needs ``dsmgp[cli]``."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, feather, parquet

from dsmgp.archive import new_beside, place_of

__all__ = ["TableError", "check_target", "is_dataset", "read_table", "write_table"]

#: Endings of file names, and what they stand for.
ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".ipc": "feather",
}
#: How files begin that are no text, whatever their names say.
BEGINNINGS = {
    b"PAR1": "a Parquet file; let its name end in .parquet",
    b"ARROW1": "an Arrow file; let its name end in .arrow",
    b"PK\x03\x04": "a spreadsheet or an archive; save the table as CSV first",
    b"\xd0\xcf\x11\xe0": "a spreadsheet; save the table as CSV first",
    b"\x1f\x8b": "compressed; let its name end in .gz, or unpack it first",
}
#: Those without types: lines of text.
WRITTEN = ("csv", "tsv")
DECIMAL_COMMA = r"^[-+]?[0-9][0-9.]*(,[0-9]+)?$"


class TableError(ValueError):
    """A table that cannot be read, or used as it is; the message has the remedy."""


def read_table(source: str | Path, kind: str | None = None, text: Collection[str] = ()) -> pa.Table:
    """A table from a file, or from standard input where the name is ``-``.

    ``kind`` is one of csv, tsv, parquet and feather; told from the name's ending, or from the content, if it is left out.
    Columns named in ``text`` are read as they are written where a file does not say what they hold: 01 is not the number 1.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "rows.csv"
    >>> _ = path.write_text("x,y\\n1,2\\n3,4\\n")
    >>> read_table(path).column_names
    ['x', 'y']
    """
    name = "standard input" if str(source) == "-" else str(source)
    try:
        content = _content(source)
        if len(content) == 0:
            raise TableError(f"{name} is empty: there is nothing in it")
        found = kind or _kind(Path(name)) or _sniffed(content)
        table = (
            _written(content, found, text, name) if found in WRITTEN else _parsed(content, found)
        )
    except FileNotFoundError:
        raise TableError(f"{name} does not exist; check the path") from None
    except IsADirectoryError:
        raise TableError(f"{name} is a folder; give the name of a file") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # A gzipped file and the like say what is wrong with them in their first line.
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TableError(f"{name} cannot be read as a table: {first}") from error
    twice = [c for c in dict.fromkeys(table.column_names) if table.column_names.count(c) > 1]
    if twice:
        raise TableError(f"{name} has more than one column {twice[0]!r}; rename one of them")
    if table.num_columns == 0 or table.num_rows == 0:
        raise TableError(f"{name} has no rows")
    return table


def is_dataset(source: str | Path) -> bool:
    """Whether many files are meant: a folder, or names with a pattern."""
    path = Path(source)
    return path.is_dir() or (not path.exists() and any(sign in str(source) for sign in "*?["))


def write_table(table: pa.Table, target: str | Path, kind: str | None = None) -> None:
    """A table to a file, whole or not at all, or to standard output as CSV where the name is ``-``."""
    if str(target) == "-":
        _write(table, sys.stdout.buffer, kind or "csv")
        sys.stdout.buffer.flush()
        return
    path, found = Path(target), check_target(target, kind)
    temporary = None
    try:
        path = place_of(path)
        temporary = new_beside(path)
        with temporary.open("wb") as file:
            _write(table, file, found)
        os.replace(temporary, path)
    except OSError as error:
        raise TableError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_target(target: str | Path, kind: str | None = None) -> str:
    """The format that a table would be written in; refused where it could not be written."""
    path = Path(target)
    found = kind or ("csv" if str(target) == "-" else _kind(path))
    if found is None:
        raise TableError(
            f"{path} has no ending that is known; expected one of {', '.join(ENDINGS)}"
        )
    if not path.parent.is_dir():
        raise TableError(f"the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise TableError(f"{path} is a folder; give the name of a file")
    return found


def _content(source: str | Path) -> pa.Buffer:
    if str(source) == "-":
        return pa.py_buffer(sys.stdin.buffer.read())
    if Path(source).is_dir():
        raise IsADirectoryError
    # Compressed files are told by their ending (.gz, .zst, .bz2).
    with pa.input_stream(str(source)) as stream:
        return pa.py_buffer(stream.read())


def _kind(path: Path) -> str | None:
    for ending in reversed(path.suffixes):  # rows.csv.gz
        if ending.lower() in ENDINGS:
            return ENDINGS[ending.lower()]
    return None


def _sniffed(content: pa.Buffer) -> str:
    """From the first bytes, or from what the first line has more of."""
    start = content[:4096].to_pybytes() if len(content) else b""
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith((b"ARROW1", b"\xff\xff\xff\xff", b"FEA1")):
        return "feather"
    line = start.splitlines()[0] if start else b""
    return "tsv" if line.count(b"\t") > line.count(b",") else "csv"


def _parsed(content: pa.Buffer, kind: str) -> pa.Table:
    if kind == "parquet":
        return parquet.read_table(pa.BufferReader(content))
    if content[:4].to_pybytes() == b"\xff\xff\xff\xff":  # a stream, as in a pipe
        return pa.ipc.open_stream(content).read_all()
    return feather.read_table(pa.BufferReader(content))


def _written(content: pa.Buffer, kind: str, text: Collection[str], name: str) -> pa.Table:
    """A table in lines of text, where columns are told apart by a sign."""
    for beginning, remedy in BEGINNINGS.items():
        if content[: len(beginning)].to_pybytes() == beginning:
            raise TableError(f"{name} is {remedy}")
    sign = "\t" if kind == "tsv" else _separator(content)
    try:
        table = csv.read_csv(
            pa.BufferReader(content),
            parse_options=csv.ParseOptions(delimiter=sign),
            convert_options=csv.ConvertOptions(
                strings_can_be_null=True, column_types={column: pa.string() for column in text}
            ),
        )
        kinds = dict(zip(table.column_names, table.schema.types, strict=True))
    except (pa.ArrowException, UnicodeDecodeError):
        _refuse_other_encoding(content, name)
        raise
    if pa.binary() in kinds.values():
        _refuse_other_encoding(content, name)
    if sign == ";":
        guessed = [c for c, found in kinds.items() if pa.types.is_string(found) and c not in text]
        for column in guessed:
            _refuse_decimal_commas(table[column], column, name)
    return table


def _separator(content: pa.Buffer) -> str:
    """The comma, unless the first line has none and another sign that is in use."""
    line = content[:65536].to_pybytes().split(b"\n")[0]
    line = re.sub(rb'"[^"]*"', b"", line)
    other = max((b";", b"\t"), key=line.count)
    return other.decode() if other in line and b"," not in line else ","


def _refuse_other_encoding(content: pa.Buffer, name: str) -> None:
    written = content.to_pybytes()
    try:
        written.decode()
    except UnicodeDecodeError as error:
        line = written.count(b"\n", 0, error.start) + 1
        raise TableError(
            f"{name} is not written in UTF-8 (line {line}); save it as UTF-8 first"
        ) from None


def _refuse_decimal_commas(values: pa.ChunkedArray, column: str, name: str) -> None:
    found = values.drop_null()
    commas = pc.match_substring(found, ",")
    if pc.any(commas).as_py() and pc.all(pc.match_substring_regex(found, DECIMAL_COMMA)).as_py():
        raise TableError(
            f"column {column!r} of {name} has numbers with commas ({found.filter(commas)[0].as_py()!r}); write them with "
            "points"
        )


def _write(table: pa.Table, file: BinaryIO | io.BufferedWriter | Any, kind: str) -> None:
    match kind:
        case "parquet":
            parquet.write_table(table, file)
        case "feather":
            feather.write_feather(table, file)
        case _:
            options = csv.WriteOptions(
                delimiter="\t" if kind == "tsv" else ",", quoting_style="needed"
            )
            csv.write_csv(table, file, options)
