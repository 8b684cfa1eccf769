"""Leaf GPs with GPyTorch's kernels: those with a closed form use it, and autograd computes the others."""

import numpy as np
import pytest

pytest.importorskip("torch")

import gpytorch
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

from dsmgp.experts.backends.torch_backend import TorchBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.gpytorch_leaf_kernel import AutogradKernel
from dsmgp.gp.gpytorch_process import gpytorch_modules
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.terms import NAMED_KERNELS
from dsmgp.tree import Leaf, Region
from tests.support.leaf_predictions import predict_leaves
from tests.support.random_leaves import assert_gradient_is_right, build, random_rows


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


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", sorted(CLOSED))
def test_gpytorch_kernels_with_a_closed_form_use_it(rng, name):
    process, leaf_gps = build(CLOSED[name](), "constant", *random_rows(rng))
    assert isinstance(process.leaf_kernel, StationaryKernel)
    assert_gradient_is_right(process, leaf_gps)


@pytest.mark.parametrize("mean", ["zero", "linear"])
@pytest.mark.parametrize("name", sorted(GENERAL))
def test_autograd_gradients_equal_finite_differences(rng, name, mean):
    process, leaf_gps = build(GENERAL[name](), mean, *random_rows(rng))
    assert isinstance(process.leaf_kernel, AutogradKernel)
    assert isinstance(leaf_gps.backend, TorchBackend)
    assert_gradient_is_right(process, leaf_gps)


def test_a_mean_of_the_users_own_goes_through_autograd(rng):
    class Quadratic(gpytorch.means.Mean):
        def __init__(self):
            super().__init__()
            self.register_parameter("a", torch.nn.Parameter(torch.tensor(0.3)))

        def forward(self, x):
            return self.a * x.square().sum(-1)

    process, leaf_gps = build("matern12", Quadratic(), *random_rows(rng))
    assert isinstance(process.leaf_kernel, AutogradKernel)
    assert_gradient_is_right(process, leaf_gps)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("kernel", [*NAMED_KERNELS, "matern32+periodic", "rq+rbf"])
def test_closed_form_and_autograd_agree_on_the_same_kernel(rng, kernel):
    X, Y = random_rows(rng)
    process, leaf_gps = build(kernel, "linear", X, Y)
    general = AutogradKernel(gpytorch_modules(process))
    other = InMemoryLeafGPs(
        [Leaf(Region.whole(3), leaf_gps.leaf_rows[k]) for k in range(leaf_gps.n_leaves)],
        leaf_gps.data,
        [general],
    )
    parameters, theta = [process.kernel_parameters()], [process.theta]
    evidence, (by_kernel_parameters,) = leaf_gps.log_evidence_and_gradient(parameters)
    expected, (by_theta,) = other.log_evidence_and_gradient(theta)
    np.testing.assert_allclose(evidence, expected, rtol=1e-10)
    found = [process.pull_back(process.theta, g) for g in by_kernel_parameters]
    np.testing.assert_allclose(found, by_theta, rtol=1e-7, atol=1e-8)
    ours, theirs = condition(leaf_gps, parameters), condition(other, theta)
    np.testing.assert_allclose(ours.noise, theirs.noise, rtol=1e-12)
    test = rng.normal(size=(9, 3))
    tasks = [(k, test) for k in range(leaf_gps.n_leaves)]
    for (m1, v1), (m2, v2) in zip(
        predict_leaves(ours, tasks), predict_leaves(theirs, tasks), strict=True
    ):
        np.testing.assert_allclose(m1, m2, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(v1, v2, rtol=1e-8, atol=1e-9)
    for one, another in zip(ours.joint(0, test), theirs.joint(0, test), strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kernel", [*NAMED_KERNELS, "matern32+periodic", "rq+rbf"])
def test_one_leaf_is_gpytorchs_exact_gp(rng, kernel):
    """Evidence and predictions by GPyTorch itself, with none of our code."""
    X, Y = rng.normal(size=(40, 3)), rng.normal(size=(40, 1))
    process, leaf_gps = build(kernel, "linear", X, Y, leaf_size=100)
    assert leaf_gps.n_leaves == 1
    conditioned = condition(leaf_gps, [process.kernel_parameters()])
    modules = gpytorch_modules(process)
    x, y, test = (torch.from_numpy(a) for a in (X, Y[:, 0], rng.normal(size=(9, 3))))

    class Exact(gpytorch.models.ExactGP):
        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(modules.mean(x), modules.kernel(x))

    model = Exact(x, y, modules.likelihood)
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        model.train()
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(modules.likelihood, model)
        evidence = 40 * float(
            marginal(model(x), y)
        )  # priors of modules that it does not hold do not count
        model.eval()
        posterior = model(test)
    assert conditioned.log_evidence[0, 0] == pytest.approx(evidence, rel=1e-7)
    ((mean, variance),) = predict_leaves(conditioned, [(0, test.numpy())])
    np.testing.assert_allclose(mean[:, 0], posterior.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance[:, 0], posterior.variance, rtol=1e-5, atol=1e-6)
