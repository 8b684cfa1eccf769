"""GP leaves that have seen their rows: what they say at new rows, and at each row without itself."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.chains import NotPositiveDefinite
from dsmgp.engine import Engine, Left, Question, Seen
from dsmgp.experts import Experts
from dsmgp.factors import Factors, Group
from dsmgp.shared import SharedEngine
from dsmgp.sharing import SharingPlan

__all__ = ["Conditioned", "FactorisationWarning", "LeftOut"]


class FactorisationWarning(UserWarning):
    """A leaf's covariance matrix needed more noise than it has to be factorised."""


@dataclass(frozen=True)
class LeftOut:
    """A leaf's law of y at each of its rows, given its other rows: (rows, outputs) each.

    ``grouped`` leaves out with a row all rows that have the same inputs: what the leaf would say at
    inputs it has never seen.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    grouped_mean: NDArray[np.float64]
    grouped_variance: NDArray[np.float64]


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
        A number for each row, equal for rows with equal inputs: every row is then also predicted from its
        leaf's other rows (see :class:`LeftOut`).
    share : bool
        Whether leaves that overlap may take their factors from one another, where that is faster.
    """

    def __init__(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        memory: float = math.inf,
        leave_out: NDArray[np.int64] | None = None,
        share: bool = True,
    ) -> None:
        self.experts = experts
        self.naturals = list(naturals)
        self.bound = experts.bind(naturals)
        #: Noise variance of each leaf and output, (n_leaves, n_outputs).
        self.noise = self._noise()
        shared = SharedEngine.where_it_pays(experts, self.bound, memory) if share else None
        twins = _twins_of(leave_out)
        try:
            results = self._see_all(shared or experts.engine, memory, twins)
        except NotPositiveDefinite:
            # A leaf that needs more noise than the others has a factor of its own, and memory was not reckoned for it.
            results = self._see_all(experts.engine, memory, twins)
        self._warn_of_jitter([torch.stack([s.added for s in r]).amax(0) for r in results])
        self.log_evidence = experts.gather(
            self.engine,
            [torch.stack([s.log_evidence for s in r], -1) for r in results],
            experts.n_outputs,
        )
        #: By leaf number, for leaves with rows: its group and place there, alpha by output, rows left out.
        self.place: dict[int, tuple[int, int]] = {}
        self.alpha: dict[int, list[Tensor]] = {}
        self.left_out: dict[int, LeftOut] = {}
        targets = experts.Y.to("cpu", torch.float64).numpy()
        for group, (numbers, seen) in enumerate(zip(self.engine.groups, results, strict=True)):
            for slot, number in enumerate(numbers):
                self.place[number] = group, slot
                self.alpha[number] = [s.alpha[slot] for s in seen]
                left = [s.left_out[slot] for s in seen if s.left_out is not None]
                if left:
                    y = targets[self.leaf_rows[number].cpu().numpy()]
                    self.left_out[number] = _left_out(y, left)

    @property
    def leaf_rows(self) -> Sequence[Tensor]:
        """Each leaf's rows, in the order of its alpha, its factor and its rows left out."""
        return self.engine.leaf_rows

    @property
    def sharing(self) -> SharingPlan | None:
        """How leaves share their factors, where they do."""
        return self.engine.plan if isinstance(self.engine, SharedEngine) else None

    def _noise(self) -> NDArray[np.float64]:
        n_leaves = self.experts.n_leaves
        columns = []
        for output, natural in enumerate(self.bound.naturals):
            asked = range(n_leaves) if natural.ndim == 2 else range(1)  # or one for all
            own = [self.bound(output, [number]).noise.reshape(-1)[0] for number in asked]
            columns.append(torch.stack(own).expand(n_leaves))
        return np.asarray(torch.stack(columns, -1).to("cpu", torch.float64).numpy())

    def _see_all(self, engine: Engine, memory: float, twins: Twins | None) -> list[list[Seen]]:
        """What an engine says of all leaves, by group and output."""
        self.engine, n_groups = engine, len(engine.groups)
        each = self.experts.X.element_size() * self.experts.n_outputs
        sizes = [each * engine.elements(group) for group in range(n_groups)]
        self.factors = Factors(self._made_again, sizes, memory)
        return self.experts.map(engine, lambda group: self._see(group, twins), range(n_groups))

    def _see(self, group: int, twins: Twins | None) -> list[Seen]:
        own = None
        if twins is not None:
            own = [twins(self.leaf_rows[k].cpu().numpy()) for k in self.engine.groups[group]]
        keep = self.factors.keeps(group)
        seen = [
            self.engine.condition(self.bound, output, group, keep, own)
            for output in range(self.experts.n_outputs)
        ]
        if not all(bool(torch.isfinite(s.log_evidence).all()) for s in seen):
            raise ValueError(
                "a leaf's covariance matrix could not be factorised even with added noise; "
                "raise noise_variance, or check the kernel's hyperparameters"
            )
        if keep:
            self.factors.put(group, [s.factor for s in seen if s.factor is not None])
        return seen

    def _made_again(self, group: int) -> Group:
        """A group's factors, by output and leaf."""
        seen = [
            self.engine.condition(self.bound, output, group, True, None)
            for output in range(self.experts.n_outputs)
        ]
        return [s.factor for s in seen if s.factor is not None]

    def _warn_of_jitter(self, added: Sequence[Tensor]) -> None:
        """One warning for all leaves whose matrix had to be helped."""
        amount = self.experts.gather(self.engine, [a.unsqueeze(-1) for a in added], 1)[:, 0]
        helped = np.flatnonzero(amount > 0)
        if helped.size:
            named = ", ".join(
                f"leaf {k} ({len(self.experts.leaf_rows[k])} rows)" for k in helped[:5].tolist()
            )
            more = f" and {helped.size - 5} more" if helped.size > 5 else ""
            warnings.warn(
                f"not positive definite: the covariance of {named}{more}; up to {amount.max():.3g} was "
                "added to the diagonal. Repeated rows and very small noise cause this: raise "
                "noise_variance.",
                FactorisationWarning,
                stacklevel=6,
            )

    def forget_left_out(self) -> None:
        """Drop what was left out, which takes more memory than the rows, once it has been used."""
        self.left_out = {}

    def predict(
        self, tasks: Sequence[tuple[int, Tensor]], with_variance: bool = True
    ) -> list[tuple[Tensor, Tensor]]:
        """For each (leaf number, test rows): mean and variance of f, (n_test, n_outputs) each.

        Without variances, which cost most, the second is empty.
        """
        by_group: dict[int, list[int]] = {}
        for task, (number, _) in enumerate(tasks):
            by_group.setdefault(self.place.get(number, (-1, 0))[0], []).append(task)

        def work(group: int) -> list[tuple[Tensor, Tensor]]:
            return self._answers(group, [tasks[task] for task in by_group[group]], with_variance)

        # Groups are in order of size, and -1 stands for leaves without rows: it goes last.
        groups = sorted(by_group, key=lambda group: (group < 0, group))
        answers: list[tuple[Tensor, Tensor]] = [None] * len(tasks)  # type: ignore[list-item]
        results = self.experts.map(self.engine, work, groups)
        for group, found in zip(groups, results, strict=True):
            for task, answer in zip(by_group[group], found, strict=True):
                answers[task] = answer
        return answers

    def _answers(
        self, group: int, tasks: Sequence[tuple[int, Tensor]], with_variance: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """By leaves of one group."""
        by_output = []
        factors = self.factors.get(group) if with_variance and group >= 0 else None
        for output in range(self.experts.n_outputs):
            if group < 0:
                by_output.append([self._prior(output, *task, with_variance) for task in tasks])
                continue
            questions = [
                Question(
                    number,
                    self.alpha[number][output],
                    None if factors is None else factors[output][self.place[number][1]],
                    X,
                )
                for number, X in tasks
            ]
            by_output.append(self.engine.predict(self.bound, output, questions))
        return [
            (torch.stack([m for m, _ in own], -1), torch.stack([v for _, v in own], -1))
            for own in zip(*by_output, strict=True)
        ]

    def _prior(
        self, output: int, number: int, X: Tensor, with_variance: bool
    ) -> tuple[Tensor, Tensor]:
        """What a leaf without rows says."""
        law = self.bound(output, [number])
        variance = law.variance(X.unsqueeze(0))[0] if with_variance else X.new_empty(0)
        return law.mean(X.unsqueeze(0))[0], variance

    def joint(self, number: int, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n_test, n_outputs) and covariance (n_outputs, n_test, n_test) of f by one leaf."""
        means, covariances = [], []
        test, train = X.unsqueeze(0), self.experts.X[self.leaf_rows[number]].unsqueeze(0)
        for output in range(self.experts.n_outputs):
            law = self.bound(output, [number])
            mean, covariance = law.mean(test)[0], law.cross(test, test)[0]
            if number in self.place:
                group, slot = self.place[number]
                cross = law.cross(test, train)[0]
                mean = mean + cross @ self.alpha[number][output]
                factor = self.factors.get(group)[output][slot]
                half = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
                covariance = covariance - half.mT @ half
            means.append(mean)
            covariances.append(covariance)
        return torch.stack(means, -1), torch.stack(covariances)


def _left_out(y: NDArray[np.float64], left: Sequence[Left]) -> LeftOut:
    """A leaf's rows left out, from how far they then are from what was observed, by output."""
    away, variance, grouped, grouped_variance = (
        np.stack([one[k] for one in left], -1) for k in range(4)
    )
    return LeftOut(y - away, variance, y - grouped, grouped_variance)


Twins = Callable[[NDArray[np.int64]], list[NDArray[np.int64]]]


def _twins_of(labels: NDArray[np.int64] | None) -> Twins | None:
    """From rows to those among them that share a label; None without labels."""
    if labels is None:
        return None
    if len(np.unique(labels)) == len(labels):
        return lambda rows: []
    return lambda rows: _twins(labels[rows])


def _twins(labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Positions that share a label with another, one (groups, size) array for each size of group."""
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    return [
        order[starts[counts == size][:, None] + np.arange(size)]
        for size in np.unique(counts)
        if size > 1
    ]
