"""Weights of rows, from ``fit`` to model files: whole ones are repetition, and weight zero leaves a row out."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dsmgp import DSMGPRegressor
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.loo import Components
from dsmgp.fitting.selection.candidate_scores import RowScores
from dsmgp.gp.periods import dominant_periods
from dsmgp.gp.transforms.coordinates import InputWarp
from dsmgp.gp.transforms.output_warp import normal_scores
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.mixture.weights.gating import GateObjective
from dsmgp.tree.changepoint_leaf import ChangePoints
from tests.fitting.test_updates import all_at_once, same


def table(rng, n=24, n_outputs=1):
    """Rows, some with the inputs of others, and whole weights, some of them zero."""
    X = rng.normal(size=(n, 2))
    X[-5:] = X[:5]
    Y = np.sin(2 * X[:, :1]) + 0.3 * rng.normal(size=(n, n_outputs)) + rng.normal(size=(n, 1))
    weights = rng.integers(0, 4, size=n)
    weights[:3] = [0, 2, 3]
    return X, Y if n_outputs > 1 else Y[:, 0], weights


def same_models(weighted, repeated, X, rtol=1e-6):
    found, expected = (model.predict(X, return_std=True) for model in (weighted, repeated))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)
    for name in ("log_marginal_likelihood_", "loo_score_", "loo_score_new_inputs_"):
        one, other = (getattr(model, name) for model in (weighted, repeated))
        assert one == pytest.approx(other, rel=rtol, abs=rtol), name


@pytest.mark.parametrize("options", [
    {},
    {"kernel": "rq"},
    {"kernel": "periodic"},
    {"weights": "posterior", "mean": "linear"},
    {"structure": "paper", "weights": "uniform", "kernel": "rbf"},
    {"kernel": "matern12", "objective": "full"},
    {"kernel": "rbf", "standardize": False, "optimizer": "adam", "max_iter": 20},
    {"kernel": "matern32", "input_warp": "both"},
    {"kernel": "rbf", "metric": "full"},
    {"kernel": "matern52", "local_scale": False},
])  # fmt: skip
def test_whole_weights_are_repetition(rng, options):
    X, y, weights = table(rng)
    rows = np.repeat(np.arange(len(X)), weights)
    settings = {"leaf_size": 300, "random_state": 0, "max_iter": 15} | options
    weighted = DSMGPRegressor(**settings).fit(X, y, sample_weight=weights)
    repeated = DSMGPRegressor(**settings).fit(X[rows], y[rows])
    same_models(weighted, repeated, rng.normal(size=(20, 2)))


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_whole_weights_are_repetition_with_known_noise_and_several_outputs(rng, n_outputs):
    X, y, weights = table(rng, n_outputs=n_outputs)
    rows = np.repeat(np.arange(len(X)), weights)
    settings = {"leaf_size": 300, "random_state": 0, "max_iter": 15}
    for noise in (None, rng.uniform(0, 0.3, size=len(X))):
        weighted = DSMGPRegressor(**settings).fit(X, y, noise, weights)
        of_rows = None if noise is None else noise[rows]
        repeated = DSMGPRegressor(**settings).fit(X[rows], y[rows], of_rows)
        same_models(weighted, repeated, rng.normal(size=(20, 2)))


@pytest.mark.parametrize("warp", ["rank", "log", "positive"])
def test_whole_weights_are_repetition_under_output_warps(rng, warp):
    X, y, weights = table(rng, 40)
    rows = np.repeat(np.arange(len(X)), weights)
    settings = {"leaf_size": 300, "random_state": 0, "output_warp": warp, "kernel": "matern32"}
    weighted = DSMGPRegressor(**settings).fit(X, np.exp(y), sample_weight=weights)
    same_models(weighted, DSMGPRegressor(**settings).fit(X[rows], np.exp(y[rows])), X)


def test_whole_weights_are_repetition_where_coordinates_are_chosen(rng, monkeypatch):
    """In one leaf, which has to learn and to judge."""
    monkeypatch.setattr("dsmgp.fitting.selection.coordinates.LEAST_ROWS", 20)
    X, y, weights = table(rng, 60)
    X, y = np.exp(2 * X), np.exp(y)
    rows = np.repeat(np.arange(len(X)), weights)
    settings = {"leaf_size": 300, "random_state": 0, "kernel": "matern32"}
    weighted = DSMGPRegressor(**settings).fit(X, y, sample_weight=weights)
    repeated = DSMGPRegressor(**settings).fit(X[rows], y[rows])
    assert weighted.state_.search.gains.keys() == repeated.state_.search.gains.keys()
    same_models(weighted, repeated, X, rtol=1e-4)


def test_weights_divide_the_noise_variance(rng):
    """The precision of a leaf at one input, for weights that are not whole."""
    X, y = np.zeros((3, 1)), np.array([0.0, 1.0, 3.0])
    weights = np.array([0.5, 1.5, 0.25])
    model = DSMGPRegressor(
        "rbf", noise_variance=0.2, optimizer=None, standardize=False, weights="posterior"
    ).fit(X, y, sample_weight=weights)
    precision = weights.sum() / model.noise_
    prior = 1.0 / model.kernel_.outputscale
    mean, std = model.predict([[0.0]], return_std=True)
    assert mean[0] == pytest.approx(
        precision * np.average(y, weights=weights) / (prior + precision)
    )
    assert std[0] ** 2 == pytest.approx(1.0 / (prior + precision) + model.noise_)


def test_weights_of_one_are_none_to_the_last_bit(wavy):
    X, y = wavy
    settings = {"leaf_size": [30, 60], "kernel": "matern32", "max_iter": 5, "random_state": 0}
    plain = DSMGPRegressor(**settings).fit(X, y)
    ones = DSMGPRegressor(**settings).fit(X, y, sample_weight=np.ones(len(X)))
    np.testing.assert_array_equal(
        ones.predict(X, return_std=True), plain.predict(X, return_std=True)
    )
    assert ones.loo_score_ == plain.loo_score_


def test_rows_without_weight_are_left_out_and_numbers_are_positions(rng):
    X, y, _ = table(rng, 30)
    weights = np.ones(30)
    weights[[0, 7, 29]] = 0.0
    settings = {"kernel": "rbf", "random_state": 0, "max_iter": 5}
    model = DSMGPRegressor(**settings).fit(X, y, sample_weight=weights)
    kept = np.flatnonzero(weights)
    np.testing.assert_array_equal(model.row_ids_, kept)
    plain = DSMGPRegressor(**settings).fit(X[kept], y[kept])
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    model.partial_fit(X[:4], y[:4], adapt=False, sample_weight=[0, 1, 0, 0])
    np.testing.assert_array_equal(model.row_ids_, [*kept, 31])
    model.partial_fit(X[:1], y[:1], adapt=False)
    np.testing.assert_array_equal(model.row_ids_[-2:], [31, 34])
    model.forget([31, 34], adapt=False)
    np.testing.assert_allclose(model.predict(X), plain.predict(X), rtol=1e-7)


def test_rows_without_weight_do_not_shape_the_effects_of_levels(rng):
    codes = rng.integers(0, 12, 120)
    X = pd.DataFrame({"c": [f"l{k}" for k in codes], "x": rng.normal(size=120)})
    y, weights = np.arange(12.0)[codes] + rng.normal(size=120), np.ones(120)
    weights[::3], y[::3] = 0.0, -50.0 * codes[::3]
    X.loc[0, "c"] = "another"
    settings = {"kernel": "rbf", "random_state": 0, "max_iter": 2, "hypotheses": None}
    model = DSMGPRegressor(**settings).fit(X, y, sample_weight=weights)
    kept = np.flatnonzero(weights)
    np.testing.assert_array_equal(model.row_ids_, kept)
    plain = DSMGPRegressor(**settings).fit(X.iloc[kept], y[kept])
    assert model.state_.schema.input_names == plain.state_.schema.input_names
    np.testing.assert_array_equal(model.predict(X[1:]), plain.predict(X[1:]))


def with_weights(model, X, y, noise, weights, monkeypatch):
    """What :func:`all_at_once` conditions, with weights."""
    import tests.fitting.test_updates as updates

    monkeypatch.setattr(updates, "LeafData", partial(LeafData, row_weights=weights))
    return all_at_once(model, X, y, noise)


def test_updates_condition_on_weighted_rows(rng, monkeypatch):
    X = rng.uniform(-2, 2, size=(150, 2))
    X[110:130] = X[:20]
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=150)
    weights, noise = rng.choice([0.3, 1.0, 2.0], size=150), rng.uniform(0, 0.1, size=150)
    settings = {"leaf_size": [25, 50], "kernel": "matern32", "max_iter": 8, "random_state": 0}
    model = DSMGPRegressor(**settings).fit(X[:100], y[:100], noise[:100], weights[:100])
    model.partial_fit(X[100:], y[100:], noise[100:], adapt=False, sample_weight=weights[100:])
    gone = [0, 5, 105, 149]
    model.forget(gone, adapt=False)
    left = np.delete(np.arange(150), gone)
    expected = with_weights(model, X[left], y[left], noise[left], weights[left], monkeypatch)
    same(model, expected, X[:30])
    before = model.predict(X, return_std=True), model.log_marginal_likelihood_
    assert np.isfinite(model.loo_score_)  # all leaves are conditioned again
    np.testing.assert_allclose(model.predict(X, return_std=True), before[0], rtol=1e-7)
    assert model.log_marginal_likelihood_ == pytest.approx(before[1], rel=1e-9)


def test_a_fit_that_falls_due_has_the_weights(rng):
    X, y, weights = table(rng, 40)
    weights = weights + 0.5
    settings = {"kernel": "rbf", "random_state": 0, "leaf_size": 300, "max_iter": 10}
    model = DSMGPRegressor(**settings).fit(X[:20], y[:20], sample_weight=weights[:20])
    model.partial_fit(X[20:], y[20:], sample_weight=weights[20:])
    assert model.adapted_[-1].startswith("fitted again on 40 rows")
    whole = DSMGPRegressor(**settings).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


def test_model_files_keep_the_weights(rng, tmp_path):
    X, y, weights = table(rng, 60)
    model = DSMGPRegressor("rbf", leaf_size=[20, 40], random_state=0, max_iter=5)
    model.fit(X, y, sample_weight=weights).save(tmp_path / "m.dsmgp")
    read = DSMGPRegressor.load(tmp_path / "m.dsmgp")
    np.testing.assert_array_equal(read.state_.rows.weights, model.state_.rows.weights)
    np.testing.assert_array_equal(read.row_ids_, model.row_ids_)
    for one, other in zip(
        read.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert read.log_marginal_likelihood_ == pytest.approx(model.log_marginal_likelihood_)
    for each in (read, model):
        each.forget([1, 2], adapt=False)
    np.testing.assert_allclose(read.predict(X), model.predict(X), rtol=1e-8)


def test_fine_tuning_is_that_of_repeated_rows(rng):
    X, y, weights = table(rng, 30)
    rows = np.repeat(np.arange(len(X)), weights)
    settings = {"leaf_size": 300, "kernel": "matern32", "random_state": 0}
    for parameters in ("noise", "all"):
        weighted = DSMGPRegressor(**settings).fit(X, y, sample_weight=weights)
        repeated = DSMGPRegressor(**settings).fit(X[rows], y[rows])
        for model in (weighted, repeated):
            model.finetune(parameters=parameters, max_iter=5)
        same_models(weighted, repeated, X, rtol=1e-5)


def test_an_exported_leaf_predicts_the_same(rng):
    pytest.importorskip("gpytorch")
    import torch

    X, y, weights = table(rng, 30)
    model, tests = DSMGPRegressor("rbf", random_state=0, standardize=False), X + 0.1
    for noise in (None, np.linspace(0, 0.2, 30)):
        model.fit(X, y, noise, weights + 0.25)
        exported = model.to_gpytorch()(torch.from_numpy(tests))
        mean, covariance = model.state_.model.leaf_posterior.joint(0, tests)
        np.testing.assert_allclose(exported.mean.detach().numpy(), mean[:, 0], rtol=1e-6, atol=1e-6)
        found = exported.covariance_matrix.detach().numpy()
        np.testing.assert_allclose(found, covariance[0], rtol=1e-4, atol=1e-6)


def test_scaling_and_ranks_are_those_of_repeated_rows(rng):
    Y, weights = rng.lognormal(size=(40, 3)), rng.integers(1, 4, size=40).astype(float)
    Y[20:23] = Y[:3]
    R = Y[np.repeat(np.arange(40), weights.astype(int))]
    for found, expected in (
        (InputScaling.of(Y, True, row_weights=weights), InputScaling.of(R, True)),
        (OutputScaling.of(Y, True, (), weights), OutputScaling.of(R, True)),
        (OutputScaling.chained(Y, True, [2, 0, 1], (), weights), OutputScaling.chained(R, True, [2, 0, 1])),
    ):  # fmt: skip
        np.testing.assert_allclose(found.to_experts(Y), expected.to_experts(Y), rtol=1e-10)
    rotated = OutputScaling.rotated(Y, True, (), weights), OutputScaling.rotated(R, True)
    # The sign of a component is arbitrary.
    np.testing.assert_allclose(*(np.square(each.to_experts(Y)) for each in rotated), rtol=1e-8)
    warps = normal_scores(Y[:, 0], weights=weights), normal_scores(R[:, 0])
    np.testing.assert_allclose(*(warp.to_latent(Y[:, 0]) for warp in warps), rtol=1e-10)
    warps = InputWarp.normal_scores(Y[:, 0], weights), InputWarp.normal_scores(R[:, 0])
    np.testing.assert_allclose(*(warp(Y[:, 0]) for warp in warps), rtol=1e-10)
    assert normal_scores(Y[:, 0], weights=1e-6 * weights) is not None
    np.testing.assert_allclose(
        dominant_periods(Y[:, 1:], Y[:, 0], weights),
        dominant_periods(R[:, 1:], R[:, 0]),
        rtol=1e-10,
    )


def test_scores_of_candidates_are_those_of_repeated_rows(rng):
    weights = rng.integers(1, 4, size=20)
    losses, errors = rng.normal(size=(2, 2, 20)), rng.uniform(size=(2, 2, 20, 1))
    rows = np.repeat(np.arange(20), weights)
    one, other = (
        RowScores(a, b, weights.astype(float)) for a, b in zip(losses, errors, strict=True)
    )
    many = [RowScores(a[:, rows], b[:, rows]) for a, b in zip(losses, errors, strict=True)]
    np.testing.assert_allclose(one.gain_over(other), many[0].gain_over(many[1]), rtol=1e-10)


@pytest.mark.parametrize("known", [False, True])
def test_the_gate_is_that_of_repeated_rows(rng, known):
    n, k = 20, 3
    weights = rng.integers(1, 4, size=n)
    rows = np.repeat(np.arange(n), weights)
    components = Components(np.tile(np.arange(k), (n, 1)), rng.normal(size=(n, k, 2)), rng.uniform(0.2, 2, (n, k, 2)))  # fmt: skip
    scale = rng.uniform(0.5, 2, (n, k, 2))
    tables = (
        np.log(np.full((n, k), 1 / k)), np.log(components.variance).sum(-1), np.log(scale).sum(-1),
        rng.normal(size=(n, 1, 2)) - components.mean, components.variance * scale,
    )  # fmt: skip
    noise = rng.choice([0.0, 0.1, 5.0], size=(n, 2)) if known else None
    weighted = GateObjective(*tables, 3, noise, weights.astype(float))
    repeated = GateObjective(*(t[rows] for t in tables), 3, None if noise is None else noise[rows])
    theta = rng.normal(size=7)
    for one, other in zip(weighted.score(theta), repeated.score(theta), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    gradient = weighted.score(theta)[1]
    for j, step in enumerate(1e-6 * np.eye(7)):
        numeric = (weighted.score(theta + step)[0] - weighted.score(theta - step)[0]) / 2e-6
        assert gradient[j] == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize(("weights", "message"), [
    (np.r_[np.ones(119), -1.0], r"or 0 to leave a row out, got -1 in row 119; .* negative"),
    (np.r_[np.ones(119), 1e-200], r"from 1e-100 to 1e\+100.*1e-200 in row 119; rescale"),
    (np.r_[np.nan, np.ones(119)], "sample_weight contains NaN in row 0"),
    (np.zeros(120), "at least 2 rows with a weight above zero"),
    (np.r_[1.0, np.zeros(119)], "at least 2 rows with a weight above zero"),
    (np.ones(7), r"one weight for each of the 120 rows, got shape \(7,\)"),
    (np.ones((120, 1)), r"one weight for each of the 120 rows, got shape \(120, 1\)"),
    (["a"] * 120, "sample_weight"),
])  # fmt: skip
def test_bad_weights_are_refused_and_nothing_changes(wavy, weights, message):
    X, y = wavy
    model = DSMGPRegressor(leaf_size=60, kernel="rbf", max_iter=3, random_state=0).fit(X, y)
    before = model.predict(X[:5])
    with pytest.raises(ValueError, match=message):
        model.fit(X, y, sample_weight=weights)
    if (np.ravel(weights) != 1.0).sum() != 119:  # a single new row may be all there is
        with pytest.raises(ValueError, match=message.replace("2 rows", "1 row")):
            model.partial_fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(model.predict(X[:5]), before)


@pytest.mark.parametrize("structure", ["changepoint", ChangePoints(outliers=True)])
def test_change_points_refuse_weights(wavy, structure):
    X, y = wavy
    with pytest.raises(
        ValueError,
        match=r"sample_weight is not available with structure='changepoint'.*repeat rows",
    ):
        DSMGPRegressor(structure=structure).fit(X, y, sample_weight=np.full(len(X), 2.0))


def test_weights_are_routed_through_pipelines_and_cross_validation(wavy):
    X, y = wavy
    weights = np.where(np.arange(len(X)) % 2, 1.0, 0.25)
    with config_context(enable_metadata_routing=True):
        model = DSMGPRegressor("rbf", leaf_size=60, max_iter=3, random_state=0)
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        pipeline = make_pipeline(scaler, model)
        result = cross_validate(
            pipeline, X, y, cv=3, params={"sample_weight": weights}, return_estimator=True,
            return_indices=True,
        )  # fmt: skip
    for k, fitted in enumerate(result["estimator"]):
        train, test = (result["indices"][part][k] for part in ("train", "test"))
        np.testing.assert_array_equal(fitted[-1].state_.rows.weights, weights[train])
        expected = r2_score(y[test], fitted.predict(X[test]), sample_weight=weights[test])
        assert result["test_score"][k] == pytest.approx(expected)
