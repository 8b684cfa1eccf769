"""Small tables are fitted under several hypotheses, and all that predicts uses their mixture."""

import json

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor, ModelFileError, load
from dsmgp._util.archive import read_archive
from dsmgp.distributed.executor import LocalExecutor
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.hypotheses import fit as hypotheses_fit
from dsmgp.fitting.hypotheses.at_edges import blocks_of, log_densities_at_edges
from dsmgp.fitting.hypotheses.fit import HYPOTHESES, N_WARPED
from dsmgp.fitting.loo_check import loo_check
from dsmgp.mixture.ensemble import Ensemble
from dsmgp.mixture.predictive.joined import JoinedMixture
from dsmgp.progress import Listener, listening
from dsmgp.scores import nlpd
from tests.support.damage import packed, unpacked


def skewed(n, seed=0):
    """A table on which hypotheses differ, and no one is perfect."""
    rng = np.random.default_rng(seed)
    X = rng.exponential(size=(n, 3))
    y = np.log1p(X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.normal(size=n)
    return X, y


# What is combined, and how, does not depend on how far hyperparameters were learned.
QUICK = {"max_iter": 8, "random_state": 0}
CONFIG = FitConfig()


@pytest.fixture(scope="module")
def rows():
    return skewed(60)


@pytest.fixture(scope="module")
def fitted(rows):
    return DSMGPRegressor(**QUICK).fit(*rows)


def test_accuracy_and_coverage_come_from_rows_left_out(fitted, rows, tmp_path):
    check, (X, y) = loo_check(fitted.state_), rows
    assert check.n_rows == len(y)
    errors = y - fitted.state_.stacking.left_out.mean
    assert check.rmse == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert check.rmse > np.sqrt(np.mean((y - fitted.predict(X)) ** 2))  # these have seen the rows
    assert check.rmse < check.constant_rmse
    assert 0.7 < check.coverage_90 <= 1
    fitted.save(tmp_path / "model.dsmgp")
    assert loo_check(load(tmp_path / "model.dsmgp").state_) is None


def by_hand(state, X):
    """The mean and variance of a weighted sum of the members' models."""
    moments = [each.model.moments(X) for each in state.members]
    weights = state.hypothesis_weights
    mean = sum(w * m[0] for w, m in zip(weights, moments, strict=True))
    square = sum(w * (m[1] ** 2 + m[0] ** 2) for w, m in zip(weights, moments, strict=True))
    return mean[:, 0], np.sqrt(square - mean**2)[:, 0]


def test_a_small_table_has_several_hypotheses(fitted):
    state = fitted.state_
    assert isinstance(state.predictive, Ensemble)
    assert 1 < len(state.hypothesis_weights) == len(state.alternatives) + 1
    assert len(state.hypothesis_weights) <= len(HYPOTHESES) + N_WARPED
    assert state.hypothesis_weights.sum() == pytest.approx(1.0)
    assert (
        np.diff(state.hypothesis_weights) <= 0
    ).all()  # the heaviest is what tree_ and kernel_ are of
    assert fitted.kernel_ is not None
    assert fitted.state_.model is state.members[0].model
    assert all(each.rows is state.rows for each in state.alternatives)


def test_everything_that_predicts_uses_the_mixture(fitted, rows, tmp_path):
    X = rows[0][:7] + 0.05
    mean, std = by_hand(fitted.state_, X)
    np.testing.assert_allclose(fitted.predict(X), mean)
    np.testing.assert_allclose(fitted.predict(X, return_std=True)[1], std)
    np.testing.assert_allclose(np.diag(fitted.predict(X, return_cov=True)[1]), std**2, rtol=1e-6)
    np.testing.assert_allclose(fitted.predict_dist(X).std, std)
    assert fitted.sample_y(X, 3).shape == (7, 3)
    of_f = fitted.predict(X, return_std=True, include_noise=False)[1]
    np.testing.assert_allclose(fitted.noise_at(X), std**2 - of_f**2, rtol=1e-6)
    explanation = fitted.explain(X)
    total = explanation.mean_base + explanation.mean_values.sum(axis=1)
    np.testing.assert_allclose(total, mean)
    score = fitted.permutation_importance(*rows).baseline["nlpd"]
    assert score == pytest.approx(nlpd(rows[1], fitted.predict_dist(rows[0])))
    assert fitted.feature_importances_.sum() == pytest.approx(1.0)


def test_files_of_predictions_are_of_the_mixture(fitted, rows, tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(rows[0], columns=list("abc"))
    frame.to_parquet(tmp_path / "rows.parquet")
    model = DSMGPRegressor(**QUICK).fit(frame, rows[1])
    model.predict_dataset(tmp_path / "rows.parquet", tmp_path / "predicted.parquet")
    predicted = pd.read_parquet(tmp_path / "predicted.parquet")
    np.testing.assert_allclose(predicted["y_std"], by_hand(model.state_, rows[0])[1])


def test_the_score_is_cross_validated_and_said_to_be(fitted):
    state = fitted.state_
    assert fitted.loo_score_ == state.stacking.scores[0] != state.scores[0]
    assert fitted.loo_score_new_inputs_ == fitted.loo_score_  # all inputs differ
    text = fitted.summary()
    assert f"cross-validated NLPD {fitted.loo_score_:.4g}" in text
    assert "hyperparameters learned without the fold of the row" in text
    for name in state.stacking.names:
        assert name in text


@pytest.mark.parametrize("kind", ["skewed", "curve"])
def test_other_seeds_and_orders_of_rows_hardly_change_the_score(kind, rng):
    X, y = skewed(100, 1)
    if kind == "curve":
        X = np.linspace(0, 4, 80)[:, None]
        y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=80)
    order = rng.permutation(len(X))
    first = DSMGPRegressor(random_state=0).fit(X, y).loo_score_
    other = DSMGPRegressor(random_state=1).fit(X[order], y[order]).loo_score_
    assert other == pytest.approx(first, abs=0.05)


def test_rows_with_equal_inputs_share_a_fold(rng):
    """The value at an input is a draw of its own, which only its other rows tell."""
    levels = rng.normal(size=30)
    X, y = (
        np.repeat(np.arange(30.0), 4)[:, None],
        np.repeat(levels, 4) + 0.05 * rng.normal(size=120),
    )
    model = DSMGPRegressor(random_state=0).fit(X, y)
    assert model.loo_score_ < 0.0
    assert model.loo_score_new_inputs_ > 1.0


@pytest.mark.parametrize(
    "settings",
    [
        {"hypotheses": None}, {"kernel": "rbf"}, {"mean": "zero"}, {"input_warp": None}, {"metric": "diagonal"},
        {"output_warp": "rank"}, {"weights": "posterior"}, {"effort": "low"}, {"standardize": False},
        {"structure": "paper"}, {"objective": "full", "max_iter": 2},
    ],
)  # fmt: skip
def test_what_the_user_has_decided_is_no_hypothesis(rows, settings):
    state = DSMGPRegressor(**QUICK | settings).fit(*rows).state_
    assert state.stacking is None
    assert state.alternatives == ()
    assert state.predictive is state.model


def test_without_hypotheses_it_is_the_first_of_them(rows, fitted):
    alone = DSMGPRegressor(hypotheses=None, **QUICK).fit(*rows)
    names = fitted.state_.stacking.names
    first = fitted.state_.members[names.index("inputs as they are, zero mean")]
    np.testing.assert_array_equal(alone.predict(rows[0]), first.model.mean(rows[0])[:, 0])


@pytest.mark.parametrize("n", [39, 500])
def test_tiny_tables_and_larger_ones_have_one(n):
    X, y = skewed(n)
    model = DSMGPRegressor(leaf_size=50, max_iter=2, random_state=0).fit(X, y)
    assert model.state_.stacking is None


def test_several_outputs_have_one(rows):
    Y = np.stack([rows[1], rows[0][:, 0]], axis=1)
    assert DSMGPRegressor(max_iter=2, random_state=0).fit(rows[0], Y).state_.stacking is None


def test_equal_inputs_and_equal_outputs_do_no_harm(rng):
    y = rng.normal(size=60)
    same = DSMGPRegressor(max_iter=3, random_state=0).fit(np.ones((60, 1)), y)
    assert same.loo_score_ == pytest.approx(same.loo_score_new_inputs_, abs=0.05)
    zeros = np.where(np.arange(60) < 3, y, 0.0)
    assert np.isfinite(
        DSMGPRegressor(max_iter=3, random_state=0).fit(skewed(60)[0], zeros).loo_score_
    )


def test_many_inputs_have_one(rng):
    X = rng.normal(size=(60, 101))
    assert DSMGPRegressor(max_iter=1, random_state=0).fit(X, X[:, 0]).state_.stacking is None


def test_flags_have_no_warps(rng):
    X = rng.integers(0, 2, size=(70, 4)).astype(float)
    model = DSMGPRegressor(**QUICK).fit(X, X[:, 0] + 0.1 * rng.normal(size=70))
    assert all(name.startswith("inputs as they are") for name in model.state_.stacking.names)


def test_known_noise_weights_and_categories_with_effects_are_allowed(rng):
    n = 100
    X, y = skewed(n)
    noise, weights = rng.uniform(0, 0.2, n), rng.uniform(0, 2, n).round()
    frame = pd.DataFrame({"x": X[:, 0], "shop": rng.choice([f"s{k}" for k in range(12)], n)})
    model = DSMGPRegressor(**QUICK).fit(frame, y, noise=noise, sample_weight=weights)
    assert model.state_.schema.columns.columns[1].effects
    assert np.isfinite(model.loo_score_)
    with pytest.warns(UserWarning, match="levels that the training rows do not have"):
        assert model.predict_dist(frame.assign(shop="new")[:3]).std.shape == (3,)


def test_online_updates_are_those_of_every_member(fitted, rows, tmp_path):
    X, y = skewed(100, 7)
    path = tmp_path / "model.dsmgp"
    fitted.save(path)
    model = load(path)
    alone = [DSMGPRegressor(**QUICK) for _ in model.state_.members]
    for one, member in zip(alone, model.state_.members, strict=True):
        one._state = member
    for each in (model, *alone):
        each.partial_fit(X[:9], y[:9]).forget([3, 5, 61])
    weights = fitted.state_.hypothesis_weights
    expected = sum(w * one.predict(X) for w, one in zip(weights, alone, strict=True))
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-12)
    np.testing.assert_array_equal(model.state_.hypothesis_weights, weights)
    # Scores and files condition all leaves anew, and nothing changes.
    assert model.loo_score_ == fitted.loo_score_
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-7)
    # A review is that of every member, a refit weighs hypotheses again.
    model.partial_fit(X[9:24], y[9:24])
    assert model.adapted_
    assert len(model.state_.alternatives) == len(weights) - 1
    model.partial_fit(*skewed(70, 8))
    assert "fitted again" in model.adapted_[-1]
    assert model.loo_score_ != fitted.loo_score_


