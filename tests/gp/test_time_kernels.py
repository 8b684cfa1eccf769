"""Kernels of series: parts as named kernels, priors that are densities, seasons found in data."""

import numpy as np
import pytest

from dsmgp.gp.named_process import ParameterBlock
from dsmgp.gp.periods import seasonal_periods
from dsmgp.gp.time_kernels import TimeInputs, time_process
from tests.support.finite_differences import central_difference

INPUTS = TimeInputs(1, 3, spread=1.0, span=3.4, periods=(0.2, 0.03))
EVERY_PART = ["line", "curve", "trend", "level", "season", "short", "others"]


def test_parts_are_terms_of_the_time_and_of_the_other_inputs():
    process = time_process(EVERY_PART, INPUTS, ParameterBlock("noise", 1), np.ones(3))
    expected = "linear[1]+linear*linear[1]+matern52[1]+matern32[1]+rbf*periodic[1]+rbf*periodic[1]+matern12[1]+matern32[0,2]"
    assert process.kernel.name == expected
    seasons = [term.times[0].period for term in process.kernel.terms if term.kind == "rbf*periodic"]
    np.testing.assert_allclose(np.concatenate(seasons), INPUTS.periods)
    with pytest.raises(ValueError, match="unknown part 'quarks'"):
        time_process(["quarks"], INPUTS, ParameterBlock("noise", 1), np.ones(3))


def test_every_prior_is_at_its_median_at_first_and_has_the_gradient_of_its_density():
    process = time_process(EVERY_PART, INPUTS, ParameterBlock("noise", 1), np.ones(3))
    theta = process.theta + 0.1
    _, gradient = process.log_prior(theta)
    expected = central_difference(lambda at: np.array(process.log_prior(at)[0]), theta)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)


def test_seasons_are_found_beside_a_trend_and_rounded_to_what_is_known(rng):
    days = np.arange(1500.0)
    y = 1e-3 * days + 3 * np.sin(2 * np.pi * days / 365.2425) + np.sin(2 * np.pi * days / 7)
    y += 0.3 * rng.normal(size=len(days))
    assert seasonal_periods(days, y, (1.0, 7.0, 365.2425)) == (365.2425, 7.0)
    some = rng.permutation(len(days))[:700]
    assert seasonal_periods(days[some], y[some], (7.0, 365.2425))[0] == 365.2425


def test_neither_noise_nor_a_trend_has_a_season(rng):
    t = np.arange(300.0)
    assert seasonal_periods(t, rng.normal(size=300)) == ()
    assert seasonal_periods(t, np.exp(t / 100)) == ()
    assert seasonal_periods(t[:7], t[:7]) == seasonal_periods(np.ones(50), t[:50]) == ()
