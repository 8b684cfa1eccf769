"""How GPyTorch's kernels, means, likelihoods, constraints and priors are stored: class name, options and raw parameters.

Only classes in the tables below are written and read, so loading a file executes no code of its author. A user's own
class is code: it is left out of the file and passed to ``load`` again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from torch import Tensor

from dsmgp._util.archive import ModelFileError
from dsmgp.gp.means import linear_mean
from dsmgp.persistence import checks
from dsmgp.persistence.record import Entry, Items, Named, Part, Record, Section, Union

__all__ = ["LIKELIHOOD", "MODULE", "CannotStore", "read_parameters", "write_parameters"]

# A kernel or mean: GPyTorch's modules have no types that a checker could use.
Module = Any
# Inputs or mixtures of a kernel: far more than anyone uses.
MAX_SIZE = 10_000

# By class: options of the constructor, and hyperparameters that may have a constraint and a prior.
ARD = "ard_num_dims active_dims"
MIXTURE = "mixture_weights mixture_means mixture_scales"
KERNELS = {
    "RBFKernel": (ARD, "lengthscale"),
    "MaternKernel": (f"nu {ARD}", "lengthscale"),
    "RQKernel": (ARD, "lengthscale alpha"),
    "PiecewisePolynomialKernel": (f"q {ARD}", "lengthscale"),
    "PeriodicKernel": (ARD, "lengthscale period_length"),
    "CosineKernel": ("active_dims", "period_length"),
    "LinearKernel": (ARD, "variance"),
    "PolynomialKernel": ("power active_dims", "offset"),
    "ConstantKernel": ("active_dims", "constant"),
    "SpectralMixtureKernel": (f"num_mixtures {ARD}", MIXTURE),
    "ScaleKernel": ("active_dims", "outputscale"),
    "AdditiveKernel": ("", ""),
    "ProductKernel": ("", ""),
}
MEANS = {
    "ZeroMean": ("", ""),
    "ConstantMean": ("", "constant"),
    "LinearMean": ("input_size bias", ""),
}
MODULES = KERNELS | MEANS
HYPERPARAMETERS = sorted({name for _, names in MODULES.values() for name in names.split()})
OPTIONS = {
    "nu": checks.one_of(0.5, 1.5, 2.5),
    "q": checks.one_of(0, 1, 2, 3),
    "power": checks.count(0, MAX_SIZE),
    "num_mixtures": checks.count(1, MAX_SIZE),
    "ard_num_dims": checks.count(1, MAX_SIZE),
    "active_dims": checks.list_of(checks.count(0, MAX_SIZE), MAX_SIZE),
    "input_size": checks.count(1, MAX_SIZE),
    "bias": checks.BOOLEAN,
}
REQUIRED = {"power", "num_mixtures", "input_size"}
PRIORS = {
    "NormalPrior": ("loc", "scale"),
    "LogNormalPrior": ("loc", "scale"),
    "HalfNormalPrior": ("scale",),
    "HalfCauchyPrior": ("scale",),
    "GammaPrior": ("concentration", "rate"),
    "UniformPrior": ("low", "high"),
    "SmoothedBoxPrior": ("a", "b", "sigma"),
}
# With bounds for the constructor, which are replaced.
CONSTRAINTS = {"Positive": (), "GreaterThan": (0.0,), "LessThan": (0.0,), "Interval": (0.0, 1.0)}
TRANSFORMS: dict[str, Any] = {
    "softplus": (gpytorch.constraints.constraints.softplus, inv_softplus),
    "exp": (torch.exp, torch.log),
    "sigmoid": (gpytorch.constraints.constraints.sigmoid, inv_sigmoid),
    "none": (None, None),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class CannotStore(ValueError):
    """A module, or a part of one, that is in none of the tables."""


def write_parameters(module: torch.nn.Module, section: Section) -> None:
    """Write the raw parameters as arrays, in double precision."""
    for name, parameter in module.named_parameters():
        section.arrays[section.prefix + name] = parameter.detach().cpu().double().numpy()


def read_parameters(module: torch.nn.Module, section: Section) -> None:
    """Set the raw parameters; all of them must be there, in their shapes."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(section.array(name, np.float64, *parameter.shape)))
            if not bool(parameter.isfinite().all()):  # in single precision
                raise ModelFileError(f"its array {section.prefix + name!r} is out of range")


