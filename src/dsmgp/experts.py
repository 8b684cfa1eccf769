"""GP leaves in batches of like size: evidence, its gradient, conditioning and prediction.

A batch is padded to its largest leaf. A padded row lies infinitely far from all others and has
observation zero, so it changes nothing. All numbers here are in the units the experts see.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.execution import LocalExecutor
from dsmgp.general import BoundGeneral, General
from dsmgp.stationary import BoundStationary, Stationary
from dsmgp.tree import Leaf

__all__ = ["Conditioned", "Experts", "FactorisationWarning"]

Result = TypeVar("Result")
Law = Stationary | General
BoundLaw = BoundStationary | BoundGeneral

LOG_2PI = math.log(2.0 * math.pi)
# Elements of one batch of matrices: a few of them fit in a core's cache, or fill a GPU.
BATCH_ELEMENTS = {"cpu": 2**18, "cuda": 2**27}
# Rows of a smaller leaf may be padded by this share of the batch's largest.
MOST_PADDING = 0.15
# A leaf with more rows is worth all cores by itself. Its last digits then depend on their number.
PARALLEL_ROWS = 3000
# Jitter is raised tenfold from the first of these to the last, times the matrix's mean diagonal.
JITTER = {torch.float64: (1e-12, 1e-4), torch.float32: (1e-6, 1e-2)}
# Test rows that one leaf answers at a time.
TILE = 4096


class FactorisationWarning(UserWarning):
    """A leaf's covariance matrix needed more noise than it has to be factorised."""


@dataclass(frozen=True)
class Batch:
    """Leaves of like size, stacked: X (leaves, rows, dims), y (leaves, rows, outputs)."""

    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    X: Tensor
    y: Tensor
    mask: Tensor


@dataclass
class Solution:
    """A batch's matrices factorised: lower factors, K^-1 (y - mean), what was added to the diagonal."""

    factor: Tensor
    alpha: Tensor
    residual: Tensor
    nugget: Tensor
    mask: Tensor

    @property
    def log_evidence(self) -> Tensor:
        """Log density of the observations (R&W eq. 2.30), one per leaf."""
        fit = (self.residual * self.alpha).sum(-1)
        logs = self.factor.diagonal(dim1=-2, dim2=-1).log() * self.mask
        n = self.mask.sum(-1).to(fit)  # an integer times a number would be of torch's default dtype
        return -0.5 * (fit + n * LOG_2PI) - logs.sum(-1)

    def student(self, rows: float) -> tuple[Tensor, Tensor]:
        """Log evidence with the leaf's scale integrated out, and the pull on its residuals.

        The scale has an inverse-gamma prior worth ``rows`` rows at scale one, which makes the leaf a
        multivariate Student-t with that many degrees of freedom. Its gradient is the Gaussian's with
        ``alpha alpha'`` multiplied by the pull, the inverse of the scale that the leaf's rows suggest: a
        leaf that is much noisier than the rest does not decide theta for all.
        """
        fit = (self.residual * self.alpha).sum(-1)
        log_det = 2.0 * (self.factor.diagonal(dim1=-2, dim2=-1).log() * self.mask).sum(-1)
        n = self.mask.sum(-1).to(fit)
        half = torch.tensor(0.5 * rows).to(fit)
        constant = (
            torch.lgamma(half + 0.5 * n) - torch.lgamma(half) - 0.5 * n * math.log(rows * math.pi)
        )
        evidence = constant - 0.5 * log_det - (half + 0.5 * n) * torch.log1p(fit / rows)
        return evidence, (rows + n) / (rows + fit)


