"""GPyTorch's kernels and means by name and parameters: what a file can hold and nothing has to be executed for.

Only classes on the lists below are written and read. A class of the user's own is code, and code does not go into a
file: it is given again when the file is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.process import linear_mean

__all__ = [
    "CannotDescribe",
    "build_module",
    "build_noise",
    "describe",
    "describe_noise",
    "parameters_of",
    "set_parameters",
]

Array = NDArray[np.float64]
# A kernel or mean: GPyTorch's modules have no types that a checker could use.
Module = Any


class CannotDescribe(ValueError):
    """A module, or a part of one, that is on none of the lists."""


@dataclass(frozen=True)
class Plan:
    """How a class is built: numbers it takes, and hyperparameters that may have a constraint and a prior."""

    options: tuple[str, ...] = ()
    hyperparameters: tuple[str, ...] = ()


ARD = ("ard_num_dims", "active_dims")
KERNELS = {
    "RBFKernel": Plan(ARD, ("lengthscale",)),
    "MaternKernel": Plan(("nu", *ARD), ("lengthscale",)),
    "RQKernel": Plan(ARD, ("lengthscale", "alpha")),
    "PiecewisePolynomialKernel": Plan(("q", *ARD), ("lengthscale",)),
    "PeriodicKernel": Plan(ARD, ("lengthscale", "period_length")),
    "CosineKernel": Plan(("active_dims",), ("period_length",)),
    "LinearKernel": Plan(ARD, ("variance",)),
    "PolynomialKernel": Plan(("power", "active_dims"), ("offset",)),
    "ConstantKernel": Plan(("active_dims",), ("constant",)),
    "SpectralMixtureKernel": Plan(
        ("num_mixtures", *ARD), ("mixture_weights", "mixture_means", "mixture_scales")
    ),
    "ScaleKernel": Plan(("active_dims",), ("outputscale",)),
    "AdditiveKernel": Plan(),
    "ProductKernel": Plan(),
}
MEANS = {
    "ZeroMean": Plan(),
    "ConstantMean": Plan((), ("constant",)),
    "LinearMean": Plan(("input_size", "bias")),
}
# Where GPyTorch's own class would draw random numbers.
MAKERS = {"LinearMean": linear_mean}
PRIORS = {
    "NormalPrior": ("loc", "scale"),
    "LogNormalPrior": ("loc", "scale"),
    "HalfNormalPrior": ("scale",),
    "HalfCauchyPrior": ("scale",),
    "GammaPrior": ("concentration", "rate"),
    "UniformPrior": ("low", "high"),
    "SmoothedBoxPrior": ("a", "b", "sigma"),
}
CONSTRAINTS = ("Positive", "GreaterThan", "LessThan", "Interval")
TRANSFORMS: dict[str, Any] = {
    "softplus": (gpytorch.constraints.constraints.softplus, inv_softplus),
    "exp": (torch.exp, torch.log),
    "sigmoid": (gpytorch.constraints.constraints.sigmoid, inv_sigmoid),
    "none": (None, None),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Kernels inside one another, and inputs or mixtures of one: far more than anyone uses.
MAX_PARTS, MAX_SIZE = 100, 10_000


def describe(module: Module) -> dict[str, Any]:
    """A kernel or mean in words and numbers, without the values of its parameters (see :func:`parameters_of`).

    Examples
    --------
    >>> described = describe(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2))
    >>> described["class"], described["options"]
    ('MaternKernel', {'nu': 1.5, 'ard_num_dims': 2})
    >>> type(build_module(described)).__name__
    'MaternKernel'
    """
    name, plan = _plan(module)
    if getattr(module, "batch_shape", ()):
        raise CannotDescribe(f"{name} has a batch shape")
    found: dict[str, Any] = {
        "class": name,
        "options": {
            option: value
            for option in plan.options
            if (value := _option(module, option)) is not None
        },
        "constraints": {},
        "priors": {},
        "parts": [describe(part) for part in _parts(module)],
        "dtype": _dtype(module),
        "fixed": [key for key, p in module.named_parameters(recurse=False) if not p.requires_grad],
    }
    for hyperparameter in plan.hyperparameters:
        constraint = getattr(module, f"raw_{hyperparameter}_constraint", None)
        if constraint is not None:
            found["constraints"][hyperparameter] = _describe_constraint(constraint)
    known = {_prior_name(name, h): h for h in plan.hyperparameters}
    for prior_name, (prior, *_) in module._priors.items():
        if prior_name not in known:
            raise CannotDescribe(f"{name} has a prior {prior_name!r} of your own")
        found["priors"][known[prior_name]] = _describe_prior(prior)
    return found


def build_module(described: Any) -> Module:
    """The module that was described; its parameters are yet to be set."""
    budget = [MAX_PARTS]
    return _build(described, budget)


def describe_noise(likelihood: gpytorch.likelihoods.GaussianLikelihood) -> dict[str, Any]:
    """Gaussian noise, without its value."""
    covar = likelihood.noise_covar
    return {
        "constraint": _describe_constraint(covar.raw_noise_constraint),
        "fixed": not covar.raw_noise.requires_grad,
    }


def build_noise(described: Any) -> gpytorch.likelihoods.GaussianLikelihood:
    """The noise that was described; its value is yet to be set."""
    constraint = _build_constraint(described["constraint"])
    built = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint).double()
    built.noise_covar.raw_noise.requires_grad_(not described["fixed"])
    return built


def parameters_of(module: torch.nn.Module) -> dict[str, Array]:
    """Raw parameters by name, in double precision."""
    return {
        name: p.detach().cpu().numpy().astype(np.float64) for name, p in module.named_parameters()
    }


def set_parameters(module: torch.nn.Module, values: dict[str, Array]) -> None:
    """Raw parameters by name; all of them, in their shapes."""
    own = dict(module.named_parameters())
    if own.keys() != values.keys():
        raise ValueError(f"expected the parameters {sorted(own)}, got {sorted(values)}")
    for name, parameter in own.items():
        if tuple(parameter.shape) != values[name].shape:
            raise ValueError(
                f"expected the parameter {name} to have shape {tuple(parameter.shape)}, "
                f"got {values[name].shape}"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(torch.from_numpy(values[name]))


def _plan(module: Module) -> tuple[str, Plan]:
    """The class's name, if it is the very one of GPyTorch, and how it is built."""
    name = type(module).__name__
    for home, plans in ((gpytorch.kernels, KERNELS), (gpytorch.means, MEANS)):
        if name in plans and type(module) is getattr(home, name):
            return name, plans[name]
    raise CannotDescribe(f"{name} is not one of GPyTorch's that a model file can hold")


