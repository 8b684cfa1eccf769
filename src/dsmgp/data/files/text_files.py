"""Tables in text files: CSV with any of the usual separators, and JSON. Needs ``dsmgp[data]``.

Arrow's parsers do the work. What they cannot tell the user, such as the line in which a field is missing, is found by a second and
slower reading that only files with a mistake need.
"""

from __future__ import annotations

import codecs
import csv as slow_csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import csv
from pyarrow import json as arrow_json

from dsmgp.data.files.text_column import ColumnReading, TextFormat
from dsmgp.data.files.text_values import read_columns
from dsmgp.data.table_error import TableError

__all__ = ["UsedColumns", "parse_csv", "parse_json", "to_utf8"]

#: Which columns are used, of all that a table has.
UsedColumns = Callable[[Sequence[str]], Collection[str]]
#: Separators other than the comma.
OTHER_SEPARATORS = (";", "\t", "|")
BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}  # fmt: skip
# Bytes of a file by which codes are told from numbers.
CODE_BYTES = 100_000
# Lines by which the separator is found.
N_SAMPLED = 20
# Lines with a mistake that a message lists.
MAX_LISTED = 5


def to_utf8(content: pa.Buffer, name: str, encoding: str | None) -> pa.Buffer:
    """Return a text in UTF-8; it is in UTF-8 already, or in the encoding of its byte order mark, unless one is named."""
    start = content[:3].to_pybytes()
    mark = next((known for mark, known in BYTE_ORDER_MARKS.items() if start.startswith(mark)), None)
    if encoding is None and mark in (None, "utf-8-sig"):  # which Arrow skips
        return content
    try:
        text = content.to_pybytes().decode(encoding or str(mark))
    except LookupError:
        raise TableError(
            f"expected --encoding such as utf-8, latin-1, cp1252 or utf-16, got {encoding!r}"
        ) from None
    except UnicodeDecodeError as error:
        raise TableError(
            f"{name} is not written in {encoding or mark} (byte {error.start + 1}); give another --encoding"
        ) from None
    return pa.py_buffer(text.removeprefix("\ufeff").encode())


def parse_csv(
    content: pa.Buffer,
    name: str,
    separator: str | None,
    text: Collection[str],
    used: UsedColumns | None,
    form: TextFormat,
) -> tuple[pa.Table, list[str]]:
    """Parse a CSV; return a table and remarks on how texts were understood.

    Parameters
    ----------
    content : pyarrow.Buffer
        In UTF-8.
    name : str
        What the messages call the file.
    separator : str or None
        None: the one that the first lines have.
    text : collection of str
        Columns that stay text.
    used : callable or None
        Given all names, returns the columns to be understood; the texts of others stay as they are. None: all of them.
    form : TextFormat
    """
    if separator is None:
        start = content[:6].to_pybytes()
        if re.fullmatch(rb"sep=[^\r\n][\r\n]", start):  # as Excel marks its files
            separator, content = chr(start[4]), content[5:]
        else:
            separator = find_separator(content)
    if separator == " ":
        lines = re.sub(rb"[ \t]+", b" ", content.to_pybytes())
        content = pa.py_buffer(re.sub(rb"(?m)^ | (?=\r?$)", b"", lines))
    header = _header(content, separator)
    text = set(text)

    def parse(decimal: str) -> pa.Table:
        columns = [field for field in header if field.strip() in text]
        return _parse_fields(content, name, separator, columns, decimal)

    table = parse(form.decimal or ".")
    table, readings = _understood(table, text, used, form, separator == ",")
    signs = {reading.decimal for reading in readings.values()} - {None}
    if signs == {","} and form.decimal is None and separator != ",":
        # Then 1.234 is not 1.234, as Arrow has read it above, but 1234.
        decimal_comma = TextFormat(form.encoding, ",", form.day_first, form.missing)
        table, readings = _understood(parse(","), text, used, decimal_comma, False)
        return table, [f"numbers of {name} are read with decimal commas", *_checked(name, readings)]
    return table, [*_checked(name, readings), *_codes(content, name, separator, table, used)]


def _codes(
    content: pa.Buffer,
    name: str,
    separator: str,
    table: pa.Table,
    used: UsedColumns | None,
) -> list[str]:
    """Return remarks on whole numbers whose texts begin with a zero, as codes of places do, by the first rows."""
    names = table.column_names if used is None else used(table.column_names)
    whole = [
        column
        for column in names
        if table.column_names.count(column) == 1
        and pa.types.is_integer(table.schema.field(column).type)
    ]
    if not whole:
        return []
    start = content[:CODE_BYTES].to_pybytes()
    start = start if len(start) == len(content) else start[: start.rfind(b"\n") + 1]
    try:
        first = _parse_fields(
            pa.py_buffer(start), name, separator, _header(pa.py_buffer(start), separator), "."
        )
    except (pa.ArrowException, TableError):  # a quoted text goes on beyond these rows
        return []
    remarks = []
    for column in whole:
        texts = first[column].to_pylist() if column in first.column_names else []
        codes = [text for text in texts if text and re.fullmatch("0[0-9]+", text)]
        if codes:
            remarks.append(
                f"column {column!r}: {codes[0]!r} is read as the number {int(codes[0])}; give --text {column!r} if it is a code"
            )
    return remarks


