"""Processes of GPyTorch modules that users pass in: hyperparameters as vectors, priors, kernels without a closed form."""

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
    RBFKernel,
    ScaleKernel,
)
from gpytorch.priors import GammaPrior, NormalPrior

from dsmgp.gp.gpytorch_leaf_kernel import AutogradKernel
from dsmgp.gp.gpytorch_process import GPyTorchProcess, gpytorch_modules
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.process import build_process
from dsmgp.gp.terms import NAMED_KERNELS
from tests.support.finite_differences import central_difference


def test_bare_kernels_get_an_output_scale():
    for bare in (RBFKernel(), PeriodicKernel(), PiecewisePolynomialKernel(q=1)):
        assert isinstance(build_process(bare, "zero", 0.1, 3).kernel, ScaleKernel)
    linear = build_process(LinearKernel(), "zero", 0.1, 3).kernel
    assert isinstance(linear, LinearKernel)


def with_priors():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=GammaPrior(3.0, 2.0)))
    mean = gpytorch.means.ConstantMean(constant_prior=NormalPrior(0.0, 0.5))
    process = build_process(kernel, mean, 0.1, 2)
    return process.with_theta(process.theta + 0.3)


def test_priors_add_their_log_density_and_gradient():
    process = with_priors()
    value, gradient = process.log_prior(process.theta)
    lengthscale = process.kernel.base_kernel.lengthscale.detach()
    expected = GammaPrior(3.0, 2.0).log_prob(lengthscale).sum() + NormalPrior(0.0, 0.5).log_prob(
        process.modules.mean.constant.detach()
    )
    assert value == pytest.approx(float(expected), rel=1e-6)
    expected = central_difference(lambda at: np.array(process.log_prior(at)[0]), process.theta)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)
    names = np.array(process.names)
    assert process.has_prior(names == "lengthscale")
    assert not process.has_prior(names == "noise")


def test_parameters_that_are_frozen_stay_out_of_theta():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    process = build_process(kernel, "zero", 0.1, 2)
    assert len(process.theta) == 2  # output scale and noise
    assert process.names == ["outputscale", "noise"]
    assert len(process.pull_back(process.theta, np.ones(4))) == 2


def test_what_is_passed_in_is_not_changed():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    process = build_process(kernel, "zero", 0.1, 2)
    theta = process.theta.copy()
    process.with_theta(theta + 1.0)
    for name, value in kernel.state_dict().items():
        assert torch.equal(value, before[name])
    np.testing.assert_array_equal(process.theta, theta)
    with pytest.raises(ValueError, match="read-only"):
        process.theta[0] = 1.0


@pytest.mark.parametrize(
    ("kernel", "mean", "message"),
    [
        (ScaleKernel(RBFKernel(ard_num_dims=5)), "zero", "inputs with 3 columns"),
        (ScaleKernel(RBFKernel(active_dims=[7])), "zero", "active_dims"),
        ("rbf", gpytorch.means.LinearMean(9), "mean cannot be evaluated on inputs with 3 columns"),
        (ScaleKernel(RBFKernel(batch_shape=torch.Size([2]))), "zero", "no batch shape"),
        (RBFKernel(), "quadratic", "unknown mean 'quadratic'"),
        ("gauss", gpytorch.means.ZeroMean(), "unknown kernel 'gauss'"),
    ],
)
def test_kernels_and_means_that_do_not_fit_are_refused(kernel, mean, message):
    with pytest.raises(ValueError, match=message):
        build_process(kernel, mean, 0.1, 3)


def test_a_fault_of_a_kernel_is_not_taken_for_a_wrong_number_of_columns():
    class Faulty(RBFKernel):
        def forward(self, *arguments, **options):
            return self.undefined

    with pytest.raises(AttributeError, match="undefined"):
        build_process(Faulty(), "zero", 0.1, 3)


@pytest.mark.parametrize("noise", [0.0, -1.0, np.nan, np.inf])
def test_noise_must_be_positive(noise):
    with pytest.raises(ValueError, match="noise_variance to be a positive number"):
        build_process(RBFKernel(), "zero", noise, 3)


