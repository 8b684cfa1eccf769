"""The predictive mixture: a proper distribution at every row."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import ndtr

from dsmgp import Mixture
from dsmgp.gp.transforms.output_warp import LogWarp
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.predictive import distribution as mixture


def random_mixture(seed=0, n=5, components=4, outputs=1, rotated=False):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(components), size=n)
    weights[0, 0] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    means = rng.normal(scale=2.0, size=(n, components, outputs))
    variances = rng.gamma(2.0, 0.5, size=means.shape)
    loading = (
        rng.normal(size=(outputs, outputs)) if rotated else np.diag(rng.uniform(0.5, 3, outputs))
    )
    return Mixture(weights, means, variances, OutputScaling(rng.normal(size=outputs), loading))


def densities(distribution, grid):
    """The density of every row at every point of a grid, (n_points, n_rows)."""
    rows = (distribution[np.full(len(grid), k)] for k in range(len(distribution)))
    return np.stack([row.pdf(grid) for row in rows], axis=1)


def test_density_integrates_to_one_and_has_the_stated_moments():
    distribution = random_mixture()
    grid = np.linspace(-60, 60, 40001)
    density = densities(distribution, grid)
    np.testing.assert_allclose(integrate.simpson(density, x=grid, axis=0), 1.0, rtol=1e-10)
    mean = integrate.simpson(density * grid[:, None], x=grid, axis=0)
    np.testing.assert_allclose(mean, distribution.mean, rtol=1e-9)
    second = integrate.simpson(density * (grid[:, None] - mean) ** 2, x=grid, axis=0)
    np.testing.assert_allclose(second, distribution.var, rtol=1e-9)
    np.testing.assert_allclose(distribution.std**2, distribution.var)


def test_cdf_is_the_integral_of_the_density():
    distribution = random_mixture(1)
    for y in (-1.0, 0.3, 2.5):
        grid = np.linspace(-60, y, 40001)
        density = densities(distribution, grid)
        np.testing.assert_allclose(
            integrate.simpson(density, x=grid, axis=0), distribution.cdf(y), atol=1e-9
        )


def test_density_and_cdf_are_scipys_weighted_by_hand():
    distribution = random_mixture(2)
    y = np.linspace(-2, 2, len(distribution))
    scale = np.sqrt(distribution.component_variances[..., 0])
    each = stats.norm(distribution.component_means[..., 0], scale)
    np.testing.assert_allclose(
        distribution.pdf(y), (distribution.weights * each.pdf(y[:, None])).sum(1)
    )
    np.testing.assert_allclose(
        distribution.logpdf(y), np.log((distribution.weights * each.pdf(y[:, None])).sum(1))
    )
    np.testing.assert_allclose(
        distribution.cdf(y), (distribution.weights * each.cdf(y[:, None])).sum(1)
    )


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    q=st.one_of(st.floats(1e-12, 1e-3), st.floats(1e-3, 0.999), st.just(1 - 1e-9)),
    spread=st.floats(1e-3, 1e4),
)
def test_quantile_inverts_cdf(seed, q, spread):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(0.3 * np.ones(5), size=3)
    means = rng.normal(scale=spread, size=(3, 5, 1))
    distribution = Mixture(weights, means, rng.uniform(1e-4, 4.0, size=means.shape))
    np.testing.assert_allclose(distribution.cdf(distribution.quantile(q)), q, rtol=1e-6, atol=1e-15)


def test_quantiles_of_one_gaussian_are_scipys():
    distribution = Mixture(np.ones((1, 1)), np.full((1, 1, 1), 3.0), np.full((1, 1, 1), 4.0))
    for q in (1e-10, 0.05, 0.5, 0.975):
        assert distribution.quantile(q)[0] == pytest.approx(stats.norm(3, 2).ppf(q), rel=1e-12)


@pytest.mark.parametrize("level", [1e-4, 0.05, 0.5, 0.9, 1 - 1e-9])
def test_quantiles_take_a_few_steps(level, monkeypatch):
    """Not the fifty that halving a bracket would take."""
    calls = []
    monkeypatch.setattr(mixture, "ndtr", lambda z: calls.append(1) or ndtr(z))
    distribution = random_mixture(n=200)
    assert np.isfinite(distribution.quantile(level)).all()
    assert len(calls) <= 15


def test_quantiles_keep_their_order_on_a_huge_offset():
    """Where the whole distribution spans a few floating-point numbers."""
    rng = np.random.default_rng(0)
    means = 1e9 + 1e-6 * rng.normal(size=(300, 3, 1))
    distribution = Mixture(rng.dirichlet(np.ones(3), size=300), means, np.full(means.shape, 1e-14))
    assert (np.diff(distribution.quantile(np.linspace(0.001, 0.999, 50)), axis=0) >= 0).all()


def test_quantiles_increase_and_stack_by_level():
    distribution = random_mixture(3)
    levels = [0.05, 0.25, 0.5, 0.9]
    quantiles = distribution.quantile(levels)
    assert quantiles.shape == (4, len(distribution))
    assert (np.diff(quantiles, axis=0) > 0).all()
    np.testing.assert_allclose(quantiles[1], distribution.quantile(0.25))


def test_intervals_hold_their_probability():
    distribution = random_mixture(4)
    low, high = distribution.interval(0.8)
    np.testing.assert_allclose(distribution.cdf(high) - distribution.cdf(low), 0.8, rtol=1e-9)
    np.testing.assert_allclose(distribution.cdf(low), 0.1, rtol=1e-9)


def test_intervals_hold_nine_tenths_by_default():
    distribution = random_mixture()
    np.testing.assert_array_equal(distribution.interval(), distribution.interval(0.9))


def test_several_intervals_stack_by_level():
    for distribution in (random_mixture(4), random_mixture(4, outputs=2)):
        low, high = distribution.interval([0.5, 0.9])
        for k, level in enumerate([0.5, 0.9]):
            np.testing.assert_array_equal((low[k], high[k]), distribution.interval(level))


def test_the_median_and_ppf_are_quantiles():
    distribution = random_mixture(9)
    np.testing.assert_array_equal(distribution.median, distribution.quantile(0.5))
    np.testing.assert_array_equal(distribution.ppf([0.1, 0.7]), distribution.quantile([0.1, 0.7]))
    np.testing.assert_allclose(distribution.cdf(distribution.ppf(0.3)), 0.3, rtol=1e-9)
    np.testing.assert_allclose(distribution.sf(distribution.ppf(0.3)), 0.7, rtol=1e-9)


@pytest.mark.parametrize("warp", [None, LogWarp()])
def test_tails_are_those_of_many_digits(warp):
    """Also where they underflow, and where the other tail does."""
    units = OutputScaling(np.array([0.3]), np.array([[0.5]]), [] if warp is None else [warp])
    weights, means = np.array([[0.25, 0.75]]), np.array([[[-1.0], [2.0]]])
    variances = np.array([[[0.5], [2.0]]])
    distribution = Mixture(weights, means, variances, units)
    with mpmath.workdps(400):
        for t in (-80.0, -20.0, -6.0, 0.0, 0.7, 5.0, 12.0, 90.0):
            y = t if warp is None else np.exp(t)
            t = mpmath.mpf(t) if warp is None else mpmath.log(mpmath.mpf(float(y)))
            z = [
                (t - mpmath.mpf("0.3") - 0.5 * m) / (0.5 * mpmath.sqrt(v))
                for m, v in zip(means[0, :, 0], variances[0, :, 0], strict=True)
            ]
            for sign, tail, log_tail in ((1, "cdf", "logcdf"), (-1, "sf", "logsf")):
                p = sum(w * mpmath.ncdf(sign * each) for w, each in zip(weights[0], z, strict=True))
                assert getattr(distribution, tail)(y)[0] == pytest.approx(
                    float(p), rel=1e-9, abs=1e-300
                )
                assert getattr(distribution, log_tail)(y)[0] == pytest.approx(
                    float(mpmath.log(p)), rel=1e-9, abs=1e-300
                )


def test_samples_follow_the_distribution():
    distribution = random_mixture(5)
    draws = distribution.sample(20_000, random_state=0)
    assert draws.shape == (20_000, len(distribution))
    for k in range(len(distribution)):
        ranks = np.array([distribution.cdf(row)[k] for row in draws[:2000]])
        assert stats.kstest(ranks, "uniform").pvalue > 1e-4
    np.testing.assert_allclose(
        draws.mean(0), distribution.mean, atol=5 * distribution.std.max() / np.sqrt(20_000)
    )
    np.testing.assert_array_equal(draws, distribution.sample(20_000, random_state=0))


def test_a_component_without_weight_does_not_matter():
    distribution = Mixture(
        np.array([[1.0, 0.0]]), np.array([[[0.0], [1e6]]]), np.array([[[1.0], [1e-12]]])
    )
    assert distribution.quantile(0.5)[0] == pytest.approx(0.0, abs=1e-12)
    assert distribution.logpdf(0.0)[0] == pytest.approx(stats.norm.logpdf(0.0))


def test_variance_survives_a_large_offset():
    units = OutputScaling(np.array([1e9]), np.eye(1))
    distribution = Mixture(
        np.full((1, 2), 0.5), np.array([[[-1.0], [1.0]]]), np.ones((1, 2, 1)), units
    )
    assert distribution.var[0] == pytest.approx(2.0, rel=1e-6)


def test_far_tails_keep_their_log_density():
    distribution = Mixture(np.full((1, 2), 0.5), np.zeros((1, 2, 1)), np.ones((1, 2, 1)))
    assert distribution.logpdf(100.0)[0] == pytest.approx(stats.norm.logpdf(100.0))


@pytest.mark.parametrize("far", [1e200, 1e300, 1e308, np.inf, -np.inf])
def test_where_there_is_no_density_left_it_is_zero_and_not_nan(far):
    for distribution in (
        random_mixture(),
        random_mixture(outputs=2),
        random_mixture(outputs=2, rotated=True),
    ):
        assert (distribution.logpdf(far) == -np.inf).all()
        assert (distribution.joint_logpdf(far) == -np.inf).all()
        assert (distribution.pdf(far) == 0.0).all()
        assert (distribution.cdf(far) == (far > 0)).all()
        assert (distribution.sf(far) == (far < 0)).all()
        assert (distribution.logcdf(far) == (0.0 if far > 0 else -np.inf)).all()
        assert (distribution.logsf(far) == (0.0 if far < 0 else -np.inf)).all()
    mixed = [far, 0.0]
    assert (distribution.joint_logpdf(mixed) == -np.inf).all()


def test_y_that_is_no_number_is_refused():
    for method in ("logpdf", "pdf", "joint_logpdf", "cdf", "sf", "logcdf", "logsf"):
        with pytest.raises(ValueError, match="y contains NaN; drop such rows"):
            getattr(random_mixture(), method)(np.nan)


def test_several_outputs_share_weights_and_the_joint_is_a_mixture_of_gaussians():
    distribution = random_mixture(6, outputs=2, rotated=True)
    y = np.random.default_rng(1).normal(size=(len(distribution), 2))
    loading, centre = distribution._units.loading, distribution._units.centre
    expected = []
    for i in range(len(distribution)):
        total = 0.0
        for k in range(distribution.weights.shape[1]):
            covariance = loading @ np.diag(distribution._latent_variances[i, k]) @ loading.T
            mean = centre + loading @ distribution._latent_means[i, k]
            total += distribution.weights[i, k] * stats.multivariate_normal(mean, covariance).pdf(
                y[i]
            )
        expected.append(np.log(total))
    np.testing.assert_allclose(distribution.joint_logpdf(y), expected, rtol=1e-10)
    assert (
        distribution.logpdf(y).shape
        == distribution.mean.shape
        == distribution.quantile(0.3).shape
        == (len(distribution), 2)
    )


def test_marginals_of_the_joint_are_the_marginals():
    distribution = random_mixture(7, n=1, outputs=2, rotated=True)
    grid = np.linspace(-40, 40, 8001)
    joint = [distribution.joint_logpdf(np.array([[0.4, g]]))[0] for g in grid]
    integral = integrate.simpson(np.exp(joint), x=grid)
    assert integral == pytest.approx(distribution.pdf(np.array([[0.4, 0.0]]))[0, 0], rel=1e-8)


def test_joint_samples_have_the_joint_covariance():
    distribution = random_mixture(8, n=1, components=2, outputs=2, rotated=True)
    draws = distribution.sample(100_000, random_state=0)[:, 0]
    z_mean = distribution.weights[0] @ distribution._latent_means[0]
    z_away = distribution._latent_means[0] - z_mean
    z_cov = np.einsum("k,kp,kq->pq", distribution.weights[0], z_away, z_away)
    z_cov += np.diag(distribution.weights[0] @ distribution._latent_variances[0])
    loading = distribution._units.loading
    np.testing.assert_allclose(np.cov(draws.T), loading @ z_cov @ loading.T, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 1.1, np.nan, [0.5, 2.0]])
def test_levels_outside_zero_and_one_are_refused(bad):
    distribution = random_mixture()
    with pytest.raises(ValueError, match="between 0 and 1"):
        distribution.quantile(bad)
    if np.ndim(bad) == 0:
        with pytest.raises(ValueError, match="between 0 and 1"):
            distribution.interval(bad)


def test_y_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"expected y with shape \(5,\)"):
        random_mixture().logpdf(np.zeros(4))
    with pytest.raises(ValueError, match=r"expected y with shape \(5, 2\)"):
        random_mixture(outputs=2).logpdf(np.zeros((5, 3)))


def test_repr_says_how_large_it_is():
    assert repr(random_mixture()) == "Mixture(5 rows, 4 components, 1 output)"
    assert repr(random_mixture(outputs=2)) == "Mixture(5 rows, 4 components, 2 outputs)"


def test_one_draw_by_default():
    distribution = Mixture(
        np.array([[0.5, 0.5]]), np.array([[[-1.0], [1.0]]]), np.full((1, 2, 1), 0.25)
    )
    assert distribution.sample(random_state=0).shape == (1, 1)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, -0.1, "0.9", None, [0.5, 1.0], []])
def test_levels_of_intervals_that_are_no_probabilities_are_refused_by_name(level):
    distribution = Mixture(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    with pytest.raises(ValueError, match="interval level"):
        distribution.interval(level)


@pytest.mark.parametrize("unit", [1.0, 1e-8, 1e-140])
@pytest.mark.parametrize("n_components", [1, 2])
def test_a_function_known_exactly_has_a_distribution_in_any_units(unit, n_components):
    """Variances so small that they vanish in the user's units: an atom, as far as numbers can say."""
    means = np.arange(n_components, dtype=np.float64)[None, :, None]
    variances = np.full(means.shape, np.finfo(np.float64).tiny)
    weights = np.full((1, n_components), 1.0 / n_components)
    distribution = Mixture(
        weights, means, variances, OutputScaling(np.zeros(1), np.full((1, 1), unit))
    )
    assert distribution.logpdf(0.0)[0] > 300
    assert distribution.pdf(0.5 * unit)[0] == 0.0
    assert distribution.cdf(-0.5 * unit)[0] == 0.0
    assert distribution.cdf(0.0)[0] == pytest.approx(0.5 / n_components)
    assert distribution.quantile(0.9)[0] == pytest.approx((n_components - 1) * unit)
    assert np.isfinite(distribution.joint_logpdf(0.0)).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_one_row_by_its_number_and_rows_one_after_the_other(outputs):
    distribution = random_mixture(outputs=outputs)
    np.testing.assert_array_equal(distribution[-1].mean, distribution.mean[-1:])
    assert len(distribution[np.int64(2)]) == 1
    np.testing.assert_array_equal(
        np.concatenate([row.std for row in distribution]), distribution.std
    )
