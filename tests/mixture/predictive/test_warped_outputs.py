"""Mixtures and models of warped outputs: proper distributions whose moments, densities and draws agree."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

from dsmgp import DSMGPRegressor, Mixture
from dsmgp.gp.transforms.output_warp import LogWarp, normal_scores
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.predictive.warped_covariance import warped_moments
from dsmgp.scores import crps, score_each
from dsmgp.tree import Leaf, Region

SKEWED = np.exp(np.random.default_rng(0).normal(size=500))
WARPS = {
    "rank": normal_scores(SKEWED - 1.0),
    "positive": normal_scores(SKEWED, lower=0.0),
    "log": LogWarp(),
}


@pytest.fixture(params=WARPS)
def warp(request):
    return WARPS[request.param]


@pytest.fixture
def mixture(warp, rng):
    weights = rng.dirichlet(np.ones(3), size=4)
    means, variances = rng.normal(size=(4, 3, 1)), rng.uniform(0.02, 0.5, size=(4, 3, 1))
    units = OutputScaling(np.array([0.2]), np.array([[0.9]]), [warp])
    return Mixture(weights, means, variances, units)


def ends(mixture, row):
    """An interval that holds all but 1e-9 of a row's distribution, with points inside it."""
    points = mixture[row].quantile([1e-10, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1 - 1e-10])[:, 0]
    return points[0], points[-1], points[1:-1]


def test_densities_integrate_to_one_and_to_the_moments(mixture):
    for row in range(len(mixture)):
        low, high, inside = ends(mixture, row)
        one = mixture[row]

        def integral(function, one=one, edges=(low, *inside, high)):
            return sum(
                quad(lambda v: function(v) * one.pdf(v)[0], a, b, epsabs=1e-8, limit=200)[0]
                for a, b in pairwise(edges)
            )

        assert integral(lambda v: 1.0) == pytest.approx(1.0, abs=1e-6)
        mean = integral(lambda v: v)
        assert one.mean[0] == pytest.approx(mean, rel=1e-5)
        second = integral(lambda v, mean=mean: (v - mean) ** 2)
        assert one.var[0] == pytest.approx(second, rel=1e-4)


def test_cdf_is_the_integral_of_the_density_and_quantiles_invert_it(mixture):
    for row in range(len(mixture)):
        low, high, inside = ends(mixture, row)
        at = 0.3 * low + 0.7 * inside[3]
        below = quad(
            lambda v, row=row: mixture[row].pdf(v)[0],
            low,
            at,
            points=inside[inside < at],
            limit=500,
        )[0]
        assert mixture.cdf(at)[row] == pytest.approx(below, abs=1e-7)
    for level in (1e-6, 0.05, 0.5, 0.95, 1 - 1e-6):
        np.testing.assert_allclose(mixture.cdf(mixture.quantile(level)), level, rtol=1e-7)
    low, high = mixture.interval(0.8)
    np.testing.assert_allclose(mixture.cdf(high) - mixture.cdf(low), 0.8)


def test_draws_have_the_moments(mixture):
    draws = mixture.sample(200_000, random_state=0)
    error = np.abs(draws.mean(axis=0) - mixture.mean) / mixture.std
    assert error.max() < 0.02
    np.testing.assert_allclose(
        np.median(draws, axis=0), mixture.quantile(0.5), rtol=0.05, atol=0.02
    )


def test_nothing_is_below_a_bound(mixture, warp):
    if warp.lower is None:
        pytest.skip("no bound")
    for below in (0.0, -1.0, -np.inf):
        assert (mixture.logpdf(below) == -np.inf).all()
        assert (mixture.joint_logpdf(below) == -np.inf).all()
        assert (mixture.cdf(below) == 0).all()
    assert (mixture.sample(1000, 0) > 0).all()
    assert (mixture.quantile(1e-9) > 0).all()


def test_rows_keep_their_distribution(mixture):
    part = mixture[[2, 0]]
    np.testing.assert_array_equal(part.mean, mixture.mean[[2, 0]])
    np.testing.assert_array_equal(part.component_means, mixture.component_means[[2, 0]])
    np.testing.assert_array_equal(part.logpdf(0.7), mixture.logpdf(0.7)[[2, 0]])


