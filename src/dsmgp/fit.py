"""From rows to a fitted model: units, a surrogate to learn theta on, the tree, conditioning."""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.experts import Experts
from dsmgp.grow import grow_balanced, grow_paper
from dsmgp.learn import Learned, learn
from dsmgp.model import Model
from dsmgp.process import Process, build_process
from dsmgp.stationary import Stationary
from dsmgp.tree import Node, induced_tree, leaves, place
from dsmgp.units import InputUnits, OutputUnits

__all__ = ["Fitted", "Settings", "fit"]

Array = NDArray[np.float64]
logger = logging.getLogger("dsmgp")

# What "auto" stands for: the paper's own sizes, or compact leaves that two cores fit in seconds.
AUTO_SIZES = {"balanced": (500, 8), "paper": (100, 4)}
# Outputs less correlated than this are left as they are.
LEAST_CORRELATION = 0.1


@dataclass(frozen=True)
class Settings:
    """What a fit is asked for, already checked. The fields are those of :class:`DSMGPRegressor`."""

    kernel: Any = "rbf"
    mean: Any = "zero"
    noise_variance: float | None = None
    structure: str | Node = "balanced"
    leaf_sizes: Sequence[int] | None = None  # None: "auto", here and below
    sum_children: int | None = None
    product_children: int | None = None
    depth: int | None = None
    weights: str = "posterior"
    optimizer: str | None = "lbfgs"
    objective: str = "surrogate"
    max_iter: int | None = None
    n_restarts: int = 0
    standardize: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float64
    memory_limit: int | None = None


@dataclass
class Fitted:
    """A fitted model and how its theta was found, one entry per output (or one for all together)."""

    model: Model
    learned: list[Learned]


def fit(X: Array, Y: Array, settings: Settings, rng: np.random.Generator) -> Fitted:
    """Fit a deep structured mixture to rows in the user's units."""
    inputs = InputUnits.of(X, settings.standardize)
    given = None if isinstance(settings.structure, str) else place(settings.structure, X)
    if given is not None:
        surrogate = induced_tree(given, rng)
    else:
        surrogate = _grow(X, settings, rng, unit=inputs.scale, surrogate=True)
    outputs, processes, learned = _learn_surrogate(X, Y, surrogate, inputs, settings, rng)
    tree = given or _grow(X, settings, rng, _length_scales(processes, inputs, settings))
    _check_memory(tree, settings)
    experts = _experts(tree, X, Y, inputs, outputs, processes, settings)
    if settings.optimizer is not None and settings.objective == "full":
        learned = _learn(tree, experts, processes, settings, rng, together=True)
    memory = settings.memory_limit or 0.25 * _physical_memory()
    conditioned = experts.condition(_naturals(processes, experts), 0.5 * memory)
    return Fitted(Model(tree, processes, conditioned, inputs, outputs, settings.weights), learned)


def _grow(
    X: Array, settings: Settings, rng: np.random.Generator, unit: Array, surrogate: bool = False
) -> Node:
    """The tree the settings ask for; as a surrogate, with one child at every sum node."""
    assert isinstance(settings.structure, str)
    auto_leaf, auto_sum = AUTO_SIZES[settings.structure]
    sizes = list(settings.leaf_sizes or [auto_leaf])
    n_children = settings.sum_children or (auto_sum if len(sizes) == 1 else len(sizes))
    if surrogate:
        sizes, n_children = [int(np.median(sizes))], 1
    if settings.structure == "paper":
        return grow_paper(
            X,
            leaf_size=sizes[0],
            sum_children=n_children,
            product_children=settings.product_children,
            depth=settings.depth or 2,
            rng=rng,
            unit=unit,
        )
    return grow_balanced(
        X,
        leaf_sizes=[sizes[k % len(sizes)] for k in range(n_children)],
        product_children=settings.product_children or 2,
        depth=1 if surrogate else settings.depth or 1,
        rng=rng,
        unit=unit,
    )


