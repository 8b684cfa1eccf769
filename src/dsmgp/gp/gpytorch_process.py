"""GPyTorch kernels and means that users pass in, adapted to the interface of :class:`~dsmgp.gp.process.Process`. Needs torch.

A scaled stationary ARD kernel with a simple mean has a closed form (:mod:`dsmgp.gp.kernels`), and only its constraints and priors are
GPyTorch's. For any other kernel GPyTorch computes the covariance matrix, and autograd takes gradients back through it
(:class:`AutogradKernel`), which is much slower.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    AdditiveKernel,
    LinearKernel,
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
from dsmgp.gp.gpytorch_kernels import gpytorch_kernel, gpytorch_mean
from dsmgp.gp.kernels import LeafKernel, Pullback, StationaryKernel
from dsmgp.gp.named_process import NamedProcess, ParameterBlock, build_named_process
from dsmgp.gp.torch_kernels import BatchPullback, distance
from dsmgp.linalg.threads import Threads, uninterrupted

__all__ = [
    "AutogradKernel",
    "GPyTorchProcess",
    "Modules",
    "build_gpytorch_process",
    "gpytorch_modules",
    "one_at_a_time",
]

# GPyTorch evaluates kernels lazily, and changes settings of the process and attributes of the kernel while it does: one
# thread at a time. What follows, factorisation and autograd, runs in parallel.
_lock = threading.Lock()


def one_at_a_time() -> threading.Lock:
    """Return the lock to hold while GPyTorch evaluates a kernel."""
    return _lock


def _forget_lock() -> None:
    """Replace the lock in a forked child, which has none of its parent's threads to release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


class Modules(torch.nn.Module):
    """Mean, kernel and likelihood of a process, as one module with all parameters.

    Parameters
    ----------
    mean : gpytorch.means.Mean
    kernel : gpytorch.kernels.Kernel
    likelihood : gpytorch.likelihoods.GaussianLikelihood
    """

    def __init__(
        self,
        mean: Mean,
        kernel: gpytorch.kernels.Kernel,
        likelihood: gpytorch.likelihoods.GaussianLikelihood,
    ) -> None:
        super().__init__()
        self.mean, self.kernel, self.likelihood = mean, kernel, likelihood

    def trainable(self) -> list[torch.nn.Parameter]:
        """Return the parameters that are learned."""
        return [p for p in self.parameters() if p.requires_grad]

    def set_theta(self, theta: Tensor) -> None:
        """Set the parameters that are learned."""
        start = 0
        with torch.no_grad():
            for p in self.trainable():
                p.copy_(theta[start : start + p.numel()].reshape(p.shape))
                start += p.numel()

    def prior_log_density(self) -> Tensor:
        """Return the log density of the priors, as a differentiable function of the parameters."""
        terms = [
            prior.log_prob(closure(module)).sum()
            for _, module, prior, closure, _ in self.named_priors()
        ]
        return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)

    def named_priors(self) -> Iterator[Any]:
        """Yield the priors of mean, kernel and likelihood, as GPyTorch does."""
        for name in ("mean", "kernel", "likelihood"):
            yield from getattr(self, name).named_priors()

    def closed_form_parameters(self, leaf_kernel: StationaryKernel) -> Tensor:
        """Return the kernel parameters of a closed form, as a differentiable function of the parameters."""
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
        modules.set_theta(_tensor(theta))
        return GPyTorchProcess(modules, self.n_dims)

    def kernel_parameters(self, theta: Array | None = None) -> Array:
        theta = self.theta if theta is None else theta
        if isinstance(self.leaf_kernel, AutogradKernel):
            return np.array(theta)
        return self._parameters(_tensor(theta)).detach().numpy()

    def pull_back(self, theta: Array, gradient: Array) -> Array:
        if isinstance(self.leaf_kernel, AutogradKernel):
            return gradient
        rows = _tensor(theta).requires_grad_()
        return _gradient(self._parameters(rows), rows, _tensor(gradient))

    def noise_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        return self._with_gradient(theta, lambda modules: modules.likelihood.noise.sum())

    def log_prior(self, theta: Array) -> tuple[Array, Array]:
        if theta.ndim == 1 or self._priors_vectorise:
            try:
                return self._with_gradient(theta, Modules.prior_log_density)
            except RuntimeError as error:
                if theta.ndim == 1 or "vmap" not in str(error):
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
        rows = _tensor(theta).requires_grad_()
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


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.require(values, np.float64, ["C", "W"]))


def _gradient(values: Tensor, theta: Tensor, weights: Tensor) -> Array:
    if not values.requires_grad:  # it depends on fixed parameters only
        return np.zeros(tuple(theta.shape))
    (gradient,) = torch.autograd.grad(values, theta, weights, allow_unused=True)
    return np.zeros(tuple(theta.shape)) if gradient is None else gradient.numpy()


