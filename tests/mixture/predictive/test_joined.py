"""A weighted sum of mixtures with different warps of the output has the distribution of that sum."""

import numpy as np
import pytest
from scipy.integrate import quad

from dsmgp.gp.transforms.output_warp import LogWarp, SplineWarp
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.predictive.distribution import Mixture
from dsmgp.mixture.predictive.joined import JoinedMixture, join
from dsmgp.scores import crps

SHARES = np.array([0.5, 0.3, 0.2])
SPLINE = SplineWarp(np.array([-1.0, 0.5, 4.0]), np.array([0.3, 1.0, 4.0]), start=-0.8)


def mixture(rng, warp, n=4, components=3):
    weights = rng.dirichlet(np.ones(components), size=n)
    means = rng.normal(size=(n, components, 1))
    variances = rng.uniform(0.1, 0.5, size=(n, components, 1))
    warps = () if warp is None else (warp,)
    return Mixture(weights, means, variances, OutputScaling(np.zeros(1), np.eye(1), warps))


@pytest.fixture
def parts(rng):
    return [mixture(rng, warp) for warp in (None, LogWarp(), SPLINE)]


@pytest.fixture
def joined(parts):
    return join(parts, SHARES)


def summed(parts, of_part):
    return sum(share * of_part(part) for share, part in zip(SHARES, parts, strict=True))


def test_density_and_probabilities_are_sums_over_parts(joined, parts):
    y = np.array([0.3, 1.0, 2.0, -0.5])
    assert isinstance(joined, JoinedMixture)
    np.testing.assert_allclose(joined.pdf(y), summed(parts, lambda each: each.pdf(y)))
    np.testing.assert_allclose(np.exp(joined.joint_logpdf(y)), joined.pdf(y))
    for name in ("cdf", "sf"):
        expected = summed(parts, lambda each, name=name: getattr(each, name)(y))
        np.testing.assert_allclose(getattr(joined, name)(y), expected)
        np.testing.assert_allclose(np.exp(getattr(joined, f"log{name}")(y)), expected)


def test_moments_are_those_of_the_sum(joined, parts):
    mean = summed(parts, lambda each: each.mean)
    np.testing.assert_allclose(joined.mean, mean)
    square = summed(parts, lambda each: each.var + each.mean**2)
    np.testing.assert_allclose(joined.var, square - mean**2)
    draws = joined.sample(20_000, random_state=0)
    assert draws.shape == (20_000, 4)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=5 * joined.std.max() / 140)


@pytest.mark.parametrize("level", [1e-9, 0.05, 0.5, 0.95, 1 - 1e-6])
def test_quantiles_invert_the_cdf(joined, level):
    q = joined.quantile(level)
    tail, target = (joined.cdf(q), level) if level <= 0.5 else (joined.sf(q), 1 - level)
    np.testing.assert_allclose(tail, target, rtol=1e-7)


def test_some_rows_and_merged_rows_are_those_of_the_parts(joined, parts):
    y = np.array([0.3, 1.0])
    np.testing.assert_array_equal(joined[1:3].logpdf(y), joined.logpdf(np.array([9, *y, 9]))[1:3])
    merged = joined.merged(2)
    assert len(merged) == 2
    np.testing.assert_allclose(
        merged.cdf(y), [joined.cdf(y[0])[:2].mean(), joined.cdf(y[1])[2:].mean()]
    )
    other = joined.replaced(np.array([0, 2]), merged)
    np.testing.assert_allclose(other.cdf(1.0)[[0, 2]], merged.cdf(1.0))
    np.testing.assert_allclose(other.cdf(1.0)[[1, 3]], joined.cdf(1.0)[[1, 3]])


def test_mixtures_in_the_same_units_are_one(rng):
    plain = [mixture(rng, None) for _ in range(3)]
    assert type(join(plain, SHARES)) is Mixture
    warped = [mixture(rng, warp) for warp in (SPLINE, None, SPLINE)]
    both = join(warped, SHARES)
    assert len(both.parts) == 2
    np.testing.assert_allclose(both.cdf(0.7), summed(warped, lambda each: each.cdf(0.7)))


def test_the_crps_is_the_integral_of_the_squared_error_of_the_cdf(joined):
    y = np.array([0.4, 3.0, 0.1, 1.0])

    def integral(row):
        one = joined[row]
        below = quad(lambda v: one.cdf(v)[0] ** 2, -12, y[row], limit=400)[0]
        return below + quad(lambda v: one.sf(v)[0] ** 2, y[row], 400, limit=800, points=[5, 20])[0]

    expected = np.mean([integral(row) for row in range(4)])
    assert crps(y, joined) == pytest.approx(expected, rel=1e-4)


def test_there_is_no_common_latent_output(joined):
    with pytest.raises(AttributeError, match="see parts"):
        joined.latent  # noqa: B018
    assert not hasattr(joined, "warps")


def test_parts_of_the_rows_know_how_far_they_lie_outside():
    one = Mixture(np.ones((2, 1)), np.zeros((2, 1, 1)), np.ones((2, 1, 1)))
    units = OutputScaling(np.zeros(1), np.eye(1), [LogWarp()])
    warped = Mixture(np.ones((2, 1)), np.zeros((2, 1, 1)), np.ones((2, 1, 1)), units)
    away = np.array([0.0, 2.5])
    joined = JoinedMixture(
        [each.with_outside(away) for each in (one, warped)], np.array([0.5, 0.5])
    )
    np.testing.assert_array_equal(joined.outside, away)
    np.testing.assert_array_equal(joined[1:].outside, [2.5])
    assert JoinedMixture([one, warped], np.array([0.5, 0.5]))[1:].outside == [0.0]
