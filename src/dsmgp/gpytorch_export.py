"""Export of one leaf of a fitted mixture as an exact GP of GPyTorch. Needs ``dsmgp[torch]``."""

from __future__ import annotations

import numbers

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel
from torch import Tensor

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.gp.gpytorch_kernels import factors_of
from dsmgp.gp.gpytorch_leaf_kernel import AutogradKernel, Modules
from dsmgp.gp.gpytorch_process import gpytorch_modules
from dsmgp.gp.leaf_kernels import LeafKernel, StationaryKernel, SumKernel
from dsmgp.mixture.model import Model

__all__ = ["ExactLeaf", "exact_leaf"]


class ExactLeaf(gpytorch.models.ExactGP):  # type: ignore[misc]
    """An exact GP with a leaf's rows and hyperparameters, in the experts' units."""

    def __init__(
        self, X: Tensor, y: Tensor, modules: Modules, likelihood: gpytorch.likelihoods.Likelihood
    ) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module, self.covar_module = modules.mean, modules.kernel

    def forward(self, X: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def exact_leaf(model: Model, leaf: int, output: int) -> ExactLeaf:
    """Return a leaf for one output, with modules of its own, ready to predict."""
    leaf_gps = model.leaf_posterior.settled().leaf_gps
    if not (isinstance(leaf, numbers.Integral) and 0 <= leaf < leaf_gps.n_leaves):
        raise InputError(f"expected a leaf from 0 to {leaf_gps.n_leaves - 1}, got {leaf!r}")
    if not (isinstance(output, numbers.Integral) and 0 <= output < leaf_gps.n_outputs):
        raise InputError(f"expected an output from 0 to {leaf_gps.n_outputs - 1}, got {output!r}")
    rows = leaf_gps.leaf_rows[leaf]
    if not len(rows):
        raise InputError(f"leaf {leaf} has no rows; choose another")
    process = model.families[int(model.family[leaf])].processes[output]
    modules = gpytorch_modules(process)
    # They differ from those of the family if the leaf was fine-tuned.
    kernel_parameters = model.leaf_posterior.kernel_parameters[output]
    own = kernel_parameters[leaf] if kernel_parameters.ndim == 2 else kernel_parameters
    _set_kernel_parameters(modules, process.leaf_kernel, own)
    likelihood = modules.likelihood
    known_noise, weights = leaf_gps.data.known_noise, leaf_gps.data.row_weights
    if known_noise is not None or weights is not None:
        noise = likelihood.noise.detach().expand(len(rows))
        if known_noise is not None:  # adds to the noise that was learned
            noise = torch.from_numpy(known_noise[rows, output]) + noise
        if weights is not None:  # divide it
            noise = noise / torch.from_numpy(weights[rows])
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
    X, y = torch.from_numpy(leaf_gps.data.X[rows]), torch.from_numpy(leaf_gps.data.Y[rows, output])
    return ExactLeaf(X, y, modules, likelihood).eval()


def _set_kernel_parameters(
    modules: Modules, leaf_kernel: LeafKernel, kernel_parameters: Array
) -> None:
    """Set the parameters of modules whose kernel parameters are those of ``leaf_kernel``."""
    values = torch.from_numpy(np.array(kernel_parameters))
    if isinstance(leaf_kernel, AutogradKernel):
        modules.set_theta(values)
        return
    assert isinstance(leaf_kernel, (StationaryKernel, SumKernel))
    kernel = modules.kernel
    scaled = list(kernel.kernels) if isinstance(kernel, AdditiveKernel) else [kernel]
    for term, module in zip(leaf_kernel.terms, scaled, strict=True):
        of_term, values = values[: term.n_parameters], values[term.n_parameters :]
        scale, by_factor = term.split(of_term.numpy())
        module.outputscale = scale
        for kind, base, (lengthscale, extra) in zip(
            term.factors, factors_of(module), by_factor, strict=True
        ):
            own = lengthscale if base.ard_num_dims else lengthscale[:1]
            base.lengthscale = torch.from_numpy(own)
            if kind == "rq":
                base.alpha = torch.from_numpy(extra)
            elif kind == "periodic":
                base.period_length = torch.from_numpy(extra)
    if leaf_kernel.mean_kind == "constant":
        modules.mean.constant = values[0]
    elif leaf_kernel.mean_kind == "linear":
        with torch.no_grad():
            modules.mean.weights.copy_(values[:-2].unsqueeze(-1))
            modules.mean.bias.copy_(values[-2:-1])
    modules.likelihood.noise = values[-1]
