"""GP leaves in torch, in batches of like size: any kernel, precision and device.

A batch is padded to its largest leaf. A padded row lies infinitely far from all others and has
observation zero, so it changes nothing. All numbers here are in the units the experts see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp import triangular
from dsmgp.engine import Bound, BoundLaw, Law, Left, Questions, Seen, law_codes, without_twins
from dsmgp.execution import as_numpy
from dsmgp.factors import LeafFactors, Stacked
from dsmgp.machine import cache_numbers
from dsmgp.ragged import Ragged

__all__ = ["BatchedEngine"]

LOG_2PI = math.log(2.0 * math.pi)
# Elements of one batch of matrices: times what a core's cache holds, or enough to fill a GPU.
CACHES, GPU_ELEMENTS = 4, 2**27
# Arrays as large as a batch of matrices that are needed at a time.
WORKING_ARRAYS = 8
# Batches are made no smaller than this for want of memory.
LEAST_ELEMENTS = 2**20
# Larger leaves are worked on one by one: batched routines are slower there, on a GPU too.
MAX_BATCHED_ROWS = 2000
# Rows of a smaller leaf may be padded by this share of the batch's largest.
MOST_PADDING = 0.15
# Jitter is raised tenfold from the first of these to the last, times the matrix's mean diagonal.
JITTER = {torch.float64: (1e-12, 1e-4), torch.float32: (1e-6, 1e-2)}
# Elements of the matrix between test rows and training rows that is held at a time.
TILE_ELEMENTS = 2**24


@dataclass(frozen=True)
class Batch:
    """Leaves of like size, stacked: X (leaves, rows, dims), one output y (leaves, rows)."""

    X: Tensor
    y: Tensor
    mask: Tensor
    #: Noise variances known row by row, beside the leaf's own noise.
    known: Tensor | None = None


@dataclass
class Solution:
    """A batch's matrices factorised: lower factors, K^-1 (y - mean), what was added to the diagonal, and of it what is
    known row by row."""

    factor: Tensor
    alpha: Tensor
    residual: Tensor
    nugget: Tensor
    mask: Tensor
    known: Tensor | None

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


class BatchedEngine:
    """An :class:`dsmgp.engine.Engine` in torch."""

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        leaf_rows: Ragged,
        laws: Sequence[Sequence[Law]],
        memory: float = math.inf,
        known: Tensor | None = None,
    ) -> None:
        self.X, self.Y, self.leaf_rows, self.known = X, Y, leaf_rows, known
        most = CACHES * cache_numbers() if X.device.type == "cpu" else GPU_ELEMENTS
        #: Elements of a batch of matrices, at most.
        self.elements_at_once = min(most, memory / (WORKING_ARRAYS * X.element_size()))
        self.groups = _groups(leaf_rows.sizes, laws, self.elements_at_once)
        self._rows = torch.from_numpy(leaf_rows.flat).to(X.device)
        # By group: an optimiser comes back for the same leaves many times.
        self._where: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def bytes_at_once(self) -> float:
        """What batches are worked on with, at most, unless a single leaf needs more."""
        return self.elements_at_once * WORKING_ARRAYS * self.X.element_size()

    def take_less(self) -> bool:
        """Half as much at once from now on, as far as groups allow it; no if that is little already."""
        largest = max((self.elements(k) for k in range(len(self.groups))), default=0)
        used = min(self.elements_at_once, largest)
        if used < 2 * LEAST_ELEMENTS:
            return False
        self.elements_at_once = used / 2
        return True

    def elements(self, group: int) -> int:
        numbers = self.groups[group]
        return int(len(numbers) * self.leaf_rows.sizes[numbers].max() ** 2)

    def squares(self, bound: Bound, output: int, group: int) -> Tensor:
        solution = self._solution(bound, output, group)
        return (solution.residual * solution.alpha).sum(-1)

    def log_evidence(self, bound: Bound, output: int, group: int) -> Tensor:
        return self._solution(bound, output, group).log_evidence

    def gradient(
        self, bound: Bound, output: int, group: int, scale_rows: float | None
    ) -> tuple[Tensor, Tensor]:
        batch = self.batch(group, output)
        law = bound(output, self.groups[group])
        K, pullback = law.covariance(batch.X, batch.mask)
        solution = _solve(K, law, batch)
        if scale_rows is None:
            evidence, pull = solution.log_evidence, torch.ones_like(solution.nugget)
        else:
            evidence, pull = solution.student(scale_rows)
        W, share, trace = _sensitivity(solution, pull)
        return evidence, pullback(W, solution.alpha * pull.unsqueeze(-1), share, trace)

    def condition(
        self,
        bound: Bound,
        output: int,
        group: int,
        keep: bool,
        twins: list[list[NDArray[np.int64]]] | None,
    ) -> Seen:
        solution = self._solution(bound, output, group)
        left_out = None
        if twins is not None:
            real = solution.mask.cpu().numpy()
            half = triangular.invert(solution.factor)  # J, for which K^-1 = J' J
            variance = 1.0 / half.square().sum(-2)  # the inverse's diagonal
            away, alone = as_numpy(solution.alpha * variance), as_numpy(variance)
            left_out = Left(away[real], alone[real])
            if any(twins):
                a, v, density = without_twins(away, alone, half, solution.alpha, twins)
                left_out = replace(left_out, twins_too=(a[real], v[real], density[real]))
        sizes = self.leaf_rows.sizes[self.groups[group]]
        return Seen(
            log_evidence=solution.log_evidence,
            added=solution.nugget - bound(output, self.groups[group]).noise,
            alpha=solution.alpha[solution.mask],
            factors=Stacked(solution.factor, sizes) if keep else None,
            left_out=left_out,
        )

    def predict(self, bound: Bound, output: int, asked: Questions) -> tuple[Tensor, Tensor]:
        """R&W algorithm 2.1, by leaves of like size and number of test rows at once, padded: on a GPU many of them,
        which would be idle most of the time between one small leaf and the next."""
        tests = Ragged(np.arange(len(asked.X)), asked.ends)
        mean = asked.X.new_empty(len(asked.X))
        variance = torch.empty_like(mean) if asked.factors is not None else mean.new_empty(0)
        for some in self._together(asked.numbers, tests.sizes):
            where, real = (
                torch.from_numpy(a).to(self.X.device)
                for a in self.leaf_rows.padded(asked.numbers[some])
            )
            at, asked_for = (torch.from_numpy(a).to(self.X.device) for a in tests.padded(some))
            law, train = bound(output, asked.numbers[some]), self.X[self._rows[where]]
            alpha = asked.alpha[where] * real
            factor = _factors_of(asked.factors, asked.slots[some], where.shape[1])
            tile = max(1, int(min(TILE_ELEMENTS, self.elements_at_once)) // train[..., 0].numel())
            for columns in torch.arange(at.shape[1], device=at.device).split(tile):
                X, wanted = asked.X[at[:, columns]], asked_for[:, columns]
                target = at[:, columns][wanted]
                cross = law.cross(X, train) * real.unsqueeze(-2)  # (leaves, tests, rows)
                means = law.mean(X) + torch.matmul(cross, alpha.unsqueeze(-1)).squeeze(-1)
                mean[target] = means[wanted]
                if factor is not None:
                    half = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
                    left = (law.variance(X) - half.square().sum(-2)).clamp_min(0.0)
                    variance[target] = left[wanted]
        return mean, variance

    def _together(
        self, numbers: NDArray[np.int64], n_tests: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        """Places of leaves with a like number of test rows, that can be answered at once."""
        if self.X.device.type == "cpu":
            return [np.array([k]) for k in range(len(numbers))]
        widest = int(self.leaf_rows.sizes[numbers].max())
        order = np.argsort(-n_tests, kind="stable")
        counts, first, found = n_tests[order].tolist(), 0, []
        for k in range(1, len(counts) + 1):
            longest = counts[first]
            if (
                k < len(counts)
                and counts[k] >= 0.7 * longest - 32
                and (k + 1 - first) * widest * (widest + longest) <= self.elements_at_once
            ):
                continue
            found.append(order[first:k])
            first = k
        return found

    def fill(
        self, bound: Bound, output: int, number: int, K: NDArray[np.float64], first: int
    ) -> None:
        law, rows = bound(output, [number]), self._rows_of(number).unsqueeze(0)
        below = torch.from_numpy(K)[first:]
        torch.tril(law.cross(rows[:, first:], rows)[0], first, out=below)
        below.diagonal(first).add_(law.noise[0])
        if self.known is not None:
            below.diagonal(first).add_(self.known[self.leaf_rows[number][first:], output])

    def _rows_of(self, number: int) -> Tensor:
        return self.X[torch.from_numpy(self.leaf_rows[number]).to(self.X.device)]

    def batch(self, group: int, output: int) -> Batch:
        if group not in self._where:
            where, real = self.leaf_rows.padded(self.groups[group])
            rows = self._rows[torch.from_numpy(where).to(self.X.device)]
            self._where[group] = rows, torch.from_numpy(real).to(self.X.device)
        rows, mask = self._where[group]
        known = None if self.known is None else self.known[rows, output] * mask
        return Batch(self.X[rows], self.Y[rows, output], mask, known)

    def _solution(self, bound: Bound, output: int, group: int) -> Solution:
        batch = self.batch(group, output)
        law = bound(output, self.groups[group])
        return _solve(law.covariance(batch.X, batch.mask)[0], law, batch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_where": {}}


def _factors_of(
    factors: LeafFactors | None, slots: NDArray[np.int64], n_rows: int
) -> Tensor | None:
    """Factors of some leaves side by side, padded; one alone is not copied."""
    if factors is None:
        return None
    if len(slots) == 1:
        return factors[int(slots[0])].unsqueeze(0)
    assert isinstance(factors, Stacked)
    return factors.stack[torch.from_numpy(slots).to(factors.stack.device), :n_rows, :n_rows]


def _groups(
    sizes: NDArray[np.int64], laws: Sequence[Sequence[Law]], elements: float
) -> list[NDArray[np.int64]]:
    """Leaf numbers in batches of like size and equal laws, large leaves first."""
    codes, rows = law_codes(laws), sizes.tolist()
    groups: list[list[int]] = []
    open_groups: dict[int, list[int]] = {}
    for k in np.argsort(-sizes, kind="stable").tolist():
        if not rows[k]:
            break
        group = open_groups.get(codes[k])
        if group is not None and all(by_leaf[k].batched for by_leaf in laws):
            widest = rows[group[0]]
            fits = (len(group) + 1) * widest**2 <= elements and widest <= MAX_BATCHED_ROWS
            if fits and rows[k] >= (1.0 - MOST_PADDING) * widest - 8:
                group.append(k)
                continue
        open_groups[codes[k]] = [k]
        groups.append(open_groups[codes[k]])
    return [np.array(group) for group in groups]


def _solve(K: Tensor, law: BoundLaw, batch: Batch) -> Solution:
    """Factorise K plus noise, and solve for the observations. K's diagonal is changed in place."""
    residual = torch.where(batch.mask, batch.y - law.mean(batch.X), 0.0)
    nugget = law.noise.expand(len(K)).clone()
    K.diagonal(dim1=-2, dim2=-1).add_(nugget.unsqueeze(-1))
    if batch.known is not None:
        K.diagonal(dim1=-2, dim2=-1).add_(batch.known)
    factor, info = torch.linalg.cholesky_ex(K)
    if bool(info.any()):
        _retry(K, factor, nugget, info)
    alpha = torch.cholesky_solve(residual.unsqueeze(-1), factor).squeeze(-1)
    return Solution(factor, alpha, residual, nugget, batch.mask, batch.known)


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
    W = triangular.inverse_of(solution.factor)
    alpha = solution.alpha
    pulled = alpha * pull.unsqueeze(-1)
    W.baddbmm_(pulled.unsqueeze(-1), alpha.unsqueeze(-2), beta=-1.0)
    diagonal = W.diagonal(dim1=-2, dim2=-1)
    trace = (diagonal * solution.mask).sum(-1)
    # W * (K + nugget I) sums to pull residual' alpha - n, which saves a pass over the matrices.
    total = (solution.residual * pulled).sum(-1) - solution.mask.sum(-1)
    if solution.known is not None:
        total = total - (diagonal * solution.known).sum(-1)
    return W, total - solution.nugget * trace, trace