def test_a_skewed_output_is_warped_under_some_hypotheses(rng):
    X = rng.normal(size=(80, 2))
    y = np.exp(X[:, 0] + 0.5 * rng.normal(size=80))
    model = DSMGPRegressor(random_state=0).fit(X, y)
    assert any("output by normal scores" in name for name in model.state_.stacking.names)
    assert isinstance(model.predict_dist(X), JoinedMixture)
    plain = DSMGPRegressor(random_state=0, output_warp=None).fit(X, y)
    assert len(plain.state_.stacking.names) > 1
    assert not any("output by" in name for name in plain.state_.stacking.names)
    assert model.loo_score_ < plain.loo_score_ - 0.1
    known = DSMGPRegressor(random_state=0, max_iter=3).fit(X, y, noise=np.full(80, 0.1))
    assert not any("output by" in name for name in known.state_.stacking.names)


def test_a_checkpoint_makes_no_difference(rows, fitted, tmp_path):
    model = DSMGPRegressor(checkpoint=tmp_path / "fit.ckpt", **QUICK).fit(*rows)
    np.testing.assert_array_equal(model.predict(rows[0]), fitted.predict(rows[0]))
    assert list(tmp_path.iterdir()) == []


def test_an_executor_makes_no_difference(rows, fitted):
    """Tables this small are fitted in this process."""

    class Elsewhere(LocalExecutor):
        def leaf_gps(self, *args, **kwargs):
            raise AssertionError("leaves were set up elsewhere")

    model = DSMGPRegressor(executor=Elsewhere(), **QUICK).fit(*rows)
    np.testing.assert_array_equal(model.predict(rows[0]), fitted.predict(rows[0]))


