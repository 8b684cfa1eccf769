"""Change points through the estimator: learned, robust to outliers, with clear errors for bad input."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dsmgp import ChangePoints, DSMGPRegressor
from dsmgp.mixture.splits import Splits
from dsmgp.progress import Listener, listening
from dsmgp.tree import Leaf, Product, Region, Sum, nodes
from dsmgp.tree.changepoint_leaf import ChangePointLeaf

JUMPS = (2.0, 5.0, 7.5)


@pytest.fixture(scope="module")
def jumping():
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0, 10, size=240))
    levels = np.array([0.0, 3.0, -2.0, 1.0])[np.searchsorted(JUMPS, x)]
    return x[:, None], levels + 0.5 * np.sin(x) + 0.2 * rng.normal(size=240)


@pytest.fixture(scope="module")
def learned(jumping):
    return DSMGPRegressor("rbf", structure="changepoint").fit(*jumping)


def test_all_jumps_are_found_and_no_others(learned):
    changes = learned.changepoints(0.5)
    np.testing.assert_allclose([change.position for change in changes], JUMPS, atol=0.1)
    assert all(change.probability > 0.9 for change in changes)
    assert all(change.low <= change.position <= change.high for change in changes)
    splits = learned.split_posterior()
    assert splits.expected == pytest.approx(3.0, abs=0.6)
    grid = np.linspace(0, 10, 200_001)
    assert np.mean(splits.density(grid)) * 10 == pytest.approx(splits.expected, abs=0.01)


def test_theta_and_noise_are_those_of_the_segments(learned):
    noise = learned.noise_ * learned.output_loading_[0, 0] ** 2
    assert np.sqrt(noise) == pytest.approx(0.2, rel=0.2)


def test_a_learned_model_beats_the_smooth_one_where_it_jumps(learned, jumping):
    smooth = DSMGPRegressor("rbf", random_state=0).fit(*jumping)
    assert learned.log_marginal_likelihood_ > smooth.log_marginal_likelihood_ + 50
    near = np.array(JUMPS)[:, None] + np.array([-0.15, 0.15])
    levels = np.array([0.0, 3.0, -2.0, 1.0])
    truth = levels[np.searchsorted(JUMPS, near.ravel())] + 0.5 * np.sin(near.ravel())
    error = np.abs(learned.predict(near.reshape(-1, 1)) - truth)
    assert error.max() < 0.5


def test_a_fitted_model_survives_pickling_and_cloning(learned, jumping):
    X, _ = jumping
    again = pickle.loads(pickle.dumps(learned))
    np.testing.assert_array_equal(again.predict(X[:9]), learned.predict(X[:9]))
    copied = clone(DSMGPRegressor(structure=ChangePoints(outliers=True)))
    assert copied.structure == ChangePoints(outliers=True)


def test_the_summary_lists_changes(learned):
    text = learned.summary()
    assert "all averaged" in text
    assert "changes         3." in text
    assert "hazard" in text


def test_outliers_look_like_jumps_unless_they_are_expected(jumping):
    X, y = jumping[0], jumping[1].copy()
    rows = np.array([30, 31, 100, 160, 200])
    y[rows] += 8.0
    plain = DSMGPRegressor("rbf", structure=ChangePoints()).fit(X, y)
    robust = DSMGPRegressor("rbf", structure=ChangePoints(outliers=True)).fit(X, y)
    assert len(plain.changepoints(0.5)) > len(JUMPS)
    changes = robust.changepoints(0.5)
    np.testing.assert_allclose([change.position for change in changes], JUMPS, atol=0.1)
    assert (robust.state_.model.outlier_probability[rows] > 0.9).all()
    assert robust.state_.model.outlier_probability.sum() == pytest.approx(len(rows), abs=1.0)
    # A new row is an outlier as often as the old ones were: rarely, but then far away.
    predicted = robust.predict_dist(X[50:51])
    assert predicted.pdf(predicted.mean + 8.0)[0] > 1e-5
    assert "outliers" in robust.summary()
    assert robust.log_marginal_likelihood_ > plain.log_marginal_likelihood_


def test_segments_of_the_longest_length_are_warned_of(jumping):
    with pytest.warns(UserWarning, match="raise leaf_size"):
        DSMGPRegressor("rbf", structure="changepoint", leaf_size=20, max_iter=3).fit(*jumping)


def test_positions_of_a_tree_are_gaps_between_rows(jumping):
    X, y = jumping
    model = DSMGPRegressor("rbf", structure="paper", weights="posterior", random_state=0).fit(X, y)
    splits = model.split_posterior(0)
    log_reach = model.state_.model.posterior.log_reach
    cuts = [node for node in nodes(model.tree_) if isinstance(node, Product)]
    positions = np.array([split for node in cuts for split in node.splits])
    expected = sum(len(node.splits) * np.exp(log_reach[node]) for node in cuts)
    assert splits.expected == pytest.approx(expected)
    known = np.sort(X[:, 0])
    for low, high in zip(splits.low, splits.high, strict=True):
        assert np.min(np.abs(known - low)) < 1e-9
        assert np.min(np.abs(known - high)) < 1e-9
        assert ((positions >= low - 1e-9) & (positions <= high + 1e-9)).any()
    assert not splits.is_change


BAD = {
    "unknown_name": ({"structure": ChangePoints("depth")}, "unknown input 'depth'"),
    "no_such_number": ({"structure": ChangePoints(3)}, "0..0"),
    "uniform": ({"structure": "changepoint", "weights": "uniform"}, "weights='uniform'"),
    "lengths": ({"structure": ChangePoints(shortest=30), "leaf_size": 40}, "twice as long"),
    "too_few_rows": ({"structure": ChangePoints(n_changes=1, shortest=200)}, "lower shortest"),
    "memory": ({"structure": "changepoint", "memory_limit": "10kb"}, "memory_limit"),
    "dimension_in_a_tree": (
        {"structure": ChangePointLeaf(Region.whole(1), changes=ChangePoints(4))},
        "0..0",
    ),
}


UNSUPPORTED = {
    "a list of kernels": {"kernel": ["rbf", "matern12"]},
    "checkpoint": {"checkpoint": "fit.checkpoint"},
    "weights='uniform'": {"weights": "uniform"},
    "output_warp": {"output_warp": "rank"},
}


@pytest.mark.parametrize("name", [*UNSUPPORTED, "noise", "sample_weight"])
def test_what_change_points_do_not_support_is_refused_in_one_way(jumping, name):
    X, y = jumping
    model = DSMGPRegressor(structure=ChangePoints(), **UNSUPPORTED.get(name, {}))
    given = {} if name in UNSUPPORTED else {name: np.full(len(y), 2.0)}
    reason = "is not available with structure='changepoint'"
    with pytest.raises(ValueError, match=f"^{name} {reason}; [a-z]"):
        model.fit(X, y, **given)


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_leave_the_model_as_it_was(case, jumping):
    options, message = BAD[case]
    X, y = jumping
    model = DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(X, y)
    before = model.predict(X[:5])
    with pytest.raises(ValueError, match=message):
        model.set_params(**options).fit(X, y)
    np.testing.assert_array_equal(model.predict(X[:5]), before)


def test_outliers_take_one_output(jumping):
    X, y = jumping
    with pytest.raises(ValueError, match="one output"):
        DSMGPRegressor(structure=ChangePoints(outliers=True)).fit(X, np.column_stack([y, y]))


def test_too_many_rows_at_one_place_are_refused(jumping):
    X, y = jumping
    with pytest.raises(ValueError, match="the same value"):
        DSMGPRegressor(structure="changepoint", leaf_size=9).fit(np.round(X / 3), y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimension": -1}, "dimension"),
        ({"dimension": 1.5}, "dimension"),
        ({"n_changes": 2}, "n_changes"),
        ({"gaps": "even"}, "'equal', 'length'"),
        ({"hazard": 0.0}, "hazard"),
        ({"hazard": 1.5}, "hazard"),
        ({"outliers": "yes"}, "outliers"),
    ],
)
def test_bad_change_points_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ChangePoints(**options)


def test_unknown_inputs_and_levels_are_refused(learned):
    with pytest.raises(ValueError, match="unknown input 't': expected one of 'x0'"):
        learned.split_posterior("t")
    with pytest.raises(ValueError, match=r"0\.\.0"):
        learned.split_posterior(1)
    for level in (0.0, 1.5, -1):
        with pytest.raises(ValueError, match="level"):
            learned.changepoints(level)


def test_a_change_spread_over_gaps_is_one_change():
    edges = np.arange(9.0)
    probability = np.array([0.0, 0.3, 0.35, 0.34, 0.0, 0.0, 0.95, 0.05])
    splits = Splits(edges[:-1], edges[1:], probability, True)
    first, second = splits.change_points(0.5)
    assert (first.position, first.low, first.high) == (2.5, 2.0, 4.0)
    assert first.probability == pytest.approx(0.99)
    assert (second.position, second.probability) == (6.5, pytest.approx(1.0))
    assert len(splits.change_points(0.3)) == 2
    assert splits.within(1.5, 3.0) == pytest.approx(0.15 + 0.35)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, X, y, path: m.partial_fit(X[:2], y[:2]),
        lambda m, X, y, path: m.forget([0]),
        lambda m, X, y, path: m.finetune(),
        lambda m, X, y, path: m.to_gpytorch(),
        lambda m, X, y, path: m.fit(X, y, noise=0.1),
    ],
)
def test_methods_that_change_point_models_do_not_support_are_refused(rng, tmp_path, call):
    X = np.linspace(0, 1, 40)[:, None]
    y = (X[:, 0] > 0.5) + 0.05 * rng.normal(size=40)
    model = DSMGPRegressor("rbf", structure="changepoint", max_iter=3).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="structure='changepoint'"):
        call(model, X, y, tmp_path)
    np.testing.assert_array_equal(model.predict(X), before)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kernel", "max_iter"), [("rbf", None), ("auto", None), ("rbf", 2)])
@pytest.mark.parametrize("shape", ["noise", "walk", "sine"])
def test_where_nothing_changes_no_change_is_listed(shape, kernel, max_iter, rng):
    """Noise alone is no evidence of changes: their expected number stays near the prior's."""
    t, noise = np.arange(100.0), rng.normal(size=100)
    y = {"noise": noise, "walk": np.cumsum(noise), "sine": np.sin(t / 15) + 0.2 * noise}[shape]
    if shape == "walk" and kernel == "rbf":
        pytest.skip("a smooth function has to break to follow it")
    model = DSMGPRegressor(kernel, structure="changepoint", max_iter=max_iter)
    model.fit(t[:, None], y)
    assert model.changepoints(0.5) == []
    assert model.split_posterior().expected < 0.45


