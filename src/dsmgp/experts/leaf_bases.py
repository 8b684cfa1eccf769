"""Low-rank variances (:mod:`dsmgp.experts.low_rank`) of the large leaves of a posterior, made when predictions have asked enough of them.

A basis takes as long as the factorisation of its leaf a few times over (three times of 3,000 points, ten times of 400). As nobody knows how many
rows are yet to come, a leaf gets one when exact predictions of it have taken as long as that (the ski rental rule: at most twice the time of
the better choice), or would in one call. A call spends half as much time on bases as on its predictions, or some ten milliseconds: a large
basis is made over several calls. A basis that rows seldom can use is given up, and a leaf is tried once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.low_rank import LEAST_POINTS, LowRankVariance, low_rank_steps
from dsmgp.linalg.threads import one_thread

if TYPE_CHECKING:
    from dsmgp.experts.posterior import InMemoryLeafPosterior

__all__ = ["ALONE", "LeafBases", "LeafBasis", "MadeBases", "Tolerances"]

#: Low-rank variances by output.
LeafBasis = list[LowRankVariance]
#: Computes the largest relative errors of leaves' variances of y, (n_leaves,), in steps whose multiplications it yields.
Tolerances = Callable[[], Generator[float, None, Array]]
Result = TypeVar("Result")

# Rows, without and for each point of the leaf, that are predicted exactly in the time of a basis, as measured on leaves of 250 to 3,000 points.
COST_ROWS, COST_SHARE = 1200.0, 0.5
# A large leaf is read from memory in every call, which takes as long as so many rows; of rows that come alone each takes as long as so many.
ROWS_OF_CALL, ALONE = 24.0, 6.0
# Multiplications besides the triangular solve, for each point of a leaf, of a row that is predicted exactly.
POINT_WORK = 60.0
# Multiplications that any call may spend on bases, some ten milliseconds, and as a share of those of its predictions.
BUDGET_SHARE = 0.5
BRIEF_WORK = 1.5e8
# A basis is given up when so large a share of the rows that were predicted by it had to be predicted exactly as well: of so many rows at
# least, and of about so many of the last ones.
USELESS_SHARE, TRIED_ROWS, LAST_ROWS = 0.6, 64.0, 256.0


@dataclass(frozen=True, eq=False)
class MadeBases:
    """Bases and their errors, which a prediction takes together: other threads may make more meanwhile.

    Attributes
    ----------
    of_leaf : mapping of int to LeafBasis
    errors : ndarray of shape (n_leaves, 2)
        Mean and largest relative error of a leaf's variances of y; zero where they are exact.
    """

    of_leaf: Mapping[int, LeafBasis]
    errors: Array


class LeafBases:
    """The bases of the leaves of a posterior.

    Attributes
    ----------
    made : MadeBases
        Replaced, never changed.
    """

    def __init__(self, posterior: InMemoryLeafPosterior) -> None:
        sizes, n_outputs = posterior.points.first.sizes, posterior.leaf_gps.n_outputs
        self.made = MadeBases({}, np.zeros((len(sizes), 2)))
        # Multiplications of a row that is predicted exactly.
        self._row_work = n_outputs * (0.5 * np.square(sizes, dtype=float) + POINT_WORK * sizes)
        # Rows that are predicted exactly in the time of a basis; infinite of leaves that get none, or have been tried.
        self._cost = np.where(sizes >= LEAST_POINTS, COST_ROWS + COST_SHARE * sizes, math.inf)
        # Rows that were predicted exactly, by a basis, and by both.
        self._exact_rows, self._basis_rows, self._both_rows = np.zeros((3, len(sizes)))
        self._tolerances: Array | None = None
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._sample: _Task[Array] | None = None
        # The leaf whose basis is being made, over several calls.
        self._begun: tuple[int, _Task[LeafBasis | None]] | None = None

    @property
    def of_leaf(self) -> Mapping[int, LeafBasis]:
        return self.made.of_leaf

    def prepare(
        self,
        posterior: InMemoryLeafPosterior,
        leaves: Index,
        n_rows: Index,
        alone: bool,
        tolerances: Tolerances,
    ) -> MadeBases:
        """Count rows that are about to be predicted, make bases that pay, and return all that there are.

        Parameters
        ----------
        posterior : InMemoryLeafPosterior
        leaves, n_rows : ndarray of shape (n_reached,)
            Leaves that will be asked, and for how many rows.
        alone : bool
            Whether these are predicted one by one.
        tolerances : callable
        """
        coming = ALONE * n_rows if alone else n_rows + ROWS_OF_CALL
        spent, cost = self._exact_rows[leaves], self._cost[leaves]
        self._exact_rows[leaves] = spent + coming
        due = np.flatnonzero((spent >= cost) | (coming >= cost))
        # Another thread that makes bases is not waited for; nor one that is lost in a fork.
        if len(due) and self._lock.acquire(blocking=False):
            try:
                own_work = float(self._row_work[leaves] @ coming)
                budget = max(BRIEF_WORK, BUDGET_SHARE * own_work)
                most_first = due[np.argsort(-(spent + coming)[due] / cost[due], kind="stable")]
                self._make(posterior, leaves[most_first], budget, alone, tolerances)
            finally:
                self._lock.release()
        return self.made

    def _make(
        self,
        posterior: InMemoryLeafPosterior,
        due: Index,
        budget: float,
        alone: bool,
        tolerances: Tolerances,
    ) -> None:
        """Make bases of leaves, in this order, as far as the budget goes."""
        with one_thread():
            if self._tolerances is None:
                sample, self._sample = self._sample or _Task(tolerances()), None
                budget = sample.run(budget)
                if not sample.done:
                    self._sample = sample
                    return
                self._tolerances = sample.result
            budget = self._go_on(posterior, budget)
        due = due[np.isfinite(self._cost[due])]
        fits = int(np.searchsorted(np.cumsum(self._cost[due] * self._row_work[due]), budget))
        # Large leaves first, so that threads end together.
        whole = sorted(due[:fits].tolist(), key=lambda leaf: -self._row_work[leaf])
        tasks = {leaf: self._task(posterior, leaf) for leaf in whole}
        posterior.leaf_gps.threads.map(lambda task: task.run(math.inf), tasks.values(), alone)
        self._add(posterior, {leaf: task.result for leaf, task in tasks.items()})
        if not fits and len(due) and budget > 0.0:
            first = int(due[0])
            self._begun = first, self._task(posterior, first)
            with one_thread():
                self._go_on(posterior, budget)

    def _task(self, posterior: InMemoryLeafPosterior, leaf: int) -> _Task[LeafBasis | None]:
        assert self._tolerances is not None
        return _Task(_basis_steps(posterior, leaf, float(self._tolerances[leaf])))

    def _go_on(self, posterior: InMemoryLeafPosterior, budget: float) -> float:
        """Go on with the basis that an earlier call began; return what is left of the budget."""
        begun, self._begun = self._begun, None
        if begun is not None:
            leaf, task = begun
            budget = task.run(budget)
            if task.done:
                self._add(posterior, {leaf: task.result})
            else:
                self._begun = begun
        return budget

    def _add(self, posterior: InMemoryLeafPosterior, found: Mapping[int, LeafBasis | None]) -> None:
        """Add the bases that were found, as far as memory allows."""
        if not found:
            return
        room = posterior.memory - posterior.factors.n_bytes
        room -= sum(map(_n_bytes, self.made.of_leaf.values()))
        bases, errors = dict(self.made.of_leaf), self.made.errors.copy()
        for leaf, basis in found.items():
            self._cost[leaf] = math.inf
            if basis is not None and (room := room - _n_bytes(basis)) >= 0.0:
                bases[leaf] = basis
                errors[leaf] = np.sum([low_rank.errors for low_rank in basis], axis=0)
        self.made = MadeBases(bases, errors)

    def review(self, leaves: Index, redone: Index) -> None:
        """Give up bases that are of little use.

        Parameters
        ----------
        leaves : ndarray of shape (n_pairs,)
            Leaf of each row that was predicted by a basis.
        redone : ndarray of shape (n_redone,)
            The same of rows that had to be predicted exactly then.
        """
        if len(redone):
            forget = LAST_ROWS / np.maximum(self._basis_rows, LAST_ROWS)
            self._basis_rows *= forget
            self._both_rows *= forget
        np.add.at(self._basis_rows, leaves, 1.0)
        if not len(redone):
            return
        np.add.at(self._both_rows, redone, 1.0)
        used, both = self._basis_rows[redone], self._both_rows[redone]
        useless = set(redone[(used >= TRIED_ROWS) & (both > USELESS_SHARE * used)].tolist())
        if useless and self._lock.acquire(blocking=False):
            try:
                bases, errors = dict(self.made.of_leaf), self.made.errors.copy()
                for leaf in useless:
                    bases.pop(leaf, None)
                    errors[leaf] = 0.0
                self.made = MadeBases(bases, errors)
            finally:
                self._lock.release()

    def __getstate__(self) -> dict[str, Any]:
        kept = {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_sample", "_begun")}
        # Copies of what other threads count in.
        return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in kept.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Arrays that were mapped into memory are read-only.
        self._row_work, self._cost = self._row_work.copy(), self._cost.copy()
        counts = self._exact_rows, self._basis_rows, self._both_rows
        self._exact_rows, self._basis_rows, self._both_rows = (each.copy() for each in counts)
        self._start()


class _Task(Generic[Result]):
    """Work in steps, which yield their multiplications."""

    result: Result

    def __init__(self, steps: Generator[float, None, Result]) -> None:
        self._steps, self.done = steps, False

    def run(self, budget: float) -> float:
        """Go on until all is done or the budget is spent; return what is left of it."""
        while budget > 0.0 and not self.done:
            try:
                budget -= next(self._steps)
            except StopIteration as end:
                self.done, self.result = True, end.value
        return budget


def _basis_steps(
    posterior: InMemoryLeafPosterior, leaf: int, tolerance: float
) -> Generator[float, None, LeafBasis | None]:
    """Find low-rank variances of one leaf for all outputs, in steps; None if any has none."""
    X, basis = posterior.leaf_gps.data.X[posterior.points.first[leaf]], []
    n_outputs = posterior.leaf_gps.n_outputs
    for output in range(n_outputs):
        kernel, noise = posterior.bound(output, leaf), float(posterior.noise[leaf, output])
        factor = posterior.factor(output, leaf)
        # The gate takes the product of the outputs' variances: errors add up.
        alpha = posterior.alpha[output][posterior.place(leaf)]
        low_rank = yield from low_rank_steps(kernel, X, factor, alpha, noise, tolerance / n_outputs)
        if low_rank is None:
            return None
        basis.append(low_rank)
    return basis


def _n_bytes(basis: LeafBasis) -> int:
    return sum(low_rank.n_bytes for low_rank in basis)
