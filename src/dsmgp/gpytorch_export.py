"""Export of one leaf of a fitted mixture as an exact GP of GPyTorch."""

from __future__ import annotations

import copy
import numbers

import gpytorch
import torch
from torch import Tensor

from dsmgp.gp.process import Process
from dsmgp.gp.stationary import StationaryKernel
from dsmgp.mixture.model import Model

__all__ = ["ExactLeaf", "exact_leaf"]


class ExactLeaf(gpytorch.models.ExactGP):  # type: ignore[misc]
    """An exact GP with a leaf's rows and hyperparameters, in the experts' units."""

    def __init__(
        self, X: Tensor, y: Tensor, process: Process, likelihood: gpytorch.likelihoods.Likelihood
    ) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module, self.covar_module = process.mean, process.kernel

    def forward(self, X: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def exact_leaf(model: Model, leaf: int, output: int) -> ExactLeaf:
    """Return a leaf for one output, with copies of its modules, ready to predict."""
    leaf_gps = model.leaf_posterior.settled().leaf_gps
    if not (isinstance(leaf, numbers.Integral) and 0 <= leaf < leaf_gps.n_leaves):
        raise ValueError(f"expected a leaf from 0 to {leaf_gps.n_leaves - 1}, got {leaf!r}")
    if not (isinstance(output, numbers.Integral) and 0 <= output < leaf_gps.n_outputs):
        raise ValueError(f"expected an output from 0 to {leaf_gps.n_outputs - 1}, got {output!r}")
    process = copy.deepcopy(model.families[int(model.family[leaf])].processes[output])
    kernel_parameters = model.leaf_posterior.kernel_parameters[output].detach().cpu().double()
    _set_kernel_parameters(
        process,
        kernel_parameters[leaf] if kernel_parameters.ndim == 2 else kernel_parameters,
        leaf_gps.X.shape[1],
    )
    rows = torch.from_numpy(leaf_gps.leaf_rows[leaf].copy())
    if not len(rows):
        raise ValueError(f"leaf {leaf} has no rows; choose another")
    X, Y = leaf_gps.X.cpu().double(), leaf_gps.Y.cpu().double()
    likelihood = process.likelihood
    if leaf_gps.known_noise is not None:  # adds to the noise that was learned
        noise = leaf_gps.known_noise.cpu().double()[rows, output] + process.noise
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
    return ExactLeaf(X[rows], Y[rows, output], process, likelihood).eval()


def _set_kernel_parameters(process: Process, kernel_parameters: Tensor, n_dims: int) -> None:
    """Set the hyperparameters of a process to those of a leaf, which may be fine-tuned."""
    leaf_kernel = process.leaf_kernel(n_dims)
    if not isinstance(leaf_kernel, StationaryKernel):
        process.theta = kernel_parameters
        return
    n = len(leaf_kernel.columns)
    base = process.kernel.base_kernel
    scales = kernel_parameters[:n]
    base.lengthscale = scales if base.ard_num_dims else scales[:1]
    process.kernel.outputscale = kernel_parameters[n]
    after = n + 1
    if leaf_kernel.kind == "rq":
        base.alpha, after = kernel_parameters[after], after + 1
    if leaf_kernel.mean_kind == "constant":
        process.mean.constant = kernel_parameters[after]
    elif leaf_kernel.mean_kind == "linear":
        with torch.no_grad():
            process.mean.weights.copy_(kernel_parameters[after : after + n_dims].reshape(-1, 1))
            process.mean.bias.copy_(kernel_parameters[after + n_dims : after + n_dims + 1])
    process.likelihood.noise = kernel_parameters[-1]
