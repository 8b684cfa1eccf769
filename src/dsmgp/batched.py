"""GP leaves in torch, in batches of like size: any kernel, precision and device.

A batch is padded to its largest leaf. A padded row lies infinitely far from all others and has
observation zero, so it changes nothing. All numbers here are in the units the experts see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.engine import Bound, BoundLaw, Law, Question, Seen, without_twins

__all__ = ["BatchedEngine"]

LOG_2PI = math.log(2.0 * math.pi)
# Elements of one batch of matrices: a few of them fit in a core's cache, or fill a GPU.
BATCH_ELEMENTS = {"cpu": 2**18, "cuda": 2**27}
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


class BatchedEngine:
    """An :class:`dsmgp.engine.Engine` in torch."""

    def __init__(
        self, X: Tensor, Y: Tensor, leaf_rows: Sequence[Tensor], laws: Sequence[Sequence[Law]]
    ) -> None:
        self.X, self.Y, self.leaf_rows = X, Y, leaf_rows
        self.groups = _groups(
            [len(rows) for rows in leaf_rows],
            [tuple(by_leaf[k] for by_leaf in laws) for k in range(len(leaf_rows))],
            X.device,
        )

    def elements(self, group: int) -> int:
        return sum(len(self.leaf_rows[number]) ** 2 for number in self.groups[group])

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
        sizes = [len(self.leaf_rows[number]) for number in self.groups[group]]
        alpha = [solution.alpha[slot, :n] for slot, n in enumerate(sizes)]
        left_out = None
        if twins is not None:
            half = _half_inverse(solution.factor)
            variance = 1.0 / half.square().sum(-2)  # the inverse's diagonal
            away, alone = (
                t.to("cpu", torch.float64).numpy() for t in (solution.alpha * variance, variance)
            )
            grouped_away, grouped = without_twins(away, alone, half, solution.alpha, twins)
            left_out = [
                (away[k, :n], alone[k, :n], grouped_away[k, :n], grouped[k, :n])
                for k, n in enumerate(sizes)
            ]
        return Seen(
            log_evidence=solution.log_evidence,
            added=solution.nugget - bound(output, self.groups[group]).noise,
            alpha=alpha,
            factor=[solution.factor[k, :n, :n] for k, n in enumerate(sizes)] if keep else None,
            left_out=left_out,
        )

    def predict(
        self, bound: Bound, output: int, questions: Sequence[Question]
    ) -> list[tuple[Tensor, Tensor]]:
        if self.X.device.type == "cpu":
            return [self._answers(bound, output, [question])[0] for question in questions]
        # A GPU is idle most of the time between one small leaf and the next: many at once, padded.
        answers: list[tuple[Tensor, Tensor]] = [None] * len(questions)  # type: ignore[list-item]
        for some in _together(questions):
            found = self._answers(bound, output, [questions[k] for k in some])
            for k, answer in zip(some, found, strict=True):
                answers[k] = answer
        return answers

    def _answers(
        self, bound: Bound, output: int, questions: Sequence[Question]
    ) -> list[tuple[Tensor, Tensor]]:
        """R&W algorithm 2.1. Padded test rows are answered too, and dropped."""
        pad = torch.nn.utils.rnn.pad_sequence
        law = bound(output, [question.number for question in questions])
        rows = [self.leaf_rows[question.number] for question in questions]
        train, mask = self.X[pad(rows, batch_first=True)], _mask(rows)
        alpha = pad([question.alpha for question in questions], batch_first=True)
        factor = _stacked([question.factor for question in questions])
        test = pad([question.X for question in questions], batch_first=True)
        tile = max(1, TILE_ELEMENTS // train[..., 0].numel())
        means, variances = [], []
        for X in test.split(tile, dim=1):
            cross = law.cross(X, train) * mask.unsqueeze(-2)  # (leaves, tests, rows)
            means.append(law.mean(X) + torch.matmul(cross, alpha.unsqueeze(-1)).squeeze(-1))
            if factor is not None:
                half = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
                variances.append((law.variance(X) - half.square().sum(-2)).clamp_min(0.0))
        mean = torch.cat(means, 1)
        variance = torch.cat(variances, 1) if variances else mean.new_empty(len(mean), 0)
        return [(mean[k, : len(q.X)], variance[k, : len(q.X)]) for k, q in enumerate(questions)]

    def fill(
        self, bound: Bound, output: int, number: int, K: NDArray[np.float64], first: int
    ) -> None:
        law, rows = bound(output, [number]), self.X[self.leaf_rows[number]].unsqueeze(0)
        below = torch.from_numpy(K)[first:]
        torch.tril(law.cross(rows[:, first:], rows)[0], first, out=below)
        below.diagonal(first).add_(law.noise[0])

    def batch(self, group: int, output: int) -> Batch:
        rows = [self.leaf_rows[k] for k in self.groups[group]]
        where = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # padded with row 0
        return Batch(self.X[where], self.Y[where, output], _mask(rows))

    def _solution(self, bound: Bound, output: int, group: int) -> Solution:
        batch = self.batch(group, output)
        law = bound(output, self.groups[group])
        return _solve(law.covariance(batch.X, batch.mask)[0], law, batch)


def _together(questions: Sequence[Question]) -> list[list[int]]:
    """Numbers of questions of like length that can be answered at once."""
    widest = max(len(question.alpha) for question in questions)
    found: list[list[int]] = []
    for k in sorted(range(len(questions)), key=lambda k: -len(questions[k].X)):
        if found:
            longest = len(questions[found[-1][0]].X)
            elements = (len(found[-1]) + 1) * widest * (widest + longest)
            alike = len(questions[k].X) >= 0.7 * longest - 32
            if alike and elements <= BATCH_ELEMENTS["cuda"]:
                found[-1].append(k)
                continue
        found.append([k])
    return found


def _mask(rows: Sequence[Tensor]) -> Tensor:
    """Which rows of padded leaves are real, (leaves, rows)."""
    sizes = torch.tensor([len(own) for own in rows], device=rows[0].device)
    longest = max(len(own) for own in rows)
    return torch.arange(longest, device=sizes.device) < sizes.unsqueeze(-1)


def _stacked(factors: Sequence[Tensor | None]) -> Tensor | None:
    """Factors of leaves side by side, padded with the identity; one alone is not copied."""
    given = [factor for factor in factors if factor is not None]
    if not given:
        return None
    if len(given) == 1:
        return given[0].unsqueeze(0)
    longest = max(len(factor) for factor in given)
    identity = torch.eye(longest, dtype=given[0].dtype, device=given[0].device)
    stacked = identity.repeat(len(given), 1, 1)
    for place, factor in zip(stacked, given, strict=True):
        place[: len(factor), : len(factor)] = factor
    return stacked


def _groups(
    sizes: Sequence[int], laws: Sequence[tuple[Law, ...]], device: torch.device
) -> list[list[int]]:
    """Leaf numbers in batches of like size and equal laws, large leaves first."""
    order = sorted((k for k in range(len(sizes)) if sizes[k]), key=lambda k: (-sizes[k], k))
    elements = BATCH_ELEMENTS.get(device.type, BATCH_ELEMENTS["cuda"])
    groups: list[list[int]] = []
    open_groups: dict[tuple[Law, ...], list[int]] = {}
    for k in order:
        group = open_groups.get(laws[k])
        if group is not None and all(law.batched for law in laws[k]):
            widest = sizes[group[0]]
            fits = (len(group) + 1) * widest**2 <= elements and widest <= MAX_BATCHED_ROWS
            if fits and sizes[k] >= (1.0 - MOST_PADDING) * widest - 8:
                group.append(k)
                continue
        open_groups[laws[k]] = [k]
        groups.append(open_groups[laws[k]])
    return groups


def _solve(K: Tensor, law: BoundLaw, batch: Batch) -> Solution:
    """Factorise K plus noise, and solve for the observations. K's diagonal is changed in place."""
    residual = torch.where(batch.mask, batch.y - law.mean(batch.X), 0.0)
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


def _half_inverse(factor: Tensor) -> Tensor:
    """The factor's inverse J, for which K^-1 = J' J."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)


def _inverse(factor: Tensor) -> Tensor:
    if factor.device.type == "cpu":
        return torch.cholesky_inverse(factor)
    half = _half_inverse(factor)  # on a GPU LAPACK's way takes several times as long
    return half.mT @ half


def _sensitivity(solution: Solution, pull: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``W = 2 dL/dK = pull alpha alpha' - K^-1``, ``sum(W * K)`` without noise, and ``tr W``.

    R&W eq. 5.9, where pull is one.
    """
    W = _inverse(solution.factor)
    alpha = solution.alpha
    pulled = alpha * pull.unsqueeze(-1)
    W.baddbmm_(pulled.unsqueeze(-1), alpha.unsqueeze(-2), beta=-1.0)
    trace = (W.diagonal(dim1=-2, dim2=-1) * solution.mask).sum(-1)
    # W * (K + nugget I) sums to pull residual' alpha - n, which saves a pass over the matrices.
    total = (solution.residual * pulled).sum(-1) - solution.mask.sum(-1)
    return W, total - solution.nugget * trace, trace
