"""Cholesky factors that leaves share: which leaf to factorise, and which to take from another.

If one leaf's rows lie within another's, order the larger leaf's rows so that the smaller's come
first: the smaller factor then is the leading block of the larger one, and costs nothing. So any
nested chain of leaves costs its largest; in one dimension most leaves stand in a few such chains.
A leaf that is in no chain may still begin with a block of another's factor and go on from there, or
drop rows from it, whichever costs least (Trapp et al. 2020, appendix A, with eq. 13 on L L').

A plan needs the leaves' rows only, is made once for a tree, and says what it saves. It pays where
leaves are nested or nearly equal: few input dimensions, uneven or repeated cuts, many partitions.
Leaves of balanced trees in many dimensions hardly overlap, and a plan finds that out at little cost.
It needs one theta for all leaves, and gives nothing for gradients, which need every inverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

__all__ = [
    "Direct",
    "Extend",
    "Prefix",
    "Remove",
    "Same",
    "SharingPlan",
    "direct_flops",
    "plan_sharing",
]

# What else costs time, in flops of a Cholesky factorisation of some hundred rows on one core (about
# 10 in a nanosecond), as measured: to evaluate an element of a kernel; to sweep a QR update over an
# element, however few rows are removed; to move an element of another factor; and to make the calls
# for a leaf that shares.
KERNEL_FLOPS = 60.0
SWEEP_FLOPS = 40.0
MOVE_FLOPS = 60.0
CALL_FLOPS = 2e6
# Each QR update adds its rounding error to those of the factors it starts from.
MAX_UPDATES = 16
# Donors considered for a set of rows: so many smaller ones, and so many larger.
N_CANDIDATES = 8
# Triples of two sets and a group of rows in both that are counted to find them; a sample beyond that.
MAX_TRIPLES = 2**21


@dataclass(frozen=True, slots=True)
class Direct:
    """Factorise the leaf's matrix."""


@dataclass(frozen=True, slots=True)
class Same:
    """The factor of leaf ``of``, which has the same rows."""

    of: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """The leading block, ``n`` rows, of the factor of leaf ``of``."""

    of: int
    n: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Begin with the leading ``n`` rows of the factor of leaf ``of``, and factorise on."""

    of: int
    n: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Begin with the leading ``n`` rows of the factor of leaf ``of``, drop those at the positions
    ``removed``, and factorise on if the leaf has more rows."""

    of: int
    n: int
    removed: NDArray[np.int64]


Made = Direct | Extend | Remove
Step = Made | Same | Prefix


@dataclass(frozen=True)
class SharingPlan:
    """How every leaf comes by its factor. Made by :func:`plan_sharing`.

    Attributes
    ----------
    rows : list of arrays
        For each leaf its rows in the order of its factor.
    steps : list of Direct, Same, Prefix, Extend or Remove
        For each leaf.
    flops : dict
        Estimated work, kernel evaluations included, of the leaves that are not copied; donors come first.
    flops_direct : float
        Estimated work, each leaf for itself.
    """

    rows: list[NDArray[np.int64]]
    steps: list[Step]
    flops: dict[int, float]
    flops_direct: float

    @property
    def flops_shared(self) -> float:
        return math.fsum(self.flops.values())

    @property
    def saving(self) -> float:
        """The share of the work that the plan saves, between 0 and 1."""
        return 1.0 - self.flops_shared / self.flops_direct if self.flops_direct else 0.0

    def owner(self, leaf: int) -> int:
        """The leaf whose factor's leading block is this leaf's factor: itself if it is not copied."""
        step = self.steps[leaf]
        match step:
            case Same(of):
                return self.owner(of)
            case Prefix(of):
                return of
        return leaf

    def lineage(self, leaf: int) -> list[int]:
        """A leaf that is not copied, the one that it starts from, and so on."""
        found = [leaf]
        while isinstance(step := self.steps[found[-1]], (Extend, Remove)):
            found.append(step.of)
        return found

    def summary(self) -> str:
        """What happens to how many leaves, and what it saves."""
        kinds = [type(step) for step in self.steps]
        words = {
            Direct: "factorised",
            Prefix: "copied",
            Same: "the same as another",
            Extend: "extended",
            Remove: "with rows removed",
        }
        counts = [f"{kinds.count(k)} {word}" for k, word in words.items() if k in kinds]
        return (
            f"{len(kinds)} leaves: {', '.join(counts) or 'nothing to do'}; {self.flops_shared:.2g} "
            f"of {self.flops_direct:.2g} flops, {self.saving:.0%} saved"
        )