class Experts:
    """The GPs of a tree's leaves over their training rows.

    Parameters
    ----------
    leaves : sequence of Leaf
        In the order of their numbers; leaves without rows are allowed.
    X : Tensor of shape (n_rows, n_dims)
    Y : Tensor of shape (n_rows, n_outputs)
    laws : sequence of Stationary or General
        How each output's covariance is computed.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law],
        executor: LocalExecutor | None = None,
    ) -> None:
        self.X, self.Y, self.laws = X, Y, list(laws)
        none = np.empty(0, dtype=np.int64)
        rows = [none if leaf.rows is None else leaf.rows for leaf in leaves]
        self.leaf_rows = [torch.tensor(r, device=X.device) for r in rows]
        self.executor = executor or LocalExecutor(X.device)
        largest = 0 if all(law.batched for law in laws) else 1
        self.groups = _groups([len(rows) for rows in self.leaf_rows], X.device, largest)

    @property
    def n_leaves(self) -> int:
        return len(self.leaf_rows)

    def batch(self, numbers: Sequence[int]) -> Batch:
        sizes = tuple(len(self.leaf_rows[k]) for k in numbers)
        rows = [self.leaf_rows[k] for k in numbers]
        where = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # padded with row 0
        ends = torch.tensor(sizes, device=where.device).unsqueeze(-1)
        mask = torch.arange(where.shape[1], device=where.device) < ends
        return Batch(tuple(numbers), sizes, self.X[where], self.Y[where], mask)

    def map(self, work: Callable[[int], Result], groups: Sequence[int]) -> list[Result]:
        """``work`` on groups of leaves, given in their order: large leaves come first, and run one by one
        on all cores; the rest side by side."""
        n_large = sum(
            len(self.leaf_rows[self.groups[k][0]]) > PARALLEL_ROWS for k in groups if k >= 0
        )
        large = [work(group) for group in groups[:n_large]]
        return large + self.executor.map(work, groups[n_large:])

    def log_evidence(self, naturals: Sequence[Tensor]) -> NDArray[np.float64]:
        """Log evidence of every leaf and output, (n_leaves, n_outputs)."""
        bound = self._bind(naturals)

        def work(group: int) -> Tensor:
            batch = self.batch(self.groups[group])
            columns = []
            for output, law in enumerate(bound):
                K, _ = law.covariance(batch.X, batch.mask)
                columns.append(_solve(K, law, batch, output).log_evidence)
            return torch.stack(columns, -1)

        return self._gather(self.map(work, range(len(self.groups))), len(bound))

    def log_evidence_and_gradient(
        self,
        naturals: Sequence[Tensor],
        outputs: Sequence[int] | None = None,
        scale_rows: float | None = None,
    ) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
        """Log evidence (n_leaves, n_outputs), and for each output its gradient by the natural vector.

        Not a number where a leaf's matrix cannot be factorised: the optimiser steps back. With
        ``scale_rows`` every leaf has a scale of its own, integrated out (see :meth:`Solution.student`).
        """
        chosen = list(range(len(self.laws))) if outputs is None else list(outputs)
        bound = self._bind(naturals, chosen)

        def work(group: int) -> tuple[Tensor, list[Tensor]]:
            batch = self.batch(self.groups[group])
            columns, gradients = [], []
            for output, law in zip(chosen, bound, strict=True):
                K, pullback = law.covariance(batch.X, batch.mask)
                solution = _solve(K, law, batch, output)
                if scale_rows is None:
                    evidence, pull = solution.log_evidence, torch.ones_like(solution.nugget)
                else:
                    evidence, pull = solution.student(scale_rows)
                columns.append(evidence)
                W, share, trace = _sensitivity(solution, pull)
                gradients.append(pullback(W, solution.alpha * pull.unsqueeze(-1), share, trace))
            return torch.stack(columns, -1), gradients

        results = self.map(work, range(len(self.groups)))
        evidence = self._gather([e for e, _ in results], len(chosen))
        return evidence, [
            self._gather([g[k] for _, g in results], naturals[k].shape[-1])
            for k in range(len(chosen))
        ]

    def mean_squares(self, naturals: Sequence[Tensor]) -> NDArray[np.float64]:
        """For each output the factor by which its covariance should grow to fit the observations best."""
        bound = self._bind(naturals)

        def work(group: int) -> Tensor:
            batch = self.batch(self.groups[group])
            columns = []
            for output, law in enumerate(bound):
                solution = _solve(law.covariance(batch.X, batch.mask)[0], law, batch, output)
                columns.append((solution.residual * solution.alpha).sum(-1))
            return torch.stack(columns, -1)

        squares = self._gather(self.map(work, range(len(self.groups))), len(bound))
        return np.asarray(squares.sum(axis=0) / max(sum(len(r) for r in self.leaf_rows), 1))

    def condition(
        self,
        naturals: Sequence[Tensor],
        memory: float = math.inf,
        leave_out: NDArray[np.int64] | None = None,
    ) -> Conditioned:
        """Factorise every leaf; factors are kept up to ``memory`` bytes, and made again beyond it.

        With ``leave_out``, a number for each row, equal for rows with equal inputs, every row is also
        predicted from its leaf's other rows (see :class:`LeftOut`).
        """
        return Conditioned(self, naturals, memory, leave_out)

    def _bind(
        self, naturals: Sequence[Tensor], outputs: Sequence[int] | None = None
    ) -> list[BoundLaw]:
        laws = self.laws if outputs is None else [self.laws[k] for k in outputs]
        return [law.bind(n.detach().to(self.X)) for law, n in zip(laws, naturals, strict=True)]

    def _gather(self, results: Sequence[Tensor], width: int) -> NDArray[np.float64]:
        """Per-leaf results in the order of the leaves; a leaf without rows has evidence one."""
        table = np.zeros((self.n_leaves, width))
        if results:
            order = [number for group in self.groups for number in group]
            table[order] = torch.cat(list(results)).to("cpu", torch.float64).numpy()
        return table


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
    """Experts that have seen their rows, and answer for test rows. Made by :meth:`Experts.condition`."""

    def __init__(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        memory: float,
        leave_out: NDArray[np.int64] | None = None,
    ) -> None:
        self.experts = experts
        self._leave_out = leave_out
        self.bound = experts._bind(naturals)
        n_outputs = len(self.bound)
        element = experts.X.element_size()
        sizes = [[len(experts.leaf_rows[k]) for k in group] for group in experts.groups]
        cost = np.cumsum([len(s) * max(s) ** 2 * element * n_outputs for s in sizes])
        self.n_kept = int(np.searchsorted(cost, memory, side="right"))
        self._made: tuple[int, list[Tensor]] | None = None  # factors made again last
        results = experts.map(self._condition, range(len(experts.groups)))
        self._warn_of_jitter([r[4] for r in results])
        self.log_evidence = experts._gather([r[0] for r in results], n_outputs)
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

    @property
    def noises(self) -> list[float]:
        return [float(law.noise[0]) for law in self.bound]

    def _condition(
        self, group: int
    ) -> tuple[Tensor, list[Tensor], list[Tensor] | None, list[LeftOut], Tensor]:
        solutions = self._solutions(group)
        evidence = torch.stack([s.log_evidence for s in solutions], -1)
        if not torch.isfinite(evidence).all():
            raise ValueError(
                "a leaf's covariance matrix could not be factorised even with added noise; "
                "raise noise_variance, or check the kernel's hyperparameters"
            )
        factors = [s.factor for s in solutions] if group < self.n_kept else None
        left_out = [] if self._leave_out is None else self._leave_one_out(group, solutions)
        added = torch.stack(
            [s.nugget - law.noise for s, law in zip(solutions, self.bound, strict=True)]
        )
        return evidence, [s.alpha for s in solutions], factors, left_out, added.amax(0)

    def _warn_of_jitter(self, added: Sequence[Tensor]) -> None:
        """One warning for all leaves whose matrix had to be helped."""
        amount = self.experts._gather([a.unsqueeze(-1) for a in added], 1)[:, 0]
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
        found: list[list[tuple[NDArray[np.float64], ...]]] = []
        numbers = self.experts.groups[group]
        for output, solution in enumerate(solutions):
            inverse = torch.cholesky_inverse(solution.factor)
            per_leaf = []
            for slot, number in enumerate(numbers):
                rows = self.experts.leaf_rows[number]
                n = len(rows)
                K_inverse, alpha = inverse[slot, :n, :n], solution.alpha[slot, :n]
                y = self.experts.Y[rows, output]
                variance = 1.0 / K_inverse.diagonal()
                mean = y - alpha * variance
                twins = _twins(self._leave_out[rows.cpu().numpy()])
                grouped_mean, grouped_variance = mean.clone(), variance.clone()
                for members in twins:  # groups of one size at a time: (groups, size)
                    at = torch.from_numpy(members).to(y.device)
                    S = torch.linalg.inv(K_inverse[at.unsqueeze(-1), at.unsqueeze(-2)])
                    grouped_mean[at] = y[at] - (S @ alpha[at].unsqueeze(-1)).squeeze(-1)
                    grouped_variance[at] = S.diagonal(dim1=-2, dim2=-1)
                per_leaf.append(
                    tuple(
                        t.to("cpu", torch.float64).numpy()
                        for t in (mean, variance, grouped_mean, grouped_variance)
                    )
                )
            found.append(per_leaf)
        return [
            LeftOut(*(np.stack([o[slot][k] for o in found], -1) for k in range(4)))
            for slot in range(len(numbers))
        ]

    def forget_left_out(self) -> None:
        """Drop what was left out, which takes more memory than the rows, once it has been used."""
        self.left_out = {}

    def _solutions(self, group: int) -> list[Solution]:
        batch = self.experts.batch(self.experts.groups[group])
        return [
            _solve(law.covariance(batch.X, batch.mask)[0], law, batch, output)
            for output, law in enumerate(self.bound)
        ]

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
        for output, law in enumerate(self.bound):
            tiles = []
            for tile in X.split(TILE):
                mean, half = self._reduce(number, tile, output, factors)
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
        for output, law in enumerate(self.bound):
            mean, half = self._reduce(number, X, output, factors)
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
            made = self._made = (group, [s.factor for s in self._solutions(group)])
        return made[1]

    def _reduce(
        self, number: int, X: Tensor, output: int, factors: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Posterior mean of f, and the matrix whose Gram matrix is what the data take off the prior's
        covariance: L^-1 k(train, X) (R&W algorithm 2.1). An empty leaf keeps its prior."""
        law, rows = self.bound[output], self.experts.leaf_rows[number]
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


