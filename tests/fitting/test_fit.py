"""Partitions that differ in kernel and theta: the model is still exactly what its parts say."""

import warnings

import numpy as np
import pytest
from scipy import stats

from dsmgp import DSMGPRegressor
from dsmgp.experts.backends.numba_backend import NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.selection import families
from dsmgp.gp.process import build_process
from dsmgp.tree import Leaf, Region, leaves
from tests.support.leaf_predictions import predict_leaves
from tests.support.sklearn_kernels import covariance


@pytest.fixture
def rows(rng):
    X = rng.uniform(-2, 2, size=(160, 2))
    return X, np.sin(3 * X[:, 0]) + np.abs(X[:, 1]) + 0.1 * rng.normal(size=160)


@pytest.fixture
def mixed(rows, monkeypatch):
    """A model whose partitions take turns between two kernels, whatever their scores."""
    monkeypatch.setattr(families, "CLOSE_SCORES", np.inf)
    return DSMGPRegressor(leaf_size=40, sum_children=4, hypotheses=None, random_state=0).fit(*rows)


@pytest.fixture(params=["numba", "numpy", "torch"])
def backend(request):
    if request.param == "numpy":
        return NumpyBackend
    pytest.importorskip(request.param)
    if request.param == "numba":
        return NumbaBackend
    from dsmgp.experts.backends.torch_backend import TorchBackend

    return TorchBackend


def test_leaves_with_kernels_of_their_own_are_each_what_they_are_alone(rows, backend):
    X, y = rows[0], rows[1][:, None]
    processes = [
        build_process(k, "constant", noise, 2) for k, noise in (("matern12", 0.1), ("rbf", 0.03))
    ]
    own = [process.leaf_kernel for process in processes]
    kernel_parameters = [process.kernel_parameters() for process in processes]
    some_leaves = [Leaf(Region.whole(2), np.arange(k, k + 30)) for k in (0, 30, 60, 90)]
    family = [0, 1, 1, 0]
    together = InMemoryLeafGPs(
        some_leaves, LeafData(X, y), [[own[f] for f in family]], backend=backend
    )
    table = np.stack(kernel_parameters)[family]
    evidence, (gradient,) = together.log_evidence_and_gradient([table])
    conditioned = condition(together, [table])
    test = X[120:]
    answers = predict_leaves(conditioned, [(k, test) for k in range(4)])
    for k, f in enumerate(family):
        alone = InMemoryLeafGPs([some_leaves[k]], LeafData(X, y), [own[f]], backend=backend)
        expected, (by,) = alone.log_evidence_and_gradient([kernel_parameters[f]])
        np.testing.assert_allclose(evidence[k], expected[0], rtol=1e-12)
        np.testing.assert_allclose(gradient[k], by[0], rtol=1e-9, atol=1e-10)
        ((mean, variance),) = predict_leaves(condition(alone, [kernel_parameters[f]]), [(0, test)])
        np.testing.assert_allclose(answers[k][0], mean, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(answers[k][1], variance, rtol=1e-7, atol=1e-7)
        assert conditioned.noise[k, 0] == pytest.approx(processes[f].noise)


def test_two_kernels_take_turns(mixed):
    model = mixed.state_.model
    assert len(model.families) == 2
    assert len({family.kernel for family in model.families}) == 2
    assert np.bincount(model.family).min() > 0
    assert model.families[0].kernel == min(mixed.kernel_scores_, key=mixed.kernel_scores_.get)
    (line,) = [line for line in mixed.summary().splitlines() if line.startswith("kernels used")]
    assert all(family.kernel in line for family in model.families)


def test_one_kernel_far_ahead_stands_alone(rows, monkeypatch):
    monkeypatch.setattr(families, "CLOSE_SCORES", 0.0)
    model = DSMGPRegressor(hypotheses=None, leaf_size=40, random_state=0).fit(*rows).state_.model
    assert len(model.families) == 1


def test_the_evidence_is_that_of_the_partitions_with_their_own_kernels(mixed, rows):
    """By dense algebra: a sum over partitions of products over leaves."""
    X, y = rows
    model = mixed.state_.model
    Z, t = model.inputs.to_experts(X), model.outputs.to_experts(y[:, None])[:, 0]
    logs, number = [], 0
    for child in model.tree.children:
        total = 0.0
        for leaf in leaves(child):
            process = model.families[model.family[number]].processes[0]
            K = covariance(process.kernel, Z[leaf.rows], Z[leaf.rows])
            K += process.noise * np.eye(len(K))
            total += stats.multivariate_normal.logpdf(t[leaf.rows], cov=K)
            number += 1
        logs.append(total - np.log(len(model.tree.children)))
    expected = np.logaddexp.reduce(logs) - len(X) * model.outputs.log_det
    assert mixed.log_marginal_likelihood_ == pytest.approx(expected, rel=1e-8)


def test_joint_and_marginal_distributions_agree(mixed, rng):
    X = rng.uniform(-2, 2, size=(12, 2))
    mean, std = mixed.predict(X, return_std=True)
    joint_mean, covariance = mixed.predict(X, return_cov=True)
    np.testing.assert_allclose(joint_mean, mean, rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-8)


def test_large_leaves_learn_a_theta_of_their_own_where_it_is_better(rng):
    """A smooth function of many rows: what is learned far apart shows in large leaves only."""
    X = rng.uniform(-1, 1, size=(1500, 3))
    y = np.sin(2 * X[:, 0] * np.exp(X[:, 1])) + X[:, 2] + 0.01 * rng.normal(size=1500)
    model = DSMGPRegressor("rbf", random_state=0).fit(X, y).state_.model
    sizes = np.array([leaf.n_rows for leaf in leaves(model.tree)])
    assert sizes.max() == 1500  # one leaf for all is among them
    assert len(model.families) == 2
    assert sizes[model.family == 1].max() == 1500
    assert sizes[model.family == 0].max() < 500


def test_without_priors_the_likelihood_is_maximised():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(30, 2))
    y = np.sin(5 * X[:, 0]) + 0.1 * rng.normal(size=30)
    leaf = Leaf(Region.whole(2))
    options = {"structure": leaf, "weights": "posterior", "random_state": 0}
    with_priors, without = (
        DSMGPRegressor("rbf", priors=priors, **options).fit(X, y) for priors in ("lognormal", None)
    )
    process = without.state_.model.processes[0]
    assert process.log_prior(process.theta)[0] == 0.0
    assert not process.has_prior(np.arange(len(process.theta)))
    assert without.log_marginal_likelihood_ > with_priors.log_marginal_likelihood_
    # The oracle: scikit-learn's maximum, from where this one ended.
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-5, 1e5)) * RBF([1.0, 1.0], (1e-3, 1e7)) + WhiteKernel(0.1)
    Z, t = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    oracle = GaussianProcessRegressor(kernel, n_restarts_optimizer=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle.fit(Z, t)
    best = oracle.log_marginal_likelihood_value_ - 30 * np.log(y.std())
    assert without.log_marginal_likelihood_ == pytest.approx(best, abs=0.02)
