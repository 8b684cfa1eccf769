"""The state of a fitted estimator: nothing changes in place, and remarks follow the rows."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, load


def test_a_verb_makes_another_state_and_leaves_the_old_one(wavy):
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=2, random_state=0)
    states = []
    for verb in (
        lambda: model.fit(X, y),
        lambda: model.partial_fit(X[:2], y[:2], adapt=False),
        lambda: model.forget([0], adapt=False),
        lambda: model.finetune(max_iter=1, rounds=1),
    ):
        verb()
        states.append((model.state_, model.state_.model.mean(X[:5])))
    assert len({id(state) for state, _ in states}) == 4
    for state, mean in states:
        np.testing.assert_array_equal(state.model.mean(X[:5]), mean)
    assert [state.n_changed for state, _ in states] == [0, 2, 3, 3]


@pytest.fixture
def skewed():
    rng = np.random.default_rng(0)
    return rng.normal(size=(700, 2)), np.exp(rng.normal(size=700))


def never_negative(remarks):
    return [remark for remark in remarks if "is never negative in the training rows" in remark]


def test_remarks_on_predictions_are_those_at_some_training_rows(skewed, monkeypatch):
    X, y = skewed
    model = DSMGPRegressor("rbf", max_iter=2, output_warp=None, random_state=0).fit(X, y)
    asked = []
    predicted = type(model.state_.model).mixture
    monkeypatch.setattr(
        type(model.state_.model),
        "mixture",
        lambda self, X, *options: asked.append(len(X)) or predicted(self, X, *options),
    )
    (remark,) = never_negative(model.remarks_)
    assert "target 'y'" in remark
    assert model.remarks_ == [*model.state_.schema.remarks, *model.state_.prediction_remarks]
    assert asked == [500]  # once
    assert never_negative(model.fit(X, y - 0.5).remarks_) == []
    assert asked == [500]  # of targets that may be negative there is nothing to say


def test_remarks_on_predictions_follow_the_rows_and_survive_a_file(skewed, tmp_path):
    X, y = skewed
    model = DSMGPRegressor("rbf", max_iter=2, output_warp=None, random_state=0).fit(X, y)
    model.save(tmp_path / "m.dsmgp")
    assert load(tmp_path / "m.dsmgp").remarks_ == model.remarks_
    assert never_negative(model.remarks_)
    assert not never_negative(model.partial_fit(X[:1], [-1.0]).remarks_)


def test_each_output_has_its_own_remarks_and_a_warp_heeds_them(skewed):
    X, y = skewed
    options = {"kernel": "rbf", "max_iter": 2, "random_state": 0}
    two = DSMGPRegressor(**options, output_warp=None).fit(X, np.column_stack([X[:, 0], y]))
    (remark,) = never_negative(two.remarks_)
    assert "target 'y1'" in remark
    assert not never_negative(DSMGPRegressor(**options, output_warp="positive").fit(X, y).remarks_)