def _groups(sizes: Sequence[int], device: torch.device, largest: int) -> list[list[int]]:
    """Leaf numbers in batches of like size, large leaves first; ``largest`` limits a batch, 0 does not."""
    order = sorted((k for k in range(len(sizes)) if sizes[k]), key=lambda k: (-sizes[k], k))
    elements = BATCH_ELEMENTS.get(device.type, BATCH_ELEMENTS["cuda"])
    groups: list[list[int]] = []
    for k in order:
        if groups:
            widest = sizes[groups[-1][0]]
            fits = (len(groups[-1]) + 1) * widest**2 <= elements
            alike = sizes[k] >= (1.0 - MOST_PADDING) * widest - 8
            if fits and alike and (not largest or len(groups[-1]) < largest):
                groups[-1].append(k)
                continue
        groups.append([k])
    return groups


def _solve(K: Tensor, law: BoundLaw, batch: Batch, output: int) -> Solution:
    """Factorise K plus noise, and solve for the observations. K's diagonal is changed in place."""
    residual = torch.where(batch.mask, batch.y[..., output] - law.mean(batch.X), 0.0)
    nugget = law.noise.expand(len(K)).clone()
    K.diagonal(dim1=-2, dim2=-1).add_(nugget.unsqueeze(-1))
    factor, info = torch.linalg.cholesky_ex(K)
    if bool(info.any()):
        _retry(K, factor, nugget, info)
    alpha = torch.cholesky_solve(residual.unsqueeze(-1), factor).squeeze(-1)
    return Solution(factor, alpha, residual, nugget, batch.mask)


