"""The choice of coordinates: taken where it helps, left where it does not, and the same model in other units."""

from __future__ import annotations

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, scores
from dsmgp.tree.nodes import Product, nodes
from dsmgp.tree.routing import Router


def skewed(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.lognormal(0.0, 1.5, size=(n, 2))
    return X, np.sin(2.0 * np.log(X[:, 0])) + 0.3 * np.log(X[:, 1]) + 0.1 * rng.normal(size=n)


def oblique(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A function of one combination of four inputs."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, np.sin(1.5 * (X[:, 0] - X[:, 1] + X[:, 2])) + 0.1 * rng.normal(size=n)


def smooth(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    return X, np.sin(2.0 * X[:, 0]) + np.cos(X[:, 1]) + 0.1 * rng.normal(size=n)


def rmse(model, X, y):
    return float(np.sqrt(np.mean((model.predict(X) - y) ** 2)))


@pytest.fixture(scope="module")
def chosen():
    """A fit to inputs whose logarithms matter."""
    return DSMGPRegressor(effort="low", random_state=0).fit(*skewed(600))


def test_skewed_inputs_are_warped(chosen):
    X, y = skewed(600)
    X_test, y_test = skewed(500, seed=1)
    plain = DSMGPRegressor(effort="low", random_state=0, input_warp=None, metric="diagonal").fit(
        X, y
    )
    assert {"input warp"} <= set(chosen.state_.search.gains)
    assert any(warp is not None for warp in chosen.coordinates_.warps)
    assert rmse(chosen, X_test, y_test) < 0.8 * rmse(plain, X_test, y_test)
    assert plain.coordinates_ is None


def test_an_oblique_function_gets_a_metric():
    X, y = oblique(700)
    X_test, y_test = oblique(500, seed=1)
    chosen = DSMGPRegressor(effort="low", random_state=0).fit(X, y)
    plain = DSMGPRegressor(effort="low", random_state=0, metric="diagonal").fit(X, y)
    metric = chosen.coordinates_.metric
    assert "metric" in chosen.state_.search.gains
    # The most relevant direction is that of the function.
    direction = metric[:, np.argmin(chosen.kernel_.terms[0].lengthscale)]
    along = np.array([1.0, -1.0, 1.0, 0.0]) / np.sqrt(3.0)
    assert abs(direction @ along) > 0.99 * np.linalg.norm(direction)
    assert rmse(chosen, X_test, y_test) < 0.8 * rmse(plain, X_test, y_test)
    assert "direction 1" in chosen.summary()
    # Regions are oblique: no cut is along one input.
    assert len(chosen.split_posterior(0)) == 0


def stepped(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A function with a jump at each of many values of several inputs."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 6))
    return X, stepped_mean(X) + 0.1 * rng.normal(size=n)


def stepped_mean(X: np.ndarray) -> np.ndarray:
    values = np.random.default_rng(9).normal(size=(6, 8))
    return sum(values[k, (8 * X[:, k]).astype(int)] for k in range(6))


def test_a_function_with_many_steps_gets_boosted_trees():
    X, y = stepped(1200)
    X_test, y_test = stepped(500, seed=1)
    chosen = DSMGPRegressor("matern12", random_state=0).fit(X, y)
    plain = DSMGPRegressor("matern12", random_state=0, boosted_trees=None).fit(X, y)
    assert "boosted trees" in chosen.state_.search.gains
    assert "boosted trees" in chosen.summary()
    assert plain.coordinates_ is None or plain.coordinates_.trees is None
    assert rmse(chosen, X_test, y_test) < 0.8 * rmse(plain, X_test, y_test)
    assert scores.nlpd(y_test, chosen.predict_dist(X_test)) == pytest.approx(
        chosen.loo_score_, abs=0.15
    )


def test_intervals_cover_beyond_the_rows_that_boosted_trees_have_seen():
    """Trees are constant there; the leaf GPs go on, and their variances grow."""
    X, y = stepped(1000)
    model = DSMGPRegressor("matern12", random_state=0, boosted_trees="always").fit(
        X, y + 4.0 * X[:, 0]
    )
    X_test, _ = stepped(300, seed=1)
    out = X_test + [[0.4, 0.0, 0.0, 0.0, 0.0, 0.0]]
    out = out[out[:, 0] > 1.05]
    beyond = np.minimum(out[:, 0], 0.999)  # the step goes on
    truth = stepped_mean(np.column_stack([beyond, out[:, 1:]])) + 4.0 * out[:, 0]
    low, high = model.predict_dist(out).interval(0.9)
    assert np.mean((low <= truth) & (truth <= high)) > 0.75


@pytest.mark.parametrize("n_distinct", [1, 2])
def test_few_distinct_inputs_are_fitted_without_boosted_trees(n_distinct, rng):
    x = rng.integers(0, n_distinct, size=(600, 1)).astype(float)
    model = DSMGPRegressor("rbf", random_state=0).fit(x, x[:, 0] + rng.normal(size=600))
    assert model.coordinates_ is None or model.coordinates_.trees is None


def test_inputs_that_need_nothing_stay_as_they_are():
    X, y = smooth(500)
    model = DSMGPRegressor(effort="low", random_state=0).fit(X, y)
    assert model.coordinates_ is None
    assert model.state_.search.gains is None


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": "posterior"},
        {"structure": "paper"},
        {"standardize": False},
        {"optimizer": None, "kernel": "rbf"},
        {"mean": "linear"},
        {"kernel": "rbf+periodic", "max_iter": 2},
    ],
    ids=str,
)
def test_what_refers_to_the_columns_keeps_them(settings):
    X, y = skewed(600)
    assert DSMGPRegressor(effort="low", random_state=0, **settings).fit(X, y).coordinates_ is None


def test_few_rows_keep_the_plain_model():
    X, y = skewed(499)
    assert DSMGPRegressor(effort="low", random_state=0).fit(X, y).coordinates_ is None


def test_a_warp_is_the_plain_model_on_warped_inputs():
    X, y = skewed(400)
    warped = DSMGPRegressor("matern32", effort="low", random_state=0, input_warp="rank").fit(X, y)
    Z = warped.coordinates_(X)
    plain = DSMGPRegressor("matern32", effort="low", random_state=0).fit(Z, y)
    assert np.allclose(warped.predict(X[:50]), plain.predict(Z[:50]), rtol=0, atol=1e-10)
    assert np.isclose(warped.loo_score_, plain.loo_score_, rtol=0, atol=1e-10)


def test_the_tree_is_in_the_units_of_the_inputs():
    X, y = skewed(600)
    model = DSMGPRegressor(effort="low", random_state=0, input_warp="both", metric="diagonal").fit(
        X, y
    )
    tree = model.tree_
    splits = [s for node in nodes(tree) if isinstance(node, Product) for s in node.splits]
    assert 0 < min(splits) < max(splits) < X.max()
    in_units = Router(tree).route(X).pairs
    in_coordinates = Router(model.state_.tree).route(model.coordinates_(X)).pairs
    assert np.array_equal(in_units, in_coordinates)
    assert set(model.posterior_weights_) <= set(nodes(tree))
    assert model.split_posterior(0).low.min() > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"input_warp": "both"},
        {"metric": "full"},
        {"metric": "deep"},
        {"metric": "full", "boosted_trees": "always"},
    ],
    ids=str,
)
def test_updates_and_files_keep_the_coordinates(settings, tmp_path):
    X, y = oblique(400)
    model = DSMGPRegressor("rbf", effort="low", random_state=0, **settings).fit(X[:350], y[:350])
    before = model.coordinates_
    model.partial_fit(X[350:], y[350:], adapt=False).forget([3, 5], adapt=False)
    assert model.coordinates_ is before
    mean, std = model.predict(X[:40], return_std=True)
    model.save(tmp_path / "m.dsmgp")
    loaded = DSMGPRegressor.load(tmp_path / "m.dsmgp")  # conditions all leaves together
    again = loaded.predict(X[:40], return_std=True)
    assert np.allclose(mean, again[0], rtol=0, atol=1e-9)
    assert np.allclose(std, again[1], rtol=0, atol=1e-9)
    loaded.save(tmp_path / "again.dsmgp")
    twice = DSMGPRegressor.load(tmp_path / "again.dsmgp")
    assert np.array_equal(twice.predict(X[:40]), again[0])
    assert np.allclose(loaded.coordinates_(X), before(X), rtol=0, atol=0)


