"""How families of processes are stored: kernels, means, observation noise and priors, and hyperparameters of single leaves.

A named kernel with a named mean is a short description and theta. Modules of GPyTorch that the user passed in are described by
:mod:`dsmgp.persistence.gpytorch.module_description`; a user's own classes are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from dsmgp._util.archive import ModelFileError
from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.machine import require_torch
from dsmgp.gp.leaf_kernels import MEANS, StationaryKernel, SumKernel
from dsmgp.gp.named_process import LogNormal, NamedProcess, ParameterBlock
from dsmgp.gp.process import Family, Process, build_process, parameters_by_leaf
from dsmgp.gp.terms import Term
from dsmgp.mixture.model import Model
from dsmgp.persistence import checks
from dsmgp.persistence.gpytorch.format_1 import named_process
from dsmgp.persistence.gpytorch.module_description import PROCESS as MODULES
from dsmgp.persistence.record import ArrayField, Entry, Items, Length, Part, Record, Section

__all__ = [
    "FAMILIES", "OwnModules", "gpytorch_modules", "read_families", "read_leaf_parameters", "write_leaf_parameters",
]  # fmt: skip


@dataclass
class OwnModules:
    """Kernel and mean of a user's own class: whether a file may leave them out, and those passed to ``load``."""

    allowed: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def take(self, part: str, class_names: str) -> Any:
        """Return the module that takes the place of one that the file was saved without."""
        if self.given.get(part) is None:
            raise ModelFileError(
                f"it was saved without its {part}, which is of your own ({class_names}); give it: "
                f"load(path, {part}=...)"
            )
        self.used.add(part)
        return self.given[part]

    def refuse_unused(self) -> None:
        """Refuse modules that were passed to ``load`` for a file that holds its own."""
        for part, module in self.given.items():
            if module is not None and part not in self.used:
                raise ModelFileError(f"it holds its {part} itself; leave {part} out")


# Named kernels and means


# Of the logarithm of a hyperparameter: logarithms of all numbers are between -1000 and 1000.
LOCS = checks.array_of(checks.number(-1e3, 1e3))
PRIOR = Record(
    "priors",
    LogNormal,
    {"loc": Entry(LOCS), "scale": Entry(checks.number(1e-9, 1e9))},
    values={"loc": lambda prior: prior.loc.ravel()},
)
BLOCK = Record(
    "priors",
    ParameterBlock,
    {
        "name": Entry(checks.TEXT),
        "size": Entry(checks.count(1)),
        "transform": Entry(checks.TEXT),
        "lower": Entry(checks.number()),
        "prior": Part(PRIOR, "log_normal_prior", optional=True),
    },
    check=lambda block: (
        block.prior is None
        or (block.transform == "exp" and block.prior.loc.size in (1, block.size))
    ),
)
TERM = Record(
    "columns of kernels",
    Term,
    {
        "kind": Entry(checks.KERNEL_NAME, "kernel"),
        "columns": Entry(checks.list_of(checks.count())),
    },
    check=lambda term: 0 < len(set(term.columns)) == len(term.columns),
)


def _make_named_process(
    mean: str,
    terms: tuple[Term, ...],
    blocks: tuple[ParameterBlock, ...],
    theta: Array,
    ties: tuple[int, ...] | None,
    n_dims: int,
) -> NamedProcess:
    if not terms:
        raise InputError("there are none")
    kernel = "+".join(term.name(n_dims) for term in terms)
    if ties is not None and (
        len(ties) != n_dims or set(ties) != set(range(len(set(ties)))) or len(set(ties)) == n_dims
    ):
        raise InputError("invalid ties of length scales")
    named: Any = build_process(kernel, mean, None, n_dims, ties=ties)
    expected = [(block.name, block.size, block.transform) for block in named.blocks]
    if [(block.name, block.size, block.transform) for block in blocks] != expected:
        raise InputError(f"expected the parameters {expected}")
    if any(block.lower != 0 for block in blocks[:-1]) or blocks[-1].lower < 0:
        raise InputError("a parameter has another lower bound than zero")
    if theta.shape != named.theta.shape:
        raise InputError(f"theta has {len(theta)} entries, expected {len(named.theta)}")
    return NamedProcess(named.leaf_kernel, blocks, theta, ties)


NAMED = Record(
    "kernels or means",
    _make_named_process,
    {
        "mean": Entry(checks.one_of(*MEANS)),
        "terms": Items(TERM),
        "blocks": Items(BLOCK, "parameters"),
        "theta": ArrayField((None,)),
        "ties": Entry(checks.list_of(checks.count()), optional=True),
        "n_dims": Length("coordinates"),
    },
    values={
        "n_dims": lambda process: None,
        "mean": lambda process: process.leaf_kernel.mean_kind,
        "terms": lambda process: process.leaf_kernel.terms,
    },
)