def _class_name(home: Any, table: Mapping[str, Any], value: Any) -> str:
    """Return the name of a value's class, if it is in a table and the very one of GPyTorch."""
    name = type(value).__name__
    if name not in table or type(value) is not getattr(home, name, None):
        raise CannotStore(f"{name} is not one of GPyTorch's classes that a model file can hold")
    return name


# Numbers, constraints and priors


def _are_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= MAX_SIZE and all(map(_are_numbers, value))
    return checks.NUMBER.holds(value) and abs(value) <= float("inf")


def _make_tensor(dtype: str, values: Any) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64)).to(DTYPES[dtype])


def _dtype_name(values: Any) -> str:
    return str(torch.as_tensor(values).dtype).removeprefix("torch.")


TENSOR = Record(
    "bounds or priors",
    _make_tensor,
    {
        "dtype": Entry("dtype", checks.one_of(*DTYPES)),
        "values": Entry("values", checks.Check("numbers", _are_numbers)),
    },
    values={
        "dtype": _dtype_name,
        "values": lambda values: torch.as_tensor(values).detach().cpu().double().tolist(),
    },
)


def _transform_name(constraint: Any) -> str:
    held = constraint._transform
    for name, (transform, inverse) in TRANSFORMS.items():
        # GPyTorch's softplus is a module, and is copied together with the module that holds it.
        copied = type(held) is type(transform) is torch.nn.Softplus and repr(held) == repr(
            transform
        )
        if (held is transform or copied) and constraint._inv_transform is inverse:
            return name
    raise CannotStore(f"a {type(constraint).__name__} constraint has a transform of your own")


def _make_constraint(name: str, transform: str, lower_bound: Tensor, upper_bound: Tensor) -> Any:
    if lower_bound.shape != upper_bound.shape or not bool((lower_bound < upper_bound).all()):
        raise ValueError("the lower bound is not below the upper one")
    made = getattr(gpytorch.constraints, name)(*CONSTRAINTS[name], *TRANSFORMS[transform])
    # The constructor would round them to torch's default precision.
    made.lower_bound, made.upper_bound = lower_bound, upper_bound
    return made


CONSTRAINT = Record(
    "constraints",
    _make_constraint,
    {
        "name": Entry("class", checks.one_of(*CONSTRAINTS)),
        "transform": Entry("transform", checks.one_of(*TRANSFORMS)),
        "lower_bound": Part("lower", TENSOR),
        "upper_bound": Part("upper", TENSOR),
    },
    values={
        "name": partial(_class_name, gpytorch.constraints, CONSTRAINTS),
        "transform": _transform_name,
    },
)


def _make_prior(name: str, **numbers: Tensor) -> Any:
    try:
        return getattr(gpytorch.priors, name)(*numbers.values())
    except RuntimeError as error:  # shapes that do not go together
        raise ValueError(str(error)) from error


def _prior_value(key: str, prior: Any) -> Any:
    if getattr(prior, "_transform", None) is not None:
        raise CannotStore(f"a {type(prior).__name__} has a transform of your own")
    return getattr(prior.base_dist if type(prior).__name__ == "LogNormalPrior" else prior, key)


PRIOR = Union(
    "class",
    {
        name: Record(
            "priors",
            partial(_make_prior, name),
            {key: Part(key, TENSOR) for key in keys},
            values={key: partial(_prior_value, key) for key in keys},
        )
        for name, keys in PRIORS.items()
    },
    partial(_class_name, gpytorch.priors, PRIORS),
)


# Kernels and means


def _module_name(module: Module) -> str:
    if getattr(module, "batch_shape", ()):
        raise CannotStore(f"{type(module).__name__} has a batch shape")
    home = gpytorch.kernels if isinstance(module, Kernel) else gpytorch.means
    return _class_name(home, MODULES, module)


def _option(module: Module, name: str) -> Any:
    match name:
        case "active_dims":
            return None if module.active_dims is None else module.active_dims.tolist()
        case "power":
            return int(module.power)
        case "input_size":
            return int(module.weights.shape[-2])
        case "bias":
            return module.bias is not None
    return getattr(module, name)


def _options(module: Module) -> dict[str, Any]:
    options = {name: _option(module, name) for name in MODULES[_module_name(module)][0].split()}
    return {name: value for name, value in options.items() if value is not None}


