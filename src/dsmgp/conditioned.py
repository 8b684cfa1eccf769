"""GP leaves that have seen their rows: what they say at new rows, and at each row without itself."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.experts import BoundLaw, Experts, Solution, half_inverse

__all__ = ["Conditioned", "FactorisationWarning", "LeftOut"]

# Test rows that one leaf answers at a time.
TILE = 4096


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
    """

    def __init__(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        memory: float = math.inf,
        leave_out: NDArray[np.int64] | None = None,
    ) -> None:
        self.experts = experts
        self._leave_out = leave_out
        self._targets = experts.Y.to("cpu", torch.float64).numpy()
        self.naturals = list(naturals)
        self.bound = experts.bind(naturals)
        n_outputs = experts.n_outputs
        #: Noise variance of each leaf and output, (n_leaves, n_outputs).
        self.noise = self._noise()
        element = experts.X.element_size()
        sizes = [[len(experts.leaf_rows[k]) for k in group] for group in experts.groups]
        cost = np.cumsum([len(s) * max(s) ** 2 * element * n_outputs for s in sizes])
        self.n_kept = int(np.searchsorted(cost, memory, side="right"))
        self._made: tuple[int, list[Tensor]] | None = None  # factors made again last
        results = experts.map(self._condition, range(len(experts.groups)))
        self._warn_of_jitter([r[4] for r in results])
        self.log_evidence = experts.gather([r[0] for r in results], n_outputs)
        self.alphas = [r[1] for r in results]
        self.factors = [r[2] for r in results]
        #: By leaf number, for leaves with rows.
        self.left_out: dict[int, LeftOut] = {
            number: found
            for numbers, r in zip(experts.groups, results, strict=True)
            for number, found in zip(numbers, r[3], strict=bool(r[3]))
        }
        self.place = {
            number: (group, slot)
            for group, numbers in enumerate(experts.groups)
            for slot, number in enumerate(numbers)
        }

    def _noise(self) -> NDArray[np.float64]:
        rows = [
            torch.stack([law.noise.reshape(-1)[0] for law in self.bound([number])])
            for number in range(self.experts.n_leaves)
        ]
        return np.asarray(torch.stack(rows).to("cpu", torch.float64).numpy())

    def _condition(
        self, group: int
    ) -> tuple[Tensor, list[Tensor], list[Tensor] | None, list[LeftOut], Tensor]:
        solutions = self.experts.solutions(self.bound, group)
        evidence = torch.stack([s.log_evidence for s in solutions], -1)
        if not torch.isfinite(evidence).all():
            raise ValueError(
                "a leaf's covariance matrix could not be factorised even with added noise; "
                "raise noise_variance, or check the kernel's hyperparameters"
            )
        factors = [s.factor for s in solutions] if group < self.n_kept else None
        left_out = [] if self._leave_out is None else self._leave_one_out(group, solutions)
        added = torch.stack(
            [
                s.nugget - law.noise
                for s, law in zip(solutions, self.bound(self.experts.groups[group]), strict=True)
            ]
        )
        return evidence, [s.alpha for s in solutions], factors, left_out, added.amax(0)

    def _warn_of_jitter(self, added: Sequence[Tensor]) -> None:
        """One warning for all leaves whose matrix had to be helped."""
        amount = self.experts.gather([a.unsqueeze(-1) for a in added], 1)[:, 0]
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

    def _leave_one_out(self, group: int, solutions: list[Solution]) -> list[LeftOut]:
        """Every row from its leaf's other rows, all at once (R&W eqs. 5.10 to 5.12)."""
        assert self._leave_out is not None
        numbers = self.experts.groups[group]
        rows = [self.experts.leaf_rows[number].cpu().numpy() for number in numbers]
        twins = [_twins(self._leave_out[own]) for own in rows]
        found: list[list[tuple[NDArray[np.float64], ...]]] = [[] for _ in numbers]
        for output, solution in enumerate(solutions):
            half = half_inverse(solution.factor)
            variance = 1.0 / half.square().sum(-2)  # the inverse's diagonal
            away = solution.alpha * variance
            on_host = [t.to("cpu", torch.float64).numpy() for t in (away, variance)]
            for slot, own in enumerate(rows):
                y = self._targets[own, output]
                lone = [table[slot, : len(own)] for table in on_host]
                grouped = [table.copy() for table in lone]
                for members in twins[slot]:  # groups of one size at a time: (groups, size)
                    at = torch.from_numpy(members).to(half.device)
                    columns = half[slot][:, at].movedim(0, 1)  # (groups, rows, size)
                    S = torch.linalg.inv(columns.mT @ columns)
                    pulled = (S @ solution.alpha[slot, at].unsqueeze(-1)).squeeze(-1)
                    grouped[0][members] = pulled.to("cpu", torch.float64).numpy()
                    diagonal = S.diagonal(dim1=-2, dim2=-1)
                    grouped[1][members] = diagonal.to("cpu", torch.float64).numpy()
                found[slot].append((y - lone[0], lone[1], y - grouped[0], grouped[1]))
        return [
            LeftOut(*(np.stack([one[k] for one in by_output], -1) for k in range(4)))
            for by_output in found
        ]

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
            factors = self._factors(group) if with_variance else None
            return [self._predict(*tasks[task], factors) for task in by_group[group]]

        # Groups are in order of size, and -1 stands for leaves without rows: it goes last.
        groups = sorted(by_group, key=lambda group: (group < 0, group))
        answers: list[tuple[Tensor, Tensor]] = [None] * len(tasks)  # type: ignore[list-item]
        for group, found in zip(groups, self.experts.map(work, groups), strict=True):
            for task, answer in zip(by_group[group], found, strict=True):
                answers[task] = answer
        return answers

    def _predict(
        self, number: int, X: Tensor, factors: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        means, variances = [], []
        for output, law in enumerate(self.bound([number])):
            tiles = []
            for tile in X.split(TILE):
                mean, half = self._reduce(number, law, tile, output, factors)
                if factors is None:
                    variance = tile.new_empty(0)
                else:
                    variance = law.variance(tile.unsqueeze(0))[0] - half.square().sum(0)
                tiles.append((mean, variance.clamp_min(0.0)))
            means.append(torch.cat([mean for mean, _ in tiles]))
            variances.append(torch.cat([variance for _, variance in tiles]))
        return torch.stack(means, -1), torch.stack(variances, -1)

    def joint(self, number: int, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n_test, n_outputs) and covariance (n_outputs, n_test, n_test) of f by one leaf."""
        factors = self._factors(self.place.get(number, (-1, 0))[0])
        means, covariances = [], []
        for output, law in enumerate(self.bound([number])):
            mean, half = self._reduce(number, law, X, output, factors)
            means.append(mean)
            covariances.append(law.cross(X.unsqueeze(0), X.unsqueeze(0))[0] - half.mT @ half)
        return torch.stack(means, -1), torch.stack(covariances)

    def _factors(self, group: int) -> list[Tensor]:
        """A group's factors, kept or made again; none for leaves without rows."""
        if group < 0:
            return []
        kept = self.factors[group]
        if kept is not None:
            return kept
        made = self._made  # read once: another thread may replace it
        if made is None or made[0] != group:
            made = self._made = (
                group,
                [s.factor for s in self.experts.solutions(self.bound, group)],
            )
        return made[1]

    def _reduce(
        self, number: int, law: BoundLaw, X: Tensor, output: int, factors: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Posterior mean of f, and the matrix whose Gram matrix is what the data take off the prior's
        covariance: L^-1 k(train, X) (R&W algorithm 2.1). An empty leaf keeps its prior."""
        rows = self.experts.leaf_rows[number]
        mean, n = law.mean(X.unsqueeze(0))[0], len(rows)
        if not n:
            return mean, X.new_zeros(0, len(X))
        group, slot = self.place[number]
        train = self.experts.X[rows]
        cross = law.cross(X.unsqueeze(0), train.unsqueeze(0))[0]  # (n_test, n)
        mean = mean + cross @ self.alphas[group][output][slot, :n]
        if factors is None:
            return mean, X.new_zeros(0, len(X))
        factor = factors[output][slot, :n, :n]
        return mean, torch.linalg.solve_triangular(factor, cross.mT, upper=False)


def _twins(labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Positions that share a label with another, one (groups, size) array for each size of group."""
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    return [
        order[starts[counts == size][:, None] + np.arange(size)]
        for size in np.unique(counts)
        if size > 1
    ]
