"""Noise that is known row by row: it counts once, and fools neither theta nor scales nor gate."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.experts.backends.numba_backend import NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.loo import Components
from dsmgp.experts.points import equal_rows
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.mixture.weights.gating import GateObjective
from dsmgp.tree import Leaf, Region
from tests.support.oracle import kernel as textbook_kernel

NATURAL = np.array([0.8, 1.3, 1.7, 0.05])  # two length-scales, output scale, noise


@pytest.fixture(params=["numba", "numpy", "torch"])
def backend(request):
    if request.param == "numpy":
        return NumpyBackend
    pytest.importorskip(request.param)
    if request.param == "numba":
        return NumbaBackend
    from dsmgp.experts.backends.torch_backend import TorchBackend

    return TorchBackend


@pytest.fixture
def measured(rng):
    X = rng.uniform(-2, 2, size=(40, 2))
    known_noise = rng.choice([0.0, 0.02, 0.5], size=40)
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=40)
    return X, y, known_noise


def leaf_gps_of(backend, X, y, known_noise, rows):
    leaves = [Leaf(Region.whole(2), own) for own in rows]
    leaf_kernel = StationaryKernel("matern32", (0, 1), "zero")
    return InMemoryLeafGPs(
        leaves,
        LeafData(X, y[:, None], known_noise=known_noise[:, None], labels=equal_rows(X)),
        [leaf_kernel],
        backend=backend,
    )


def covariance(X, known_noise):
    return textbook_kernel("matern32", NATURAL[:2], NATURAL[2])(X, X) + np.diag(
        NATURAL[3] + known_noise
    )


def log_density(X, y, known_noise):
    K = covariance(X, known_noise)
    return -0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(2 * np.pi * K)[1])


def test_evidence_and_gradient_by_dense_algebra(measured, backend):
    X, y, known_noise = measured
    rows = [np.arange(25), np.arange(20, 40)]
    leaf_gps = leaf_gps_of(backend, X, y, known_noise, rows)
    evidence, (gradient,) = leaf_gps.log_evidence_and_gradient([NATURAL])
    for leaf, own in enumerate(rows):
        assert evidence[leaf, 0] == pytest.approx(
            log_density(X[own], y[own], known_noise[own]), abs=1e-9
        )
    for k in range(len(NATURAL)):
        step = np.zeros_like(NATURAL)
        step[k] = 1e-5
        up, down = (leaf_gps.log_evidence([NATURAL + s])[:, 0] for s in (step, -step))
        np.testing.assert_allclose(gradient[:, k], (up - down) / 2e-5, rtol=1e-6, atol=1e-6)


def test_rows_left_out_by_brute_force(measured, backend):
    X, y, known_noise = measured
    leaf_gps = leaf_gps_of(backend, X, y, known_noise, [np.arange(40)])
    conditioned = condition(leaf_gps, [NATURAL], leave_out=True)
    loo = conditioned.leave_one_out()
    components = loo.components(np.arange(40))
    K = covariance(X, known_noise)
    squares, counts = 0.0, 0.0
    for i in range(40):
        others = np.delete(np.arange(40), i)
        pull = np.linalg.solve(K[np.ix_(others, others)], K[others, i])
        variance = K[i, i] - known_noise[i] - pull @ K[others, i]
        assert components.mean[i, 0, 0] == pytest.approx(pull @ y[others], abs=1e-9)
        assert components.variance[i, 0, 0] == pytest.approx(variance, abs=1e-9)
        share = variance / (variance + known_noise[i])
        squares += share**2 * ((y[i] - pull @ y[others]) ** 2 - known_noise[i]) / variance
        counts += share**2
    assert loo.squares[0, 0] == pytest.approx(squares, abs=1e-8)
    assert loo.counts[0, 0] == pytest.approx(counts, abs=1e-8)


def test_no_noise_known_is_the_same_as_zero(wavy):
    X, y = wavy
    given = {"leaf_size": 40, "kernel": "matern32", "optimizer": None, "random_state": 0}
    answers = [
        DSMGPRegressor(**given).fit(X, y, noise=noise).predict(X[:20], return_std=True)
        for noise in (None, 0.0, np.zeros(len(X)))
    ]
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-5)
    np.testing.assert_allclose(answers[2], answers[1], rtol=1e-12)


def test_the_same_noise_for_all_rows_is_as_good_as_learned_noise(wavy):
    """Without an optimiser the two add up."""
    X, y = wavy
    given = {"leaf_size": 40, "kernel": "rbf", "optimizer": None, "random_state": 0,
             "weights": "posterior", "standardize": False}  # fmt: skip
    together = DSMGPRegressor(noise_variance=0.3, **given).fit(X, y)
    apart = DSMGPRegressor(noise_variance=0.1, **given).fit(X, y, noise=0.2)
    np.testing.assert_allclose(apart.predict(X[:9]), together.predict(X[:9]), rtol=1e-9)
    assert apart.log_marginal_likelihood_ == pytest.approx(together.log_marginal_likelihood_)
    assert apart.loo_score_ == pytest.approx(together.loo_score_)


def test_scales_and_gate_are_not_fooled(rng):
    """Half of the input space is measured ten times worse, and that is known: what is learned is the same on both sides."""
    X = rng.uniform(0, 1, size=(1500, 1))
    bad = X[:, 0] > 0.5
    known_noise = np.where(bad, 1.0, 0.0)
    y = (
        np.sin(12 * X[:, 0])
        + 0.1 * rng.normal(size=1500)
        + np.sqrt(known_noise) * rng.normal(size=1500)
    )
    grid = np.linspace(0.05, 0.95, 40)[:, None]
    right = grid[:, 0] > 0.5
    with_noise = DSMGPRegressor(leaf_size=[60, 120, 250], random_state=0).fit(
        X, y, noise=known_noise
    )
    spread = with_noise.predict(grid, return_std=True)[1]
    assert (
        np.median(spread[right]) < 0.35
    )  # an observation without that noise has a deviation of .1
    assert np.median(spread[~right]) == pytest.approx(0.1, rel=0.25)
    without_noise = DSMGPRegressor(leaf_size=[60, 120, 250], random_state=0).fit(X, y)
    truth = np.sin(12 * grid[:, 0])
    error = [
        np.sqrt(np.mean((m.predict(grid) - truth)[right] ** 2)) for m in (with_noise, without_noise)
    ]
    assert error[0] < 1.1 * error[1]
    assert np.median(without_noise.predict(grid, return_std=True)[1][right]) > 0.8


def test_the_gates_gradient_with_known_noise(rng):
    n, k = 30, 3
    components = Components(np.tile(np.arange(k), (n, 1)), rng.normal(size=(n, k, 2)), rng.uniform(0.2, 2, (n, k, 2)))  # fmt: skip
    scale = rng.uniform(0.5, 2, (n, k, 2))
    problem = GateObjective(
        np.log(np.full((n, k), 1 / k)), np.log(components.variance).sum(-1), np.log(scale).sum(-1),
        rng.normal(size=(n, 1, 2)) - components.mean, components.variance * scale, 3,
        rng.choice([0.0, 0.1, 5.0], size=(n, 2)),
    )  # fmt: skip
    theta = rng.normal(size=7)
    gradient = problem.score(theta)[1]
    for j in range(7):
        step = np.zeros(7)
        step[j] = 1e-6
        numeric = (problem.score(theta + step)[0] - problem.score(theta - step)[0]) / 2e-6
        assert gradient[j] == pytest.approx(numeric, abs=1e-6)


def test_two_outputs_each_with_its_noise(rng):
    X = rng.uniform(-1, 1, size=(150, 1))
    f = np.column_stack([np.sin(3 * X[:, 0]), 0.9 * np.sin(3 * X[:, 0])])
    noise = np.column_stack([np.full(150, 0.04), np.full(150, 0.5)])
    y = f + np.sqrt(noise) * rng.normal(size=(150, 2))
    model = DSMGPRegressor(leaf_size=50, random_state=0).fit(X, y, noise=noise)
    assert np.all(model.output_loading_ == np.diag(np.diag(model.output_loading_)))
    assert np.isfinite(model.loo_score_)
    assert model.predict(X, return_std=True)[1].mean(axis=0).max() < 0.4


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (-0.1, "cannot be negative"),
        (np.r_[np.ones(119), -1.0], "row 119"),
        (np.ones(7), r"each of the 120 rows.*\(7,\)"),
        (np.full(120, np.nan), "noise"),
        (["a"] * 120, "noise"),
    ],
)
def test_bad_noise_is_refused_and_nothing_changes(wavy, noise, message):
    X, y = wavy
    model = DSMGPRegressor(leaf_size=60, kernel="rbf", max_iter=3, random_state=0).fit(X, y)
    before = model.predict(X[:5])
    with pytest.raises(ValueError, match=message):
        model.fit(X, y, noise=noise)
    np.testing.assert_array_equal(model.predict(X[:5]), before)
