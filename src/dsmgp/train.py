"""Learning theta on some leaves: what every step of a fit that learns has in common."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.columns import Columns
from dsmgp.conditioned import Conditioned
from dsmgp.execution import as_tensor
from dsmgp.experts import Experts
from dsmgp.grow import grow_balanced, grow_leaves
from dsmgp.learn import TOLERANCE, Learned, Objective, learn
from dsmgp.loo import equal_rows
from dsmgp.machine import memory
from dsmgp.periods import dominant_periods, set_periods
from dsmgp.process import NOISE_FLOOR, SINGLE_NOISE_FLOOR, Family, build_process
from dsmgp.settings import Settings
from dsmgp.stationary import Stationary
from dsmgp.tree import Leaf, Node, leaves
from dsmgp.units import InputUnits, OutputUnits
from dsmgp.validation import check_reach, check_variance

__all__ = ["Trainer", "length_scales"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
logger = logging.getLogger("dsmgp")

# Matrices of a leaf that are held at once while it is worked on.
LEAF_MATRICES = 4
# Rows that the prior of a leaf's scale is worth while theta is learned.
SCALE_ROWS = 5.0


class Trainer:
    """Rows, in the user's units, on some of whose leaves kernels are tried and theta is learned."""

    def __init__(
        self,
        X: Array,
        Y: Array,
        settings: Settings,
        rng: np.random.Generator,
        noise: Array | None = None,
        remember: Callable[[Objective], Objective] = lambda objective: objective,
    ) -> None:
        self.X, self.Y, self.settings, self.rng = X, Y, settings, rng
        #: Variances known row by row, (n_rows, n_outputs), beside the noise that is learned.
        self.noise = noise
        self.remember = remember
        self.inputs = InputUnits.of(X, settings.standardize)
        self.outputs = OutputUnits.of(Y, settings.standardize)
        self.labels = equal_rows(X)
        #: Evaluations of the evidence and its gradient so far, on however many leaves.
        self.n_evaluations = 0
        # X and Y as the experts see them in the units of now: there may be many rows, and every step asks for them.
        self._seen: dict[type, tuple[Any, Any, Tensor]] = {}

    @property
    def memory(self) -> float:
        return self.settings.memory

    def build(self, kernel: Any) -> Family:
        """A family before it has learned."""
        settings = self.settings
        process = build_process(
            kernel,
            settings.mean,
            settings.noise_variance,
            self.X.shape[1],
            noise_floor=SINGLE_NOISE_FLOOR if settings.dtype == torch.float32 else NOISE_FLOOR,
            spread=self._spread,
            variance=self._variance(),
        )
        if isinstance(kernel, str) and "periodic" in kernel:
            Z, y = self.inputs.to_experts(self.X), self.outputs.to_experts(self.Y)[:, 0]
            set_periods(process.kernel, dominant_periods(Z, y))
        return Family(str(kernel), [copy.deepcopy(process) for _ in range(self.Y.shape[1])])

    @cached_property
    def columns(self) -> Columns:
        """The inputs as trees grow on them."""
        return Columns(self.X)

    @cached_property
    def _spread(self) -> Array:
        """Spread of the inputs as the experts see them."""
        return InputUnits.of(self.inputs.to_experts(self.X), True).scale

    def _variance(self) -> float:
        """Mean variance of the outputs as the experts see them: one where they are standardised."""
        if self.settings.standardize:
            return 1.0
        variance = float(np.square(OutputUnits.of(self.Y, True).loading).sum() / self.Y.shape[1])
        return check_variance(variance, self.settings.dtype == torch.float32)

    def experts(
        self, some: Sequence[Leaf], families: Sequence[Family], family: Sequence[int] | None = None
    ) -> Experts:
        """The leaves' GPs; ``family`` says which of the families each leaf belongs to."""
        self._check_memory(some)
        own = [each.laws(self.X.shape[1]) for each in families]
        laws = (
            own[0] if family is None else [[own[f][o] for f in family] for o in range(len(own[0]))]
        )
        X, Y = self.table
        Z, targets = self._tensor(self.inputs, X), self._tensor(self.outputs, Y)
        return self.settings.executor.experts(
            some, Z, targets, laws, 0.25 * self.memory, self._known(), self.labels
        )

    @property
    def table(self) -> tuple[Array, Array]:
        """The rows that leaves name by their numbers."""
        return self.X, self.Y

    @property
    def n_rows(self) -> int:
        """Of all that the model is to see."""
        return len(self.X)

    @property
    def n_dims(self) -> int:
        return int(self.X.shape[1])

    @property
    def n_outputs(self) -> int:
        return int(self.Y.shape[1])

    @property
    def _home(self) -> tuple[torch.device, torch.dtype]:
        """Where the rows are."""
        settings = self.settings
        return settings.executor.home(settings.device), settings.dtype

    def _known(self) -> Tensor | None:
        """Noise that is known, as the experts see it."""
        if self.noise is None:
            return None
        known = self.outputs.noise_to_experts(self.noise)
        return as_tensor(known, self._home)

    def _tensor(self, units: InputUnits | OutputUnits, values: Array) -> Tensor:
        """Values as the experts see them."""
        known, rows, seen = self._seen.get(type(units), (None, None, torch.empty(0)))
        if known is not units or rows is not values:
            what = "X" if isinstance(units, InputUnits) else "y"
            single = self.settings.dtype == torch.float32
            seen = as_tensor(check_reach(units.to_experts(values), what, single), self._home)
            self._seen[type(units)] = units, values, seen
        return seen

    def learn(
        self,
        some: Sequence[Leaf],
        family: Family,
        max_iter: int | None = None,
        tolerance: float = TOLERANCE,
        tree: Node | None = None,
    ) -> list[Learned]:
        """Set a family's theta to what fits the leaves best, or the tree whose leaves they are."""
        settings, experts = self.settings, self.experts(some, [family])
        assert settings.optimizer is not None
        stationary = all(isinstance(law, Stationary) for law in family.laws(self.X.shape[1]))
        # A leaf's scale would scale what is known of the noise too.
        own_scales = settings.local_scale and tree is None and stationary and self.noise is None
        found = learn(
            tree,
            experts,
            family.processes,
            optimizer=settings.optimizer,
            rng=self.rng,
            max_iter=min((n for n in (settings.max_iter, max_iter) if n is not None), default=None),
            tolerance=tolerance,
            n_restarts=settings.n_restarts,
            scale_rows=SCALE_ROWS if own_scales else None,
            report=logger.info,
            remember=self.remember,
        )
        self.n_evaluations += sum(one.n_evaluations for one in found)
        if own_scales:
            # Leaves with scales of their own leave the common one open: set it to what fits all best.
            factors = experts.mean_squares(family.naturals(self.X.shape[1]))
            for process, factor in zip(family.processes, factors, strict=True):
                if np.isfinite(factor) and factor > 0 and not process.rescale(float(factor)):
                    logger.info("the common scale %.4g was not applied: it is held fixed", factor)
        return found

    def left_out(self, some: Sequence[Leaf], family: Family) -> Conditioned:
        """The leaves conditioned, every row also predicted without itself."""
        naturals = family.naturals(self.X.shape[1])
        experts = self.experts(some, [family])
        return self._condition(experts, naturals, 0, np.unique(experts.leaf_rows.flat))

    def _condition(
        self, experts: Experts, naturals: Sequence[Tensor], memory: float, watched: Index
    ) -> Conditioned:
        """Leaves that see their rows, and leave each of them out; ``watched`` are those that will be asked for."""
        return self.settings.executor.condition(experts, naturals, memory, self.labels, watched)

    def conditioned(
        self, tree: Node, families: Sequence[Family], family: Index, watched: Index
    ) -> Conditioned:
        """All leaves of a tree, having seen all rows; ``family`` says which of the families each belongs to."""
        experts = self.experts(leaves(tree), families, family.tolist())
        return self._condition(experts, self.naturals(families, family), 0.5 * self.memory, watched)

    def naturals(self, families: Sequence[Family], family: Index) -> list[Tensor]:
        """Hyperparameters by output: for all leaves, or a row for each where there are several families."""
        tables = zip(*(each.naturals(self.n_dims) for each in families), strict=True)
        return [own[0] if len(own) == 1 else torch.stack(own)[family] for own in tables]

    def grow(self, sizes: Sequence[int], unit: Array) -> Node:
        """A sum over balanced partitions, one for each size of leaf."""
        return grow_balanced(
            self.columns,
            leaf_sizes=sizes,
            product_children=self.settings.product_children or 2,
            depth=self.settings.depth or 1,
            rng=self.rng,
            unit=unit,
        )

    def grow_leaves(self, size: int, most: int, unit: Array) -> list[Leaf]:
        """Some leaves of a balanced partition."""
        return grow_leaves(
            self.columns,
            leaf_size=size,
            most=most,
            product_children=self.settings.product_children or 2,
            rng=self.rng,
            unit=unit,
        )

    def some(self, found: list[Leaf], most: int) -> list[Leaf]:
        """At most so many of the leaves, drawn at random, in their order."""
        if len(found) <= most:
            return found
        return [found[k] for k in sorted(self.rng.choice(len(found), most, replace=False))]

    def _check_memory(self, some: Sequence[Leaf]) -> None:
        """Refuse a leaf whose matrices cannot be held, before anything is allocated."""
        self._refuse_large(max(leaf.n_rows for leaf in some))

    @property
    def most_leaf_rows(self) -> int:
        """Rows of the largest leaf whose matrices can be held."""
        return math.isqrt(int(self._memory_limit) // (LEAF_MATRICES * self._bytes_of_a_number))

    @property
    def _memory_limit(self) -> float:
        return self.settings.memory_limit or 0.8 * memory(self.settings.device)

    @property
    def _bytes_of_a_number(self) -> int:
        return torch.finfo(self.settings.dtype).bits // 8

    def _refuse_large(self, largest: int) -> None:
        need = LEAF_MATRICES * largest**2 * self._bytes_of_a_number
        limit = self._memory_limit
        if need > limit:
            raise ValueError(
                f"the largest leaf has {largest} rows and needs {need / 1e6:.3g} MB, more than the "
                f"{limit / 1e6:.3g} MB allowed; lower leaf_size, raise memory_limit, use "
                "structure='balanced' if it is not, or remove repeated rows (equal rows cannot be split)"
            )


def length_scales(family: Family, unit: Array) -> Array:
    """How far one has to go along each input for the function to change, in the user's units; ``unit`` is what
    the experts see as one.

    Several outputs change together where the most wiggly of them does. Kernels without length-scales use ``unit``.
    """
    n_dims = len(unit)
    laws = family.laws(n_dims)
    if not all(isinstance(law, Stationary) for law in laws):
        return unit
    rates = np.full((len(laws), n_dims), 1e-3)  # an input the kernel does not see
    for row, (natural, law) in enumerate(zip(family.naturals(n_dims), laws, strict=True)):
        assert isinstance(law, Stationary)
        scales = natural.numpy()[: len(law.columns)]
        rates[row, list(law.columns)] = np.maximum(1.0 / scales, 1e-3)
    most = rates.max(axis=0)  # squares of very large rates are out of range
    return np.asarray(unit / most / np.sqrt(np.square(rates / most).mean(axis=0)))
