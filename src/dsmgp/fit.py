"""From rows to a fitted model: units, theta on a part of the leaves, the tree, conditioning, the gate."""

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

from dsmgp.choose import Choice, rank_kernels, units_score
from dsmgp.effort import EFFORTS
from dsmgp.experts import Conditioned, Experts
from dsmgp.gate import fit_gate
from dsmgp.grow import grow_balanced, grow_paper
from dsmgp.learn import Learned, learn
from dsmgp.loo import LeaveOneOut, equal_rows
from dsmgp.model import Model
from dsmgp.process import Process, build_process
from dsmgp.stationary import Stationary
from dsmgp.tree import Leaf, Node, induced_tree, leaves, place
from dsmgp.units import InputUnits, OutputUnits

__all__ = ["Fitted", "Settings", "fit"]

Array = NDArray[np.float64]
logger = logging.getLogger("dsmgp")

PAPER_SIZE, PAPER_CHILDREN, BALANCED_CHILDREN = 100, 4, 8
# Outputs less correlated than this are left as they are.
LEAST_CORRELATION = 0.1
# The kernel with which outputs as they are and mixed are compared when it is yet to be chosen.
NEUTRAL_KERNEL = "matern12"
# Rows on which leave-one-out scores are computed.
MAX_SCORED_ROWS = 20_000
TRIAL_ITERATIONS = 30
# Two kernels whose trial scores are this close are both fitted, where rows times outputs are no more than this.
CLOSE_SCORES, MAX_DUEL_ROWS = 0.15, 20_000
# Rows that the prior of a leaf's scale is worth while theta is learned.
SCALE_ROWS = 5.0


@dataclass(frozen=True)
class Settings:
    """What a fit is asked for, already checked. The fields are those of :class:`DSMGPRegressor`."""

    kernel: Any = "auto"
    mean: Any = "zero"
    noise_variance: float | None = None
    structure: str | Node = "balanced"
    leaf_sizes: Sequence[int] | None = None  # None: "auto", here and below
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
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float64
    memory_limit: int | None = None


@dataclass
class Fitted:
    """A fitted model and how it was found.

    ``learned`` has one entry per output, or one for all together. The scores are negative log predictive
    densities of rows left out, in the user's units: alone, and with all rows of the same inputs.
    """

    model: Model
    learned: list[Learned]
    choice: Choice
    loo_score: float
    loo_score_new_inputs: float
    duel_score: float  # by which two kernels are compared: of law and mean together


def fit(X: Array, Y: Array, settings: Settings, rng: np.random.Generator) -> Fitted:
    """Fit a deep structured mixture to rows in the user's units."""
    return _Fit(X, Y, settings, rng).run()


