"""Kernels by name, and kernels that users pass in: GPyTorch modules with constraints, priors and starting values.

To add a kernel, enter its GPyTorch class in ``NAMED_KERNELS``. If it has a closed form in
:mod:`dsmgp.gp.stationary`, enter it in ``KERNELS`` and map it there.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from gpytorch.constraints import Positive
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
from gpytorch.priors import LogNormalPrior
from scipy.signal import lombscargle
from torch import Tensor

from dsmgp._util.arrays import Array
from dsmgp.gp.autograd import one_at_a_time
from dsmgp.linalg.threads import Threads

__all__ = [
    "KERNELS",
    "NAMED_KERNELS",
    "build_kernel",
    "dominant_periods",
    "kernel_parts",
    "set_periods",
]

KERNELS: dict[str, Any] = {
    "rbf": RBFKernel,
    "matern12": lambda **options: MaternKernel(nu=0.5, **options),
    "matern32": lambda **options: MaternKernel(nu=1.5, **options),
    "matern52": lambda **options: MaternKernel(nu=2.5, **options),
    "rq": RQKernel,
}
#: All kernels that have a name; those beyond KERNELS have no closed form here, and are computed by autograd.
NAMED_KERNELS: dict[str, Any] = {
    **KERNELS,
    "periodic": lambda **options: _periodic(**options),
}
# Rows that a periodogram is computed from, and frequencies tried for each period that fits into the range.
MOST_ROWS, PER_PERIOD = 2000, 4


def build_kernel(kernel: str | Kernel, n_dims: int, spread: Tensor, variance: float) -> Kernel:
    """Return a kernel with an output scale, at starting values.

    Parameters
    ----------
    kernel : str or gpytorch.kernels.Kernel
        A name, a sum of names such as "matern32+periodic", or a module, which is copied.
    n_dims : int
    spread : Tensor of shape (n_dims,)
        Standard deviation of each input, the unit of its length scale.
    variance : float
        Variance of the output, at which output scales start.
    """
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
    diagonal = _check_kernel(copied, n_dims).diagonal()
    composed = isinstance(copied, (ScaleKernel, AdditiveKernel, ProductKernel))
    if not composed and bool((diagonal == 1.0).all()):
        # A kernel whose variance is one whatever its parameters gets an output scale.
        copied = ScaleKernel(copied).double()
        copied.outputscale = torch.tensor(variance, dtype=torch.float64)
    return copied


def _named_kernel(name: str, n_dims: int, spread: Tensor, variance: float) -> ScaleKernel:
    # Length scales are learned best on a logarithmic scale. Distances grow with sqrt(n_dims), and so do plausible
    # length scales (Hvarfner et al. 2024).
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


def _periodic(**options: Any) -> PeriodicKernel:
    kernel = PeriodicKernel(period_length_constraint=_log_positive(), **options)
    # A prior given to the constructor comes with functions that cannot be pickled.
    kernel.register_prior(
        "period_length_prior", LogNormalPrior(0.0, 2.0), _period_length, _set_period_length
    )
    return kernel


def _period_length(kernel: PeriodicKernel) -> Tensor:
    return kernel.period_length


def _set_period_length(kernel: PeriodicKernel, value: Tensor) -> None:
    kernel.period_length = value


def _check_kernel(kernel: Kernel, n_dims: int) -> Tensor:
    """Return the covariance of two rows; refuse a kernel that cannot be evaluated or is not of one output."""
    probe = torch.stack([torch.zeros(n_dims), torch.ones(n_dims)]).double()

    def evaluated(kernel: Kernel) -> Tensor:
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


def kernel_parts(name: str) -> list[str]:
    """Return the names in a sum of kernels such as "matern32+periodic"."""
    parts = [part.strip() for part in name.split("+")]
    for part in parts:
        if part not in NAMED_KERNELS:
            raise ValueError(
                f"unknown kernel {part!r}: expected one of {', '.join(map(repr, NAMED_KERNELS))}, a sum of them such as "
                "'matern32+periodic', or a gpytorch kernel"
            )
    return parts


def dominant_periods(X: Array, y: Array) -> Array:
    """Return the period of y along each input with the largest power in the Lomb-Scargle periodogram, (n_dims,).

    Examples
    --------
    >>> x = np.linspace(0, 10, 300)
    >>> print(dominant_periods(x[:, None], np.sin(2 * np.pi * x / 1.7)).round(1))
    [1.7]
    """
    periods = np.empty(X.shape[1])
    stride = -(-len(X) // MOST_ROWS)
    for k, column in enumerate(X.T):
        order = np.argsort(column, kind="stable")
        # A contiguous stretch: thinning out the rows would hide short periods.
        rows = order[: len(order) // stride] if stride > 1 else order
        x, z = column[rows], y[rows]
        span = np.ptp(x)
        n_distinct = len(np.unique(x))
        if span <= 0 or n_distinct < 6:
            periods[k] = 1.0
            continue
        trend = np.polynomial.Polynomial.fit(x, z, 1)
        most = n_distinct // 2  # the Nyquist limit
        cycles = np.arange(PER_PERIOD, PER_PERIOD * most) / PER_PERIOD
        power = lombscargle(x, z - trend(x), 2.0 * np.pi * cycles / span)
        periods[k] = span / cycles[int(np.argmax(power))]
    return periods


def set_periods(kernel: Kernel, periods: Array) -> None:
    """Set the period lengths of every periodic part of a kernel."""
    for module in kernel.modules():
        if isinstance(module, PeriodicKernel):
            module.period_length = torch.from_numpy(periods).reshape(module.period_length.shape)


def _log_positive() -> Positive:
    return Positive(transform=torch.exp, inv_transform=torch.log)
