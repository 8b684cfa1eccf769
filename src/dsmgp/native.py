"""GP leaves in compiled code: stationary kernels, double precision, CPU. Needs numba (``dsmgp[fast]``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp import lapack
from dsmgp.engine import Bound, Law, Left, Questions, Seen, law_codes, without_twins
from dsmgp.execution import has_numba
from dsmgp.factors import LeadingBlocks, LeafFactors, Packed, RowMajorFactors
from dsmgp.ragged import Ragged
from dsmgp.stationary import Stationary

if TYPE_CHECKING:
    from dsmgp.compiled import Leaves

__all__ = ["NativeEngine"]

Array = NDArray[np.float64]
KINDS = ("rbf", "matern12", "matern32", "matern52")
# Multiplications that make one piece of work for a thread: a millisecond or two.
PIECE = 3e7
# What a pair of rows costs beside the factorisation, in multiplications.
PAIR = 100.0


class NativeEngine:
    """An :class:`dsmgp.engine.Engine` of compiled calls, many leaves in each."""

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        leaf_rows: Ragged,
        laws: Sequence[Sequence[Law]],
        memory: float = math.inf,  # leaf by leaf: there is nothing to choose
        known: Tensor | None = None,
    ) -> None:
        self.X, self.Y, self.leaf_rows, self.laws = X, Y, leaf_rows, laws
        self.groups = _pieces(leaf_rows.sizes, law_codes(laws))
        self._leaves: dict[tuple[int, int], Leaves] = {}
        # One column after the other, once: every group of leaves points to them.
        self._targets = [np.ascontiguousarray(y) for y in Y.numpy().T]
        self._known = [
            np.empty(0) if known is None else np.ascontiguousarray(known.numpy()[:, output])
            for output in range(Y.shape[1])
        ]

    @staticmethod
    def can(X: Tensor, laws: Sequence[Sequence[Law]]) -> bool:
        """Whether these rows and laws can be computed here."""
        if (
            not (lapack.available and has_numba())
            or X.device.type != "cpu"
            or X.dtype != torch.float64
        ):
            return False
        return all(
            isinstance(law, Stationary) and law.kind in KINDS
            for law in {law for by_leaf in laws for law in by_leaf}
        )

    def elements(self, group: int) -> int:
        return int(np.square(self.leaf_rows.sizes[self.groups[group]]).sum())

    def squares(self, bound: Bound, output: int, group: int) -> Tensor:
        return torch.from_numpy(self._evaluated(bound, output, group).fit)

    def log_evidence(self, bound: Bound, output: int, group: int) -> Tensor:
        return torch.from_numpy(self._evaluated(bound, output, group).log_evidence)

    def gradient(
        self, bound: Bound, output: int, group: int, scale_rows: float | None
    ) -> tuple[Tensor, Tensor]:
        from dsmgp import compiled

        leaves, naturals = self._leaves_of(output, group), self._naturals(bound, output, group)
        found = compiled.log_evidence_and_gradient(leaves, naturals, scale_rows)
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

    def condition(
        self,
        bound: Bound,
        output: int,
        group: int,
        keep: bool,
        twins: list[list[NDArray[np.int64]]] | None,
    ) -> Seen:
        any_twins = twins is not None and any(twins)
        found = self._evaluated(bound, output, group, keep or any_twins, twins is not None)
        sizes = self.leaf_rows.sizes[self.groups[group]]
        factors = Packed(torch.from_numpy(found.factors), sizes)
        left_out = None
        if twins is not None:
            variance = 1.0 / found.inverse_diagonal
            away = found.alpha * variance
            left_out = Left(away, variance)
            if any_twins:
                left_out = _without_twins(left_out, found.alpha, factors, twins)
        return Seen(
            log_evidence=torch.from_numpy(found.log_evidence),
            added=torch.from_numpy(found.added),
            alpha=torch.from_numpy(found.alpha),
            factors=factors if keep else None,
            left_out=left_out,
        )

    def predict(self, bound: Bound, output: int, asked: Questions) -> tuple[Tensor, Tensor]:
        from dsmgp import compiled

        natural = bound.naturals[output]
        mean, variance = compiled.predict(
            self._make(asked.numbers, output),
            (natural if natural.ndim == 1 else natural[asked.numbers]).numpy(),
            asked.alpha.numpy()[self.leaf_rows.positions(asked.numbers)],
            None if asked.factors is None else _row_major(asked.factors).addresses(asked.slots),
            asked.X.numpy(),
            asked.ends,
        )
        return torch.from_numpy(mean), torch.from_numpy(variance)

    def fill(
        self, bound: Bound, output: int, number: int, K: NDArray[np.float64], first: int
    ) -> None:
        from dsmgp import compiled

        natural = bound.naturals[output]
        leaf = self._make(np.array([number]), output)
        compiled.fill(
            leaf, 0, (natural if natural.ndim == 1 else natural[number]).numpy(), K, first
        )

    def _evaluated(
        self,
        bound: Bound,
        output: int,
        group: int,
        factors: bool = False,
        leave_out: bool = False,
    ) -> Any:
        from dsmgp import compiled

        leaves, naturals = self._leaves_of(output, group), self._naturals(bound, output, group)
        return compiled.condition(leaves, naturals, factors, leave_out)

    def _naturals(self, bound: Bound, output: int, group: int) -> NDArray[np.float64]:
        natural = bound.naturals[output]
        return (natural if natural.ndim == 1 else natural[self.groups[group]]).numpy()

    def _leaves_of(self, output: int, group: int) -> Leaves:
        """Made once: an optimiser comes back for the same leaves many times."""
        key = (output, group)
        if key not in self._leaves:
            self._leaves[key] = self._make(self.groups[group], output)
        return self._leaves[key]

    def _make(self, numbers: NDArray[np.int64], output: int) -> Leaves:
        from dsmgp import compiled

        law = self.laws[output][numbers[0]]
        assert isinstance(law, Stationary)
        return compiled.Leaves.of(
            self.X.numpy(),
            self._targets[output],
            self.leaf_rows.take(numbers),
            law.columns,
            law.kind,
            law.mean_kind,
            self._known[output],
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_leaves": {}}


def _row_major(factors: LeafFactors) -> RowMajorFactors:
    assert isinstance(factors, (Packed, LeadingBlocks)), "of another engine"
    return factors


def _without_twins(
    alone: Left, alpha: Array, factors: Packed, twins: list[list[NDArray[np.int64]]]
) -> Left:
    """Rows of several leaves, left out alone, with their twins left out too."""
    away, variance, density = (table.copy() for table in alone.grouped)
    ends = np.cumsum([0, *factors.sizes])
    for slot, own in enumerate(twins):
        if own:
            rows = slice(ends[slot], ends[slot + 1])
            half = factors[slot].clone()
            lapack.invert_factor(half.numpy())
            pull = torch.from_numpy(alpha[rows])
            a, v, d = without_twins(
                away[rows][None], variance[rows][None], half[None], pull[None], [own]
            )
            away[rows], variance[rows], density[rows] = a[0], v[0], d[0]
    return Left(alone.away, alone.variance, (away, variance, density))


def _pieces(sizes: NDArray[np.int64], codes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Leaf numbers in pieces of work with equal laws, large leaves first."""
    pieces: list[list[int]] = []
    growing: dict[int, tuple[list[int], float]] = {}
    costs = (sizes**3 + PAIR * sizes**2).tolist()
    for k in np.argsort(-sizes, kind="stable").tolist():
        if not costs[k]:
            break
        piece, load = growing.get(codes[k], ([], math.inf))
        if load + costs[k] > PIECE:
            piece, load = [], 0.0
            pieces.append(piece)
        piece.append(k)
        growing[codes[k]] = piece, load + costs[k]
    return [np.array(piece) for piece in pieces]
