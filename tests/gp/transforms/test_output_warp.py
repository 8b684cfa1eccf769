"""Output warps: monotone, invertible, independent of the units of y, with moments equal to quadrature."""

from bisect import bisect
from functools import cache

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from dsmgp.gp.transforms import spline_moments
from dsmgp.gp.transforms.output_warp import (
    NAMED_WARPS,
    LogWarp,
    SplineWarp,
    named_warp,
    normal_scores,
)

SKEWED = np.exp(np.random.default_rng(0).normal(size=400))
WARPS = {
    "skewed": normal_scores(SKEWED),
    "half as strong": normal_scores(SKEWED, 0.5),
    "bounded": normal_scores(SKEWED, lower=0.0),
    "bounded far off": normal_scores(SKEWED + 100.0, lower=-3.0),
    "atom": normal_scores(np.concatenate([np.zeros(300), 50.0 * SKEWED])),
    "logarithm": LogWarp(),
}


def exact(warp):
    """The function in arithmetic of many digits, from its definition."""
    if isinstance(warp, LogWarp):
        return mp.exp
    knots, values, slopes = (
        [mp.mpf(float(v)) for v in table] for table in (warp.knots, warp.values, warp.slopes)
    )

    def h(t):
        if t >= knots[-1]:
            return values[-1] + slopes[-1] * (t - knots[-1])
        if t >= knots[0]:
            j = bisect(knots, t) - 1
            bend = (slopes[j + 1] - slopes[j]) / (knots[j + 1] - knots[j])
            return values[j] + (t - knots[j]) * (slopes[j] + bend * (t - knots[j]) / 2)
        if warp.lower is None:
            return values[0] + slopes[0] * (t - knots[0])
        height = values[0] - warp.lower
        return warp.lower + height * mp.exp(slopes[0] / height * (t - knots[0]))

    return h


def moments_by_quadrature(warp, mean, std):
    """Mean and variance of h(mean + std Z)."""
    h, m, s = exact(warp), mp.mpf(mean), mp.mpf(std)
    knots = [(mp.mpf(float(t)) - m) / s for t in getattr(warp, "knots", ())]
    points = sorted({*map(mp.mpf, range(-30, 31, 6)), *(x for x in knots if abs(x) < 30)})
    centre = h(m)

    @cache  # both integrals are sums over the same nodes
    def difference_and_density(z):
        return h(m + s * z) - centre, mp.exp(-z * z / 2)

    def integral(power):
        def integrand(z):
            difference, density = difference_and_density(z)
            return difference**power * density

        return mp.quad(integrand, points, method="gauss-legendre") / mp.sqrt(2 * mp.pi)

    first, second = integral(1), integral(2)
    return centre + first, second - first**2


@pytest.mark.parametrize("name", WARPS)
@pytest.mark.parametrize("std", [1e-6, 0.01, 0.029, 0.2, 0.7, 2.5, 30.0])
def test_moments_equal_quadrature(name, std):
    warp = WARPS[name]
    if name == "logarithm" and std > 3:
        pytest.skip("its variance is beyond all numbers")
    means = [-9.0, -2.4, 0.2, 12.0]
    means += [] if name == "logarithm" else [float(warp.knots[2])]
    mean, variance = warp.moments(np.array(means), np.full(len(means), std**2))
    with mp.workdps(40):
        for k, m in enumerate(means):
            expected = moments_by_quadrature(warp, m, np.sqrt(std**2))
            scale = float(mp.sqrt(expected[1]))
            # Knots are rounded: at one h jumps by a rounding error.
            rounding = 1e-15 * abs(float(expected[0]))
            assert abs(float(mean[k] - expected[0])) < 1e-9 * scale + rounding
            assert abs(float(variance[k] - expected[1])) < 1e-9 * scale**2 + rounding * scale