def _constraints(module: Module) -> dict[str, Any]:
    names = {name: f"raw_{name}_constraint" for name in MODULES[_module_name(module)][1].split()}
    return {name: getattr(module, key) for name, key in names.items() if hasattr(module, key)}


def _priors(module: Module) -> dict[str, Any]:
    names = {f"{name}_prior": name for name in MODULES[_module_name(module)][1].split()}
    names |= {"mean_prior": "constant"} if "constant_prior" in names else {}
    unknown = module._priors.keys() - names
    if unknown:
        raise CannotStore(f"{type(module).__name__} has a prior {min(unknown)!r} of your own")
    return {names[key]: prior for key, (prior, *_) in module._priors.items()}


def _parts(module: Module) -> list[Module]:
    is_scale = isinstance(module, gpytorch.kernels.ScaleKernel)
    return [module.base_kernel] if is_scale else list(getattr(module, "kernels", []))


def _make_module(
    name: str, options: dict[str, Any], constraints: dict[str, Any], priors: dict[str, Any],
    parts: list[Module], dtype: str, fixed: list[str],
) -> Module:  # fmt: skip
    known_options, hyperparameters = (set(names.split()) for names in MODULES[name])
    unknown = (options.keys() - known_options) | (
        constraints.keys() | priors.keys()
    ) - hyperparameters
    if unknown:
        raise ValueError(f"{name} has no {min(unknown)}")
    missing = (known_options & REQUIRED) - options.keys()
    if missing:
        raise ValueError(f"{name} lacks {min(missing)}")
    is_composed = name in ("AdditiveKernel", "ProductKernel") and len(parts) > 0
    if not (is_composed or len(parts) == (name == "ScaleKernel")) or not all(
        isinstance(part, Kernel) for part in parts
    ):
        raise ValueError(f"{name} does not have the right parts")
    home = gpytorch.kernels if name in KERNELS else gpytorch.means
    make: Any = linear_mean if name == "LinearMean" else getattr(home, name)
    module = make(
        *parts,
        **{key: tuple(v) if isinstance(v, list) else v for key, v in options.items()},
        **{f"{key}_constraint": constraint for key, constraint in constraints.items()},
        **{f"{key}_prior": prior for key, prior in priors.items()},
    ).to(DTYPES[dtype])
    parameters = dict(module.named_parameters(recurse=False))
    for key in fixed:
        if key not in parameters:
            raise ValueError(f"{name} has no parameter {key!r}")
        parameters[key].requires_grad_(False)
    return module


MODULE_FIELDS: dict[str, Any] = {
    "name": Entry("class", checks.one_of(*MODULES)),
    "options": Part(
        "options", Named({name: Entry(name, check) for name, check in OPTIONS.items()})
    ),
    "constraints": Part("constraints", Named({h: Part(h, CONSTRAINT) for h in HYPERPARAMETERS})),
    "priors": Part("priors", Named({h: Part(h, PRIOR) for h in HYPERPARAMETERS})),
    "parts": None,  # modules themselves, see below
    "dtype": Entry("dtype", checks.one_of(*DTYPES)),
    "fixed": Entry("fixed", checks.list_of(checks.TEXT)),
}
MODULE = Record(
    "kernels or means",
    _make_module,
    MODULE_FIELDS,
    values={
        "name": _module_name,
        "options": _options,
        "constraints": _constraints,
        "priors": _priors,
        "parts": _parts,
        "dtype": lambda m: _dtype_name(next(m.parameters(), torch.empty(0, dtype=torch.float64))),
        "fixed": lambda m: [k for k, p in m.named_parameters(recurse=False) if not p.requires_grad],
    },
)
MODULE_FIELDS["parts"] = Items("parts", MODULE)


def _make_likelihood(constraint: Any, fixed: bool) -> gpytorch.likelihoods.GaussianLikelihood:
    made = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint).double()
    made.noise_covar.raw_noise.requires_grad_(not fixed)
    return made


LIKELIHOOD = Record(
    "observation noise",
    _make_likelihood,
    {"constraint": Part("constraint", CONSTRAINT), "fixed": Entry("fixed", checks.BOOLEAN)},
    values={
        "constraint": lambda likelihood: likelihood.noise_covar.raw_noise_constraint,
        "fixed": lambda likelihood: not likelihood.noise_covar.raw_noise.requires_grad,
    },
)
