"""The GP prior that leaves share: mean, kernel and Gaussian noise, with hyperparameters as vectors.

It is written in GPyTorch's kernels, means, constraints and priors. Two vectors describe its hyperparameters:

* ``theta``, the raw parameters without constraints that GPyTorch optimises;
* ``kernel_parameters``, the numbers that the covariance of a leaf is computed from (see
  :class:`~dsmgp.gp.stationary.StationaryKernel`). Leaves return their gradients in these, and
  :meth:`Process.pull_back` takes the sum over leaves back to ``theta`` in one step.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from numpy.typing import ArrayLike
from torch import Tensor

from dsmgp._util.arrays import Index
from dsmgp.gp.autograd import AutogradKernel, flatten
from dsmgp.gp.kernels import build_kernel
from dsmgp.gp.means import build_mean
from dsmgp.gp.stationary import StationaryKernel

__all__ = [
    "NOISE_FLOOR",
    "SINGLE_NOISE_FLOOR",
    "Family",
    "LeafKernel",
    "Process",
    "build_process",
    "closed_form",
    "kernels_by_leaf",
    "parameters_by_leaf",
]

#: What computes the covariance of a leaf.
LeafKernel = StationaryKernel | AutogradKernel
# Least noise variance relative to the variance of the output: duplicate inputs then still give a matrix that can be
# factorised.
NOISE_FLOOR = 1e-6
# The same in single precision: with less, predictions of a smooth kernel are wrong by a standard deviation and more
# (docs/numerics.md).
SINGLE_NOISE_FLOOR = 1e-4
START_NOISE = 0.1


class Process(torch.nn.Module):
    """Mean, kernel and Gaussian noise of a leaf.

    Parameters
    ----------
    mean : gpytorch.means.Mean
    kernel : gpytorch.kernels.Kernel
    likelihood : gpytorch.likelihoods.GaussianLikelihood
    """

    def __init__(
        self, mean: Mean, kernel: Kernel, likelihood: gpytorch.likelihoods.GaussianLikelihood
    ) -> None:
        super().__init__()
        self.mean = mean
        self.kernel = kernel
        self.likelihood = likelihood

    @property
    def noise(self) -> float:
        """Noise variance."""
        return float(self.likelihood.noise.detach())

    def trainable(self) -> list[torch.nn.Parameter]:
        """Return the parameters that are learned."""
        return [p for p in self.parameters() if p.requires_grad]

    @property
    def theta(self) -> Tensor:
        """Raw trainable parameters as one vector, a copy."""
        flat = [p.detach().reshape(-1) for p in self.trainable()]
        return torch.cat(flat) if flat else _empty()

    @theta.setter
    def theta(self, vector: Tensor) -> None:
        start = 0
        with torch.no_grad():
            for p in self.trainable():
                p.copy_(vector[start : start + p.numel()].reshape(p.shape))
                start += p.numel()

    def leaf_kernel(self, n_dims: int) -> LeafKernel:
        """Return what computes the covariance of a leaf: a closed form if there is one, else autograd."""
        return closed_form(self, n_dims) or AutogradKernel(self)

    def kernel_parameters(self, leaf_kernel: LeafKernel) -> Tensor:
        """Return the vector of parameters of a leaf kernel, as a differentiable function of ``theta``."""
        if isinstance(leaf_kernel, AutogradKernel):
            return torch.cat([p.reshape(-1) for p in self.trainable()] or [_empty()])
        base = self.kernel.base_kernel
        n_dims = len(leaf_kernel.columns)
        parts = [base.lengthscale.reshape(-1).expand(n_dims), self.kernel.outputscale]
        if leaf_kernel.kind == "rq":
            parts.append(base.alpha)
        if leaf_kernel.mean_kind == "constant":
            parts.append(self.mean.constant)
        elif leaf_kernel.mean_kind == "linear":
            parts += [self.mean.weights, self.mean.bias]
        parts.append(self.likelihood.noise)
        return torch.cat([part.reshape(-1) for part in parts])

    def pull_back(self, leaf_kernel: LeafKernel, gradient: Tensor) -> Tensor:
        """Return the gradient by ``theta`` of a function, given that by the kernel parameters."""
        if isinstance(leaf_kernel, AutogradKernel):
            return gradient
        parameters = self.trainable()
        if not parameters:
            return _empty()
        vector = self.kernel_parameters(leaf_kernel)
        by_parameter = torch.autograd.grad(
            vector, parameters, gradient.to(vector), allow_unused=True
        )
        return flatten(by_parameter, parameters)

    def rescale(self, factor: float) -> bool:
        """Multiply signal and noise variance by a factor, both or neither.

        Returns
        -------
        bool
            False if a parameter is fixed, or a constraint forbids its new value. Noise stays above its floor.
        """
        bound = self.likelihood.noise_covar.raw_noise_constraint
        raw = (self.kernel.raw_outputscale, self.likelihood.noise_covar.raw_noise)
        signal = self.kernel.outputscale.detach() * factor
        noise = torch.tensor(
            max(self.noise * factor, 1.001 * float(bound.lower_bound)), dtype=torch.float64
        )
        allowed = self.kernel.raw_outputscale_constraint.check(signal) and bound.check(noise)
        if not allowed or not all(parameter.requires_grad for parameter in raw):
            return False
        self.kernel.outputscale = signal
        self.likelihood.noise = noise
        return True

    def log_prior(self) -> tuple[float, Tensor]:
        """Return the log density of the priors, and its gradient by ``theta``."""
        parameters = self.trainable()
        if not parameters:
            return 0.0, _empty()
        density = self.prior_log_density()
        if not density.requires_grad:
            return float(density), torch.zeros_like(self.theta)
        by_parameter = torch.autograd.grad(density, parameters, allow_unused=True)
        return float(density.detach()), flatten(by_parameter, parameters)

    def prior_log_density(self) -> Tensor:
        """Return the log density of the priors of the modules, as a differentiable function of ``theta``."""
        terms = [
            prior.log_prob(closure(module)).sum()
            for _, module, prior, closure, _ in self.named_priors()
        ]
        return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)

    def named_priors(self) -> Iterator[Any]:
        """Yield the priors of mean, kernel and likelihood, as GPyTorch does."""
        for name in ("mean", "kernel", "likelihood"):
            yield from getattr(self, name).named_priors()


def _empty() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


@dataclass
class Family:
    """The GP prior that the leaves of some partitions share.

    Attributes
    ----------
    kernel : str
        Its name.
    processes : list of Process
        One per output.
    """

    kernel: str
    processes: list[Process]

    def leaf_kernels(self, n_dims: int) -> list[LeafKernel]:
        """Return the kernel of each output."""
        return [process.leaf_kernel(n_dims) for process in self.processes]

    def kernel_parameters(self, n_dims: int) -> list[Tensor]:
        """Return the kernel parameters of each output."""
        kernels = self.leaf_kernels(n_dims)
        return [
            p.kernel_parameters(k).detach() for p, k in zip(self.processes, kernels, strict=True)
        ]


def kernels_by_leaf(
    families: Sequence[Family], family: Index, n_dims: int
) -> list[list[LeafKernel]]:
    """Return the kernels by output and leaf; ``family`` (n_leaves,) is the number of each leaf's family."""
    by_output = zip(*(each.leaf_kernels(n_dims) for each in families), strict=True)
    return [[by_family[f] for f in family.tolist()] for by_family in by_output]


