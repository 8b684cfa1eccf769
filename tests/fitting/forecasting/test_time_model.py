"""Tables with a time: structure is taken where it forecasts better, and nowhere else."""

import copy

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor, load
from dsmgp.tree.nodes import leaves


def series(n, rng):
    t = np.arange(float(n))
    y = 0.05 * t + np.sin(2 * np.pi * t / 12) + 0.1 * rng.normal(size=n)
    return t, y


@pytest.fixture(scope="module")
def fitted():
    t, y = series(120, np.random.default_rng(0))
    return DSMGPRegressor(random_state=0).fit(t[:80, None], y[:80]), t, y


def test_a_trend_and_a_season_go_on_beyond_the_data(fitted):
    model, t, y = fitted
    forecast = model.predict_dist(t[80:, None])
    assert (
        np.abs(forecast.mean - y[80:]).mean() < 0.25
    )  # the season's amplitude is 1, the trend rises by 2
    low, high = forecast.interval(0.9)
    assert ((y[80:] >= low) & (y[80:] <= high)).mean() > 0.7
    lines = model.summary().splitlines()
    (time,) = (line for line in lines if line.startswith("time "))
    assert "seasons of period 12" in time
    assert any(line.startswith("rolling origin") and "nats per row" in line for line in lines)
    assert "rbf*periodic" in model.kernel_.name
    assert model.kernel_scores_["matern32"] == 0.0 > min(model.kernel_scores_.values())


def test_one_leaf_is_an_exact_gp_with_the_kernel_that_was_chosen(fitted):
    model, t, y = fitted
    assert len(model.tree_.children if hasattr(model.tree_, "children") else [model.tree_]) == 1
    inputs, outputs = model.state_.model.inputs, model.state_.model.outputs
    X, Z = inputs.to_experts(t[:80, None]), inputs.to_experts(t[80:, None])
    z = outputs.to_experts(y[:80, None])[:, 0]
    K = model.kernel_(X) + model.noise_ * np.eye(80)
    mean = outputs.from_experts((model.kernel_(Z, X) @ np.linalg.solve(K, z))[:, None])[:, 0]
    np.testing.assert_allclose(model.predict(t[80:, None]), mean, rtol=1e-6, atol=1e-6)
    evidence = -0.5 * (z @ np.linalg.solve(K, z) + np.linalg.slogdet(2 * np.pi * K)[1])
    found = model.log_marginal_likelihood_ + 80 * outputs.log_det
    assert found == pytest.approx(evidence, rel=1e-8)


def test_saving_and_loading_changes_nothing(fitted, tmp_path):
    model, t, _ = fitted
    model.save(tmp_path / "series.dsmgp")
    again = load(tmp_path / "series.dsmgp")
    np.testing.assert_array_equal(again.predict(t[:, None]), model.predict(t[:, None]))
    assert again.summary() == model.summary()
    assert again.kernel_ == model.kernel_


def test_neither_the_order_of_rows_nor_the_seed_matters(fitted):
    model, t, y = fitted
    order = np.random.default_rng(1).permutation(80)
    other = DSMGPRegressor(random_state=5).fit(t[order, None], y[order])
    assert other.loo_score_ == pytest.approx(model.loo_score_, abs=0.05)
    np.testing.assert_allclose(other.predict(t[80:, None]), model.predict(t[80:, None]), atol=0.1)


def test_rows_without_structure_are_fitted_as_before(rng):
    t = np.arange(60.0)
    y = rng.normal(size=60)
    model = DSMGPRegressor(random_state=0).fit(t[:, None], y)
    assert not any(note.startswith("time") for note in model.state_.search.notes)
    assert set(model.kernel_scores_) == {"rbf", "matern12", "matern32", "matern52"}


def test_a_date_beside_other_inputs_does_not_spoil_them():
    rng = np.random.default_rng(2)
    days = pd.date_range("2018-01-01", periods=240, freq="D")
    a = rng.normal(size=240)
    y = np.sin(2 * a) + 0.3 * np.cumsum(rng.normal(size=240)) / 4 + 0.1 * rng.normal(size=240)
    frame = pd.DataFrame({"day": days, "a": a})
    model = DSMGPRegressor(random_state=0).fit(frame[:180], y[:180])
    without = DSMGPRegressor(random_state=0).fit(frame[["a"]][:180], y[:180])
    errors = [
        np.square(each.predict(table[180:]) - y[180:]).mean()
        for each, table in ((model, frame), (without, frame[["a"]]))
    ]
    assert errors[0] < errors[1] + 0.1 * np.var(y[180:])


