"""The input schema: what it learns from training data, what it accepts later, and how predictions are shaped."""

import pickle

import numpy as np
import pandas as pd
import pytest

from dsmgp.data.columns.schema import Column, ColumnSchema
from dsmgp.data.input_schema import InputSchema

FRAME = pd.DataFrame({"a": [0.0, 1.0, 2.0], "b": [3.0, 1.0, 0.5]}, index=list("xyz"))
DAYS = pd.DataFrame({"day": pd.to_datetime(["2020-01-03", "2020-01-01", "2020-01-02"]), "b": 1.0})
SERIES = pd.Series([1.0, 2.0, 4.0], name="price")


def test_arrays_have_numbered_names():
    schema, rows = InputSchema.learn([[0, 1], [2, 3], [4, 5]], [[1, 2], [3, 4], [5, 7]])
    assert (rows.X.dtype, rows.X.shape, rows.Y.shape) == (np.float64, (3, 2), (3, 2))
    assert (rows.rows, rows.n_given) == (None, 3)
    assert (schema.feature_names, schema.target_names, schema.single_output) == (None, None, False)
    assert (schema.input_names, schema.output_names) == (["x0", "x1"], ["y0", "y1"])


def test_frames_keep_their_names():
    schema, rows = InputSchema.learn(FRAME, SERIES)
    assert schema.feature_names == ("a", "b")
    assert (schema.output_names, schema.single_output, rows.Y.shape) == (["price"], True, (3, 1))


@pytest.mark.parametrize("copied", [False, True])
def test_later_rows_must_be_like_the_training_rows(copied):
    schema, rows = InputSchema.learn(FRAME, SERIES)
    X = rows.X
    schema.to_numbers(FRAME)  # what it caches can be pickled, too
    schema = pickle.loads(pickle.dumps(schema)) if copied else schema
    np.testing.assert_array_equal(schema.to_numbers(FRAME), X)
    with pytest.raises(ValueError, match="feature names should match"):
        schema.to_numbers(FRAME.rename(columns={"a": "c"}))
    with pytest.warns(UserWarning, match="but DSMGPRegressor was fitted with feature names"):
        schema.to_numbers(X)
    with (
        pytest.warns(UserWarning, match="feature names"),
        pytest.raises(ValueError, match="DSMGPRegressor is expecting 2"),
    ):
        schema.to_numbers(X[:, :1])
    with pytest.raises(ValueError, match="expected y with 1 outputs, as in fit, got 2"):
        schema.training_rows(FRAME, np.ones((3, 2)))


def test_dates_become_days_since_the_first():
    schema, rows = InputSchema.learn(DAYS, SERIES)
    np.testing.assert_array_equal(rows.X[:, 0], [2.0, 0.0, 1.0])
    later = DAYS.assign(day=pd.Timestamp("2020-01-11"))
    np.testing.assert_array_equal(schema.to_numbers(later)[:, 0], [10.0] * 3)
    assert list(schema.displayed_dates) == [0]
    with pytest.raises(
        ValueError, match=r"column 'day' holds numbers \('1.0' in row 0\), and held dates"
    ):
        schema.to_numbers(DAYS.assign(day=1.0))


def test_predictions_are_shaped_like_the_targets():
    values = np.arange(3.0)[:, None]
    schema, _ = InputSchema.learn(FRAME, SERIES)
    np.testing.assert_array_equal(schema.framed(values, FRAME, "default"), values[:, 0])
    framed = schema.framed(values, FRAME, "input")
    pd.testing.assert_series_equal(framed, pd.Series(values[:, 0], index=FRAME.index, name="price"))
    several, _ = InputSchema.learn(FRAME, FRAME)
    assert several.framed(np.ones((3, 2)), FRAME, "pandas").columns.tolist() == ["a", "b"]


def test_a_schema_is_learned_without_an_estimator_being_changed():
    schema, _ = InputSchema.learn(FRAME, SERIES)
    with pytest.raises(AttributeError):
        schema.n_features = 3


def test_groups_are_the_columns_of_the_table():
    schema, _ = InputSchema.learn(FRAME, SERIES)
    assert [(name, inputs.tolist()) for name, inputs in schema.groups] == [("a", [0]), ("b", [1])]
    columns = (Column("c", "category", ("r", "s")), Column("d", "number"))
    table = ColumnSchema(columns, ("price",))
    groups = InputSchema(table, feature_names=("c", "d")).groups
    assert [(name, inputs.tolist()) for name, inputs in groups] == [("c", [0, 1]), ("d", [2])]


@pytest.mark.parametrize("row", [0, slice(None)])
def test_a_series_in_place_of_a_table_is_refused_with_the_remedy(row):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["u", "v", "u"]})
    schema, _ = InputSchema.learn(frame, [1.0, 2.0, 3.0])
    series = frame.iloc[row] if row == 0 else frame["a"]
    with pytest.raises(ValueError, match=r"got a series.*X\.iloc\[\[0\]\]"):
        schema.to_rows(series)


def weighted_table(rng):
    """Levels, numbers with gaps, and outputs; the rows of a fifth have no weight, wild outputs, and a level of their own."""
    n = 150
    codes, weights = rng.integers(0, 12, n), rng.integers(1, 4, size=n)
    x, y = rng.normal(size=n), np.arange(12.0)[codes] + rng.normal(size=n)
    x[::7], weights[::5], y[::5], codes[::5] = np.nan, 0, 1e6, 99
    frame = pd.DataFrame({"c": [f"l{k}" for k in codes], "x": x, "z": rng.normal(size=n)})
    return frame, y, weights


def test_rows_without_weight_leave_no_trace(rng):
    X, y, weights = weighted_table(rng)
    y[3] = np.nan
    kept = np.flatnonzero(weights)
    schema, rows = InputSchema.learn(X, y, sample_weight=np.minimum(weights, 1))
    expected, others = InputSchema.learn(X.iloc[kept], y[kept])
    assert (schema.columns, schema.remarks) == (expected.columns, expected.remarks)
    np.testing.assert_array_equal(rows.X, others.X)
    np.testing.assert_array_equal(rows.rows, kept[kept != 3])
    assert rows.n_given == 150
    array = rng.normal(size=(150, 2))
    schema, rows = InputSchema.learn(array, np.arange(150.0), sample_weight=weights)
    np.testing.assert_array_equal(rows.rows, kept)
    np.testing.assert_array_equal(rows.X, array[kept])


def test_columns_learned_with_whole_weights_are_those_of_repeated_rows(rng):
    X, y, weights = weighted_table(rng)
    again = np.repeat(np.arange(150), weights)
    weighted, _ = InputSchema.learn(X, y, sample_weight=weights)
    repeated, _ = InputSchema.learn(X.iloc[again], y[again])
    pairs = zip(weighted.columns.columns, repeated.columns.columns, strict=True)
    for found, expected in pairs:
        if found.kind == "category":
            assert found.levels == expected.levels
            np.testing.assert_allclose(found.effects, expected.effects, atol=1e-10)
        else:
            assert found.fill == pytest.approx(expected.fill)
            assert found.quantiles == pytest.approx(expected.quantiles)
    assert weighted.columns.category("c")[0].effects
    plain, _ = InputSchema.learn(X, y, sample_weight=weights > 0)
    assert plain.columns.columns[1].fill != weighted.columns.columns[1].fill
