"""Tables: every format reads the same, and what cannot be used is refused by column and row."""

import io
import os
import sys

import pyarrow as pa
import pytest

from dsmgp.data.tables import TableError, read_table, write_table

TABLE = pa.table({"x": [1.5, 2.5, 4.0], "n": [1, 2, 3], "colour": ["a", "b", "a"]})


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "feather", "arrow", "csv.gz"])
def test_every_format_is_read_as_it_was_written(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    if ending == "csv.gz":
        plain = tmp_path / "rows.csv"
        write_table(TABLE, plain)
        with pa.output_stream(str(path), compression="gzip") as stream:
            stream.write(plain.read_bytes())
    else:
        write_table(TABLE, path)
    assert read_table(path).to_pydict() == TABLE.to_pydict()


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "feather"])
def test_the_format_of_standard_input_is_detected(tmp_path, monkeypatch, kind):
    path = tmp_path / f"rows.{kind}"
    write_table(TABLE, path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert read_table("-").to_pydict() == TABLE.to_pydict()


def test_a_stream_of_arrow_is_read(tmp_path):
    path = str(tmp_path / "rows.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE)
    assert read_table(tmp_path / "rows.arrow").to_pydict() == TABLE.to_pydict()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.csv", None, "does not exist"),
        ("empty.csv", "", r"empty\.csv is empty"),
        ("header.csv", "x,y\n", "has no rows"),
        ("ragged.csv", "x,y\n1,2\n3\n", "Expected 2 columns, got 1"),
        ("twice.csv", "x,x\n1,2\n", "more than one column 'x'"),
        ("no.parquet", "x,y\n1,2\n", "cannot be read as a table"),
        ("latin.csv", b"x,c\n1,a\n2,\xe9\n", r"latin\.csv is not written in UTF-8 \(line 3\)"),
        ("header.csv", b"x,\xe9\n1,a\n", r"not written in UTF-8 \(line 1\)"),
        ("wide.csv", "x,c\n1,a\n".encode("utf-16"), "not written in UTF-8"),
        (
            "sheet.xlsx",
            b"PK\x03\x04\x14\x00\xff",
            r"sheet\.xlsx is a spreadsheet .* save the table as CSV",
        ),
        (
            "rows.csv",
            b"PAR1\x15\x04\xff",
            r"rows\.csv is a Parquet file; let its name end in \.parquet",
        ),
        ("rows", b"\x1f\x8b\x08\x00", "is compressed; let its name end in .gz, or unpack it first"),
        ("commas.csv", "x;y\n1,5;2\n2;3\n", r"column 'x' of .* has numbers with commas \('1,5'\)"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TableError, match=message):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("x;y\n1.5;2\n", {"x": [1.5], "y": [2]}),
        ('"a,b";y\n1;p\n', {"a,b": [1], "y": ["p"]}),
        ("x\ty\n1\t2\n", {"x": [1], "y": [2]}),
        ("x,y;z\n1,2\n", {"x": [1], "y;z": [2]}),
        ('"x;y"\n1\n', {"x;y": [1]}),
        ("x;c\n1;p,q\n", {"x": [1], "c": ["p,q"]}),
    ],
)
def test_a_csv_may_be_separated_by_another_sign(tmp_path, content, columns):
    (tmp_path / "rows.csv").write_text(content)
    assert read_table(tmp_path / "rows.csv").to_pydict() == columns


def test_columns_of_text_can_be_read_as_they_are_written(tmp_path):
    (tmp_path / "rows.csv").write_text("c,x\n01,01\n,2\n")
    table = read_table(tmp_path / "rows.csv", text=["c", "not there"])
    assert table.to_pydict() == {"c": ["01", None], "x": [1, 2]}


def test_a_folder_and_unknown_endings_are_refused(tmp_path):
    with pytest.raises(TableError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="unknown extension"):
        write_table(TABLE, tmp_path / "rows.xyz")
    with pytest.raises(TableError, match="create it first"):
        write_table(TABLE, tmp_path / "no" / "rows.csv")
    assert os.listdir(tmp_path) == []
