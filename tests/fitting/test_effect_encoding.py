"""New rows are encoded as training rows are where held-out rows call for it, and the model keeps to that."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor, load
from dsmgp.data.columns.effects import nearest_folds
from dsmgp.fitting import effect_encoding
from dsmgp.fitting.effect_encoding import with_chosen_encoding


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 70, 300)
    X = pd.DataFrame({"model": [f"m{k}" for k in codes], "x": rng.normal(size=300)})
    return X, rng.normal(size=70)[codes] + 0.1 * rng.normal(size=300)


@pytest.fixture(scope="module")
def fitted(table):
    X, y = table
    return DSMGPRegressor("rbf", max_iter=5, random_state=0, hypotheses=None).fit(X, y)


@pytest.mark.parametrize(("gain", "is_chosen"), [(0.1, True), (-0.1, False), (0.001, False)])
def test_the_encoding_that_predicts_clearly_better_is_chosen(fitted, monkeypatch, gain, is_chosen):
    gains = gain + 0.2 * np.random.default_rng(0).normal(size=60)
    monkeypatch.setattr(effect_encoding, "_gains", lambda *_: gains - gains.mean() + gain)
    chosen = with_chosen_encoding(fitted.state_).schema.columns.category("model")[0]
    assert bool(chosen.fold_effects) == is_chosen


def test_gains_of_rows_count_by_their_weights(fitted, monkeypatch):
    """A quarter of the rows gain, with most of the weight."""
    rng = np.random.default_rng(0)
    heavy = rng.permutation(300) < 75
    gains = np.where(heavy, 1.0, -0.5) + 0.1 * rng.normal(size=300)
    monkeypatch.setattr(effect_encoding, "_gains", lambda _, e, number: gains[e.folds == number])
    for weights, is_chosen in ((None, False), (np.where(heavy, 9.0, 1.0), True)):
        state = replace(fitted.state_, rows=replace(fitted.state_.rows, weights=weights))
        chosen = with_chosen_encoding(state).schema.columns.category("model")[0]
        assert bool(chosen.fold_effects) == is_chosen


def test_gains_are_those_of_a_model_that_has_not_seen_the_fold(fitted):
    """The effects among its inputs were learned without the fold, too."""
    effects = fitted.state_.rows.effects
    inside = effects.folds == 2
    codes = effects.codes["model"]
    # Without other columns the effects of a fold are shrunken means: those of levels without any row of them are zero.
    others = np.setdiff1d(codes, codes[~inside])
    assert not effects.by_fold["model"][2][others].any()
    for second in (0, 4):
        kept = ~np.isin(effects.folds, [2, second])
        gone = np.setdiff1d(codes, codes[kept])
        assert len(gone)
        assert not effects.by_pair["model"][2][second][gone].any()
        np.testing.assert_array_equal(
            effects.by_pair["model"][2][second], effects.by_pair["model"][second][2]
        )
    assert np.isfinite(effect_encoding._gains(fitted.state_, effects, 2)).all()


def test_new_rows_get_the_effects_of_one_fold_for_all_columns():
    effects = [np.array([[0.0], [1.0], [2.0]]), np.array([[0.0], [10.0]])]
    shifts = np.array([0.5, -0.1, 0.2])[:, None, None]
    by_fold = [each + shifts * scale for each, scale in zip(effects, (1.0, 10.0), strict=True)]
    by_fold[1][1] += 8.0  # near in the first column, far in the second
    first, second = nearest_folds(by_fold, effects, [np.array([0, 2, 3]), np.array([1, 0, 2])])
    np.testing.assert_allclose(first[:2, 0], [0.2, 2.2])
    np.testing.assert_allclose(second[:2, 0], [12.0, 2.0])
    np.testing.assert_allclose([first[2, 0], second[2, 0]], [1.0, 5.0])  # levels that are not known


@pytest.mark.filterwarnings("ignore:.*levels that the training rows do not have:UserWarning")
def test_a_model_with_effects_of_folds_is_kept_in_a_file(fitted, table, tmp_path):
    X = table[0][:9].assign(model=["new", *table[0]["model"][1:9]])
    state = fitted.state_
    columns = state.schema.columns.with_fold_effects(state.rows.effects.by_fold)
    model = DSMGPRegressor("rbf", random_state=0)
    model._state = replace(state, schema=replace(state.schema, columns=columns))
    effect = model.state_.schema.to_numbers(X)[:, columns.effect_inputs["model"][0]]
    stored = np.array(columns.category("model")[0].fold_effects)
    assert np.isin(effect[1:], stored).all()
    assert (
        effect != fitted.state_.schema.to_numbers(X)[:, columns.effect_inputs["model"][0]]
    ).any()
    model.save(tmp_path / "model.dsmgp")
    again = load(tmp_path / "model.dsmgp")
    assert again.state_.schema.columns == columns
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.filterwarnings("ignore:.*levels that the training rows do not have:UserWarning")
def test_online_updates_go_on(table):
    X, y = table
    model = DSMGPRegressor("rbf", max_iter=5, random_state=0, hypotheses=None).fit(X[:200], y[:200])
    model.partial_fit(X[200:], y[200:])
    assert model.state_.rows.effects is None
    assert np.isfinite(model.predict(X)).all()
