"""Leaf GPs: evidence, gradients, conditioning, prediction, against scikit-learn and finite differences."""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import (
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.priors import GammaPrior
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from dsmgp._util.warnings import FactorisationWarning
from dsmgp.experts import torch_backend as batched_module
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.numba_backend import NumbaBackend
from dsmgp.gp.autograd import AutogradKernel
from dsmgp.gp.kernels import KERNELS
from dsmgp.gp.process import build_process
from dsmgp.gp.stationary import StationaryKernel
from dsmgp.tree import Leaf, Product, Region, leaves
from dsmgp.tree.growing import grow_balanced
from tests.support.leaf_predictions import predict_leaves
from tests.support.oracle import kernel as textbook_kernel

NAMED = sorted(KERNELS)


@pytest.fixture(autouse=True, params=["native", "batched"])
def backend(request, monkeypatch):
    """Every test runs with compiled code and with torch."""
    if request.param == "batched":
        monkeypatch.setattr(NumbaBackend, "supports", staticmethod(lambda X, kernels: False))
    return request.param


class Manhattan(RBFKernel):
    """A kernel of the user's own, with a distance of its own."""

    def covar_dist(self, x1, x2, diag=False, square_dist=False, **params):
        d = (x1 - x2).abs().sum(-1) if diag else (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs().sum(-1)
        return d.square() if square_dist else d


GENERAL = {
    "periodic": lambda: PeriodicKernel(),
    "piecewise": lambda: PiecewisePolynomialKernel(q=2),
    "mixture": lambda: SpectralMixtureKernel(num_mixtures=2, ard_num_dims=3),
    "manhattan": lambda: Manhattan(),
    "linear_sum": lambda: ScaleKernel(RBFKernel()) + LinearKernel(),
    "sum": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)) + ScaleKernel(MaternKernel(nu=0.5)),
    "product": lambda: (
        ScaleKernel(PeriodicKernel(active_dims=[0])) * LinearKernel(active_dims=[1, 2])
    ),
    "polynomial": lambda: ScaleKernel(PolynomialKernel(power=2)),
    "matern_parts": lambda: (
        ScaleKernel(MaternKernel(nu=0.5, active_dims=[0]))
        + ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2, active_dims=[1, 2]))
    ),
}
CLOSED = {
    "isotropic": lambda: ScaleKernel(RBFKernel()),
    "bare": lambda: MaternKernel(nu=2.5, ard_num_dims=3),
    "active_dims": lambda: ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=2, active_dims=[0, 2])),
    "constrained": lambda: ScaleKernel(
        RBFKernel(ard_num_dims=3, lengthscale_constraint=Interval(0.05, 8.0)),
        outputscale_prior=GammaPrior(2.0, 1.0),
    ),
    "rq": lambda: ScaleKernel(RQKernel(ard_num_dims=3)),
}


def random_rows(rng, n=70, duplicates=True):
    """Rows with exact duplicates and rows 1e-13 apart among them."""
    X = rng.normal(size=(n, 3))
    if duplicates:
        X[5] = X[6] = X[7]
        X[8] = X[9] + 1e-13
    return X, rng.normal(size=(n, 1))


def build(kernel, mean, X, Y, leaf_size=20, noise=0.05, seed=0):
    process = build_process(kernel, mean, noise, X.shape[1])
    step = np.random.default_rng(seed).normal(scale=0.2, size=len(process.theta))
    process.theta = process.theta + torch.from_numpy(step)
    leaf_kernel = process.leaf_kernel(X.shape[1])
    tree = grow_balanced(X, leaf_sizes=[leaf_size], rng=np.random.default_rng(seed))
    return (
        process,
        leaf_kernel,
        InMemoryLeafGPs(leaves(tree), torch.from_numpy(X), torch.from_numpy(Y), [leaf_kernel]),
    )