def test_latents_of_a_mixture_without_warps_are_its_outputs(rng):
    units = OutputScaling(rng.normal(size=1), np.full((1, 1), 2.0))
    plain = Mixture(np.ones((2, 1)), rng.normal(size=(2, 1, 1)), np.ones((2, 1, 1)), units)
    assert plain.warps == ()
    np.testing.assert_array_equal(plain.latent.mean, plain.mean)


def test_joint_densities_of_mixed_and_warped_outputs(rng):
    """By the densities of the latent outputs, and as an integral over one of them."""
    loading = np.array([[1.0, 0.0], [0.8, 0.5]])
    units = OutputScaling(np.array([0.1, 0.3]), loading, [LogWarp(), None])
    one = Mixture(np.ones((1, 1)), np.zeros((1, 1, 2)), np.full((1, 1, 2), 0.3), units, False)
    assert one.warps == (units.warps[0], None)
    y = np.array([[1.5, 0.4]])
    latent = Mixture(
        one.weights,
        np.zeros((1, 1, 2)),
        np.full((1, 1, 2), 0.3),
        OutputScaling(units.centre, loading),
        False,
    )
    expected = latent.joint_logpdf(np.column_stack([np.log(y[:, 0]), y[:, 1]])) - np.log(1.5)
    np.testing.assert_allclose(one.joint_logpdf(y), expected)
    marginal = quad(lambda v: np.exp(one.joint_logpdf([[1.5, v]])[0]), -8, 8, limit=300)[0]
    assert one.pdf(y)[0, 0] == pytest.approx(marginal, rel=1e-6)
    np.testing.assert_allclose(one.marginal(0).logpdf([1.5]), one.logpdf(y)[:, 0])
    np.testing.assert_allclose(one.marginal(1).var, one.var[:, 1])
    scores = score_each(y, one, [1.0, 0.0])
    assert scores[0]["nlpd"] == pytest.approx(-one.logpdf(y)[0, 0])


def test_crps_of_a_warped_mixture_is_the_integral_over_its_cdf(mixture):
    for y in (0.05, 1.0, 9.0, -2.0):
        expected = 0.0
        for row in range(len(mixture)):
            low, high, inside = ends(mixture, row)
            points = [*inside, *([y] if low < y < high else [])]
            expected += quad(
                lambda v, row=row, y=y: (mixture[row].cdf(v)[0] - (v >= y)) ** 2,
                low,
                high,
                points=sorted(points),
                limit=500,
            )[0]
            expected += max(low - y, 0.0) + max(y - high, 0.0)
        got = crps(np.full(len(mixture), y), mixture)
        assert got == pytest.approx(expected / len(mixture), rel=1e-5)


def test_crps_of_a_linear_warp_is_that_of_gaussians(rng):
    """With more components than the quadrature resolves one by one."""
    weights = rng.dirichlet(np.full(40, 0.3), size=30)
    means, variances = rng.normal(size=(30, 40, 1)), np.exp(2 * rng.normal(size=(30, 40, 1)) - 3)
    linear = normal_scores(SKEWED, 0.0)
    warped = Mixture(weights, means, variances, OutputScaling(np.zeros(1), np.eye(1), [linear]))
    unit = OutputScaling(linear.from_latent(np.zeros(1)), linear.slopes[:1, None])
    y = rng.normal(size=30) * 2
    expected = crps(y, Mixture(weights, means, variances, unit))
    assert crps(y, warped) == pytest.approx(expected, rel=1e-4)


# Joint moments over rows


def bivariate(warp, mean, covariance):
    """Cov(h(A), h(B)) by quadrature over two Gaussians."""
    L = np.linalg.cholesky(covariance)
    z = np.linspace(-8, 8, 1601)
    w = np.exp(-0.5 * z * z)
    w /= w.sum()
    a = warp.from_latent(mean[0] + L[0, 0] * z)
    b = warp.from_latent(mean[1] + L[1, 0] * z[:, None] + L[1, 1] * z)
    products = (w[:, None] * w) * (a - w @ a)[:, None] * b
    return products.sum()