def parse_json(
    content: pa.Buffer,
    name: str,
    text: Collection[str],
    used: UsedColumns | None,
    form: TextFormat,
) -> tuple[pa.Table, list[str]]:
    """Parse JSON: one object in each line, or a list of objects; return as :func:`parse_csv` does."""
    start = content[:4096].to_pybytes().lstrip(codecs.BOM_UTF8 + b" \t\r\n")
    table = None
    if not start.startswith(b"["):
        try:
            table = arrow_json.read_json(pa.BufferReader(content))
        except pa.ArrowException:
            table = None  # objects over several lines, columns of mixed types, or a mistake whose line is to be named
    if table is None:
        _check_encoding(content, name)
        table = _table_of_records(_records(content, name), name)
    table, readings = _understood(table, set(text), used, form, True)
    return table, _checked(name, readings)


def find_separator(content: pa.Buffer) -> str:
    """Return the separator of a CSV: a comma, or another sign that all of the first lines have equally often; blanks if there is none.

    Examples
    --------
    >>> find_separator(pa.py_buffer(b"size;price, EUR\\n1,5;3\\n"))
    ';'
    >>> find_separator(pa.py_buffer(b"name,tags\\n1,a;b\\n"))
    ','
    >>> find_separator(pa.py_buffer(b"size  price\\n1.5   3\\n"))
    ' '
    """
    sample = content[: 2**16].to_pybytes().decode(errors="replace")
    lines = [line for line in re.sub(r'"[^"]*"', "", sample).splitlines() if line.strip()]
    if len(content) > 2**16:
        lines = lines[:-1] or lines
    lines = lines[:N_SAMPLED]
    if not lines:
        return ","
    for separator in sorted(OTHER_SEPARATORS, key=lines[0].count, reverse=True):
        counts = {line.count(separator) for line in lines}
        if 0 not in counts and (len(counts) == 1 or "," not in lines[0]):
            return separator
    other = max(OTHER_SEPARATORS, key=lines[0].count)
    if "," in lines[0]:
        return ","
    if other in lines[0]:
        return other
    n_words = {len(line.split()) for line in lines}
    return " " if len(lines) > 1 and len(n_words) == 1 and 1 not in n_words else ","


def _header(content: pa.Buffer, separator: str) -> list[str]:
    """Return the names of the columns as they are written."""
    start = io.StringIO(content[: 2**22].to_pybytes().decode("utf-8-sig", errors="replace"))
    return next((row for row in slow_csv.reader(start, delimiter=separator) if row), [])


def _parse_fields(
    content: pa.Buffer, name: str, separator: str, text: Collection[str], decimal: str
) -> pa.Table:
    """Parse a CSV into plain numbers, ISO dates and texts."""
    options = {
        "convert_options": csv.ConvertOptions(
            strings_can_be_null=True,
            column_types={column: pa.string() for column in text},
            decimal_point=decimal,
        ),
    }
    try:
        parsing = csv.ParseOptions(delimiter=separator)
        table = csv.read_csv(pa.BufferReader(content), parse_options=parsing, **options)
        names = table.column_names  # an error if they are not in UTF-8
    except (pa.ArrowException, UnicodeDecodeError):
        _check_encoding(content, name)
        _check_lines(content, name, separator)
        # No line has a mistake: a text contains a line break, which Arrow expects only if it is told so.
        parsing = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        table = csv.read_csv(pa.BufferReader(content), parse_options=parsing, **options)
        names = table.column_names
    if pa.binary() in table.schema.types:
        _check_encoding(content, name)
    last = table.slice(max(table.num_rows - 1, 0)).to_pylist()
    if any("\n" in value for row in last for value in row.values() if isinstance(value, str)):
        _check_lines(
            content, name, separator
        )  # a quote that is never closed swallows all lines after it
    table = table.rename_columns([column.strip() for column in names])
    unnamed_and_empty = [  # a separator at the end of each line
        k for k, field in enumerate(table.schema) if not field.name and pa.types.is_null(field.type)
    ]
    return table.select([k for k in range(table.num_columns) if k not in unnamed_and_empty])


def _understood(
    table: pa.Table,
    text: Collection[str],
    used: UsedColumns | None,
    form: TextFormat,
    commas_group: bool,
) -> tuple[pa.Table, dict[str, ColumnReading]]:
    """Return a table whose texts are read as numbers and dates where they are such, and what was read."""
    if len(set(table.column_names)) < table.num_columns:
        return table, {}  # an error for the caller
    wanted = set(table.column_names if used is None else used(table.column_names))
    columns = {
        # Times of day are of little use as Arrow has them.
        field.name: table[field.name].cast(pa.string())
        for field in table.schema
        if field.name in wanted and (pa.types.is_string(field.type) or pa.types.is_time(field.type))
    }
    readings = read_columns(columns, text, form, commas_group)
    for column, reading in readings.items():
        position = table.column_names.index(column)
        table = table.set_column(position, column, reading.values)
    return table, readings