class _Fit:
    """One fit: what all its steps share."""

    def __init__(self, X: Array, Y: Array, settings: Settings, rng: np.random.Generator) -> None:
        self.X, self.Y, self.settings, self.rng = X, Y, settings, rng
        self.effort = EFFORTS[settings.effort]
        self.inputs = InputUnits.of(X, settings.standardize)
        self.labels = equal_rows(X)

    def run(self) -> Fitted:
        settings = self.settings
        given = None if isinstance(settings.structure, str) else place(settings.structure, self.X)
        surrogate = self._surrogate(given)
        outputs, candidates = self._candidates(surrogate)
        found = [self._finish(given, surrogate, outputs, candidate) for candidate in candidates]
        return min(found, key=lambda fitted: fitted.duel_score)

    def _finish(
        self, given: Node | None, surrogate: list[Leaf], outputs: OutputUnits, choice: Choice
    ) -> Fitted:
        """The whole fit, from a kernel and its processes on."""
        settings, processes, learned = self.settings, choice.processes, []
        if settings.optimizer is not None:
            learned = self._learn(None, self._experts(surrogate, outputs, processes), processes)
        tree = given or self._grow(self._length_scales(processes))
        experts = self._experts(leaves(tree), outputs, processes)
        if settings.optimizer is not None and settings.objective == "full":
            learned = self._learn(tree, experts, processes)
        memory = 0.5 * (settings.memory_limit or 0.25 * _physical_memory())
        conditioned = experts.condition(_naturals(processes, experts), memory, self.labels)
        fitted = self._weigh(tree, choice, conditioned, outputs, learned)
        logger.info("kernel %s: leave-one-out NLPD %.6g", choice.kernel, fitted.loo_score)
        return fitted

    # Theta, on a part of the leaves

    def _surrogate(self, given: Node | None) -> list[Leaf]:
        """Leaves of one partition to learn on: all of them with the paper's structure, else some."""
        settings = self.settings
        if settings.structure == "paper":
            return leaves(self._grow_paper(1))
        if given is not None:
            return leaves(induced_tree(given, self.rng))
        size = int(np.median(settings.leaf_sizes)) if settings.leaf_sizes else self.effort.leaf_size
        found = leaves(
            grow_balanced(self.X, leaf_sizes=[size], rng=self.rng, unit=self.inputs.scale)
        )
        return self._some(found, self.effort.n_leaves)

    def _some(self, found: list[Leaf], most: int) -> list[Leaf]:
        if len(found) <= most:
            return found
        return [found[k] for k in sorted(self.rng.choice(len(found), most, replace=False))]

    def _candidates(self, surrogate: list[Leaf]) -> tuple[OutputUnits, list[Choice]]:
        """Units of the outputs, and the kernels worth a whole fit: one, or two that are close."""
        settings = self.settings
        _check_memory(surrogate, settings)
        outputs = OutputUnits.of(self.Y, settings.standardize)
        automatic = isinstance(settings.kernel, str) and settings.kernel == "auto"
        if settings.optimizer is None:
            # The kernel was given for the outputs as they are.
            kernel = NEUTRAL_KERNEL if automatic else settings.kernel
            return outputs, [Choice(str(kernel), self._build(kernel), {})]
        trial = self._some(surrogate, self.effort.n_trial_leaves)
        if self.Y.shape[1] > 1 and _correlation(self.Y) > LEAST_CORRELATION:
            kernel = NEUTRAL_KERNEL if automatic else settings.kernel
            order = range(self.Y.shape[1])
            tried = [
                outputs,
                OutputUnits.rotated(self.Y, settings.standardize),
                OutputUnits.chained(self.Y, settings.standardize, order),
                OutputUnits.chained(self.Y, settings.standardize, order[::-1]),
            ]
            outputs = min(tried, key=lambda units: self._units_score(trial, units, kernel))
        if not automatic:
            return outputs, [Choice(str(settings.kernel), self._build(settings.kernel), {})]
        ranked = rank_kernels(
            self._build,
            lambda processes, experts: self._learn(None, experts, processes, TRIAL_ITERATIONS),
            lambda processes: self._experts(trial, outputs, processes),
            trial,
            self.labels,
        )
        best, second = ranked[:2]
        close = second.scores[second.kernel] - best.scores[best.kernel] < CLOSE_SCORES
        return outputs, ranked[:2] if close and self.Y.size <= MAX_DUEL_ROWS else [best]

    def _units_score(self, trial: list[Leaf], outputs: OutputUnits, kernel: Any) -> float:
        """Leave-one-out score of the outputs in the user's units, after learning on a few leaves."""
        processes = self._build(kernel)
        experts = self._experts(trial, outputs, processes)
        self._learn(None, experts, processes, TRIAL_ITERATIONS)
        conditioned = experts.condition(_naturals(processes, experts), 0, self.labels)
        score = units_score(trial, conditioned, self.labels, outputs)
        logger.info(
            "outputs as %s: leave-one-out score %.4f", outputs.loading.round(3).tolist(), score
        )
        return score

    def _build(self, kernel: Any) -> list[Process]:
        settings = self.settings
        process = build_process(
            kernel,
            settings.mean,
            settings.noise_variance,
            self.X.shape[1],
            spread=InputUnits.of(self.inputs.to_experts(self.X), True).scale,
            variance=self._variance(),
        )
        return [copy.deepcopy(process) for _ in range(self.Y.shape[1])]

    def _variance(self) -> float:
        """Mean variance of the outputs as the experts see them: one where they are standardised."""
        if self.settings.standardize:
            return 1.0
        return float(np.square(OutputUnits.of(self.Y, True).loading).sum() / self.Y.shape[1])

    def _learn(
        self,
        tree: Node | None,
        experts: Experts,
        processes: list[Process],
        max_iter: int | None = None,
    ) -> list[Learned]:
        settings = self.settings
        assert settings.optimizer is not None
        own_scales = (
            settings.local_scale
            and tree is None
            and all(isinstance(law, Stationary) for law in experts.laws)
        )
        found = learn(
            tree,
            experts,
            processes,
            optimizer=settings.optimizer,
            rng=self.rng,
            max_iter=settings.max_iter or max_iter,
            n_restarts=settings.n_restarts,
            scale_rows=SCALE_ROWS if own_scales else None,
            report=logger.info,
        )
        if own_scales:
            # Leaves with scales of their own leave the common one open: set it to what fits all best.
            factors = experts.mean_squares(_naturals(processes, experts))
            for process, factor in zip(processes, factors, strict=True):
                if np.isfinite(factor) and factor > 0 and not process.rescale(float(factor)):
                    logger.info("the common scale %.4g was not applied: it is held fixed", factor)
        return found

    # The tree

    def _grow(self, unit: Array) -> Node:
        settings = self.settings
        if settings.structure == "paper":
            return self._grow_paper(settings.sum_children or PAPER_CHILDREN)
        sizes = list(settings.leaf_sizes or self._auto_sizes())
        n_children = settings.sum_children
        if n_children is None:
            n_children = len(sizes) if len(sizes) > 1 else BALANCED_CHILDREN
        # Fewer partitions than sizes: spread over the sizes; more: go round.
        if n_children < len(sizes):
            sizes = [sizes[round(k)] for k in np.linspace(0, len(sizes) - 1, n_children)]
        return grow_balanced(
            self.X,
            leaf_sizes=[sizes[k % len(sizes)] for k in range(n_children)],
            product_children=settings.product_children or 2,
            depth=settings.depth or 1,
            rng=self.rng,
            unit=unit,
        )

    def _auto_sizes(self) -> list[int]:
        return self.effort.leaf_sizes(len(self.X), self.Y.shape[1], self.settings.device.type)

    def _grow_paper(self, sum_children: int) -> Node:
        settings = self.settings
        return grow_paper(
            self.X,
            leaf_size=settings.leaf_sizes[0] if settings.leaf_sizes else PAPER_SIZE,
            sum_children=sum_children,
            product_children=settings.product_children,
            depth=settings.depth or 2,
            rng=self.rng,
            unit=self.inputs.scale,
        )

    def _length_scales(self, processes: list[Process]) -> Array:
        """How far one has to go along each input for the function to change, in the user's units.

        Several outputs change together where the most wiggly of them does. Kernels without
        length-scales use the inputs' spread instead.
        """
        laws = [process.law(self.X.shape[1]) for process in processes]
        if not all(isinstance(law, Stationary) for law in laws):
            return self.inputs.scale
        rates = np.full((len(laws), self.X.shape[1]), 1e-3)  # an input the kernel does not see
        for row, (process, law) in enumerate(zip(processes, laws, strict=True)):
            assert isinstance(law, Stationary)
            scales = process.natural(law).detach().numpy()[: len(law.columns)]
            rates[row, list(law.columns)] = np.maximum(1.0 / scales, 1e-3)
        return np.asarray(self.inputs.scale / np.sqrt(np.square(rates).mean(axis=0)))

    # Experts and weights

    def _experts(self, some: list[Leaf], outputs: OutputUnits, processes: list[Process]) -> Experts:
        _check_memory(some, self.settings)
        laws = [process.law(self.X.shape[1]) for process in processes]
        Z, targets = self.inputs.to_experts(self.X), outputs.to_experts(self.Y)
        return Experts(some, self._tensor(Z), self._tensor(targets), laws)

    def _tensor(self, values: Array) -> Tensor:
        settings = self.settings
        return torch.from_numpy(np.ascontiguousarray(values)).to(settings.device, settings.dtype)

    def _weigh(
        self,
        tree: Node,
        choice: Choice,
        conditioned: Conditioned,
        outputs: OutputUnits,
        learned: list[Learned],
    ) -> Fitted:
        """Scales of the leaves, the gate, and the scores of rows left out."""
        settings = self.settings
        loo = LeaveOneOut(leaves(tree), conditioned, self.labels)
        scales = loo.scales if settings.local_scale else np.ones_like(loo.squares)
        model = Model(
            tree, choice.processes, conditioned, self.inputs, outputs, settings.weights, scales
        )
        if settings.weights == "gated":
            rows = self._sample(self.effort.n_gate_rows)
            components = loo.components(rows)
            without = (
                loo.scales_without(rows) if settings.local_scale else np.ones(components.mean.shape)
            )
            path = components.of_leaves(model.log_path_weights, -np.inf)
            model.gate = fit_gate(components, without, path, loo.Y[rows], settings.local_scale)
        rows = self._sample(MAX_SCORED_ROWS)
        laws = [model.left_out_law(loo, rows, grouped) for grouped in (False, True)]
        scores = [float(-law.logpdf(self.Y[rows]).sum(axis=1).mean()) for law in laws]
        error = np.mean((self.Y[rows] - laws[0].mean) ** 2, axis=0)
        error = np.maximum(error, np.finfo(np.float64).tiny)
        conditioned.forget_left_out()
        duel = scores[0] + 0.5 * float(np.log(error).sum())
        return Fitted(model, learned, choice, scores[0], scores[1], duel)

    def _sample(self, most: int) -> NDArray[np.int64]:
        if len(self.X) <= most:
            return np.arange(len(self.X))
        return np.sort(self.rng.choice(len(self.X), most, replace=False))


