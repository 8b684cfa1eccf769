"""Processes in files of format 1, which has GPyTorch's modules for named kernels and means too: these are read here without torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dsmgp.gp.named_process import LogNormal, NamedProcess
from dsmgp.gp.process import build_process
from dsmgp.persistence.gpytorch.module_description import MODULES, OwnModule
from dsmgp.persistence.record import Section

__all__ = ["named_process"]

# By class and nu.
KERNELS = {
    ("RBFKernel", None): "rbf",
    ("MaternKernel", 0.5): "matern12",
    ("MaternKernel", 1.5): "matern32",
    ("MaternKernel", 2.5): "matern52",
    ("RQKernel", None): "rq",
    ("PeriodicKernel", None): "periodic",
}
# By class: name, and raw parameters.
MEANS = {
    "ZeroMean": ("zero", []),
    "ConstantMean": ("constant", ["raw_constant"]),
    "LinearMean": ("linear", ["weights", "bias"]),
}
SHAPES: dict[str, tuple[str | int, ...]] = {
    "raw_constant": (),
    "weights": ("coordinates", 1),
    "bias": (1,),
    "raw_outputscale": (),
    "raw_lengthscale": (1, "coordinates"),
    "raw_period_length": (1, "coordinates"),
    "raw_alpha": (1,),
    "raw_noise": (1,),
}


class _NotNamed(Exception):
    """A module that a named kernel or mean does not have."""


def named_process(described: Any, section: Section) -> NamedProcess | None:
    """Return the process of a named kernel and mean, or None if the modules are other ones."""
    try:
        return _named_process(described, section)
    except _NotNamed:
        return None


def _named_process(described: Any, section: Section) -> NamedProcess:
    mean, kernel, likelihood = described.mean, described.kernel, described.likelihood
    if isinstance(mean, OwnModule) or isinstance(kernel, OwnModule) or likelihood.fixed:
        raise _NotNamed
    n_dims, scaled = section.sizes["coordinates"], {"": kernel}
    if kernel.name == "AdditiveKernel" and len(kernel.parts) > 1:
        scaled = {f"kernels.{k}.": part for k, part in enumerate(kernel.parts)}
    kernel_name = "+".join(_kernel_name(scale, n_dims) for scale in scaled.values())
    mean_name, names = _mean(mean, n_dims)
    # The order of GPyTorch's parameters is that of theta.
    arrays = [f"mean.{name}" for name in names]
    priors: list[dict[str, Any] | None] = [None for _ in names]
    for path, scale in scaled.items():
        for module, inner in ((scale, ""), (scale.parts[0], "base_kernel.")):
            arrays += [f"kernel.{path}{inner}raw_{name}" for name in MODULES[module.name][1]]
            priors += [_prior(module, name) for name in MODULES[module.name][1]]
    arrays.append("likelihood.noise_covar.raw_noise")
    theta = [section.array(a, np.float64, *SHAPES[a.rpartition(".")[2]]).ravel() for a in arrays]
    named: Any = build_process(kernel_name, mean_name, None, n_dims)
    blocks = [
        replace(block, prior=None if prior is None else _log_normal(prior, block.size))
        for block, prior in zip(named.blocks[:-1], priors, strict=True)
    ]
    noise = replace(named.blocks[-1], lower=_lower(likelihood.constraint, "GreaterThan", "exp"))
    return NamedProcess(named.leaf_kernel, (*blocks, noise), np.concatenate(theta))


def _mean(mean: Any, n_dims: int) -> tuple[str, list[str]]:
    """Return the name of a mean, and those of its raw parameters."""
    options = {"input_size": n_dims, "bias": True} if mean.name == "LinearMean" else {}
    plain = not (mean.constraints or mean.priors or mean.fixed) and mean.dtype == "float64"
    if mean.name not in MEANS or not plain or mean.options != options:
        raise _NotNamed
    return MEANS[mean.name]


def _kernel_name(scale: Any, n_dims: int) -> str:
    if scale.name != "ScaleKernel" or scale.options:
        raise _NotNamed
    options = dict(scale.parts[0].options)
    name = KERNELS.get((scale.parts[0].name, options.pop("nu", None)))
    if name is None or options != {"ard_num_dims": n_dims}:
        raise _NotNamed
    return name


def _prior(module: Any, name: str) -> dict[str, Any] | None:
    """Return the prior of a hyperparameter that is positive, and learned on the scale of named kernels."""
    transform, prior = "softplus" if name == "alpha" else "exp", module.priors.get(name)
    if name not in module.constraints or module.fixed or module.dtype != "float64":
        raise _NotNamed
    if _lower(module.constraints[name], "Positive", transform) != 0.0:
        raise _NotNamed
    if prior is not None and (prior["class"] != "LogNormalPrior" or transform != "exp"):
        raise _NotNamed
    return prior


def _log_normal(prior: dict[str, Any], size: int) -> LogNormal:
    loc, scale = (prior[key].values.ravel() for key in ("loc", "scale"))
    if loc.size not in (1, size) or not (np.abs(loc) <= 1e3).all():
        raise _NotNamed
    if scale.size not in (1, size) or (scale != scale[0]).any() or not 1e-9 <= scale[0] <= 1e9:
        raise _NotNamed
    return LogNormal(loc, float(scale[0]))


def _lower(constraint: Any, name: str, transform: str) -> float:
    """Return the lower bound of a constraint of a class and transform, which has no upper one."""
    lower, upper = constraint.lower.values, constraint.upper.values
    if (constraint.name, constraint.transform, lower.size) != (name, transform, 1):
        raise _NotNamed
    if upper.item() != math.inf or not 0.0 <= lower.item() < math.inf:
        raise _NotNamed
    return float(lower.item())
