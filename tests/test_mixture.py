"""The predictive mixture: a proper law at every row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import ndtr

from dsmgp import Mixture, mixture
from dsmgp.units import OutputUnits


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
    return Mixture(weights, means, variances, OutputUnits(rng.normal(size=outputs), loading))


def test_density_integrates_to_one_and_has_the_stated_moments():
    law = random_mixture()
    grid = np.linspace(-60, 60, 40001)
    density = np.stack([law.pdf(y) for y in grid])
    np.testing.assert_allclose(integrate.simpson(density, x=grid, axis=0), 1.0, rtol=1e-10)
    mean = integrate.simpson(density * grid[:, None], x=grid, axis=0)
    np.testing.assert_allclose(mean, law.mean, rtol=1e-9)
    second = integrate.simpson(density * (grid[:, None] - mean) ** 2, x=grid, axis=0)
    np.testing.assert_allclose(second, law.var, rtol=1e-9)
    np.testing.assert_allclose(law.std**2, law.var)


def test_cdf_is_the_integral_of_the_density():
    law = random_mixture(1)
    for y in (-1.0, 0.3, 2.5):
        grid = np.linspace(-60, y, 40001)
        density = np.stack([law.pdf(g) for g in grid])
        np.testing.assert_allclose(
            integrate.simpson(density, x=grid, axis=0), law.cdf(y), atol=1e-9
        )


def test_density_and_cdf_are_scipys_weighted_by_hand():
    law = random_mixture(2)
    y = np.linspace(-2, 2, len(law))
    scale = np.sqrt(law.component_variances[..., 0])
    each = stats.norm(law.component_means[..., 0], scale)
    np.testing.assert_allclose(law.pdf(y), (law.weights * each.pdf(y[:, None])).sum(1))
    np.testing.assert_allclose(law.logpdf(y), np.log((law.weights * each.pdf(y[:, None])).sum(1)))
    np.testing.assert_allclose(law.cdf(y), (law.weights * each.cdf(y[:, None])).sum(1))


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
    law = Mixture(weights, means, rng.uniform(1e-4, 4.0, size=means.shape))
    np.testing.assert_allclose(law.cdf(law.quantile(q)), q, rtol=1e-6, atol=1e-15)


def test_quantiles_of_one_gaussian_are_scipys():
    law = Mixture(np.ones((1, 1)), np.full((1, 1, 1), 3.0), np.full((1, 1, 1), 4.0))
    for q in (1e-10, 0.05, 0.5, 0.975):
        assert law.quantile(q)[0] == pytest.approx(stats.norm(3, 2).ppf(q), rel=1e-12)


@pytest.mark.parametrize("level", [1e-4, 0.05, 0.5, 0.9, 1 - 1e-9])
def test_quantiles_take_a_few_steps(level, monkeypatch):
    """Not the fifty that halving a bracket would take."""
    calls = []
    monkeypatch.setattr(mixture, "ndtr", lambda z: calls.append(1) or ndtr(z))
    law = random_mixture(n=200)
    assert np.isfinite(law.quantile(level)).all()
    assert len(calls) <= 15


def test_quantiles_keep_their_order_on_a_huge_offset():
    """Where the whole law is a few of the numbers there are."""
    rng = np.random.default_rng(0)
    means = 1e9 + 1e-6 * rng.normal(size=(300, 3, 1))
    law = Mixture(rng.dirichlet(np.ones(3), size=300), means, np.full(means.shape, 1e-14))
    assert (np.diff(law.quantile(np.linspace(0.001, 0.999, 50)), axis=0) >= 0).all()


def test_quantiles_increase_and_stack_by_level():
    law = random_mixture(3)
    levels = [0.05, 0.25, 0.5, 0.9]
    found = law.quantile(levels)
    assert found.shape == (4, len(law))
    assert (np.diff(found, axis=0) > 0).all()
    np.testing.assert_allclose(found[1], law.quantile(0.25))


def test_intervals_hold_their_probability():
    law = random_mixture(4)
    low, high = law.interval(0.8)
    np.testing.assert_allclose(law.cdf(high) - law.cdf(low), 0.8, rtol=1e-9)
    np.testing.assert_allclose(law.cdf(low), 0.1, rtol=1e-9)


def test_intervals_hold_nine_tenths_unless_told():
    law = random_mixture()
    np.testing.assert_array_equal(law.interval(), law.interval(0.9))


def test_samples_follow_the_law():
    law = random_mixture(5)
    draws = law.sample(20_000, random_state=0)
    assert draws.shape == (20_000, len(law))
    for k in range(len(law)):
        ranks = np.array([law.cdf(row)[k] for row in draws[:2000]])
        assert stats.kstest(ranks, "uniform").pvalue > 1e-4
    np.testing.assert_allclose(draws.mean(0), law.mean, atol=5 * law.std.max() / np.sqrt(20_000))
    np.testing.assert_array_equal(draws, law.sample(20_000, random_state=0))


def test_a_component_without_weight_does_not_matter():
    law = Mixture(np.array([[1.0, 0.0]]), np.array([[[0.0], [1e6]]]), np.array([[[1.0], [1e-12]]]))
    assert law.quantile(0.5)[0] == pytest.approx(0.0, abs=1e-12)
    assert law.logpdf(0.0)[0] == pytest.approx(stats.norm.logpdf(0.0))


def test_variance_survives_a_large_offset():
    units = OutputUnits(np.array([1e9]), np.eye(1))
    law = Mixture(np.full((1, 2), 0.5), np.array([[[-1.0], [1.0]]]), np.ones((1, 2, 1)), units)
    assert law.var[0] == pytest.approx(2.0, rel=1e-6)


def test_far_tails_keep_their_log_density():
    law = Mixture(np.full((1, 2), 0.5), np.zeros((1, 2, 1)), np.ones((1, 2, 1)))
    assert law.logpdf(100.0)[0] == pytest.approx(stats.norm.logpdf(100.0))


@pytest.mark.parametrize("far", [1e200, 1e300, 1e308, np.inf, -np.inf])
def test_where_there_is_no_density_left_it_is_zero_and_not_nan(far):
    for law in (
        random_mixture(),
        random_mixture(outputs=2),
        random_mixture(outputs=2, rotated=True),
    ):
        assert (law.logpdf(far) == -np.inf).all()
        assert (law.joint_logpdf(far) == -np.inf).all()
        assert (law.pdf(far) == 0.0).all()
        assert (law.cdf(far) == (far > 0)).all()
    mixed = [far, 0.0]
    assert (law.joint_logpdf(mixed) == -np.inf).all()


def test_y_that_is_no_number_is_refused():
    for method in ("logpdf", "pdf", "joint_logpdf", "cdf"):
        with pytest.raises(ValueError, match="y contains NaN; drop such rows"):
            getattr(random_mixture(), method)(np.nan)


def test_several_outputs_share_weights_and_the_joint_is_a_mixture_of_gaussians():
    law = random_mixture(6, outputs=2, rotated=True)
    y = np.random.default_rng(1).normal(size=(len(law), 2))
    loading, centre = law._units.loading, law._units.centre
    expected = []
    for i in range(len(law)):
        total = 0.0
        for k in range(law.weights.shape[1]):
            covariance = loading @ np.diag(law._latent_variances[i, k]) @ loading.T
            mean = centre + loading @ law._latent_means[i, k]
            total += law.weights[i, k] * stats.multivariate_normal(mean, covariance).pdf(y[i])
        expected.append(np.log(total))
    np.testing.assert_allclose(law.joint_logpdf(y), expected, rtol=1e-10)
    assert law.logpdf(y).shape == law.mean.shape == law.quantile(0.3).shape == (len(law), 2)


def test_marginals_of_the_joint_are_the_marginals():
    law = random_mixture(7, n=1, outputs=2, rotated=True)
    grid = np.linspace(-40, 40, 8001)
    joint = [law.joint_logpdf(np.array([[0.4, g]]))[0] for g in grid]
    integral = integrate.simpson(np.exp(joint), x=grid)
    assert integral == pytest.approx(law.pdf(np.array([[0.4, 0.0]]))[0, 0], rel=1e-8)


def test_joint_samples_have_the_joint_covariance():
    law = random_mixture(8, n=1, components=2, outputs=2, rotated=True)
    draws = law.sample(100_000, random_state=0)[:, 0]
    z_mean = law.weights[0] @ law._latent_means[0]
    z_away = law._latent_means[0] - z_mean
    z_cov = np.einsum("k,kp,kq->pq", law.weights[0], z_away, z_away)
    z_cov += np.diag(law.weights[0] @ law._latent_variances[0])
    loading = law._units.loading
    np.testing.assert_allclose(np.cov(draws.T), loading @ z_cov @ loading.T, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 1.1, np.nan, [0.5, 2.0]])
def test_levels_outside_zero_and_one_are_refused(bad):
    law = random_mixture()
    with pytest.raises(ValueError, match="between 0 and 1"):
        law.quantile(bad)
    if np.ndim(bad) == 0:
        with pytest.raises(ValueError, match="between 0 and 1"):
            law.interval(bad)


def test_y_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"expected y with shape \(5,\)"):
        random_mixture().logpdf(np.zeros(4))
    with pytest.raises(ValueError, match=r"expected y with shape \(5, 2\)"):
        random_mixture(outputs=2).logpdf(np.zeros((5, 3)))


def test_repr_says_how_large_it_is():
    assert repr(random_mixture()) == "Mixture(5 rows, 4 components, 1 output)"
    assert repr(random_mixture(outputs=2)) == "Mixture(5 rows, 4 components, 2 outputs)"


def test_one_draw_is_what_is_drawn_unless_told():
    law = Mixture(np.array([[0.5, 0.5]]), np.array([[[-1.0], [1.0]]]), np.full((1, 2, 1), 0.25))
    assert law.sample(random_state=0).shape == (1, 1)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, -0.1, "0.9", None, [0.5, 0.9]])
def test_levels_of_intervals_that_are_no_probabilities_are_refused_by_name(level):
    law = Mixture(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    with pytest.raises(ValueError, match="interval level"):
        law.interval(level)


@pytest.mark.parametrize("unit", [1.0, 1e-8, 1e-140])
@pytest.mark.parametrize("n_components", [1, 2])
def test_what_is_known_exactly_has_a_law_in_any_units(unit, n_components):
    """Variances so small that they vanish in the user's units: an atom, as far as numbers can say."""
    means = np.arange(n_components, dtype=np.float64)[None, :, None]
    variances = np.full(means.shape, np.finfo(np.float64).tiny)
    weights = np.full((1, n_components), 1.0 / n_components)
    law = Mixture(weights, means, variances, OutputUnits(np.zeros(1), np.full((1, 1), unit)))
    assert law.logpdf(0.0)[0] > 300
    assert law.pdf(0.5 * unit)[0] == 0.0
    assert law.cdf(-0.5 * unit)[0] == 0.0
    assert law.cdf(0.0)[0] == pytest.approx(0.5 / n_components)
    assert law.quantile(0.9)[0] == pytest.approx((n_components - 1) * unit)
    assert np.isfinite(law.joint_logpdf(0.0)).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_one_row_by_its_number_and_rows_one_after_the_other(outputs):
    law = random_mixture(outputs=outputs)
    np.testing.assert_array_equal(law[-1].mean, law.mean[-1:])
    assert len(law[np.int64(2)]) == 1
    np.testing.assert_array_equal(np.concatenate([row.std for row in law]), law.std)
