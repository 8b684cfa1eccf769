"""GPs over segments of ordered rows, averaged over the posterior of the segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.execution import Threads
from dsmgp.order import Order
from dsmgp.prefixes import BoundLaw, Prefixes
from dsmgp.segments import Segments

__all__ = ["Answers", "Chain", "Segmented", "chains_of"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Weights at a point below this are not worth an entry.
NOTHING = 1e-15
# Chains whose answers are held at once.
CHAINS_AT_ONCE = 64


@dataclass(frozen=True)
class Chain:
    """Segments that begin at one boundary, or end at the last, so that one factor serves all.

    ``rows`` are those of the longest, from the boundary that they share on; ``segments`` are numbers, shortest first.
    """

    rows: Index
    lengths: Index
    segments: Index


def chains_of(segments: Segments) -> list[Chain]:
    """The segments in chains: those that end with the last row in one, the others by where they begin."""
    n, chains = segments.n_rows, []
    last = np.flatnonzero(segments.end == n)
    if len(last):
        own = last[np.argsort(-segments.start[last], kind="stable")]
        lengths = n - segments.start[own]
        chains.append(Chain(np.arange(n)[::-1][: lengths[-1]], lengths, own))
    others = np.flatnonzero(segments.end != n)
    for own in np.split(others, np.flatnonzero(np.diff(segments.start[others])) + 1):
        if len(own):
            start = int(segments.start[own[0]])
            lengths = segments.end[own] - start  # ascending, as segments are in order
            chains.append(Chain(np.arange(start, start + lengths[-1]), lengths, own))
    return chains


@dataclass(frozen=True)
class Answers:
    """What the segments of a chain say of points: f's mean and variance, (n_segments, n_points, n_outputs)."""

    chain: Chain
    points: Index
    mean: Array
    variance: Array


class Segmented:
    """Rows in order, laws for each output, and the posterior over their segments.

    Parameters
    ----------
    order : Order
    laws : sequence of BoundLaw
        One per output.
    X : tensor of shape (n, n_dims)
    Y, noise : arrays of shape (n, n_outputs)
        In order, as is ``X``; noise variances of each row.
    segments : Segments
    memory : float
        Bytes of factors that may be kept.
    """

    def __init__(
        self,
        order: Order,
        laws: Sequence[BoundLaw],
        X: Tensor,
        Y: Array,
        noise: Array,
        segments: Segments,
        memory: float = 2.0**28,
    ) -> None:
        self.order, self.laws, self.X, self.Y, self.noise = order, laws, X, Y, noise
        self.all_segments = segments
        self.segments = segments.kept()
        self.memory = memory
        self._held: dict[int, list[Prefixes]] = {}

    @property
    def log_evidence(self) -> float:
        return self.segments.log_evidence

    @property
    def n_outputs(self) -> int:
        return len(self.laws)

    @cached_property
    def chains(self) -> list[Chain]:
        return chains_of(self.segments)

    def factors(self, number: int) -> list[Prefixes]:
        """The factors of a chain, one per output: kept as long as there is room, or made again."""
        if number in self._held:
            return self._held[number]
        rows = self.chains[number].rows
        made = [
            Prefixes(law, self.X[rows.copy()], self.Y[rows, k], self.noise[rows, k])
            for k, law in enumerate(self.laws)
        ]
        n_bytes = sum(each.n_bytes for each in made)
        if n_bytes <= self.memory:
            self.memory -= n_bytes
            self._held[number] = made
        return made

    def answers(self, Z: Tensor, at: Array) -> Iterator[Answers]:
        """Chain by chain, for the points that its segments may hold; ``at`` are positions of the rows of Z."""

        def of_chain(number: int) -> Answers | None:
            chain = self.chains[number]
            points = self._near(chain, at)
            if not len(points):
                return None
            found = [own.answers(Z[points], chain.lengths) for own in self.factors(number)]
            mean, variance = (np.stack(parts, axis=-1) for parts in zip(*found, strict=True))
            return Answers(chain, points, mean, variance)

        for first in range(0, len(self.chains), CHAINS_AT_ONCE):
            some = range(len(self.chains))[first : first + CHAINS_AT_ONCE]
            found = Threads().map(of_chain, some)
            yield from (each for each in found if each is not None)

    def weights(self, chain: Chain, at: Array) -> Array:
        """Posterior probability that points lie in the segments of a chain, (n_segments, n_points)."""
        own, segments = chain.segments, self.segments
        inside = self.order.holds(segments.start[own], segments.end[own], at)
        return segments.probability[own, None] * inside

    def n_entries(self, at: Array) -> Index:
        """How many segments may hold each point."""
        count = np.zeros(len(at), dtype=np.int64)
        for chain in self.chains:
            points = self._near(chain, at)
            count[points] += (self.weights(chain, at[points]) > NOTHING).sum(axis=0)
        return count

    def entries(self, Z: Tensor, at: Array) -> tuple[Index, Array, Array, Array]:
        """Point, weight, mean and variance of f (n_outputs columns) for every segment that may hold a point.

        The weights of a point sum to one.
        """
        point, weight, mean, variance = [], [], [], []
        for found in self.answers(Z, at):
            w = self.weights(found.chain, at[found.points])
            segment, column = np.nonzero(w > NOTHING)
            point.append(found.points[column])
            weight.append(w[segment, column])
            mean.append(found.mean[segment, column])
            variance.append(found.variance[segment, column])
        who, weights = np.concatenate(point), np.concatenate(weight)
        weights /= np.bincount(who, weights, minlength=len(at))[who]
        return who, weights, np.concatenate(mean), np.concatenate(variance)

    def _near(self, chain: Chain, at: Array) -> Index:
        own = chain.segments
        start, end = self.segments.start[own].min(), self.segments.end[own].max()
        return np.flatnonzero(self.order.near(int(start), int(end), at))
