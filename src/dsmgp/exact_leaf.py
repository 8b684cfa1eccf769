"""One leaf of a fitted model as a GPyTorch model."""

from __future__ import annotations

import copy
import numbers

import gpytorch
import torch
from torch import Tensor

from dsmgp.conditioned import Conditioned
from dsmgp.model import Model
from dsmgp.process import Process
from dsmgp.stationary import Stationary

__all__ = ["ExactLeaf", "exact_leaf"]


class ExactLeaf(gpytorch.models.ExactGP):  # type: ignore[misc]
    """An exact GP with a leaf's rows and hyperparameters, in the units the experts see."""

    def __init__(
        self, X: Tensor, y: Tensor, process: Process, likelihood: gpytorch.likelihoods.Likelihood
    ) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module, self.covar_module = process.mean, process.kernel

    def forward(self, X: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def exact_leaf(model: Model, leaf: int, output: int) -> ExactLeaf:
    """A leaf by its number, for one output; copies of its modules, ready to predict."""
    assert isinstance(model.experts, Conditioned), "rows have come or gone since"
    experts = model.experts.experts
    if not (isinstance(leaf, numbers.Integral) and 0 <= leaf < experts.n_leaves):
        raise ValueError(f"expected a leaf from 0 to {experts.n_leaves - 1}, got {leaf!r}")
    if not (isinstance(output, numbers.Integral) and 0 <= output < experts.n_outputs):
        raise ValueError(f"expected an output from 0 to {experts.n_outputs - 1}, got {output!r}")
    process = copy.deepcopy(model.families[int(model.family[leaf])].processes[output])
    natural = model.experts.naturals[output].detach().cpu().double()
    _set_natural(process, natural[leaf] if natural.ndim == 2 else natural, experts.X.shape[1])
    rows = torch.from_numpy(experts.leaf_rows[leaf].copy())
    if not len(rows):
        raise ValueError(f"leaf {leaf} has no rows; choose another")
    X, Y = experts.X.cpu().double(), experts.Y.cpu().double()
    likelihood = process.likelihood
    if experts.known is not None:  # noise known row by row adds to the noise that was learned
        noise = experts.known.cpu().double()[rows, output] + process.noise
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
    return ExactLeaf(X[rows], Y[rows, output], process, likelihood).eval()


def _set_natural(process: Process, natural: Tensor, n_dims: int) -> None:
    """Hyperparameters as the leaf reads them, which may be its own."""
    law = process.law(n_dims)
    if not isinstance(law, Stationary):
        process.theta = natural
        return
    n = len(law.columns)
    base = process.kernel.base_kernel
    scales = natural[:n]
    base.lengthscale = scales if base.ard_num_dims else scales[:1]
    process.kernel.outputscale = natural[n]
    after = n + 1
    if law.kind == "rq":
        base.alpha, after = natural[after], after + 1
    if law.mean_kind == "constant":
        process.mean.constant = natural[after]
    elif law.mean_kind == "linear":
        with torch.no_grad():
            process.mean.weights.copy_(natural[after : after + n_dims].reshape(-1, 1))
            process.mean.bias.copy_(natural[after + n_dims : after + n_dims + 1])
    process.likelihood.noise = natural[-1]
