"""What computes the GPs of leaves, and what it says of them.

Two engines do the same: :mod:`dsmgp.native` in compiled code, leaf by leaf, for stationary kernels in double
precision on a CPU; :mod:`dsmgp.batched` in torch, in padded batches, for everything else, and where there is no
compiler. A third, :mod:`dsmgp.shared`, conditions leaves that overlap, which take their factors from one
another. All work on groups of leaves that share a law, large leaves first; groups may run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.factors import LeafFactors
from dsmgp.gate import normal_log_density
from dsmgp.general import BoundGeneral, General
from dsmgp.ragged import Ragged
from dsmgp.stationary import BoundStationary, Stationary

__all__ = [
    "Bound",
    "BoundLaw",
    "Engine",
    "Law",
    "LearningEngine",
    "Left",
    "Questions",
    "Seen",
    "law_codes",
    "without_twins",
]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Law = Stationary | General
BoundLaw = BoundStationary | BoundGeneral
# What is added to squares that rounding has made indefinite, of their mean diagonal.
LEAST_SHARE = 1e-10
LOG_2PI = math.log(2.0 * math.pi)


class Bound:
    """The laws of leaves at their hyperparameters: for an output and leaves that share a law."""

    def __init__(self, laws: Sequence[Sequence[Law]], naturals: Sequence[Tensor]) -> None:
        #: By output: each leaf's law, and hyperparameters for all leaves or a row for each.
        self.laws, self.naturals = laws, naturals
        self._shared: dict[tuple[int, Law], BoundLaw] = {}

    def __call__(self, output: int, numbers: Sequence[int] | Index) -> BoundLaw:
        law, natural = self.laws[output][numbers[0]], self.naturals[output]
        if natural.ndim == 2:  # leaf by leaf
            return law.bind(natural[torch.as_tensor(numbers, device=natural.device)])
        if (output, law) not in self._shared:
            self._shared[output, law] = law.bind(natural)
        return self._shared[output, law]


@dataclass(frozen=True)
class Left:
    """Rows left out, one leaf after the other.

    ``away`` is how far an observation is from the mean without it, ``variance`` that of the law there.
    ``twins_too`` has what :func:`without_twins` says, None where no row has any.
    """

    away: Array
    variance: Array
    twins_too: tuple[Array, Array, Array] | None = None

    @property
    def grouped(self) -> tuple[Array, Array, Array]:
        """The same without twins, and the log density of a row and its twins together."""
        if self.twins_too is not None:
            return self.twins_too
        return self.away, self.variance, normal_log_density(self.away, self.variance)


@dataclass(frozen=True)
class Seen:
    """A group of leaves that have seen one output of their rows.

    ``added`` was put on a leaf's diagonal beside the noise. One leaf after the other: ``alpha = K^-1 (y - mean)``, and
    :class:`Left` if it was asked for; so were the factors, by leaf.
    """

    log_evidence: Tensor
    added: Tensor
    alpha: Tensor
    factors: LeafFactors | None
    left_out: Left | None


@dataclass(frozen=True)
class Questions:
    """Rows at which some leaves of a group are asked for f.

    Attributes
    ----------
    numbers : the leaves
    slots : where each stands in its group
    X, ends : their test rows, one leaf after the other, and where each leaf's start
    alpha : of all the engine's leaves, one after the other
    factors : of the group, where variances are wanted
    """

    numbers: Index
    slots: Index
    X: Tensor
    ends: Index
    alpha: Tensor
    factors: LeafFactors | None


class Engine(Protocol):
    """Leaves of some rows, to be conditioned; ``groups`` are the numbers of those that have any."""

    groups: list[Index]
    #: Each leaf's rows, in the order of all that is said of them.
    leaf_rows: Ragged

    def elements(self, group: int) -> int:
        """Numbers that the factors of a group take, for one output."""

    def condition(
        self, bound: Bound, output: int, group: int, keep: bool, twins: list[list[Index]] | None
    ) -> Seen:
        """Factorise; leave every row out, and with its twins, where these are given leaf by leaf."""

    def predict(self, bound: Bound, output: int, asked: Questions) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at the test rows; no variance without factors."""


