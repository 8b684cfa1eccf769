"""What a user asks a fit for: every parameter checked, with an error that names the remedy."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch

from dsmgp.breaks import ChangePoints
from dsmgp.effort import EFFORTS
from dsmgp.executor import Executor, LocalExecutor
from dsmgp.learn import OPTIMIZERS
from dsmgp.model import WEIGHTS
from dsmgp.process import MEANS, NAMED_KERNELS, kernel_parts
from dsmgp.settings import Settings
from dsmgp.tree import Leaf, Product, Sum
from dsmgp.validation import check_choice, check_count

__all__ = ["checked"]

STRUCTURES = ("balanced", "paper", "changepoint")
OBJECTIVES = ("surrogate", "full")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def checked(asked: Any) -> Settings:
    """The parameters of an estimator, checked, with names turned into what they stand for."""
    if not isinstance(asked.structure, (Sum, Product, Leaf, ChangePoints)):
        check_choice(
            "structure",
            asked.structure,
            STRUCTURES,
            "or ChangePoints(...), or a tree of dsmgp.tree nodes",
        )
    check_choice("weights", asked.weights, WEIGHTS)
    check_choice("objective", asked.objective, OBJECTIVES)
    check_choice("effort", asked.effort, EFFORTS)
    for name, valid in (("local_scale", (None, True, False)), ("standardize", (True, False))):
        if getattr(asked, name) not in valid:
            raise ValueError(
                f"expected {name} to be {' or '.join(map(str, valid))}, got {getattr(asked, name)!r}"
            )
    check_choice("dtype", asked.dtype, DTYPES)
    if asked.optimizer is not None:
        check_choice("optimizer", asked.optimizer, OPTIMIZERS, "or None")
    if isinstance(asked.kernel, str):
        if "+" in asked.kernel:
            kernel_parts(asked.kernel)
        else:
            check_choice(
                "kernel",
                asked.kernel,
                ("auto", *NAMED_KERNELS),
                "or a sum of them, or a gpytorch kernel",
            )
    if isinstance(asked.mean, str):
        check_choice("mean", asked.mean, MEANS, "or a gpytorch mean")
    executor = _executor(asked.executor)
    return Settings(
        kernel=asked.kernel,
        mean=asked.mean,
        noise_variance=asked.noise_variance,
        structure=asked.structure,
        leaf_sizes=_leaf_sizes(asked),
        sum_children=None
        if _is_auto(asked.sum_children)
        else check_count("sum_children", asked.sum_children),
        product_children=check_count("product_children", asked.product_children, 2, True),
        depth=check_count("depth", asked.depth, 1, True),
        weights=asked.weights,
        local_scale=asked.weights == "gated" if asked.local_scale is None else asked.local_scale,
        effort=asked.effort,
        optimizer=asked.optimizer,
        objective=asked.objective,
        max_iter=check_count("max_iter", asked.max_iter, 1, True),
        n_restarts=check_count("n_restarts", asked.n_restarts, 0),
        standardize=bool(asked.standardize),
        device=executor.works_on(_device(asked.device)),
        dtype=DTYPES[asked.dtype],
        memory_limit=_bytes(asked.memory_limit),
        executor=executor,
    )


def _leaf_sizes(asked: Any) -> list[int] | None:
    given: Any = asked.leaf_size
    if _is_auto(given):
        return None
    if isinstance(given, str) or not np.iterable(given):
        return [check_count("leaf_size", given)]
    if asked.structure == "paper":
        raise ValueError(
            f"expected one leaf_size with structure='paper', got {given!r}; a list of sizes is "
            "for structure='balanced'"
        )
    sizes = [check_count("every entry of leaf_size", size) for size in given]
    if not sizes:
        raise ValueError("expected at least one leaf_size, got an empty list")
    return sizes


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"device {name!r} cannot be used here: {error}; try 'auto' or 'cpu'"
        ) from None
    return device


def _executor(asked: Any) -> Executor:
    if asked is None or (isinstance(asked, str) and asked == "local"):
        return LocalExecutor()
    if isinstance(asked, str):
        check_choice("executor", asked, ("local", "ray"), "or a RayExecutor")
        from dsmgp.ray import default_executor

        return default_executor()
    if not isinstance(asked, Executor):
        raise ValueError(f"expected executor to be 'local', 'ray' or a RayExecutor, got {asked!r}")
    return asked


def _bytes(limit: int | str | None) -> int | None:
    """A memory limit in bytes, from a number or text such as "4GB"."""
    if limit is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", str(limit).lower())
    try:
        size = float(found[1]) * UNITS[found[2]] if found else math.nan
    except (ValueError, KeyError):
        size = math.nan
    if not size > 0:
        raise ValueError(f"expected memory_limit in bytes or as text such as '4GB', got {limit!r}")
    return int(size)
