"""Duplicate inputs are found, whatever their hashes."""

import numpy as np
import pytest

from dsmgp.experts.duplicates import equal_rows


@pytest.mark.parametrize("collide", [False, True])
def test_equal_rows_and_no_others_share_a_number(rng, monkeypatch, collide):
    if collide:  # different rows of one hash
        monkeypatch.setattr(
            "dsmgp.experts.duplicates._hashes", lambda bits: bits[:, 0] & np.uint64(1)
        )
    for X in (
        np.array([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0], [-0.0, 2.0]]),
        rng.integers(-1, 2, size=(200, 3)) * 0.5,
        rng.normal(size=(50, 2)),
        np.asfortranarray(rng.normal(size=(20, 4))[rng.integers(0, 20, size=60)]),
        np.zeros((5, 1)),
    ):
        labels = equal_rows(X)
        assert labels.shape == (len(X),)
        np.testing.assert_array_equal(
            labels[:, None] == labels, (X[:, None, :] == X[None, :, :]).all(axis=2)
        )
        assert len(np.unique(labels)) == len(np.unique(X + 0.0, axis=0))