def _flatten(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Return gradients as one vector in the order of the parameters; zero for parameters without one."""
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).reshape(-1)
            for g, p in zip(gradients, parameters, strict=True)
        ]
    )


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


# Kernels without closed form


class AutogradKernel:
    """The :class:`~dsmgp.gp.kernels.LeafKernel` of modules without closed form. Its kernel parameters are ``theta``.

    Parameters
    ----------
    modules : Modules
    """

    batched = False  # autograd sums gradients over a batch, and a tree needs them leaf by leaf

    def __init__(self, modules: Modules) -> None:
        self.modules = modules

    def at(self, kernel_parameters: Array) -> _AutogradInNumPy:
        return _AutogradInNumPy(self.bind(_tensor(kernel_parameters)))

    def bind(self, kernel_parameters: Tensor) -> BoundAutogradKernel:
        """Return the kernel at given hyperparameters, on a copy: several leaves may be computed at once."""
        modules = copy.deepcopy(self.modules).to(kernel_parameters)
        modules.set_theta(kernel_parameters.detach().reshape(-1))
        for module in modules.kernel.modules():
            if type(module) is LinearKernel:
                # In a sum with another kernel its low rank makes GPyTorch factorise the sum.
                object.__setattr__(module, "forward", partial(_linear, module))
            is_kernel = isinstance(module, gpytorch.kernels.Kernel)
            if is_kernel and type(module).covar_dist is gpytorch.kernels.Kernel.covar_dist:
                # GPyTorch's distance of rows that almost coincide is lost to rounding.
                object.__setattr__(module, "covar_dist", _covar_dist)
        return BoundAutogradKernel(modules)


def _linear(kernel: LinearKernel, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
    """GPyTorch's ``LinearKernel.forward``, as a plain matrix."""
    a, b = x1 * kernel.variance.sqrt(), x2 * kernel.variance.sqrt()
    return (a * b).sum(-1) if diag else a @ b.mT


def _covar_dist(
    x1: Tensor,
    x2: Tensor,
    diag: bool = False,
    last_dim_is_batch: bool = False,
    square_dist: bool = False,
    **_: Any,
) -> Tensor:
    """GPyTorch's ``Kernel.covar_dist``, on our distances."""
    if last_dim_is_batch:
        x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
    if diag:
        squared = (x1 - x2).square().sum(-1)
        return squared if square_dist else squared.clamp_min(torch.finfo(x1.dtype).tiny).sqrt()
    return distance(x1, x2, square=square_dist)


class BoundAutogradKernel:
    """GPyTorch modules at their hyperparameters, with the interface of
    :class:`~dsmgp.gp.torch_kernels.BoundStationaryKernel`."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.noise = modules.likelihood.noise.detach().reshape(1)

    def mean(self, X: Tensor) -> Tensor:
        return self.modules.mean(X).detach()

    def variance(self, X: Tensor) -> Tensor:
        with torch.no_grad(), one_at_a_time():
            return self.modules.kernel(X, diag=True).detach()

    def cross(self, A: Tensor, B: Tensor) -> Tensor:
        with torch.no_grad(), one_at_a_time():
            return self.modules.kernel(A, B).to_dense().detach()

    def covariance(self, X: Tensor, mask: Tensor) -> tuple[Tensor, BatchPullback]:
        """Return the covariance of f at the rows of one leaf, and the function that takes gradients back to theta."""
        if X.shape[0] != 1 or not bool(mask.all()):
            raise ValueError("a general kernel takes one leaf at a time, without padding")
        parameters = self.modules.trainable()
        with torch.enable_grad(), one_at_a_time():
            K = self.modules.kernel(X).to_dense()
            mean = self.modules.mean(X)
            noise = self.modules.likelihood.noise

        def pullback(W: Tensor, mean_gradient: Tensor, tr_WK: Tensor, tr_W: Tensor) -> Tensor:
            pairs = [
                (K, 0.5 * W),
                (mean, mean_gradient.expand_as(mean)),
                (noise, 0.5 * tr_W.reshape(noise.shape)),
            ]
            outputs = [(o, g) for o, g in pairs if o.requires_grad]
            if not outputs:
                return X.new_zeros(1, sum(p.numel() for p in parameters))
            by_parameter = torch.autograd.grad(
                [o for o, _ in outputs], parameters, [g for _, g in outputs], allow_unused=True
            )
            return _flatten(by_parameter, parameters).unsqueeze(0)

        # A copy: the caller adds noise in place, and autograd may have kept the matrix itself.
        return K.detach().clone(), pullback


class _AutogradInNumPy:
    """A :class:`~dsmgp.gp.kernels.BoundLeafKernel` around GPyTorch modules."""

    def __init__(self, bound: BoundAutogradKernel) -> None:
        self.bound, self.noise = bound, float(bound.noise[0])

    def mean(self, X: Array) -> Array:
        return self.bound.mean(_tensor(X)[None])[0].numpy()

    def variance(self, X: Array) -> Array:
        return self.bound.variance(_tensor(X)[None])[0].numpy()

    def cross(self, A: Array, B: Array) -> Array:
        return self.bound.cross(_tensor(A)[None], _tensor(B)[None])[0].numpy()

    def covariance(self, X: Array) -> tuple[Array, Pullback]:
        K, batch_pullback = self.bound.covariance(
            _tensor(X)[None], torch.ones(1, len(X), dtype=torch.bool)
        )

        def pullback(W: Array, mean_gradient: Array, tr_W: float) -> Array:
            trace = torch.tensor([tr_W], dtype=torch.float64)
            gradient = batch_pullback(_tensor(W)[None], _tensor(mean_gradient)[None], trace, trace)
            return gradient[0].numpy()

        return K[0].numpy(), pullback


# From users' modules, and to modules


def build_gpytorch_process(
    kernel: Any,
    mean: Any,
    noise: ParameterBlock,
    start_noise: float,
    spread: Array,
    variance: float,
) -> GPyTorchProcess:
    """Build a process of which kernel or mean is a module; see :func:`dsmgp.gp.process.build_process`."""
    n_dims = len(spread)
    if not isinstance(kernel, gpytorch.kernels.Kernel):  # by name, and the mean is a module
        named = build_named_process(kernel, "zero", noise, start_noise, spread, variance)
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
    except Exception as error:
        raise ValueError(
            f"the kernel cannot be evaluated on inputs with {n_dims} columns: {error}; check its "
            "ard_num_dims and active_dims"
        ) from error
    if covariance.shape != (2, 2):
        raise ValueError(
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
    except Exception as error:
        raise ValueError(
            f"the mean cannot be evaluated on inputs with {n_dims} columns: {error}"
        ) from error
    if shape != (2,):
        raise ValueError(
            f"expected a mean with one value per row, got shape {tuple(shape)} for 2 rows"
        )
    return copied


def _likelihood(noise: ParameterBlock, value: float) -> gpytorch.likelihoods.GaussianLikelihood:
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    ).double()
    # Set in double precision: GPyTorch creates bounds in torch's default precision, where that of large outputs overflows.
    likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(noise.lower)
    likelihood.initialize(noise=torch.tensor(value, dtype=torch.float64))
    return likelihood


def gpytorch_modules(process: NamedProcess | GPyTorchProcess) -> Modules:
    """Return mean, kernel and likelihood of a process as new GPyTorch modules with the same parameters and priors."""
    if isinstance(process, GPyTorchProcess):
        return copy.deepcopy(process.modules)
    kernel = gpytorch_kernel(process.kernel)
    scaled = list(kernel.kernels) if isinstance(kernel, AdditiveKernel) else [kernel]
    blocks = {name: [b for b in process.blocks if b.name == name] for name in set(process.names)}
    for term, outputscale, lengthscale in zip(
        scaled, blocks["outputscale"], blocks["lengthscale"], strict=True
    ):
        _register_prior(term, "outputscale", outputscale)
        _register_prior(term.base_kernel, "lengthscale", lengthscale)
    periodic = [term.base_kernel for term in scaled if isinstance(term.base_kernel, PeriodicKernel)]
    for base, period in zip(periodic, blocks.get("period_length", []), strict=True):
        _register_prior(base, "period_length", period)
    mean = gpytorch_mean(process.leaf_kernel.mean_kind, len(process.leaf_kernel.terms[0].columns))
    modules = Modules(mean, kernel, _likelihood(process.blocks[-1], process.noise)).double()
    modules.set_theta(_tensor(process.theta))
    return modules


def _register_prior(module: gpytorch.Module, name: str, block: ParameterBlock) -> None:
    if block.prior is not None:
        loc = _tensor(np.broadcast_to(block.prior.loc, block.size))
        prior = gpytorch.priors.LogNormalPrior(loc, torch.full_like(loc, block.prior.scale))
        # Named functions: those that GPyTorch makes for a prior given to a constructor cannot be pickled.
        module.register_prior(
            f"{name}_prior", prior, partial(_value, name), partial(_set_value, name)
        )


def _value(name: str, module: gpytorch.Module) -> Tensor:
    return getattr(module, name)


def _set_value(name: str, module: gpytorch.Module, value: Tensor) -> None:
    setattr(module, name, value)
