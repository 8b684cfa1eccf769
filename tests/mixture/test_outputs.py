"""Several outputs: one tree, a theta each, joint evidence, and dependence between them."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.tree import Leaf, Region
from dsmgp.tree.growing import grow_paper
from tests.support.oracle import brute_force
from tests.support.oracle import kernel as textbook_kernel


@pytest.fixture
def correlated(rng):
    """Two outputs with the same signal and noise that is correlated by 0.9."""
    X = rng.uniform(-2, 2, size=(500, 1))
    noise = rng.multivariate_normal([0, 0], [[0.04, 0.036], [0.036, 0.04]], size=500)
    Y = np.column_stack([np.sin(2 * X[:, 0]), np.sin(2 * X[:, 0]) + 0.2 * X[:, 0]]) + noise
    return X, Y * [1.0, 100.0] + [5.0, -300.0]


def test_weights_come_from_the_joint_evidence(rng):
    X = rng.uniform(-1, 1, size=(20, 2))
    Y = rng.normal(size=(20, 2))
    tree = grow_paper(X, leaf_size=6, sum_children=2, product_children=2, depth=2, rng=rng)
    X_test = rng.uniform(-1, 1, size=(7, 2))
    model = DSMGPRegressor(
        "rbf",
        noise_variance=0.3,
        structure=tree,
        weights="posterior",
        optimizer=None,
        standardize=False,
    ).fit(X, Y)
    ell, scale = model.kernel_[0].lengthscale, model.kernel_[0].outputscale
    brute = [
        brute_force(tree, X, Y[:, k], X_test, textbook_kernel("rbf", ell, scale), 0.3)
        for k in (0, 1)
    ]
    log_prior = np.array([p for p, _ in brute[0].trees])
    # Each output's log evidence of a tree, back from its normalised joint with the prior.
    joint = log_prior + sum(np.log(b.weights) + b.log_evidence - log_prior for b in brute)
    total = np.logaddexp.reduce(joint)
    assert model.log_marginal_likelihood_ == pytest.approx(total, abs=1e-9)
    weights = np.exp(joint - total)
    mean, std = model.predict(X_test, return_std=True, include_noise=False)
    _, covariance = model.predict(X_test, return_cov=True, include_noise=False)
    assert mean.shape == std.shape == (7, 2)
    assert covariance.shape == (7, 7, 2)
    for k, b in enumerate(brute):
        b.weights = weights
        np.testing.assert_allclose(mean[:, k], b.mean, atol=1e-9)
        np.testing.assert_allclose(std[:, k] ** 2, np.diag(b.covariance), atol=1e-9)
        np.testing.assert_allclose(covariance[..., k], b.covariance, atol=1e-9)


def test_correlated_outputs_have_correlated_predictions(correlated):
    X, Y = correlated
    model = DSMGPRegressor("rbf", leaf_size=200, random_state=0).fit(X, Y)
    X_test = np.linspace(-1.8, 1.8, 5)[:, None]
    distribution = model.predict_dist(X_test)
    draws = distribution.sample(5000, random_state=0)
    for k in range(5):
        assert np.corrcoef(draws[:, k].T)[0, 1] == pytest.approx(0.9, abs=0.05)
    functions = model.sample_y(X_test, 3000, random_state=0, include_noise=True)
    assert functions.shape == (5, 2, 3000)
    for k in range(5):
        assert np.corrcoef(functions[k])[0, 1] == pytest.approx(0.9, abs=0.05)


def test_the_joint_density_beats_independent_outputs_where_outputs_are_correlated(correlated, rng):
    X, Y = correlated
    model = DSMGPRegressor("rbf", leaf_size=200, random_state=0).fit(X[:400], Y[:400])
    distribution = model.predict_dist(X[400:])
    joint = distribution.joint_logpdf(Y[400:]).mean()
    assert joint > distribution.logpdf(Y[400:]).sum(axis=1).mean() + 0.5


def test_joint_draws_have_the_predicted_moments_of_each_output(correlated):
    X, Y = correlated
    model = DSMGPRegressor("rbf", leaf_size=100, sum_children=3, random_state=0).fit(X, Y)
    X_test = np.linspace(-1.8, 1.8, 4)[:, None]
    mean, covariance = model.predict(X_test, return_cov=True)
    draws = model.sample_y(X_test, 20_000, random_state=1, include_noise=True)
    for k in (0, 1):
        scale = np.sqrt(np.diag(covariance[..., k]).max())
        np.testing.assert_allclose(draws[:, k].mean(axis=1), mean[:, k], atol=0.05 * scale)
        np.testing.assert_allclose(np.cov(draws[:, k]), covariance[..., k], atol=0.06 * scale**2)
    _, std = model.predict(X_test, return_std=True)
    np.testing.assert_allclose(std**2, np.moveaxis(covariance.diagonal(), 0, 1), rtol=1e-9)


def test_uncorrelated_outputs_are_left_as_they_are_and_equal_separate_fits(rng):
    X = rng.uniform(-2, 2, size=(200, 1))
    Y = np.column_stack([np.sin(3 * X[:, 0]), np.cos(3 * X[:, 0])]) + 0.1 * rng.normal(
        size=(200, 2)
    )
    tree = Leaf(Region.whole(1))
    both = DSMGPRegressor("rbf", structure=tree).fit(X, Y)
    assert both.state_.model.outputs.diagonal
    for k in (0, 1):
        alone = DSMGPRegressor("rbf", structure=tree).fit(X, Y[:, k])
        np.testing.assert_allclose(both.predict(X)[:, k], alone.predict(X), atol=1e-9)
        assert both.noise_[k] == pytest.approx(alone.noise_, rel=1e-9)


def test_independent_outputs_equal_separate_fits_although_they_are_correlated(correlated):
    X, Y = correlated[0][:120], correlated[1][:120]
    options = {"structure": Leaf(Region.whole(1)), "max_iter": 15}
    assert not DSMGPRegressor("rbf", **options).fit(X, Y).state_.model.outputs.diagonal
    both = DSMGPRegressor("rbf", outputs="independent", **options).fit(X, Y)
    assert both.state_.model.outputs.diagonal
    for k in (0, 1):
        alone = DSMGPRegressor("rbf", **options).fit(X, Y[:, k])
        np.testing.assert_allclose(both.predict(X)[:, k], alone.predict(X), rtol=1e-9)
        assert both.noise_[k] == pytest.approx(alone.noise_, rel=1e-9)


def test_one_output_as_a_column_keeps_its_shape(wavy):
    X, y = wavy
    flat = DSMGPRegressor(hypotheses=None, random_state=0).fit(X, y)
    column = DSMGPRegressor(hypotheses=None, random_state=0).fit(X, y[:, None])
    assert flat.predict(X).shape == (120,)
    assert column.predict(X).shape == (120, 1)
    assert column.predict_dist(X).quantile(0.5).shape == (120, 1)
    assert column.sample_y(X[:3], 4).shape == (3, 1, 4)
    np.testing.assert_array_equal(flat.predict(X), column.predict(X)[:, 0])


def test_a_constant_output_does_not_keep_others_from_being_rotated(correlated):
    X, Y = correlated
    model = DSMGPRegressor("rbf", random_state=0, max_iter=20).fit(
        X, np.column_stack([Y, np.ones(500)])
    )
    draws = model.predict_dist([[0.5]]).sample(4000, random_state=0)[:, 0]
    assert np.corrcoef(draws[:, :2].T)[0, 1] > 0.8


def test_an_output_that_repeats_another_is_no_problem(rng):
    X = rng.uniform(-2, 2, size=(80, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=80)
    model = DSMGPRegressor("rbf", random_state=0).fit(X, np.column_stack([y, y]))
    mean = model.predict(X)
    assert np.isfinite(mean).all()
    np.testing.assert_allclose(mean[:, 0], mean[:, 1], atol=1e-2)


def chained(Y, standardize):
    return OutputScaling.chained(Y, standardize, [2, 0, 1])


@pytest.mark.parametrize("make", [OutputScaling.of, OutputScaling.rotated, chained])
@pytest.mark.parametrize("standardize", [True, False])
def test_units_there_and_back(rng, make, standardize):
    Y = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3)) + [1.0, 1e6, -5.0]
    units = make(Y, standardize)
    Z = units.to_experts(Y)
    np.testing.assert_allclose(units.mean_to_latent(Z), Y, rtol=1e-9)
    if make.__name__ != "of":
        correlation = np.corrcoef(Z.T)
        np.testing.assert_allclose(correlation, np.eye(3), atol=1e-7)
    if standardize:
        np.testing.assert_allclose(Z.std(axis=0), 1.0, rtol=1e-6)
        np.testing.assert_allclose(Z.mean(axis=0), 0.0, atol=1e-5)
    assert units.log_det == pytest.approx(np.log(abs(np.linalg.det(units.loading))))


def test_columns_that_do_not_vary_keep_their_scale():
    X = np.column_stack([np.full(4, 7.1), np.arange(4.0)])
    units = InputScaling.of(X, standardize=True)
    assert units.scale[0] == 1.0
    np.testing.assert_allclose(units.to_experts(X)[:, 0], 0.0)


def test_evidence_is_that_of_the_outputs_in_their_own_units(wavy):
    """Standardising by hand and accounting for the change of units gives the same number."""
    X, y = wavy
    y = 40 * y + 7
    inside = DSMGPRegressor("rbf", structure=Leaf(Region.whole(2))).fit(X, y)
    Z, z = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    outside = DSMGPRegressor("rbf", structure=Leaf(Region.whole(2)), standardize=False).fit(Z, z)
    expected = outside.log_marginal_likelihood_ - len(y) * np.log(y.std())
    assert inside.log_marginal_likelihood_ == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(
        inside.kernel_.lengthscale, outside.kernel_.lengthscale, rtol=1e-7, atol=1e-7
    )