@pytest.mark.parametrize("rows", [[20], [20, 60, 100]])
def test_a_row_far_off_is_an_outlier_and_no_segment(rows, rng):
    """However far: the noise of outliers starts as wide as the suspected rows lie."""
    t = np.arange(120.0)
    y = np.sin(t / 15) + 5.0 * (t > 40) - 4.0 * (t > 80) + 0.1 * rng.normal(size=120)
    y[rows] += 8.0
    model = DSMGPRegressor("rbf", structure=ChangePoints(outliers=True)).fit(t[:, None], y)
    assert [change.position for change in model.changepoints(0.5)] == [40.5, 80.5]
    assert np.flatnonzero(model.state_.model.outlier_probability > 0.5).tolist() == rows


@pytest.mark.parametrize("far", [40.0, -9999.0, 1e6])
def test_numbers_that_stand_for_a_missing_value_are_outliers(far, rng):
    """However far they are: units do not follow them."""
    t = np.arange(120.0)
    y = 20.0 + 0.5 * rng.normal(size=120) + 3.0 * (t > 60)
    y[40] = far
    model = DSMGPRegressor("rbf", structure=ChangePoints(outliers=True)).fit(t[:, None], y)
    assert [change.position for change in model.changepoints(0.5)] == [60.5]
    assert np.flatnonzero(model.state_.model.outlier_probability > 0.5).tolist() == [40]
    assert np.sqrt(model.noise_) * model.output_loading_[0, 0] == pytest.approx(0.5, rel=0.2)