def _retry(K: Tensor, factor: Tensor, nugget: Tensor, info: Tensor) -> None:
    """The jitter ladder: more and more diagonal for the leaves that could not be factorised."""
    lowest, highest = JITTER[K.dtype]
    identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    for slot in torch.nonzero(info).reshape(-1).tolist():
        scale = float(K[slot].diagonal().mean())
        factor[slot] = torch.nan
        jitter = lowest * scale
        while math.isfinite(scale) and jitter <= 1.01 * highest * scale:
            trial, failed = torch.linalg.cholesky_ex(K[slot] + jitter * identity)
            if not bool(failed):
                factor[slot] = trial
                nugget[slot] += jitter
                break
            jitter *= 10.0


def _sensitivity(solution: Solution, pull: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``W = 2 dL/dK = pull alpha alpha' - K^-1``, ``sum(W * K)`` without noise, and ``tr W``.

    R&W eq. 5.9, where pull is one.
    """
    W = torch.cholesky_inverse(solution.factor)
    alpha = solution.alpha
    pulled = alpha * pull.unsqueeze(-1)
    W.baddbmm_(pulled.unsqueeze(-1), alpha.unsqueeze(-2), beta=-1.0)
    trace = (W.diagonal(dim1=-2, dim2=-1) * solution.mask).sum(-1)
    # W * (K + nugget I) sums to pull residual' alpha - n, which saves a pass over the matrices.
    total = (solution.residual * pulled).sum(-1) - solution.mask.sum(-1)
    return W, total - solution.nugget * trace, trace