def central_difference(f, theta, h=3e-4):
    """Sixth-order central differences: at this step rounding and truncation both stay below 1e-9."""
    columns = []
    for k in range(len(theta)):
        e = torch.zeros_like(theta)
        e[k] = h
        d1, d2, d3 = (f(theta + m * e) - f(theta - m * e) for m in (1, 2, 3))
        columns.append((45 * d1 - 9 * d2 + d3) / (60 * h))
    return np.stack(columns, -1)


def assert_gradient_is_right(process, leaf_kernel, leaf_gps):
    theta = process.theta

    def evidence(at):
        process.theta = at
        return leaf_gps.log_evidence([process.kernel_parameters(leaf_kernel)]).sum(axis=1)

    expected = central_difference(evidence, theta)
    process.theta = theta
    _, (by_kernel_parameters,) = leaf_gps.log_evidence_and_gradient(
        [process.kernel_parameters(leaf_kernel)]
    )
    found = np.stack(
        [process.pull_back(leaf_kernel, torch.from_numpy(g)).numpy() for g in by_kernel_parameters]
    )
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert (np.abs(found - expected) <= 1e-6 * scale).all()


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("kernel", NAMED)
@pytest.mark.parametrize("duplicates", [False, True])
def test_closed_form_gradients_equal_finite_differences(rng, kernel, mean, duplicates):
    process, leaf_kernel, leaf_gps = build(kernel, mean, *random_rows(rng, duplicates=duplicates))
    assert isinstance(leaf_kernel, StationaryKernel)
    assert_gradient_is_right(process, leaf_kernel, leaf_gps)


@pytest.mark.parametrize("name", sorted(CLOSED))
def test_gpytorch_kernels_with_a_closed_form_use_it(rng, name):
    process, leaf_kernel, leaf_gps = build(CLOSED[name](), "constant", *random_rows(rng))
    assert isinstance(leaf_kernel, StationaryKernel)
    assert_gradient_is_right(process, leaf_kernel, leaf_gps)


@pytest.mark.parametrize("mean", ["zero", "linear"])
@pytest.mark.parametrize("name", sorted(GENERAL))
def test_autograd_gradients_equal_finite_differences(rng, name, mean):
    process, leaf_kernel, leaf_gps = build(GENERAL[name](), mean, *random_rows(rng))
    assert isinstance(leaf_kernel, AutogradKernel)
    assert_gradient_is_right(process, leaf_kernel, leaf_gps)


def test_a_mean_of_the_users_own_goes_through_autograd(rng):
    class Quadratic(gpytorch.means.Mean):
        def __init__(self):
            super().__init__()
            self.register_parameter("a", torch.nn.Parameter(torch.tensor(0.3)))

        def forward(self, x):
            return self.a * x.square().sum(-1)

    process, leaf_kernel, leaf_gps = build("matern12", Quadratic(), *random_rows(rng))
    assert isinstance(leaf_kernel, AutogradKernel)
    assert_gradient_is_right(process, leaf_kernel, leaf_gps)


