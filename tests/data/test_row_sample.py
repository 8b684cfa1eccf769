"""Samples of row numbers: any set is as likely as another, and many rows take no memory."""

import tracemalloc

import numpy as np
import pytest

from dsmgp.data import row_sample
from dsmgp.data.row_sample import draw_numbers
from dsmgp.mixture.weighting import LOOSample


@pytest.mark.parametrize("few", [0, 10**6])
def test_every_set_of_numbers_is_equally_likely(monkeypatch, few):
    monkeypatch.setattr(row_sample, "FEW", few)
    rng = np.random.default_rng(0)
    drawn = np.array([draw_numbers(6, 2, rng) for _ in range(6000)])
    assert (drawn[:, 0] < drawn[:, 1]).all()
    counts = np.bincount(6 * drawn[:, 0] + drawn[:, 1], minlength=36).reshape(6, 6)
    counts = counts[np.triu_indices(6, 1)]
    assert ((counts - 400) ** 2 / 400).sum() < 36.1  # the 99.9% quantile of 14 degrees of freedom


def test_a_sample_of_a_billion_rows_takes_little_memory():
    tracemalloc.start()
    numbers = draw_numbers(10**9, 10_000, np.random.default_rng(0))
    left_out = np.arange(0, 10**5, 7)
    sample = LOOSample.draw(10**9, 500, np.random.default_rng(0), left_out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(np.unique(numbers)) == 10_000
    assert len(sample.gate) == 500
    assert peak < 10e6


def test_rows_that_are_left_out_are_not_drawn():
    left_out = np.array([3, 0, 7, 8, 450])
    sample = LOOSample.draw(25_000, 24_000, np.random.default_rng(1), left_out)
    assert len(np.unique(sample.gate)) == 24_000
    assert not np.isin(left_out, sample.gate).any()
    scored = LOOSample.draw(300, 0, np.random.default_rng(0), left_out[:4]).scored
    np.testing.assert_array_equal(scored, np.delete(np.arange(300), left_out[:4]))
