"""Fits of warped outputs: errors in the user's terms, online updates, rows in files, fine-tuning, and plots."""

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor, load
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.datasets import fit as dataset
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.transforms.output_warp import LogWarp, normal_scores
from dsmgp.gp.transforms.scaling import OutputScaling

OPTIONS = {"leaf_size": [25, 50], "kernel": "matern32", "max_iter": 5, "random_state": 0}
WARPS = ("rank", "log", "positive")


@pytest.fixture
def skewed(rng):
    X = rng.uniform(-2, 2, size=(200, 2))
    return X, np.exp(np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.normal(size=200))


def same(one, other, X):
    assert one.log_marginal_likelihood_ == pytest.approx(other.log_marginal_likelihood_, rel=1e-8)
    assert one.loo_score_ == pytest.approx(other.loo_score_, abs=1e-7)
    for a, b in zip(
        one.predict(X, return_std=True), other.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)


# Data and scaling


def test_latents_are_what_is_scaled(skewed):
    X, y = skewed
    data = ScaledRows.of(X, y[:, None], FitConfig(output_warp="log"))
    t = np.log(y)
    np.testing.assert_allclose(data.scaled_Y[:, 0], (t - t.mean()) / t.std())
    given = ScaledRows.of(X, y[:, None], FitConfig(), warps=[normal_scores(y, 0.5)])
    assert given.outputs.warps[0].strength == 0.5
    assert ScaledRows.of(X, y[:, None], FitConfig(output_warp="log"), warps=()).outputs.warps == ()


@pytest.mark.parametrize("make", ["of", "rotated", "chained"])
def test_scalings_of_warped_outputs_are_those_of_latents(rng, make):
    T = rng.normal(size=(50, 2)) @ [[1.0, 0.7], [0.0, 1.0]]
    options = {"order": [1, 0]} if make == "chained" else {}
    warps = [LogWarp(), None]
    Y = np.column_stack([np.exp(T[:, 0]), T[:, 1]])
    plain = getattr(OutputScaling, make)(T, True, **options)
    warped = getattr(OutputScaling, make)(Y, True, **options, warps=warps)
    np.testing.assert_allclose(warped.loading, plain.loading)
    Z = warped.to_experts(Y)
    np.testing.assert_allclose(Z, plain.to_experts(T), atol=1e-12)
    np.testing.assert_allclose(warped.from_experts(Z), Y)
    assert warped.log_jacobian(Y) == pytest.approx(-T[:, 0].sum())
    assert plain.log_jacobian(T) == 0.0


def test_warps_are_one_per_output():
    with pytest.raises(ValueError, match="expected 2 warps or none, got 1"):
        OutputScaling(np.zeros(2), np.eye(2), [None])
    assert OutputScaling(np.zeros(2), np.eye(2), [None, None]).warps == ()


# Errors


@pytest.mark.parametrize("name", ["log", "positive"])
def test_outputs_that_are_not_positive_are_refused_by_row(skewed, name):
    X, y = skewed
    y[17] = 0.0
    model = DSMGPRegressor(output_warp=name, **OPTIONS)
    with pytest.raises(ValueError, match=r"above 0, .* got 0 in row 17; use output_warp='rank'"):
        model.fit(X, y)
    model.fit(X[:17], y[:17])
    with pytest.raises(ValueError, match="got -1 in row 1;"):
        model.partial_fit(X[:2], [1.0, -1.0])
    assert len(model.row_ids_) == 17


def test_known_noise_is_refused(skewed):
    X, y = skewed
    with pytest.raises(ValueError, match="noise cannot be given with output_warp='rank'"):
        DSMGPRegressor(output_warp="rank", **OPTIONS).fit(X, y, noise=0.1)
    model = DSMGPRegressor(output_warp="rank", **OPTIONS).fit(X, y)
    with pytest.raises(ValueError, match="known noise cannot be combined with an output warp"):
        model.partial_fit(X[:2], y[:2], noise=0.1)
    DSMGPRegressor(**OPTIONS).fit(X, y, noise=0.1)  # "auto" does not warp then


def test_change_points_are_refused(skewed):
    X, y = skewed
    with pytest.raises(ValueError, match=r"output_warp is not available with structure='chan"):
        DSMGPRegressor("rbf", structure="changepoint", output_warp="log").fit(X[:30], y[:30])
    for none in (None, "auto"):
        model = DSMGPRegressor("rbf", structure="changepoint", output_warp=none, max_iter=2)
        assert model.fit(X[:30], y[:30]).state_.model.outputs.warps == ()


# Online updates and fine-tuning