def test_joint_draws_have_the_predicted_moments():
    X, y = oblique(400)
    model = DSMGPRegressor("rbf", effort="low", random_state=0, metric="full").fit(X, y)
    mean, covariance = model.predict(X[:3], return_cov=True)
    assert np.allclose(mean, model.predict(X[:3]), atol=1e-9)
    assert np.allclose(np.sqrt(np.diag(covariance)), model.predict(X[:3], return_std=True)[1])


def bent(n, seed=0):
    """A function of the distance from the origin, which varies faster further out."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 3))
    return X, np.sin(2.5 * (X[:, 0] ** 2 + X[:, 1] ** 2)) + 0.05 * rng.normal(size=n)


AS_THEY_ARE = {"input_warp": None, "output_warp": None, "effort": "low", "random_state": 0}


@pytest.fixture(scope="module")
def deep():
    return DSMGPRegressor("rbf", metric="deep", **AS_THEY_ARE).fit(*bent(900))


def test_a_network_works_as_oblique_coordinates_do(deep):
    """It is learned on some of the rows only, which leave-one-out scores leave out."""
    X, y = bent(500, seed=1)
    assert scores.nlpd(y, deep.predict_dist(X)) == pytest.approx(deep.loo_score_, abs=0.2)
    assert 0 < len(deep.state_.metric_rows) < 900
    assert deep.coordinates_.n_coordinates == 3 + deep.coordinates_.network.n_outputs
    assert "network" in deep.summary()
    assert len(deep.split_posterior(0).low) == 0
    assert deep.feature_importances_.argmin() == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_warp": "ranks"}, "expected input_warp to be"),
        ({"metric": "oblique"}, "expected metric to be"),
        (
            {"metric": "full", "structure": "changepoint"},
            "needs structure='balanced', 'paper' or 'learned'",
        ),
        ({"metric": "deep", "kernel": "rq"}, "metric='deep' needs kernel='auto' or one of"),
        ({"metric": "full", "optimizer": None}, "it needs an optimizer"),
        ({"metric": "full", "kernel": "rbf+matern12"}, "needs kernel='auto' or one of"),
        ({"metric": "full", "mean": "linear"}, "needs mean='auto', 'zero' or 'constant'"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    X, y = smooth(50)
    with pytest.raises(ValueError, match=message):
        DSMGPRegressor(**settings).fit(X, y)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_choice_does_not_depend_on_units(chosen, unit):
    X, y = skewed(600)
    expected = chosen.state_.search.gains
    gains = DSMGPRegressor(effort="low", random_state=0).fit(X, unit * y).state_.search.gains
    assert gains.keys() == expected.keys()
    assert np.allclose(list(gains.values()), list(expected.values()), rtol=1e-3)


def test_a_constant_output_beside_another_changes_no_choice():
    X, y = skewed(600)
    Y = np.column_stack([y, np.ones(len(y))])
    model = DSMGPRegressor(effort="low", random_state=0).fit(X, Y)
    assert "input warp" in model.state_.search.gains


def test_kernels_without_a_metric_are_fitted_without():
    X, y = skewed(500)
    model = DSMGPRegressor("rq", effort="low", max_iter=3, random_state=0).fit(X, y)
    assert model.coordinates_ is None or model.coordinates_.metric is None


def test_what_follows_exactly_is_left_alone():
    rng = np.random.default_rng(0)
    X = rng.lognormal(size=(600, 2))
    model = DSMGPRegressor(effort="low", random_state=0).fit(X, 3.0 * X[:, 0] - X[:, 1])
    assert model.coordinates_ is None
    assert model.state_.search.gains is None
