"""Leaf GPs: evidence, gradients, conditioning, prediction, against scikit-learn and finite differences, in every backend."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor

from dsmgp._util.warnings import FactorisationWarning
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.process import build_process
from dsmgp.gp.terms import NAMED_KERNELS, STATIONARY
from dsmgp.tree import Leaf, Product, Region, leaves
from tests.support.leaf_predictions import predict_leaves
from tests.support.oracle import kernel as textbook_kernel
from tests.support.random_leaves import assert_gradient_is_right, build, random_rows
from tests.support.sklearn_kernels import ARD, covariance, evidence_and_gradient

pytestmark = pytest.mark.usefixtures("backend")
SUMS = ("matern32+periodic", "rq+rbf")
NAMED = [*NAMED_KERNELS, *SUMS]


def one_leaf(X, Y, kernel):
    return InMemoryLeafGPs(
        [Leaf(Region.whole(X.shape[1]), np.arange(len(X)))], LeafData(X, Y), [kernel]
    )


def named(kernel, lengthscale, outputscale=1.0, **extra):
    return Kernel((KernelTerm(kernel, lengthscale, outputscale, **extra),))


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("kernel", NAMED)
@pytest.mark.parametrize("duplicates", [False, True])
def test_closed_form_gradients_equal_finite_differences(rng, kernel, mean, duplicates):
    process, leaf_gps = build(kernel, mean, *random_rows(rng, duplicates=duplicates))
    assert isinstance(process.leaf_kernel, StationaryKernel) == (kernel in STATIONARY)
    assert_gradient_is_right(process, leaf_gps)


@pytest.mark.parametrize("kernel", sorted(ARD))
def test_one_leaf_is_scikit_learns_gp(rng, kernel):
    X, Y = rng.normal(size=(80, 3)), rng.normal(size=(80, 1))
    ell = np.array([0.7, 1.3, 2.0])
    process = build_process(named(kernel, ell, 1.7), "zero", 0.07, 3)
    conditioned = condition(one_leaf(X, Y, process.leaf_kernel), [process.kernel_parameters()])
    oracle = GaussianProcessRegressor(1.7 * ARD[kernel](ell), alpha=0.07, optimizer=None)
    oracle.fit(X, Y[:, 0])
    X_test = rng.normal(size=(30, 3))
    mean, expected = oracle.predict(X_test, return_cov=True)
    ((found_mean, found_variance),) = predict_leaves(conditioned, [(0, X_test)])
    joint_mean, joint_covariance = conditioned.joint(0, X_test)
    assert conditioned.log_evidence[0, 0] == pytest.approx(
        oracle.log_marginal_likelihood(), abs=1e-8
    )
    np.testing.assert_allclose(found_mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(found_variance[:, 0], np.diag(expected), atol=1e-8)
    np.testing.assert_allclose(joint_mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(joint_covariance[0], expected, atol=1e-8)


@pytest.mark.parametrize("kernel", NAMED)
def test_evidence_and_gradient_are_those_of_scikit_learn(rng, kernel):
    n_dims = 3 if kernel in ARD else 1  # the other kernels of scikit-learn have one length scale
    X, y = rng.uniform(-2, 2, size=(50, n_dims)), rng.normal(size=50)
    X[5] = X[6]
    process = build_process(kernel, "zero", 0.3, n_dims)
    process = process.with_theta(process.theta + 0.2 * rng.normal(size=len(process.theta)))
    leaf_gps = one_leaf(X, y[:, None], process.leaf_kernel)
    evidence, (gradient,) = leaf_gps.log_evidence_and_gradient([process.kernel_parameters()])
    expected, by = evidence_and_gradient(process.kernel, process.noise, X, y)
    assert evidence[0, 0] == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(gradient[0], by, rtol=1e-7, atol=1e-8 * np.abs(by).max())


@pytest.mark.parametrize("kernel", NAMED)
def test_predictions_are_those_of_dense_algebra(rng, kernel):
    """With scikit-learn's covariances, and a linear mean."""
    X, Y = random_rows(rng, 50)
    process, leaf_gps = build(kernel, "linear", X, Y)
    conditioned = condition(leaf_gps, [process.kernel_parameters()])
    test = np.vstack([rng.normal(size=(9, 3)), X[:3]])
    prior = process.leaf_kernel.at(process.kernel_parameters())
    for leaf in range(leaf_gps.n_leaves):
        own = X[leaf_gps.leaf_rows[leaf]]
        K = covariance(process.kernel, own, own) + process.noise * np.eye(len(own))
        cross = covariance(process.kernel, test, own)
        away = Y[leaf_gps.leaf_rows[leaf], 0] - prior.mean(own)
        mean = prior.mean(test) + cross @ np.linalg.solve(K, away)
        expected = covariance(process.kernel, test, test) - cross @ np.linalg.solve(K, cross.T)
        ((found, variance),) = predict_leaves(conditioned, [(leaf, test)])
        np.testing.assert_allclose(found[:, 0], mean, atol=1e-9)
        np.testing.assert_allclose(variance[:, 0], np.diag(expected), atol=1e-9)
        joint_mean, joint = conditioned.joint(leaf, test)
        np.testing.assert_allclose(joint_mean[:, 0], mean, atol=1e-9)
        np.testing.assert_allclose(joint[0], expected, atol=1e-9)


