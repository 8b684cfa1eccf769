"""Tables: every format reads the same, and what cannot be used is refused by column and row."""

import io
import os
import sys

import numpy as np
import pyarrow as pa
import pytest

from dsmgp.recipe import Recipe
from dsmgp.tables import TableError, read_table, write_table

TABLE = pa.table({"x": [1.5, 2.5, 4.0], "n": [1, 2, 3], "colour": ["a", "b", "a"]})


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "feather", "arrow", "csv.gz"])
def test_every_format_comes_back(tmp_path, ending):
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
def test_standard_input_is_told_by_its_content(tmp_path, monkeypatch, kind):
    write_table(TABLE, tmp_path / "rows", kind)
    given = io.TextIOWrapper(io.BytesIO((tmp_path / "rows").read_bytes()))
    monkeypatch.setattr(sys, "stdin", given)
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
        ("empty.csv", "", r"empty\.csv is empty: there is nothing in it"),
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
def test_what_is_no_table_is_refused(tmp_path, name, content, message):
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
    found = read_table(tmp_path / "rows.csv", text=["c", "not there"])
    assert found.to_pydict() == {"c": ["01", None], "x": [1, 2]}


def test_a_folder_and_unknown_endings_are_refused(tmp_path):
    with pytest.raises(TableError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="no ending that is known"):
        write_table(TABLE, tmp_path / "rows.xyz")
    with pytest.raises(TableError, match="create it first"):
        write_table(TABLE, tmp_path / "no" / "rows.csv")
    assert os.listdir(tmp_path) == []


def table(**columns):
    return pa.table(columns)


def test_columns_become_numbers_and_do_so_again():
    days = pa.array([0, 1, 2], type=pa.int32()).cast(pa.date32())
    times = pa.array(["1970-01-01 12:00:00"] * 3).cast(pa.timestamp("s"))
    train = table(day=days, time=times, flag=[True, False, True], c=["u", "v", "u"], y=[1, 2, 3])
    recipe = Recipe.learn(train, ["y"])
    assert recipe.input_names == ["day", "time", "flag", "c=u", "c=v"]
    wanted = [[0, 0.5, 1, 1, 0], [1, 0.5, 0, 0, 1], [2, 0.5, 1, 1, 0]]
    np.testing.assert_array_equal(recipe.inputs(train), wanted)
    again = Recipe.from_dict(recipe.as_dict())
    np.testing.assert_array_equal(again.inputs(train.select(["c", "flag", "time", "day"])), wanted)
    np.testing.assert_array_equal(again.outputs(train), [[1], [2], [3]])


def test_levels_that_look_like_numbers_stay_levels():
    recipe = Recipe.learn(table(c=["1", "b", "2"], y=[1.0, 2.0, 3.0]), ["y"])
    np.testing.assert_array_equal(recipe.inputs(table(c=[2, 1])), [[0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"x": [1.0, None], "y": [1.0, 2.0]}, {}, r"column 'x' has no value in row 2; .*impute"),
        ({"x": [np.nan, 1.0], "y": [1.0, 2.0]}, {}, r"column 'x' has no value in row 1;"),
        ({"x": [1.0, 2.0], "y": [None, 2.0]}, {"missing": "impute"}, r"'y' has no value in row 1.*never"),
        ({"x": ["a", "b"], "y": [1.0, 2.0]}, {"categories": "refuse"}, r"column 'x' holds text \('a' in row 1\)"),
        ({"x": [str(k) + "_" for k in range(60)], "y": [1.0] * 60}, {}, r"60 different texts.*--drop 'x'"),
        ({"x": ["01.02.2020", "3.12.2021", None], "y": [1.0] * 3}, {}, r"'x' holds dates that are not .*'01.02.2020' in row 1.*2020-12-31"),
        ({"x": ["2/13/2020 10:00", "2/14/2020 11:00"], "y": [1.0] * 2}, {}, r"'x' holds dates that are not understood"),
        ({"x": [1.0, 2.0], "y": ["a", "b"]}, {}, r"target 'y' holds text"),
        ({"x": [1.0, 2.0], "z": [1.0, 2.0]}, {}, r"no column 'y'; the table has 'x', 'z'"),
        ({"y": [1.0, 2.0]}, {}, r"no column is left"),
        ({"x": [[1.0], [2.0]], "y": [1.0, 2.0]}, {}, r"column 'x' is of type list<.*--drop 'x'"),
        ({"x": pa.array([1, 2], pa.time32("ms")), "y": [1.0, 2.0]}, {}, r"column 'x' is of type time32"),
        ({"x": [1.0, 2.0], "y": pa.array([1, 2], pa.duration("s"))}, {}, r"column 'y' is of type duration"),
        ({"x": [1.0, 2.0], "y": [1.0, np.inf]}, {}, r"column 'y' has inf in row 2; remove"),
        ({"x": pa.nulls(2), "y": [1.0, 2.0]}, {"missing": "impute"}, r"'x' is empty"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_used_are_refused_by_name(columns, options, message):
    with pytest.raises(TableError, match=message):
        Recipe.learn(pa.table(columns), ["y"], **options)


def test_what_is_filled_in_is_said_and_filled_in_again():
    train = table(x=[1.0, None, 3.0, 8.0], c=["u", "v", None, "u"], y=[1.0, 2.0, 3.0, 4.0])
    recipe = Recipe.learn(train, ["y"], missing="impute")
    assert any(
        "'x': 1 missing, filled in with the median of the training rows, 3" in r
        for r in recipe.remarks
    )
    assert any("'c': 1 missing, filled in with the most frequent level of the training rows, 'u'" in r for r in recipe.remarks)  # fmt: skip
    np.testing.assert_array_equal(recipe.inputs(train)[:, 0], [1, 3, 3, 8])
    again = Recipe.from_dict(recipe.as_dict())
    new = pa.table({"x": pa.array([None], pa.float64()), "c": pa.array([None], pa.string())})
    np.testing.assert_array_equal(again.inputs(new), [[3, 1, 0]])


def test_new_levels_and_other_kinds_are_refused_by_row():
    recipe = Recipe.learn(table(x=[1.0, 2.0], c=["u", "v"], y=[1.0, 2.0]), ["y"])
    with pytest.raises(TableError, match=r"'c' has 'w' in row 2, a level that was not there"):
        recipe.inputs(table(x=[1.0, 2.0], c=["u", "w"]))
    with pytest.raises(TableError, match=r"'x' holds text \('a' in row 1\), and held numbers when"):
        recipe.inputs(table(x=["a", "b"], c=["u", "v"]))


def test_infinity_is_refused_by_column_and_row():
    recipe = Recipe.learn(table(x=[1.0, 2.0], y=[1.0, 2.0]), ["y"])
    with pytest.raises(TableError, match=r"column 'x' has -inf in row 2; remove such rows"):
        recipe.inputs(table(x=[1.0, -np.inf]))
    with pytest.raises(TableError, match=r"column 'x' has 1e\+200 in row 1; rescale"):
        recipe.inputs(table(x=[1e200, 1.0]))


def test_more_digits_than_floats_have_are_cut_off():
    moment = 1_580_000_000_000_000_001
    train = table(t=pa.array([moment, 0], pa.timestamp("ns")), n=[2**60 + 1, 3], y=[1.0, 2.0])
    X = Recipe.learn(train, ["y"]).inputs(train)
    np.testing.assert_allclose(X, [[moment / 86_400e9, 2.0**60], [0, 3]], rtol=1e-15)
