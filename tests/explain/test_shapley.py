"""Shapley values: brute force over all orders, closed forms, Shapley's axioms, and how well sampled orders do."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.data.columns.learning import EncodedTable
from dsmgp.data.columns.schema import Column, ColumnSchema
from dsmgp.explain import Explanation, shapley
from dsmgp.explain.shapley import shapley_values
from dsmgp.regressor import fit_table
from tests.support.function_model import FunctionModel, each_input

TWO = {"output_names": ("up", "down"), "squeeze": False}


def brute_force(predict, x, background, groups):
    """Average over all orders of what each column adds to the average prediction of mixed rows."""

    def worth(columns):
        rows = background.copy()
        for column in columns:
            rows[:, groups[column][1]] = x[groups[column][1]]
        return predict(rows).mean(axis=0)

    orders = list(permutations(range(len(groups))))
    values = [0.0] * len(groups)
    for order in orders:
        for place, column in enumerate(order):
            step = worth(order[: place + 1]) - worth(order[:place])
            values[column] = values[column] + step / len(orders)
    return np.array(values)


def wild(X):
    """Two outputs of any number of inputs, with interactions."""
    return np.column_stack([np.sin(X).prod(axis=1) + X[:, 0], np.exp(0.3 * X.sum(axis=1))])


def explained(model, X, background, groups, n_samples=8, **options):
    rng = np.random.default_rng(0)
    return shapley_values(model, X, background, groups, n_samples, rng, **options)


@pytest.fixture(scope="module")
def fitted():
    """Three columns, of which the category has three inputs; two outputs."""
    rng = np.random.default_rng(0)
    level = rng.integers(0, 3, 150)
    X = np.column_stack([rng.normal(size=(150, 2)), np.eye(3)[level]])
    Y = np.column_stack([np.sin(X[:, 0]) * level + X[:, 1], X[:, 0] - level])
    table = ColumnSchema(
        (Column("a", "number"), Column("b", "number"), Column("c", "category", ("r", "s", "t"))),
        ("up", "down"),
    )
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": np.array(["r", "s", "t"])[level]})
    model = DSMGPRegressor("rbf", leaf_size=60, max_iter=10, random_state=0)
    fit_table(model, EncodedTable(table, X, Y + 0.1 * rng.normal(size=Y.shape), None, ()))
    return model, frame


@pytest.mark.parametrize("include_noise", [True, False])
def test_values_of_a_fitted_model_are_those_of_brute_force(fitted, include_noise):
    model, frame = fitted
    groups, X = model.state_.schema.groups, model.state_.schema.to_numbers(frame)
    explanation = model.explain(frame[:3], background=frame[50:57], include_noise=include_noise)
    assert explanation.columns == ("a", "b", "c")
    for kind, values in enumerate((explanation.mean_values, explanation.std_values)):
        assert values.shape == (3, 3, 2)

        def predict(rows, kind=kind):
            return model.state_.model.moments(rows, include_noise)[kind]

        for row in range(3):
            expected = brute_force(predict, X[row], X[50:57], groups)
            np.testing.assert_allclose(values[row], expected, atol=1e-10)


def test_base_and_values_sum_to_the_prediction(fitted):
    model, frame = fitted
    explanation = model.explain(frame[:4])
    mean, std = model.predict(frame[:4], return_std=True)
    np.testing.assert_allclose(
        explanation.mean_base + explanation.mean_values.sum(axis=1), mean, atol=1e-12
    )
    np.testing.assert_allclose(
        explanation.std_base + explanation.std_values.sum(axis=1), std, atol=1e-12
    )


def test_values_of_a_warped_and_mapped_model_sum_to_the_prediction(rng):
    """Everything happens in the user's units, whatever the model does inside."""
    X = np.exp(rng.normal(size=(120, 2)))
    y = np.exp(np.log(X) @ [1.0, -0.5] + 0.1 * rng.normal(size=120))
    model = DSMGPRegressor(
        "rbf", max_iter=5, random_state=0, input_warp="rank", output_warp="log", metric="full"
    ).fit(X, y)
    explanation = model.explain(X[:2], background=5)
    mean, std = model.predict(X[:2], return_std=True)
    np.testing.assert_allclose(explanation.mean_base + explanation.mean_values.sum(axis=1), mean)
    np.testing.assert_allclose(explanation.std_base + explanation.std_values.sum(axis=1), std)
    assert explanation.mean_values.shape == (2, 2)


