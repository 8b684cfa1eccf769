"""The GP that every leaf carries before it sees data: a mean, a kernel and a noise variance.

GPyTorch's kernels, means, constraints and priors are the language in which it is written. Two
vectors describe its hyperparameters:

* ``theta``, the raw parameters GPyTorch optimises, without constraints;
* ``natural``, the numbers a leaf's covariance is computed from. Leaves return their gradients in
  these, and :meth:`Process.pull_back` takes the sum over leaves back to ``theta`` in one step.
"""

from __future__ import annotations

import copy
import math
import numbers
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan, Positive
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from gpytorch.priors import LogNormalPrior
from numpy.typing import ArrayLike
from torch import Tensor

from dsmgp.execution import Threads
from dsmgp.general import General, flatten, one_at_a_time
from dsmgp.stationary import Stationary

__all__ = [
    "KERNELS",
    "MEANS",
    "NAMED_KERNELS",
    "NOISE_FLOOR",
    "SINGLE_NOISE_FLOOR",
    "Family",
    "Process",
    "build_process",
    "kernel_parts",
    "linear_mean",
]

KERNELS: dict[str, Any] = {
    "rbf": RBFKernel,
    "matern12": lambda **options: MaternKernel(nu=0.5, **options),
    "matern32": lambda **options: MaternKernel(nu=1.5, **options),
    "matern52": lambda **options: MaternKernel(nu=2.5, **options),
    "rq": RQKernel,
}
#: All that have a name; those beyond KERNELS have no closed form here.
NAMED_KERNELS: dict[str, Any] = {
    **KERNELS,
    "periodic": lambda **options: _periodic(**options),
}


def _periodic(**options: Any) -> PeriodicKernel:
    kernel = PeriodicKernel(period_length_constraint=_log_positive(), **options)
    # Given to the constructor, the prior would come with functions that cannot be pickled.
    kernel.register_prior(
        "period_length_prior", LogNormalPrior(0.0, 2.0), _period_length, _set_period_length
    )
    return kernel


def _period_length(kernel: PeriodicKernel) -> Tensor:
    return kernel.period_length


def _set_period_length(kernel: PeriodicKernel, value: Tensor) -> None:
    kernel.period_length = value


def linear_mean(input_size: int, **options: Any) -> LinearMean:
    """GPyTorch's, starting at zero: its own start is random, and would take numbers from the user's seed."""
    with torch.device("meta"):  # where nothing is drawn; this thread alone is there
        built = LinearMean(input_size, **options)
    built = built.to_empty(device="cpu").double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.zero_()
    return built


MEANS: dict[str, Any] = {
    "zero": lambda n_dims: ZeroMean(),
    "constant": lambda n_dims: ConstantMean(),
    "linear": linear_mean,
}
# Least noise variance, in units of the (standardised) output's variance: repeated rows then still
# leave a matrix that can be factorised.
NOISE_FLOOR = 1e-6
# In single precision: with less, a smooth kernel's predictions are wrong by a standard deviation and more
# (docs/numerics.md).
SINGLE_NOISE_FLOOR = 1e-4
START_NOISE = 0.1


