"""Kernels, means and noises of a model in an archive, and back; those of the user's own are left out, and given again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.archive import Archive, ModelFileError
from dsmgp.blueprint import (
    CannotDescribe,
    build_module,
    build_noise,
    describe,
    describe_noise,
    parameters_of,
    set_parameters,
)
from dsmgp.conditioned import Conditioned
from dsmgp.execution import as_numpy
from dsmgp.model import Model
from dsmgp.process import Family, Process, build_process
from dsmgp.stationary import Stationary

__all__ = [
    "Own",
    "prefixed",
    "read_families",
    "read_module",
    "read_naturals",
    "read_thetas",
    "refuse_unused",
    "write_families",
    "write_module",
    "write_naturals",
]

Arrays = dict[str, NDArray[Any]]
PARTS = ("mean", "kernel", "likelihood")


@dataclass
class Own:
    """Modules of the user's own: whether they may be left out, and those given to fill the gaps."""

    allowed: bool = False
    given: dict[str, Any] = field(default_factory=dict)


def write_module(
    module: torch.nn.Module, part: str, prefix: str, own: Own, arrays: Arrays
) -> dict[str, Any]:
    arrays |= prefixed(prefix, parameters_of(module))
    try:
        return describe_noise(module) if part == "likelihood" else describe(module)
    except CannotDescribe as error:
        if own.allowed:
            return {"own": _named(module)}
        raise ModelFileError(
            f"the {part} cannot be written: {error}. Save with own_modules=True, which leaves it out, and give it "
            f"again when loading: load(path, {part}=...); or use pickle, which runs code when it is loaded"
        ) from None


def read_module(
    archive: Archive, described: Any, part: str, prefix: str, own: Own, n_dims: int | None
) -> Any:
    """A module with its parameters; ``n_dims`` where it is one of a process, which wraps what a user gives."""
    if isinstance(described, dict) and "own" in described:
        given = own.given.get(part)
        if given is None:
            raise ModelFileError(
                f"it was saved without its {part}, which is of your own ({described['own']}); give it: "
                f"load(path, {part}=...)"
            )
        own.given[f"{part} used"] = True
        if n_dims is None:
            return given
        mean, kernel = (given, "rbf") if part == "mean" else ("zero", given)
        module = getattr(build_process(kernel, mean, None, n_dims), part)
        if _named(module) != described["own"]:
            raise ModelFileError(
                f"it was saved with the {part} {described['own']}, and {_named(module)} was given"
            )
    else:
        module = build_noise(described) if part == "likelihood" else build_module(described)
    values = {
        name: archive.array(f"{prefix}.{name}", np.float64, *p.shape)
        for name, p in module.named_parameters()
    }
    set_parameters(module, values)
    return module


def refuse_unused(own: Own) -> None:
    for part in ("kernel", "mean"):
        if own.given[part] is not None and f"{part} used" not in own.given:
            raise ModelFileError(f"it holds its {part} itself; leave {part} out")


def _named(module: Any) -> str:
    """The class of a module, and of those in it."""
    parts = (
        [module.base_kernel] if hasattr(module, "base_kernel") else getattr(module, "kernels", [])
    )
    inner = ", ".join(_named(part) for part in parts)
    return type(module).__name__ + (f"({inner})" if inner else "")


def write_families(families: Sequence[Family], own: Own, arrays: Arrays) -> list[Any]:
    return [
        {
            "kernel": family.kernel if len(family.kernel) < 100 else "given",
            "processes": [
                {
                    part: write_module(
                        getattr(process, part), part, f"family.{k}.{output}.{part}", own, arrays
                    )
                    for part in PARTS
                }
                for output, process in enumerate(family.processes)
            ],
        }
        for k, family in enumerate(families)
    ]


def read_families(archive: Archive, own: Own, n_dims: int, n_outputs: int) -> list[Family]:
    families = []
    for k, written in enumerate(
        archive.entry("families", lambda v: isinstance(v, list) and bool(v))
    ):
        if len(written["processes"]) != n_outputs:
            raise ModelFileError("it has a process too many or too few")
        processes = []
        for output, parts in enumerate(written["processes"]):
            read = [
                read_module(archive, parts[p], p, f"family.{k}.{output}.{p}", own, n_dims)
                for p in PARTS
            ]
            processes.append(Process(*read))
            if not (math.isfinite(processes[-1].noise) and processes[-1].noise > 0):
                raise ModelFileError("its noise is not a positive number")
        families.append(Family(str(written["kernel"]), processes))
    return families


def _naturals_of(families: Sequence[Family], family: NDArray[Any], n_dims: int) -> list[Tensor]:
    """Hyperparameters as leaves read them: one vector for all, or a row for each."""
    tables = zip(*(each.naturals(n_dims) for each in families), strict=True)
    return [own[0] if len(own) == 1 else torch.stack(own)[family] for own in tables]


def write_naturals(model: Model, arrays: Arrays) -> None:
    """Only where leaves have hyperparameters of their own, which their families do not know of."""
    n_dims = model.inputs.centre.size
    common = _naturals_of(model.families, model.family, n_dims)
    assert isinstance(model.experts, Conditioned), "not settled"
    for output, (own, shared) in enumerate(zip(model.experts.naturals, common, strict=True)):
        if own.shape != shared.shape or not torch.equal(own.cpu(), shared.cpu()):
            arrays[f"leaf.natural.{output}"] = as_numpy(own)
    for output, theta in enumerate(model.thetas or []):
        arrays[f"leaf.theta.{output}"] = theta


def read_naturals(
    archive: Archive, families: Sequence[Family], family: NDArray[Any], n_dims: int
) -> list[Tensor]:
    common = _naturals_of(families, family, n_dims)
    for output, shared in enumerate(common):
        name = f"leaf.natural.{output}"
        if name in archive:
            own = archive.array(name, np.float64, len(family), shared.shape[-1])
            common[output] = torch.from_numpy(own)
    if not all(bool(torch.isfinite(natural).all()) for natural in common):
        raise ModelFileError("its hyperparameters are not finite")
    for each in families:
        for law, natural in zip(each.laws(n_dims), common, strict=True):
            if isinstance(law, Stationary):  # of others the vector is free of constraints
                n_positive = len(law.columns) + 1 + (law.kind == "rq")
                positive = torch.cat([natural[..., :n_positive], natural[..., -1:]], -1)
                if not bool((positive > 0).all()):
                    raise ModelFileError("its hyperparameters are not positive")
    return common


def read_thetas(
    archive: Archive, families: Sequence[Family], family: NDArray[Any]
) -> list[NDArray[np.float64]] | None:
    """Each leaf's theta, from where it is tuned further, if leaves were fine-tuned."""
    if "leaf.theta.0" not in archive:
        return None
    found = [
        archive.array(f"leaf.theta.{output}", np.float64, len(family), len(process.theta))
        for output, process in enumerate(families[0].processes)
    ]
    if not all(np.isfinite(theta).all() for theta in found):
        raise ModelFileError("its leaves' hyperparameters are not finite")
    return found


def prefixed(prefix: str, arrays: Arrays) -> Arrays:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}