@pytest.mark.parametrize(
    "settings", [{"kernel": "rbf"}, {"mean": "zero"}, {"leaf_size": 50}, {"weights": "posterior"}]
)
def test_what_the_user_asks_for_is_not_replaced(fitted, settings):
    _, t, y = fitted
    model = DSMGPRegressor(random_state=0, max_iter=3, **settings).fit(t[:80, None], y[:80])
    assert not any(note.startswith("time") for note in model.state_.search.notes)


def test_positive_growth_is_that_of_the_logarithm(rng):
    t = np.arange(100.0)
    y = np.exp(0.04 * t + 0.3 * np.sin(2 * np.pi * t / 12) + 0.05 * rng.normal(size=100))
    model = DSMGPRegressor(random_state=0).fit(t[:75, None], y[:75])
    assert "logarithm" in "".join(model.state_.search.notes)
    assert (model.predict_dist(t[75:, None]).interval(0.9)[0] > 0).all()
    assert np.abs(np.log(model.predict(t[75:, None]) / y[75:])).mean() < 0.3
    kept = DSMGPRegressor(output_warp=None, random_state=0).fit(t[:75, None], y[:75])
    assert "logarithm" not in "".join(kept.state_.search.notes)


# Rows that come later


@pytest.fixture(scope="module")
def growing():
    """A model of the logarithm of an output that grows by a constant factor, which the fit has chosen by itself."""
    t = np.arange(60.0)
    y = np.exp(0.06 * t + 0.05 * np.random.default_rng(0).normal(size=60))
    model = DSMGPRegressor(random_state=0).fit(t[:, None], y)
    assert "of the logarithm of the output" in model.summary()
    return model


def test_an_output_without_logarithm_takes_a_fit_without_it(growing):
    model = copy.deepcopy(growing)
    model.partial_fit([[60.0], [61.0], [62.0]], [37.0, -5.0, 41.0])
    (step,) = model.adapted_
    assert step.startswith("fitted again on 62 rows, as the logarithm of the output was modelled")
    assert "of the logarithm of the output" not in model.summary()
    np.testing.assert_array_equal(model.row_ids_, np.arange(63))
    one_by_one = copy.deepcopy(growing)
    for t, y in ((60.0, 37.0), (61.0, -5.0), (62.0, 41.0)):
        one_by_one.partial_fit([[t]], [y])
    np.testing.assert_allclose(one_by_one.predict([[63.0]]), model.predict([[63.0]]), rtol=1e-9)


def test_without_maintenance_an_output_without_logarithm_is_refused_with_the_reason(growing):
    with pytest.raises(ValueError, match="got -5 in row 1: the fit chose to model their logarithm"):
        growing.partial_fit([[60.0], [61.0]], [37.0, -5.0], adapt=False)
    assert len(growing.row_ids_) == 60


def test_reviews_do_not_cut_the_leaf_of_a_series(fitted):
    model, _, _ = fitted
    # Half as many rows again and more, from where on other leaves are cut.
    extended = copy.deepcopy(model).partial_fit(
        np.arange(80.0, 130.0)[:, None], np.sin(np.arange(80.0, 130.0))
    )
    assert len(extended.adapted_) == 3
    assert all(step.endswith(" 0 leaves cut") for step in extended.adapted_)
    assert len(list(leaves(extended.tree_))) == 1


def test_months_by_date_are_months_by_number(rng, tmp_path):
    """Months have 28 to 31 days, which is nothing to a series in months."""
    t = np.arange(84)
    y = 0.05 * t + np.sin(2 * np.pi * t / 12) + 0.1 * rng.normal(size=84)
    as_dates = pd.DataFrame({"t": pd.date_range("2013-01-01", periods=84, freq="MS")})
    forecasts = []
    for table in (as_dates, (2013 + t / 12)[:, None]):
        model = DSMGPRegressor(random_state=0).fit(table[:60], y[:60])
        assert any(note.startswith("time") for note in model.state_.search.notes)
        forecasts.append(model.predict_dist(table[60:]))
        model.save(tmp_path / "model.dsmgp")
        again = load(tmp_path / "model.dsmgp").predict(table[60:])
        np.testing.assert_allclose(again, forecasts[-1].mean, rtol=1e-9)
    np.testing.assert_allclose(forecasts[0].mean, forecasts[1].mean, atol=0.01)
    np.testing.assert_allclose(forecasts[0].std, forecasts[1].std, rtol=0.02)