def plan_sharing(leaf_rows: Sequence[NDArray[np.int64]]) -> SharingPlan:
    """Find for each leaf the cheapest way to its factor.

    Parameters
    ----------
    leaf_rows : sequence of integer arrays
        The numbers of the rows of each leaf, distinct within a leaf.

    Examples
    --------
    Two cuts of the same rows. The leaves left of them are nested, and so are those right of them.

    >>> cuts = [np.arange(400), np.arange(400, 1000), np.arange(600), np.arange(600, 1000)]
    >>> plan = plan_sharing(cuts)
    >>> plan.steps
    [Prefix(of=2, n=400), Direct(), Direct(), Prefix(of=1, n=400)]
    >>> plan.rows[1][[0, 399, 400]]  # the smaller leaf's rows come first
    array([600, 999, 400])
    >>> print(plan.summary())
    4 leaves: 2 factorised, 2 copied; 1.9e+08 of 2.5e+08 flops, 25% saved
    """
    sets, first, number = _distinct_sets(leaf_rows)
    sizes = np.array([len(rows) for rows in sets], dtype=np.int64)
    chains = _Chains(sizes, _choose_donors(sizes, _candidates(sets, sizes)))
    made = _order_rows(sets, first, chains)
    rows: list[NDArray[np.int64]] = []
    steps: list[Step] = []
    for leaf, own in enumerate(number):
        top, n = chains.top[own], len(sets[own])
        rows.append(made[top].rows[:n])
        if leaf != first[own]:
            steps.append(Same(first[own]))
        elif top != own:
            steps.append(Prefix(first[top], n))
        else:
            steps.append(made[top].step)
    flops = {first[top]: one.flops for top, one in made.items()}
    return SharingPlan(rows, steps, flops, math.fsum(direct_flops(sizes[number])))


def _distinct_sets(
    leaf_rows: Sequence[NDArray[np.int64]],
) -> tuple[list[NDArray[np.int64]], list[int], list[int]]:
    """The distinct sets of rows, sorted; the first leaf of each; and for each leaf its set."""
    known: dict[bytes, int] = {}
    sets: list[NDArray[np.int64]] = []
    first, number = [], []
    for leaf, given in enumerate(leaf_rows):
        rows = np.sort(np.asarray(given, dtype=np.int64))
        own = known.setdefault(rows.tobytes(), len(sets))
        if own == len(sets):
            sets.append(rows)
            first.append(leaf)
        number.append(own)
    return sets, first, number


# A number, or an array of numbers.
Count = Any


def direct_flops(n: Count) -> Count:
    """Work of leaves of ``n`` rows, each for itself."""
    return n**3 / 3.0 + KERNEL_FLOPS * n**2


def _added_flops(n: Count, n_kept: Count) -> Count:
    """Continue a factor of ``n_kept`` rows to ``n``."""
    return (n**3 - n_kept**3) / 3.0 + KERNEL_FLOPS * (n - n_kept) * n


def _removed_flops(n_after: Count, n_removed: Count) -> Count:
    """Remove rows from a factor; ``n_after`` of the others come after the first of them."""
    return (2.0 * n_removed + SWEEP_FLOPS) * n_after**2 * (n_removed > 0)


@dataclass(frozen=True)
class _Pairs:
    """Sets that could take their factor from a donor: rows kept, and most that it may cost."""

    taker: NDArray[np.int64]
    donor: NDArray[np.int64]
    kept: NDArray[np.float64]
    sizes: NDArray[np.int64]  # of all sets

    @property
    def n_removed(self) -> NDArray[np.float64]:
        return np.maximum(self.sizes[self.donor] - self.kept, 0.0)

    @property
    def flops(self) -> NDArray[np.float64]:
        n = self.sizes[self.taker]
        # A set that extends another can be factorised together with it: nothing is moved.
        moved = MOVE_FLOPS * n**2 * (self.n_removed > 0) + CALL_FLOPS
        return moved + _removed_flops(self.kept, self.n_removed) + _added_flops(n, self.kept)

    def __getitem__(self, chosen: NDArray[Any]) -> _Pairs:
        return _Pairs(self.taker[chosen], self.donor[chosen], self.kept[chosen], self.sizes)

    def worthwhile(self) -> _Pairs:
        return self[self.flops < direct_flops(self.sizes[self.taker])]


