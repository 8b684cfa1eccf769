"""The gate: gradient, what it can find, and the process that it makes."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dsmgp import DSMGPRegressor
from dsmgp.experts.loo import Components, leaf_scales, standardised, without_known_noise
from dsmgp.mixture.weights.gating import Gate, GateObjective, fit_gate, log_product


def random_problem(rng, n=60, k=4, outputs=2, n_shapes=2):
    path = np.log(rng.dirichlet(np.ones(k), size=n))
    if k > 1:
        path[:5, -1] = -np.inf  # rows that reach fewer leaves
    path -= np.logaddexp.reduce(path, axis=1, keepdims=True)
    log_v, log_z = rng.normal(size=(2, n, k))
    spread = np.exp((log_v + log_z)[..., None] / outputs) * np.ones(outputs)
    residual = np.sqrt(2.0 * spread) * rng.normal(size=spread.shape)
    return GateObjective(path, log_v, log_z, residual, spread, n_shapes)


@pytest.mark.parametrize(("n_shapes", "k"), [(0, 4), (2, 4), (3, 4), (3, 1)])
def test_the_gradient_equals_finite_differences(rng, n_shapes, k):
    problem = random_problem(rng, k=k, n_shapes=n_shapes)
    theta = rng.normal(size=1 if n_shapes == 0 else 2 * n_shapes + 1)
    h = 1e-5
    expected = [
        (problem.score(theta + h * e)[0] - problem.score(theta - h * e)[0]) / (2 * h)
        for e in np.eye(len(theta))
    ]
    np.testing.assert_allclose(problem.score(theta)[1], expected, atol=1e-8)


@pytest.mark.parametrize("k", [1, 4])
def test_the_score_is_the_mixtures(rng, k):
    """One output, by scipy."""
    problem = random_problem(rng, k=k, outputs=1)
    theta = np.array([1.5, 0.4, -0.7, -0.3, 0.9])
    weights = np.exp(problem.log_path - 1.5 * problem.log_v - 0.4 * problem.log_z)
    weights /= weights.sum(axis=1, keepdims=True)
    shapes = np.exp([0.0, -0.7]) / np.exp([0.0, -0.7]).sum()
    variance, residual = problem.spread[..., 0], problem.residual[..., 0]
    density = sum(
        weights * w * stats.norm.pdf(residual, scale=np.sqrt(variance * np.exp(c)))
        for w, c in zip(shapes, [-0.3, 0.9], strict=True)
    ).sum(axis=1)
    error = (weights * residual).sum(axis=1)
    expected = np.log(density).mean() - 0.5 * np.log(np.mean(error**2))
    assert problem.score(theta)[0] == pytest.approx(expected, rel=1e-12)


def test_the_gate_trusts_the_leaf_that_is_sure_where_that_is_right(rng):
    """Two experts, each good where it says it is: the fitted gate follows their variances."""
    n = 2000
    y = np.zeros((n, 1))
    variance = np.where(rng.uniform(size=(n, 1, 1)) < 0.5, [[[0.01], [1.0]]], [[[1.0], [0.01]]])
    mean = rng.normal(size=variance.shape) * np.sqrt(variance)
    components = Components(np.tile([0, 1], (n, 1)), mean, variance)
    path = np.full((n, 2), np.log(0.5))
    gate = fit_gate(components, np.ones_like(mean), path, y, local_scale=False)
    assert gate.variance_exponent > 0.5
    np.testing.assert_array_equal(gate.shape_variances, [1.0])
    np.testing.assert_array_equal(gate.shape_weights, [1.0])


def test_the_gate_does_not_trust_what_says_nothing(rng):
    """Variances and scales that have nothing to do with how good a leaf is: weights of all become alike."""
    variance, scale = np.exp(rng.normal(size=(2, 2000, 2, 1)))
    components = Components(np.tile([0, 1], (2000, 1)), rng.normal(size=variance.shape), variance)
    path = np.full((2000, 2), np.log(0.5))
    gate = fit_gate(components, scale, path, np.zeros((2000, 1)), local_scale=True)
    assert abs(gate.variance_exponent) < 0.2
    assert abs(gate.scale_exponent) < 0.2


@pytest.mark.parametrize("local_scale", [True, False])
def test_where_the_rows_say_nothing_of_the_exponents_they_stay_where_they_start(rng, local_scale):
    """With one leaf there is nothing to weigh: only the pull towards the start is left."""
    variance, scale = np.exp(rng.normal(size=(2, 200, 1, 1)))
    components = Components(
        np.zeros((200, 1), dtype=int), rng.normal(size=variance.shape), variance
    )
    gate = fit_gate(components, scale, np.zeros((200, 1)), np.zeros((200, 1)), local_scale)
    assert gate.variance_exponent == pytest.approx(3.0)
    assert gate.scale_exponent == pytest.approx(1.0 if local_scale else 0.0)


def test_heavy_tails_are_fitted(rng):
    n = 4000
    components = Components(np.zeros((n, 1), dtype=int), np.zeros((n, 1, 1)), np.ones((n, 1, 1)))
    wide = rng.uniform(size=n) < 0.2
    y = rng.normal(size=n) * np.where(wide, 3.0, 0.5)
    gate = fit_gate(components, np.ones((n, 1, 1)), np.zeros((n, 1)), y[:, None], local_scale=True)
    wide = gate.shape_variances > 2.0
    assert gate.shape_weights[wide].sum() == pytest.approx(0.2, abs=0.04)
    narrow = gate.shape_weights[~wide] / gate.shape_weights[~wide].sum()
    assert narrow @ gate.shape_variances[~wide] == pytest.approx(0.25, rel=0.1)
    assert gate.shape_variances[wide] == pytest.approx(9.0, rel=0.2)


def test_without_a_gate_nothing_is_weighed_or_spread():
    assert (Gate().variance_exponent, Gate().scale_exponent) == (0.0, 0.0)
    gate = Gate()
    np.testing.assert_array_equal(
        gate.log_weight(np.array([-1.0]), np.ones((1, 1)) * 5, np.ones((1, 1))), [-1.0]
    )
    assert gate.mean_variance == 1.0


@pytest.fixture(params=["balanced", "paper", "two_outputs"])
def gated(request, rng):
    X = rng.uniform(-2, 2, size=(200, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * (1 + 3 * (X[:, 1] > 0)) * rng.standard_t(4, size=200)
    if request.param == "two_outputs":
        y = np.column_stack([y, 0.5 * y + 0.2 * rng.normal(size=200)])
    options = (
        {"structure": "paper", "sum_children": 2, "product_children": 2}
        if request.param == "paper"
        else {}
    )
    model = DSMGPRegressor(
        "matern32",
        leaf_size=[20, 40, 80] if not options else 30,
        random_state=0,
        max_iter=20,
        **options,
    )
    X_test = rng.uniform(-2.2, 2.2, size=(12, 2))
    return model.fit(X, y), X_test


def test_gated_weights_sum_to_one_and_move_with_x(gated):
    model, X_test = gated
    distribution = model.predict_dist(X_test)
    np.testing.assert_allclose(distribution.weights.sum(axis=1), 1.0, atol=1e-12)
    assert np.ptp(distribution.weights, axis=0).max() > 0.01


def test_gated_joint_moments_have_the_mixtures_marginals(gated):
    model, X_test = gated
    for noise in (True, False):
        distribution = model.predict_dist(X_test, include_noise=noise)
        mean, covariance = model.predict(X_test, return_cov=True, include_noise=noise)
        np.testing.assert_allclose(mean, distribution.mean, atol=1e-9)
        diagonal = np.einsum("ii...->i...", covariance)
        np.testing.assert_allclose(diagonal, distribution.var, atol=1e-8)
        np.testing.assert_allclose(model.predict(X_test), distribution.mean, atol=1e-12)


def test_the_gated_distribution_of_a_subset_does_not_depend_on_the_other_rows(gated):
    model, X_test = gated
    subset = [1, 5, 6, 10]
    mean, covariance = model.predict(X_test, return_cov=True)
    sub_mean, sub_covariance = model.predict(X_test[subset], return_cov=True)
    np.testing.assert_allclose(mean[subset], sub_mean, atol=1e-10)
    np.testing.assert_allclose(covariance[np.ix_(subset, subset)], sub_covariance, atol=1e-10)


def test_gated_covariances_are_positive_semidefinite(gated):
    model, X_test = gated
    _, covariance = model.predict(X_test, return_cov=True, include_noise=False)
    matrices = covariance if covariance.ndim == 2 else np.moveaxis(covariance, -1, 0)
    assert np.linalg.eigvalsh(matrices).min() > -1e-9


def test_gated_draws_have_the_joint_moments(gated):
    model, X_test = gated
    for noise in (False, True):
        draws = model.sample_y(X_test, 30_000, random_state=1, include_noise=noise)
        mean, covariance = model.predict(X_test, return_cov=True, include_noise=noise)
        if draws.ndim == 2:
            draws, mean, covariance = draws[:, None], mean[:, None], covariance[..., None]
        for k in range(mean.shape[1]):
            scale = np.sqrt(np.diag(covariance[..., k]))
            error = 6 * scale / np.sqrt(30_000)
            assert (np.abs(draws[:, k].mean(axis=1) - mean[:, k]) < error).all()
            np.testing.assert_allclose(
                np.cov(draws[:, k]) / np.outer(scale, scale),
                covariance[..., k] / np.outer(scale, scale),
                atol=0.12,
            )


def test_gated_draws_follow_the_marginal_mixture(gated):
    model, X_test = gated
    distribution = model.predict_dist(X_test)
    draws = model.sample_y(X_test, 3000, random_state=2, include_noise=True)
    for sample in range(draws.shape[-1])[:1]:
        assert distribution.cdf(draws[..., sample]).shape == distribution.mean.shape
    ranks = np.stack([distribution.cdf(draws[..., s]) for s in range(draws.shape[-1])])
    for column in ranks.reshape(len(ranks), -1).T:
        assert stats.kstest(column, "uniform").pvalue > 1e-5


@pytest.mark.parametrize("n_outputs", [1, 2, 3])
def test_a_log_product_is_over_all_outputs(n_outputs):
    values = np.random.default_rng(0).uniform(0.5, 2.0, size=(4, n_outputs))
    np.testing.assert_allclose(log_product(values), np.log(np.prod(values, axis=-1)))


def test_products_are_over_the_last_axis():
    values = np.exp(np.arange(6.0)).reshape(2, 1, 3)
    np.testing.assert_allclose(log_product(values), [[3.0], [12.0]])


def test_rows_count_less_where_most_of_their_error_is_noise_that_is_known(rng):
    problem = replace(
        random_problem(rng), known_noise=np.repeat([[0.0], [1.0], [50.0]], 20, axis=0) * np.ones(2)
    )
    usual = np.median(problem.spread, axis=(0, 1))
    weight = usual / (usual + problem.known_noise)
    np.testing.assert_allclose(problem.trust, weight / weight.mean(axis=0))
    np.testing.assert_allclose(problem.trust.mean(axis=0), 1.0)
    assert (np.diff(problem.trust[::20], axis=0) < 0).all()


def test_residuals_as_large_as_expected_make_a_scale_of_one_whatever_noise_is_known():
    """A row's square counts as much as its own variance is of the whole; known noise is not the leaf's to answer for."""
    variance, known_noise = np.array([0.3, 2.0, 5.0]), np.array([0.0, 0.5, 4.9])
    squares, counts = standardised(variance, variance, known_noise)
    np.testing.assert_allclose(squares, counts)
    np.testing.assert_allclose(counts, np.square((variance - known_noise) / variance))
    np.testing.assert_allclose(standardised(2 * variance, variance, 0 * known_noise)[0], 2.0)
    np.testing.assert_allclose(standardised(2 * variance, variance, None)[0], 2.0)


def test_a_scale_is_the_mean_square_with_one_row_of_prior_beside():
    np.testing.assert_allclose(leaf_scales(np.array([0.0, 7.0]), np.array([3.0, 1.0])), [0.25, 4.0])


def test_noise_that_is_known_to_be_all_there_is_leaves_next_to_nothing():
    variance = without_known_noise(np.array([4.0, 4.0]), np.array([1.0, 5.0]))
    np.testing.assert_allclose(variance, [3.0, 4e-9])


def test_weights_fall_with_variance_and_scale_as_the_gate_was_fitted():
    gate = Gate(1.5, 0.4, np.ones(1), np.ones(1))
    path, variance, scale = np.log([0.3]), np.array([[2.0, 3.0]]), np.array([[0.5, 7.0]])
    expected = np.log(0.3) - 1.5 * np.log(6.0) - 0.4 * np.log(3.5)
    np.testing.assert_allclose(gate.log_weight(path, variance, scale), [expected])
    np.testing.assert_allclose(gate.log_constant(path, scale), [np.log(0.3) - 0.4 * np.log(3.5)])
