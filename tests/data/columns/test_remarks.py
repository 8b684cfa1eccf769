"""Remarks on data and predictions: what a user should look at is named, and ordinary data is left alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsmgp import Mixture
from dsmgp.data.columns.remarks import evaluation_remarks, prediction_remarks, training_remarks
from dsmgp.data.columns.values import Values

N = 60
RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=N)
TARGET = RNG.normal(size=N)


def number(name, values):
    return name, Values.of_numbers(values)


def category(name, values):
    return name, Values.of_texts(values)


def remarks(*columns, y=TARGET):
    """Remarks on some columns beside an ordinary one, and an ordinary target if none is given."""
    return training_remarks(
        dict([number("x", NOISE), *columns]), np.asarray(y, float)[:, None], ["y"]
    )


def test_there_is_nothing_to_say_of_ordinary_columns():
    colours = category("c", np.resize(["red", "blue", None], N))
    counts = number("n", RNG.integers(0, 5, N))
    flags = number("f", NOISE > 0)
    dates = "d", Values.of_dates(np.arange(N) + np.datetime64("2020-01-01"))  # a series in time
    gappy = number("g", np.where(NOISE > 1, np.nan, NOISE))
    assert remarks(colours, counts, flags, dates, gappy) == []


@pytest.mark.parametrize(
    "values", [np.arange(N), np.arange(1, N + 1), 1000 + np.cumsum(RNG.integers(1, 9, N))]
)
def test_a_column_that_numbers_the_rows_is_named(values):
    (remark,) = remarks(number("id", values))
    assert remark.startswith("column 'id' numbers the rows")
    assert remark.endswith("leave it out with --drop 'id'")
    with_gap = np.where(np.arange(N) == 7, np.nan, values)
    assert len(remarks(number("id", with_gap))) == 1
    assert remarks(number("id", values[::-1])) == []
    assert remarks(number("id", values + 0.5)) == []


def test_the_only_input_may_number_the_rows():
    assert training_remarks(dict([number("t", np.arange(N))]), TARGET[:, None], ["y"]) == []


def test_a_text_in_every_row_is_named():
    (remark,) = remarks(category("name", [f"person {k}" for k in range(N)]))
    assert "column 'name' has 60 different texts in 60 rows" in remark


@pytest.mark.parametrize(
    "copy",
    [TARGET, -3 * TARGET + 1e6, np.exp(TARGET), TARGET + 1e-5 * NOISE],
)
def test_a_copy_of_the_target_is_named(copy):
    (remark,) = remarks(number("z", copy))
    assert "column 'z' is nearly a copy of the target 'y'" in remark


@given(
    scale=st.floats(1e-100, 1e100) | st.floats(-1e100, -1e-100),
    relative_shift=st.floats(-1e3, 1e3),
)
def test_a_copy_is_found_in_any_units(scale, relative_shift):
    (remark,) = remarks(number("z", scale * (TARGET + relative_shift)))
    assert "nearly a copy" in remark


def test_what_merely_explains_the_target_well_is_no_copy():
    assert remarks(number("z", TARGET + 0.1 * NOISE)) == []
    few = np.round(TARGET)  # two columns with few values may agree by chance
    assert remarks(number("z", few), y=few) == []


def test_constant_and_empty_columns_are_named():
    assert "the same value in every row and" in remarks(number("k", np.ones(N)))[0]
    assert "the same value in every row and" in remarks(category("k", ["a"] * N))[0]
    partly = np.where(NOISE > 0, 1.0, np.nan)
    assert "every row that has one" in remarks(number("k", partly))[0]
    assert "has no values" in remarks(number("k", np.full(N, np.nan)))[0]
    assert "has no values" in remarks(category("k", [None] * N))[0]


def test_levels_of_one_row_are_counted():
    levels = ["rare", "once", *np.resize(["red", "blue"], N - 2)]
    (remark,) = remarks(category("c", levels))
    assert remark.startswith("column 'c': 2 of 4 levels occur in one row only")


def test_a_target_of_two_values_is_a_probability():
    (remark,) = remarks(y=TARGET > 0)
    assert "target 'y' has the values 0 and 1 only" in remark
    assert "probability" in remark
    assert remarks(y=1.0 + (TARGET > 0)) == []


def test_a_value_that_stands_out_of_the_target_is_named():
    rain = np.where(NOISE > 0, 0.0, np.abs(TARGET))
    share = f"{np.mean(rain == 0):.0%}"
    assert f"target 'y' is 0 in {share} of the rows" in remarks(y=rain)[0]
    assert "nothing to predict" in remarks(y=np.ones(N))[0]
    ratings = np.resize([1, 2, 2, 3, 3, 3, 4, 4, 5], N)
    assert remarks(y=ratings) == []


def gaussians(means, std, n_targets=1):
    means = np.repeat(np.asarray(means, float)[:, None, None], n_targets, axis=2)
    return Mixture(np.ones(means.shape[:2]), means, np.full(means.shape, std**2))


def test_intervals_below_zero_of_a_target_that_is_not_negative_are_named():
    distribution = gaussians([0.1, 10.0, 20.0, 30.0], 1.0)
    (remark,) = prediction_remarks(distribution, np.array([[0.5], [30.0]]))
    assert "target 'y' is never negative" in remark
    assert "90% interval begins below 0 in 25% of the rows" in remark
    assert "--output-warp positive" in remark
    (remark,) = prediction_remarks(distribution, np.array([[0.0], [30.0]]), ["rain"])
    assert "target 'rain'" in remark
    assert "output-warp" not in remark  # which needs targets above 0
    assert prediction_remarks(distribution, np.array([[-0.1], [30.0]])) == []
    assert prediction_remarks(distribution[1:], np.array([[0.5], [30.0]])) == []


def test_intervals_above_one_of_a_share_are_named():
    distribution = gaussians([0.5, 0.95], 0.1)
    (remark,) = prediction_remarks(distribution, np.array([[0.1], [0.9]]))
    assert "ends above 1 in 50% of the rows" in remark
    assert prediction_remarks(distribution, np.array([[0.1], [1.1]])) == []


def test_each_target_has_remarks_of_its_own():
    distribution = gaussians([0.1, 10.0], 1.0, n_targets=2)
    Y_train = np.array([[1.0, -1.0], [2.0, 3.0]])
    assert "'y0'" in prediction_remarks(distribution, Y_train)[0]
    assert len(prediction_remarks(distribution, Y_train)) == 1


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_training_rows_are_counted_among_those_of_an_evaluation(n_shared, n_new, seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(40, 3)), rng.normal(size=(40, 1))
    X[rng.random(X.shape) < 0.2] = np.nan
    new = rng.normal(size=(n_new, 3))
    rows = rng.permutation(n_shared + n_new)
    X_test = np.concatenate([X[:n_shared], new])[rows]
    Y_test = np.concatenate([Y[:n_shared], rng.normal(size=(n_new, 1))])[rows]
    found = evaluation_remarks(X_test, Y_test, X, Y)
    if n_shared:
        assert found[0].startswith(f"{n_shared} of {n_shared + n_new} rows are training rows")
    else:
        assert found == []


def test_equal_inputs_with_another_target_are_no_training_rows():
    X, Y = NOISE[:, None], TARGET[:, None]
    assert evaluation_remarks(X, Y + 1, X, Y) == []
    assert evaluation_remarks(X, Y, X, Y)[0].startswith("all 60 rows are training rows")
    zero = np.zeros((1, 1))
    assert evaluation_remarks(-zero, Y[:1], zero, Y[:1])[0].startswith(
        "all 1 row is a training row"
    )


def test_columns_that_cannot_be_compared_are_named():
    X, Y = np.arange(12.0)[:, None], np.arange(12.0)[:, None]
    (remark,) = evaluation_remarks(X[:3], Y[:3], X, Y, ["shop"])
    assert "(equal in targets and in all inputs but 'shop'), which" in remark
    assert evaluation_remarks(X[:, :0], Y, X[:, :0], Y, ["shop"]) == []


def test_intervals_of_flags_are_not_remarked_on_twice():
    distribution = gaussians([0.1, 0.9], 0.5)
    assert prediction_remarks(distribution, np.array([[0.0], [1.0]])) == []
    assert len(prediction_remarks(distribution, np.array([[0.0], [0.5]]))) == 2
