"""Where a model breaks along one input: the posterior over the positions of cuts and changes."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp.timeline import Dates
from dsmgp.tree import Node, Product, nodes

__all__ = ["ChangePoint", "Splits"]

Array = NDArray[np.float64]
# Neighbours of a change that are expected less often than this are not taken for part of it.
LEAST_SHARE = 1e-3
# Gaps in which more changes than this are expected hold more than one: one that is spread over gaps may also be two now and then.
MOST_IN_ONE = 1.3


class ChangePoint(NamedTuple):
    """A change: where it is most likely, the shortest interval that holds it at the level asked for, its probability.

    Positions are dates where the input is one.

    Examples
    --------
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> y = (X[:, 0] > 0.5) + 0.05 * np.random.default_rng(0).normal(size=60)
    >>> model = DSMGPRegressor("rbf", structure="changepoint").fit(X, y)
    >>> [change] = model.changepoints(0.9)
    >>> isinstance(change, ChangePoint), round(change.position, 2), round(change.probability, 2)
    (True, 0.5, 1.0)
    """

    position: Any
    low: Any
    high: Any
    probability: float


@dataclass(frozen=True)
class Splits:
    """Gaps between training rows, in order, and how many cuts or changes are expected in each.

    In one gap all positions part the rows alike: the posterior says nothing more, and is flat inside.

    Attributes
    ----------
    low, high : ndarray of shape (n_gaps,)
        The ends of each gap.
    probability : ndarray of shape (n_gaps,)
        Expected number of cuts in the gap; where a gap holds at most one, its probability.
    is_change : bool
        Whether these are changes of the function, with the posterior's probabilities, or cuts of random partitions.
    dates : Dates or None
        Where the input is one of dates: numbers are days since ``dates.origin``.

    Examples
    --------
    >>> splits = Splits(np.array([0.0, 1.0]), np.array([1.0, 3.0]), np.array([0.2, 0.8]), True)
    >>> print(splits.density([0.5, 2.0, 9.0]), splits.expected)
    [0.2 0.4 0. ] 1.0
    >>> splits.change_points(0.5)
    [ChangePoint(position=2.0, low=1.0, high=3.0, probability=1.0)]
    """

    low: Array
    high: Array
    probability: Array
    is_change: bool = False
    dates: Dates | None = None

    @classmethod
    def of_tree(
        cls,
        tree: Node,
        log_reach: Mapping[Node, float],
        dimension: int,
        values: Array | None = None,
    ) -> Splits:
        """The cuts of a tree's products, each in its gap between ``values``, those of the training rows."""
        found = [
            (position, log_reach[node])
            for node in nodes(tree)
            if isinstance(node, Product) and node.dimension == dimension
            for position in node.splits
        ]
        table = np.array(found, dtype=np.float64).reshape(-1, 2)
        position, probability = table[:, 0], np.exp(table[:, 1])
        low, high = position, position
        if values is not None and len(values) and len(position):
            known = np.unique(values)
            at = np.searchsorted(known, position, side="left")  # a row at the cut lies right of it
            inside = (at > 0) & (at < len(known))
            low = np.where(inside, known[np.maximum(at - 1, 0)], position)
            high = np.where(inside, known[np.minimum(at, len(known) - 1)], position)
        return cls.joined([cls(low, high, probability)])

    @classmethod
    def joined(cls, parts: Sequence[Splits]) -> Splits:
        """All gaps of several, in order; gaps that are the same count once."""
        low = np.concatenate([part.low for part in parts])
        high = np.concatenate([part.high for part in parts])
        gaps, where = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True)
        probability = np.concatenate([part.probability for part in parts])
        total = np.zeros(len(gaps))
        np.add.at(total, where.reshape(-1), probability)
        return cls(gaps[:, 0], gaps[:, 1], total, any(part.is_change for part in parts))

    def __len__(self) -> int:
        return len(self.probability)

    @property
    def position(self) -> Array:
        """The middle of each gap."""
        return 0.5 * (self.low + self.high)

    @property
    def expected(self) -> float:
        """How many cuts or changes there are, in expectation."""
        return float(self.probability.sum())

    def density(self, x: ArrayLike) -> Array:
        """Expected number of cuts or changes per unit of the input at each x."""
        at = self._numbers(x)
        total = np.zeros(at.shape)
        wide = self.high > self.low
        rate = self.probability[wide] / (self.high - self.low)[wide]
        for low, high, height in zip(self.low[wide], self.high[wide], rate, strict=True):
            total += height * ((at >= low) & (at < high))
        return total

    def within(self, low: Any, high: Any) -> float:
        """Expected number of cuts or changes between two places."""
        low, high = self._numbers(low), self._numbers(high)
        width = np.where(self.high > self.low, self.high - self.low, 1.0)
        inside = (np.minimum(self.high, high) - np.maximum(self.low, low)) / width
        point = (self.low >= low) & (self.high <= high)
        share = np.where(self.high > self.low, np.clip(inside, 0.0, 1.0), point)
        return float(self.probability @ share)

    def change_points(self, level: float = 0.5) -> list[ChangePoint]:
        """Places where a change is at least so probable, in order.

        A change may be spread over several gaps. The shortest run of gaps that holds ``level`` is taken first; what
        lies next to it, up to about one change in all, is counted as the same change.
        """
        if not isinstance(level, numbers.Real) or not 0.0 < level <= 1.0:
            raise ValueError(f"expected level to be above 0 and at most 1, got {level!r}")
        left = self.probability.copy()
        found: list[ChangePoint] = []
        while len(left) and (run := self._shortest(left, level)) is not None:
            found.append(self._taken(left, *run))
        return sorted(found, key=lambda change: change.position)

    def _shortest(self, left: Array, level: float) -> tuple[int, int] | None:
        """The shortest run of gaps with this much in them: first and last. Gaps that were taken are not crossed."""
        best: tuple[float, float, int, int] | None = None
        first, total = 0, 0.0
        slack = 1e-9  # sums of probabilities that are one are so only nearly
        for last, own in enumerate(left):
            if own < 0.0:
                first, total = last + 1, 0.0
                continue
            total += own
            while first < last and total - left[first] >= level - slack:
                total -= left[first]
                first += 1
            width = self.high[last] - self.low[first]
            found = float(width), -total, first, last  # of two as short the more probable
            if total >= level - slack and (best is None or found < best):
                best = found
        return None if best is None else best[2:]

    def _taken(self, left: Array, first: int, last: int) -> ChangePoint:
        """The change in a run of gaps, and all that belongs to it taken out."""
        low, high = self.low[first], self.high[last]
        own = left[first : last + 1]
        mode = first + int(np.argmax(own))
        total, a, b = float(own.sum()), first, last
        while True:
            before = left[a - 1] if a > 0 else -1.0
            after = left[b + 1] if b + 1 < len(left) else -1.0
            more = max(before, after)
            if more < LEAST_SHARE or total + more > MOST_IN_ONE:
                break
            a, b = (a - 1, b) if before >= after else (a, b + 1)
            total += more
        left[a : b + 1] = -1.0
        position = 0.5 * (self.low[mode] + self.high[mode])
        places: list[Any] = [float(position), float(low), float(high)]
        if self.dates is not None:
            places = [self.dates.to_dates(place) for place in places]
        return ChangePoint(places[0], places[1], places[2], min(float(total), 1.0))

    def _numbers(self, x: Any) -> Array:
        """Places as numbers, where they may be dates."""
        is_date = np.asarray(x).dtype.kind in "MOU"  # dates may be written as text
        if self.dates is not None and is_date:
            return self.dates.to_numbers(x)
        return np.asarray(x, dtype=np.float64)