class LearningEngine(Engine, Protocol):
    """An engine that has gradients too."""

    def squares(self, bound: Bound, output: int, group: int) -> Tensor:
        """``(y - mean)' K^-1 (y - mean)`` of each leaf."""

    def log_evidence(self, bound: Bound, output: int, group: int) -> Tensor:
        """Of each leaf."""

    def gradient(
        self, bound: Bound, output: int, group: int, scale_rows: float | None
    ) -> tuple[Tensor, Tensor]:
        """Log evidence, and its gradient by the natural vector (leaves, hyperparameters)."""

    def fill(self, bound: Bound, output: int, number: int, K: Array, first: int) -> None:
        """Covariances of y at a leaf's rows, into the lower triangle of K: its rows from ``first`` on."""


def law_codes(laws: Sequence[Sequence[Law]]) -> list[int]:
    """For each leaf a number, the same for leaves with equal laws in all outputs; ``laws`` are by output and leaf."""
    # By the objects themselves: there are many leaves, and but a few objects among their laws.
    known: dict[tuple[int, ...], int] = {}
    distinct: dict[tuple[Law, ...], int] = {}
    codes = []
    for own in zip(*laws, strict=True):
        key = tuple(map(id, own))
        if key not in known:
            known[key] = distinct.setdefault(own, len(distinct))
        codes.append(known[key])
    return codes


def without_twins(
    away: Array, variance: Array, half: Tensor, alpha: Tensor, twins: Sequence[list[Index]]
) -> tuple[Array, Array, Array]:
    """Rows left out together with their twins (R&W eqs. 5.10 to 5.12, for groups of rows), leaf by leaf: how
    far they are away, their variances, and the log density of a row and its twins together, given the leaf's
    other rows.

    From rows left out alone (leaves, rows) and the inverses of the factors (leaves, rows, rows). ``twins`` has for
    each leaf one (groups, size) array for each size of group.
    """
    away, variance, density = away.copy(), variance.copy(), normal_log_density(away, variance)
    for size in {members.shape[1] for own in twins for members in own}:
        found = [(leaf, m) for leaf, own in enumerate(twins) for m in own if m.shape[1] == size]
        members = np.concatenate([m for _, m in found])
        leaf = np.repeat([k for k, _ in found], [len(m) for _, m in found])
        at, of = (torch.from_numpy(a).to(half.device) for a in (members, leaf))
        for some in torch.arange(len(of), device=at.device).split(max(1, 2**26 // half.shape[-1])):
            columns = half.mT[of[some, None], at[some]]  # (groups, size, rows)
            S, half_log_det = _inverse_of_square(columns)
            pull = alpha[of[some, None], at[some]].to(S)
            pulled = (S @ pull.unsqueeze(-1)).squeeze(-1)
            together = half_log_det - 0.5 * ((pull * pulled).sum(-1) + size * LOG_2PI)
            where = (leaf[some.cpu().numpy(), None], members[some.cpu().numpy()])
            away[where] = pulled.cpu().numpy()
            variance[where] = S.diagonal(dim1=-2, dim2=-1).cpu().numpy()
            density[where] = together.cpu().numpy()[:, None]
    return away, variance, density


def _inverse_of_square(A: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses of ``A A'`` (groups, size, size) and half its log determinants, in double precision: rows that are twins
    make it all but singular."""
    A = A.double()
    square = A @ A.mT
    factor, failed = torch.linalg.cholesky_ex(square)
    if bool(failed.any()):
        diagonal = square.diagonal(dim1=-2, dim2=-1)
        diagonal += LEAST_SHARE * diagonal.mean(-1, keepdim=True)
        factor = torch.linalg.cholesky(square)
    half_log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return torch.cholesky_inverse(factor), half_log_det