@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.3, 0.95])
@pytest.mark.parametrize("stds", [(0.3, 0.3), (0.05, 0.8), (1.2, 0.6)])
def test_covariances_equal_quadrature(warp, rho, stds):
    mean, s = np.array([0.3, -0.8]), np.array(stds)
    covariance = np.outer(s, s) * [[1, rho], [rho, 1]]
    mapped, result = warped_moments(warp, mean, covariance, np.ones(1), np.ones(1))
    expected_mean, expected_variance = warp.moments(mean, s**2)
    np.testing.assert_array_equal(mapped, expected_mean)
    np.testing.assert_allclose(np.diag(result), expected_variance)
    scale = np.sqrt(np.prod(expected_variance))
    assert result[0, 1] == pytest.approx(bivariate(warp, mean, covariance), abs=1e-4 * scale)


def test_covariances_are_positive_and_equal_rows_perfectly_correlated(warp, rng):
    x = rng.uniform(-2, 2, size=60)
    x[1] = x[0]
    covariance = 0.8 * np.exp(-((x[:, None] - x) ** 2))
    mean, result = warped_moments(
        warp, np.sin(x), covariance, np.array([0.7, 0.3]), np.array([0.5, 2.0])
    )
    assert np.linalg.eigvalsh(result).min() > -1e-9 * result.max()
    np.testing.assert_allclose(result[0, 1], result[0, 0])
    np.testing.assert_allclose(result[0], result[1], rtol=1e-6)
    assert mean[0] == mean[1]