@pytest.mark.parametrize("name", NAMED_KERNELS)
def test_a_kernel_by_name_with_a_mean_as_a_module_has_the_priors_of_its_name(name, rng):
    options = {"spread": [1.0, 2.0, 0.5], "variance": 1.7}
    named = build_process(name, "constant", 0.1, 3, **options)
    mixed = build_process(name, gpytorch.means.ConstantMean(), 0.1, 3, **options)
    assert isinstance(mixed, GPyTorchProcess)
    assert mixed.names == named.names
    theta = named.theta + 0.3 * rng.normal(size=len(named.theta))
    np.testing.assert_allclose(mixed.theta, named.theta, rtol=1e-12, atol=1e-14)
    for got, expected in zip(mixed.log_prior(theta), named.log_prior(theta), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


class BranchingPrior(NormalPrior):
    """Its density takes a decision by a value, which vmap refuses."""

    def log_prob(self, x):
        return super().log_prob(x) if x.sum() > 0 else 2.0 * super().log_prob(x)


def test_a_prior_that_branches_is_evaluated_row_by_row_and_a_fault_in_one_surfaces(monkeypatch):
    mean = gpytorch.means.ConstantMean(constant_prior=BranchingPrior(0.0, 0.5))
    process = build_process("rbf", mean, 0.1, 1)
    table = np.tile(process.theta, (2, 1))
    table[:, 0] = [0.4, -0.3]
    values, gradients = process.log_prior(table)
    for value, gradient, row in zip(values, gradients, table, strict=True):
        assert value == process.log_prior(row)[0]
        np.testing.assert_array_equal(gradient, process.log_prior(row)[1])

    def fail(*_):
        raise RuntimeError("a fault, and vmap has no part in it")

    monkeypatch.setattr(BranchingPrior, "log_prob", fail)
    for fresh in (process, build_process("rbf", mean, 0.1, 1)):
        with pytest.raises(RuntimeError, match="a fault"):
            fresh.log_prior(table)


CLOSED = {
    "isotropic": lambda: ScaleKernel(RBFKernel()),
    "some inputs": lambda: ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=2, active_dims=[0, 2])),
    "constrained": lambda: ScaleKernel(
        RBFKernel(ard_num_dims=3, lengthscale_constraint=Interval(0.05, 8.0)),
        outputscale_prior=GammaPrior(2.0, 1.0),
    ),
}


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_form_has_the_parameters_and_covariances_of_its_modules(name, mean, rng):
    process = build_process(CLOSED[name](), mean, 0.1, 3)
    process = process.with_theta(process.theta + 0.3 * rng.normal(size=len(process.theta)))
    assert isinstance(process.leaf_kernel, StationaryKernel)
    theta = process.theta
    table = theta + 0.2 * rng.normal(size=(3, len(theta)))
    parameters = process.kernel_parameters(table)
    weights = rng.normal(size=parameters.shape)
    back = process.pull_back(table, weights)
    noise, log_prior = process.noise_and_gradient(table), process.log_prior(table)
    for k, row in enumerate(table):
        other = process.with_theta(row)
        np.testing.assert_allclose(parameters[k], other.kernel_parameters(), rtol=1e-12)
        np.testing.assert_allclose(process.kernel_parameters(row), parameters[k], rtol=1e-12)
        by_theta = central_difference(process.kernel_parameters, row)
        np.testing.assert_allclose(back[k], weights[k] @ by_theta, rtol=1e-7, atol=1e-8)
        assert noise[0][k] == pytest.approx(other.noise, rel=1e-12)
        np.testing.assert_allclose(noise[1][k], process.noise_and_gradient(row)[1], rtol=1e-12)
        assert log_prior[0][k] == pytest.approx(process.log_prior(row)[0], rel=1e-12)
        np.testing.assert_allclose(log_prior[1][k], process.log_prior(row)[1], rtol=1e-12)
    X = rng.normal(size=(6, 3))
    bound = process.leaf_kernel.at(process.kernel_parameters())
    with torch.no_grad():
        K = process.kernel(torch.from_numpy(X)).to_dense().numpy()
        expected = process.modules.mean(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(bound.cross(X, X), K, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(bound.mean(X), expected, rtol=1e-12, atol=1e-12)


def test_a_kernel_without_closed_form_is_computed_by_autograd(rng):
    kernel = ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=3))
    process = build_process(kernel, "linear", 0.1, 3)
    process = process.with_theta(process.theta + 0.3 * rng.normal(size=len(process.theta)))
    assert isinstance(process.leaf_kernel, AutogradKernel)
    X, B = rng.normal(size=(8, 3)), rng.normal(size=(4, 3))
    X[2] = X[3]
    bound = process.leaf_kernel.at(process.kernel_parameters())
    modules = gpytorch_modules(process)
    with torch.no_grad():
        x, b = torch.from_numpy(X), torch.from_numpy(B)
        np.testing.assert_allclose(bound.cross(X, B), modules.kernel(x, b).to_dense(), rtol=1e-9)
        np.testing.assert_allclose(bound.mean(X), modules.mean(x), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(bound.variance(X), modules.kernel(x, diag=True), rtol=1e-12)
    assert bound.noise == pytest.approx(process.noise, rel=1e-14)
    W, by_mean, tr_W = rng.normal(size=(8, 8)), rng.normal(size=8), 2.3
    W = W + W.T

    def value(theta):
        at = process.leaf_kernel.at(theta)
        K, _ = at.covariance(X)
        return 0.5 * np.vdot(W, K) + by_mean @ at.mean(X) + 0.5 * tr_W * at.noise

    _, pullback = bound.covariance(X)
    expected = central_difference(value, process.theta)
    found = process.pull_back(process.theta, pullback(W, by_mean, tr_W))
    assert np.abs(found - expected).max() <= 1e-7 * np.abs(expected).max()


def test_rescaling_multiplies_signal_and_noise_unless_it_may_not():
    process = with_priors()
    larger = process.rescaled(2.5)
    assert larger.noise == pytest.approx(2.5 * process.noise, rel=1e-12)
    scales = [float(p.kernel.outputscale.detach()) for p in (process, larger)]
    assert scales[1] == pytest.approx(2.5 * scales[0], rel=1e-12)
    assert 1e-6 < process.rescaled(1e-9).noise < 1.01e-6
    fixed = ScaleKernel(RBFKernel())
    fixed.raw_outputscale.requires_grad_(False)
    assert build_process(fixed, "zero", 0.1, 2).rescaled(2.0) is None
    bounded = ScaleKernel(RBFKernel(), outputscale_constraint=Interval(0.5, 1.5))
    assert build_process(bounded, "zero", 0.1, 2).rescaled(2.0) is None


def test_modules_of_a_process_are_new(rng):
    process = with_priors()
    modules = gpytorch_modules(process)
    modules.set_theta(torch.zeros(len(process.theta), dtype=torch.float64))
    np.testing.assert_array_equal(process.theta, with_priors().theta)
    kernel = Kernel((KernelTerm("rbf", [0.5, 2.0], 1.5),))
    named = build_process(kernel, "zero", 0.1, 2)
    module = gpytorch_modules(named).kernel
    np.testing.assert_allclose(module.base_kernel.lengthscale.detach()[0], [0.5, 2.0])
    assert float(module.outputscale.detach()) == pytest.approx(1.5)


def test_a_kernels_own_distance_is_kept(rng):
    class Manhattan(RBFKernel):
        def covar_dist(self, x1, x2, diag=False, square_dist=False, **params):
            if diag:
                d = (x1 - x2).abs().sum(-1)
            else:
                d = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs().sum(-1)
            return d.square() if square_dist else d

    process = build_process(Manhattan(), "zero", 0.1, 3)
    X = rng.normal(size=(6, 3))
    K, _ = process.leaf_kernel.at(process.kernel_parameters()).covariance(X)
    np.testing.assert_allclose(K, process.kernel(torch.from_numpy(X)).to_dense().detach())


def test_single_numbers_of_large_outputs_do_not_overflow():
    """GPyTorch creates bounds in torch's default precision."""
    process = build_process(RBFKernel(), "zero", None, 1, variance=1e80)
    assert process.noise == pytest.approx(1e79, rel=1e-9)
    assert process.rescaled(1e-9).noise > 1e73


def test_periods_start_where_they_are_told_beside_a_mean_of_gpytorch():
    periods = np.array([0.3, 2.0])
    process = build_process("periodic", gpytorch.means.ConstantMean(), 0.1, 2, periods=periods)
    found = process.kernel.base_kernel.period_length.detach().numpy().reshape(-1)
    np.testing.assert_allclose(found, periods)


def test_a_mean_in_the_place_of_a_kernel_is_refused():
    with pytest.raises(
        ValueError, match=r"the kernel_ of a model, or a gpytorch kernel, got ZeroMean"
    ):
        build_process(gpytorch.means.ZeroMean(), "zero", 0.1, 2)
