"""Named kernels and means as GPyTorch modules. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gpytorch
import torch
from gpytorch.constraints import Positive
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

from dsmgp._util.errors import InputError

if TYPE_CHECKING:
    from dsmgp.gp.kernels import Kernel, KernelTerm

__all__ = ["LineKernel", "factors_of", "gpytorch_kernel", "gpytorch_mean", "linear_mean"]

SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


class LineKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """The kernel "linear", ``1 + z z'`` with ``z = x / lengthscale``: GPyTorch's LinearKernel plus a constant, with length scales."""

    has_lengthscale = True

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **params: Any
    ) -> torch.Tensor:
        a, b = x1 / self.lengthscale, x2 / self.lengthscale
        if diag:
            return 1.0 + (a * b).sum(-1)
        return 1.0 + torch.matmul(a, b.mT)


def gpytorch_kernel(kernel: Kernel) -> gpytorch.kernels.Kernel:
    """Return a kernel with its values as a GPyTorch module, whose parameters are learned on a logarithmic scale."""
    parts = []
    for term in kernel.terms:
        factors = [_factor(factor) for factor in (term, *term.times)]
        base = factors[0] if len(factors) == 1 else ProductKernel(*factors)
        columns = None if term.columns is None else list(term.columns)
        scaled = ScaleKernel(
            base, outputscale_constraint=_log_positive(), active_dims=columns
        ).double()
        scaled.outputscale = torch.tensor(term.outputscale, dtype=torch.float64)
        parts.append(scaled)
    return parts[0] if len(parts) == 1 else AdditiveKernel(*parts)


def factors_of(scaled: ScaleKernel) -> list[gpytorch.kernels.Kernel]:
    """Return the factors of one term of :func:`gpytorch_kernel`."""
    base = scaled.base_kernel
    return list(base.kernels) if isinstance(base, ProductKernel) else [base]


def _factor(term: KernelTerm) -> gpytorch.kernels.Kernel:
    """Return a single kernel, without its output scale."""
    options: dict[str, Any] = {
        "ard_num_dims": len(term.lengthscale),
        "lengthscale_constraint": _log_positive(),
    }
    base: Any
    if term.name in SMOOTHNESS:
        base = MaternKernel(nu=SMOOTHNESS[term.name], **options)
    elif term.name == "periodic":
        base = PeriodicKernel(period_length_constraint=_log_positive(), **options)
    elif term.name in ("rbf", "rq", "linear"):
        base = {"rbf": RBFKernel, "rq": RQKernel, "linear": LineKernel}[term.name](**options)
    else:
        raise InputError(f"GPyTorch has no kernel {term.name!r}")
    base = base.double()
    base.lengthscale = torch.tensor(term.lengthscale)
    if term.alpha is not None:
        base.alpha = torch.tensor(term.alpha, dtype=torch.float64)
    if term.period is not None:
        base.period_length = torch.tensor(term.period)
    return base


def _log_positive() -> Positive:
    return Positive(transform=torch.exp, inv_transform=torch.log)


def linear_mean(input_size: int, **options: Any) -> LinearMean:
    """Return GPyTorch's linear mean, starting at zero: its own start is random, and would advance the user's seed."""
    with torch.device("meta"):  # where no numbers are drawn
        built = LinearMean(input_size, **options)
    built = built.to_empty(device="cpu").double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.zero_()
    return built


def gpytorch_mean(name: str, n_dims: int) -> Mean:
    """Return a named mean, starting at zero."""
    means = {"zero": ZeroMean, "constant": ConstantMean, "linear": lambda: linear_mean(n_dims)}
    return means[name]().double()
