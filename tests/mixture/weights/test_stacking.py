"""Weights of hypotheses: those that maximise the log density of the mixture, up to a mild prior."""

import numpy as np
import pytest

from dsmgp.mixture.weights.stacking import LEAST_WEIGHT, PRIOR_LOG_ODDS, PRIOR_SCALE, stack


def objective(log_densities, weights, row_weights=None):
    """Log density of the mixture and of the prior, by a direct sum; logits up to the constant with which the prior is largest."""
    rows = np.ones(len(log_densities)) if row_weights is None else row_weights
    away = np.log(weights) - PRIOR_LOG_ODDS * (np.arange(len(weights)) == 0)
    away -= away.mean()
    mixed = np.log(np.exp(log_densities) @ weights)
    return rows @ mixed - 0.5 * (away @ away) / PRIOR_SCALE**2


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_are_the_best_of_a_grid(rng, weighted):
    log_densities = rng.normal(size=(40, 3)) + [0.0, 0.2, 0.5]
    row_weights = rng.uniform(0.5, 3.0, size=40) if weighted else None
    grid = np.linspace(0.005, 0.99, 198)
    first, second = np.meshgrid(grid, grid)
    inside = first + second < 0.995
    points = np.stack([first[inside], second[inside], 1 - first[inside] - second[inside]], axis=1)
    values = [objective(log_densities, point, row_weights) for point in points]
    found = stack(log_densities, row_weights)
    np.testing.assert_allclose(found, points[np.argmax(values)], atol=0.006)
    assert objective(log_densities, found, row_weights) >= max(values) - 1e-6


def test_the_simplest_has_most_weight_where_nothing_tells_hypotheses_apart(rng):
    densities = rng.normal(size=(100, 1))
    weights = stack(np.repeat(densities, 4, axis=1))
    np.testing.assert_allclose(weights[0] / weights[1:], np.exp(PRIOR_LOG_ODDS), rtol=1e-4)


def test_a_few_rows_do_not_outweigh_the_simplest_but_many_do(rng):
    for n_rows, simplest in ((20, True), (400, False)):
        weights = stack(np.tile([0.0, 0.05], (n_rows, 1)))
        assert (weights[0] > 0.5) == simplest


def test_a_hypothesis_without_merit_is_dropped(rng):
    good = rng.normal(size=300)
    weights = stack(np.stack([good, good - 2.0, good - 1e4], axis=1))
    assert weights.sum() == pytest.approx(1.0)
    assert weights[2] == 0.0
    assert weights[weights > 0].min() >= LEAST_WEIGHT


def test_rows_that_no_hypothesis_but_one_can_explain_count(rng):
    """Densities that underflow relative to others are no density of zero."""
    log_densities = np.tile([0.0, -0.5], (50, 1))
    log_densities[0] = [-1e6, -1.0]
    weights = stack(log_densities)
    assert weights[1] > LEAST_WEIGHT
