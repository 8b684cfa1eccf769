"""Kernels and units of the outputs are chosen by what leave-one-out says of them."""

from __future__ import annotations

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, scores


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_input_of_very_short_length_scale_is_not_taken_for_noise(seed):
    # Forty subjects, numbered, that grow at rates of their own: evidence has an optimum without subjects.
    rng = np.random.default_rng(seed)
    subject, time = np.repeat(np.arange(40), 12), np.tile(np.arange(12), 40)
    y = rng.normal(1.0, 0.5, 40)[subject] * time + 0.05 * rng.normal(size=480)
    X = np.column_stack([time, subject]).astype(float)
    test = rng.random(480) < 0.3
    model = DSMGPRegressor(effort="low", random_state=0).fit(X[~test], y[~test])
    error = scores.rmse(y[test], model.predict(X[test]))
    assert error < 0.1 * y.std()
    assert min(model.kernel_scores_.values()) < -3.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_rough_part_is_found_whatever_the_draw(seed):
    """Beside a trend a fast oscillation looks like noise, and only some draws lead away from that optimum."""
    X = np.random.default_rng(seed).uniform(size=(240, 2))
    y = 3 * X[:, 0] + 0.5 * np.sin(80 * X[:, 1])
    model = DSMGPRegressor(effort="low", random_state=0).fit(X, y)
    assert model.loo_score_ < -5.0


def test_kernels_are_listed_from_the_best():
    X = np.random.default_rng(0).uniform(-3.0, 3.0, (200, 1))
    y = np.sin(3.0 * X[:, 0])
    tried = DSMGPRegressor(effort="low", random_state=0).fit(X, y).kernel_scores_
    assert list(tried.values()) == sorted(tried.values())
    assert set(tried) == {"rbf", "matern52", "matern32", "matern12"}
    assert next(iter(tried)) != "matern12"  # the function is smooth