def _checked(name: str, readings: dict[str, ColumnReading]) -> list[str]:
    """Return all remarks; raise one error for all problems."""
    problems = [reading.problem for reading in readings.values() if reading.problem is not None]
    if problems:
        raise TableError.of(name, problems)
    return [remark for reading in readings.values() for remark in reading.remarks]


def _check_encoding(content: pa.Buffer, name: str) -> None:
    """Raise an error that names the line if a text is not in UTF-8."""
    text = content.to_pybytes()
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise TableError(
            f"{name} is not written in UTF-8 (line {line}); give --encoding latin-1, or cp1252 or utf-16 if the letters then look "
            "wrong"
        ) from None


def _check_lines(content: pa.Buffer, name: str, separator: str) -> None:
    """Raise an error that names the lines that have too few or too many fields, or a quote that is never closed."""
    lines = io.StringIO(content.to_pybytes().decode("utf-8-sig", errors="replace"), newline="")
    rows = slow_csv.reader(lines, delimiter=separator, strict=True)
    shown: list[str] = []
    line = 1
    widths: list[tuple[int, int]] = []  # of each row: its first line, and how many fields it has
    try:
        for row in rows:
            if row:
                widths.append((line, len(row)))
                if len(row) != widths[0][1] and len(shown) < MAX_LISTED:
                    shown.append(separator.join(row))
            line = rows.line_num + 1
    except slow_csv.Error as error:
        if "unexpected end" not in str(error):
            return  # a quote in the middle of a field, which Arrow reads as it is
        raise TableError(
            f"{name} has a quote in line {line} that is never closed; close it, or double the quote if it is part of the text"
        ) from None
    bad = [(line, n) for line, n in widths if n != widths[0][1]]
    if bad:
        raise _ragged(name, separator, widths, bad, shown)


def _ragged(
    name: str,
    separator: str,
    widths: Sequence[tuple[int, int]],
    bad: Sequence[tuple[int, int]],
    shown: Sequence[str],
) -> TableError:
    """Return an error that lists the lines with too few or too many fields."""
    expected = widths[0][1]
    usual, n_usual = Counter(n for _, n in widths).most_common(1)[0]
    are_names = not any(map(_is_number, shown[0].split(separator)))
    if usual > expected and n_usual > 0.5 * len(widths) and are_names:
        begin = next(line for line, n in widths if n == usual)
        return TableError(
            f"{name}: line 1 has {_fields(expected)} and most lines have {usual}, so the table seems to begin in line {begin}; "
            "remove the lines above it"
        )
    lines = [
        f"line {line} has {_fields(n)}: {_shortened(text)!r}"
        for (line, n), text in zip(bad, shown, strict=False)
    ]
    lines += [f"and {len(bad) - len(lines):,} more"] if len(bad) > len(lines) else []
    lines += [f"complete these lines, or quote the texts that contain {separator!r}"]
    count = (
        f"{len(bad):,} line{'s' * (len(bad) > 1)} that {'do' if len(bad) > 1 else 'does'} not have"
    )
    head = f"{name} has {count} the {_fields(expected)} of the header, separated by {separator!r}:"
    error = TableError("\n  ".join([head, *lines]))
    error.problems = tuple(lines)
    return error


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?[0-9.]+\s*", text) is not None


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fields(n: int) -> str:
    return f"{n} field{'s' * (n != 1)}"


def _records(content: pa.Buffer, name: str) -> list[Any]:
    """Return the objects of a JSON file."""
    text = content.to_pybytes().decode("utf-8-sig")
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        first = error
    else:
        return whole if isinstance(whole, list) else [whole]
    if text.lstrip().startswith("["):
        raise TableError(f"{name} is not valid JSON: {first.msg} in line {first.lineno}")
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise TableError(
                    f"{name} is not valid JSON: {error.msg} in line {number}; expected an object such as "
                    '{"size": 1.5} in each line, or a list of them'
                ) from None
    return records


def _table_of_records(records: Sequence[Any], name: str) -> pa.Table:
    """Return the table of some objects; values of different types in a column become texts."""
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise TableError(
                f'expected {name} to hold objects such as {{"size": 1.5}}, got {type(record).__name__} as entry {number}'
            )
    names = list(dict.fromkeys(key for record in records for key in record))
    columns = {}
    for key in names:
        values = [record.get(key) for record in records]
        kinds = Counter(type(value) for value in values if value is not None)
        if str in kinds and len(kinds) > 1:
            values = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
        columns[key] = pa.array(values)
    return pa.table(columns)
