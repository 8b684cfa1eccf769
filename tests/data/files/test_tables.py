"""Tables: every format reads the same, and what cannot be used is refused by column and row."""

import io
import os
import sys

import pyarrow as pa
import pytest

from dsmgp.data.files.tables import TextFormat, read_table, reading_remarks, write_table
from dsmgp.data.table_error import TableError, check_columns

TABLE = pa.table({"x": [1.5, 2.5, 4.0], "n": [1, 2, 3], "colour": ["a", "b", "a"]})


@pytest.mark.parametrize(
    "ending", ["csv", "tsv", "json", "jsonl", "ndjson", "parquet", "feather", "arrow", "csv.gz"]
)
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


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "feather"])
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
        ("ragged.csv", "x,y\n1,2\n3\n", r"line 3 has 1 field: '3'"),
        ("twice.csv", "x,x\n1,2\n", "more than one column 'x'"),
        ("no.parquet", "x,y\n1,2\n", "cannot be read as a table"),
        ("latin.csv", b"x,c\n1,a\n2,\xe9\n", r"latin\.csv is not written in UTF-8 \(line 3\)"),
        ("header.csv", b"x,\xe9\n1,a\n", r"not written in UTF-8 \(line 1\)"),
        ("latin.csv", b"x,c\n1,\xe9\n", "give --encoding latin-1"),
        ("open.csv", 'x,c\n1,"a\n2,b\n', "quote in line 2 that is never closed"),
        (
            "rows.json",
            b'[{"x": "\xe9"}]',
            r"not written in UTF-8 \(line 1\); give --encoding latin-1",
        ),
        ("rows.json", "[1, 2]", "expected .* to hold objects .* got int as entry 1"),
        ("rows.json", '[{"x": 1},', "not valid JSON: .* in line 1"),
        ("rows.jsonl", '{"x": 1}\n{"x": \n', "not valid JSON: .* in line 2; expected an object"),
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
        ("rows.csv", "<!DOCTYPE html>\n", "is a web page"),
        ("rows", b"\x1f\x8b\x08\x00", "is compressed; let its name end in .gz, or unpack it first"),
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
        ("x|y\n1|2\n", {"x": [1], "y": [2]}),
        ("  x   y\n 1.5  2 \n 10  3\n", {"x": [1.5, 10], "y": [2, 3]}),
        ("sep=;\nx;y\n1,5;2\n", {"x": [1.5], "y": [2]}),
        ("name\nJohn Smith\nAda\n", {"name": ["John Smith", "Ada"]}),
        ("size;price, EUR\n1,5;3\n", {"size": [1.5], "price, EUR": [3]}),
        ("name,tags\np,a;b\n", {"name": ["p"], "tags": ["a;b"]}),
        ("x, y ,c\n1, 2, red\n", {"x": [1], "y": [2], "c": ["red"]}),
        ("x,y,\n1,2,\n", {"x": [1], "y": [2]}),
        ('x,c\n1,"two\nlines"\n', {"x": [1], "c": ["two\nlines"]}),
        ('x,c\n1,5" pipe\n', {"x": [1], "c": ['5" pipe']}),
    ],
)
def test_a_csv_may_be_separated_by_another_sign(tmp_path, content, columns):
    (tmp_path / "rows.csv").write_text(content)
    assert read_table(tmp_path / "rows.csv").to_pydict() == columns