@pytest.mark.parametrize("n_columns", [1, 3, 12])
def test_of_a_linear_function_they_are_its_terms(rng, n_columns):
    """w_j (x_j - average of the background), also with sampled orders: every background row is used equally often."""
    w, X, background = rng.normal(size=(n_columns, 1)), *rng.normal(size=(2, 6, n_columns))
    model = FunctionModel(lambda X: X @ w, lambda X: 9 + X @ (2 * w))
    explanation = explained(model, X, background, each_input(n_columns))
    expected = w[:, 0] * (X - background.mean(axis=0))
    np.testing.assert_allclose(explanation.mean_values, expected, atol=1e-12)
    np.testing.assert_allclose(explanation.std_values, 2 * expected, atol=1e-12)
    assert explanation.mean_base == pytest.approx((background @ w).mean())
    assert (explanation.mean_values_error is None) == (n_columns < 9)
    if n_columns == 12:
        np.testing.assert_allclose(explanation.mean_values_error, 0.0, atol=1e-12)


@pytest.mark.parametrize("n_columns", [4, 10])
def test_columns_that_do_the_same_get_the_same_and_those_that_do_nothing_get_nothing(
    rng, n_columns
):
    X, background = rng.normal(size=(2, 5, n_columns))
    X[:, 1], background[:, 1] = X[:, 0], background[:, 0]
    model = FunctionModel(lambda X: np.sin(X[:, :1] + X[:, 1:2]) * X[:, 2:3])
    explanation = explained(model, X, background, each_input(n_columns), n_samples=200)
    first, second = explanation.mean_values[:, 0], explanation.mean_values[:, 1]
    tolerance = 1e-12 if n_columns == 4 else 5 * explanation.mean_values_error[:, :2].max()
    np.testing.assert_allclose(first, second, atol=tolerance)
    np.testing.assert_allclose(explanation.mean_values[:, 3:], 0.0, atol=1e-12)
    np.testing.assert_array_equal(explanation.std_values, 0.0)


@pytest.fixture
def sampled_and_exact(rng, monkeypatch):
    X, background = rng.normal(size=(2, 6, 5))
    model = FunctionModel(wild, lambda X: 1 + wild(X) ** 2, n_outputs=2)
    exact = explained(model, X, background, each_input(5), **TWO)
    monkeypatch.setattr(shapley, "EXACT_COLUMNS", 4)

    def sample(n_samples, seed=0):
        generator = np.random.default_rng(seed)
        return shapley_values(model, X, background, each_input(5), n_samples, generator, **TWO)

    return sample, exact, model.moments(X)


def test_sampled_orders_come_as_close_as_their_errors_say(sampled_and_exact):
    sample, exact, _ = sampled_and_exact
    few, many = [sample(8, seed) for seed in range(100)], sample(512)
    off = np.array([each.mean_values - exact.mean_values for each in few])
    error = np.sqrt(np.mean([np.square(each.mean_values_error) for each in few], axis=0))
    assert (np.abs(off.mean(axis=0)) < 5 * off.std(axis=0) / np.sqrt(len(few)) + 1e-12).all()
    assert np.median(off.std(axis=0) / error) == pytest.approx(1.0, abs=0.05)
    assert np.median(many.mean_values_error / error) == pytest.approx(np.sqrt(8 / 512), rel=0.1)
    off = np.array([each.std_values - exact.std_values for each in few])
    error = np.sqrt(np.mean([np.square(each.std_values_error) for each in few], axis=0))
    assert np.median(off.std(axis=0) / error) == pytest.approx(1.0, abs=0.05)
    np.testing.assert_array_less(
        np.abs(many.mean_values - exact.mean_values), 6 * many.mean_values_error + 1e-12
    )


def test_sampled_values_sum_to_the_prediction_too(sampled_and_exact):
    sample, _, (mean, std) = sampled_and_exact
    few = sample(4)
    np.testing.assert_allclose(few.mean_base + few.mean_values.sum(axis=1), mean, atol=1e-12)
    np.testing.assert_allclose(few.std_base + few.std_values.sum(axis=1), std, atol=1e-12)


