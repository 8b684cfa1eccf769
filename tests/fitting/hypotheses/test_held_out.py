"""Held-out densities: leave-one-out, with hyperparameters, scaling and gate that have not seen the row."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from dsmgp import DSMGPRegressor
from dsmgp.fitting.config import check_parameters
from dsmgp.fitting.hypotheses.held_out import held_out_log_densities
from dsmgp.progress import Listener, listening


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, np.sin(5 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=n)


def fitted(X, y, **settings):
    model = DSMGPRegressor(random_state=0, hypotheses=None, **settings).fit(X, y)
    return model, model.state_, check_parameters(model)


def test_at_fixed_hyperparameters_they_are_those_of_exact_gps():
    X, y = table(40)
    settings = {"weights": "uniform", "leaf_size": 100, "sum_children": 1, "optimizer": None}
    _, state, config = fitted(X, y, kernel="rbf", noise_variance=0.05, **settings)
    fold = np.arange(40) % 4
    held_out = held_out_log_densities(state, fold, config, 0)
    found = held_out.log_densities
    (family,) = state.mixture.families
    kernel = family.processes[0].kernel
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    K = kernel(Z) + 0.05 * np.eye(40)
    expected, means, cdf = np.empty((3, 40))
    for i in range(40):
        others, outside = np.delete(np.arange(40), i), fold != fold[i]
        centre, scale = y[outside].mean(), y[outside].std()
        solved = np.linalg.solve(K[np.ix_(others, others)], K[others, i])
        means[i] = mean = centre + solved @ (y[others] - centre)
        std = scale * np.sqrt(K[i, i] - solved @ K[others, i])
        expected[i], cdf[i] = norm.logpdf(y[i], mean, std), norm.cdf(y[i], mean, std)
    np.testing.assert_allclose(found[0], expected, rtol=1e-8)
    np.testing.assert_allclose(found[1], expected, rtol=1e-8)  # there are no duplicates
    np.testing.assert_allclose(held_out.mean, means, rtol=1e-8)
    np.testing.assert_allclose(held_out.cdf, cdf, rtol=1e-8)


@pytest.mark.parametrize("settings", [{}, {"output_warp": "rank"}])
def test_the_density_of_a_row_integrates_to_one_over_its_output(settings):
    """It would not if what predicts the row had seen its output."""
    X, y = table(60)
    _, state, config = fitted(X, y, kernel="matern32", max_iter=20, **settings)
    row, fold = 7, (np.arange(60) % 5 == 2).astype(int)
    values = np.linspace(-3.0, 4.0, 29)
    densities = []
    for value in values:
        Y = state.rows.Y.copy()
        Y[row] = value
        changed = replace(state, rows=replace(state.rows, Y=Y))
        held_out = held_out_log_densities(changed, fold, config, 0)
        densities.append(np.exp(held_out.log_densities[0, row]))
    assert np.trapezoid(densities, values) == pytest.approx(1.0, abs=0.05)


def test_they_are_worse_than_leave_one_out_where_much_is_learned(rng):
    X, y = rng.normal(size=(60, 12)), rng.normal(size=60)
    model, state, config = fitted(X, y, kernel="rbf", mean="linear")
    score = -held_out_log_densities(state, np.arange(60) % 5, config, 0).log_densities.mean()
    assert score > model.loo_score_ + 0.1


def test_a_fit_that_is_asked_to_stop_has_none():
    _, state, config = fitted(*table(), kernel="rbf", max_iter=5)
    listener = Listener()
    listener.stop()
    with listening(listener):
        assert held_out_log_densities(state, np.arange(60) % 5, config, 0) is None