def test_columns_of_text_can_be_read_as_they_are_written(tmp_path):
    (tmp_path / "rows.csv").write_text("c,x\n01,01\n,2\n")
    table = read_table(tmp_path / "rows.csv", text=["c", "not there"])
    assert table.to_pydict() == {"c": ["01", None], "x": [1, 2]}


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-8-sig"])
def test_an_encoding_can_be_named(tmp_path, encoding):
    (tmp_path / "rows.csv").write_bytes("größe,c\n1,é\n".encode(encoding))
    form = TextFormat(encoding=encoding)
    assert read_table(tmp_path / "rows.csv", form=form).to_pydict() == {"größe": [1], "c": ["é"]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_an_encoding_with_a_byte_order_mark_is_known(tmp_path, encoding):
    (tmp_path / "rows.csv").write_bytes("größe,c\n1,é\n".encode(encoding))
    assert read_table(tmp_path / "rows.csv").to_pydict() == {"größe": [1], "c": ["é"]}


def test_a_wrong_encoding_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_bytes("x\né\n".encode("latin-1"))
    with pytest.raises(TableError, match=r"not written in ascii .* another --encoding"):
        read_table(tmp_path / "rows.csv", form=TextFormat(encoding="ascii"))
    with pytest.raises(TableError, match=r"expected --encoding such as .* got 'klingon'"):
        read_table(tmp_path / "rows.csv", form=TextFormat(encoding="klingon"))


@pytest.mark.parametrize(
    "content",
    [
        '[{"x": 1, "c": "a"}, {"c": "b", "x": 2.5}]',
        '{"x": 1, "c": "a"}\n\n{"x": 2.5, "c": "b"}\n',
        '{"x": "1", "c": "a"}\n{"x": 2.5, "c": "b"}\n',
    ],
)
def test_json_holds_records_in_lines_or_in_a_list(tmp_path, content):
    (tmp_path / "rows.json").write_text(content)
    assert read_table(tmp_path / "rows.json").to_pydict() == {"x": [1, 2.5], "c": ["a", "b"]}


def test_records_without_a_key_have_a_missing_value(tmp_path):
    (tmp_path / "rows.json").write_text('[{"x": 1}, {"x": 2, "z": 3}]')
    assert read_table(tmp_path / "rows.json").to_pydict() == {"x": [1, 2], "z": [None, 3]}


def test_ragged_lines_are_listed(tmp_path):
    lines = ["x,y", "1,2", "3", '"a', 'b",2', "1,2,3", *["1"] * 6, *["1,2"] * 9]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    with pytest.raises(TableError) as caught:
        read_table(tmp_path / "rows.csv")
    head, *lines, remedy = str(caught.value).splitlines()
    assert head.endswith(
        "rows.csv has 8 lines that do not have the 2 fields of the header, separated by ',':"
    )
    assert [line.strip() for line in lines[:2]] == [
        "line 3 has 1 field: '3'",
        "line 6 has 3 fields: '1,2,3'",
    ]
    assert lines[-1] == "  and 3 more"
    assert "quote the texts" in remedy


def test_a_table_below_other_lines_is_found(tmp_path):
    (tmp_path / "rows.csv").write_text("Sales of 2020\n\nx,y\n" + "1,2\n" * 9)
    with pytest.raises(TableError, match="seems to begin in line 3; remove the lines above it"):
        read_table(tmp_path / "rows.csv")


MESSY = "price,rate,when,kind,id\n$1,21%,05-Jan-2020,a,?\n" + "$2,3%,06-Jan-2020,b,7\n" * 20


def test_texts_are_read_as_numbers_and_dates_and_the_user_is_told(tmp_path):
    (tmp_path / "rows.csv").write_text(MESSY)
    table = read_table(tmp_path / "rows.csv")
    kinds = [str(kind) for kind in table.schema.types]
    assert kinds == ["double", "double", "timestamp[us]", "string", "double"]
    assert reading_remarks(table) == [
        "column 'price': '$1' is read as the number 1",
        "column 'rate': '21%' is read as the number 21, in percent",
        "column 'when': '05-Jan-2020' is read as the date 2020-01-05",
        "column 'id': '?' is read as a missing value (1 row)",
    ]
    assert reading_remarks(TABLE) == []


def test_all_problems_of_a_table_come_in_one_message(tmp_path):
    rows = [f"{k},{k},{k % 12 + 1}/{k % 11 + 1}/2020" for k in range(40)]
    rows[3], rows[8] = "abc,3,1/2/2020", "8,n.n.,2/3/2020"
    (tmp_path / "rows.csv").write_text("\n".join(["x,z,when", *rows]))
    with pytest.raises(TableError) as caught:
        read_table(tmp_path / "rows.csv")
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("rows.csv has 3 problems:")
    assert len(lines) == 4
    assert "column 'x' holds numbers but for 'abc' in row 4" in lines[1]
    assert (
        "column 'z' holds numbers but for 'n.n.' in row 9; correct it, give --na 'n.n.'" in lines[2]
    )
    assert "column 'when'" in lines[3]
    assert "--dayfirst or --monthfirst" in lines[3]
    assert all(line.endswith(f"--drop {name!r}") for line, name in zip(lines[1:], ["x", "z", "when"], strict=True))  # fmt: skip
    assert len(caught.value.problems) == 3


def test_columns_that_are_not_used_have_no_problems(tmp_path):
    rows = [f"{k},{k}" for k in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,z", *rows, "abc,1"]))
    table = read_table(tmp_path / "rows.csv", used=lambda present: [n for n in present if n != "x"])
    assert table["x"][40].as_py() == "abc"
    assert table["z"].type == pa.int64()


def test_a_comma_is_decimal_where_the_rest_of_the_file_says_so(tmp_path):
    """And then a point separates thousands, though the parser alone would read it as a decimal point."""
    (tmp_path / "rows.csv").write_text("a;b;c\n1,5;1,234;1.234\n2,25;5,678;12.500\n")
    table = read_table(tmp_path / "rows.csv")
    assert table.to_pydict() == {"a": [1.5, 2.25], "b": [1.234, 5.678], "c": [1234, 12500]}


@pytest.mark.parametrize(("decimal", "number"), [(".", 1234), (",", 1.234)])
def test_an_ambiguous_comma_is_refused_unless_the_user_says_what_it_means(
    tmp_path, decimal, number
):
    (tmp_path / "rows.csv").write_text("a;b\n1,234;1\n2,345;2\n")
    with pytest.raises(TableError, match=r"'1,234'.*--decimal \. for 1234, --decimal , for 1\.234"):
        read_table(tmp_path / "rows.csv")
    table = read_table(tmp_path / "rows.csv", form=TextFormat(decimal=decimal))
    assert table["a"][0].as_py() == number


def test_a_quoted_comma_in_a_file_with_commas_groups_thousands(tmp_path):
    (tmp_path / "rows.csv").write_text('a,b\n"1,234",1\n999,2\n')
    assert read_table(tmp_path / "rows.csv").to_pydict() == {"a": [1234, 999], "b": [1, 2]}


def test_unquoted_thousands_are_not_taken_for_a_title(tmp_path):
    (tmp_path / "rows.csv").write_text("size,price\n" + "2.5,1,234\n" * 9)
    with pytest.raises(TableError, match=r"line 2 has 3 fields: '2.5,1,234'(?s:.*)quote the texts"):
        read_table(tmp_path / "rows.csv")


def test_a_first_line_of_numbers_is_no_header():
    with pytest.raises(TableError, match="first line seems to be data"):
        check_columns(["0.5", "-12", "1e-3"], ["y"])


def test_times_of_day_are_hours(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n09:30,9:30\n12:00,4:15 PM\n")
    assert read_table(tmp_path / "rows.csv").to_pydict() == {"a": [9.5, 12], "b": [9.5, 16.25]}


def test_names_that_are_nearly_those_of_columns_are_suggested():
    with pytest.raises(
        TableError, match=r"no column 'Dtae'; the table has .*; did you mean 'date'\?"
    ):
        check_columns(["price", "date"], ["Dtae"])
    with pytest.raises(TableError, match=r"'date'$"):
        check_columns(["price", "date"], ["colour"])


def test_a_folder_and_unknown_endings_are_refused(tmp_path):
    with pytest.raises(TableError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="unknown extension"):
        write_table(TABLE, tmp_path / "rows.xyz")
    with pytest.raises(TableError, match="create it first"):
        write_table(TABLE, tmp_path / "no" / "rows.csv")
    assert os.listdir(tmp_path) == []


def test_codes_that_are_read_as_numbers_are_remarked_on(tmp_path):
    path = tmp_path / "places.csv"
    path.write_text("zip,n,y\n" + "".join(f"0{1003 + k},{k},{k}.5\n" for k in range(9)))
    (remark,) = reading_remarks(read_table(path))
    assert (
        remark
        == "column 'zip': '01003' is read as the number 1003; give --text 'zip' if it is a code"
    )
    assert reading_remarks(read_table(path, text=["zip"])) == []
    assert reading_remarks(read_table(path, used=lambda names: ["n", "y"])) == []