@pytest.mark.parametrize("name", WARPS)
def test_two_batches_equal_one_and_forgetting_undoes_them(skewed, name):
    X, y = skewed
    one, two = (DSMGPRegressor(output_warp=name, **OPTIONS).fit(X[:150], y[:150]) for _ in "ab")
    evidence = one.log_marginal_likelihood_
    one.partial_fit(X[150:], y[150:], adapt=False)
    two.partial_fit(X[150:170], y[150:170], adapt=False)
    two.partial_fit(X[170:], y[170:], adapt=False)
    online = one.log_marginal_likelihood_
    same(one, two, X[:20])
    assert one.log_marginal_likelihood_ == pytest.approx(online, rel=1e-8)  # after conditioning
    model = one.state_.model
    expected = model.posterior.log_evidence - 200 * model.outputs.log_det
    expected += model.outputs.log_slopes(y[:, None]).sum()
    assert online == pytest.approx(expected, rel=1e-8)
    two.forget(np.arange(150, 200), adapt=False)
    assert two.log_marginal_likelihood_ == pytest.approx(evidence, rel=1e-8)


def test_maintenance_reviews_and_refits_warped_models(skewed):
    X, y = skewed
    model = DSMGPRegressor(output_warp="rank", **OPTIONS).fit(X[:60], y[:60])
    before = model.state_.model.outputs.warps[0]
    model.partial_fit(X[60:75], y[60:75])
    assert model.state_.model.outputs.warps[0] is before
    model.partial_fit(X[75:], y[75:])
    assert "fitted again" in " ".join(model.adapted_)
    assert model.state_.model.outputs.warps[0] is not before


def test_fine_tuning_keeps_the_warp(skewed):
    X, y = skewed
    tuned = DSMGPRegressor(output_warp="log", **OPTIONS).fit(X, y).finetune(max_iter=3)
    by_hand = DSMGPRegressor(**OPTIONS).fit(X, np.log(y)).finetune(max_iter=3)
    expected = by_hand.log_marginal_likelihood_ - np.log(y).sum()
    assert tuned.log_marginal_likelihood_ == pytest.approx(expected)
    assert "before its warp" in tuned.summary()


# Rows in files


@pytest.fixture
def folder(skewed, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    X, y = skewed
    for k, part in enumerate((slice(0, 120), slice(120, 200))):
        table = pa.table({"a": X[part, 0], "b": X[part, 1], "y": y[part]})
        parquet.write_table(table, tmp_path / f"{k}.parquet")
    return tmp_path


@pytest.mark.parametrize("name", WARPS)
def test_a_sample_of_all_rows_gives_the_fit_in_memory(skewed, folder, tmp_path, name):
    X, y = skewed
    frame = pd.DataFrame(X, columns=["a", "b"])
    held = DSMGPRegressor(output_warp=name, **OPTIONS).fit(frame, y)
    store = tmp_path / "model"
    streamed = DSMGPRegressor(output_warp=name, **OPTIONS).fit_dataset(
        list(folder.glob("*.parquet")), target="y", store=store
    )
    same(streamed, held, frame[:20])
    again = load(store)
    assert again.log_marginal_likelihood_ == streamed.log_marginal_likelihood_
    np.testing.assert_allclose(again.predict(frame[:20]), held.predict(frame[:20]), rtol=1e-6)


def test_the_evidence_counts_all_rows_not_only_the_sample(skewed, folder, monkeypatch):
    monkeypatch.setattr(dataset, "LEAST_SAMPLE", 100)
    monkeypatch.setattr(dataset, "MOST_SAMPLE", 100)
    model = DSMGPRegressor(output_warp="log", **OPTIONS).fit_dataset(folder, target="y")
    fitted = model.state_.model
    assert fitted.log_jacobian == pytest.approx(-np.log(skewed[1]).sum())
    assert fitted.n_rows == 200


def test_rows_outside_of_the_sample_are_checked(skewed, folder, monkeypatch):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(dataset, "LEAST_SAMPLE", 20)
    monkeypatch.setattr(dataset, "MOST_SAMPLE", 20)
    table = pa.table({"a": [0.0], "b": [0.0], "y": [-3.0]})
    parquet.write_table(table, folder / "9.parquet")
    with pytest.raises(ValueError, match=r"expected outputs above 0, .* got -3 in row"):
        DSMGPRegressor(output_warp="log", **OPTIONS).fit_dataset(folder, target="y")


# What people see


def test_the_summary_describes_the_warp(skewed):
    X, y = skewed
    model = DSMGPRegressor(output_warp="rank", **OPTIONS).fit(X, y)
    summary = model.summary()
    assert "output warp     normal scores, strength 1: slopes from 0." in summary
    assert "kernel, of the output before its warp and standardised" in summary
    assert "output warp" not in DSMGPRegressor(**OPTIONS).fit(X, y).summary()


def test_plots_of_warped_outputs_respect_their_bound(skewed):
    pytest.importorskip("matplotlib").use("agg")
    X, y = skewed
    model = DSMGPRegressor(output_warp="positive", **OPTIONS).fit(X, y)
    lines = model.plot_dependence(X[:40], n_points=8).get_lines()
    assert all((line.get_ydata() > 0).all() for line in lines if len(line.get_ydata()) == 8)
    one = DSMGPRegressor(output_warp="log", **OPTIONS).fit(X[:, :1], y)
    lines = one.plot_predictive(X[:, :1], y, n_points=20).get_lines()
    assert all((line.get_ydata() > 0).all() for line in lines)