class Process(torch.nn.Module):
    """Mean, kernel and Gaussian noise of a leaf, with its hyperparameters as vectors."""

    def __init__(
        self, mean: Mean, kernel: Kernel, likelihood: gpytorch.likelihoods.GaussianLikelihood
    ) -> None:
        super().__init__()
        self.mean = mean
        self.kernel = kernel
        self.likelihood = likelihood

    @property
    def noise(self) -> float:
        return float(self.likelihood.noise.detach())

    def trainable(self) -> list[torch.nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad]

    @property
    def theta(self) -> Tensor:
        """Raw parameters as one vector, a copy."""
        flat = [p.detach().reshape(-1) for p in self.trainable()]
        return torch.cat(flat) if flat else torch.empty(0, dtype=torch.float64)

    @theta.setter
    def theta(self, vector: Tensor) -> None:
        start = 0
        with torch.no_grad():
            for p in self.trainable():
                p.copy_(vector[start : start + p.numel()].reshape(p.shape))
                start += p.numel()

    def law(self, n_dims: int) -> Stationary | General:
        """How a leaf computes its covariance: in closed form where the kernel allows, else by autograd."""
        return _closed_form(self, n_dims) or General(self)

    def natural(self, law: Stationary | General) -> Tensor:
        """The vector that ``law`` reads, as a differentiable function of ``theta``."""
        if isinstance(law, General):
            return torch.cat([p.reshape(-1) for p in self.trainable()] or [self._none()])
        base = self.kernel.base_kernel
        parts = [base.lengthscale.reshape(-1).expand(len(law.columns)), self.kernel.outputscale]
        if law.kind == "rq":
            parts.append(base.alpha)
        if law.mean_kind == "constant":
            parts.append(self.mean.constant)
        elif law.mean_kind == "linear":
            parts += [self.mean.weights, self.mean.bias]
        parts.append(self.likelihood.noise)
        return torch.cat([part.reshape(-1) for part in parts])

    def pull_back(self, law: Stationary | General, gradient: Tensor) -> Tensor:
        """Gradient by ``theta`` of a function whose gradient by ``natural`` is given."""
        if isinstance(law, General):
            return gradient
        parameters = self.trainable()
        if not parameters:
            return self._none()
        natural = self.natural(law)
        found = torch.autograd.grad(natural, parameters, gradient.to(natural), allow_unused=True)
        return flatten(found, parameters)

    def rescale(self, factor: float) -> bool:
        """Multiply signal and noise variance, and say whether that was done.

        Both or neither: a parameter that is held fixed, or a constraint that forbids its new value, keeps all as
        it is. Noise stays above its floor.
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
        """Log density of the priors the modules carry, and its gradient by ``theta``."""
        parameters = self.trainable()
        terms = [
            prior.log_prob(closure(module)).sum()
            for _, module, prior, closure, _ in self.named_priors()
        ]
        if not terms or not parameters:
            return 0.0, torch.zeros_like(self.theta)
        total = torch.stack(terms).sum()
        if not total.requires_grad:
            return float(total), torch.zeros_like(self.theta)
        found = torch.autograd.grad(total, parameters, allow_unused=True)
        return float(total.detach()), flatten(found, parameters)

    def named_priors(self) -> Any:
        for name in ("mean", "kernel", "likelihood"):
            yield from getattr(self, name).named_priors()

    def _none(self) -> Tensor:
        return torch.empty(0, dtype=torch.float64)


@dataclass
class Family:
    """A kernel by name, and the processes, one per output, that the leaves of some partitions share."""

    kernel: str
    processes: list[Process]

    def laws(self, n_dims: int) -> list[Stationary | General]:
        return [process.law(n_dims) for process in self.processes]

    def naturals(self, n_dims: int) -> list[Tensor]:
        """Hyperparameters as the leaves read them, one vector per output."""
        laws = self.laws(n_dims)
        return [p.natural(law).detach() for p, law in zip(self.processes, laws, strict=True)]


def build_process(
    kernel: str | Kernel,
    mean: str | Mean,
    noise_variance: float | None,
    n_dims: int,
    noise_floor: float = NOISE_FLOOR,
    spread: ArrayLike | None = None,
    variance: float = 1.0,
) -> Process:
    """A process from names or GPyTorch modules; what is passed in is copied, never changed.

    ``spread`` of each input and ``variance`` of the output, as the experts see them, are the units in which
    learning starts: all ones where they are standardised.

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
    # A user who asks for less noise than the floor means it: the floor gives way.
    floor = min(noise_floor * variance, 0.5 * start)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    ).double()
    # In double from the start: GPyTorch makes its bounds in torch's default precision, in which that of large outputs is infinite.
    likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(floor)
    likelihood.initialize(noise=torch.tensor(start, dtype=torch.float64))
    units = torch.ones(n_dims) if spread is None else torch.tensor(np.asarray(spread))
    return Process(
        _build_mean(mean, n_dims),
        _build_kernel(kernel, n_dims, units.double(), variance),
        likelihood,
    )


