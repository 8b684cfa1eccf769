"""GPyTorch's kernels, means and likelihoods, to and from their descriptions in a model file. Needs torch.

It is imported only for models that hold such modules. Raw parameters are arrays, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gpytorch
import numpy as np
import torch
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus

from dsmgp._util.archive import ModelFileError
from dsmgp._util.errors import InputError
from dsmgp.gp.gpytorch_kernels import linear_mean
from dsmgp.gp.gpytorch_leaf_kernel import Modules
from dsmgp.gp.gpytorch_process import GPyTorchProcess
from dsmgp.gp.process import build_process
from dsmgp.persistence.gpytorch.module_description import (
    CONSTRAINTS,
    KERNELS,
    MODULES,
    PRIORS,
    PROCESS,
    OwnModule,
    make_constraint,
    make_module,
)
from dsmgp.persistence.record import Section, refused

if TYPE_CHECKING:
    from dsmgp.persistence.processes import OwnModules

__all__ = [
    "CannotStore", "build_given", "build_gpytorch_process", "build_module", "describe_given", "describe_module", "read_parameters",
    "write_parameters", "write_process",
]  # fmt: skip

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Bounds for the constructors, which are replaced.
BOUNDS = {"Positive": (), "GreaterThan": (0.0,), "LessThan": (0.0,), "Interval": (0.0, 1.0)}
TRANSFORMS: dict[str, Any] = {
    "softplus": (gpytorch.constraints.constraints.softplus, inv_softplus),
    "exp": (torch.exp, torch.log),
    "sigmoid": (gpytorch.constraints.constraints.sigmoid, inv_sigmoid),
    "none": (None, None),
}


class CannotStore(InputError):
    """A module, or a part of one, that has no description."""


# Raw parameters


def write_parameters(module: torch.nn.Module, section: Section) -> None:
    """Write the raw parameters as arrays, in double precision."""
    for name, parameter in module.named_parameters():
        section.put_array(name, parameter.detach().cpu().double().numpy())


def read_parameters(module: torch.nn.Module, section: Section) -> None:
    """Set the raw parameters; all of them must be there, in their shapes."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(section.array(name, np.float64, *parameter.shape)))
            if not bool(parameter.isfinite().all()):  # in single precision
                raise ModelFileError(f"its array {section.prefix + name!r} is out of range")


# From modules to descriptions


def _class_name(home: Any, known: Collection[str], value: Any) -> str:
    """Return the name of a value's class, if it is known and the very one of GPyTorch."""
    name = type(value).__name__
    if name not in known or type(value) is not getattr(home, name, None):
        raise CannotStore(f"{name} is not one of GPyTorch's classes that a model file can hold")
    return name


def _numbers(values: Any) -> SimpleNamespace:
    tensor = torch.as_tensor(values).detach().cpu()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise CannotStore(f"a model file cannot hold numbers of type {dtype}")
    return SimpleNamespace(dtype=dtype, values=tensor.double().numpy())


def _describe_constraint(constraint: Any) -> SimpleNamespace:
    name = _class_name(gpytorch.constraints, CONSTRAINTS, constraint)
    held = constraint._transform
    for transform, (function, inverse) in TRANSFORMS.items():
        # GPyTorch's softplus is a module, and is copied together with the module that holds it.
        is_copy = type(held) is type(function) is torch.nn.Softplus and repr(held) == repr(function)
        if (held is function or is_copy) and constraint._inv_transform is inverse:
            lower, upper = map(_numbers, (constraint.lower_bound, constraint.upper_bound))
            return make_constraint(lower, upper, name=name, transform=transform)
    raise CannotStore(f"a {name} constraint has a transform of your own")


def _describe_prior(prior: Any) -> dict[str, Any]:
    name = _class_name(gpytorch.priors, PRIORS, prior)
    if getattr(prior, "_transform", None) is not None:
        raise CannotStore(f"a {name} has a transform of your own")
    home = prior.base_dist if name == "LogNormalPrior" else prior
    return {"class": name, **{key: _numbers(getattr(home, key)) for key in PRIORS[name]}}


def _option(module: Any, name: str) -> Any:
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


def describe_module(module: Any) -> SimpleNamespace:
    """Describe a kernel or mean; :class:`CannotStore` if it has a part that is code of the user."""
    if getattr(module, "batch_shape", ()):
        raise CannotStore(f"{type(module).__name__} has a batch shape")
    is_kernel = isinstance(module, gpytorch.kernels.Kernel)
    name = _class_name(gpytorch.kernels if is_kernel else gpytorch.means, MODULES, module)
    option_names, hyperparameters = MODULES[name]
    options = {key: _option(module, key) for key in option_names}
    prior_names = {f"{h}_prior": h for h in hyperparameters}
    if name == "ConstantMean":
        prior_names["mean_prior"] = "constant"
    unknown = module._priors.keys() - prior_names
    if unknown:
        raise CannotStore(f"{name} has a prior {min(unknown)!r} of your own")
    constraints = {h: getattr(module, f"raw_{h}_constraint", None) for h in hyperparameters}
    parameters = dict(module.named_parameters(recurse=False))
    any_parameter = next(module.parameters(), torch.empty(0, dtype=torch.float64))
    return make_module(
        name=name,
        options={key: value for key, value in options.items() if value is not None},
        constraints={h: _describe_constraint(c) for h, c in constraints.items() if c is not None},
        priors={
            prior_names[key]: _describe_prior(prior) for key, (prior, *_) in module._priors.items()
        },
        parts=tuple(map(describe_module, _parts(module))),
        dtype=_numbers(any_parameter).dtype,
        fixed=tuple(key for key, parameter in parameters.items() if not parameter.requires_grad),
    )


