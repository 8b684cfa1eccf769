"""Training rows: numbers are never used twice, and nothing changes in place."""

import numpy as np
import pytest

from dsmgp.fitting.rows.training_rows import TrainingRows


@pytest.fixture
def rows():
    return TrainingRows.first(np.arange(8.0).reshape(4, 2), np.arange(4.0)[:, None])


def test_numbers_are_never_used_twice(rows):
    fewer = rows.removed(rows.positions(np.array([1, 3])))
    more = fewer.added(TrainingRows.first(np.ones((2, 2)), np.ones((2, 1)), first_id=4))
    np.testing.assert_array_equal(fewer.ids, [0, 2])
    np.testing.assert_array_equal(more.ids, [0, 2, 4, 5])
    assert (len(more), more.next_id) == (4, 6)
    np.testing.assert_array_equal(rows.ids, np.arange(4))


def test_noise_that_is_not_given_is_zero(rows):
    assert rows.added(rows).noise is None
    noisy = rows.added(TrainingRows.first(rows.X[:2], rows.Y[:2], np.full((2, 1), 0.5)))
    np.testing.assert_array_equal(noisy.noise[:, 0], [0, 0, 0, 0, 0.5, 0.5])
    assert len(noisy.arrays) == 3


def test_weights_that_are_not_given_are_one_and_rows_without_weight_are_dropped(rows):
    weights = np.array([2.0, 0.0, 0.5])
    weighted = TrainingRows.first(rows.X[:3], rows.Y[:3], weights=weights, first_id=4)
    np.testing.assert_array_equal(weighted.ids, [4, 6])
    assert (weighted.next_id, weighted.n_observations) == (7, 2.5)
    more = rows.added(weighted)
    np.testing.assert_array_equal(more.weights, [1, 1, 1, 1, 2, 0.5])
    assert (more.next_id, rows.n_observations) == (7, None)
    assert TrainingRows.first(rows.X, rows.Y, weights=np.ones(4)).weights is None


@pytest.mark.parametrize(
    ("ids", "message"), [([4], "row 4 cannot be forgotten"), ([0, 1, 2], "at least two must stay")]
)
def test_rows_that_cannot_be_removed_are_refused(rows, ids, message):
    with pytest.raises(ValueError, match=message):
        rows.positions(np.array(ids))
