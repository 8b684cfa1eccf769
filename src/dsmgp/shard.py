"""Some of a tree's leaves with the rows that they need: a small world of its own, which can live anywhere.

A shard is made from a plan, and made again from it wherever it got lost: a worker that died, or memory that was needed for
another shard. Everything that is asked of it is numbers in and numbers out.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.conditioned import Conditioned
from dsmgp.engine import Law
from dsmgp.execution import as_numpy, as_tensor
from dsmgp.experts import Experts
from dsmgp.loo import Pairs
from dsmgp.ragged import Ragged
from dsmgp.routes import Routes

__all__ = ["Answer", "Content", "Plan", "Shard", "ShardHost"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Content:
    """The rows of a shard, in the units of the experts.

    Attributes
    ----------
    ids : ndarray of shape (n_rows,)
        Their numbers among all rows, in rising order.
    X, Y, known
        As in :class:`~dsmgp.experts.Experts`.
    leaf_rows : Ragged
        Where the rows of each leaf stand here.
    labels : ndarray of shape (n_rows,)
        A number for each row, equal for rows of equal inputs.
    """

    ids: Index
    X: Array
    Y: Array
    known: Array | None
    leaf_rows: Ragged
    labels: Index


@dataclass(frozen=True)
class Plan:
    """How a shard is made.

    Attributes
    ----------
    load : callable
        Gives its :class:`Content`, as often as it is asked.
    numbers : ndarray of shape (n_leaves,)
        What the leaves are called in the tree.
    laws : by output and leaf
    memory : bytes for matrices that are worked on
    device, dtype
    n_bytes : about what the shard takes, factors and all
    """

    load: Callable[[], Content]
    numbers: Index
    laws: Sequence[Sequence[Law]]
    memory: float
    device: torch.device
    dtype: torch.dtype
    n_bytes: float = 0.0


class Shard:
    """Leaves with their rows, and the verbs on them. Leaves are counted from 0 here."""

    def __init__(self, plan: Plan) -> None:
        content = plan.load()
        self.ids, self.labels = content.ids, content.labels
        kind = (plan.device, plan.dtype)
        self.experts = Experts(
            content.leaf_rows,
            as_tensor(content.X, kind),
            as_tensor(content.Y, kind),
            plan.laws,
            memory=plan.memory,
            known=None if content.known is None else as_tensor(content.known, kind),
            numbers=plan.numbers,
        )
        # By what they were conditioned for: one set of leaves may be conditioned on several thetas.
        self._conditioned: dict[int, Conditioned] = {}

    def log_evidence(self, naturals: Sequence[Array]) -> Array:
        return self.experts.log_evidence(_tensors(naturals))

    def squares(self, naturals: Sequence[Array]) -> Array:
        return self.experts.squares(_tensors(naturals))

    def gradient(
        self, naturals: Sequence[Array], outputs: Sequence[int], scale_rows: float | None
    ) -> tuple[Array, list[Array]]:
        return self.experts.log_evidence_and_gradient(_tensors(naturals), outputs, scale_rows)

    def condition(
        self, key: int, naturals: Sequence[Array], memory: float, watched: Index | None
    ) -> tuple[Array, Array, Array, Pairs | None]:
        """Log evidence; where rows are watched also the sums of squares of rows left out, what these are worth, and what is
        said of those that are watched, which are named by their numbers among all rows."""
        labels = None if watched is None else self.labels
        self._conditioned[key] = seen = Conditioned(
            self.experts, _tensors(naturals), memory, labels
        )
        if watched is None:
            return seen.log_evidence, np.empty(0), np.empty(0), None
        left = seen.left_leaves()
        place = np.searchsorted(self.ids, watched)
        here = place < len(self.ids)
        here[here] = self.ids[place[here]] == watched[here]
        said = left.pairs(place[here])
        pairs = Pairs(said.leaf, np.flatnonzero(here)[said.place], said.values)
        seen.forget_left_out()
        return seen.log_evidence, left.squares, left.counts, pairs

    def predict(
        self, key: int, leaf: Index, row: Index, ends: Index, X: Array, with_variance: bool
    ) -> tuple[Array, Array]:
        routes, tests = Routes(leaf, Ragged(row, ends)), as_tensor(X, self.experts.X)
        return self._conditioned[key].predict(routes, tests, with_variance)

    def joint(self, key: int, number: int, X: Array) -> tuple[Array, Array]:
        mean, covariance = self._conditioned[key].joint(number, as_tensor(X, self.experts.X))
        return as_numpy(mean), as_numpy(covariance)

    def drop(self, key: int) -> None:
        """Forget what was conditioned."""
        if key in self._conditioned:
            self._conditioned.pop(key).release()

    def release(self) -> None:
        """Give back memory at once."""
        for key in list(self._conditioned):
            self.drop(key)


@dataclass(frozen=True)
class Answer:
    """What a shard found, or the error it met, and what it warned of on the way."""

    value: Any
    error: Exception | None
    warned: list[tuple[type[Warning], str]]


class ShardHost:
    """A process's shards, as many in memory as there is room for; the others are made again when they are asked.

    Parameters
    ----------
    memory : float
        Bytes that shards may take. One is always held.
    """

    def __init__(self, memory: float = float("inf")) -> None:
        self.memory = memory
        self._plans: dict[int, Plan] = {}
        # What shards were conditioned on, by shard and by key.
        self._asked: dict[int, dict[int, tuple[Any, ...]]] = {}
        self._live: OrderedDict[int, Shard] = OrderedDict()

    def place(self, number: int, plan: Plan) -> None:
        self._plans[number], self._asked[number] = plan, {}

    def remove(self, number: int) -> None:
        for table in (self._plans, self._asked, self._live):
            table.pop(number, None)

    def ask(self, number: int, verb: str, *arguments: Any) -> Answer:
        """A verb of :class:`Shard`; whatever goes wrong is part of the answer."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value, error = self._ask(number, verb, arguments), None
            except Exception as found:
                value, error = None, found
        return Answer(value, error, [(w.category, str(w.message)) for w in caught])

    def remember(self, number: int, key: int, naturals: Sequence[Array], memory: float) -> None:
        """That a shard was conditioned, which is done again when it is asked."""
        self._live.pop(number, None)
        self._asked[number][key] = (key, naturals, memory, None)

    def _ask(self, number: int, verb: str, arguments: tuple[Any, ...]) -> Any:
        asked = self._asked[number]
        if verb == "drop":
            asked.pop(arguments[0], None)
            if number not in self._live:
                return None
        found = getattr(self._shard(number), verb)(*arguments)
        if verb == "condition":
            asked[arguments[0]] = (*arguments[:3], None)  # rows are left out once
        return found

    def _shard(self, number: int) -> Shard:
        if number in self._live:
            self._live.move_to_end(number)
            return self._live[number]
        need = self._plans[number].n_bytes
        while self._live and need + sum(self._plans[k].n_bytes for k in self._live) > self.memory:
            _, oldest = self._live.popitem(last=False)
            oldest.release()
        shard = Shard(self._plans[number])
        for arguments in self._asked[number].values():
            shard.condition(*arguments)
        self._live[number] = shard  # only now: whatever went wrong before, it will be made again
        return shard


def _tensors(arrays: Sequence[Array]) -> list[Tensor]:
    return [torch.from_numpy(np.array(array)) for array in arrays]
