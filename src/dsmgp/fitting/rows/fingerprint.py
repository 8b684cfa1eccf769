"""A fingerprint of rows and configuration, the same in every process, by which a checkpoint is recognised.

Pickles will not do: their bytes differ between processes, and GPyTorch modules with priors hold functions that cannot be pickled.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.fitting.config import FitConfig
from dsmgp.tree.nodes import Leaf, Product, Sum, nodes

__all__ = ["fingerprint"]

# Settings on which the result of a fit does not depend, and the seed, which a checkpoint compares by itself.
IRRELEVANT = ("executor", "memory_limit", "checkpoint", "random_state")


def fingerprint(arrays: Sequence[NDArray[Any]], config: FitConfig) -> str:
    """Return a hash of the training arrays and the configuration of a fit.

    Examples
    --------
    >>> rows = np.zeros((3, 2))
    >>> fingerprint([rows], FitConfig()) == fingerprint(
    ...     [rows.copy()], FitConfig(memory_limit=10**9)
    ... )
    True
    >>> fingerprint([rows], FitConfig()) == fingerprint([rows], FitConfig(kernel="rbf"))
    False
    """
    settings = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in IRRELEVANT}
    digest = hashlib.sha256()
    for part in _describe([list(arrays), settings]):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _describe(value: Any) -> Iterator[bytes]:
    """Describe a value by class names and contents."""
    yield type(value).__qualname__.encode()
    torch = sys.modules.get("torch")  # without it there are no modules
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _describe(item)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name).encode()
            yield from _describe(item)
    elif torch is not None and isinstance(value, torch.nn.Module):
        yield from _describe_module(value)
    elif is_dataclass(value) and not isinstance(value, type):  # a kernel with values
        yield from _describe({f.name: getattr(value, f.name) for f in fields(value)})
    elif isinstance(value, (Sum, Product, Leaf)):
        for node in nodes(value):
            yield from _describe(_contents(node))
    elif hasattr(value, "__qualname__"):  # a function or class
        yield _full_name(value).encode()
    else:
        yield repr(value).encode()


def _describe_module(module: Any) -> Iterator[bytes]:
    """Describe a kernel or mean: classes, parameters, constraints and priors, which are modules inside it."""
    torch = sys.modules["torch"]
    # Attributes that every module has: parameters, buffers and parts are described by themselves, hooks are not part of a model.
    common = frozenset(vars(torch.nn.Module()))
    for name, part in module.named_modules():
        yield f"{name} {_full_name(type(part))}".encode()
        parameters = dict(part.named_parameters(recurse=False))
        yield from _describe({key: p.requires_grad for key, p in parameters.items()})
        yield from _describe({key: p.data for key, p in parameters.items()})
        yield from _describe(dict(part.named_buffers(recurse=False)))
        # Options such as the smoothness of a Matern kernel, and the functions of constraints.
        options = {k: v for k, v in vars(part).items() if k not in common}
        if isinstance(part, torch.distributions.Distribution):
            # What torch keeps for itself in them depends on its version; their parameters follow.
            options = {k: v for k, v in options.items() if not k.startswith("_")}
        yield from _describe({k: v for k, v in sorted(options.items()) if _is_plain(v)})
        if isinstance(part, torch.distributions.Distribution):
            names = sorted(part.arg_constraints)
            yield from _describe({key: getattr(part, key, None) for key in names})


def _full_name(value: Any) -> str:
    """Return the name of a class or function; those of torch move between its modules from version to version."""
    package = "torch" if str(value.__module__).startswith("torch.") else value.__module__
    return f"{package}.{value.__qualname__}"


def _is_plain(value: Any) -> bool:
    """Return whether an attribute of a module is a number, a text, a function, or a list of these."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    torch = sys.modules["torch"]
    plain = (str, int, float, bool, torch.Tensor, np.ndarray, torch.dtype, torch.device, type(None))
    return isinstance(value, plain) or hasattr(value, "__qualname__")


def _contents(node: Sum | Product | Leaf) -> list[Any]:
    """Return what a node holds besides its children, and how many there are."""
    region = [node.region.lower, node.region.upper]
    match node:
        case Leaf():
            return [*region, node.rows]
        case Product():
            return [*region, len(node.children), node.dimension, node.splits]
        case Sum():
            return [*region, len(node.children), node.log_weights]