def _candidates(sets: list[NDArray[np.int64]], sizes: NDArray[np.int64]) -> _Pairs:
    """For each set the few others that seem cheapest to start from, smaller and larger ones."""
    none = np.empty(0, dtype=np.int64)
    if len(sets) < 2:
        return _Pairs(none, none, np.empty(0), sizes)
    counts = _count_by_group(sets, sizes)
    pairs, exact = _overlapping(counts, sizes)
    flops, larger = pairs.flops, sizes[pairs.donor] > sizes[pairs.taker]
    order = np.lexsort((flops, larger, pairs.taker))
    kind = (2 * pairs.taker + larger)[order]
    place = np.arange(len(kind)) - np.searchsorted(kind, kind)
    pairs = pairs[order[place < N_CANDIDATES]]
    if exact:
        return pairs
    both = counts[pairs.taker].multiply(counts[pairs.donor] > 0)
    kept = np.asarray(both.sum(axis=1), dtype=np.float64).reshape(-1)
    return _Pairs(pairs.taker, pairs.donor, kept, sizes).worthwhile()


def _overlapping(counts: csr_matrix, sizes: NDArray[np.int64]) -> tuple[_Pairs, bool]:
    """Worthwhile pairs of sets, and whether their overlaps are exact or estimated from a sample."""
    n_sets = np.asarray((counts > 0).sum(axis=0), dtype=np.float64).reshape(-1)
    # Groups are in the order of a hash, so that the leading ones are a sample of all.
    n_counted = max(int(np.searchsorted(np.cumsum(n_sets**2), MAX_TRIPLES, side="right")), 1)
    sample = counts[:, :n_counted]
    overlap = (sample @ (sample > 0).T).tocoo()
    other = overlap.row != overlap.col
    taker, donor = (index[other].astype(np.int64) for index in (overlap.row, overlap.col))
    n_sampled = np.asarray(sample.sum(axis=1), dtype=np.float64).reshape(-1)
    both = overlap.data[other]
    kept = np.minimum(both * (sizes[taker] / n_sampled[taker]), sizes[donor])
    kept[both == n_sampled[donor]] = sizes[donor][both == n_sampled[donor]]  # a subset, it seems
    return _Pairs(taker, donor, kept, sizes).worthwhile(), n_counted == counts.shape[1]


def _count_by_group(sets: list[NDArray[np.int64]], sizes: NDArray[np.int64]) -> csr_matrix:
    """How many rows each set has of each group; rows that lie in just the same sets form a group.

    Groups make overlaps cheap to count: in one dimension there are as many as cuts, however many rows.
    """
    rows, owner = np.concatenate(sets), np.repeat(np.arange(len(sets)), sizes)
    signature = np.zeros(rows.max() + 1, dtype=np.uint64)
    np.add.at(signature, rows, _codes(len(sets))[owner])
    group = np.unique(signature, return_inverse=True)[1]

    def count(group: NDArray[np.int64]) -> csr_matrix:
        shape = (len(sets), int(group.max()) + 1)
        return csr_matrix((np.ones(len(rows)), (owner, group[rows])), shape=shape)

    counts = count(group)
    if np.array_equal(counts.data, np.bincount(group)[counts.indices]):
        return counts
    return count(np.arange(len(group)))  # two signatures were equal by chance: no groups


def _codes(n: int) -> NDArray[np.uint64]:
    """A random number for each set, the same in every run; a row's signature is the sum of its sets'."""
    return np.random.default_rng(0).integers(2**64, size=n, dtype=np.uint64)


def _choose_donors(sizes: NDArray[np.int64], pairs: _Pairs) -> list[tuple[int, bool]]:
    """For each set its donor and whether rows are removed from it; itself if it has none.

    First the cheapest smaller donor of each set: as long as nothing is removed that is the best
    there is, since a set is paid for once, whoever extends it. Then larger donors where they are
    cheaper still, the greatest gain first, and never in a circle.
    """
    donor = np.arange(len(sizes))
    removes = np.zeros(len(sizes), dtype=bool)
    flops = direct_flops(sizes)
    rank = np.argsort(np.argsort(sizes, kind="stable"))
    smaller = rank[pairs.donor] < rank[pairs.taker]
    below, above = pairs[smaller], pairs[~smaller]
    order = np.argsort(-below.flops, kind="stable")  # of several the last, the cheapest, stays
    taker = below.taker[order]
    donor[taker], removes[taker] = below.donor[order], below.n_removed[order] > 0
    flops[taker] = below.flops[order]
    gain = flops[above.taker] - above.flops
    cheapest = above.flops
    for k in np.argsort(-gain, kind="stable")[: int((gain > 0).sum())]:
        own, other = int(above.taker[k]), int(above.donor[k])
        if cheapest[k] < flops[own] and not _descends(donor, other, own):
            donor[own], removes[own], flops[own] = other, True, cheapest[k]
    return list(zip(donor.tolist(), removes.tolist(), strict=True))


