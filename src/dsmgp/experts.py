"""GP leaves in batches of like size: evidence, its gradient, conditioning and prediction.

A batch is padded to its largest leaf. A padded row lies infinitely far from all others and has
observation zero, so it changes nothing. All numbers here are in the units the experts see.
"""

from __future__ import annotations

import math
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

__all__ = ["Bound", "BoundLaw", "Experts", "Solution", "half_inverse"]

Result = TypeVar("Result")
Law = Stationary | General
BoundLaw = BoundStationary | BoundGeneral

LOG_2PI = math.log(2.0 * math.pi)
# Elements of one batch of matrices: a few of them fit in a core's cache, or fill a GPU.
BATCH_ELEMENTS = {"cpu": 2**18, "cuda": 2**27}
# Larger leaves are worked on one by one: batched routines are slower there, on a GPU too.
MAX_BATCHED_ROWS = 2000
# Rows of a smaller leaf may be padded by this share of the batch's largest.
MOST_PADDING = 0.15
# A leaf with more rows is worth all cores by itself. Its last digits then depend on their number.
PARALLEL_ROWS = 3000
# Jitter is raised tenfold from the first of these to the last, times the matrix's mean diagonal.
JITTER = {torch.float64: (1e-12, 1e-4), torch.float32: (1e-6, 1e-2)}


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


class Bound:
    """The laws of leaves at their hyperparameters: from leaves that share a law to one per output."""

    def __init__(self, laws: Sequence[Sequence[Law]], naturals: Sequence[Tensor]) -> None:
        self.laws, self.naturals = laws, naturals
        self._shared: dict[tuple[int, Law], BoundLaw] = {}

    def __call__(self, numbers: Sequence[int]) -> list[BoundLaw]:
        return [self._bind(output, numbers) for output in range(len(self.laws))]

    def _bind(self, output: int, numbers: Sequence[int]) -> BoundLaw:
        law, natural = self.laws[output][numbers[0]], self.naturals[output]
        if natural.ndim == 2:  # leaf by leaf
            return law.bind(natural[list(numbers)])
        if (output, law) not in self._shared:
            self._shared[output, law] = law.bind(natural)
        return self._shared[output, law]


class Experts:
    """The GPs of a tree's leaves over their training rows.

    Parameters
    ----------
    leaves : sequence of Leaf
        In the order of their numbers; leaves without rows are allowed.
    X : Tensor of shape (n_rows, n_dims)
    Y : Tensor of shape (n_rows, n_outputs)
    laws : sequence of Stationary or General, or of sequences of these
        How each output's covariance is computed, by all leaves or leaf by leaf.

    Hyperparameters come as ``naturals``, one tensor per output: a vector for all leaves, or a table with a
    row for each.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        executor: LocalExecutor | None = None,
    ) -> None:
        self.X, self.Y = X, Y
        self.laws = [
            [law] * len(leaves) if isinstance(law, (Stationary, General)) else list(law)
            for law in laws
        ]
        none = np.empty(0, dtype=np.int64)
        rows = [none if leaf.rows is None else leaf.rows for leaf in leaves]
        self.leaf_rows = [torch.tensor(r, device=X.device) for r in rows]
        self.executor = executor or LocalExecutor(X.device)
        self.groups = _groups(
            [len(rows) for rows in self.leaf_rows],
            [tuple(laws[k] for laws in self.laws) for k in range(len(leaves))],
            X.device,
        )

    @property
    def n_leaves(self) -> int:
        return len(self.leaf_rows)

    @property
    def n_outputs(self) -> int:
        return len(self.laws)

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
        return self._by_output(naturals, lambda solution: solution.log_evidence)

    def mean_squares(self, naturals: Sequence[Tensor]) -> NDArray[np.float64]:
        """For each output the factor by which its covariance should grow to fit the observations best."""
        squares = self._by_output(naturals, lambda s: (s.residual * s.alpha).sum(-1))
        return np.asarray(squares.sum(axis=0) / max(sum(len(r) for r in self.leaf_rows), 1))

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
        chosen = list(range(self.n_outputs)) if outputs is None else list(outputs)
        bound = self.bind(naturals, chosen)

        def work(group: int) -> tuple[Tensor, list[Tensor]]:
            batch = self.batch(self.groups[group])
            columns, gradients = [], []
            for output, law in zip(chosen, bound(batch.numbers), strict=True):
                K, pullback = law.covariance(batch.X, batch.mask)
                solution = solve(K, law, batch, output)
                if scale_rows is None:
                    evidence, pull = solution.log_evidence, torch.ones_like(solution.nugget)
                else:
                    evidence, pull = solution.student(scale_rows)
                columns.append(evidence)
                W, share, trace = _sensitivity(solution, pull)
                gradients.append(pullback(W, solution.alpha * pull.unsqueeze(-1), share, trace))
            return torch.stack(columns, -1), gradients

        results = self.map(work, range(len(self.groups)))
        evidence = self.gather([e for e, _ in results], len(chosen))
        return evidence, [
            self.gather([g[k] for _, g in results], naturals[k].shape[-1])
            for k in range(len(chosen))
        ]

    def bind(self, naturals: Sequence[Tensor], outputs: Sequence[int] | None = None) -> Bound:
        """The laws of all outputs, or of some, at their hyperparameters."""
        laws = self.laws if outputs is None else [self.laws[k] for k in outputs]
        return Bound(laws, [natural.detach().to(self.X) for natural in naturals])

    def solutions(self, bound: Bound, group: int) -> list[Solution]:
        """A group of leaves factorised, output by output."""
        batch = self.batch(self.groups[group])
        return [
            solve(law.covariance(batch.X, batch.mask)[0], law, batch, output)
            for output, law in enumerate(bound(batch.numbers))
        ]

    def _by_output(
        self, naturals: Sequence[Tensor], of: Callable[[Solution], Tensor]
    ) -> NDArray[np.float64]:
        bound = self.bind(naturals)

        def work(group: int) -> Tensor:
            return torch.stack([of(solution) for solution in self.solutions(bound, group)], -1)

        return self.gather(self.map(work, range(len(self.groups))), self.n_outputs)

    def gather(self, results: Sequence[Tensor], width: int) -> NDArray[np.float64]:
        """Per-leaf results in the order of the leaves; a leaf without rows has evidence one."""
        table = np.zeros((self.n_leaves, width))
        if results:
            order = [number for group in self.groups for number in group]
            table[order] = torch.cat(list(results)).to("cpu", torch.float64).numpy()
        return table


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


def solve(K: Tensor, law: BoundLaw, batch: Batch, output: int) -> Solution:
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


def half_inverse(factor: Tensor) -> Tensor:
    """The factor's inverse J, for which K^-1 = J' J."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)


def _inverse(factor: Tensor) -> Tensor:
    if factor.device.type == "cpu":
        return torch.cholesky_inverse(factor)
    half = half_inverse(factor)  # on a GPU LAPACK's way takes several times as long
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
