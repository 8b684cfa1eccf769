"""Tables in files and on standard input: CSV, TSV, JSON, Parquet, Feather and Arrow. Needs ``dsmgp[cli]``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import csv, feather, parquet

from dsmgp._util.atomic_write import atomic_write
from dsmgp.data.files.text_column import TextFormat
from dsmgp.data.files.text_files import UsedColumns, parse_csv, parse_json, to_utf8
from dsmgp.data.table_error import TableError

__all__ = [
    "TableError",
    "TextFormat",
    "check_target",
    "is_dataset",
    "read_table",
    "reading_remarks",
    "write_table",
]

#: File extensions, and the format of each.
EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".ipc": "feather",
}
#: First bytes of files that are not text, whatever their extension.
MAGIC_BYTES = {
    b"PAR1": "a Parquet file; let its name end in .parquet",
    b"ARROW1": "an Arrow file; let its name end in .arrow",
    b"PK\x03\x04": "a spreadsheet or an archive; save the table as CSV first",
    b"\xd0\xcf\x11\xe0": "a spreadsheet; save the table as CSV first",
    b"<html": "a web page; download the table itself",
    b"<!": "a web page; download the table itself",
    b"<?xml": "an XML file; save the table as CSV first",
    b"\x1f\x8b": "compressed; let its name end in .gz, or unpack it first",
}
#: Formats without types.
TEXT_FORMATS = ("csv", "tsv", "json")
# Key of the metadata of a table.
REMARKS = b"dsmgp.remarks"
#: How a text file is written if the user does not say it.
DETECTED = TextFormat()


def read_table(
    source: str | Path,
    text: Collection[str] = (),
    used: UsedColumns | None = None,
    form: TextFormat = DETECTED,
) -> pa.Table:
    """Read a table from a file, or from standard input if the name is ``-``; its format is by extension, or else by content.

    Parameters
    ----------
    source : path
    text : collection of str
        Columns that are text, in formats without types: there 01 is not the number 1.
    used : callable, optional
        Given the names of all columns, returns those that are used. The texts of others stay as they are, and no problem of theirs is
        an error. All columns if left out.
    form : TextFormat
        How a text file is written, where it alone does not say it.

    Returns
    -------
    pyarrow.Table
        Texts are read as numbers, dates and missing values where a whole column allows it; :func:`reading_remarks` says which.

    Raises
    ------
    TableError
        With a line for each problem of the table.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "rows.csv"
    >>> _ = path.write_text("x,y\\n1,2\\n3,4\\n")
    >>> read_table(path).column_names
    ['x', 'y']
    """
    name = "standard input" if str(source) == "-" else str(source)
    try:
        content = _read_bytes(source)
        if len(content) == 0:
            raise TableError(f"{name} is empty")
        file_format = _format_of(Path(name)) or _detect_format(content)
        if file_format in TEXT_FORMATS:
            table = _parse_text(content, file_format, name, text, used, form)
        else:
            table = READERS[file_format](content)
    except FileNotFoundError:
        raise TableError(f"{name} does not exist; check the path") from None
    except IsADirectoryError:
        raise TableError(f"{name} is a folder; give the name of a file") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # The first line says what is wrong, for example with a damaged gzip file.
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TableError(f"{name} cannot be read as a table: {first}") from error
    duplicates = [c for c in dict.fromkeys(table.column_names) if table.column_names.count(c) > 1]
    if duplicates:
        raise TableError(f"{name} has more than one column {duplicates[0]!r}; rename one of them")
    if table.num_columns == 0 or table.num_rows == 0:
        raise TableError(f"{name} has no rows")
    return table


def is_dataset(source: str | Path) -> bool:
    """Return whether a source is a folder, a glob of files, or a URL of either."""
    if "://" in str(source):
        return True
    if not str(source):  # such as an unset variable of a shell
        raise TableError("expected the name of a table, got an empty one")
    path = Path(source)
    return path.is_dir() or (not path.exists() and any(sign in str(source) for sign in "*?["))


def write_table(table: pa.Table, target: str | Path) -> None:
    """Write a table to a file, completely or not at all, or as CSV to standard output if the name is ``-``."""
    file_format = check_target(target)
    if str(target) == "-":
        WRITERS[file_format](table, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    try:
        atomic_write(target, lambda file: WRITERS[file_format](table, file))
    except OSError as error:
        raise TableError(f"cannot write {target}: {error.strerror}") from error


def check_target(target: str | Path) -> str:
    """Return the format of a table to write; raise an error if it could not be written."""
    path = Path(target)
    file_format = "csv" if str(target) == "-" else _format_of(path)
    if file_format is None:
        raise TableError(
            f"{path} has an unknown extension; expected one of {', '.join(EXTENSIONS)}"
        )
    if not path.parent.is_dir():
        raise TableError(f"the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise TableError(f"{path} is a folder; give the name of a file")
    return file_format


def _read_bytes(source: str | Path) -> pa.Buffer:
    """Return the contents of a file, decompressed by its extension (.gz, .zst, .bz2), or of standard input."""
    if str(source) == "-":
        return pa.py_buffer(sys.stdin.buffer.read())
    if Path(source).is_dir():
        raise IsADirectoryError
    with pa.input_stream(str(source)) as stream:
        return pa.py_buffer(stream.read())


def _format_of(path: Path) -> str | None:
    """Return the format by a file's extensions, such as .csv.gz."""
    for extension in reversed(path.suffixes):
        if extension.lower() in EXTENSIONS:
            return EXTENSIONS[extension.lower()]
    return None


