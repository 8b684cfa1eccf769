"""Training rows and the state of a fitted estimator: numbers are never used twice, and nothing changes in place."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.fitting.state import TrainingRows


@pytest.fixture
def rows():
    return TrainingRows.first(np.arange(8.0).reshape(4, 2), np.arange(4.0)[:, None])


def test_numbers_are_never_used_twice(rows):
    fewer = rows.removed(rows.positions(np.array([1, 3])))
    more = fewer.added(np.ones((2, 2)), np.ones((2, 1)))
    np.testing.assert_array_equal(fewer.ids, [0, 2])
    np.testing.assert_array_equal(more.ids, [0, 2, 4, 5])
    assert (len(more), more.next_id) == (4, 6)
    np.testing.assert_array_equal(rows.ids, np.arange(4))


def test_noise_that_is_not_given_is_zero(rows):
    assert rows.added(rows.X, rows.Y).noise is None
    noisy = rows.added(rows.X[:2], rows.Y[:2], np.full((2, 1), 0.5))
    np.testing.assert_array_equal(noisy.noise[:, 0], [0, 0, 0, 0, 0.5, 0.5])
    assert len(noisy.arrays) == 3


@pytest.mark.parametrize(
    ("ids", "message"), [([4], "row 4 cannot be forgotten"), ([0, 1, 2], "at least two must stay")]
)
def test_rows_that_cannot_be_removed_are_refused(rows, ids, message):
    with pytest.raises(ValueError, match=message):
        rows.positions(np.array(ids))


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