def test_rows_without_variance_have_no_covariance(warp):
    mean, result = warped_moments(warp, np.zeros(2), np.diag([0.0, 1.0]), np.ones(1), np.ones(1))
    np.testing.assert_allclose(result[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(mean[0], warp.from_latent(np.zeros(1))[0])


# Fitted models


def skewed_rows(rng, n=150, n_outputs=1):
    X = rng.uniform(-2, 2, size=(n, 2))
    noise = 0.3 * rng.normal(size=(n, n_outputs))
    Y = np.exp(np.sin(2 * X[:, :n_outputs]) + noise)
    return X, Y[:, 0] if n_outputs == 1 else Y


@pytest.mark.parametrize("weights", ["gated", "posterior"])
@pytest.mark.parametrize("name", WARPS)
def test_all_ways_to_predict_agree(rng, name, weights):
    X, y = skewed_rows(rng)
    options = {"leaf_size": 40, "weights": weights, "max_iter": 5, "random_state": 0}
    model = DSMGPRegressor("rbf", output_warp=name, **options).fit(X, y)
    new = rng.uniform(-2, 2, size=(6, 2))
    for noisy in (True, False):
        distribution = model.predict_dist(new, include_noise=noisy)
        mean, std = model.predict(new, return_std=True, include_noise=noisy)
        np.testing.assert_allclose(mean, distribution.mean)
        np.testing.assert_allclose(std, distribution.std)
        mean, covariance = model.predict(new, return_cov=True, include_noise=noisy)
        np.testing.assert_allclose(mean, distribution.mean, rtol=1e-7)
        np.testing.assert_allclose(np.diag(covariance), distribution.var, rtol=1e-6)
        assert np.linalg.eigvalsh(covariance).min() > -1e-9 * covariance.max()
        draws = model.sample_y(new, 40_000, random_state=0, include_noise=noisy)
        assert (np.abs(draws.mean(axis=1) - mean) < 0.05 * std).all()
        scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        # The widest shape of a gate is rare, and most of the variance.
        tolerance = 0.3 if weights == "gated" else 0.1
        assert np.abs((np.cov(draws) - covariance) / scale).max() < tolerance
    of_y, of_f = (model.predict_dist(new, include_noise=noisy).var for noisy in (True, False))
    np.testing.assert_allclose(model.noise_at(new), of_y - of_f, rtol=1e-6)
    np.testing.assert_allclose(model.predict(new), model.predict_dist(new).mean)


@pytest.mark.parametrize("weights", ["gated", "posterior"])
def test_the_logarithm_is_that_of_the_outputs(rng, weights):
    """A fit to log(y), mapped back by hand."""
    X, y = skewed_rows(rng)
    options = {"leaf_size": 40, "weights": weights, "max_iter": 5, "random_state": 0}
    warped = DSMGPRegressor("matern32", output_warp="log", **options).fit(X, y)
    by_hand = DSMGPRegressor("matern32", **options).fit(X, np.log(y))
    log_jacobian = -np.log(y).sum()
    new = rng.uniform(-2, 2, size=(5, 2))
    ours, theirs = warped.predict_dist(new), by_hand.predict_dist(new)
    np.testing.assert_allclose(ours.quantile(0.2), np.exp(theirs.quantile(0.2)))
    np.testing.assert_allclose(ours.logpdf(0.8), theirs.logpdf(np.log(0.8)) - np.log(0.8))
    means, variances = theirs.component_means[..., 0], theirs.component_variances[..., 0]
    expected = (theirs.weights * np.exp(means + 0.5 * variances)).sum(axis=1)
    np.testing.assert_allclose(warped.predict(new), expected)
    np.testing.assert_allclose(
        warped.sample_y(new, 3, random_state=1), np.exp(by_hand.sample_y(new, 3, random_state=1))
    )
    assert warped.log_marginal_likelihood_ == pytest.approx(
        by_hand.log_marginal_likelihood_ + log_jacobian
    )
    for score in ("loo_score_", "loo_score_new_inputs_"):
        expected = getattr(by_hand, score) - log_jacobian / len(y)
        assert getattr(warped, score) == pytest.approx(expected)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("name", WARPS)
def test_evidence_of_one_leaf_is_that_of_a_dense_gaussian(rng, name, standardize):
    X, y = skewed_rows(rng, 80)
    model = DSMGPRegressor(
        "rbf",
        structure=Leaf(Region.whole(2)),
        output_warp=name,
        standardize=standardize,
        random_state=0,
    ).fit(X, y)
    scaling = model.state_.model.outputs
    (warp,) = scaling.warps
    t = warp.to_latent(y)
    A = model.state_.model.inputs.to_experts(X) / np.ravel(model.kernel_.lengthscale)
    K = model.kernel_.outputscale * np.exp(-0.5 * ((A[:, None] - A) ** 2).sum(-1))
    K = scaling.loading[0, 0] ** 2 * (K + model.noise_ * np.eye(len(y)))
    away = t - scaling.centre
    dense = -0.5 * (away @ np.linalg.solve(K, away) + np.linalg.slogdet(2 * np.pi * K)[1])
    step = 1e-5 * y
    slopes = (warp.to_latent(y + step) - warp.to_latent(y - step)) / (2 * step)
    expected = dense + np.log(slopes).sum()
    assert model.log_marginal_likelihood_ == pytest.approx(expected, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("mixed", [True, False])
def test_several_outputs_have_a_warp_each(rng, mixed):
    X, Y = skewed_rows(rng, n_outputs=2)
    if mixed:
        Y[:, 1] = Y[:, 0] ** 2 * np.exp(0.1 * rng.normal(size=len(Y)))
    options = {"leaf_size": 60, "max_iter": 5, "random_state": 0}
    model = DSMGPRegressor("rbf", output_warp="positive", **options).fit(X, Y)
    assert model.state_.model.outputs.diagonal != mixed
    new = X[:5] + 0.1
    distribution = model.predict_dist(new)
    mean, covariance = model.predict(new, return_cov=True)
    np.testing.assert_allclose(mean, distribution.mean, rtol=1e-7)
    np.testing.assert_allclose(np.einsum("iik->ik", covariance), distribution.var, rtol=1e-6)
    draws = model.sample_y(new, 20_000, include_noise=True)
    assert (np.abs(draws.mean(axis=2) - mean) < 0.05 * distribution.std).all()
    np.testing.assert_allclose(
        distribution.cdf(distribution.quantile(0.3)), np.full((5, 2), 0.3), rtol=1e-9
    )
    summary = model.summary()
    assert "output 1: normal scores above 0" in summary
    assert ("before its warp" in summary) if mixed else ("standardised" in summary)


def test_a_constant_output_is_not_warped(rng):
    X = rng.normal(size=(40, 1))
    model = DSMGPRegressor("rbf", output_warp="rank", max_iter=3).fit(X, np.full(40, 3.0))
    assert model.state_.model.outputs.warps == ()
    np.testing.assert_allclose(model.predict(X[:3]), 3.0)


def test_a_linear_warp_only_scales_covariances():
    linear = normal_scores(SKEWED, 0.0)
    covariance = np.array([[1.0, 0.4], [0.4, 2.0]])
    _, result = warped_moments(linear, np.zeros(2), covariance, np.ones(1), np.ones(1))
    np.testing.assert_allclose(result, linear.slopes[0] ** 2 * covariance)
