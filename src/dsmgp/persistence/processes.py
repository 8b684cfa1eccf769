"""How families of processes are stored: kernels, means and observation noise, and a user's own modules, which are not.

Kernel parameters that leaves do not share with their family are arrays with a row for each leaf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsmgp._util.archive import ModelFileError
from dsmgp._util.arrays import Array, Index
from dsmgp.gp.process import Family, Process, build_process, parameters_by_leaf
from dsmgp.gp.stationary import StationaryKernel
from dsmgp.linalg.tensors import as_numpy
from dsmgp.mixture.model import Model
from dsmgp.persistence import checks
from dsmgp.persistence.gpytorch_modules import (
    LIKELIHOOD,
    MODULE,
    CannotStore,
    read_parameters,
    write_parameters,
)
from dsmgp.persistence.record import Entry, Items, Part, Record, Section, refused

__all__ = [
    "FAMILIES",
    "ModuleField",
    "OwnModules",
    "read_families",
    "read_leaf_parameters",
    "write_leaf_parameters",
]


@dataclass
class OwnModules:
    """Kernel and mean of a user's own class: whether a file may leave them out, and those passed to ``load``."""

    allowed: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def take(self, part: str, class_name: str) -> Any:
        """Return the module that takes the place of one that the file was saved without."""
        if self.given.get(part) is None:
            raise ModelFileError(
                f"it was saved without its {part}, which is of your own ({class_name}); give it: "
                f"load(path, {part}=...)"
            )
        self.used.add(part)
        return self.given[part]

    def refuse_unused(self) -> None:
        """Refuse modules that were passed to ``load`` for a file that holds its own."""
        for part, module in self.given.items():
            if module is not None and part not in self.used:
                raise ModelFileError(f"it holds its {part} itself; leave {part} out")


@dataclass(frozen=True)
class ModuleField:
    """A kernel, mean or likelihood; one of a process wraps what the user gave."""

    part: str
    of_process: bool = True

    def write(self, module: torch.nn.Module, section: Section) -> None:
        modules: OwnModules = section.context
        header: dict[str, Any] = {}
        inner = section.inner(header, self.part, f"{self.part}.")
        write_parameters(module, inner)
        try:
            self._record.write(module, inner)
        except CannotStore as error:
            if not modules.allowed:
                raise ModelFileError(
                    f"the {self.part} cannot be written: {error}. Save with own_modules=True, which leaves it out, and give "
                    f"it again when loading: load(path, {self.part}=...); or use pickle, which runs code when it is loaded"
                ) from None
            header = {"own": _class_names(module)}
        section.put(self.part if self.of_process else "module", header)

    def read(self, section: Section) -> Any:
        key = self.part if self.of_process else "module"
        class_names = section.entry(f"{key}.own", checks.TEXT, optional=True)
        if class_names is not None:
            module = section.context.take(self.part, class_names)
            if not self.of_process:
                return module
            mean, kernel = (module, "rbf") if self.part == "mean" else ("zero", module)
            process = build_process(kernel, mean, None, section.sizes["inputs"])
            module = getattr(process, self.part)
            if _class_names(module) != class_names:
                raise ModelFileError(
                    f"it was saved with the {self.part} {class_names}, and {_class_names(module)} was given"
                )
        else:
            module = Part(key, self._record).read(section)
        read_parameters(module, section.inner({}, key, f"{self.part}."))
        return module

    @property
    def _record(self) -> Record:
        return LIKELIHOOD if self.part == "likelihood" else MODULE


def _class_names(module: Any) -> str:
    """Name the class of a module, and those of its parts."""
    base = getattr(module, "base_kernel", None)
    parts = getattr(module, "kernels", []) if base is None else [base]
    inner = ", ".join(map(_class_names, parts))
    return type(module).__name__ + (f"({inner})" if inner else "")


PROCESS = Record(
    "observation noise",
    lambda **parts: Process(**parts).double(),
    {part: ModuleField(part) for part in ("mean", "kernel", "likelihood")},
    check=lambda process: (
        process.likelihood.noise.numel() == 1 and math.isfinite(process.noise) and process.noise > 0
    ),
)
FAMILY = Record(
    "kernels",
    Family,
    {
        "kernel": Entry("kernel", checks.TEXT),
        "processes": Items("processes", PROCESS, size="outputs"),
    },
    values={"kernel": lambda family: family.kernel if len(family.kernel) < 100 else "given"},
)
FAMILIES = Items("families", FAMILY, prefix="family.")


def read_families(section: Section) -> list[Family]:
    """Read all families, whose kernels and means can be evaluated on the inputs."""
    families = FAMILIES.read(section)
    if not families:
        raise ModelFileError("its 'families' are empty")
    n_inputs = section.sizes["inputs"]
    for family in families:
        with refused("kernels or means"):
            for process in family.processes:
                build_process(process.kernel, process.mean, None, n_inputs)
        _check_parameters(family.leaf_kernels(n_inputs), family.kernel_parameters(n_inputs))
    return families


def _check_parameters(kernels: Sequence[Any], by_output: Sequence[Tensor]) -> None:
    """Refuse kernel parameters that are not finite, and length scales and variances that are not positive."""
    for kernel, parameters in zip(kernels, by_output, strict=True):
        if not bool(torch.isfinite(parameters).all()):
            raise ModelFileError("its hyperparameters are not finite")
        if isinstance(kernel, StationaryKernel):  # parameters of others are unconstrained
            n_positive = len(kernel.columns) + 1 + (kernel.kind == "rq")
            positive = torch.cat([parameters[..., :n_positive], parameters[..., -1:]], -1)
            if not bool((positive > 0).all()):
                raise ModelFileError("its hyperparameters are not positive")


def write_leaf_parameters(model: Model, section: Section) -> None:
    """Write kernel parameters of leaves, where they are not those of their families, and raw ones of fine-tuned leaves."""
    shared = parameters_by_leaf(model.families, model.family, model.inputs.centre.size)
    pairs = zip(model.leaf_posterior.kernel_parameters, shared, strict=True)
    for output, (parameters, of_family) in enumerate(pairs):
        if parameters.shape != of_family.shape or not torch.equal(
            parameters.cpu(), of_family.cpu()
        ):
            section.arrays[f"leaf.natural.{output}"] = as_numpy(parameters)
    for output, theta in enumerate(model.thetas or []):
        section.arrays[f"leaf.theta.{output}"] = theta


def read_leaf_parameters(
    section: Section, families: Sequence[Family], family: Index
) -> tuple[list[Tensor], list[Array] | None]:
    """Return kernel parameters by output, and each leaf's raw parameters if leaves were fine-tuned."""
    n_inputs = section.sizes["inputs"]
    lengths = {tuple(map(len, each.kernel_parameters(n_inputs))) for each in families}
    if len(lengths) > 1:
        raise ModelFileError("its families have different numbers of hyperparameters")
    by_output = parameters_by_leaf(families, family, n_inputs)
    for output, shared in enumerate(by_output):
        name = f"leaf.natural.{output}"
        if name in section.arrays:
            by_leaf = section.array(name, np.float64, "leaves", shared.shape[-1])
            by_output[output] = torch.from_numpy(by_leaf)
    for each in families:
        _check_parameters(each.leaf_kernels(n_inputs), by_output)
    if "leaf.theta.0" not in section.arrays:
        return by_output, None
    thetas = [
        section.array(f"leaf.theta.{output}", np.float64, "leaves", len(process.theta))
        for output, process in enumerate(families[0].processes)
    ]
    return by_output, thetas
