"""A leaf with its rows in order: what it takes to find the posterior over its segments, at any hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.breaks import BreakingLeaf, ChangePoints
from dsmgp.execution import Threads, has_numba
from dsmgp.order import Order
from dsmgp.prefixes import BoundLaw, Prefixes
from dsmgp.segmented import Chain, Segmented, chains_of
from dsmgp.segments import (
    Segments,
    any_changes,
    hazard_odds,
    log_prior_of_one,
    no_change,
    one_change,
)
from dsmgp.stationary import BoundStationary
from dsmgp.tree import Leaf
from dsmgp.windows import segment_evidences

__all__ = ["OrderedLeaf", "check_memory"]

Array = NDArray[np.float64]
# Segments that together are expected less often than this count nothing in a gradient.
DROPPED_IN_GRADIENT = 1e-6
# Relative step of central differences, of numbers that are not much smaller than this.
STEP = 1e-4
# What a chain and a start cost beside their matrices, in multiplications.
PER_CHAIN, PER_START = 1e6, 1e4


def check_memory(leaves: Sequence[Leaf], longest: int, limit: float) -> None:
    """Refuse rows in segments of up to so many, whose tables take more bytes than allowed, before anything is computed."""
    rows = max(leaf.n_rows for leaf in leaves)
    changes = [leaf.changes for leaf in leaves if isinstance(leaf, BreakingLeaf)]
    once = all(each.n_changes == 1 for each in changes)
    need = 8.0 * (4 * rows**2 if once else 4 * rows * min(longest, rows))
    if need > limit:
        raise ValueError(
            f"{rows} rows in segments of up to {min(longest, rows)} need {need / 1e6:.3g} MB, more than the "
            f"{limit / 1e6:.3g} MB allowed; lower leaf_size or raise memory_limit"
        )


def natural_of(law: BoundStationary) -> Tensor:
    """The vector that a law was bound to, (1, n_parameters)."""
    shape = [] if law.shape is None else [law.shape.reshape(-1, 1)]
    parts = [
        law.lengthscale,
        law.outputscale[:, None],
        *shape,
        law.mean_parameters,
        law.noise[:, None],
    ]
    return torch.cat(parts, dim=1)


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
        self.shortest = 1 if self.changes is None else min(self.changes.shortest, len(self.rows))
        self._check_lengths()

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

    @property
    def most_tied(self) -> int:
        """Most rows at one position."""
        bounds = np.flatnonzero(self.order.is_gap)
        return int(np.diff(np.concatenate([[0], bounds, [len(self.rows)]])).max())

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
            prior = log_prior_of_one(self.order, self.changes.gaps, self.shortest)
            return one_change(self.order, prefix, suffix, prior)
        evidences = np.zeros((n, self.longest))
        for k, law in enumerate(laws):
            evidences += segment_evidences(law, self.X, self.Y[:, k], noise[:, k], self.longest)
        evidences[:, : self.shortest - 1] = -np.inf
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
        """Of the log evidence by each law's natural vector: that of each segment, times its probability.

        In closed form from the factors of the segments' chains; or, where there are too many, by central differences of all
        segments' evidences, whose factors slide.
        """
        kept = segments.kept(DROPPED_IN_GRADIENT)
        if self._differences_pay(kept, laws):
            return [
                self._by_differences(kept, law, noise, noise_share, k) for k, law in enumerate(laws)
            ]
        return self._by_chains(kept, laws, noise, noise_share)

    def _differences_pay(self, kept: Segments, laws: Sequence[BoundLaw]) -> bool:
        """By multiplications, roughly."""
        if not self.may_change_often or not has_numba():
            return False
        if not all(isinstance(law, BoundStationary) for law in laws):
            return False
        lengths = np.array([len(chain.rows) for chain in chains_of(kept)], dtype=np.float64)
        n_parameters = max(
            natural_of(law).shape[-1] for law in laws if isinstance(law, BoundStationary)
        )
        differences = 2.0 * n_parameters * len(self.rows) * (1.5 * self.longest**2 + PER_START)
        return bool(np.sum(3.0 * lengths**3 + PER_CHAIN) > differences)

    def _by_differences(
        self, kept: Segments, law: BoundLaw, noise: Array, noise_share: Array, output: int
    ) -> Array:
        assert isinstance(law, BoundStationary)
        natural, y = natural_of(law), self.Y[:, output]
        share, gradient = noise_share[:, output], np.empty(natural.shape[-1])
        at = kept.start, kept.end - kept.start - 1
        for i in range(len(gradient)):
            step = STEP * max(abs(float(natural[0, i])), STEP)
            ends = []
            for sign in (1.0, -1.0):
                moved = natural.clone()
                moved[0, i] += sign * step
                own = noise[:, output]
                if i + 1 == len(gradient):  # the noise
                    own = own + sign * step * share
                found = segment_evidences(law.law.bind(moved), self.X, y, own, self.longest)
                ends.append(kept.probability @ found[at])
            gradient[i] = (ends[0] - ends[1]) / (2.0 * step)
        return gradient

    def _by_chains(
        self, kept: Segments, laws: Sequence[BoundLaw], noise: Array, noise_share: Array
    ) -> list[Array]:

        def of_chain(chain: Chain) -> list[Array]:
            weights = np.zeros(len(chain.rows))
            weights[chain.lengths - 1] = kept.probability[chain.segments]
            X = self.X[chain.rows.copy()]
            found = []
            for k, law in enumerate(laws):
                own = Prefixes(law, X, self.Y[chain.rows, k], noise[chain.rows, k])
                found.append(own.gradient(weights, noise_share[chain.rows, k]))
            return found

        if not len(self.rows):
            return [np.zeros(0)] * len(laws)
        parts = Threads().map(of_chain, chains_of(kept))
        return [np.sum(each, axis=0) for each in zip(*parts, strict=True)]

    def condition(
        self, laws: Sequence[BoundLaw], noise: Array, hazard: float | None, memory: float
    ) -> Segmented:
        segments = self.segments(laws, noise, hazard)
        return Segmented(self.order, laws, self.X, self.Y, noise, segments, memory)

    def _prefixes(self, laws: Sequence[BoundLaw], noise: Array, reverse: bool) -> Array:
        """Log evidence of the first 0, 1, ..., n rows, or of the last."""
        rows = np.arange(len(self.rows))[:: -1 if reverse else 1].copy()

        def of_output(k: int) -> Array:
            return Prefixes(laws[k], self.X[rows], self.Y[rows, k], noise[rows, k]).log_evidence

        each = Threads().map(of_output, range(len(laws)))
        return np.concatenate([[0.0], np.sum(each, axis=0)])

    def _check_lengths(self) -> None:
        """Refuse lengths of segments that no segmentation can have."""
        if self.may_change and not self.may_change_often:
            at = np.flatnonzero(self.order.is_gap)
            if not ((at >= self.shortest) & (len(self.rows) - at >= self.shortest)).any():
                raise ValueError(
                    f"{len(self.rows)} rows cannot be cut into two segments of at least {self.shortest}; lower shortest"
                )
        if not self.may_change_often:
            return
        if self.longest < len(self.rows) and self.longest < 2 * self.shortest:
            raise ValueError(
                f"expected segments to be allowed at least twice as long as the shortest ({self.shortest} rows), got "
                f"leaf_size={self.longest}"
            )
        most = self.most_tied
        if most > self.longest:
            raise ValueError(
                f"{most} rows have the same value of the input that orders them, more than the {self.longest} a "
                "segment may hold; raise leaf_size or order by another input"
            )
