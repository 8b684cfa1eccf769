"""GPyTorch modules as plain data, as a model file describes them: class names, options, constraints and priors.

Descriptions are read, checked and written without torch; :mod:`dsmgp.persistence.gpytorch.modules` turns modules into them and back.
Only the classes in the tables below can be described, so loading a file executes no code of its author. A user's own class is
code: it is left out of the file and passed to ``load`` again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.persistence import checks
from dsmgp.persistence.record import Entry, Items, Named, Part, Record, Section, Union

__all__ = [
    "CONSTRAINTS", "KERNELS", "MODULE", "MODULES", "MODULE_OR_OWN", "PRIORS", "PROCESS", "Constraint", "Likelihood", "Module", "Numbers",
    "OwnModule", "ProcessModules",
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


@dataclass(frozen=True, eq=False)
class Numbers:
    """A tensor: "float32" or "float64", and its values."""

    dtype: str
    values: Array


NUMBERS = Record(
    "bounds or priors",
    lambda dtype, values: Numbers(dtype, np.array(values, dtype=np.float64)),
    {"dtype": DTYPE, "values": Entry(checks.Check("numbers", _are_numbers))},
)


@dataclass(frozen=True, eq=False)
class Constraint:
    """The range of a hyperparameter, and the function that maps raw numbers into it."""

    name: str
    transform: str
    lower: Numbers
    upper: Numbers

    def __post_init__(self) -> None:
        lower, upper = self.lower.values, self.upper.values
        if lower.shape != upper.shape or not (lower < upper).all():
            raise ValueError("the lower bound is not below the upper one")


CONSTRAINT = Record(
    "constraints",
    Constraint,
    {
        "name": Entry(checks.one_of(*CONSTRAINTS), "class"),
        "transform": Entry(checks.one_of(*TRANSFORMS)),
        "lower": Part(NUMBERS),
        "upper": Part(NUMBERS),
    },
)
# The prior of a hyperparameter is a dictionary: its class, and the arguments of the constructor.
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


@dataclass(frozen=True, eq=False)
class Module:
    """A kernel or mean without its raw parameters.

    Attributes
    ----------
    name : str
        Its class.
    options : dict
        Arguments of the constructor.
    constraints, priors : dict
        By hyperparameter.
    parts : tuple of Module
        The kernels that it is composed of.
    dtype : str
    fixed : tuple of str
        Raw parameters that are not learned.
    """

    name: str
    options: dict[str, Any]
    constraints: dict[str, Constraint]
    priors: dict[str, dict[str, Any]]
    parts: tuple[Module, ...]
    dtype: str
    fixed: tuple[str, ...]

    def __post_init__(self) -> None:
        options, hyperparameters = map(set, MODULES[self.name])
        of_hyperparameters = self.constraints.keys() | self.priors.keys()
        unknown = (self.options.keys() - options) | (of_hyperparameters - hyperparameters)
        if unknown:
            raise ValueError(f"{self.name} has no {min(unknown)}")
        missing = (options & REQUIRED) - self.options.keys()
        if missing:
            raise ValueError(f"{self.name} lacks {min(missing)}")
        is_composed = self.name in ("AdditiveKernel", "ProductKernel") and len(self.parts) > 0
        if not (is_composed or len(self.parts) == (self.name == "ScaleKernel")) or not all(
            part.name in KERNELS for part in self.parts
        ):
            raise ValueError(f"{self.name} does not have the right parts")


MODULE_FIELDS: dict[str, Any] = {
    "name": Entry(checks.one_of(*MODULES), "class"),
    "options": Part(Named({name: Entry(check) for name, check in OPTIONS.items()})),
    "constraints": Part(Named({name: Part(CONSTRAINT) for name in HYPERPARAMETERS})),
    "priors": Part(Named({name: Part(PRIOR) for name in HYPERPARAMETERS})),
    "parts": None,  # modules themselves, see below
    "dtype": DTYPE,
    "fixed": Entry(checks.list_of(checks.TEXT)),
}
MODULE = Record("kernels or means", Module, MODULE_FIELDS)
MODULE_FIELDS["parts"] = Items(MODULE)


@dataclass(frozen=True)
class OwnModule:
    """A kernel or mean of a user's own class, which the file does not hold: the names of its classes."""

    class_names: str


OWN_MODULE = Record("kernels or means", OwnModule, {"class_names": Entry(checks.TEXT, "own")})


class _ModuleOrOwn:
    """A module, or the name of one that the file was saved without."""

    def write(self, value: Module | OwnModule, section: Section, name: str = "") -> None:
        (OWN_MODULE if isinstance(value, OwnModule) else MODULE).write(value, section)

    def read(self, section: Section, name: str = "") -> Any:
        return (OWN_MODULE if "own" in section.header else MODULE).read(section)


MODULE_OR_OWN = _ModuleOrOwn()


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Gaussian observation noise."""

    constraint: Constraint
    fixed: bool


LIKELIHOOD = Record(
    "observation noise",
    Likelihood,
    {"constraint": Part(CONSTRAINT), "fixed": Entry(checks.BOOLEAN)},
)


@dataclass(frozen=True, eq=False)
class ProcessModules:
    """Mean, kernel and likelihood of a process."""

    mean: Module | OwnModule
    kernel: Module | OwnModule
    likelihood: Likelihood


PROCESS = Record(
    "kernels or means",
    ProcessModules,
    {
        "mean": Part(MODULE_OR_OWN),
        "kernel": Part(MODULE_OR_OWN),
        "likelihood": Part(LIKELIHOOD),
    },
)