def test_fine_tuning_names_the_remedy(fitted):
    with pytest.raises(ValueError, match=r"finetune is not available .* fit with hypotheses=None"):
        fitted.finetune()


def test_the_command_line_and_reports_say_how_the_score_was_obtained(
    fitted, rows, tmp_path, undrawn
):
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from dsmgp.cli.app import app
    from dsmgp.report import report_html

    csv, out = tmp_path / "rows.csv", tmp_path / "model.dsmgp"
    frame = pd.DataFrame(rows[0], columns=list("abc")).assign(y=rows[1])
    frame.to_csv(csv, index=False)
    command = ["fit", str(csv), "-t", "y", "-o", str(out), "--max-iter", "8"]
    done = CliRunner().invoke(app, command)
    assert "cross-validated NLPD" in done.output
    loaded = load(out)
    shown = CliRunner().invoke(app, ["info", str(out), "--json"])
    contents = json.loads(shown.stdout)
    assert contents["loo_nlpd"] == loaded.loo_score_
    assert len(contents["hypotheses"]) == len(loaded.state_.hypothesis_weights)
    off = ["--hypotheses", "none", "--force"]
    assert CliRunner().invoke(app, [*command, *off]).exit_code == 0
    assert load(out).state_.stacking is None
    assert "The cross-validated NLPD" in report_html(fitted, *rows)