# Modules of GPyTorch


def gpytorch_modules() -> ModuleType:
    """Import what makes GPyTorch modules from their descriptions, for a model that has some."""
    require_torch("a model with a gpytorch kernel or mean")
    from dsmgp.persistence.gpytorch import modules

    return modules


class _ProcessRecord:
    """A process: of a named kernel and mean, or modules of GPyTorch."""

    def write(self, process: Any, section: Section, name: str = "") -> None:
        is_named = isinstance(process, NamedProcess)
        section.put("kind", "named" if is_named else "gpytorch")
        (NAMED.write if is_named else gpytorch_modules().write_process)(process, section)

    def read(self, section: Section, name: str = "") -> Process:
        # Format 1 has no kinds: all processes are modules, those of named kernels and means too.
        kind = section.entry("kind", checks.one_of("named", "gpytorch"), optional=True)
        if kind == "named":
            return NAMED.read(section)
        described = MODULES.read(section)
        named = named_process(described, section) if kind is None else None
        return named or gpytorch_modules().build_gpytorch_process(described, section)


# Families


FAMILY = Record(
    "kernels",
    lambda kernel, processes: Family(kernel, tuple(processes)),
    {
        "kernel": Entry(checks.TEXT),
        "processes": Items(_ProcessRecord(), prefix="", size="outputs"),
    },
    values={"kernel": lambda family: family.kernel if len(family.kernel) < 100 else "given"},
)
FAMILIES = Items(FAMILY, "families", prefix="family.")


def read_families(section: Section) -> list[Family]:
    """Read all families, whose kernels and means can be evaluated on the inputs."""
    families: list[Family] = list(FAMILIES.read(section) or ())
    if not families:
        raise ModelFileError("its 'families' are empty")
    for family in families:
        _check_parameters(family.leaf_kernels, family.kernel_parameters)
    return families


def _check_parameters(kernels: Sequence[Any], by_output: Sequence[Array]) -> None:
    """Refuse kernel parameters that are not finite, and length scales and variances that are not positive."""
    for kernel, parameters in zip(kernels, by_output, strict=True):
        if not np.isfinite(parameters).all():
            raise ModelFileError("its hyperparameters are not finite")
        if isinstance(kernel, (StationaryKernel, SumKernel)):  # those of others are unconstrained
            n_positive = sum(term.n_parameters for term in kernel.terms)
            if not ((parameters[..., :n_positive] > 0).all() and (parameters[..., -1] > 0).all()):
                raise ModelFileError("its hyperparameters are not positive")


# Hyperparameters of leaves


def write_leaf_parameters(model: Model, section: Section) -> None:
    """Write kernel parameters of leaves, where they are not those of their families, and theta of fine-tuned leaves."""
    shared = parameters_by_leaf(model.families, model.family)
    pairs = zip(model.leaf_posterior.kernel_parameters, shared, strict=True)
    for output, (parameters, of_family) in enumerate(pairs):
        if not np.array_equal(parameters, of_family):
            section.put_array(f"leaf.natural.{output}", parameters)
    for output, theta in enumerate(model.thetas or []):
        section.put_array(f"leaf.theta.{output}", theta)


def read_leaf_parameters(
    section: Section, families: Sequence[Family], family: Index
) -> tuple[list[Array], list[Array] | None]:
    """Return kernel parameters by output, and each leaf's theta if leaves were fine-tuned."""
    lengths = {tuple(map(len, each.kernel_parameters)) for each in families}
    if len(lengths) > 1:
        raise ModelFileError("its families have different numbers of hyperparameters")
    by_output = parameters_by_leaf(families, family)
    for output, shared in enumerate(by_output):
        name = f"leaf.natural.{output}"
        if section.has_array(name):
            by_output[output] = section.array(name, np.float64, "leaves", shared.shape[-1])
            if section.header.get("format") == 1:
                by_output[output] = _from_format_1(by_output[output], output, families, family)
    for number, each in enumerate(families):
        of_family = [table if table.ndim == 1 else table[family == number] for table in by_output]
        _check_parameters(each.leaf_kernels, of_family)
    if not section.has_array("leaf.theta.0"):
        return by_output, None
    thetas = [
        section.array(f"leaf.theta.{output}", np.float64, "leaves", len(process.theta))
        for output, process in enumerate(families[0].processes)
    ]
    return by_output, thetas


def _from_format_1(by_leaf: Array, output: int, families: Sequence[Family], family: Index) -> Array:
    """Return kernel parameters of leaves, which for sums of kernels and periodic ones format 1 has as theta."""
    processes = [each.processes[output] for each in families]
    rows = zip(by_leaf, family.tolist(), strict=True)
    return np.stack(
        [
            processes[k].kernel_parameters(row)
            if isinstance(processes[k].leaf_kernel, SumKernel)
            else row
            for row, k in rows
        ]
    )
