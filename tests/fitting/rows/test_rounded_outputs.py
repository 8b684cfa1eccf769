"""A few duplicate inputs whose rounded outputs agree do not show that there is no noise."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.fitting.rows.rounded_outputs import output_step


@pytest.fixture(scope="module")
def agreeing():
    """Ten duplicate inputs whose outputs, whole numbers, agree."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 1))
    y = np.round(8 * rng.normal(size=60))
    return np.vstack([X, X[:10]]), np.append(y, y[:10])


def fitted(X, y):
    return DSMGPRegressor("rbf", mean="zero", random_state=0, hypotheses=None).fit(X, y)


def test_the_noise_allows_for_a_duplicate_that_is_a_step_off(agreeing):
    X, y = agreeing
    model = fitted(X, y)
    step = 1.0 / y.std()
    assert model.noise_ >= 0.99 * step**2 / 2 / (10 + 2)
    _, std = model.predict(X[:10], return_std=True)
    assert std.min() > 0.2  # a step off is at most five standard deviations off
    assert model.noise_ < step**2
    # Outputs that are not rounded may agree for good.
    exact = fitted(X, y + 1e-3 * np.sin(50 * X[:, 0]))
    assert exact.noise_ < 0.01 * model.noise_


def test_weights_count_as_duplicates(agreeing):
    X, y = agreeing
    weights = np.append(np.full(10, 2.0), np.ones(50))
    model = DSMGPRegressor("rbf", mean="zero", random_state=0, hypotheses=None)
    model.fit(X[:60], y[:60], sample_weight=weights)
    assert model.noise_ == pytest.approx(fitted(X, y).noise_, rel=1e-3)


@pytest.mark.parametrize(
    ("y", "step"),
    [
        (np.arange(15.0) * 3, 3.0),
        ((np.arange(40) / 10 - 2.345) / 1.7, 0.1 / 1.7),
        (np.arange(30.0) ** 1.5, 0.0),
        (np.arange(30) % 4 * 1.0, 0.0),
    ],
)
def test_steps_of_outputs(y, step):
    assert output_step(y) == pytest.approx(step)
