"""GPyTorch modules as plain data, as a model file describes them: class names, options, constraints and priors.

Descriptions are read, checked and written without torch; :mod:`dsmgp.persistence.gpytorch.modules` turns modules into them and back.
Only the classes in the tables below can be described, so loading a file executes no code of its author. A user's own class is
code: it is left out of the file and passed to ``load`` again.

A description is a namespace with the fields of its record:

- numbers, which are a tensor: ``dtype`` and ``values``;
- a constraint: ``name`` of its class, ``transform``, and the numbers ``lower`` and ``upper``;
- a prior, a dictionary: ``class``, and the numbers that its constructor takes;
- a module, without its raw parameters: ``name`` of its class, ``options`` of its constructor, ``constraints`` and ``priors`` by
  hyperparameter, ``parts`` (the kernels that it is composed of), ``dtype``, and ``fixed``, the raw parameters that are not learned;
- the likelihood: ``constraint`` of its noise, and whether that is ``fixed``;
- a process: ``mean``, ``kernel`` and ``likelihood``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import numpy as np

from dsmgp._util.errors import InputError
from dsmgp.persistence import checks
from dsmgp.persistence.record import Entry, Items, Named, Part, Record, Section, Union

__all__ = [
    "CONSTRAINTS", "KERNELS", "MODULE", "MODULES", "MODULE_OR_OWN", "PRIORS", "PROCESS", "OwnModule", "make_constraint", "make_module",
]  # fmt: skip

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
#: By class, names of options and of hyperparameters.
MODULES = {name: tuple(map(str.split, names)) for name, names in (KERNELS | MEANS).items()}
HYPERPARAMETERS = sorted({name for _, names in MODULES.values() for name in names})
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
CONSTRAINTS = ("Positive", "GreaterThan", "LessThan", "Interval")
TRANSFORMS = ("softplus", "exp", "sigmoid", "none")
DTYPE = Entry(checks.one_of("float32", "float64"))


def _are_numbers(value: Any, n_axes: int = 4) -> bool:
    if isinstance(value, list):
        short = n_axes > 0 and len(value) <= MAX_SIZE
        return short and all(_are_numbers(each, n_axes - 1) for each in value)
    return checks.NUMBER.holds(value) and abs(value) <= float("inf")


NUMBERS = Record(
    "bounds or priors",
    lambda dtype, values: SimpleNamespace(dtype=dtype, values=np.array(values, dtype=np.float64)),
    {"dtype": DTYPE, "values": Entry(checks.Check("numbers", _are_numbers))},
)


def make_constraint(lower: Any, upper: Any, **fields: Any) -> SimpleNamespace:
    """Return the description of a constraint, whose bounds are checked."""
    if lower.values.shape != upper.values.shape or not (lower.values < upper.values).all():
        raise InputError("the lower bound is not below the upper one")
    return SimpleNamespace(lower=lower, upper=upper, **fields)


CONSTRAINT = Record(
    "constraints",
    make_constraint,
    {
        "name": Entry(checks.one_of(*CONSTRAINTS), "class"),
        "transform": Entry(checks.one_of(*TRANSFORMS)),
        "lower": Part(NUMBERS),
        "upper": Part(NUMBERS),
    },
)
PRIOR = Union(
    "class",
    {
        name: Record(
            "priors", partial(dict, **{"class": name}), {key: Part(NUMBERS) for key in keys}
        )
        for name, keys in PRIORS.items()
    },
    itemgetter("class"),
)


def make_module(**fields: Any) -> SimpleNamespace:
    """Return the description of a kernel or mean, whose fields are checked to go together."""
    module = SimpleNamespace(**fields)
    options, hyperparameters = map(set, MODULES[module.name])
    of_hyperparameters = module.constraints.keys() | module.priors.keys()
    unknown = (module.options.keys() - options) | (of_hyperparameters - hyperparameters)
    if unknown:
        raise InputError(f"{module.name} has no {min(unknown)}")
    missing = (options & REQUIRED) - module.options.keys()
    if missing:
        raise InputError(f"{module.name} lacks {min(missing)}")
    is_composed = module.name in ("AdditiveKernel", "ProductKernel") and len(module.parts) > 0
    if not (is_composed or len(module.parts) == (module.name == "ScaleKernel")) or not all(
        part.name in KERNELS for part in module.parts
    ):
        raise InputError(f"{module.name} does not have the right parts")
    return module


MODULE_FIELDS: dict[str, Any] = {
    "name": Entry(checks.one_of(*MODULES), "class"),
    "options": Part(Named({name: Entry(check) for name, check in OPTIONS.items()})),
    "constraints": Part(Named({name: Part(CONSTRAINT) for name in HYPERPARAMETERS})),
    "priors": Part(Named({name: Part(PRIOR) for name in HYPERPARAMETERS})),
    "parts": None,  # modules themselves, see below
    "dtype": DTYPE,
    "fixed": Entry(checks.list_of(checks.TEXT)),
}
MODULE = Record("kernels or means", make_module, MODULE_FIELDS)
MODULE_FIELDS["parts"] = Items(MODULE)


@dataclass(frozen=True)
class OwnModule:
    """A kernel or mean of a user's own class, which the file does not hold: the names of its classes."""

    class_names: str


OWN_MODULE = Record("kernels or means", OwnModule, {"class_names": Entry(checks.TEXT, "own")})


class _ModuleOrOwn:
    """A module, or the name of one that the file was saved without."""

    def write(self, value: Any, section: Section, name: str = "") -> None:
        (OWN_MODULE if isinstance(value, OwnModule) else MODULE).write(value, section)

    def read(self, section: Section, name: str = "") -> Any:
        return (OWN_MODULE if "own" in section.header else MODULE).read(section)


MODULE_OR_OWN = _ModuleOrOwn()
LIKELIHOOD = Record(
    "observation noise",
    SimpleNamespace,
    {"constraint": Part(CONSTRAINT), "fixed": Entry(checks.BOOLEAN)},
)


PROCESS = Record(
    "kernels or means",
    SimpleNamespace,
    {
        "mean": Part(MODULE_OR_OWN),
        "kernel": Part(MODULE_OR_OWN),
        "likelihood": Part(LIKELIHOOD),
    },
)
