"""The configuration of a fit, from the parameters of an estimator.

:func:`check_parameters` validates what the user passed to :class:`~dsmgp.DSMGPRegressor` and returns a :class:`FitConfig`, which every
stage of a fit reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dsmgp._util.errors import InputError
from dsmgp._util.machine import has_cuda, has_torch, memory, require_torch
from dsmgp._util.validation import check_choice, check_count, random_generator
from dsmgp.data.columns.learning import MISSING
from dsmgp.distributed.executor import Executor, LocalExecutor, check_executor
from dsmgp.fitting.effort import EFFORTS
from dsmgp.gp.leaf_kernels import MEANS
from dsmgp.gp.metric_process import METRIC_KINDS
from dsmgp.gp.terms import NAMED_KERNELS, STATIONARY, kernel_parts
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.output_warp import NAMED_WARPS
from dsmgp.mixture.model import WEIGHTS
from dsmgp.tree.changepoint_leaf import ChangePoints, has_changepoints
from dsmgp.tree.nodes import Leaf, Node, Product, Sum

__all__ = [
    "GPU", "LEAF_MATRICES", "OPTIMIZERS", "FitConfig", "check_device", "check_parameters",
]  # fmt: skip

STRUCTURES = ("balanced", "paper", "learned", "changepoint")
OBJECTIVES = ("surrogate", "full")
#: Optimisers by name, with their default number of iterations.
OPTIMIZERS = {"lbfgs": 60, "adam": 300, "rmsprop": 1000}
DTYPES = ("float64", "float32")
INPUT_WARPS = ("auto", "rank", "both")
OUTPUTS = ("auto", "independent")
METRICS = ("auto", "diagonal", "full", "deep")
BOOSTED_TREES = ("auto", "always")
#: Names of GPUs, where torch is not there to tell.
GPU = r"(cuda|mps|xpu)(:\d+)?"
#: Matrices of a leaf that are held at the same time.
LEAF_MATRICES = 4
BYTES = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


@dataclass(frozen=True)
class FitConfig:
    """Validated parameters of a fit. The fields are those of :class:`~dsmgp.DSMGPRegressor`; None means "auto", but for ``output_warp``.

    ``hypotheses`` says whether a small table may be fitted under several that are stacked (:mod:`dsmgp.fitting.hypotheses.fit`, "stack"), or any
    table under several that are averaged (:mod:`dsmgp.fitting.hypotheses.average`, "average"); ``mean_is_open`` whether another mean than ``mean`` may be chosen.
    """

    kernel: Any = "auto"
    mean: Any = "zero"
    noise_variance: float | None = None
    structure: str | ChangePoints | Node = "balanced"
    leaf_sizes: Sequence[int] | None = None
    sum_children: int | None = None
    product_children: int | None = None
    depth: int | None = None
    weights: str = "gated"
    local_scale: bool = True
    effort: str = "medium"
    optimizer: str | None = "lbfgs"
    objective: str = "surrogate"
    max_iter: int | None = None
    n_restarts: int = 0
    standardize: bool = True
    input_warp: str | Coordinates | None = "auto"
    metric: str = "auto"
    output_warp: str | None = "auto"
    boosted_trees: str | None = "auto"
    device: str = "cpu"
    dtype: str = "float64"
    memory_limit: int | None = None
    executor: Executor = field(default_factory=LocalExecutor)
    hypotheses: str | None = None
    mean_is_open: bool = False
    priors: str | None = "lognormal"
    outputs: str = "auto"
    checkpoint: str | Path | None = None
    random_state: Any = None

    def generator(self) -> np.random.Generator:
        """Return a generator of random numbers for one fit or update."""
        return random_generator(self.random_state)

    def n_gate_rows(self, weights: str) -> int:
        """Return the number of rows on which the gate of a model with such weights is fitted."""
        return EFFORTS[self.effort].n_gate_rows if weights == "gated" else 0

    @property
    def device_type(self) -> str:
        """The kind of device: "cpu", "cuda"."""
        return self.device.split(":")[0]

    @cached_property
    def free_memory(self) -> float:
        """Bytes of the device that are free when this is first asked; the same for the whole of a fit."""
        return memory(self.device)

    @property
    def memory(self) -> float:
        """Bytes for matrices: half for cached factors, a quarter for matrices being worked on."""
        return self.memory_limit or 0.25 * self.free_memory

    @property
    def leaf_memory(self) -> float:
        """Bytes for the matrices of one leaf."""
        return self.memory_limit or 0.8 * self.free_memory

    @property
    def max_leaf_rows(self) -> int:
        """Rows of the largest leaf whose matrices fit in memory."""
        return math.isqrt(int(self.leaf_memory) // (LEAF_MATRICES * np.dtype(self.dtype).itemsize))

    @property
    def table_memory(self) -> float:
        """Bytes for the evidences of all segments of a change-point model."""
        return self.memory_limit or 0.5 * self.free_memory


def check_parameters(estimator: Any) -> FitConfig:
    """Validate the parameters of an estimator and return them with names resolved.

    Raises
    ------
    ValueError
        For the first invalid parameter, with what is expected.
    """
    _check_choices(estimator)
    executor = _executor(estimator.executor)
    local_scale, weights = estimator.local_scale, _weights(estimator)
    return FitConfig(
        kernel=_kernel(estimator.kernel),
        mean="zero" if _is_auto(estimator.mean) else estimator.mean,
        noise_variance=estimator.noise_variance,
        structure=estimator.structure,
        leaf_sizes=_leaf_sizes(estimator),
        sum_children=None
        if _is_auto(estimator.sum_children)
        else check_count("sum_children", estimator.sum_children),
        product_children=check_count("product_children", estimator.product_children, 2, True),
        depth=check_count("depth", estimator.depth, 1, True),
        weights=weights,
        local_scale=weights == "gated" if local_scale is None else local_scale,
        effort=estimator.effort,
        optimizer=estimator.optimizer,
        objective=estimator.objective,
        max_iter=check_count("max_iter", estimator.max_iter, 1, True),
        n_restarts=check_count("n_restarts", estimator.n_restarts, 0),
        standardize=bool(estimator.standardize),
        input_warp=estimator.input_warp,
        metric=estimator.metric,
        boosted_trees=estimator.boosted_trees,
        output_warp=estimator.output_warp,
        device=executor.leaf_device(check_device(estimator.device)),
        dtype=estimator.dtype,
        memory_limit=_bytes(estimator.memory_limit),
        executor=executor,
        hypotheses=_hypotheses(estimator),
        mean_is_open=_is_auto(estimator.mean),
        priors=estimator.priors,
        outputs=estimator.outputs,
        checkpoint=estimator.checkpoint,
        random_state=estimator.random_state,
    )


def _check_choices(estimator: Any) -> None:
    """Check the parameters that take one of a few values."""
    if not isinstance(estimator.structure, (Sum, Product, Leaf, ChangePoints)):
        check_choice(
            "structure",
            estimator.structure,
            STRUCTURES,
            "or ChangePoints(...), or a tree of dsmgp.tree.nodes nodes",
        )
    check_choice("weights", estimator.weights, ("auto", *WEIGHTS))
    check_choice("objective", estimator.objective, OBJECTIVES)
    check_choice("effort", estimator.effort, EFFORTS)
    for name, valid in (("local_scale", (None, True, False)), ("standardize", (True, False))):
        value = getattr(estimator, name)
        if value not in valid:
            raise InputError(f"expected {name} to be {' or '.join(map(str, valid))}, got {value!r}")
    _check_coordinates(estimator)
    if estimator.output_warp is not None:
        check_choice("output_warp", estimator.output_warp, ("auto", *NAMED_WARPS), "or None")
    if estimator.priors is not None:
        check_choice("priors", estimator.priors, ["lognormal"], "or None")
    check_choice("outputs", estimator.outputs, OUTPUTS)
    if estimator.hypotheses is not None:
        check_choice("hypotheses", estimator.hypotheses, ["auto", "average"], "or None")
    check_choice("variances", estimator.variances, ("auto", "exact"))
    check_choice("missing", estimator.missing, MISSING)
    if isinstance(estimator.categorical_features, str):
        check_choice(
            "categorical_features",
            estimator.categorical_features,
            ["from_dtype"],
            "or None, or columns of X",
        )
    check_choice("dtype", estimator.dtype, DTYPES)
    if estimator.dtype == "float32":
        require_torch("dtype='float32'")
    if estimator.optimizer is not None:
        check_choice("optimizer", estimator.optimizer, OPTIMIZERS, "or None")
    if isinstance(estimator.mean, str):
        check_choice("mean", estimator.mean, ("auto", *MEANS), "or a gpytorch mean")
    _check_kernel(estimator)


def _check_kernel(estimator: Any) -> None:
    """Check the name of a kernel, or several of them."""
    kernel = _kernel(estimator.kernel)
    if isinstance(kernel, tuple):
        if len(kernel) < 2 or len(set(map(str, kernel))) < len(kernel):
            raise InputError(
                f"expected a list of at least two different kernels, got {list(kernel)!r}"
            )
        if estimator.objective == "full":
            raise InputError("objective='full' learns one kernel, got a list of them; leave it out")
        if not all(isinstance(each, str) for each in kernel):
            raise InputError(f"expected names in a list of kernels, got {list(kernel)!r}")
    for each in kernel if isinstance(kernel, tuple) else (kernel,):
        if not isinstance(each, str):
            continue  # build_process checks GPyTorch kernels
        if set("+*[") & set(each):
            kernel_parts(each)
        else:
            named = (*(["auto"] if each is kernel else []), *NAMED_KERNELS)
            check_choice("kernel", each, named, "or a sum or product of them, or a gpytorch kernel")


def _kernel(kernel: Any) -> Any:
    """Return several kernels as a tuple, and one as it is."""
    return tuple(kernel) if isinstance(kernel, (list, tuple)) else kernel


def _weights(estimator: Any) -> str:
    """Return the weights, resolved: those of the posterior for structures that it has found, else gated ones."""
    if not _is_auto(estimator.weights):
        return str(estimator.weights)
    learned = isinstance(estimator.structure, str) and estimator.structure == "learned"
    several = isinstance(estimator.kernel, (list, tuple))
    averaged = estimator.hypotheses == "average"
    return "posterior" if learned or several or averaged else "gated"


def _check_coordinates(estimator: Any) -> None:
    """Check the parameters that change the coordinates of the inputs."""
    if estimator.input_warp is not None:
        check_choice("input_warp", estimator.input_warp, INPUT_WARPS, "or None")
    check_choice("metric", estimator.metric, METRICS)
    if estimator.boosted_trees is not None:
        check_choice("boosted_trees", estimator.boosted_trees, BOOSTED_TREES, "or None")
    asked = [f"input_warp={estimator.input_warp!r}"] * (estimator.input_warp in INPUT_WARPS[1:])
    learned = estimator.metric in ("full", "deep")
    asked += [f"metric={estimator.metric!r}"] * learned
    asked += ["boosted_trees='always'"] * (estimator.boosted_trees == "always")
    if asked and estimator.structure not in ("balanced", "paper", "learned"):
        raise InputError(
            f"{asked[0]} needs structure='balanced', 'paper' or 'learned': other structures cut the inputs as they are"
        )
    if learned:
        _check_learned(f"metric={estimator.metric!r}", estimator, METRIC_KINDS)
    if estimator.boosted_trees == "always":
        _check_learned("boosted_trees='always'", estimator, STATIONARY)


def _check_learned(what: str, estimator: Any, kinds: Collection[str]) -> None:
    """Refuse learned coordinates beside what refers to the inputs as they are."""
    if estimator.optimizer is None:
        raise InputError(f"{what} is learned: it needs an optimizer, got None")
    kernel, mean = estimator.kernel, estimator.mean
    if not (isinstance(kernel, str) and kernel in ("auto", *kinds)):
        raise InputError(
            f"{what} needs kernel='auto' or one of {', '.join(map(repr, kinds))}, got {kernel!r}"
        )
    if not (isinstance(mean, str) and mean in ("auto", "zero", "constant")):
        raise InputError(f"{what} needs mean='auto', 'zero' or 'constant', got {mean!r}")


def _hypotheses(estimator: Any) -> str | None:
    """Return what becomes of several hypotheses: "stack", "average" or None."""
    if estimator.hypotheses != "average":
        return "stack" if _hypotheses_are_open(estimator) else None
    named = isinstance(estimator.kernel, str) and isinstance(estimator.mean, str)
    structure = estimator.structure
    unmet = {
        "weights='posterior' or 'auto'": _weights(estimator) == "posterior",
        "local_scale=False or None": not estimator.local_scale,
        "one named kernel and a named mean": named,
        "structure='balanced', 'paper' or a tree": not has_changepoints(structure)
        and structure != "learned",
        "an optimizer": estimator.optimizer is not None,
        "standardize=True": bool(estimator.standardize),
        "priors": estimator.priors is not None,
        "metric='auto' or 'diagonal'": estimator.metric in ("auto", "diagonal"),
        "boosted_trees='auto' or None": estimator.boosted_trees != "always",
    }
    for needed, is_met in unmet.items():
        if not is_met:
            raise InputError(f"hypotheses='average' needs {needed}")
    return "average"


def _hypotheses_are_open(estimator: Any) -> bool:
    """Whether nothing that the user asked for is what hypotheses differ in, or what they have no part in."""
    automatic = (estimator.hypotheses, estimator.kernel, estimator.mean, estimator.input_warp)
    return (
        all(map(_is_auto, (*automatic, estimator.metric)))
        and estimator.boosted_trees != "always"
        and (estimator.output_warp is None or _is_auto(estimator.output_warp))
        and isinstance(estimator.structure, str)
        and estimator.structure == "balanced"
        and _weights(estimator) == "gated"
        and estimator.optimizer is not None
        and estimator.objective == "surrogate"
        and bool(estimator.standardize)
        and estimator.effort != "low"
    )


def _leaf_sizes(estimator: Any) -> list[int] | None:
    leaf_size: Any = estimator.leaf_size
    if _is_auto(leaf_size):
        return None
    if isinstance(leaf_size, str) or not np.iterable(leaf_size):
        return [check_count("leaf_size", leaf_size)]
    if estimator.structure in ("paper", "learned"):
        raise InputError(
            f"expected one leaf_size with structure={estimator.structure!r}, got {leaf_size!r}; a list of sizes is "
            "for structure='balanced'"
        )
    sizes = [check_count("every entry of leaf_size", size) for size in leaf_size]
    if not sizes:
        raise InputError("expected at least one leaf_size, got an empty list")
    return sizes


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def check_device(name: Any) -> str:
    """Return the device that a parameter stands for; ValueError or ImportError if it cannot be used here."""
    if isinstance(name, str) and name == "auto":
        return "cuda" if has_cuda() else "cpu"
    if isinstance(name, str) and name == "cpu":
        return name
    if not has_torch() and not re.fullmatch(GPU, str(name)):
        raise InputError(
            f"expected device to be 'auto', 'cpu' or a GPU such as 'cuda:0', got {name!r}"
        )
    require_torch(f"device={name!r}")
    import torch

    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(
            f"device {name!r} cannot be used here: {error}; try 'auto' or 'cpu'"
        ) from None
    return str(device)


def _executor(executor: Any) -> Executor:
    if executor is None or (isinstance(executor, str) and executor == "local"):
        return LocalExecutor()
    if isinstance(executor, str):
        check_choice("executor", executor, ("local", "ray"), "or a RayExecutor")
        from dsmgp.ray import default_executor

        return default_executor()
    return check_executor(executor)


def _bytes(limit: int | str | None) -> int | None:
    """Convert a memory limit, a number or text such as "4GB", to bytes."""
    if limit is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", str(limit).lower())
    try:
        size = float(match[1]) * BYTES[match[2]] if match else math.nan
    except (ValueError, KeyError):
        size = math.nan
    if not 0 < size < math.inf:
        raise InputError(f"expected memory_limit in bytes or as text such as '4GB', got {limit!r}")
    return int(size)