def _build_kernel(kernel: str | Kernel, n_dims: int, spread: Tensor, variance: float) -> Kernel:
    if isinstance(kernel, str):
        parts = kernel_parts(kernel)
        if len(parts) == 1:
            return _named_kernel(parts[0], n_dims, spread, variance)
        share = variance / len(parts)
        return AdditiveKernel(*(_named_kernel(part, n_dims, spread, share) for part in parts))
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"expected kernel to be one of {', '.join(map(repr, NAMED_KERNELS))} or a gpytorch kernel, "
            f"got {kernel!r}"
        )
    copied = copy.deepcopy(kernel).double()
    diagonal = _tried(copied, n_dims).diagonal()
    composed = isinstance(copied, (ScaleKernel, AdditiveKernel, ProductKernel))
    if not composed and bool((diagonal == 1.0).all()):
        # A bare kernel, whose variance is one whatever its parameters, gets an output scale.
        copied = ScaleKernel(copied).double()
        copied.outputscale = torch.tensor(variance, dtype=torch.float64)
    return copied


def _named_kernel(name: str, n_dims: int, spread: Tensor, variance: float) -> ScaleKernel:
    # Logarithms are the coordinates in which length-scales are learned best. Distances grow with
    # sqrt(n_dims), and so do length-scales that are worth considering (Hvarfner et al. 2024).
    middle = math.sqrt(2.0) + 0.5 * math.log(n_dims) + spread.log()
    prior = LogNormalPrior(middle, torch.full_like(middle, math.sqrt(3.0)))
    base = NAMED_KERNELS[name](
        ard_num_dims=n_dims, lengthscale_constraint=_log_positive(), lengthscale_prior=prior
    )
    built = ScaleKernel(
        base,
        outputscale_constraint=_log_positive(),
        outputscale_prior=LogNormalPrior(math.log(variance), 2.0),
    ).double()
    built.base_kernel.lengthscale = 0.5 * math.sqrt(n_dims) * spread
    built.outputscale = torch.tensor(variance, dtype=torch.float64)
    return built


def _tried(kernel: Kernel, n_dims: int) -> Tensor:
    """The covariance of two rows, refused where a kernel that was given cannot have it."""
    probe = torch.stack([torch.zeros(n_dims), torch.ones(n_dims)]).double()

    def evaluated(kernel: Kernel) -> Tensor:
        with torch.no_grad(), one_at_a_time():
            return kernel(probe).to_dense()

    try:
        # On a thread with one core: GPyTorch may factorise even here, for which torch starts OpenMP's threads, and in a
        # child that was forked from a process that had some it would wait for them forever.
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


def kernel_parts(name: str) -> list[str]:
    """The kernels that a name such as "matern32+periodic" adds up."""
    parts = [part.strip() for part in name.split("+")]
    for part in parts:
        if part not in NAMED_KERNELS:
            raise ValueError(
                f"unknown kernel {part!r}: expected one of {', '.join(map(repr, NAMED_KERNELS))}, a sum of them such as "
                "'matern32+periodic', or a gpytorch kernel"
            )
    return parts


def _build_mean(mean: str | Mean, n_dims: int) -> Mean:
    if isinstance(mean, str):
        if mean not in MEANS:
            raise ValueError(
                f"unknown mean {mean!r}: expected one of {', '.join(map(repr, MEANS))}, "
                "or a gpytorch mean"
            )
        return MEANS[mean](n_dims).double()
    if not isinstance(mean, Mean):
        raise ValueError(
            f"expected mean to be one of {', '.join(map(repr, MEANS))} or a gpytorch mean, got {mean!r}"
        )
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


def _log_positive() -> Positive:
    return Positive(transform=torch.exp, inv_transform=torch.log)


def _closed_form(process: Process, n_dims: int) -> Stationary | None:
    """The closed form of a scaled stationary ARD kernel with a simple mean, where it is one."""
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
    return Stationary(kind, tuple(columns.tolist()), mean_kind)