def test_rational_quadratic_is_its_textbook_formula(rng):
    X = rng.normal(size=(20, 2))
    process = build_process(named("rq", [0.7, 1.3], alpha=0.6), "zero", 0.1, 2)
    bound = process.leaf_kernel.at(process.kernel_parameters())
    expected = textbook_kernel("rq", np.array([0.7, 1.3]), 1.0, alpha=0.6)(X, X)
    np.testing.assert_allclose(bound.cross(X, X), expected, atol=1e-12)


@pytest.mark.parametrize("kernel", NAMED)
def test_leaves_together_give_what_each_gives_alone(rng, kernel, backend, monkeypatch):
    """Leaves of very different size in one call; in torch, padding changes nothing."""
    X, Y = random_rows(rng, 90)
    bounds = [0, 3, 40, 90]
    parts = Region.whole(3).split(0, [-1.0, 1.0])
    some = [
        Leaf(p, np.arange(a, b)) for p, a, b in zip(parts, bounds[:-1], bounds[1:], strict=True)
    ]
    process = build_process(kernel, "constant", 0.05, 3)
    if backend == "torch":
        monkeypatch.setattr("dsmgp.experts.backends.torch_backend.MOST_PADDING", 1.0)
    together = InMemoryLeafGPs(some, LeafData(X, Y), [process.leaf_kernel])
    assert len(together.backend.groups) == 1
    kernel_parameters = [process.kernel_parameters()]
    evidence, gradient = together.log_evidence_and_gradient(kernel_parameters)
    test = X[:4]
    predictions = predict_leaves(
        condition(together, kernel_parameters), [(k, test) for k in range(3)]
    )
    for k, leaf in enumerate(some):
        alone = InMemoryLeafGPs([leaf], LeafData(X, Y), [process.leaf_kernel])
        e, g = alone.log_evidence_and_gradient(kernel_parameters)
        np.testing.assert_allclose(evidence[k], e[0], rtol=1e-12)
        np.testing.assert_allclose(gradient[0][k], g[0][0], rtol=1e-9, atol=1e-10)
        ((mean, variance),) = predict_leaves(condition(alone, kernel_parameters), [(0, test)])
        np.testing.assert_allclose(predictions[k][0], mean, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(predictions[k][1], variance, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 3.0])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_padding_changes_nothing_for_heavy_tails(rng, alpha, dtype, backend, monkeypatch):
    if dtype == "float32" and backend != "torch":
        pytest.skip("single precision is computed in torch")
    X, Y = rng.normal(size=(60, 2)), rng.normal(size=(60, 1))
    parts = Region.whole(2).split(0, [0.0])
    some = [Leaf(parts[0], np.arange(32)), Leaf(parts[1], np.arange(32, 60))]
    process = build_process(named("rq", [0.7, 0.7], alpha=alpha), "zero", 0.1, 2)
    if backend == "torch":
        monkeypatch.setattr("dsmgp.experts.backends.torch_backend.MOST_PADDING", 1.0)

    def gradient(leaves):
        leaf_gps = InMemoryLeafGPs(leaves, LeafData(X, Y), [process.leaf_kernel], dtype=dtype)
        assert len(leaf_gps.backend.groups) == 1
        return leaf_gps.log_evidence_and_gradient([process.kernel_parameters()])[1][0]

    together = gradient(some)
    for k, leaf in enumerate(some):
        tolerance = 1e-9 if dtype == "float64" else 1e-2
        np.testing.assert_allclose(together[k], gradient([leaf])[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", sorted(ARD))
def test_a_row_far_away_costs_the_others_no_digits(rng, kernel):
    X = rng.normal(size=(40, 3))
    X[7, 1] = 1e7
    Y = rng.normal(size=(40, 1))
    process = build_process(kernel, "zero", 1e-3, 3)
    conditioned = condition(one_leaf(X, Y, process.leaf_kernel), [process.kernel_parameters()])
    base = ARD[kernel](process.kernel.lengthscale)
    oracle = GaussianProcessRegressor(1.0 * base, alpha=1e-3, optimizer=None)
    oracle.fit(X, Y[:, 0])
    X_test = np.vstack([rng.normal(size=(5, 3)), [[1e8, 0, 0]]])
    mean, expected = oracle.predict(X_test, return_cov=True)
    found_mean, found_covariance = conditioned.joint(0, X_test)
    assert conditioned.log_evidence[0, 0] == pytest.approx(
        oracle.log_marginal_likelihood(), abs=1e-5
    )
    np.testing.assert_allclose(found_mean[:, 0], mean, atol=1e-6)
    np.testing.assert_allclose(found_covariance[0], expected, atol=1e-6)
    ((found_mean, found_variance),) = predict_leaves(conditioned, [(0, X_test)])
    np.testing.assert_allclose(found_mean[:, 0], mean, atol=1e-6)
    np.testing.assert_allclose(found_variance[:, 0], np.diag(expected), atol=1e-6)


@pytest.mark.parametrize("kernel", NAMED)
def test_hyperparameters_by_leaf_equal_separate_leaves(rng, kernel):
    X, Y = random_rows(rng)
    process, leaf_gps = build(kernel, "linear", X, Y)
    factors = rng.uniform(0.8, 1.2, size=(leaf_gps.n_leaves, 1))
    table = factors * process.kernel_parameters()
    evidence, (gradient,) = leaf_gps.log_evidence_and_gradient([table])
    conditioned = condition(leaf_gps, [table])
    np.testing.assert_allclose(conditioned.log_evidence, evidence, rtol=1e-12)
    np.testing.assert_array_equal(conditioned.noise[:, 0], table[:, -1])
    test = rng.normal(size=(5, 3))
    predictions = predict_leaves(conditioned, [(k, test) for k in range(leaf_gps.n_leaves)])
    for k in range(leaf_gps.n_leaves):
        leaf = Leaf(Region.whole(3), leaf_gps.leaf_rows[k])
        alone = InMemoryLeafGPs([leaf], LeafData(X, Y), [process.leaf_kernel])
        e, (g,) = alone.log_evidence_and_gradient([table[k]])
        np.testing.assert_allclose(evidence[k], e[0], rtol=1e-12)
        np.testing.assert_allclose(gradient[k], g[0], rtol=1e-9, atol=1e-10)
        ((mean, variance),) = predict_leaves(condition(alone, [table[k]]), [(0, test)])
        np.testing.assert_allclose(predictions[k][0], mean, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(predictions[k][1], variance, rtol=1e-11, atol=1e-12)


def test_an_empty_leaf_has_evidence_one_and_predicts_its_prior(rng):
    X, Y = rng.normal(size=(10, 1)), rng.normal(size=(10, 1))
    left, right = Region.whole(1).split(0, [100.0])
    tree = Product([Leaf(left, np.arange(10)), Leaf(right, np.arange(0))], 0, [100.0])
    process = build_process("rbf", "constant", 0.1, 1)
    process = process.with_theta(np.r_[0.4, process.theta[1:]])  # the mean is its first entry
    leaf_gps = InMemoryLeafGPs(leaves(tree), LeafData(X, Y), [process.leaf_kernel])
    evidence, (gradient,) = leaf_gps.log_evidence_and_gradient([process.kernel_parameters()])
    assert evidence[1, 0] == 0.0
    assert not gradient[1].any()
    conditioned = condition(leaf_gps, [process.kernel_parameters()])
    ((mean, variance),) = predict_leaves(conditioned, [(1, np.full((2, 1), 101.0))])
    np.testing.assert_allclose(mean[:, 0], 0.4)
    np.testing.assert_allclose(variance[:, 0], 1.0)
    joint_mean, covariance_of_f = conditioned.joint(1, np.full((2, 1), 101.0))
    np.testing.assert_allclose(joint_mean[:, 0], 0.4)
    np.testing.assert_allclose(covariance_of_f[0], 1.0)


def test_factors_beyond_the_memory_limit_are_made_again(rng):
    X, Y = random_rows(rng, 100)
    process, leaf_gps = build("matern52", "zero", X, Y)
    kernel_parameters = [process.kernel_parameters()]
    kept, made = (
        condition(leaf_gps, kernel_parameters),
        condition(leaf_gps, kernel_parameters, memory=10_000),
    )
    groups = range(len(leaf_gps.backend.groups))
    assert all(kept.factors.keeps(k) for k in groups)
    assert not all(made.factors.keeps(k) for k in groups)
    test = rng.normal(size=(6, 3))
    tasks = [(k, test) for k in range(leaf_gps.n_leaves)]
    for (m1, v1), (m2, v2) in zip(
        predict_leaves(kept, tasks), predict_leaves(made, tasks), strict=True
    ):
        np.testing.assert_array_equal(m1, m2)
        np.testing.assert_array_equal(v1, v2)


def test_factors_are_lower_triangular_and_those_of_the_covariance(rng):
    X, Y = random_rows(rng)
    process, leaf_gps = build("matern52", "zero", X, Y)
    conditioned = condition(leaf_gps, [process.kernel_parameters()])
    for leaf in range(leaf_gps.n_leaves):
        rows = conditioned.leaf_rows[leaf]
        factor = conditioned.factor(0, leaf)
        assert isinstance(factor, np.ndarray)
        K = covariance(process.kernel, X[rows], X[rows]) + process.noise * np.eye(len(rows))
        np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(K), atol=1e-11)
        place = slice(*conditioned.leaf_rows.ends[leaf : leaf + 2])
        expected = np.linalg.solve(K, Y[rows, 0])
        np.testing.assert_allclose(conditioned.alpha[0][place], expected, atol=1e-9)


def test_means_alone_equal_means_with_variances(rng):
    X, Y = random_rows(rng)
    process, leaf_gps = build("rbf", "linear", X, Y)
    conditioned = condition(leaf_gps, [process.kernel_parameters()])
    test = rng.normal(size=(6, 3))
    ((mean, none),) = predict_leaves(conditioned, [(0, test)], with_variance=False)
    ((expected, _),) = predict_leaves(conditioned, [(0, test)])
    np.testing.assert_array_equal(mean, expected)
    assert none.size == 0


def test_the_jitter_ladder_warns_and_names_the_leaf(rng):
    X = np.repeat(rng.normal(size=(4, 2)), 5, axis=0)
    process = build_process("rbf", "zero", 1e-18, 2, noise_floor=1e-18)
    leaf_gps = one_leaf(X, rng.normal(size=(20, 1)), process.leaf_kernel)
    with pytest.warns(
        FactorisationWarning, match=r"covariance of leaf 0 \(20 rows\).*raise noise_variance"
    ):
        conditioned = condition(leaf_gps, [process.kernel_parameters()])
    assert np.isfinite(conditioned.log_evidence).all()


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300])
@pytest.mark.parametrize("kernel", NAMED)
def test_an_optimiser_that_went_too_far_is_not_warned(rng, kernel, value):
    """Whatever comes of it: it steps back. Warnings are errors here."""
    X, Y = random_rows(rng)
    process, leaf_gps = build(kernel, "zero", X, Y)
    for k in range(len(process.theta) - 1):
        parameters = process.kernel_parameters().copy()
        parameters[k] = value
        for scale_rows in (None, 5.0):
            leaf_gps.log_evidence_and_gradient([parameters], scale_rows=scale_rows)


@pytest.mark.parametrize("kernel", ["rbf", "rq", "matern32+periodic"])
def test_hyperparameters_out_of_range_give_no_number_and_conditioning_says_so(rng, kernel):
    X, Y = random_rows(rng)
    process, leaf_gps = build(kernel, "zero", X, Y)
    negative = process.kernel_parameters().copy()
    negative[-1] = -30.0  # no jitter makes up for that
    for kernel_parameters in ([process.kernel_parameters() * np.nan], [negative]):
        evidence, _ = leaf_gps.log_evidence_and_gradient(kernel_parameters)
        assert np.isnan(evidence).all()
        with pytest.raises(ValueError, match="could not be factorised"):
            condition(leaf_gps, kernel_parameters)
