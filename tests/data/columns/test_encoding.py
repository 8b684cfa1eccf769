"""Columns of tables as inputs: learned once, applied to other tables, refused by column and row."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dsmgp import ModelFileError
from dsmgp.data.columns.encoding import (
    encode_inputs,
    encode_targets,
    missing_counts,
    table_values,
    unknown_levels,
)
from dsmgp.data.columns.learning import encode_table
from dsmgp.data.columns.schema import ColumnSchema
from dsmgp.data.rows import N_ALTERNATIVES
from dsmgp.data.table_error import TableError


def table(**columns):
    return pa.table(columns)


def values_of(schema, rows):
    return table_values(rows, [column.name for column in schema.columns])


def inputs_of(schema, rows):
    return encode_inputs(schema, values_of(schema, rows)).X


def test_a_stored_schema_encodes_columns_the_same():
    days = pa.array([1, 2, 3], type=pa.int32()).cast(pa.date32())
    times = pa.array(["1970-01-01 12:00", "1970-01-01 18:00", "1970-01-02 00:00"])
    train = table(
        day=days,
        time=times.cast(pa.timestamp("s")),
        flag=[True, False, True],
        c=["u", "v", "u"],
        y=[1, 2, 3],
    )
    encoded = encode_table(train, ["y"])
    assert encoded.schema.input_names == ["day", "time", "flag", "c=u", "c=v"]
    wanted = [[0, 0, 1, 1, 0], [1, 0.25, 0, 0, 1], [2, 0.5, 1, 1, 0]]
    np.testing.assert_array_equal(encoded.X, wanted)
    again = ColumnSchema.from_dict(encoded.schema.to_dict())
    assert again == encoded.schema
    np.testing.assert_array_equal(
        inputs_of(again, train.select(["c", "flag", "time", "day"])), wanted
    )
    targets = encode_targets(again, table_values(train, ["y"]))
    np.testing.assert_array_equal(targets, [[1], [2], [3]])


def test_levels_that_look_like_numbers_stay_levels():
    schema = encode_table(table(c=["1", "b", "2"], y=[1.0, 2.0, 3.0]), ["y"]).schema
    np.testing.assert_array_equal(inputs_of(schema, table(c=[2, 1])), [[0, 1, 0], [1, 0, 0]])


MANY = [f"{k}_" for k in range(70)]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"x": [1.0, None], "y": [1.0, 2.0]}, {"missing": "error"}, r"column 'x' has no value in row 2; .*missing='model'"),
        ({"x": [np.nan, 1.0], "y": [1.0, 2.0]}, {"missing": "error"}, r"column 'x' has no value in row 1;"),
        ({"x": [np.nan, np.nan, None, 2.0], "y": [1.0, 2.0, 3.0, 4.0]}, {"missing": "refuse"}, r"row 1, and in 2 other rows;"),
        ({"x": ["a", None], "y": [1.0, 2.0]}, {"missing": "error"}, r"column 'x' has no value in row 2;"),
        ({"x": [1.0, None, 3.0], "y": [1.0, 2.0, None]}, {"missing": "drop"}, r"1 of 3 rows have a target and no missing values"),
        ({"x": [1.0, 2.0], "y": [None, 2.0]}, {}, r"1 of 2 rows have a target"),
        ({"x": ["a", "b"], "y": [1.0, 2.0]}, {"categories": "refuse"}, r"column 'x' holds text \('a' in row 1\)"),
        ({"x": MANY, "y": [1.0] * 70}, {"categories": "onehot"}, r"70 different texts.*--drop 'x'"),
        ({"x": MANY, "y": [1.0] * 70}, {}, r"no column is left.*'x' has a different text in nearly every row"),
        ({"x": [1.0, 2.0], "y": ["a", "b"]}, {}, r"target 'y' holds text, expected numbers \('a' in row 1\)"),
        ({"x": [1.0, 2.0], "z": [1.0, 2.0]}, {}, r"no column 'y'; the table has 'x', 'z'"),
        ({"y": [1.0, 2.0]}, {}, r"no column is left"),
        ({"x": [[1.0], [2.0]], "y": [1.0, 2.0]}, {}, r"column 'x' is of type list<.*--drop 'x'"),
        ({"x": pa.array([1, 2], pa.time32("ms")), "y": [1.0, 2.0]}, {}, r"column 'x' is of type time32"),
        ({"x": [1.0, 2.0], "y": pa.array([1, 2], pa.duration("s"))}, {}, r"column 'y' is of type duration"),
        ({"x": [1.0, 2.0], "y": [1.0, np.inf]}, {}, r"column 'y' has inf in row 2; remove"),
        ({"x": [1.0, np.inf], "z": [1e200, 1.0], "y": [1.0, 2.0]}, {}, r"(?s)'x' has inf in row 2; remove.*'z' has 1e\+200 in row 1; rescale"),
        ({"x": pa.nulls(2), "z": [1, 1], "y": [1.0, 2.0]}, {}, r"no column is left.*'x' is empty.*'z' is constant"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_used_are_refused_by_name(columns, options, message):
    with pytest.raises(TableError, match=message):
        encode_table(pa.table(columns), ["y"], **options)


def test_missing_values_are_inputs_of_their_own_and_reported():
    train = table(x=[1.0, None, 3.0, 8.0], c=["u", "v", None, "u"], y=[1.0, 2.0, 3.0, 4.0])
    encoded = encode_table(train, ["y"], missing="impute")
    assert encoded.schema.input_names == ["x", "x missing", "c=u", "c=v", "c=missing"]
    assert encoded.remarks == (
        "column 'c': 3 levels, one-hot encoded",
        "column 'x': 1 missing value, filled with the median of the training rows, 3, and marked by an indicator",
        "column 'c': 1 missing value, treated as a level of its own",
    )
    wanted = [[1, 0, 1, 0, 0], [3, 1, 0, 1, 0], [3, 0, 0, 0, 1], [8, 0, 1, 0, 0]]
    np.testing.assert_array_equal(encoded.X, wanted)
    again = ColumnSchema.from_dict(encoded.schema.to_dict())
    new = pa.table({"x": pa.array([None], pa.float64()), "c": pa.array([None], pa.string())})
    np.testing.assert_array_equal(inputs_of(again, new), [[3, 1, 0, 0, 1]])
    assert encode_inputs(again, values_of(again, new)).unknown == ()


def test_rows_without_a_target_and_incomplete_rows_are_left_out():
    train = table(x=[1.0, None, 3.0, 8.0, 9.0], e=pa.nulls(5), y=[1.0, 2.0, None, 4.0, 5.0])
    encoded = encode_table(train, ["y"])
    np.testing.assert_array_equal(encoded.rows, [0, 1, 3, 4])
    np.testing.assert_array_equal(encoded.X, [[1, 0], [8, 1], [8, 0], [9, 0]])
    dropped = encode_table(train, ["y"], missing="drop")
    np.testing.assert_array_equal(dropped.rows, [0, 3, 4])
    np.testing.assert_array_equal(dropped.X, [[1], [8], [9]])
    np.testing.assert_array_equal(dropped.Y, [[1], [4], [5]])
    assert dropped.remarks[:2] == (
        "1 row without a target left out",
        "1 row with missing values left out",
    )


def test_new_levels_and_missing_values_are_unknown():
    schema = encode_table(table(x=[1.0, 2.0], c=["u", "v"], y=[1.0, 2.0]), ["y"]).schema
    new = table(x=[1.0, None, 2.0], c=["u", "w", None])
    rows = encode_inputs(schema, values_of(schema, new))
    np.testing.assert_array_equal(rows.X, [[1, 1, 0], [1.5, 0.5, 0.5], [2, 0.5, 0.5]])
    np.testing.assert_array_equal(rows.uncertain, [1, 2])
    assert {tuple(each.rows) for each in rows.unknown} == {(1,), (1, 2)}
    possible = rows.possible(rows.uncertain)
    assert possible.shape == (2, N_ALTERNATIVES, 3)
    assert set(map(tuple, possible[1])) == {(2, 1, 0), (2, 0, 1)}
    assert unknown_levels(schema, values_of(schema, new)) == [
        "column 'c': 1 row with levels that the training rows do not have ('w')"
    ]


def test_other_kinds_are_refused_by_row():
    schema = encode_table(table(x=[1.0, 2.0], c=["u", "v"], y=[1.0, 2.0]), ["y"]).schema
    with pytest.raises(TableError, match=r"'x' holds text \('a' in row 1\), and held numbers when"):
        inputs_of(schema, table(x=["a", "b"], c=["u", "v"]))
    with pytest.raises(TableError, match=r"'x' holds text \('b' in row 2\), and held numbers when"):
        inputs_of(schema, table(x=["1", "b"], c=["u", "v"]))


def test_infinity_is_refused_by_column_and_row():
    schema = encode_table(table(x=[1.0, 2.0], y=[1.0, 2.0]), ["y"]).schema
    with pytest.raises(TableError, match=r"column 'x' has -inf in row 2; remove such rows"):
        inputs_of(schema, table(x=[1.0, -np.inf]))
    with pytest.raises(TableError, match=r"column 'x' has 1e\+200 in row 1; rescale"):
        inputs_of(schema, table(x=[1e200, 1.0]))


def test_more_digits_than_floats_have_are_cut_off():
    moment = 1_580_000_000_000_000_001
    train = table(t=pa.array([moment, 0], pa.timestamp("ns")), n=[2**60 + 1, 3], y=[1.0, 2.0])
    X = encode_table(train, ["y"]).X
    np.testing.assert_allclose(X, [[moment / 86_400e9, 2.0**60], [0, 3]], rtol=1e-15)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_are_encoded_as_the_same_arrow_table(library):
    columns = {
        "size": [1.0, None, 3.0],
        "colour": ["red", "blue", "red"],
        "sold": np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[ms]"),
        "y": [1.0, 2.0, 3.0],
    }
    frame = pytest.importorskip(library).DataFrame(columns)
    if library == "pandas":
        frame.index = [7, 8, 9]  # no column
    of_arrow, of_frame = encode_table(pa.table(columns), ["y"]), encode_table(frame, ["y"])
    assert of_frame.schema == of_arrow.schema
    np.testing.assert_array_equal(of_frame.X, of_arrow.X)
    np.testing.assert_array_equal(of_frame.Y, of_arrow.Y)
    assert missing_counts(of_frame.schema, values_of(of_frame.schema, frame)) == {"size": 1}


def test_mixed_objects_with_text_among_them_are_levels():
    frame = pd.DataFrame({"x": [1, "a", 1.0, None], "y": [1.0, 2.0, 3.0, 4.0]})
    schema = encode_table(frame, ["y"]).schema
    assert schema.columns[0].levels == ("1", "a", None)


@pytest.mark.parametrize(
    "stored", [{}, {"columns": [{}], "targets": []}, {"columns": 3, "targets": []},
               {"columns": [{"name": "x", "kind": "colour", "levels": [], "fill": None}], "targets": ["y"]}],
)  # fmt: skip
def test_a_stored_schema_that_is_damaged_is_refused(stored):
    with pytest.raises(ModelFileError, match="invalid description of its table"):
        ColumnSchema.from_dict(stored)


def test_only_auto_has_effects():
    table = pa.table({"x": [f"s{k % 12}" for k in range(36)], "y": np.arange(36.0)})
    assert encode_table(table, ["y"]).schema.input_names[-1] == "x effect"
    plain = encode_table(table, ["y"], categories="onehot").schema.input_names
    assert plain == [f"x=s{k}" for k in sorted(map(str, range(12)))]


def test_all_problems_of_a_table_to_predict_are_in_one_error():
    table = pd.DataFrame(
        {"a": [1.0, 2.0, 3.0], "b": [3.0, 1.0, 2.0], "c": [1.0, 5.0, 2.0], "y": [1.0, 2.0, 4.0]}
    )
    schema = encode_table(table, ["y"], missing="error").schema
    bad = table.assign(a=["u", "v", "w"], b=[1.0, np.nan, np.inf]).drop(columns="y")
    columns = table_values(bad, ["a", "b", "c"])
    with pytest.raises(
        TableError,
        match=r"(?s)2 columns cannot be used:.*'a' holds text.*'b' has no value in row 2",
    ):
        encode_inputs(schema, columns)
    with pytest.raises(TableError, match=r"(?s)2 problems:.*no column 'a'.*no column 'b'"):
        encode_inputs(schema, {"c": columns["c"]})


def test_a_column_without_values_is_left_out_where_missing_values_are_errors():
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [np.nan] * 3, "y": [1.0, 2.0, 4.0]})
    encoded = encode_table(table, ["y"], missing="error")
    assert encoded.schema.input_names == ["a"]
    assert encoded.remarks[0] == "column 'b' is empty and left out"
