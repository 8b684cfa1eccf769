"""The posterior over the positions of splits and change points along one input."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dsmgp._util.arrays import Array
from dsmgp._util.dates import Dates
from dsmgp._util.errors import InputError
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.tree.nodes import Node, Product, nodes

__all__ = ["ChangePoint", "Splits"]

# Neighbouring gaps with less probability than this are not counted as part of a change.
LEAST_SHARE = 1e-3
# A run of gaps with more expected changes than this holds more than one change. It is above one, since a change that
# is spread over several gaps is sometimes two.
MOST_IN_ONE = 1.3


class ChangePoint(NamedTuple):
    """A change point: its most likely position, the shortest interval with the requested probability, its probability.

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
    """Gaps between training rows, in order, and the expected number of splits or changes in each.

    All positions within a gap separate the rows in the same way, so the posterior is flat there.

    Attributes
    ----------
    low, high : ndarray of shape (n_gaps,)
        The ends of each gap.
    probability : ndarray of shape (n_gaps,)
        Expected number of splits in the gap; if a gap holds at most one, its probability.
    is_change : bool
        Whether these are change points of the function, or splits of random partitions.
    dates : Dates or None
        If the input is a date: numbers are days since ``dates.origin``.

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
        values: Array,
        to_input: Callable[[Array], Array] = lambda position: position,
    ) -> Splits:
        """Return the splits of a tree's products, each in its gap between ``values``, those of the training rows.

        ``to_input`` converts positions along the dimension to values of the input.

        Parameters
        ----------
        tree : Node
        log_reach : mapping of Node to float
            Log posterior probability of each node.
        dimension : int
        values : ndarray of shape (n_rows,)
        to_input : callable
        """
        pairs = [
            (position, log_reach[node])
            for node in nodes(tree)
            if isinstance(node, Product) and node.dimension == dimension
            for position in node.splits
        ]
        table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        position, probability = to_input(table[:, 0]), np.exp(table[:, 1])
        unique = np.unique(values)
        at = np.searchsorted(unique, position, side="left")  # a row at a split lies right of it
        inside = (at > 0) & (at < len(unique))
        low = np.where(inside, unique[np.maximum(at - 1, 0)], position)
        high = np.where(inside, unique[np.minimum(at, len(unique) - 1)], position)
        return cls.joined([cls(low, high, probability)])

    @classmethod
    def along_input(
        cls,
        tree: Node,
        log_reach: Mapping[Node, float],
        coordinates: Coordinates | None,
        dimension: int,
        values: Array,
    ) -> Splits:
        """Return the splits along an input of a tree that cuts coordinates, those that belong to this input alone."""
        if coordinates is None:
            return cls.of_tree(tree, log_reach, dimension, values)
        # Under a metric regions are oblique: no cut is along one input.
        of_input = [] if coordinates.is_oblique else coordinates.columns == dimension
        parts = [
            cls.of_tree(tree, log_reach, k, values, partial(coordinates.to_input, k))
            for k in np.flatnonzero(of_input).tolist()
        ]
        return cls.joined(parts) if parts else cls(*np.empty((3, 0)))

    @classmethod
    def joined(cls, parts: Sequence[Splits]) -> Splits:
        """Merge the gaps of several, in order; probabilities of equal gaps are added."""
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
        """Expected number of splits or changes."""
        return float(self.probability.sum())

    def density(self, x: ArrayLike) -> Array:
        """Return the expected number of splits or changes per unit of the input at each x."""
        at = self._numbers(x)
        total = np.zeros(at.shape)
        wide = self.high > self.low
        rate = self.probability[wide] / (self.high - self.low)[wide]
        for low, high, height in zip(self.low[wide], self.high[wide], rate, strict=True):
            total += height * ((at >= low) & (at < high))
        return total

    def within(self, low: Any, high: Any) -> float:
        """Return the expected number of splits or changes between two positions."""
        low, high = self._numbers(low), self._numbers(high)
        width = np.where(self.high > self.low, self.high - self.low, 1.0)
        inside = (np.minimum(self.high, high) - np.maximum(self.low, low)) / width
        point = (self.low >= low) & (self.high <= high)
        share = np.where(self.high > self.low, np.clip(inside, 0.0, 1.0), point)
        return float(self.probability @ share)

    def change_points(self, level: float = 0.5) -> list[ChangePoint]:
        """List the change points that are at least so probable, in order.

        A change may be spread over several gaps. The shortest run of gaps with probability ``level`` is taken first;
        neighbouring gaps, up to about one change in total, are counted as the same change.
        """
        if not isinstance(level, numbers.Real) or not 0.0 < level <= 1.0:
            raise InputError(f"expected level to be above 0 and at most 1, got {level!r}")
        left = self.probability.copy()
        changes: list[ChangePoint] = []
        while len(left) and (run := self._shortest(left, level)) is not None:
            changes.append(self._take(left, *run))
        return sorted(changes, key=lambda change: change.position)

    def _shortest(self, left: Array, level: float) -> tuple[int, int] | None:
        """Return first and last gap of the shortest run with this probability; gaps that were taken are not crossed."""
        best: tuple[float, float, int, int] | None = None
        first, total = 0, 0.0
        slack = 1e-9  # rounding of sums of probabilities
        for last, probability in enumerate(left):
            if probability < 0.0:
                first, total = last + 1, 0.0
                continue
            total += probability
            while first < last and total - left[first] >= level - slack:
                total -= left[first]
                first += 1
            width = self.high[last] - self.low[first]
            run = float(width), -total, first, last  # of equally short runs the more probable
            if total >= level - slack and (best is None or run < best):
                best = run
        return None if best is None else best[2:]

    def _take(self, left: Array, first: int, last: int) -> ChangePoint:
        """Return the change in a run of gaps, and mark its gaps in ``left`` as taken."""
        low, high = self.low[first], self.high[last]
        run = left[first : last + 1]
        mode = first + int(np.argmax(run))
        total, a, b = float(run.sum()), first, last
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
        """Convert positions, which may be dates, to numbers."""
        is_date = np.asarray(x).dtype.kind in "MOU"  # dates may be written as text
        if self.dates is not None and is_date:
            return self.dates.to_numbers(x)
        return np.asarray(x, dtype=np.float64)
