"""Scores against their definitions."""

import numpy as np
import pytest
from scipy import stats

from dsmgp import Mixture, scores
from tests.mixture.predictive.test_distribution import random_mixture


def test_crps_is_the_integral_of_squared_differences_of_cdfs():
    distribution = random_mixture(3, n=4)
    y = np.array([-1.0, 0.5, 2.0, 4.0])
    grid = np.linspace(-40, 40, 80_001)
    # One row of the distribution for every point of the grid.
    rows = [distribution[np.full(len(grid), k)] for k in range(len(y))]
    cdf = np.stack([row.cdf(grid) for row in rows])
    step = (grid[None, :] >= y[:, None]).astype(float)
    expected = np.trapezoid((cdf - step) ** 2, grid, axis=1).mean()
    assert scores.crps(y, distribution) == pytest.approx(expected, rel=1e-3)
    assert scores.crps(y, distribution, batch=2) == pytest.approx(scores.crps(y, distribution))


def test_crps_of_one_gaussian_is_its_textbook_formula():
    distribution = Mixture(np.ones((1, 1)), np.full((1, 1, 1), 0.7), np.full((1, 1, 1), 2.5))
    mean, std = distribution.mean[0], distribution.std[0]
    z = (1.2 - mean) / std
    expected = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert scores.crps([1.2], distribution) == pytest.approx(expected)


def test_errors_and_densities():
    distribution = random_mixture(2, n=6, outputs=2, rotated=True)
    y = distribution.mean + [[1.0, -2.0]]
    assert scores.mae(y, distribution.mean) == pytest.approx(1.5)
    assert scores.rmse(y, distribution.mean) == pytest.approx(1.5)
    assert scores.nlpd(y, distribution) == pytest.approx(-distribution.logpdf(y).sum(axis=1).mean())
    assert scores.joint_nlpd(y, distribution) == pytest.approx(-distribution.joint_logpdf(y).mean())
    expected = -stats.norm.logpdf(y, distribution.mean, distribution.std).sum(axis=1).mean()
    assert scores.gaussian_nlpd(y, distribution) == pytest.approx(expected)
    with pytest.raises(ValueError, match="one shape"):
        scores.mae(y, distribution.mean[:, 0])


def test_draws_from_the_distribution_itself_are_calibrated():
    distribution = random_mixture(4, n=400)
    y = distribution.sample(1, random_state=0)[0]
    assert scores.coverage(y, distribution, 0.8) == pytest.approx(0.8, abs=0.06)
    histogram = scores.pit_histogram(y, distribution, n_bins=5)
    assert histogram.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(histogram, 0.2, atol=0.07)
    low, high = distribution.interval(0.8)
    inside = np.mean((y >= low) & (y <= high))
    assert scores.coverage(y, distribution, 0.8) == pytest.approx(inside)
    assert scores.interval_width(distribution, 0.8) == pytest.approx(np.mean(high - low))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_observations_must_be_numbers(bad):
    distribution = Mixture(np.ones((3, 1)), np.zeros((3, 1, 1)), np.ones((3, 1, 1)))
    y = np.array([0.0, bad, 1.0])
    for score in (scores.mae, scores.rmse):
        with pytest.raises(ValueError, match=r"y contains .* in row 1"):
            score(y, distribution.mean)
    with pytest.raises(ValueError, match="y contains"):
        scores.score_table(y, distribution, 0.0)


def test_r2_of_a_constant_is_that_of_scikit_learn():
    y = np.full(30, 3.3)
    assert scores.r2(y, y, y.mean()) == 1.0
    assert scores.r2(y, y + 0.1, y.mean()) == 0.0


def test_scores_of_each_output_are_those_of_that_output_alone():
    distribution = random_mixture(3, n=4, outputs=2)
    y = np.column_stack([[-1.0, 0.5, 2.0, 4.0], [30.0, 10.0, 0.0, -5.0]])
    for k, values in enumerate(scores.score_each(y, distribution, [0.0, 1.0])):
        assert values["mae"] == pytest.approx(np.abs(y[:, k] - distribution.mean[:, k]).mean())
        assert values["nlpd"] == pytest.approx(-distribution.logpdf(y)[:, k].mean())
        assert values["coverage_90"] == np.mean(np.abs(distribution.cdf(y)[:, k] - 0.5) <= 0.45)
