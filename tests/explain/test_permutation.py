"""Permutation importance: scores of shuffled rows, column by column of the user's table."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, scores
from dsmgp.explain import PermutationImportance
from dsmgp.explain.permutation import permutation_importance
from tests.support.function_model import FunctionModel, each_input


def test_scores_rise_by_what_shuffling_costs(rng):
    """Beside the same by hand; a column that predictions ignore costs nothing."""
    X = rng.normal(size=(200, 3))
    model = FunctionModel(lambda X: 3 * X[:, :1] + X[:, 1:2])
    y = model.function(X) + rng.normal(size=(200, 1))
    generator = np.random.default_rng(5)
    result = permutation_importance(
        model, X, y, each_input(3), 2, ["nlpd", "rmse", "mae", "crps"], generator
    )
    order = np.random.default_rng(5).permutation(200)
    shuffled = X.copy()
    shuffled[:, 0] = X[order, 0]
    before, after = (model.mixture(rows, squeeze=False) for rows in (X, shuffled))
    expected = scores.nlpd(y, after) - scores.nlpd(y, before)
    assert result.importances["nlpd"][0, 0] == pytest.approx(expected)
    assert result.baseline["rmse"] == pytest.approx(scores.rmse(y, before.mean))
    for table in result.importances.values():
        assert table.shape == (3, 2)
        assert (table[0] > table[1]).all()
        assert (table[1] > table[2]).all()
        np.testing.assert_array_equal(table[2], 0.0)


def test_inputs_of_one_column_are_shuffled_together(rng):
    """Otherwise rows would arise that no table can hold."""
    level = rng.integers(0, 3, 60)
    X = np.column_stack([np.eye(3)[level], rng.normal(size=60)])
    seen = []

    def function(X):
        seen.append(X[:, :3].sum(axis=1))
        return X[:, :1]

    groups = [("colour", np.arange(3)), ("x", np.array([3]))]
    rng = np.random.default_rng(0)
    permutation_importance(FunctionModel(function), X, X[:, :1], groups, 3, ["rmse"], rng)
    np.testing.assert_array_equal(seen, 1.0)
    assert len(seen) == 1 + 3 * 2


def test_the_estimator_ranks_the_columns_that_matter(wavy):
    import pandas as pd

    X, y = wavy
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(
        noise=np.random.default_rng(0).normal(size=120)
    )
    model = DSMGPRegressor("rbf", max_iter=20, random_state=0).fit(frame[:80], y[:80])
    result = model.permutation_importance(frame[80:], y[80:])
    assert result.columns == ("a", "b", "noise")
    for score in ("nlpd", "rmse"):
        assert list(np.argsort(-result.importances_mean[score])) == [0, 1, 2]
        assert (result.importances_std[score] >= 0).all()
    assert list(model.permutation_importance(frame, y, scores="mae").baseline) == ["mae"]
    assert list(result.to_frame().columns) == ["nlpd", "nlpd_std", "rmse", "rmse_std"]


def test_several_outputs_are_scored_together(wavy):
    X, y = wavy
    Y = np.column_stack([y, -2 * y])
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, Y)
    result = model.permutation_importance(X, Y, n_repeats=1)
    assert result.baseline["nlpd"] == pytest.approx(scores.nlpd(Y, model.predict_dist(X)))


def test_arguments_out_of_range_are_refused(wavy):
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=1, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="scores to be one of 'nlpd', 'rmse', 'mae', 'crps'"):
        model.permutation_importance(X, y, scores=["nlpd", "r2"])
    with pytest.raises(ValueError, match="expected one score or more"):
        model.permutation_importance(X, y, scores=())
    with pytest.raises(ValueError, match="n_repeats"):
        model.permutation_importance(X, y, n_repeats=0)
    with pytest.raises(ValueError, match="as many values of y as rows"):
        model.permutation_importance(X, y[:-1])


def test_the_text_lists_the_most_important_columns():
    columns = tuple(f"column {k}" for k in range(25))
    increases = np.arange(25.0)[:, None] + np.zeros((25, 2))
    lines = repr(PermutationImportance(columns, {"rmse": 1.5}, {"rmse": increases})).splitlines()
    assert lines[0] == "Increase of scores when a column is shuffled, 2 repeats"
    assert lines[4].split() == ["column", "24", "+24", "±", "0"]
    assert lines[-1] == "  and 5 more"