def test_saving_and_loading_changes_nothing(fitted, rows, tmp_path):
    path = tmp_path / "model.dsmgp"
    fitted.save(path)
    loaded = load(path)
    np.testing.assert_array_equal(
        loaded.predict(rows[0], return_std=True), fitted.predict(rows[0], return_std=True)
    )
    assert loaded.summary() == fitted.summary()
    assert loaded.loo_score_ == fitted.loo_score_
    again = tmp_path / "again.dsmgp"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_files_of_one_hypothesis_have_no_others(rows, tmp_path):
    DSMGPRegressor("rbf", random_state=0).fit(*rows).save(tmp_path / "model.dsmgp")
    header = read_archive(tmp_path / "model.dsmgp").header
    assert not {"stacking", "alternatives"} & header.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["stacking"].update(weights=[0.9] * len(h["stacking"]["weights"])), "weights of hypotheses"),
        (lambda h: h["stacking"].update(weights=[-1.0]), "stacking.weights"),
        (lambda h: h["stacking"].update(names=["one"]), "weights of hypotheses"),
        (lambda h: h["stacking"].pop("score"), "lacks 'stacking.score'"),
        (lambda h: h["alternatives"].pop(), "expected"),
        (lambda h: h.pop("alternatives"), "lacks 'alternatives'"),
        (lambda h: h["alternatives"][0].update(families=[]), "'families' are empty"),
        (lambda h: h["alternatives"][0]["scores"].pop("loo"), "lacks 'scores.loo'"),
    ],
)  # fmt: skip
def test_damaged_weights_and_alternatives_are_refused(fitted, tmp_path, change, message):
    path = tmp_path / "model.dsmgp"
    fitted.save(path)
    header, arrays = unpacked(path.read_bytes())
    change(header)
    path.write_bytes(packed(header, arrays))
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_alternatives_with_another_scaling_of_y_are_refused(fitted, tmp_path):
    path = tmp_path / "model.dsmgp"
    fitted.save(path)
    header, arrays = unpacked(path.read_bytes())
    warped = [bool(state.model.outputs.warps) for state in fitted.state_.alternatives]
    # Little enough for the evidence of its leaves to be the same.
    arrays[f"alternative.{warped.index(False)}.outputs.centre"] += 1e-9
    path.write_bytes(packed(header, arrays))
    with pytest.raises(ModelFileError, match="differ in the scaling of y"):
        load(path)


def test_a_fit_that_is_asked_to_stop_is_one_of_the_first_hypothesis(rows):
    def stop_in_folds(share, text):
        if share > 0.3:
            listener.stop()

    listener = Listener(stop_in_folds)
    with listening(listener):
        state = DSMGPRegressor(**QUICK).fit(*rows).state_
    assert state.stacking is None
    assert state.alternatives == ()


def test_other_values_of_the_parameter_are_refused(rows):
    with pytest.raises(
        ValueError, match=r"expected hypotheses to be one of .auto., .average. or None"
    ):
        DSMGPRegressor(hypotheses="all").fit(*rows)


def test_effects_of_levels_have_no_linear_mean(rng):
    """From the effect of its level, learned without it, and the level itself a linear mean could tell a row's own output."""
    level = rng.integers(0, 12, size=90)
    frame = pd.DataFrame({"group": [f"g{k}" for k in level], "x": rng.normal(size=90)})
    y = rng.normal(size=12)[level] + frame["x"] + 0.5 * rng.normal(size=90)
    fitted = DSMGPRegressor(**QUICK).fit(frame, y)
    assert any(column.effects for column in fitted.state_.schema.columns.columns)
    names = fitted.state_.stacking.names
    assert names
    assert not [name for name in names if "linear" in name]


def test_blocks_at_the_edges_count_where_rows_inside_tell_nothing(monkeypatch):
    """Among the rows a kernel can stand in for a line; beyond the data it is the line that predicts."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), rng.integers(0, 2, size=(60, 2))])
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    of_linear = []
    for share in (0.5, 1e-9):
        monkeypatch.setattr(hypotheses_fit, "EDGE_SHARE", share)
        stacking = DSMGPRegressor(max_iter=3, random_state=0).fit(X, y).state_.stacking
        weights = zip(stacking.names, stacking.weights, strict=True)
        of_linear.append(sum(weight for name, weight in weights if "linear mean" in name))
    assert of_linear[0] > of_linear[1] + 0.05


def test_densities_at_the_edges_are_in_the_units_of_the_output(rows):
    X, y = rows
    found = []
    for scale in (1.0, 10.0):
        state = DSMGPRegressor(max_iter=3, hypotheses=None, random_state=0).fit(X, scale * y).state_
        blocks = blocks_of(state, CONFIG)
        found.append(log_densities_at_edges(state, "linear", blocks, CONFIG))
    assert len(found[0]) == sum(len(block.rows) for block in blocks) > 0
    np.testing.assert_allclose(found[0] - found[1], np.log(10.0), atol=1e-6)