def _parts(module: Module) -> list[Module]:
    if isinstance(module, gpytorch.kernels.ScaleKernel):
        return [module.base_kernel]
    return list(getattr(module, "kernels", []))


def _option(module: Module, name: str) -> Any:
    if name == "active_dims":
        return None if module.active_dims is None else module.active_dims.tolist()
    if name == "power":
        return int(module.power)
    if name == "input_size":
        return int(module.weights.shape[-2])
    if name == "bias":
        return module.bias is not None
    return getattr(module, name)


def _prior_name(module: str, hyperparameter: str) -> str:
    return "mean_prior" if module == "ConstantMean" else f"{hyperparameter}_prior"


def _dtype(module: Module) -> str:
    own = next(module.parameters(), torch.empty(0, dtype=torch.float64))
    return str(own.dtype).removeprefix("torch.")


def _describe_constraint(constraint: Any) -> dict[str, Any]:
    name = type(constraint).__name__
    known = [key for key, pair in TRANSFORMS.items() if _same_transform(constraint, *pair)]
    if name not in CONSTRAINTS or type(constraint) is not getattr(gpytorch.constraints, name):
        raise CannotDescribe(f"{name} is a constraint of your own")
    if not known:
        raise CannotDescribe(f"a {name} constraint has a transform of your own")
    return {
        "class": name,
        "transform": known[0],
        "lower": _numbers(constraint.lower_bound),
        "upper": _numbers(constraint.upper_bound),
    }


