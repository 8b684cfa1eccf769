"""Conditioned leaves to which rows are added and from which rows are dropped, without starting over.

A leaf that no row came to or went from is answered by what was conditioned before; the others are live
(:mod:`dsmgp.live`). Nothing here changes: rows that come or go make another object, which shares all that stayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.conditioned import Conditioned
from dsmgp.engine import Bound, BoundLaw
from dsmgp.execution import as_numpy, as_tensor
from dsmgp.experts import Experts
from dsmgp.gate import leaf_scales
from dsmgp.live import LiveLeaf
from dsmgp.routes import Routes

__all__ = ["Online"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Online:
    """Leaves as they were conditioned, and those that have changed since.

    It answers as :class:`~dsmgp.conditioned.Conditioned` does.

    Attributes
    ----------
    base : Conditioned
    ids : ndarray of shape (n_rows of the base,)
        Numbers of the base's rows.
    live : dict of int to LiveLeaf
        The leaves that have changed, by number.
    log_evidence : ndarray of shape (n_leaves, n_outputs)
    n_rows : int
    """

    base: Conditioned
    ids: Index
    live: dict[int, LiveLeaf]
    log_evidence: Array
    n_rows: int

    @classmethod
    def of(cls, conditioned: Conditioned | Online, ids: Index) -> Online:
        if isinstance(conditioned, Online):
            return conditioned
        return cls(conditioned, ids, {}, conditioned.log_evidence, conditioned.n_rows)

    @property
    def experts(self) -> Experts:
        return self.base.experts

    @property
    def naturals(self) -> list[Tensor]:
        return self.base.naturals

    @property
    def noise(self) -> Array:
        return self.base.noise

    @property
    def prior_variance(self) -> Array:
        return self.base.prior_variance

    def n_bytes(self, changing: Index) -> int:
        """What the factors of the leaves that changed take, and of those that are about to."""
        new = [k for k in changing.tolist() if k not in self.live]
        sizes = self.base.leaf_rows.sizes[new]
        held = sum(leaf.n_bytes for leaf in self.live.values())
        return held + 8 * self.experts.n_outputs * int(np.square(sizes).sum())

    @cached_property
    def _bound(self) -> Bound:
        """The laws in double precision on the CPU, where live leaves are."""
        return Bound(self.experts.laws, [n.detach().cpu().double() for n in self.base.naturals])

    def _laws(self, number: int) -> list[BoundLaw]:
        return [self._bound(output, [number]) for output in range(self.experts.n_outputs)]

    def joined(self, routes: Routes, ids: Index, X: Array, Y: Array, known: Array | None) -> Online:
        """With more rows, in the units of the experts, that reach leaves as ``routes`` says."""
        known = np.zeros_like(Y) if known is None else known

        def work(place: int) -> LiveLeaf:
            number, rows = int(routes.leaf[place]), routes.rows[place]
            leaf, laws = self.leaf(number), self._laws(number)
            return leaf.joined(laws, ids[rows], X[rows], Y[rows], known[rows])

        return self._changed(routes, work, self.n_rows + len(ids))

    def without(self, routes: Routes, ids: Index) -> Online:
        """Without some rows, that reach leaves as ``routes`` says."""

        def work(place: int) -> LiveLeaf:
            number = int(routes.leaf[place])
            return self.leaf(number).without(self._laws(number), ids[routes.rows[place]])

        return self._changed(routes, work, self.n_rows - len(ids))

    def _changed(self, routes: Routes, work: Callable[[int], LiveLeaf], n_rows: int) -> Online:
        numbers = routes.leaf.tolist()
        found = self.experts.threads.map(work, range(len(numbers)))
        evidence = self.log_evidence.copy()
        for number, leaf in zip(numbers, found, strict=True):
            evidence[number] = leaf.log_evidence
        live = self.live | dict(zip(numbers, found, strict=True))
        return replace(self, live=live, log_evidence=evidence, n_rows=n_rows)

    def leaf(self, number: int) -> LiveLeaf:
        """A leaf that can be changed."""
        if number in self.live:
            return self.live[number]
        rows = self.base.leaf_rows[number]
        X, Y = as_numpy(self.experts.X[rows]), as_numpy(self.experts.Y[rows])
        known = (
            np.zeros_like(Y) if self.experts.known is None else as_numpy(self.experts.known[rows])
        )
        columns = self.base.columns(number)
        if columns is None:
            return LiveLeaf.afresh(self._laws(number), self.ids[rows], X, Y, known)
        return LiveLeaf(self.ids[rows], X, Y, known, columns)

    def scales(self, numbers: Index) -> Array:
        """Scales of leaves that have changed."""
        squares, counts = zip(*(self.live[int(k)].squares for k in numbers), strict=True)
        return leaf_scales(np.stack(squares), np.stack(counts))

    def predict(self, routes: Routes, X: Tensor, with_variance: bool = True) -> tuple[Array, Array]:
        """As :meth:`Conditioned.predict <dsmgp.conditioned.Conditioned.predict>`."""
        is_live = np.array([int(k) in self.live for k in routes.leaf], dtype=bool)
        n_pairs, n_outputs = len(routes.rows.flat), self.experts.n_outputs
        mean = np.empty((n_pairs, n_outputs))
        variance = np.empty((n_pairs if with_variance else 0, n_outputs))
        still = np.flatnonzero(~is_live)
        if len(still):
            where = routes.rows.positions(still)
            some = Routes(routes.leaf[still], routes.rows.take(still))
            found = self.base.predict(some, X, with_variance)
            mean[where] = found[0]
            if with_variance:
                variance[where] = found[1]
        tests = as_numpy(X)

        def work(place: int) -> tuple[Array, Array]:
            number = int(routes.leaf[place])
            rows = tests[routes.rows[place]]
            return self.live[number].predict(self._laws(number), rows, with_variance)

        changed = np.flatnonzero(is_live).tolist()
        for place, answer in zip(changed, self.experts.threads.map(work, changed), strict=True):
            own = slice(*routes.rows.ends[place : place + 2].tolist())
            mean[own] = answer[0]
            if with_variance:
                variance[own] = answer[1]
        return mean, variance

    def joint(self, number: int, X: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`Conditioned.joint <dsmgp.conditioned.Conditioned.joint>`."""
        if number not in self.live:
            return self.base.joint(number, X)
        mean, covariance = self.live[number].joint(self._laws(number), as_numpy(X))
        return as_tensor(mean, X), as_tensor(covariance, X)