def _detect_format(content: pa.Buffer) -> str:
    """Return the format by the first bytes, or by the separators in the first line."""
    start = content[:4096].to_pybytes()
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith((b"ARROW1", b"\xff\xff\xff\xff", b"FEA1")):
        return "feather"
    if re.match(rb"\s*(\{\s*[\"}]|\[\s*\{)", start):
        return "json"
    line = start.splitlines()[0]
    return "tsv" if line.count(b"\t") > line.count(b",") else "csv"


def _read_parquet(content: pa.Buffer) -> pa.Table:
    return parquet.read_table(pa.BufferReader(content))


def _read_feather(content: pa.Buffer) -> pa.Table:
    if content[:4].to_pybytes() == b"\xff\xff\xff\xff":  # a stream, as in a pipe
        return pa.ipc.open_stream(content).read_all()
    return feather.read_table(pa.BufferReader(content))


def _parse_text(
    content: pa.Buffer,
    file_format: str,
    name: str,
    text: Collection[str],
    used: UsedColumns | None,
    form: TextFormat,
) -> pa.Table:
    """Parse a format without types; the table's metadata says how texts were understood."""
    for first_bytes, remedy in MAGIC_BYTES.items():
        if content[: len(first_bytes)].to_pybytes() == first_bytes:
            raise TableError(f"{name} is {remedy}")
    content = to_utf8(content, name, form.encoding)
    if file_format == "json":
        table, remarks = parse_json(content, name, text, used, form)
    else:
        separator = "\t" if file_format == "tsv" else None
        table, remarks = parse_csv(content, name, separator, text, used, form)
    return table.replace_schema_metadata({REMARKS: json.dumps(remarks)})


def reading_remarks(table: pa.Table) -> list[str]:
    """Return how the texts of a table that :func:`read_table` has read were understood, for the user."""
    return json.loads((table.schema.metadata or {}).get(REMARKS, b"[]"))


def _write_json(table: pa.Table, file: BinaryIO) -> None:
    """Write an object for each row, in a line of its own."""
    for row in table.to_pylist():
        file.write(json.dumps(row, default=str).encode() + b"\n")


def _write_text(table: pa.Table, file: BinaryIO, delimiter: str) -> None:
    options = csv.WriteOptions(delimiter=delimiter, quoting_style="needed")
    csv.write_csv(table, file, options)


#: Formats with types, and how to read each. Others are text (:data:`TEXT_FORMATS`).
READERS: dict[str, Callable[[pa.Buffer], pa.Table]] = {
    "parquet": _read_parquet,
    "feather": _read_feather,
}
#: How to write each format.
WRITERS: dict[str, Callable[[pa.Table, BinaryIO], None]] = {
    "parquet": parquet.write_table,
    "feather": feather.write_feather,
    "csv": partial(_write_text, delimiter=","),
    "tsv": partial(_write_text, delimiter="\t"),
    "json": _write_json,
}
