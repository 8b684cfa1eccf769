"""Rows with values that are not known: the mixture over what they may be, by brute force."""

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.data.rows import N_ALTERNATIVES, Rows
from dsmgp.data.unknown_inputs import mean_at, mixture_at, moments_at

pytestmark = pytest.mark.filterwarnings("ignore:column:UserWarning")
N = 120


def table(rng, n=N):
    return pd.DataFrame(
        {
            "x": rng.uniform(-2, 2, n),
            "c": rng.choice(["u", "v", "w"], n),
            "shop": [f"s{k}" for k in rng.integers(0, 12, n)],
        }
    )


@pytest.fixture(scope="module", params=["one output", "warped", "two outputs"])
def fitted(request):
    rng = np.random.default_rng(0)
    frame = table(rng)
    y = np.sin(2 * frame["x"]) + 2.0 * (frame["c"] == "u") + 0.1 * rng.normal(size=N)
    options = {"output_warp": "log"} if request.param == "warped" else {}
    Y = np.column_stack([y, frame["x"]]) if request.param == "two outputs" else np.exp(y)
    model = DSMGPRegressor("rbf", leaf_size=40, max_iter=5, random_state=0, **options)
    return model.fit(frame, Y)


@pytest.fixture
def new(rng):
    """Known rows, one with a new level, one with a missing number, one with both and a missing level."""
    frame = table(rng, 6)
    frame.loc[[1, 4], "c"] = "new"
    frame.loc[[2, 4], "x"] = np.nan
    frame.loc[4, "shop"] = None
    return frame


@pytest.mark.parametrize("include_noise", [True, False])
def test_the_mixture_is_the_average_over_the_alternatives(fitted, new, include_noise):
    model, rows = fitted.state_.model, fitted.state_.schema.to_rows(new)
    np.testing.assert_array_equal(rows.uncertain, [1, 2, 4])
    mixture = mixture_at(model, rows, include_noise, squeeze=False)
    known = model.mixture(rows.X, include_noise, squeeze=False)
    np.testing.assert_allclose(mixture.mean[[0, 3, 5]], known.mean[[0, 3, 5]], rtol=1e-10)
    at = mixture.mean + 0.3 * mixture.std
    for row, possible in zip(rows.uncertain, rows.possible(rows.uncertain), strict=True):
        parts = [model.mixture(x[None], include_noise, squeeze=False) for x in possible]
        densities = np.array([np.exp(part.logpdf(at[[row]])) for part in parts])
        np.testing.assert_allclose(
            np.exp(mixture.logpdf(at))[row], densities.mean(axis=0)[0], rtol=1e-5, atol=1e-100
        )
        means = np.array([part.mean[0] for part in parts])
        variances = np.array([part.var[0] for part in parts])
        np.testing.assert_allclose(mixture.mean[row], means.mean(axis=0), rtol=1e-8)
        np.testing.assert_allclose(
            mixture.var[row], variances.mean(axis=0) + means.var(axis=0), rtol=1e-6
        )
        assert means.std(axis=0).max() > 0  # the alternatives differ


@pytest.mark.parametrize("include_noise", [True, False])
def test_moments_and_means_are_those_of_the_mixture(fitted, new, include_noise):
    model, rows = fitted.state_.model, fitted.state_.schema.to_rows(new)
    mixture = mixture_at(model, rows, include_noise, squeeze=False)
    mean, std = moments_at(model, rows, include_noise)
    np.testing.assert_allclose(mean, mixture.mean, rtol=1e-7)
    np.testing.assert_allclose(std, mixture.std, rtol=1e-6)
    if include_noise:
        np.testing.assert_allclose(mean_at(model, rows), mixture.mean, rtol=1e-7)


def test_the_estimator_predicts_the_mixture(fitted, new):
    mixture = mixture_at(fitted.state_.model, fitted.state_.schema.to_rows(new))
    mean, std = fitted.predict(new, return_std=True)
    np.testing.assert_allclose(mean, mixture.mean, rtol=1e-7)
    np.testing.assert_allclose(std, mixture.std, rtol=1e-6)
    np.testing.assert_allclose(fitted.predict(new), mixture.mean, rtol=1e-7)
    quantiles = fitted.predict(new, quantiles=[0.1, 0.9])
    expected = np.moveaxis(mixture.quantile(np.array([0.1, 0.9])), 0, -1)
    np.testing.assert_allclose(quantiles, expected, rtol=1e-6)


