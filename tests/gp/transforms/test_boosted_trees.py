"""Predictions of boosted trees as a further coordinate."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression
from threadpoolctl import threadpool_limits

from dsmgp.fitting.learning.boosted_trees import N_FOLDS, learn_boosted_trees
from dsmgp.gp.transforms.boosted_trees import digests
from dsmgp.gp.transforms.coordinates import Coordinates


def steps(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 6, size=(n, 3)) / 2.0
    Y = np.column_stack([np.floor(X[:, 0]) * (X[:, 1] > 1.2), X[:, 2]])
    return X, Y + 0.1 * rng.normal(size=Y.shape)


@pytest.fixture(scope="module")
def learned():
    X, Y = steps(300)
    return X, Y, learn_boosted_trees(X, Y)


def by_scikit_learn(X, y, left_out, rows):
    kept = digests(X) % N_FOLDS != left_out
    X, y = X[kept], y[kept]
    line = LinearRegression().fit(X, y)
    model = HistGradientBoostingRegressor(early_stopping=False, random_state=0)
    with threadpool_limits(1, user_api="openmp"):
        return line.predict(rows) + model.fit(X, y - line.predict(X)).predict(rows)


def test_a_training_row_is_predicted_by_the_trees_that_have_not_seen_it(learned):
    X, Y, trees = learned
    predicted = trees(X)
    for fold in (0, 3):
        rows = digests(X) % N_FOLDS == fold
        for output in (0, 1):
            expected = by_scikit_learn(X, Y[:, output], fold, X[rows])
            np.testing.assert_allclose(predicted[rows, output], expected, rtol=1e-12, atol=1e-12)


def test_a_new_row_is_predicted_by_the_mean_over_folds(learned):
    X, Y, trees = learned
    new = X[:40] + 0.01
    folds = [by_scikit_learn(X, Y[:, 0], fold, new) for fold in range(N_FOLDS)]
    np.testing.assert_allclose(trees(new)[:, 0], np.mean(folds, axis=0), rtol=1e-12, atol=1e-12)


def test_the_coordinate_of_a_row_does_not_depend_on_its_own_output(learned):
    X, Y, trees = learned
    same_inputs = (X[7] == X).all(axis=1)  # its duplicates are in the same fold
    other = Y + 100.0 * same_inputs[:, None]
    np.testing.assert_array_equal(learn_boosted_trees(X, other)(X[7:8]), trees(X[7:8]))


def test_the_order_of_rows_does_not_matter(learned):
    X, Y, trees = learned
    backwards = learn_boosted_trees(X[::-1], Y[::-1])
    np.testing.assert_allclose(backwards(X), trees(X), rtol=1e-9, atol=1e-12)


def test_equal_rows_have_equal_predictions_whatever_stands_beside_them(learned, monkeypatch):
    X, _, trees = learned
    rows = np.concatenate([X, X + 0.01])
    every = trees(rows)
    for k in (0, 100, 599):
        np.testing.assert_array_equal(trees(rows[k : k + 1])[0], every[k])
    monkeypatch.setattr("dsmgp.tree.routing.has_numba", lambda: False)
    np.testing.assert_array_equal(trees(rows), every)


def test_a_linear_function_goes_on_outside_the_data(rng):
    X = rng.normal(size=(200, 2))
    trees = learn_boosted_trees(X, X @ [[1.0], [-2.0]] + 3.0)
    np.testing.assert_allclose(trees(30.0 * X), 30.0 * X @ [[1.0], [-2.0]] + 3.0, atol=1e-9)
    held = trees(30.0 * X, of_trees=X)  # trees have nothing to add
    np.testing.assert_allclose(held, trees(30.0 * X), atol=1e-9)


def test_the_order_of_columns_does_not_matter(learned):
    X, Y, trees = learned
    reversed_columns = learn_boosted_trees(X[:, ::-1], Y, columns=np.array([2, 1, 0]))
    np.testing.assert_allclose(reversed_columns(X[:, ::-1]), trees(X), rtol=1e-9, atol=1e-12)


def test_rows_are_told_apart_by_their_keys():
    X, Y = steps(300)
    trees = learn_boosted_trees(X, Y, keys=np.array([0, 2]))
    other = X + [0.0, 1e-9, 0.0]  # an effect of levels, which is not the same for new rows
    np.testing.assert_allclose(trees(other), trees(X), atol=1e-7)


def test_too_few_different_rows_have_no_folds(rng):
    X = rng.integers(0, 4, size=(600, 1)).astype(float)
    assert learn_boosted_trees(X, X) is None


def test_they_come_after_the_other_coordinates_and_count_for_the_inputs(learned):
    X, _, trees = learned
    coordinates = replace(Coordinates.identity(3), trees=trees)
    assert coordinates.is_oblique
    U = coordinates(X)
    assert U.shape == (300, coordinates.n_coordinates) == (300, 5)
    np.testing.assert_array_equal(U[:, :3], X)
    np.testing.assert_array_equal(U[:, 3:], trees(X))
    of_trees = coordinates.input_rates(np.array([0.0, 0.0, 0.0, 2.0, 0.0]), np.ones(3))
    np.testing.assert_allclose(of_trees, 2.0 * trees.slopes[:, 0])
    assert trees.slopes[2, 1] > 0.8  # the second output is the third input
    assert trees.slopes[:2, 1].max() < 0.1