@pytest.mark.parametrize("name", ["skewed", "bounded", "atom"])
def test_sums_by_knot_and_by_piece_are_the_same(name, rng, monkeypatch):
    warp, mean = WARPS[name], rng.normal(size=500) * 2
    variance = np.exp(rng.normal(size=500) * 2 - 3)
    by_knot = warp.moments(mean, variance)
    monkeypatch.setattr(spline_moments, "_by_knot", spline_moments._by_piece)
    by_piece = warp.moments(mean, variance)
    np.testing.assert_allclose(by_knot[0], by_piece[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_knot[1], by_piece[1], rtol=1e-9)


@pytest.mark.parametrize("name", WARPS)
def test_moments_are_finite_for_any_gaussian(name):
    mean, std = np.meshgrid([-1e8, -1e3, 0.0, 1e3, 1e8], [0.0, 1e-150, 1e-20, 1.0, 1e4, 1e8])
    for part in WARPS[name].moments(mean, std**2):
        assert part.shape == mean.shape
        assert np.isfinite(part).all()


@pytest.mark.parametrize("name", WARPS)
def test_a_warp_is_increasing_and_its_inverse_inverts_it(name):
    warp, t = WARPS[name], np.linspace(-8, 8, 4001)
    y = warp.from_latent(t)
    assert (np.diff(y) > 0).all()
    np.testing.assert_allclose(warp.to_latent(y), t, atol=1e-9)
    step = 1e-6
    slope = (warp.from_latent(t + step) - warp.from_latent(t - step)) / (2 * step)
    np.testing.assert_allclose(-warp.log_slope(y), np.log(slope), atol=1e-5)


@pytest.mark.parametrize("name", ["bounded", "logarithm"])
def test_nothing_lies_below_a_bound(name):
    warp = WARPS[name]
    assert (warp.from_latent(np.array([-5.0, -50.0])) > 0).all()
    below = np.array([0.0, -1.0, -np.inf])
    assert (warp.to_latent(below) == -np.inf).all()
    assert (warp.log_slope(below) == -np.inf).all()


@pytest.mark.parametrize("name", WARPS)
def test_infinite_outputs_have_infinite_latents(name):
    ends = np.array([-np.inf, np.inf])
    np.testing.assert_array_equal(WARPS[name].to_latent(ends), ends)


def test_normal_scores_make_outputs_gaussian(rng):
    y = rng.gamma(2.0, size=3000) ** 2
    t = normal_scores(y).to_latent(y)
    expected = ndtri((np.argsort(np.argsort(y)) + 0.5) / len(y))
    inside = np.abs(expected) < 2.0
    assert np.abs(t - expected)[inside].max() < 0.2


def test_no_strength_is_a_linear_function():
    warp = normal_scores(SKEWED, 0.0)
    t = warp.to_latent(np.array([1.0, 2.0, 3.0, 1000.0]))
    np.testing.assert_allclose(np.diff(t) / [1, 1, 997], t[1] - t[0])


def test_too_few_distinct_outputs_are_not_warped():
    assert normal_scores(np.zeros(100)) is None
    assert normal_scores(np.arange(100) % 9.0) is None
    assert normal_scores(np.arange(100) % 10.0) is not None
    assert isinstance(named_warp("positive", np.ones(100)), LogWarp)


def test_a_bound_above_the_outputs_is_refused():
    with pytest.raises(ValueError, match="above 0, got -1"):
        normal_scores(np.arange(-1.0, 20.0), lower=0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0, 1.0], [1.0], 0.0), "two or more knots"),
        (([0.0], [1.0], 0.0), "two or more knots"),
        (([0.0, np.nan], [1.0, 1.0], 0.0), "finite"),
        (([0.0, 0.0], [1.0, 1.0], 0.0), "increasing"),
        (([0.0, 1.0], [1.0, 0.0], 0.0), "positive"),
        (([0.0, 1.0], [1.0, 1.0], 0.0, 0.0), "bound below"),
    ],
)
def test_a_function_that_is_no_warp_is_refused(arguments, message):
    values, slopes, *rest = arguments
    with pytest.raises(ValueError, match=message):
        SplineWarp(np.array(values), np.array(slopes), *rest)


def test_names_of_warps(rng):
    y = rng.uniform(1, 2, size=50)
    lower = {name: named_warp(name, y).lower for name in NAMED_WARPS}
    assert lower == {"rank": None, "log": 0.0, "positive": 0.0}


outputs = st.lists(
    st.one_of(
        st.sampled_from([0.0, 1.0, -2.0]),  # ties and atoms
        st.floats(-1e3, 1e3),
        st.floats(-1e-6, 1e-6),
        st.floats(-1e12, 1e12),
    ),
    min_size=10,
    max_size=120,
).map(np.array)


@given(outputs, st.sampled_from([0.3, 1.0]))
def test_any_outputs_give_a_sane_warp(y, strength):
    warp = normal_scores(y, strength)
    if warp is None:
        assert len(np.unique(y)) < 10
        return
    assert warp.slopes.max() <= 1.001e5 * warp.slopes.min()
    assert np.ptp(warp.knots) < 1e4
    t = warp.to_latent(y)
    assert np.isfinite(t).all()
    assert np.isfinite(warp.log_slope(y)).all()
    assert np.diff(t[np.argsort(y)]).min() > -1e-12
    np.testing.assert_allclose(warp.from_latent(t), y, rtol=1e-9, atol=1e-9 * np.abs(y).max())
    mean, variance = warp.moments(t, np.full(len(t), 0.1))
    assert np.isfinite(mean).all()
    assert (variance > 0).all()


@given(st.sampled_from([1e-12, 1e-3, 7.0, 1e9]), st.sampled_from([0.0, 1.0, -50.0]))
def test_units_do_not_matter(unit, shift):
    t = WARPS["skewed"].to_latent(SKEWED)
    other = unit * (SKEWED + shift)
    np.testing.assert_allclose(normal_scores(other).to_latent(other), t, atol=1e-9)