def _naturals(processes: list[Process], experts: Experts) -> list[Tensor]:
    return [p.natural(law).detach() for p, law in zip(processes, experts.laws, strict=True)]


def _correlation(Y: Array) -> float:
    """The largest absolute correlation between two outputs."""
    centred = Y - Y.mean(axis=0)
    scale = np.sqrt(np.square(centred).sum(axis=0))
    varying = centred[:, scale > 0] / scale[scale > 0]
    if varying.shape[1] < 2:
        return 0.0
    matrix = varying.T @ varying
    return float(np.max(np.abs(matrix - np.diag(np.diag(matrix)))))


def _check_memory(some: Sequence[Leaf], settings: Settings) -> None:
    """Refuse a leaf whose matrices cannot be held, before anything is allocated."""
    largest = max(leaf.n_rows for leaf in some)
    need = 4 * largest**2 * torch.finfo(settings.dtype).bits // 8
    limit = settings.memory_limit or 0.8 * _physical_memory()
    if need > limit:
        raise ValueError(
            f"the largest leaf has {largest} rows and needs {need / 1e6:.3g} MB, more than the "
            f"{limit / 1e6:.3g} MB allowed; lower leaf_size, raise memory_limit, use "
            "structure='balanced' if it is not, or remove repeated rows (equal rows cannot be split)"
        )


def _physical_memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * float(os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