@pytest.mark.parametrize("n_columns", [5, 9])
def test_how_many_rows_are_predicted_at_once_does_not_matter(rng, monkeypatch, n_columns):
    X, background = rng.normal(size=(2, 6, n_columns))
    model = FunctionModel(wild, wild, n_outputs=2)
    whole = explained(model, X, background, each_input(n_columns), **TWO)
    monkeypatch.setattr(shapley, "AT_ONCE", 1000)
    model.calls.clear()
    parts = explained(model, X, background, each_input(n_columns), **TWO)
    assert max(model.calls) <= 1000 // n_columns
    np.testing.assert_allclose(parts.mean_values, whole.mean_values, atol=1e-12)
    np.testing.assert_allclose(parts.std_values, whole.std_values, atol=1e-12)


def test_background_rows_are_drawn_by_seed_or_given(wavy):
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, y)
    one, same, other = (model.explain(X[:2], random_state=seed).mean_values for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    every = model.explain(X[:2], background=10**6)  # all of the training rows there are
    assert every.mean_base == pytest.approx(model.predict(X).mean())
    np.testing.assert_allclose(every.mean_values, model.explain(X[:2], background=X).mean_values)
    assert model.explain(X[:2], background=X[3:4].tolist()).mean_base == pytest.approx(
        model.predict(X[3:4])[0]
    )


def test_arguments_out_of_range_are_refused(wavy):
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=1, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="n_samples to be a whole number of at least 4"):
        model.explain(X[:1], n_samples=2)
    for background in (0, 1.5, None, "all"):
        with pytest.raises(ValueError, match="background to be a whole number of at least 1"):
            model.explain(X[:1], background=background)
    with pytest.raises(ValueError, match="expecting 2 features"):
        model.explain(X[:1], background=X[:, :1])


def test_the_text_shows_the_first_rows_and_what_moves_them_most():
    values = np.array([[0.5, -20.0, 0.0]] * 5)
    text = repr(Explanation(("size", "a long name", "c"), values, 1e-9 * values, 100.0, 1e-8))
    assert text.splitlines()[:8] == [
        "Shapley values of 5 rows, exact",
        "",
        "row 0                 mean          std",
        "  average            100.0        1e-08",
        "  a long name        -20.0       -2e-08",
        "  size                +0.5       +5e-10",
        "  c                   +0.0           +0",
        "  prediction          80.5     -9.5e-09",
    ]
    assert text.endswith("and 2 more rows")
    wide = np.linspace(1.0, 2.0, 40).reshape(1, 20, 2)
    text = repr(
        Explanation(
            tuple(f"x{k}" for k in range(20)), wide, wide, np.ones(2), np.ones(2), wide, wide,
            ("up", "down"),
        )
    )  # fmt: skip
    assert "Shapley values of 1 row, by sampled permutations" in text
    assert "row 0, down" in text
    assert "  8 other columns" in text


def test_a_frame_has_a_line_for_each_row_and_column(fitted):
    model, frame = fitted
    explanation = model.explain(frame[:2], background=4)
    table = explanation.to_frame()
    assert list(table.columns) == ["row", "column", "output", "mean", "std"]
    assert len(table) == 2 * 3 * 2
    chosen = table[(table.row == 1) & (table.column == "c") & (table.output == "down")]
    assert chosen["mean"].item() == explanation.mean_values[1, 2, 1]
    model = FunctionModel(lambda X: X[:, :1])
    sampled = explained(model, *np.random.default_rng(0).normal(size=(2, 3, 9)), each_input(9))
    assert list(sampled.to_frame().columns) == [
        "row", "column", "mean", "std", "mean_error", "std_error",
    ]  # fmt: skip


def test_models_with_change_points_are_explained_too(rng):
    X = np.linspace(0, 1, 60)[:, None]
    y = (X[:, 0] > 0.5) + 0.05 * rng.normal(size=60)
    model = DSMGPRegressor("rbf", structure="changepoint", max_iter=5).fit(X, y)
    explanation = model.explain(X[:2])
    total = explanation.mean_base + explanation.mean_values[:, 0]
    np.testing.assert_allclose(total, model.predict(X[:2]))
