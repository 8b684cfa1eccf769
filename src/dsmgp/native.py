"""GP leaves in compiled code: stationary kernels, double precision, CPU. Needs numba (``dsmgp[fast]``)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp import lapack
from dsmgp.engine import Bound, Law, Question, Seen, without_twins
from dsmgp.stationary import Stationary

if TYPE_CHECKING:
    from dsmgp.compiled import Leaves

__all__ = ["NativeEngine"]

KINDS = ("rbf", "matern12", "matern32", "matern52")
# Multiplications that make one piece of work for a thread: a millisecond or two.
PIECE = 3e7
# What a pair of rows costs beside the factorisation, in multiplications.
PAIR = 100.0


@cache
def _available() -> bool:
    return lapack.available and importlib.util.find_spec("numba") is not None


class NativeEngine:
    """An :class:`dsmgp.engine.Engine` of compiled calls, many leaves in each."""

    def __init__(
        self, X: Tensor, Y: Tensor, leaf_rows: Sequence[Tensor], laws: Sequence[Sequence[Law]]
    ) -> None:
        self.X, self.Y, self.leaf_rows, self.laws = X, Y, leaf_rows, laws
        self.groups = _pieces(
            [len(rows) for rows in leaf_rows],
            [tuple(by_leaf[k] for by_leaf in laws) for k in range(len(leaf_rows))],
        )
        self._leaves: dict[tuple[int, int], Leaves] = {}
        # One column after the other, once: every group of leaves points to them.
        self._targets = [y.contiguous().numpy() for y in Y.T]

    @staticmethod
    def can(X: Tensor, laws: Sequence[Sequence[Law]]) -> bool:
        """Whether these rows and laws can be computed here."""
        if not _available() or X.device.type != "cpu" or X.dtype != torch.float64:
            return False
        return all(
            isinstance(law, Stationary) and law.kind in KINDS
            for law in {law for by_leaf in laws for law in by_leaf}
        )

    def elements(self, group: int) -> int:
        return sum(len(self.leaf_rows[number]) ** 2 for number in self.groups[group])

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
        ends = self._leaves_of(output, group).ends[1:-1]
        alpha = np.split(found.alpha, ends)
        left_out = None
        if twins is not None:
            variance = np.split(1.0 / found.inverse_diagonal, ends)
            left_out = []
            for slot, own in enumerate(twins):
                away, alone = alpha[slot] * variance[slot], variance[slot]
                grouped_away, grouped = away, alone
                if own:
                    half = found.factors[slot].copy()
                    lapack.invert_factor(half)
                    tensors = [torch.from_numpy(t)[None] for t in (half, alpha[slot])]
                    both = without_twins(away[None], alone[None], tensors[0], tensors[1], [own])
                    grouped_away, grouped = both[0][0], both[1][0]
                left_out.append((away, alone, grouped_away, grouped))
        return Seen(
            log_evidence=torch.from_numpy(found.log_evidence),
            added=torch.from_numpy(found.added),
            alpha=[torch.from_numpy(a) for a in alpha],
            factor=[torch.from_numpy(f) for f in found.factors] if keep else None,
            left_out=left_out,
        )

    def predict(
        self, bound: Bound, output: int, questions: Sequence[Question]
    ) -> list[tuple[Tensor, Tensor]]:
        from dsmgp import compiled

        answers = []
        for q in questions:
            mean, variance = compiled.predict(
                self._make([q.number], output),
                0,
                _natural_of(bound, output, q.number),
                q.alpha.numpy(),
                None if q.factor is None else q.factor.numpy(),
                q.X.numpy(),
            )
            answers.append((torch.from_numpy(mean), torch.from_numpy(variance)))
        return answers

    def fill(
        self, bound: Bound, output: int, number: int, K: NDArray[np.float64], first: int
    ) -> None:
        from dsmgp import compiled

        leaf = self._make([number], output)
        compiled.fill(leaf, 0, _natural_of(bound, output, number), K, first)

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

    def _make(self, numbers: Sequence[int], output: int) -> Leaves:
        from dsmgp import compiled

        law = self.laws[output][numbers[0]]
        assert isinstance(law, Stationary)
        return compiled.Leaves.of(
            self.X.numpy(),
            self._targets[output],
            [self.leaf_rows[k].numpy() for k in numbers],
            law.columns,
            law.kind,
            law.mean_kind,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_leaves": {}}


def _natural_of(bound: Bound, output: int, number: int) -> NDArray[np.float64]:
    natural = bound.naturals[output]
    return (natural if natural.ndim == 1 else natural[number]).numpy()


def _pieces(sizes: Sequence[int], laws: Sequence[tuple[Law, ...]]) -> list[list[int]]:
    """Leaf numbers in pieces of work with equal laws, large leaves first."""
    order = sorted((k for k in range(len(sizes)) if sizes[k]), key=lambda k: (-sizes[k], k))
    pieces: list[list[int]] = []
    growing: dict[tuple[Law, ...], tuple[list[int], float]] = {}
    for k in order:
        cost = sizes[k] ** 3 + PAIR * sizes[k] ** 2
        piece, load = growing.get(laws[k], ([], math.inf))
        if load + cost > PIECE:
            piece, load = [], 0.0
            pieces.append(piece)
        piece.append(k)
        growing[laws[k]] = piece, load + cost
    return pieces
