"""Coordinates: warps are smooth, increasing and invertible, and everything reported from them is in the user's units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import rankdata

from dsmgp.gp.transforms.coordinates import Coordinates, InputWarp
from dsmgp.gp.transforms.scaling import InputScaling

RNG = np.random.default_rng(0)
COLUMNS = {
    "skewed": RNG.lognormal(0.0, 2.0, size=2000),
    "zeros": np.where(RNG.random(2000) < 0.6, 0.0, RNG.gamma(0.3, size=2000)),
    "counts": RNG.poisson(3.0, size=2000).astype(float),
    "tiny units": 1e-250 * RNG.normal(size=500),
    "far from zero": 1e9 + RNG.normal(size=500),
    "three values": RNG.integers(0, 3, size=500).astype(float),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_warp_increases_and_inverts(name):
    x = COLUMNS[name]
    warp = InputWarp.normal_scores(x)
    span = np.ptp(x)
    at = np.sort(np.concatenate([x, x.min() - span * np.array([0.01, 1, 50]), x.max() + span * np.array([0.01, 1, 50])]))  # fmt: skip
    u = warp(at)
    distinct = np.diff(at) > 1e-9 * span
    assert (np.diff(u)[distinct] > 0).all()
    assert np.allclose(warp.inverse(u), at, rtol=1e-7, atol=1e-7 * span)


def test_values_are_normal_scores_of_mid_ranks():
    x = COLUMNS["skewed"]
    scores = ndtri((rankdata(x) - 0.5) / len(x))
    assert np.abs(InputWarp.normal_scores(x)(x) - scores).max() < 0.1
    few = COLUMNS["counts"]
    assert np.allclose(
        InputWarp.normal_scores(few)(few), ndtri((rankdata(few) - 0.5) / len(few)), atol=1e-9
    )


@pytest.mark.parametrize("name", COLUMNS)
def test_the_slope_is_the_derivative(name):
    x = COLUMNS[name]
    warp = InputWarp.normal_scores(x)
    at = np.concatenate(
        [np.quantile(x, [0.75, 0.9]) + 1e-3 * np.ptp(x), [x.min() - np.ptp(x), x.max() + np.ptp(x)]]
    )
    step = 1e-6 * np.ptp(x)
    difference = (warp(at + step) - warp(at - step)) / (2 * step)
    # At a knot the second derivative jumps.
    assert np.allclose(warp.slope(at), difference, rtol=2e-2)


def test_tails_are_linear():
    warp = InputWarp.normal_scores(COLUMNS["skewed"])
    far = np.max(COLUMNS["skewed"]) + np.array([1.0, 2.0, 3.0])
    assert np.allclose(np.diff(warp(far), 2), 0.0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(-1e12, 1e12, allow_nan=False) | st.sampled_from([0.0, 1.0]),
        min_size=2,
        max_size=60,
    )
)
def test_any_column_has_an_increasing_warp_or_none(values):
    x = np.array(values)
    warp = InputWarp.normal_scores(x)
    if warp is None:
        return
    u = warp(np.unique(x))
    assert np.isfinite(u).all()
    assert (np.diff(u) >= 0).all()


def test_flags_and_constants_are_not_warped():
    assert InputWarp.normal_scores(np.tile([0.0, 1.0], 50)) is None
    assert InputWarp.normal_scores(np.ones(50)) is None
    table = np.column_stack([np.tile([0.0, 1.0], 50), RNG.normal(size=100)])
    both = Coordinates.of_columns(table, [("raw", "rank")] * 2)
    assert both.columns.tolist() == [0, 1, 1]
    assert Coordinates.of_columns(table[:, :1], [("rank",)]).is_identity


def test_coordinates_are_features_times_metric():
    X = RNG.lognormal(size=(300, 3))
    features = Coordinates.of_columns(X, [("rank",), ("raw",), ("raw", "rank")])
    metric = RNG.normal(size=(4, 2))
    mapped = Coordinates(3, features.columns, features.warps, metric)
    assert np.allclose(mapped(X), features(X) @ metric)
    assert mapped.n_coordinates == 2
    scaled = InputScaling.of(X, True, mapped)
    assert np.allclose(scaled.to_experts(X).mean(axis=0), 0.0, atol=1e-12)
    assert np.allclose(scaled.to_experts(X).std(axis=0), 1.0)


def test_rates_by_input_are_gradients_by_input():
    """A function that varies at unit rate along each coordinate: its squared gradient by inputs, summed over coordinates."""
    X = RNG.lognormal(size=(300, 3))
    features = Coordinates.of_columns(X, [("rank",), ("raw",), ("raw", "rank")])
    for coordinates in (
        features,
        Coordinates(3, features.columns, features.warps, RNG.normal(size=(4, 4))),
    ):
        x, step = np.median(X, axis=0), 1e-6
        rates = RNG.uniform(0.5, 2.0, size=4)
        jacobian = np.stack(
            [(coordinates(x[None] + step * e) - coordinates(x[None] - step * e))[0] / (2 * step) for e in np.eye(3)]
        )  # fmt: skip
        if coordinates.metric is None:
            expected = np.sqrt(np.square(jacobian * rates).sum(axis=1))
            assert np.allclose(
                coordinates.input_rates(rates, coordinates.slopes(x)), expected, rtol=1e-4
            )
        else:
            # Features of one input add up in the Jacobian, and in the rates by squares.
            single = [0, 1]
            expected = np.sqrt(np.square(jacobian * rates).sum(axis=1))
            found = coordinates.input_rates(rates, coordinates.slopes(x))
            assert np.allclose(found[single], expected[single], rtol=1e-4)


def test_coordinates_of_a_row_do_not_depend_on_other_rows():
    X = RNG.integers(0, 2, size=(1003, 8)).astype(float)
    mapped = Coordinates(8, np.arange(8), (None,) * 8, RNG.normal(size=(8, 5)))
    U = mapped(X)
    assert all(np.array_equal(mapped(X[k : k + 1])[0], U[k]) for k in range(0, 1003, 50))
    assert len(np.unique(U, axis=0)) == len(np.unique(X, axis=0))