def parameters_by_leaf(families: Sequence[Family], family: Index, n_dims: int) -> list[Tensor]:
    """Return kernel parameters by output: a vector for all leaves, or a row for each if there are several families."""
    by_output = zip(*(each.kernel_parameters(n_dims) for each in families), strict=True)
    return [each[0] if len(each) == 1 else torch.stack(each)[family] for each in by_output]


def build_process(
    kernel: str | Kernel,
    mean: str | Mean,
    noise_variance: float | None,
    n_dims: int,
    noise_floor: float = NOISE_FLOOR,
    spread: ArrayLike | None = None,
    variance: float = 1.0,
) -> Process:
    """Build a process from names or GPyTorch modules; what is passed in is copied, never changed.

    Parameters
    ----------
    kernel : str or gpytorch.kernels.Kernel
    mean : str or gpytorch.means.Mean
    noise_variance : float, optional
        Where learning starts.
    n_dims : int
    noise_floor : float
        Least noise variance, relative to ``variance``.
    spread : array-like of shape (n_dims,), optional
        Standard deviation of each input, all ones where they are standardised.
    variance : float
        Variance of the output.

    Examples
    --------
    >>> process = build_process("matern52", "zero", 0.01, n_dims=3)
    >>> round(process.noise, 6), len(process.theta)
    (0.01, 5)
    """
    start = START_NOISE * variance if noise_variance is None else noise_variance
    number = isinstance(start, numbers.Real) and not isinstance(start, bool)
    if not number or not (math.isfinite(start) and start > 0):
        raise ValueError(f"expected noise_variance to be a positive number, got {noise_variance!r}")
    # A user who passes less noise than the floor means it.
    floor = min(noise_floor * variance, 0.5 * start)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    ).double()
    # Set in double precision: GPyTorch creates bounds in torch's default precision, where that of large outputs overflows.
    likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(floor)
    likelihood.initialize(noise=torch.tensor(start, dtype=torch.float64))
    units = torch.ones(n_dims) if spread is None else torch.tensor(np.asarray(spread))
    return Process(
        build_mean(mean, n_dims),
        build_kernel(kernel, n_dims, units.double(), variance),
        likelihood,
    )


def closed_form(process: Process, n_dims: int) -> StationaryKernel | None:
    """Return the closed form of a scaled stationary ARD kernel with a simple mean; None if the process is not one."""
    scale = process.kernel
    if type(scale) is not ScaleKernel or scale.batch_shape:
        return None
    base = scale.base_kernel
    kinds = {"RBFKernel": "rbf", "RQKernel": "rq", "MaternKernel": "matern"}
    kind = kinds.get(type(base).__name__) if type(base).__module__.startswith("gpytorch.") else None
    if kind is None or base.batch_shape:
        return None
    if kind == "matern":
        kind = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}[base.nu]
    columns = torch.arange(n_dims)
    if scale.active_dims is not None:  # a ScaleKernel takes over those of its base kernel
        columns = columns[scale.active_dims.cpu()]
    means = {ZeroMean: "zero", ConstantMean: "constant", LinearMean: "linear"}
    mean_kind = means.get(type(process.mean))
    if mean_kind is None or (mean_kind == "linear" and process.mean.bias is None):
        return None
    return StationaryKernel(kind, tuple(columns.tolist()), mean_kind)