@pytest.mark.parametrize("kernel", NAMED)
def test_closed_form_and_autograd_agree_on_the_same_kernel(rng, kernel):
    X, Y = random_rows(rng)
    process, leaf_kernel, leaf_gps = build(kernel, "linear", X, Y)
    general = AutogradKernel(process)
    other = InMemoryLeafGPs(
        [Leaf(Region.whole(3), leaf_gps.leaf_rows[k]) for k in range(leaf_gps.n_leaves)],
        leaf_gps.X,
        leaf_gps.Y,
        [general],
    )
    evidence, (by_kernel_parameters,) = leaf_gps.log_evidence_and_gradient(
        [process.kernel_parameters(leaf_kernel)]
    )
    expected, (by_theta,) = other.log_evidence_and_gradient([process.kernel_parameters(general)])
    np.testing.assert_allclose(evidence, expected, rtol=1e-10)
    found = [
        process.pull_back(leaf_kernel, torch.from_numpy(g)).numpy() for g in by_kernel_parameters
    ]
    np.testing.assert_allclose(found, by_theta, rtol=1e-7, atol=1e-8)
    test = torch.from_numpy(rng.normal(size=(9, 3)))
    for (m1, v1), (m2, v2) in zip(
        predict_leaves(condition(leaf_gps, [process.kernel_parameters(leaf_kernel)]), [(0, test)]),
        predict_leaves(condition(other, [process.kernel_parameters(general)]), [(0, test)]),
        strict=True,
    ):
        torch.testing.assert_close(m1, m2, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(v1, v2, rtol=1e-8, atol=1e-9)


SKLEARN = {
    "rbf": lambda ell: sk.RBF(ell),
    "matern12": lambda ell: sk.Matern(ell, nu=0.5),
    "matern32": lambda ell: sk.Matern(ell, nu=1.5),
    "matern52": lambda ell: sk.Matern(ell, nu=2.5),
}


@pytest.mark.parametrize("kernel", sorted(SKLEARN))
def test_one_leaf_is_scikit_learns_gp(rng, kernel):
    X, Y = rng.normal(size=(80, 3)), rng.normal(size=(80, 1))
    process = build_process(kernel, "zero", 0.07, 3)
    ell = np.array([0.7, 1.3, 2.0])
    process.kernel.base_kernel.lengthscale = torch.from_numpy(ell)
    process.kernel.outputscale = torch.tensor(1.7, dtype=torch.float64)
    leaf_kernel = process.leaf_kernel(3)
    leaf_gps = InMemoryLeafGPs(
        [Leaf(Region.whole(3), np.arange(80))],
        torch.from_numpy(X),
        torch.from_numpy(Y),
        [leaf_kernel],
    )
    conditioned = condition(leaf_gps, [process.kernel_parameters(leaf_kernel)])
    oracle = GaussianProcessRegressor(1.7 * SKLEARN[kernel](ell), alpha=0.07, optimizer=None)
    oracle.fit(X, Y[:, 0])
    X_test = rng.normal(size=(30, 3))
    mean, covariance = oracle.predict(X_test, return_cov=True)
    ((found_mean, found_variance),) = predict_leaves(conditioned, [(0, torch.from_numpy(X_test))])
    joint_mean, joint_covariance = conditioned.joint(0, torch.from_numpy(X_test))
    assert conditioned.log_evidence[0, 0] == pytest.approx(
        oracle.log_marginal_likelihood(), abs=1e-8
    )
    np.testing.assert_allclose(found_mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(found_variance[:, 0], np.diag(covariance), atol=1e-8)
    np.testing.assert_allclose(joint_mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(joint_covariance[0], covariance, atol=1e-8)


def test_rational_quadratic_is_its_textbook_formula(rng):
    X = rng.normal(size=(20, 2))
    process = build_process("rq", "zero", 0.1, 2)
    process.kernel.base_kernel.alpha = torch.tensor(0.6, dtype=torch.float64)
    bound = process.leaf_kernel(2).bind(process.kernel_parameters(process.leaf_kernel(2)).detach())
    ell = process.kernel.base_kernel.lengthscale.detach().numpy()
    expected = textbook_kernel("rq", ell, 1.0, alpha=0.6)(X, X)
    found = bound.cross(torch.from_numpy(X)[None], torch.from_numpy(X)[None])[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("kernel", NAMED)
def test_leaves_together_give_what_each_gives_alone(rng, kernel, monkeypatch):
    """Leaves of very different size in one call; in torch, padding changes nothing."""
    X, Y = random_rows(rng, 90)
    bounds = [0, 3, 40, 90]
    parts = Region.whole(3).split(0, [-1.0, 1.0])
    some = [
        Leaf(p, np.arange(a, b)) for p, a, b in zip(parts, bounds[:-1], bounds[1:], strict=True)
    ]
    process = build_process(kernel, "constant", 0.05, 3)
    leaf_kernel = process.leaf_kernel(3)
    monkeypatch.setattr(batched_module, "MOST_PADDING", 1.0)
    together = InMemoryLeafGPs(some, torch.from_numpy(X), torch.from_numpy(Y), [leaf_kernel])
    assert len(together.backend.groups) == 1
    kernel_parameters = [process.kernel_parameters(leaf_kernel)]
    evidence, gradient = together.log_evidence_and_gradient(kernel_parameters)
    test = torch.from_numpy(X[:4])
    predictions = predict_leaves(
        condition(together, kernel_parameters), [(k, test) for k in range(3)]
    )
    for k, leaf in enumerate(some):
        alone = InMemoryLeafGPs([leaf], torch.from_numpy(X), torch.from_numpy(Y), [leaf_kernel])
        e, g = alone.log_evidence_and_gradient(kernel_parameters)
        np.testing.assert_allclose(evidence[k], e[0], rtol=1e-12)
        np.testing.assert_allclose(gradient[0][k], g[0][0], rtol=1e-9, atol=1e-10)
        ((mean, variance),) = predict_leaves(condition(alone, kernel_parameters), [(0, test)])
        torch.testing.assert_close(predictions[k][0], mean, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(predictions[k][1], variance, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_padding_changes_nothing_for_heavy_tails(rng, alpha, dtype, monkeypatch):
    X = torch.from_numpy(rng.normal(size=(60, 2))).to(dtype)
    Y = torch.from_numpy(rng.normal(size=(60, 1))).to(dtype)
    parts = Region.whole(2).split(0, [0.0])
    some = [Leaf(parts[0], np.arange(32)), Leaf(parts[1], np.arange(32, 60))]
    process = build_process("rq", "zero", 0.1, 2)
    process.kernel.base_kernel.alpha = alpha
    leaf_kernel = process.leaf_kernel(2)
    monkeypatch.setattr(batched_module, "MOST_PADDING", 1.0)
    _, (together,) = InMemoryLeafGPs(some, X, Y, [leaf_kernel]).log_evidence_and_gradient(
        [process.kernel_parameters(leaf_kernel)]
    )
    for k, leaf in enumerate(some):
        _, (alone,) = InMemoryLeafGPs([leaf], X, Y, [leaf_kernel]).log_evidence_and_gradient(
            [process.kernel_parameters(leaf_kernel)]
        )
        tolerance = 1e-9 if dtype == torch.float64 else 1e-2
        np.testing.assert_allclose(together[k], alone[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", sorted(SKLEARN))
def test_a_row_far_away_costs_the_others_no_digits(rng, kernel):
    X = rng.normal(size=(40, 3))
    X[7, 1] = 1e7
    Y = rng.normal(size=(40, 1))
    process = build_process(kernel, "zero", 1e-3, 3)
    leaf_kernel = process.leaf_kernel(3)
    ell = process.kernel.base_kernel.lengthscale.detach().numpy()[0]
    leaf_gps = InMemoryLeafGPs(
        [Leaf(Region.whole(3), np.arange(40))],
        torch.from_numpy(X),
        torch.from_numpy(Y),
        [leaf_kernel],
    )
    conditioned = condition(leaf_gps, [process.kernel_parameters(leaf_kernel)])
    oracle = GaussianProcessRegressor(1.0 * SKLEARN[kernel](ell), alpha=1e-3, optimizer=None)
    oracle.fit(X, Y[:, 0])
    X_test = np.vstack([rng.normal(size=(5, 3)), [[1e8, 0, 0]]])
    mean, covariance = oracle.predict(X_test, return_cov=True)
    found_mean, found_covariance = conditioned.joint(0, torch.from_numpy(X_test))
    assert conditioned.log_evidence[0, 0] == pytest.approx(
        oracle.log_marginal_likelihood(), abs=1e-5
    )
    np.testing.assert_allclose(found_mean[:, 0], mean, atol=1e-6)
    np.testing.assert_allclose(found_covariance[0], covariance, atol=1e-6)


def test_a_kernels_own_distance_is_kept(rng):
    process = build_process(Manhattan(), "zero", 0.1, 3)
    X = torch.from_numpy(rng.normal(size=(1, 6, 3)))
    leaf_kernel = process.leaf_kernel(3)
    K, _ = leaf_kernel.bind(process.kernel_parameters(leaf_kernel)).covariance(
        X, torch.ones(1, 6, dtype=torch.bool)
    )
    torch.testing.assert_close(K, process.kernel(X).to_dense())


def test_per_leaf_hyperparameters_equal_separate_leaves(rng):
    """A batch may carry one natural vector per leaf."""
    X = torch.from_numpy(rng.normal(size=(2, 15, 3)))
    mask = torch.ones(2, 15, dtype=torch.bool)
    process = build_process("matern32", "zero", 0.1, 3)
    leaf_kernel = process.leaf_kernel(3)
    kernel_parameters = torch.stack(
        [process.kernel_parameters(leaf_kernel).detach() * f for f in (0.5, 1.5)]
    )
    K, _ = leaf_kernel.bind(kernel_parameters).covariance(X, mask)
    for leaf in range(2):
        alone, _ = leaf_kernel.bind(kernel_parameters[leaf]).covariance(
            X[leaf : leaf + 1], mask[:1]
        )
        torch.testing.assert_close(K[leaf], alone[0])


def test_an_empty_leaf_has_evidence_one_and_predicts_its_prior(rng):
    X, Y = rng.normal(size=(10, 1)), rng.normal(size=(10, 1))
    left, right = Region.whole(1).split(0, [100.0])
    tree = Product([Leaf(left, np.arange(10)), Leaf(right, np.arange(0))], 0, [100.0])
    process = build_process("rbf", "constant", 0.1, 1)
    process.mean.constant = 0.4
    leaf_kernel = process.leaf_kernel(1)
    leaf_gps = InMemoryLeafGPs(
        leaves(tree), torch.from_numpy(X), torch.from_numpy(Y), [leaf_kernel]
    )
    evidence, (gradient,) = leaf_gps.log_evidence_and_gradient(
        [process.kernel_parameters(leaf_kernel)]
    )
    assert evidence[1, 0] == 0.0
    assert not gradient[1].any()
    conditioned = condition(leaf_gps, [process.kernel_parameters(leaf_kernel)])
    ((mean, variance),) = predict_leaves(conditioned, [(1, torch.full((2, 1), 101.0).double())])
    np.testing.assert_allclose(mean[:, 0], 0.4)
    np.testing.assert_allclose(variance[:, 0], 1.0)


def test_factors_beyond_the_memory_limit_are_made_again(rng):
    X, Y = random_rows(rng, 100)
    process, leaf_kernel, leaf_gps = build("matern52", "zero", X, Y)
    kernel_parameters = [process.kernel_parameters(leaf_kernel)]
    kept, made = (
        condition(leaf_gps, kernel_parameters),
        condition(leaf_gps, kernel_parameters, memory=10_000),
    )
    groups = range(len(leaf_gps.backend.groups))
    assert all(kept.factors.keeps(k) for k in groups)
    assert not all(made.factors.keeps(k) for k in groups)
    test = torch.from_numpy(rng.normal(size=(6, 3)))
    tasks = [(k, test) for k in range(leaf_gps.n_leaves)]
    for (m1, v1), (m2, v2) in zip(
        predict_leaves(kept, tasks), predict_leaves(made, tasks), strict=True
    ):
        assert torch.equal(m1, m2)
        assert torch.equal(v1, v2)


def test_means_alone_equal_means_with_variances(rng):
    X, Y = random_rows(rng)
    process, leaf_kernel, leaf_gps = build("rbf", "linear", X, Y)
    conditioned = condition(leaf_gps, [process.kernel_parameters(leaf_kernel)])
    test = torch.from_numpy(rng.normal(size=(6, 3)))
    ((mean, none),) = predict_leaves(conditioned, [(0, test)], with_variance=False)
    ((expected, _),) = predict_leaves(conditioned, [(0, test)])
    assert torch.equal(mean, expected)
    assert none.numel() == 0


def test_the_jitter_ladder_warns_and_names_the_leaf(rng):
    X = np.repeat(rng.normal(size=(4, 2)), 5, axis=0)
    process = build_process("rbf", "zero", 1e-18, 2, noise_floor=1e-18)
    leaf_kernel = process.leaf_kernel(2)
    leaf_gps = InMemoryLeafGPs(
        [Leaf(Region.whole(2), np.arange(20))],
        torch.from_numpy(X),
        torch.from_numpy(rng.normal(size=(20, 1))),
        [leaf_kernel],
    )
    with pytest.warns(
        FactorisationWarning, match=r"covariance of leaf 0 \(20 rows\).*raise noise_variance"
    ):
        conditioned = condition(leaf_gps, [process.kernel_parameters(leaf_kernel)])
    assert np.isfinite(conditioned.log_evidence).all()


def test_hyperparameters_out_of_range_give_no_number_and_conditioning_says_so(rng):
    X, Y = random_rows(rng)
    process, leaf_kernel, leaf_gps = build("rbf", "zero", X, Y)
    kernel_parameters = [process.kernel_parameters(leaf_kernel).detach() * torch.nan]
    evidence, _ = leaf_gps.log_evidence_and_gradient(kernel_parameters)
    assert np.isnan(evidence).all()
    with pytest.raises(ValueError, match="could not be factorised"):
        condition(leaf_gps, kernel_parameters)


def test_float32_agrees_with_float64_to_its_precision(rng):
    X, Y = random_rows(rng)
    process, leaf_kernel, leaf_gps = build("matern52", "zero", X, Y, noise=0.1)
    single = InMemoryLeafGPs(
        [Leaf(Region.whole(3), leaf_gps.leaf_rows[k]) for k in range(leaf_gps.n_leaves)],
        leaf_gps.X.float(),
        leaf_gps.Y.float(),
        [leaf_kernel],
    )
    kernel_parameters = [process.kernel_parameters(leaf_kernel)]
    evidence, (gradient,) = leaf_gps.log_evidence_and_gradient(kernel_parameters)
    evidence32, (gradient32,) = single.log_evidence_and_gradient(kernel_parameters)
    np.testing.assert_allclose(evidence32, evidence, rtol=1e-4)
    np.testing.assert_allclose(gradient32, gradient, rtol=1e-2, atol=1e-2)


def test_batches_keep_to_the_memory_they_are_given(rng):
    X, Y = random_rows(rng, 400)
    leaf_kernel = StationaryKernel("rbf", (0, 1, 2), "zero")
    leaves = [Leaf(Region.whole(3), rows) for rows in np.arange(400).reshape(20, 20)]
    kernel_parameters = [torch.tensor([1.0, 1.0, 1.0, 1.0, 0.1], dtype=torch.float64)]
    X, Y = torch.as_tensor(X), torch.as_tensor(Y)
    free, tight = (
        InMemoryLeafGPs(
            leaves, X, Y, [leaf_kernel], backend=batched_module.TorchBackend, memory=memory
        )
        for memory in (np.inf, 8 * batched_module.WORKING_ARRAYS * 3 * 20**2)
    )
    assert len(free.backend.groups) == 1
    assert [len(group) for group in tight.backend.groups] == [3] * 6 + [2]
    np.testing.assert_allclose(
        free.log_evidence(kernel_parameters), tight.log_evidence(kernel_parameters), rtol=1e-12
    )
