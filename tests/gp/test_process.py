"""Processes: built from names and modules, their hyperparameters as vectors, their priors."""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import (
    LinearKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.priors import GammaPrior, NormalPrior

from dsmgp.gp.process import build_process
from tests.experts.test_leaf_gps import central_difference


def test_bare_kernels_get_an_output_scale():
    for bare in (RBFKernel(), PeriodicKernel(), PiecewisePolynomialKernel(q=1)):
        assert isinstance(build_process(bare, "zero", 0.1, 3).kernel, ScaleKernel)
    linear = build_process(LinearKernel(), "zero", 0.1, 3).kernel
    assert isinstance(linear, LinearKernel)


def test_priors_add_their_log_density_and_gradient():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=GammaPrior(3.0, 2.0)))
    mean = gpytorch.means.ConstantMean(constant_prior=NormalPrior(0.0, 0.5))
    process = build_process(kernel, mean, 0.1, 2)
    process.theta = process.theta + 0.3
    theta = process.theta
    value, gradient = process.log_prior()
    lengthscale = process.kernel.base_kernel.lengthscale.detach()
    expected = GammaPrior(3.0, 2.0).log_prob(lengthscale).sum() + NormalPrior(0.0, 0.5).log_prob(
        process.mean.constant.detach()
    )
    assert value == pytest.approx(float(expected), rel=1e-6)

    def log_prior(at):
        process.theta = at
        return np.array(process.log_prior()[0])

    np.testing.assert_allclose(gradient, central_difference(log_prior, theta), rtol=1e-6, atol=1e-8)


def test_parameters_that_are_frozen_stay_out_of_theta():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    process = build_process(kernel, "zero", 0.1, 2)
    assert len(process.theta) == 2  # output scale and noise
    assert len(process.pull_back(process.leaf_kernel(2), torch.ones(4))) == 2


def test_what_is_passed_in_is_not_changed():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    process = build_process(kernel, "zero", 0.1, 2)
    process.theta = process.theta + 1.0
    for name, value in kernel.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("kernel", "mean", "message"),
    [
        ("gauss", "zero", "unknown kernel 'gauss': expected one of 'rbf'"),
        (3, "zero", "or a gpytorch kernel, got 3"),
        ("rbf", "quadratic", "unknown mean 'quadratic': expected one of 'zero'"),
        ("rbf", 1.0, "or a gpytorch mean, got 1.0"),
        (ScaleKernel(RBFKernel(ard_num_dims=5)), "zero", "inputs with 3 columns"),
        (ScaleKernel(RBFKernel(active_dims=[7])), "zero", "active_dims"),
        ("rbf", gpytorch.means.LinearMean(9), "mean cannot be evaluated on inputs with 3 columns"),
        (ScaleKernel(RBFKernel(batch_shape=torch.Size([2]))), "zero", "no batch shape"),
    ],
)
def test_kernels_and_means_that_do_not_fit_are_refused(kernel, mean, message):
    with pytest.raises(ValueError, match=message):
        build_process(kernel, mean, 0.1, 3)


@pytest.mark.parametrize("noise", [0.0, -1.0, np.nan, np.inf])
def test_noise_must_be_positive(noise):
    with pytest.raises(ValueError, match="noise_variance to be a positive number"):
        build_process("rbf", "zero", noise, 3)
