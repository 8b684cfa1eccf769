"""Periods are those of the largest peak of the periodogram, input by input."""

import numpy as np
import pytest

from dsmgp.gp.periods import dominant_periods


def test_each_input_has_its_own_period(rng):
    X = rng.uniform(0, 20, size=(600, 2))
    y = np.sin(2 * np.pi * X[:, 0] / 1.7) + np.cos(2 * np.pi * X[:, 1] / 4.0) + 0.1 * X[:, 0]
    # As exactly as frequencies are tried: a quarter of a cycle over the range of the inputs.
    np.testing.assert_allclose(dominant_periods(X, y), [1.7, 4.0], rtol=0.06)


def test_of_many_rows_a_stretch_is_enough():
    x = np.linspace(0, 100, 9000)
    found = dominant_periods(x[::-1, None], np.sin(2 * np.pi * x[::-1] / 0.5))
    assert found[0] == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("x", [np.full(30, 2.0), np.repeat([0.0, 1.0, 2.0], 10)])
def test_an_input_with_few_values_gets_period_one(x, rng):
    assert dominant_periods(x[:, None], rng.normal(size=30)).tolist() == [1.0]