def test_a_constant_output_with_an_outlier_is_scaled(rng):
    y = np.zeros(60)
    y[30] = 5.0
    model = DSMGPRegressor("rbf", structure=ChangePoints(outliers=True), max_iter=3)
    assert np.isfinite(model.fit(np.arange(60.0)[:, None], y).predict([[3.0]])).all()


def test_the_summary_counts_changes_as_the_posterior_does(rng):
    space, t = Region.whole(1), np.linspace(0, 1, 50)
    tree = Sum([Leaf(space), ChangePointLeaf(space, changes=ChangePoints(n_changes=1))])
    model = DSMGPRegressor("rbf", structure=tree, max_iter=5)
    model.fit(t[:, None], np.sin(6 * t) + 0.1 * rng.normal(size=50))
    expected = model.split_posterior().expected
    assert expected < 0.9
    assert f"changes         {expected:.2f} expected" in model.summary()


def test_a_stopped_fit_tries_no_more_kernels(rng):
    t = np.arange(80.0)
    y = (t > 40) + 0.1 * rng.normal(size=80)
    y[20] += 5.0
    listener = Listener()
    listener.stop()
    model = DSMGPRegressor(structure=ChangePoints(outliers=True), random_state=0)
    with listening(listener):
        model.fit(t[:, None], y)
    assert len(model.kernel_scores_) == 1
    assert model.n_evaluations_ < 10
    assert np.isfinite(model.predict(t[:, None])).all()