def _learn_surrogate(
    X: Array,
    Y: Array,
    surrogate: Node,
    inputs: InputUnits,
    settings: Settings,
    rng: np.random.Generator,
) -> tuple[OutputUnits, list[Process], list[Learned]]:
    """Units of the outputs and their processes, learned on one partition.

    Correlated outputs are tried both as they are and rotated to their principal components, and the
    evidence of the original outputs decides.
    """
    process = build_process(settings.kernel, settings.mean, settings.noise_variance, X.shape[1])
    choices = [OutputUnits.of(Y, settings.standardize)]
    if settings.optimizer is None:
        # The kernel was given for the outputs as they are.
        return choices[0], [copy.deepcopy(process) for _ in range(Y.shape[1])], []
    if Y.shape[1] > 1 and _correlation(Y) > LEAST_CORRELATION:
        choices.append(OutputUnits.rotated(Y, settings.standardize))
    _check_memory(surrogate, settings)
    best: tuple[float, OutputUnits, list[Process], list[Learned]] | None = None
    for outputs in choices:
        processes = [copy.deepcopy(process) for _ in range(Y.shape[1])]
        experts = _experts(surrogate, X, Y, inputs, outputs, processes, settings)
        learned = _learn(surrogate, experts, processes, settings, rng, together=False)
        evidence = experts.log_evidence(_naturals(processes, experts)).sum()
        evidence = float(evidence) - len(Y) * outputs.log_det
        logger.info("outputs %s: log evidence %.6g", "rotated" if best else "as given", evidence)
        if best is None or evidence > best[0]:
            best = (evidence, outputs, processes, learned)
    assert best is not None
    return best[1:]


def _learn(
    tree: Node,
    experts: Experts,
    processes: list[Process],
    settings: Settings,
    rng: np.random.Generator,
    together: bool,
) -> list[Learned]:
    assert settings.optimizer is not None
    return learn(
        tree,
        experts,
        processes,
        optimizer=settings.optimizer,
        rng=rng,
        max_iter=settings.max_iter,
        n_restarts=settings.n_restarts,
        together=together,
        report=logger.info,
    )


def _experts(
    tree: Node,
    X: Array,
    Y: Array,
    inputs: InputUnits,
    outputs: OutputUnits,
    processes: list[Process],
    settings: Settings,
) -> Experts:
    def tensor(A: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(A)).to(settings.device, settings.dtype)

    laws = [process.law(X.shape[1]) for process in processes]
    return Experts(leaves(tree), tensor(inputs.to_experts(X)), tensor(outputs.to_experts(Y)), laws)


def _naturals(processes: list[Process], experts: Experts) -> list[Tensor]:
    return [p.natural(law).detach() for p, law in zip(processes, experts.laws, strict=True)]


def _length_scales(processes: list[Process], inputs: InputUnits, settings: Settings) -> Array:
    """How far one has to go along each input for the function to change, in the user's units.

    Several outputs change together where the most wiggly of them does. The paper's structure, and
    kernels without length-scales, use the inputs' spread instead.
    """
    laws = [process.law(len(inputs.scale)) for process in processes]
    if settings.structure == "paper" or not all(isinstance(law, Stationary) for law in laws):
        return inputs.scale
    rates = np.full((len(laws), len(inputs.scale)), 1e-3)  # an input the kernel does not see
    for row, (process, law) in enumerate(zip(processes, laws, strict=True)):
        assert isinstance(law, Stationary)
        scales = process.natural(law).detach().numpy()[: len(law.columns)]
        rates[row, list(law.columns)] = np.maximum(1.0 / scales, 1e-3)
    return inputs.scale / np.sqrt(np.square(rates).mean(axis=0))


def _correlation(Y: Array) -> float:
    """The largest absolute correlation between two outputs."""
    centred = Y - Y.mean(axis=0)
    scale = np.sqrt(np.square(centred).sum(axis=0))
    if not np.all(scale > 0):
        return 0.0
    matrix = (centred / scale).T @ (centred / scale)
    return float(np.max(np.abs(matrix - np.diag(np.diag(matrix)))))


def _check_memory(tree: Node, settings: Settings) -> None:
    """Refuse a leaf whose matrices cannot be held, before anything is allocated."""
    largest = max(leaf.n_rows for leaf in leaves(tree))
    need = 4 * largest**2 * torch.finfo(settings.dtype).bits // 8
    limit = settings.memory_limit or 0.8 * _physical_memory()
    if need > limit:
        raise ValueError(
            f"the largest leaf has {largest} rows and needs {need / 1e9:.1f} GB, more than the "
            f"{limit / 1e9:.1f} GB allowed; lower leaf_size, raise memory_limit, use "
            "structure='balanced', or remove repeated rows (equal rows cannot be split)"
        )


def _physical_memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * float(os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
