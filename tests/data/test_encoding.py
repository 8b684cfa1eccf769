"""Columns of tables as inputs: learned once, applied to other tables, refused by column and row."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dsmgp import ModelFileError
from dsmgp.data.encoding import encode_inputs, encode_targets, learn_schema, missing_counts
from dsmgp.data.schema import ColumnSchema
from dsmgp.data.tables import TableError


def table(**columns):
    return pa.table(columns)


def test_a_stored_schema_encodes_columns_the_same():
    days = pa.array([0, 1, 2], type=pa.int32()).cast(pa.date32())
    times = pa.array(["1970-01-01 12:00:00"] * 3).cast(pa.timestamp("s"))
    train = table(day=days, time=times, flag=[True, False, True], c=["u", "v", "u"], y=[1, 2, 3])
    schema = learn_schema(train, ["y"])
    assert schema.input_names == ["day", "time", "flag", "c=u", "c=v"]
    wanted = [[0, 0.5, 1, 1, 0], [1, 0.5, 0, 0, 1], [2, 0.5, 1, 1, 0]]
    np.testing.assert_array_equal(encode_inputs(schema, train), wanted)
    again = ColumnSchema.from_dict(schema.to_dict())
    np.testing.assert_array_equal(
        encode_inputs(again, train.select(["c", "flag", "time", "day"])), wanted
    )
    np.testing.assert_array_equal(encode_targets(again, train), [[1], [2], [3]])


def test_levels_that_look_like_numbers_stay_levels():
    schema = learn_schema(table(c=["1", "b", "2"], y=[1.0, 2.0, 3.0]), ["y"])
    np.testing.assert_array_equal(encode_inputs(schema, table(c=[2, 1])), [[0, 1, 0], [1, 0, 0]])


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
        learn_schema(pa.table(columns), ["y"], **options)


def test_imputed_values_are_reported_and_imputed_in_new_tables():
    train = table(x=[1.0, None, 3.0, 8.0], c=["u", "v", None, "u"], y=[1.0, 2.0, 3.0, 4.0])
    schema = learn_schema(train, ["y"], missing="impute")
    assert schema.imputation_remarks(missing_counts(schema, train)) == [
        "column 'x': 1 missing, filled in with the median of the training rows, 3",
        "column 'c': 1 missing, filled in with the most frequent level of the training rows, 'u'",
    ]
    np.testing.assert_array_equal(encode_inputs(schema, train)[:, 0], [1, 3, 3, 8])
    again = ColumnSchema.from_dict(schema.to_dict())
    new = pa.table({"x": pa.array([None], pa.float64()), "c": pa.array([None], pa.string())})
    np.testing.assert_array_equal(encode_inputs(again, new), [[3, 1, 0]])


def test_new_levels_and_other_kinds_are_refused_by_row():
    schema = learn_schema(table(x=[1.0, 2.0], c=["u", "v"], y=[1.0, 2.0]), ["y"])
    with pytest.raises(TableError, match=r"'c' has 'w' in row 2, a level that was not there"):
        encode_inputs(schema, table(x=[1.0, 2.0], c=["u", "w"]))
    with pytest.raises(TableError, match=r"'x' holds text \('a' in row 1\), and held numbers when"):
        encode_inputs(schema, table(x=["a", "b"], c=["u", "v"]))


def test_infinity_is_refused_by_column_and_row():
    schema = learn_schema(table(x=[1.0, 2.0], y=[1.0, 2.0]), ["y"])
    with pytest.raises(TableError, match=r"column 'x' has -inf in row 2; remove such rows"):
        encode_inputs(schema, table(x=[1.0, -np.inf]))
    with pytest.raises(TableError, match=r"column 'x' has 1e\+200 in row 1; rescale"):
        encode_inputs(schema, table(x=[1e200, 1.0]))


def test_more_digits_than_floats_have_are_cut_off():
    moment = 1_580_000_000_000_000_001
    train = table(t=pa.array([moment, 0], pa.timestamp("ns")), n=[2**60 + 1, 3], y=[1.0, 2.0])
    X = encode_inputs(learn_schema(train, ["y"]), train)
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
    arrow = pa.table(columns)
    schema = learn_schema(arrow, ["y"], missing="impute")
    assert learn_schema(frame, ["y"], missing="impute") == schema
    np.testing.assert_array_equal(encode_inputs(schema, frame), encode_inputs(schema, arrow))
    np.testing.assert_array_equal(encode_targets(schema, frame), encode_targets(schema, arrow))
    assert missing_counts(schema, frame) == {"size": 1}


def test_a_frame_of_mixed_objects_is_refused():
    with pytest.raises(TableError, match="the frame cannot be used as a table"):
        learn_schema(pd.DataFrame({"x": [1, "a"], "y": [1.0, 2.0]}), ["y"])


@pytest.mark.parametrize(
    "stored", [{}, {"columns": [{}], "targets": []}, {"columns": 3, "targets": []},
               {"columns": [{"name": "x", "kind": "colour", "levels": [], "fill": None}], "targets": ["y"]}],
)  # fmt: skip
def test_a_stored_schema_that_is_damaged_is_refused(stored):
    with pytest.raises(ModelFileError, match="invalid description of its table"):
        ColumnSchema.from_dict(stored)
