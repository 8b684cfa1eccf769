"""Scores against their definitions."""

import numpy as np
import pytest
from scipy import stats
from test_mixture import random_mixture

from dsmgp import Mixture, scores


def test_crps_is_the_integral_of_squared_differences_of_cdfs():
    law = random_mixture(3, n=4)
    y = np.array([-1.0, 0.5, 2.0, 4.0])
    grid = np.linspace(-40, 40, 80_001)
    cdf = np.stack([law.cdf(g) for g in grid], axis=1)
    step = (grid[None, :] >= y[:, None]).astype(float)
    expected = np.trapezoid((cdf - step) ** 2, grid, axis=1).mean()
    assert scores.crps(y, law) == pytest.approx(expected, rel=1e-3)
    assert scores.crps(y, law, batch=2) == pytest.approx(scores.crps(y, law))


def test_crps_of_one_gaussian_is_its_textbook_formula():
    law = Mixture(np.ones((1, 1)), np.full((1, 1, 1), 0.7), np.full((1, 1, 1), 2.5))
    mean, std = law.mean[0], law.std[0]
    z = (1.2 - mean) / std
    expected = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert scores.crps([1.2], law) == pytest.approx(expected)


def test_errors_and_densities():
    law = random_mixture(2, n=6, outputs=2, rotated=True)
    y = law.mean + [[1.0, -2.0]]
    assert scores.mae(y, law.mean) == pytest.approx(1.5)
    assert scores.rmse(y, law.mean) == pytest.approx(1.5)
    assert scores.nlpd(y, law) == pytest.approx(-law.logpdf(y).sum(axis=1).mean())
    assert scores.joint_nlpd(y, law) == pytest.approx(-law.joint_logpdf(y).mean())
    expected = -stats.norm.logpdf(y, law.mean, law.std).sum(axis=1).mean()
    assert scores.gaussian_nlpd(y, law) == pytest.approx(expected)
    with pytest.raises(ValueError, match="one shape"):
        scores.mae(y, law.mean[:, 0])


def test_calibration_of_draws_from_the_law_itself():
    law = random_mixture(4, n=400)
    y = law.sample(1, random_state=0)[0]
    assert scores.coverage(y, law, 0.8) == pytest.approx(0.8, abs=0.06)
    histogram = scores.pit_histogram(y, law, n_bins=5)
    assert histogram.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(histogram, 0.2, atol=0.07)
    low, high = law.interval(0.8)
    inside = np.mean((y >= low) & (y <= high))
    assert scores.coverage(y, law, 0.8) == pytest.approx(inside)
    assert scores.interval_width(law, 0.8) == pytest.approx(np.mean(high - low))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_what_was_observed_must_be_numbers(bad):
    law = Mixture(np.ones((3, 1)), np.zeros((3, 1, 1)), np.ones((3, 1, 1)))
    y = np.array([0.0, bad, 1.0])
    for score in (scores.mae, scores.rmse):
        with pytest.raises(ValueError, match=r"y contains .* in row 1"):
            score(y, law.mean)
    with pytest.raises(ValueError, match="y contains"):
        scores.score_table(y, law, 0.0)


def test_r2_of_a_constant_is_that_of_scikit_learn():
    y = np.full(30, 3.3)
    assert scores.r2(y, y, y.mean()) == 1.0
    assert scores.r2(y, y + 0.1, y.mean()) == 0.0


def test_scores_of_each_output_are_those_of_that_output_alone():
    law = random_mixture(3, n=4, outputs=2)
    y = np.column_stack([[-1.0, 0.5, 2.0, 4.0], [30.0, 10.0, 0.0, -5.0]])
    for k, found in enumerate(scores.score_each(y, law, [0.0, 1.0])):
        assert found["mae"] == pytest.approx(np.abs(y[:, k] - law.mean[:, k]).mean())
        assert found["nlpd"] == pytest.approx(-law.logpdf(y)[:, k].mean())
        assert found["coverage_90"] == np.mean(np.abs(law.cdf(y)[:, k] - 0.5) <= 0.45)
