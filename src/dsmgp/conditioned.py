"""GP leaves that have seen their rows: what they say at new rows, and at each row without itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.batched import BatchedEngine
from dsmgp.chains import NotPositiveDefinite
from dsmgp.engine import Engine, Law, Left, Questions, Seen, law_codes
from dsmgp.execution import as_numpy, put, take, within_memory
from dsmgp.experts import Experts
from dsmgp.factors import Factors, Group, Packed, Stacked
from dsmgp.live import Column, inverse_diagonal
from dsmgp.loo import LeaveOneOut, LeftLeaves, LeftOut, any_equal, twins
from dsmgp.notices import FactorisationWarning, warn_user
from dsmgp.progress import tick
from dsmgp.ragged import Ragged
from dsmgp.routes import Routes
from dsmgp.shared import SharedEngine
from dsmgp.sharing import SharingPlan
from dsmgp.stationary import BoundStationary

__all__ = ["Conditioned"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


# Multiplications of a prediction that is over before threads would have begun, and pairs of leaf and row: see Threads.
BRIEF, BRIEF_PAIRS = 1e7, 1000
# Bytes of factors below which it is not these that a GPU is short of memory for.
LEAST_HELD = 2**24


class Conditioned:
    """Experts that have seen their rows, and answer for test rows.

    Parameters
    ----------
    experts : Experts
    naturals : sequence of Tensor
        Hyperparameters, one tensor per output: for all leaves, or a row for each.
    memory : float
        Bytes up to which factors are kept; beyond, they are made again when needed.
    leave_out : ndarray of shape (n_rows,), optional
        A number for each row from 0 on, equal for rows with equal inputs: every row is then also predicted from
        its leaf's other rows (see :class:`LeftOut`).
    share : bool
        Whether leaves that overlap may take their factors from one another, where that is faster.
    """

    def __init__(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        memory: float = math.inf,
        leave_out: Index | None = None,
        share: bool = True,
    ) -> None:
        self.experts = experts
        self.naturals = list(naturals)
        self.bound = experts.bind(naturals)
        #: Noise variance of each leaf and output, (n_leaves, n_outputs).
        self.noise = self._noise()
        #: Bytes up to which factors are kept.
        self.memory = memory
        self._left_variance: Array | None = None
        shared = SharedEngine.where_it_pays(experts, self.bound, memory) if share else None
        #: Whether any rows have the same inputs; unknown, and none, unless rows are left out.
        self.has_twins = leave_out is not None and any_equal(leave_out)
        self._labels = leave_out
        try:
            results = within_memory(
                lambda: self._see_all(shared or experts.engine), self._keep_less
            )
        except NotPositiveDefinite:
            # A leaf that needs more noise than the others has a factor of its own, and memory was not reckoned for it.
            results = self._see_all(experts.engine)
        self._warn_of_jitter([torch.stack([s.added for s in r]).amax(0) for r in results])
        self.log_evidence = experts.gather(
            self.engine,
            [torch.stack([s.log_evidence for s in r], -1) for r in results],
            experts.n_outputs,
        )
        self._number_leaves()
        #: By output, for the rows of one leaf after the other.
        self.alpha = self._alpha(results)
        self.left_out = None if leave_out is None else self._left_out(results)

    @classmethod
    def restored(
        cls,
        experts: Experts,
        naturals: Sequence[Tensor],
        leaf_rows: Ragged,
        log_evidence: Array,
        alpha: list[Tensor],
        factors: Sequence[Sequence[Tensor]],
        memory: float = math.inf,
    ) -> Conditioned:
        """Experts that saw their rows once before: what they found then, with factors by output and leaf.

        ``leaf_rows`` are each leaf's rows in the order of its alpha and its factor.
        """
        self = object.__new__(cls)
        self.experts, self.naturals = experts, list(naturals)
        self.bound = experts.bind(naturals)
        self.noise = self._noise()
        self.memory, self.has_twins = memory, False
        self.left_out = self._left_variance = self._labels = None
        self.engine = experts.engine_for(leaf_rows)
        self.log_evidence, self.alpha = log_evidence, alpha
        self._number_leaves()
        sizes = [0] * len(self.engine.groups)  # they are there already, and stay
        self.factors = Factors(self._made_again, sizes, math.inf)
        kind = Packed if experts.compiled else Stacked
        for group, numbers in enumerate(self.engine.groups):
            own = [kind.of([by_leaf[k] for k in numbers.tolist()]) for by_leaf in factors]
            self.factors.put(group, list(own))
        return self

    def again(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        leave_out: Index | None = None,
        watched: Index | None = None,
    ) -> Conditioned:
        """Other experts, or other hyperparameters, conditioned as these were; of which rows left out it will be
        asked is said before (here all of them are at hand)."""
        return Conditioned(experts, naturals, self.memory, leave_out)

    def local(self) -> Conditioned:
        """The same with all leaves in this process."""
        return self

    def _number_leaves(self) -> None:
        #: By leaf: its group and its place there; -1 for leaves without rows.
        self.group = np.full(self.experts.n_leaves, -1)
        self.slot = np.full(self.experts.n_leaves, -1)
        for group, numbers in enumerate(self.engine.groups):
            self.group[numbers], self.slot[numbers] = group, np.arange(len(numbers))

    def factor(self, output: int, number: int) -> Tensor:
        """The lower factor of a leaf that has rows."""
        return self.factors.get(int(self.group[number]))[output][int(self.slot[number])]

    @property
    def leaf_rows(self) -> Ragged:
        """Each leaf's rows, in the order of its alpha, its factor and its rows left out."""
        return self.engine.leaf_rows

    @property
    def leaf_sizes(self) -> Index:
        """Rows of each leaf."""
        return self.leaf_rows.sizes

    @property
    def sharing(self) -> SharingPlan | None:
        """How leaves share their factors, where they do."""
        return self.engine.plan if isinstance(self.engine, SharedEngine) else None

    def _noise(self) -> Array:
        n_leaves = self.experts.n_leaves
        table = np.empty((n_leaves, self.experts.n_outputs))
        for output, natural in enumerate(self.bound.naturals):
            if natural.ndim == 1:  # one for all
                together = [np.arange(n_leaves)]
            else:
                together = _where_equal(self.experts.laws[output])
            for numbers in together:
                law = self.bound(output, numbers)
                table[numbers, output] = as_numpy(law.noise.reshape(-1))
        return table

    @property
    def prior_variance(self) -> Array:
        """The most that f varies under each leaf's prior, (n_leaves, n_outputs); as much as there is where it has no
        bound."""
        table = np.full(self.noise.shape, np.finfo(np.float64).max)
        for output, natural in enumerate(self.bound.naturals):
            for numbers in _where_equal(self.experts.laws[output]):
                law = self.bound(output, numbers)
                if isinstance(law, BoundStationary):
                    scale = law.outputscale if natural.ndim == 2 else law.outputscale[0]
                    table[numbers, output] = as_numpy(scale)
        return table

    def _alpha(self, results: Sequence[list[Seen]]) -> list[Tensor]:
        """From groups of leaves to the order of the leaves."""
        found = []
        for output in range(self.experts.n_outputs):
            flat = self.experts.X.new_empty(len(self.leaf_rows.flat))
            for numbers, seen in zip(self.engine.groups, results, strict=True):
                put(flat, self.leaf_rows.positions(numbers), seen[output].alpha)
            found.append(flat)
        return found

    def _left_out(self, results: Sequence[list[Seen]]) -> LeftOut:
        """From how far rows left out then are from what was observed, group by group."""
        numbers = np.concatenate([np.empty(0, np.int64), *self.engine.groups])
        place = self.leaf_rows.positions(numbers)  # of the rows of one group after the other
        y = as_numpy(self.experts.Y)[self.leaf_rows.flat]
        left = [[s[output].left_out for s in results] for output in range(y.shape[1])]

        def gathered(of: Callable[[Left], Array]) -> Array:
            table = np.empty(y.shape)
            for output, groups in enumerate(left):
                found = [of(group) for group in groups if group is not None]
                table[place, output] = np.concatenate([np.empty(0), *found])
            return table

        mean, variance = y - gathered(lambda g: g.away), gathered(lambda g: g.variance)
        if all(g is None or g.twins_too is None for groups in left for g in groups):
            return LeftOut(mean, variance, mean, variance, None)  # no twins: not kept twice
        return LeftOut(
            mean,
            variance,
            grouped_mean=y - gathered(lambda g: g.grouped[0]),
            grouped_variance=gathered(lambda g: g.grouped[1]),
            grouped_log_density=gathered(lambda g: g.grouped[2]),
        )

    def _keep_less(self) -> bool:
        """Where memory is short for seeing the rows: fewer factors, in smaller batches; no if these are small
        already."""
        held = min(self.memory, sum(self.factors.sizes))
        self.memory = held / 2
        return self.experts.take_less() or held > LEAST_HELD

    def _ask_less(self) -> bool:
        """The same for predictions, whose groups of leaves stay as they are."""
        let_go = self.factors.keep_less()
        return (isinstance(self.engine, BatchedEngine) and self.engine.take_less()) or let_go

    def _see_all(self, engine: Engine) -> list[list[Seen]]:
        """What an engine says of all leaves, by group and output."""
        self.engine, n_groups = engine, len(engine.groups)
        each = self.experts.X.element_size() * self.experts.n_outputs
        sizes = [each * engine.elements(group) for group in range(n_groups)]
        self.factors = Factors(self._made_again, sizes, self.memory)
        return self.experts.map(engine, self._see, range(n_groups))

    def _see(self, group: int) -> list[Seen]:
        keep, twins = self.factors.keeps(group), self._twins(group)
        seen = [
            self.engine.condition(self.bound, output, group, keep, twins)
            for output in range(self.experts.n_outputs)
        ]
        # By NumPy: torch can hang, instead of failing, where not a byte of memory is left.
        if not all(np.isfinite(as_numpy(s.log_evidence)).all() for s in seen):
            raise ValueError(
                "a leaf's covariance matrix could not be factorised even with added noise; "
                "raise noise_variance, or check the kernel's hyperparameters"
            )
        if keep:
            self.factors.put(group, [s.factors for s in seen if s.factors is not None])
        tick((group + 1) / len(self.engine.groups))
        return seen

    def _twins(self, group: int) -> list[list[Index]] | None:
        """Rows of a group's leaves that leave together, leaf by leaf; None where none are to leave."""
        if self._labels is None:
            return None
        if not self.has_twins:
            return [[] for _ in self.engine.groups[group]]
        return [twins(self._labels[self.leaf_rows[k]]) for k in self.engine.groups[group]]

    def _made_again(self, group: int) -> Group:
        """A group's factors, by output and leaf."""
        seen = [
            self.engine.condition(self.bound, output, group, True, None)
            for output in range(self.experts.n_outputs)
        ]
        return [s.factors for s in seen if s.factors is not None]

    def _warn_of_jitter(self, added: Sequence[Tensor]) -> None:
        """One warning for all leaves whose matrix had to be helped."""
        amount = self.experts.gather(self.engine, [a.unsqueeze(-1) for a in added], 1)[:, 0]
        helped = np.flatnonzero(amount > 0)
        if helped.size:
            named = ", ".join(
                f"leaf {self.experts.name(k)} ({self.leaf_rows.sizes[k]} rows)"
                for k in helped[:5].tolist()
            )
            more = f" and {helped.size - 5} more" if helped.size > 5 else ""
            warn_user(
                f"not positive definite: the covariance of {named}{more}; up to {amount.max():.3g} was "
                "added to the diagonal. Repeated rows and very small noise cause this: raise "
                "noise_variance.",
                FactorisationWarning,
                topic="added noise",
            )

    def left_leaves(self) -> LeftLeaves:
        """The leaves without each of their rows."""
        assert self.left_out is not None, "rows were not left out"
        known = self.experts.known
        return LeftLeaves(
            self.left_out,
            self.leaf_rows,
            as_numpy(self.experts.Y),
            None if known is None else as_numpy(known),
            self._labels if self.has_twins else None,
        )

    def leave_one_out(self) -> LeaveOneOut:
        """Every row predicted from all other rows; rows must have been left out."""
        left = self.left_leaves()
        return LeaveOneOut(left.squares, left.counts, left.pairs, left.known is not None)

    def forget_left_out(self) -> None:
        """Drop most of what was left out, which takes more memory than the rows, once it has been used.

        Variances stay: rows that come or go later change them, and to begin with they cost as much as the factor.
        """
        if self.left_out is not None:
            self._left_variance = self.left_out.variance
        self.left_out = self._labels = None

    def release(self) -> None:
        """Let go of factors at once; nothing can be asked then. They and these leaves point at one another, and
        would else wait for Python to look for such circles."""
        del self.factors

    def columns(self, number: int) -> tuple[Column, ...] | None:
        """What was computed of one leaf, output by output, on the CPU; nothing if its factor was not kept."""
        if self.group[number] >= 0 and not self.factors.holds(int(self.group[number])):
            return None
        own = slice(*self.leaf_rows.ends[number : number + 2].tolist())
        group, slot, found = int(self.group[number]), int(self.slot[number]), []
        factors = self.factors.get(group) if group >= 0 else None
        for output in range(self.experts.n_outputs):
            factor = np.empty((0, 0)) if factors is None else as_numpy(factors[output][slot])
            factor = np.tril(factor)
            if self._left_variance is None:
                diagonal = inverse_diagonal(factor)
            else:
                diagonal = 1.0 / self._left_variance[own, output]
            alpha = as_numpy(self.alpha[output][own])
            found.append(Column(factor, alpha, diagonal, float(self.log_evidence[number, output])))
        return tuple(found)

    @property
    def n_rows(self) -> int:
        return len(self.experts.Y)

    def predict(self, routes: Routes, X: Tensor, with_variance: bool = True) -> tuple[Array, Array]:
        """Mean and variance of f for every pair of leaf and row of X, (n_pairs, n_outputs) each.

        Without variances, which cost most, the second is empty.
        """
        n_outputs, n_pairs = self.experts.n_outputs, len(routes.rows.flat)
        mean = X.new_empty(n_pairs, n_outputs)
        variance = X.new_empty(n_pairs if with_variance else 0, n_outputs)
        group_of = self.group[routes.leaf]
        order = np.argsort(group_of, kind="stable")
        found, starts = np.unique(group_of[order], return_index=True)
        members = dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))

        def work(group: int) -> None:
            asked = members[group]  # places in routes.leaf
            where = routes.rows.positions(asked)
            tests = take(X, routes.rows.flat[where])
            means, variances = self._answers(
                group, routes.leaf[asked], tests, routes.rows.sizes[asked], with_variance
            )
            put(mean, where, means)
            if with_variance:
                put(variance, where, variances)

        # Groups are in order of size, and -1 stands for leaves without rows: it goes last.
        groups = sorted(members, key=lambda group: (group < 0, group))
        work_load = np.square(self.leaf_rows.sizes[routes.leaf]) @ routes.rows.sizes
        brief = self.experts.compiled and n_pairs <= BRIEF_PAIRS and work_load <= BRIEF / n_outputs
        within_memory(
            lambda: self.experts.map(self.engine, work, groups, bool(brief)), self._ask_less
        )
        return as_numpy(mean), as_numpy(variance)

    def _answers(
        self, group: int, numbers: Index, X: Tensor, sizes: Index, with_variance: bool
    ) -> tuple[Tensor, Tensor]:
        """By leaves of one group, for their rows one leaf after the other."""
        ends = np.concatenate([[0], np.cumsum(sizes)])
        factors = self.factors.get(group) if with_variance and group >= 0 else None
        by_output = []
        for output in range(self.experts.n_outputs):
            if group < 0:
                by_output.append(self._prior(output, numbers, X, ends, with_variance))
                continue
            own = None if factors is None else factors[output]
            asked = Questions(numbers, self.slot[numbers], X, ends, self.alpha[output], own)
            by_output.append(self.engine.predict(self.bound, output, asked))
        means, variances = zip(*by_output, strict=True)
        return torch.stack(means, -1), torch.stack(variances, -1)

    def _prior(
        self, output: int, numbers: Index, X: Tensor, ends: Index, with_variance: bool
    ) -> tuple[Tensor, Tensor]:
        """What leaves without rows say."""
        means, variances = [], [X.new_empty(0)]
        for k, number in enumerate(numbers.tolist()):
            law, own = self.bound(output, [number]), X[ends[k] : ends[k + 1]].unsqueeze(0)
            means.append(law.mean(own)[0])
            if with_variance:
                variances.append(law.variance(own)[0])
        return torch.cat(means), torch.cat(variances)

    def joint(self, number: int, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n_test, n_outputs) and covariance (n_outputs, n_test, n_test) of f by one leaf."""
        means, covariances = [], []
        rows = torch.from_numpy(self.leaf_rows[number]).to(X.device)
        test, train = X.unsqueeze(0), self.experts.X[rows].unsqueeze(0)
        own = slice(*self.leaf_rows.ends[number : number + 2].tolist())
        for output in range(self.experts.n_outputs):
            law = self.bound(output, [number])
            mean, covariance = law.mean(test)[0], law.cross(test, test)[0]
            if len(rows):
                cross = law.cross(test, train)[0]
                mean = mean + cross @ self.alpha[output][own]
                factor = self.factor(output, number)
                half = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
                covariance = covariance - half.mT @ half
            means.append(mean)
            covariances.append(covariance)
        return torch.stack(means, -1), torch.stack(covariances)


def _where_equal(laws: Sequence[Law]) -> list[Index]:
    """Numbers of leaves whose law is the same; of a law that is not batched, one by one."""
    codes = np.array(law_codes([laws]))
    found = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    return [
        part
        for numbers in found
        for part in ([numbers] if laws[numbers[0]].batched else np.split(numbers, len(numbers)))
    ]