def _same_transform(constraint: Any, transform: Any, inverse: Any) -> bool:
    """Functions are the same or not; GPyTorch's softplus is a module, and copied with what it is in."""
    own = constraint._transform
    same = own is transform or (
        type(own) is type(transform) is torch.nn.Softplus and repr(own) == repr(transform)
    )
    return same and constraint._inv_transform is inverse


def _describe_prior(prior: Any) -> dict[str, Any]:
    name = type(prior).__name__
    if name not in PRIORS or type(prior) is not getattr(gpytorch.priors, name):
        raise CannotDescribe(f"{name} is not one of GPyTorch's priors that a model file can hold")
    if getattr(prior, "_transform", None) is not None:
        raise CannotDescribe(f"a {name} has a transform of your own")
    source = prior.base_dist if name == "LogNormalPrior" else prior
    return {"class": name, **{key: _numbers(getattr(source, key)) for key in PRIORS[name]}}


def _numbers(values: Any) -> dict[str, Any]:
    tensor = torch.as_tensor(values).detach().cpu()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "values": tensor.to(torch.float64).tolist()}


def _tensor(described: Any) -> Tensor:
    tensor = torch.tensor(described["values"], dtype=torch.float64)
    if tensor.numel() > MAX_SIZE or tensor.isnan().any():
        raise ValueError("a bound or prior has numbers that make no sense")
    return tensor.to(DTYPES[described["dtype"]])


def _build(described: Any, budget: list[int]) -> Module:
    budget[0] -= 1
    if budget[0] < 0:
        raise ValueError(f"a kernel has more than {MAX_PARTS} parts")
    name = described["class"]
    home, plans = (gpytorch.kernels, KERNELS) if name in KERNELS else (gpytorch.means, MEANS)
    plan = plans[name]
    options = {key: _checked_option(key, described["options"][key]) for key in described["options"]}
    if not options.keys() <= set(plan.options):
        raise ValueError(f"{name} does not take {sorted(options.keys() - set(plan.options))}")
    for hyperparameter, constraint in described["constraints"].items():
        _check_known(hyperparameter, plan)
        options[f"{hyperparameter}_constraint"] = _build_constraint(constraint)
    parts = [_build(part, budget) for part in described["parts"]]
    for hyperparameter, prior in described["priors"].items():
        _check_known(hyperparameter, plan)
        options[f"{hyperparameter}_prior"] = _build_prior(prior)
    module = MAKERS.get(name, getattr(home, name))(*parts, **options)
    module.to(DTYPES[described["dtype"]])
    own = dict(module.named_parameters(recurse=False))
    for key in described["fixed"]:
        own[key].requires_grad_(False)
    return module


def _check_known(hyperparameter: str, plan: Plan) -> None:
    if hyperparameter not in plan.hyperparameters:
        raise ValueError(f"there is no hyperparameter {hyperparameter!r}")


def _checked_option(name: str, value: Any) -> Any:
    if name == "active_dims":
        if not all(type(k) is int and 0 <= k < MAX_SIZE for k in value) or len(value) > MAX_SIZE:
            raise ValueError(f"active_dims {value!r} make no sense")
        return tuple(value)
    kind = {"nu": float, "bias": bool}.get(name, int)
    if type(value) is not kind or not 0 <= value <= MAX_SIZE or not math.isfinite(value):
        raise ValueError(f"{name} {value!r} makes no sense")
    return value


def _build_constraint(described: Any) -> Any:
    name, transforms = described["class"], TRANSFORMS[described["transform"]]
    lower, upper = _tensor(described["lower"]), _tensor(described["upper"])
    if name not in CONSTRAINTS or not bool((lower < upper).all()):
        raise ValueError(f"the constraint {name!r} makes no sense")
    bounds = {"GreaterThan": (0.0,), "LessThan": (0.0,), "Interval": (0.0, 1.0)}.get(name, ())
    built = getattr(gpytorch.constraints, name)(*bounds, *transforms)
    # GPyTorch would round them to torch's default precision.
    built.lower_bound, built.upper_bound = lower, upper
    return built


def _build_prior(described: Any) -> Any:
    name = described["class"]
    return getattr(gpytorch.priors, name)(*(_tensor(described[key]) for key in PRIORS[name]))
