"""Importances of columns: shares of their total effects on the predictive mean."""

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor, load
from dsmgp.data.columns.learning import EncodedTable
from dsmgp.data.columns.schema import Column, ColumnSchema
from dsmgp.explain import effects
from dsmgp.explain.effects import total_effect_shares
from dsmgp.regressor import fit_table
from tests.support.function_model import FunctionModel, each_input


def test_of_a_linear_function_they_are_the_shares_of_its_variance(rng):
    X = rng.normal(size=(400, 4)) * [1.0, 2.0, 1.0, 5.0]
    shares = total_effect_shares(
        FunctionModel(lambda X: X @ [[2.0], [2.0], [1.0], [0.0]]), X, each_input(4)
    )
    np.testing.assert_allclose(shares, np.array([4.0, 16.0, 1.0, 0.0]) / 21.0, atol=0.04)
    assert shares[3] == 0.0
    assert shares.sum() == pytest.approx(1.0)


def test_interactions_count_for_each_column_that_takes_part(rng):
    """The total effects of x0 * x1 are equal, though neither column has an effect of its own."""
    X = rng.normal(size=(500, 2))
    shares = total_effect_shares(FunctionModel(lambda X: X[:, :1] * X[:, 1:]), X, each_input(2))
    np.testing.assert_allclose(shares, 0.5, atol=0.1)


def test_outputs_count_equally_whatever_their_units(rng):
    X = rng.normal(size=(300, 2))
    model = FunctionModel(lambda X: X * [1.0, 1e6], n_outputs=2)
    np.testing.assert_allclose(total_effect_shares(model, X, each_input(2)), 0.5, atol=1e-12)


def test_a_constant_function_has_equal_shares(rng):
    model = FunctionModel(lambda X: np.ones((len(X), 1)))
    X = rng.normal(size=(20, 4))
    np.testing.assert_array_equal(total_effect_shares(model, X, each_input(4)), 0.25)


def test_how_many_columns_are_predicted_at_once_does_not_matter(rng, monkeypatch):
    X = rng.normal(size=(50, 5))
    model = FunctionModel(lambda X: np.sin(X).sum(axis=1, keepdims=True) + X[:, :1])
    whole = total_effect_shares(model, X, each_input(5))
    monkeypatch.setattr(effects, "AT_ONCE", 2 * X.size)
    np.testing.assert_allclose(total_effect_shares(model, X, each_input(5)), whole)
    assert max(model.calls[2:]) == 100


def test_irrelevant_and_correlated_columns_have_next_to_none(rng):
    X = rng.normal(size=(400, 4))
    X[:, 1] = 0.95 * X[:, 0] + 0.3 * X[:, 1]
    y = X[:, 0] + 0.5 * X[:, 2] + 0.1 * rng.normal(size=400)
    model = DSMGPRegressor("rbf", random_state=0)
    assert not hasattr(model, "feature_importances_")
    shares = model.fit(X, y).feature_importances_
    np.testing.assert_allclose(shares, [0.8, 0.0, 0.2, 0.0], atol=0.1)
    shares[:] = 0.0  # a copy
    assert model.feature_importances_.sum() == pytest.approx(1.0)


def test_a_category_is_one_column(rng):
    level = rng.integers(0, 3, 150)
    X = np.column_stack([rng.normal(size=150), np.eye(3)[level]])
    table = ColumnSchema((Column("a", "number"), Column("c", "category", ("r", "s", "t"))), ("y",))
    model = DSMGPRegressor("rbf", max_iter=10, random_state=0)
    fit_table(model, EncodedTable(table, X, 3.0 * level[:, None], None, ()))
    shares = model.feature_importances_
    assert shares.shape == (2,)
    assert shares[1] > 0.95


def test_importances_follow_the_model(wavy):
    """They are computed once for each state, and again after an update."""
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X[:100], y[:100])
    before = model.feature_importances_
    np.testing.assert_array_equal(before, model.feature_importances_)
    assert (model.partial_fit(X[100:], y[100:]).feature_importances_ != before).any()


def test_models_of_files_know_the_columns_of_their_table(rng, tmp_path):
    pytest.importorskip("pyarrow")
    x, colour = rng.normal(size=200), rng.choice(list("rgb"), 200)
    frame = pd.DataFrame({"x": x, "colour": colour, "y": 0.1 * x + (colour == "r")})
    frame.to_parquet(tmp_path / "rows.parquet")
    model = DSMGPRegressor("rbf", leaf_size=100, max_iter=5, random_state=0)
    model.fit_dataset(tmp_path / "rows.parquet", target="y", store=tmp_path / "model")
    shares = model.feature_importances_
    assert model.state_.schema.groups[1][0] == "colour"
    assert shares[1] > 0.8
    np.testing.assert_allclose(load(tmp_path / "model").feature_importances_, shares)