@pytest.mark.parametrize(
    "structure", ["changepoint", ChangePoints(n_changes=1), ChangePoints(outliers=True)], ids=str
)
def test_order_and_units_of_rows_do_not_matter(structure, jumping, rng):
    X, y = jumping[0][::3], jumping[1][::3]
    model = DSMGPRegressor("rbf", structure=structure, max_iter=5)
    mean, std = model.fit(X, y).predict(X, return_std=True)
    order = rng.permutation(len(X))
    predicted = model.fit(X[order], y[order]).predict(X, return_std=True)
    np.testing.assert_allclose(predicted, (mean, std), rtol=1e-6)
    predicted = model.fit(1e5 * X - 3e6, 1e-4 * y + 7.0).predict(1e5 * X - 3e6, return_std=True)
    np.testing.assert_allclose((predicted[0] - 7.0) * 1e4, mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(predicted[1] * 1e4, std, rtol=1e-5)


def test_copies_draw_as_the_model_does(rng):
    """Tables made while drawing are not those of a copy's nodes."""
    X = np.linspace(0, 1, 40)[:, None]
    y = (X[:, 0] > 0.5) + 0.05 * rng.normal(size=40)
    model = DSMGPRegressor("rbf", structure="changepoint", max_iter=3).fit(X, y)
    drawn, covariance = model.sample_y(X[:3], 2), model.predict(X[:3], return_cov=True)[1]
    for duplicate in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(duplicate.sample_y(X[:3], 2), drawn)
        np.testing.assert_array_equal(duplicate.predict(X[:3], return_cov=True)[1], covariance)


def test_a_leaf_without_rows_has_its_prior_covariance(rng):
    X = np.linspace(0, 1, 40)[:, None]
    y = (X[:, 0] > 0.5) + 0.05 * rng.normal(size=40)
    tree = Product([ChangePointLeaf(part) for part in Region.whole(1).split(0, [5.0])], 0, [5.0])
    model = DSMGPRegressor("rbf", structure=tree, max_iter=3).fit(X, y)
    _, std = model.predict([[6.0], [7.0]], return_std=True, include_noise=False)
    _, covariance = model.predict([[6.0], [7.0]], return_cov=True, include_noise=False)
    assert std.min() > 0
    np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-9)


def test_leaves_may_be_ordered_by_name(rng):
    frame = pd.DataFrame({"a": rng.uniform(size=40), "t": np.linspace(0, 1, 40)})
    y = (frame["t"].to_numpy() > 0.5) + 0.05 * rng.normal(size=40)
    tree = ChangePointLeaf(Region.whole(2), changes=ChangePoints(dimension="t"))
    model = DSMGPRegressor("rbf", structure=tree, max_iter=3).fit(frame, y)
    assert abs(model.changepoints(0.5, "t")[0].position - 0.5) < 0.05
    with pytest.raises(ValueError, match="level"):
        model.changepoints("a")


def test_a_cut_at_a_row_lies_left_of_it(rng):
    X = np.arange(20.0)[:, None]
    tree = Product([Leaf(part) for part in Region.whole(1).split(0, [10.0])], 0, [10.0])
    model = DSMGPRegressor("rbf", structure=tree, max_iter=3, weights="posterior")
    splits = model.fit(X, rng.normal(size=20)).split_posterior(0)
    assert (splits.low[0], splits.high[0]) == (9.0, 10.0)


def test_a_structure_set_after_the_fit_is_not_slipped_in(rng):
    X, y = rng.uniform(size=(40, 1)), rng.normal(size=40)
    model = DSMGPRegressor("rbf", leaf_size=20, max_iter=2, random_state=0).fit(X, y)
    model.set_params(structure="changepoint")
    with pytest.raises(ValueError, match="call fit on all rows"):
        model.partial_fit(X, y)
