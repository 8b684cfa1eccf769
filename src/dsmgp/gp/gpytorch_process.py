"""GPyTorch kernels and means that users pass in, adapted to the interface of :class:`~dsmgp.gp.process.Process`. Needs torch.

A scaled stationary ARD kernel with a simple mean has a closed form (:mod:`dsmgp.gp.terms`), and only its
constraints and priors are GPyTorch's. For any other kernel GPyTorch computes the covariance matrix, and
autograd takes gradients back through it (:class:`AutogradKernel`), which is much slower.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    AdditiveKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from torch import Tensor

from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp.gp.gpytorch_kernels import factors_of, gpytorch_kernel, gpytorch_mean
from dsmgp.gp.gpytorch_leaf_kernel import AutogradKernel, Modules, one_at_a_time, to_tensor
from dsmgp.gp.leaf_kernels import LeafKernel, StationaryKernel
from dsmgp.gp.named_process import LogNormal, NamedProcess, ParameterBlock, build_named_process
from dsmgp.linalg.threads import Threads, uninterrupted

__all__ = [
    "GPyTorchProcess",
    "build_gpytorch_process",
    "gpytorch_modules",
]

# What GPyTorch and torch raise for inputs with another number of columns; any other error is a fault of the kernel itself.
UNFIT = (IndexError, RuntimeError, ValueError)


class GPyTorchProcess:
    """The :class:`~dsmgp.gp.process.Process` of GPyTorch modules.

    Parameters
    ----------
    modules : Modules
        Not changed from here on.
    n_dims : int
    """

    def __init__(self, modules: Modules, n_dims: int) -> None:
        self.modules, self.n_dims = modules, n_dims
        self.leaf_kernel: LeafKernel = _closed_form(modules, n_dims) or AutogradKernel(modules)
        self._priors_vectorise = True

    @cached_property
    def theta(self) -> Array:
        flat = [p.detach().reshape(-1) for p in self.modules.trainable()]
        theta: Array = torch.cat([_empty(), *flat]).numpy()
        theta.flags.writeable = False
        return theta

    @cached_property
    def names(self) -> list[str]:
        names = []
        for name, parameter in self.modules.named_parameters():
            if parameter.requires_grad:
                part, last = name.split(".")[0], name.split(".")[-1].removeprefix("raw_")
                name = {"mean": "mean", "likelihood": "noise"}.get(part, last)
                names += [name] * parameter.numel()
        return names

    @property
    def noise(self) -> float:
        return float(self.modules.likelihood.noise.detach())

    @property
    def kernel(self) -> gpytorch.kernels.Kernel:
        return self.modules.kernel

    def with_theta(self, theta: Array) -> GPyTorchProcess:
        modules = copy.deepcopy(self.modules)
        modules.set_theta(to_tensor(theta))
        return GPyTorchProcess(modules, self.n_dims)

    def kernel_parameters(self, theta: Array | None = None) -> Array:
        theta = self.theta if theta is None else theta
        if isinstance(self.leaf_kernel, AutogradKernel):
            return np.array(theta)
        return self._parameters(to_tensor(theta)).detach().numpy()

    def pull_back(self, theta: Array, gradient: Array) -> Array:
        if isinstance(self.leaf_kernel, AutogradKernel):
            return gradient
        rows = to_tensor(theta).requires_grad_()
        return _gradient(self._parameters(rows), rows, to_tensor(gradient))

    def noise_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        return self._with_gradient(theta, lambda modules: modules.likelihood.noise.sum())

    def log_prior(self, theta: Array) -> tuple[Array, Array]:
        if theta.ndim == 1:
            return self._with_gradient(theta, Modules.prior_log_density)
        if self._priors_vectorise:
            try:
                return self._with_gradient(theta, Modules.prior_log_density)
            except RuntimeError as error:
                if "vmap" not in str(
                    error
                ):  # a fault of the prior; torch has no class of its own for the other
                    raise
                # The prior branches on its values: one leaf at a time.
                self._priors_vectorise = False
        values, gradients = zip(*(self.log_prior(row) for row in theta), strict=True)
        return np.array(values), np.stack(gradients)

    def has_prior(self, columns: Index) -> bool:
        density, parameters = self.modules.prior_log_density(), self.modules.trainable()
        if not density.requires_grad:
            return False
        gradients = torch.autograd.grad(density, parameters, allow_unused=True)
        depends = [
            np.full(p.numel(), g is not None) for p, g in zip(parameters, gradients, strict=True)
        ]
        return bool(np.concatenate(depends)[columns].any())

    def rescaled(self, factor: float) -> GPyTorchProcess | None:
        modules = copy.deepcopy(self.modules)
        kernel, likelihood = modules.kernel, modules.likelihood
        bound = likelihood.noise_covar.raw_noise_constraint
        raw = (kernel.raw_outputscale, likelihood.noise_covar.raw_noise)
        signal = kernel.outputscale.detach() * factor
        noise = torch.tensor(
            max(self.noise * factor, 1.001 * float(bound.lower_bound)), dtype=torch.float64
        )
        allowed = kernel.raw_outputscale_constraint.check(signal) and bound.check(noise)
        if not allowed or not all(parameter.requires_grad for parameter in raw):
            return None
        kernel.outputscale, likelihood.noise = signal, noise
        return GPyTorchProcess(modules, self.n_dims)

    def _parameters(self, theta: Tensor) -> Tensor:
        leaf_kernel = self.leaf_kernel
        assert isinstance(leaf_kernel, StationaryKernel)
        return self._evaluate(lambda modules: modules.closed_form_parameters(leaf_kernel), theta)

    def _with_gradient(
        self, theta: Array, function: Callable[[Modules], Tensor]
    ) -> tuple[Array, Array]:
        """Return a scalar function of the modules at each theta, and its gradient."""
        rows = to_tensor(theta).requires_grad_()
        values = self._evaluate(function, rows)
        gradient = _gradient(values, rows, torch.ones_like(values))
        return values.detach().numpy(), gradient

    def _evaluate(self, function: Callable[[Modules], Tensor], theta: Tensor) -> Tensor:
        """Evaluate a function of the modules at one theta or at each row of a table; differentiable."""
        modules = self.modules if theta.ndim == 1 else self._unvalidated
        module = _FunctionOfModules(modules, function)
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]

        def at(row: Tensor) -> Tensor:
            parts = torch.split(row, [p.numel() for _, p in parameters])
            values = {
                name: part.reshape(p.shape)
                for (name, p), part in zip(parameters, parts, strict=True)
            }
            return torch.func.functional_call(module, values, ())

        # An interrupt inside vmap would leave its stack of levels wrong, and every later call would fail.
        evaluate = at if theta.ndim == 1 else torch.func.vmap(at)
        results: Tensor = uninterrupted(lambda: evaluate(theta))
        return results

    @cached_property
    def _unvalidated(self) -> Modules:
        """A copy whose priors do not validate values: that cannot be done for many rows at once."""
        modules = copy.deepcopy(self.modules)
        for _, _, prior, _, _ in modules.named_priors():
            for distribution in (prior, getattr(prior, "base_dist", None)):
                if distribution is not None:
                    distribution._validate_args = False
        return modules


class _FunctionOfModules(torch.nn.Module):
    """A function of modules, as a module without arguments: ``functional_call`` takes modules."""

    def __init__(self, modules: Modules, function: Callable[[Modules], Tensor]) -> None:
        super().__init__()
        self.held, self.function = modules, function

    def forward(self) -> Tensor:
        return self.function(self.held)


def _empty() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


def _gradient(values: Tensor, theta: Tensor, weights: Tensor) -> Array:
    if not values.requires_grad:  # it depends on fixed parameters only
        return np.zeros(tuple(theta.shape))
    (gradient,) = torch.autograd.grad(values, theta, weights, allow_unused=True)
    return np.zeros(tuple(theta.shape)) if gradient is None else gradient.numpy()


def _closed_form(modules: Modules, n_dims: int) -> StationaryKernel | None:
    """Return the closed form of a scaled stationary ARD kernel with a simple mean; None if the process is not one."""
    scale = modules.kernel
    if type(scale) is not ScaleKernel or scale.batch_shape:
        return None
    base = scale.base_kernel
    kinds = {RBFKernel: "rbf", RQKernel: "rq", MaternKernel: "matern"}
    kind = kinds.get(type(base))
    if kind is None or base.batch_shape:
        return None
    if kind == "matern":
        kind = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}[base.nu]
    columns = torch.arange(n_dims)
    if scale.active_dims is not None:  # a ScaleKernel takes over those of its base kernel
        columns = columns[scale.active_dims.cpu()]
    means = {ZeroMean: "zero", ConstantMean: "constant", LinearMean: "linear"}
    mean_kind = means.get(type(modules.mean))
    if mean_kind is None or (mean_kind == "linear" and modules.mean.bias is None):
        return None
    return StationaryKernel(kind, tuple(columns.tolist()), mean_kind)


# From users' modules, and to modules


def build_gpytorch_process(
    kernel: Any,
    mean: Any,
    noise: ParameterBlock,
    start_noise: float,
    spread: Array,
    variance: float,
    periods: Array | None = None,
) -> GPyTorchProcess:
    """Build a process of which kernel or mean is a module; see :func:`dsmgp.gp.process.build_process`."""
    n_dims = len(spread)
    if not isinstance(kernel, gpytorch.kernels.Kernel):  # by name, and the mean is a module
        named = build_named_process(kernel, "zero", noise, start_noise, spread, variance, periods)
        module = gpytorch_modules(named).kernel
    else:
        module = copy.deepcopy(kernel).double()
        diagonal = _check_kernel(module, n_dims).diagonal()
        composed = isinstance(module, (ScaleKernel, AdditiveKernel, ProductKernel))
        if not composed and bool((diagonal == 1.0).all()):
            # A kernel whose variance is one whatever its parameters gets an output scale.
            module = ScaleKernel(module).double()
            module.outputscale = torch.tensor(variance, dtype=torch.float64)
    mean_module = (
        gpytorch_mean(mean, n_dims) if isinstance(mean, str) else _check_mean(mean, n_dims)
    )
    return GPyTorchProcess(Modules(mean_module, module, _likelihood(noise, start_noise)), n_dims)


def _check_kernel(kernel: gpytorch.kernels.Kernel, n_dims: int) -> Tensor:
    """Return the covariance of two rows; refuse a kernel that cannot be evaluated or is not of one output."""
    probe = torch.stack([torch.zeros(n_dims), torch.ones(n_dims)]).double()

    def evaluated(kernel: gpytorch.kernels.Kernel) -> Tensor:
        with torch.no_grad(), one_at_a_time():
            return kernel(probe).to_dense()

    try:
        # On a thread with one core: GPyTorch may factorise even here, for which torch starts OpenMP threads, and in
        # a child forked from a process that had some it would wait for them forever.
        (covariance,) = Threads().map(evaluated, [kernel])
    except UNFIT as error:
        raise InputError(
            f"the kernel cannot be evaluated on inputs with {n_dims} columns: {error}; check its "
            "ard_num_dims and active_dims"
        ) from error
    if covariance.shape != (2, 2):
        raise InputError(
            f"expected a kernel with one output and no batch shape, got covariance shape "
            f"{tuple(covariance.shape)} for 2 rows"
        )
    return covariance


def _check_mean(mean: Mean, n_dims: int) -> Mean:
    """Return a copy of a mean; refuse one that cannot be evaluated or is not of one output."""
    copied = copy.deepcopy(mean).double()
    try:
        with torch.no_grad():
            shape = copied(torch.zeros(2, n_dims, dtype=torch.float64)).shape
    except UNFIT as error:
        raise InputError(
            f"the mean cannot be evaluated on inputs with {n_dims} columns: {error}"
        ) from error
    if shape != (2,):
        raise InputError(
            f"expected a mean with one value per row, got shape {tuple(shape)} for 2 rows"
        )
    return copied


def _likelihood(noise: ParameterBlock, value: float) -> gpytorch.likelihoods.GaussianLikelihood:
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    ).double()
    # Set in double precision: GPyTorch creates bounds in torch's default precision, where that of large
    # outputs overflows.
    likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(noise.lower)
    likelihood.initialize(noise=torch.tensor(value, dtype=torch.float64))
    return likelihood


def gpytorch_modules(process: NamedProcess | GPyTorchProcess) -> Modules:
    """Return mean, kernel and likelihood of a process as new GPyTorch modules with the same parameters and priors."""
    if isinstance(process, GPyTorchProcess):
        return copy.deepcopy(process.modules)
    process = process.untied()  # a module has a length scale for each input
    kernel = gpytorch_kernel(process.kernel)
    scaled = list(kernel.kernels) if isinstance(kernel, AdditiveKernel) else [kernel]
    blocks = {name: [b for b in process.blocks if b.name == name] for name in set(process.names)}
    for term, outputscale in zip(scaled, blocks["outputscale"], strict=True):
        _register_prior(term, "outputscale", outputscale)
    factors = [factor for term in scaled for factor in factors_of(term)]
    for base, lengthscale in zip(factors, blocks["lengthscale"], strict=True):
        _register_prior(base, "lengthscale", lengthscale)
    periodic = [base for base in factors if isinstance(base, PeriodicKernel)]
    for base, period in zip(periodic, blocks.get("period_length", []), strict=True):
        _register_prior(base, "period_length", period)
    # A linear mean has a weight for each input, and a kernel may depend on some of them only.
    n_dims = next((block.size for block in blocks.get("mean", [])), process.kernel.n_dims)
    mean = gpytorch_mean(process.leaf_kernel.mean_kind, n_dims)
    modules = Modules(mean, kernel, _likelihood(process.blocks[-1], process.noise)).double()
    modules.set_theta(to_tensor(process.theta))
    return modules


def _register_prior(module: gpytorch.Module, name: str, block: ParameterBlock) -> None:
    if isinstance(block.prior, LogNormal):
        loc = to_tensor(np.broadcast_to(block.prior.loc, block.size))
        prior = gpytorch.priors.LogNormalPrior(loc, torch.full_like(loc, block.prior.scale))
        # Named functions: those that GPyTorch makes for a prior given to a constructor cannot be pickled.
        module.register_prior(
            f"{name}_prior", prior, partial(_value, name), partial(_set_value, name)
        )


def _value(name: str, module: gpytorch.Module) -> Tensor:
    return getattr(module, name)


def _set_value(name: str, module: gpytorch.Module, value: Tensor) -> None:
    setattr(module, name, value)