def _parts(module: Any) -> list[Any]:
    base = getattr(module, "base_kernel", None)
    return list(getattr(module, "kernels", [])) if base is None else [base]


def _class_names(module: Any) -> str:
    """Name the class of a module, and those of its parts."""
    inner = ", ".join(map(_class_names, _parts(module)))
    return type(module).__name__ + (f"({inner})" if inner else "")


def _describe(part: str, module: Any, section: Section) -> SimpleNamespace | OwnModule:
    own: OwnModules = section.context
    try:
        return describe_module(module)
    except CannotStore as error:
        if own.allowed:
            return OwnModule(_class_names(module))
        raise ModelFileError(
            f"the {part} cannot be written: {error}. Save with own_modules=True, which leaves it out, and give "
            f"it again when loading: load(path, {part}=...); or use pickle, which runs code when it is loaded"
        ) from None


def write_process(process: GPyTorchProcess, section: Section) -> None:
    """Write the modules of a process."""
    modules, noise = process.modules, process.modules.likelihood.noise_covar
    constraint = _describe_constraint(noise.raw_noise_constraint)
    described = SimpleNamespace(
        mean=_describe("mean", modules.mean, section),
        kernel=_describe("kernel", modules.kernel, section),
        likelihood=SimpleNamespace(constraint=constraint, fixed=not noise.raw_noise.requires_grad),
    )
    PROCESS.write(described, section)
    write_parameters(modules, section)


def describe_given(part: str, module: Any, section: Section) -> SimpleNamespace | OwnModule:
    """Describe the kernel or mean that the user passed to the constructor, and write its raw parameters."""
    write_parameters(module, section.inner({}, part, f"{part}."))
    return _describe(part, module, section)


# From descriptions to modules


def _tensor(numbers: Any) -> torch.Tensor:
    return torch.from_numpy(numbers.values).to(DTYPES[numbers.dtype])


def _build_constraint(described: Any) -> Any:
    make = getattr(gpytorch.constraints, described.name)
    made = make(*BOUNDS[described.name], *TRANSFORMS[described.transform])
    # The constructor would round them to torch's default precision.
    made.lower_bound, made.upper_bound = _tensor(described.lower), _tensor(described.upper)
    return made


def _build_prior(described: dict[str, Any]) -> Any:
    name = described["class"]
    try:
        return getattr(gpytorch.priors, name)(*(_tensor(described[key]) for key in PRIORS[name]))
    except RuntimeError as error:  # shapes that do not go together
        raise InputError(str(error)) from error


def build_module(described: Any) -> Any:
    """Build a kernel or mean; ValueError if GPyTorch refuses its options."""
    name = described.name
    home = gpytorch.kernels if name in KERNELS else gpytorch.means
    make: Any = linear_mean if name == "LinearMean" else getattr(home, name)
    module = make(
        *map(build_module, described.parts),
        **described.options,
        **{f"{h}_constraint": _build_constraint(c) for h, c in described.constraints.items()},
        **{f"{h}_prior": _build_prior(prior) for h, prior in described.priors.items()},
    ).to(DTYPES[described.dtype])
    parameters = dict(module.named_parameters(recurse=False))
    for key in described.fixed:
        if key not in parameters:
            raise InputError(f"{name} has no parameter {key!r}")
        parameters[key].requires_grad_(False)
    return module


def build_gpytorch_process(described: Any, section: Section) -> GPyTorchProcess:
    """Build a process, whose kernel and mean can be evaluated on the inputs, and read its raw parameters."""
    n_dims = section.sizes["coordinates"]
    with refused("kernels or means"):
        likelihood = gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=_build_constraint(described.likelihood.constraint)
        )
        mean, kernel = (
            _own_of_process(part, module, section)
            if isinstance(module, OwnModule)
            else build_module(module)
            for part, module in (("mean", described.mean), ("kernel", described.kernel))
        )
    modules = Modules(mean, kernel, likelihood.double())
    read_parameters(modules, section)
    likelihood.noise_covar.raw_noise.requires_grad_(not described.likelihood.fixed)
    with refused("kernels or means"):
        build_process(kernel, mean, None, n_dims)
    noise = likelihood.noise
    if noise.numel() != 1 or not 0.0 < float(noise.detach()) < math.inf:
        raise ModelFileError("it has invalid observation noise")
    return GPyTorchProcess(modules.double(), n_dims)


def _own_of_process(part: str, described: OwnModule, section: Section) -> Any:
    """Return the module that the user gave, as it is part of a process."""
    parts = {"mean": gpytorch.means.ZeroMean(), "kernel": gpytorch.kernels.RBFKernel()}
    parts[part] = section.context.take(part, described.class_names)
    process: Any = build_process(**parts, noise_variance=None, n_dims=section.sizes["coordinates"])
    module = getattr(process.modules, part)
    if _class_names(module) != described.class_names:
        raise ModelFileError(
            f"it was saved with the {part} {described.class_names}, and {_class_names(module)} was given"
        )
    return module


def build_given(part: str, described: Any, section: Section) -> Any:
    """Build the kernel or mean that the user passed to the constructor, and read its raw parameters."""
    with refused("kernels or means"):
        module = build_module(described)
    read_parameters(module, section.inner({}, part, f"{part}."))
    return module
