"""What computes the GPs of leaves, and what it says of them.

Two engines do the same: :mod:`dsmgp.native` in compiled code, leaf by leaf, for stationary kernels in double precision
on a CPU; :mod:`dsmgp.batched` in torch, in padded batches, for everything else, and where there is no compiler. A third,
:mod:`dsmgp.shared`, conditions leaves that overlap, which take their factors from one another. All work on groups of
leaves that share a law, large leaves first; groups may run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.general import BoundGeneral, General
from dsmgp.stationary import BoundStationary, Stationary

__all__ = ["Bound", "BoundLaw", "Engine", "Law", "LearningEngine", "Left", "Seen", "without_twins"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Law = Stationary | General
BoundLaw = BoundStationary | BoundGeneral
# By a leaf's row: how far the mean without the row is from the observation, and the variance; the same without twins.
Left = tuple[Array, Array, Array, Array]


class Bound:
    """The laws of leaves at their hyperparameters: for an output and leaves that share a law."""

    def __init__(self, laws: Sequence[Sequence[Law]], naturals: Sequence[Tensor]) -> None:
        #: By output: each leaf's law, and hyperparameters for all leaves or a row for each.
        self.laws, self.naturals = laws, naturals
        self._shared: dict[tuple[int, Law], BoundLaw] = {}

    def __call__(self, output: int, numbers: Sequence[int]) -> BoundLaw:
        law, natural = self.laws[output][numbers[0]], self.naturals[output]
        if natural.ndim == 2:  # leaf by leaf
            return law.bind(natural[list(numbers)])
        if (output, law) not in self._shared:
            self._shared[output, law] = law.bind(natural)
        return self._shared[output, law]


@dataclass(frozen=True)
class Seen:
    """A group of leaves that have seen one output of their rows.

    ``added`` was put on the diagonal beside the noise. By leaf: ``alpha = K^-1 (y - mean)``, the lower factor if it
    was asked for, and :data:`Left` if that was.
    """

    log_evidence: Tensor
    added: Tensor
    alpha: list[Tensor]
    factor: Sequence[Tensor] | None
    left_out: list[Left] | None


class Engine(Protocol):
    """Leaves of some rows, to be conditioned; ``groups`` are the numbers of those that have any."""

    groups: list[list[int]]
    #: Each leaf's rows, in the order of all that is said of them.
    leaf_rows: Sequence[Tensor]

    def elements(self, group: int) -> int:
        """Numbers that the factors of a group take, for one output."""

    def condition(
        self, bound: Bound, output: int, group: int, keep: bool, twins: list[list[Index]] | None
    ) -> Seen:
        """Factorise; leave every row out, and with its twins, where these are given leaf by leaf."""

    def predict(
        self,
        bound: Bound,
        output: int,
        number: int,
        alpha: Tensor,
        factor: Tensor | None,
        X: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at rows of X by one leaf; without its factor, no variance."""


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


def without_twins(
    away: Array, variance: Array, half: Tensor, alpha: Tensor, twins: list[Index]
) -> Left:
    """Rows left out alone, given, and together with their twins (R&W eqs. 5.10 to 5.12, for groups of rows).

    ``half`` is the inverse of the factor; ``twins`` has one (groups, size) array for each size of group.
    """
    if not twins:
        return away, variance, away, variance
    grouped_away, grouped_variance = away.copy(), variance.copy()
    for members in twins:
        at = torch.from_numpy(members).to(half.device)
        columns = half[:, at].movedim(0, 1)  # (groups, rows, size)
        S = torch.linalg.inv(columns.mT @ columns)
        pulled = (S @ alpha[at].unsqueeze(-1)).squeeze(-1)
        grouped_away[members] = pulled.to("cpu", torch.float64).numpy()
        grouped_variance[members] = S.diagonal(dim1=-2, dim2=-1).to("cpu", torch.float64).numpy()
    return away, variance, grouped_away, grouped_variance
