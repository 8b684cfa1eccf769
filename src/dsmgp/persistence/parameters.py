"""How the parameters of the constructor are stored: JSON values, kernels and means, trees, and change points."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.persistence import checks
from dsmgp.persistence.gpytorch.module_description import MODULE_OR_OWN, OwnModule
from dsmgp.persistence.processes import gpytorch_modules
from dsmgp.persistence.record import Entry, Items, Part, Record, Section
from dsmgp.persistence.tree import CHANGE_POINTS, read_tree, write_tree
from dsmgp.tree.changepoint_leaf import ChangePoints
from dsmgp.tree.nodes import Leaf, Product, Sum

__all__ = ["read_parameters", "write_parameters"]

# Parameters that say where work is done are not stored: a file could otherwise make a later fit overwrite and remove any
# file, or join a cluster.
NOT_STORED = ("checkpoint", "executor")


LENGTHS = checks.array_of(checks.POSITIVE_NUMBER)
FACTOR_FIELDS = {
    "name": Entry(checks.KERNEL_NAME, "kernel"),
    "lengthscale": Entry(LENGTHS),
    "outputscale": Entry(checks.POSITIVE_NUMBER),
    "alpha": Entry(checks.POSITIVE_NUMBER, optional=True),
    "period": Entry(LENGTHS, optional=True),
}
KERNEL_TERM = Record(
    "kernels",
    KernelTerm,
    {
        **FACTOR_FIELDS,
        "times": Items(Record("kernels", KernelTerm, FACTOR_FIELDS), optional=True),
        "columns": Entry(checks.list_of(checks.count()), optional=True),
    },
)
KERNEL = Record("kernels", Kernel, {"terms": Items(KERNEL_TERM)})
GIVEN, CHANGES = Part(MODULE_OR_OWN, "module"), Part(CHANGE_POINTS, "changes")


def write_parameters(parameters: Mapping[str, Any], section: Section) -> None:
    """Write the parameters of an estimator."""
    home = section.inner(section.created("parameters"), "parameters")
    for name, value in parameters.items():
        if name not in NOT_STORED:
            inner = home.inner({}, name)
            plain = _write(name, value, inner)
            home.put(name, inner.header or plain)


def _write(name: str, value: Any, section: Section) -> Any:
    """Write an object to a section of its own; return any other value as JSON has it."""
    if isinstance(value, Kernel):
        return KERNEL.write(value, section)
    if isinstance(value, (Sum, Product, Leaf)):
        return write_tree(name, value, None, section)
    if isinstance(value, ChangePoints):
        return CHANGES.write(value, section)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (str, int, float)):
        return value
    if name == "kernel" and isinstance(value, (list, tuple)):
        return list(value)  # names
    if name in ("kernel", "mean"):
        return GIVEN.write(gpytorch_modules().describe_given(name, value, section), section)
    is_list = name != "random_state" and np.iterable(value)
    return np.asarray(value).tolist() if is_list else None  # a random number generator


def read_parameters(known: Collection[str], section: Section) -> dict[str, Any]:
    """Read those parameters of an estimator that this version knows."""
    home = section.inner(section.entry("parameters", checks.OBJECT), "parameters")
    names = [name for name in home.header if name in known and name not in NOT_STORED]
    return {name: _read(name, home.header[name], home) for name in names}


def _read(name: str, value: Any, home: Section) -> Any:
    is_prior = name in ("kernel", "mean")
    if not isinstance(value, dict):
        check = checks.ANYTHING
        if is_prior:
            check = checks.TEXT if name == "mean" else checks.KERNEL_NAMES
        return home.entry(name, check)
    section = home.inner(value, name)
    if is_prior:
        if "terms" in value:
            return KERNEL.read(section)
        described = GIVEN.read(section)
        if isinstance(described, OwnModule):
            return section.context.take(name, described.class_names)
        return gpytorch_modules().build_given(name, described, section)
    return read_tree(name, None, section) if "tree" in value else CHANGES.read(section)
