"""A leaf with its rows in order: what it takes to find the posterior over its segments, at any hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.breaks import BreakingLeaf, ChangePoints
from dsmgp.order import Order
from dsmgp.prefixes import BoundLaw, Prefixes
from dsmgp.segmented import Segmented, chains_of
from dsmgp.segments import (
    Segments,
    any_changes,
    hazard_odds,
    log_prior_of_one,
    no_change,
    one_change,
)
from dsmgp.tree import Leaf
from dsmgp.windows import segment_evidences

__all__ = ["OrderedLeaf"]

Array = NDArray[np.float64]
# Segments that together are expected less often than this count nothing in a gradient.
DROPPED_IN_GRADIENT = 1e-6


class OrderedLeaf:
    """A leaf, breaking or not, before theta is known.

    Parameters
    ----------
    leaf : Leaf
    X : array of shape (n_rows, n_dims)
        All rows in the user's units.
    Z : tensor of shape (n_rows, n_dims)
        The same as the experts see them.
    Y : array of shape (n_rows, n_outputs)
        As the experts see it.
    longest : int
        Most rows in a segment.
    """

    def __init__(self, leaf: Leaf, X: Array, Z: Tensor, Y: Array, longest: int) -> None:
        assert leaf.rows is not None
        self.changes: ChangePoints | None = None
        position = np.zeros(leaf.n_rows)
        if isinstance(leaf, BreakingLeaf):
            self.changes = leaf.changes
            position = X[leaf.rows, self.dimension]
        sort = np.argsort(position, kind="stable")
        self.leaf, self.rows = leaf, leaf.rows[sort]
        self.order = Order(position[sort])
        self.X, self.Y = Z[self.rows.copy()], Y[self.rows]
        self.longest = min(longest, len(self.rows)) if self.may_change_often else len(self.rows)
        self._check_ties()

    @property
    def dimension(self) -> int:
        assert self.changes is not None
        return int(self.changes.dimension)

    @property
    def may_change(self) -> bool:
        return self.changes is not None and bool(self.order.is_gap.any())

    @property
    def may_change_often(self) -> bool:
        """Whether there is a hazard to know."""
        return self.changes is not None and self.changes.n_changes is None and self.may_change

    def positions(self, X: Array) -> Array:
        """Of any rows, along the input that orders these."""
        return np.zeros(len(X)) if self.changes is None else X[:, self.dimension]

    def segments(self, laws: Sequence[BoundLaw], noise: Array, hazard: float | None) -> Segments:
        """The posterior over segments; its log evidence is not a number where a matrix has no factor."""
        n = len(self.rows)
        if not self.may_change_often:
            prefix = self._prefixes(laws, noise, reverse=False)
            if not self.may_change:
                return no_change(self.order, float(prefix[-1]))
            suffix = self._prefixes(laws, noise, reverse=True)[::-1]
            assert self.changes is not None
            prior = log_prior_of_one(self.order, self.changes.gaps)
            return one_change(self.order, prefix, suffix, prior)
        evidences = np.zeros((n, self.longest))
        for k, law in enumerate(laws):
            evidences += segment_evidences(law, self.X, self.Y[:, k], noise[:, k], self.longest)
        if np.isnan(evidences).any():
            none = np.zeros(n + 1)
            return Segments(np.array([0]), np.array([n]), np.ones(1), none, np.nan, none)
        assert self.changes is not None
        assert hazard is not None
        log_change, log_stay, _ = hazard_odds(self.order, self.changes.gaps, hazard)
        return any_changes(self.order, evidences, log_change, log_stay)

    def hazard_slope(self, segments: Segments, hazard: float) -> float:
        """Derivative of the log evidence by the hazard's theta."""
        assert self.changes is not None
        *_, slope = hazard_odds(self.order, self.changes.gaps, hazard)
        return float(slope @ (segments.change - segments.prior_change))

    def gradient(
        self, segments: Segments, laws: Sequence[BoundLaw], noise: Array, noise_share: Array
    ) -> list[Array]:
        """Of the log evidence by each law's natural vector: that of each segment, times its probability."""
        kept = segments.kept(DROPPED_IN_GRADIENT)
        totals: list[Array] = [np.zeros(0)] * len(laws)
        for chain in chains_of(kept):
            weights = np.zeros(len(chain.rows))
            weights[chain.lengths - 1] = kept.probability[chain.segments]
            X = self.X[chain.rows.copy()]
            for k, law in enumerate(laws):
                own = Prefixes(law, X, self.Y[chain.rows, k], noise[chain.rows, k])
                found = own.gradient(weights, noise_share[chain.rows, k])
                totals[k] = totals[k] + found if len(totals[k]) else found
        return totals

    def condition(
        self, laws: Sequence[BoundLaw], noise: Array, hazard: float | None, memory: float
    ) -> Segmented:
        segments = self.segments(laws, noise, hazard)
        return Segmented(self.order, laws, self.X, self.Y, noise, segments, memory)

    def _prefixes(self, laws: Sequence[BoundLaw], noise: Array, reverse: bool) -> Array:
        """Log evidence of the first 0, 1, ..., n rows, or of the last."""
        rows = np.arange(len(self.rows))[:: -1 if reverse else 1].copy()
        total = np.zeros(len(rows) + 1)
        for k, law in enumerate(laws):
            own = Prefixes(law, self.X[rows], self.Y[rows, k], noise[rows, k])
            total[1:] += own.log_evidence
        return total

    def _check_ties(self) -> None:
        """Refuse rows at one position that are more than a segment may hold."""
        if not self.may_change_often:
            return
        bounds = np.flatnonzero(self.order.is_gap)
        most = int(np.diff(np.concatenate([[0], bounds, [len(self.rows)]])).max())
        if most > self.longest:
            raise ValueError(
                f"{most} rows have the same value of the input that orders them, more than the {self.longest} a "
                "segment may hold; raise leaf_size or order by another input"
            )