def _descends(donor: NDArray[np.int64], one: int, ancestor: int) -> bool:
    """Whether the factor of ``one`` would be made from that of ``ancestor``."""
    while one != ancestor and donor[one] != one:
        one = int(donor[one])
    return one == ancestor


class _Chains:
    """Sets that extend one another, each chain to be factorised as one matrix: its top's.

    A set that several others extend lies in the chain with the largest top; the other chains begin
    with a copy of its factor.
    """

    def __init__(self, sizes: NDArray[np.int64], donors: list[tuple[int, bool]]) -> None:
        self.donor = [donor for donor, _ in donors]
        self.removes = [removes for _, removes in donors]
        self.order = self._donors_first()
        self._limit_updates()
        self.top = list(range(len(donors)))
        for own in reversed(self.order):
            donor = self.donor[own]
            if not self.removes[own] and sizes[self.top[own]] > sizes[self.top[donor]]:
                self.top[donor] = self.top[own]

    def chain(self, base: int) -> list[int]:
        """The sets of a chain, the largest first."""
        chain = [self.top[base]]
        while chain[-1] != base:
            chain.append(self.donor[chain[-1]])
        return chain

    def bases(self) -> list[int]:
        """The smallest set of each chain, donors before those that take from them."""
        return [
            own
            for own in self.order
            if self.donor[own] == own or self.top[self.donor[own]] != self.top[own]
        ]

    def _donors_first(self) -> list[int]:
        takers: list[list[int]] = [[] for _ in self.donor]
        for own, donor in enumerate(self.donor):
            if donor != own:
                takers[donor].append(own)
        order = [own for own, donor in enumerate(self.donor) if donor == own]
        for own in order:  # grows while it is read
            order += takers[own]
        return order

    def _limit_updates(self) -> None:
        n_updates = [0] * len(self.donor)
        for own in self.order:
            donor = self.donor[own]
            n_updates[own] = n_updates[donor] + self.removes[own]
            if n_updates[own] > MAX_UPDATES:
                self.donor[own], self.removes[own], n_updates[own] = own, False, 0


@dataclass(frozen=True)
class _Made:
    """A chain's factor: its rows in order, how it is made, and the work."""

    rows: NDArray[np.int64]
    step: Made
    flops: float


def _order_rows(
    sets: list[NDArray[np.int64]], first: list[int], chains: _Chains
) -> dict[int, _Made]:
    """Each chain's factor by the chain's top, donors first."""
    made: dict[int, _Made] = {}
    n_sets = np.bincount(np.concatenate(sets)) if sets else np.empty(0)  # that each row lies in
    place = np.empty(len(n_sets), dtype=np.int64)  # where a row stands in its chain
    for base in chains.bases():
        nested = [sets[own] for own in chains.chain(base)]
        top, donor = chains.top[base], chains.donor[base]
        of = chains.top[donor]
        step, kept, flops = _from_scratch(nested)
        if donor != base:
            step, kept, flops = _from_donor(first[of], made[of].rows[: len(sets[donor])], nested)
        # Kept rows come first, in the donor's order, then the smaller sets' before the larger ones';
        # rows of few sets last, where others that start from here can leave them off.
        for k, rows in enumerate(nested):
            place[rows] = -k
        place[kept] = np.arange(len(kept)) - len(kept) - len(nested)
        rows = nested[0][np.lexsort((-n_sets[nested[0]], place[nested[0]]))]
        made[top] = _Made(rows, step, flops)
    return made


# How a chain begins, with which rows, and what it costs in all.
Beginning = tuple[Made, NDArray[np.int64], float]


def _from_scratch(nested: list[NDArray[np.int64]]) -> Beginning:
    return Direct(), nested[0][:0], float(direct_flops(len(nested[0])))


def _from_donor(of: int, given: NDArray[np.int64], nested: list[NDArray[np.int64]]) -> Beginning:
    """Begin with those of the ``given`` rows of leaf ``of`` that lie in the smallest of the chain's
    sets (``nested``, the largest first), unless it is as cheap from scratch."""
    inside = np.isin(given, nested[-1], assume_unique=True)
    n = int(np.flatnonzero(inside)[-1]) + 1
    removed = np.flatnonzero(~inside[:n])
    n_after = int(inside[removed[0] :].sum()) if removed.size else 0
    size, kept = len(nested[0]), given[inside]
    flops = _removed_flops(n_after, removed.size) + _added_flops(size, len(kept))
    flops += MOVE_FLOPS * size**2 + CALL_FLOPS
    if flops >= direct_flops(size):
        return _from_scratch(nested)
    return (Remove(of, n, removed) if removed.size else Extend(of, n)), kept, flops