def test_a_row_is_predicted_alone_as_among_others(fitted, new):
    both = fitted.predict(new, return_std=True)
    for row in range(len(new)):
        for alone, among in zip(
            fitted.predict(new[row : row + 1], return_std=True), both, strict=True
        ):
            np.testing.assert_allclose(alone[0], among[row], rtol=1e-7)


def test_alternatives_are_values_of_the_training_rows(fitted, new):
    schema = fitted.state_.schema
    rows, levels = schema.to_rows(new), schema.columns.columns[1].level_inputs[:-1]
    by_name = dict(schema.groups)
    possible = rows.possible(np.array([4]))[0]
    assert possible.shape == (N_ALTERNATIVES, len(schema.input_names))
    assert {tuple(x) for x in possible[:, by_name["c"]]} == {tuple(x) for x in levels}
    np.testing.assert_allclose(
        np.sort(possible[:, by_name["x"]][:, 0]), schema.columns.columns[0].quantiles
    )
    # High values of one column do not go with high values of another.
    x, effect = possible[:, by_name["x"][0]], possible[:, by_name["shop"][-1]]
    assert abs(np.corrcoef(x, effect)[0, 1]) < 0.8


def test_an_unknown_level_widens_the_distribution_where_it_matters(rng):
    frame = pd.DataFrame({"x": rng.normal(size=200), "c": rng.choice(["u", "v"], 200)})
    y = 5.0 * (frame["c"] == "u") + 0.1 * rng.normal(size=200)
    model = DSMGPRegressor("rbf", max_iter=15, random_state=0).fit(frame, y)
    with pytest.warns(
        UserWarning, match="'c': 1 row with levels that the training rows do not have .*'w'"
    ):
        mean, std = model.predict(pd.DataFrame({"x": [0.0], "c": ["w"]}), return_std=True)
    assert mean[0] == pytest.approx(2.5, abs=0.2)
    assert std[0] == pytest.approx(2.5, abs=0.2)
    with pytest.warns(UserWarning, match="'x': 1 missing"):
        _, std = model.predict(pd.DataFrame({"x": [np.nan], "c": ["u"]}), return_std=True)
    assert std[0] < 0.3


def test_tables_joined_are_predicted_as_each_alone(fitted, new):
    schema, model = fitted.state_.schema, fitted.state_.model
    parts = [schema.to_rows(new[:2]), schema.to_rows(new[2:3]), schema.to_rows(new[3:])]
    joined = Rows.joined(parts)
    np.testing.assert_array_equal(joined.uncertain, [1, 2, 4])
    expected = np.concatenate([mean_at(model, part) for part in parts])
    np.testing.assert_allclose(mean_at(model, joined), expected, rtol=1e-7)


def test_joint_predictions_have_the_moments_of_the_mixture(fitted, new):
    distribution = fitted.predict_dist(new)
    mean, covariance = fitted.predict(new, return_cov=True)
    np.testing.assert_allclose(mean, distribution.mean, rtol=1e-6)
    variance = np.einsum("ii...->i...", covariance)
    np.testing.assert_allclose(variance, distribution.var, rtol=1e-5)
    drawn = fitted.sample_y(new, 8000, include_noise=True)
    np.testing.assert_allclose(drawn.mean(axis=-1), mean, atol=0.15 * distribution.std.max())
    np.testing.assert_allclose(drawn.std(axis=-1), distribution.std, rtol=0.15)


def test_noise_is_that_of_the_mixture(fitted, new):
    # Of y beyond f, where outputs are not warped: there the two are nonlinear.
    if fitted.output_warp is None or fitted.output_warp == "auto":
        of_y, of_f = (fitted.predict_dist(new, noisy).var for noisy in (True, False))
        np.testing.assert_allclose(fitted.noise_at(new), of_y - of_f, rtol=1e-4, atol=1e-9)
    rows = fitted.state_.schema.to_rows(new)
    possible = rows.possible(np.array([4]))[0]
    each = fitted.state_.predictive.noise_at(possible)
    np.testing.assert_allclose(
        np.reshape(fitted.noise_at(new)[4], -1), each.mean(axis=0), rtol=1e-8
    )


def test_missing_levels_are_refused_like_missing_numbers(rng):
    frame = table(rng)
    model = DSMGPRegressor("rbf", max_iter=2, missing="error", random_state=0)
    model.fit(frame, frame["x"])
    for column in ("x", "c"):
        gap = frame[:3].copy()
        gap.loc[1, column] = None
        with pytest.raises(ValueError, match=f"column '{column}' has no value in row 1"):
            model.predict(gap)
    assert model.predict(frame[:3].assign(c="new")).shape == (3,)
