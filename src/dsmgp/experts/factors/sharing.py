"""Cholesky factors that overlapping leaves share: which leaves to factorise, and which to copy from another.

If one leaf's rows lie within another's, order the rows of the larger leaf so that those of the smaller come first: the
smaller factor then is the leading block of the larger one, and costs nothing. So a chain of nested leaves costs its
largest; in one dimension most leaves stand in a few such chains. A chain may also begin with the factor of a set that
lies in another chain, and go on from there (Trapp et al. 2020, appendix A).

A plan needs the rows of the leaves only, and is made once for a tree. It pays where leaves are nested or equal: few
input dimensions, uneven or repeated cuts, many partitions. Leaves of balanced trees in many dimensions hardly overlap,
and a plan finds that out at little cost. It needs one set of hyperparameters for all leaves, and does not help with
gradients, which need every inverse.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from dsmgp._util.arrays import Array, Index
from dsmgp.linalg.cholesky_update import append_rows

__all__ = [
    "NotPositiveDefinite",
    "SharedFactors",
    "SharingPlan",
    "direct_flops",
    "plan_sharing",
]

# Other costs, in flops of a Cholesky factorisation of some hundred rows on one core (about 10 in a nanosecond), as
# measured: to evaluate an element of a kernel, to copy an element of another factor, and the calls for a leaf that shares.
KERNEL_FLOPS = 60.0
COPY_FLOPS = 60.0
CALL_FLOPS = 2e6
# Subsets of a leaf that are considered to begin with.
N_CANDIDATES = 8
# Triples of two sets and a group of rows in both that are counted to find subsets; a sample beyond that.
MAX_TRIPLES = 2**21
# One number, or an array of numbers.
Count = Any


@dataclass(frozen=True)
class SharingPlan:
    """How every leaf gets its factor. Made by :func:`plan_sharing`.

    Attributes
    ----------
    rows : list of ndarray
        Rows of each leaf in the order of its factor.
    owner : list of int
        For each leaf, the leaf that is factorised and whose leading block is its factor; often itself.
    start : dict of int to int
        For an owner that begins with the factor of another leaf: that leaf.
    flops : dict of int to float
        Estimated work of each owner, kernel evaluations included; in the order in which they can be factorised.
    flops_direct : float
        Estimated work if each leaf is factorised for itself.
    """

    rows: list[Index]
    owner: list[int]
    start: dict[int, int]
    flops: dict[int, float]
    flops_direct: float

    @property
    def flops_shared(self) -> float:
        return math.fsum(self.flops.values())

    @property
    def saving(self) -> float:
        """Share of the work that the plan saves, between 0 and 1."""
        return 1.0 - self.flops_shared / self.flops_direct if self.flops_direct else 0.0

    def lineage(self, owner: int) -> list[int]:
        """Return an owner, the owner whose factor it begins with, and so on."""
        owners = [owner]
        while owners[-1] in self.start:
            owners.append(self.owner[self.start[owners[-1]]])
        return owners

    def summary(self) -> str:
        """Return in words what happens to how many leaves, and what it saves."""
        n_leaves, n_owners, n_extended = len(self.rows), len(self.flops), len(self.start)
        counts = {
            "factorised": n_owners - n_extended,
            "copied": n_leaves - n_owners,
            "extended": n_extended,
        }
        words = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
        return (
            f"{n_leaves} leaves: {words or 'nothing to do'}; {self.flops_shared:.2g} "
            f"of {self.flops_direct:.2g} flops, {self.saving:.0%} saved"
        )


def plan_sharing(leaf_rows: Sequence[Index]) -> SharingPlan:
    """Find for each leaf the cheapest way to its factor.

    Parameters
    ----------
    leaf_rows : sequence of integer arrays
        Row numbers of each leaf, distinct within a leaf.

    Examples
    --------
    Two cuts of the same rows. The leaves left of them are nested, and so are those right of them.

    >>> cuts = [np.arange(400), np.arange(400, 1000), np.arange(600), np.arange(600, 1000)]
    >>> plan = plan_sharing(cuts)
    >>> plan.owner
    [2, 1, 2, 1]
    >>> plan.rows[1][[0, 399, 400]]  # the smaller leaf's rows come first
    array([600, 999, 400])
    >>> print(plan.summary())
    4 leaves: 2 factorised, 2 copied; 1.9e+08 of 2.5e+08 flops, 25% saved
    """
    sets, first_leaf, set_of_leaf = _distinct_sets(leaf_rows)
    sizes = np.array([len(rows) for rows in sets], dtype=np.int64)
    subset = _largest_subsets(sets, sizes)
    top = _chain_tops(sizes, subset)
    made = _order_rows(sets, sizes, subset, top)
    return SharingPlan(
        rows=[made[top[k]].rows[: len(sets[k])] for k in set_of_leaf],
        owner=[first_leaf[top[k]] for k in set_of_leaf],
        start={
            first_leaf[t]: first_leaf[m.begins_with]
            for t, m in made.items()
            if m.begins_with is not None
        },
        flops={first_leaf[t]: m.flops for t, m in made.items()},
        flops_direct=math.fsum(direct_flops(sizes[set_of_leaf])),
    )


def direct_flops(n: Count) -> Count:
    """Return the work of leaves of ``n`` rows, each factorised for itself."""
    return n**3 / 3.0 + KERNEL_FLOPS * n**2


def _extend_flops(n: Count, n_begun: Count) -> Count:
    """Work to extend a factor of ``n_begun`` rows to ``n``."""
    return (n**3 - n_begun**3) / 3.0 + KERNEL_FLOPS * (n - n_begun) * n


def _distinct_sets(leaf_rows: Sequence[Index]) -> tuple[list[Index], list[int], list[int]]:
    """Distinct sets of rows, sorted; the first leaf of each; and the set of each leaf."""
    number_of: dict[bytes, int] = {}
    sets: list[Index] = []
    first_leaf, set_of_leaf = [], []
    for leaf, given in enumerate(leaf_rows):
        rows = np.sort(np.asarray(given, dtype=np.int64))
        number = number_of.setdefault(rows.tobytes(), len(sets))
        if number == len(sets):
            sets.append(rows)
            first_leaf.append(leaf)
        set_of_leaf.append(number)
    return sets, first_leaf, set_of_leaf


def _largest_subsets(sets: list[Index], sizes: Index) -> Index:
    """For each set the largest other set that lies within it; itself where none is worth beginning with."""
    largest = np.arange(len(sets))
    if len(sets) < 2:
        return largest
    counts = _count_by_group(sets, sizes)
    outer, inner, exact = _subset_pairs(counts)
    gain = direct_flops(sizes[outer]) - _extend_flops(sizes[outer], sizes[inner]) - CALL_FLOPS
    outer, inner = outer[gain > 0], inner[gain > 0]
    # The largest subsets of each set come last.
    order = np.lexsort((sizes[inner], outer))
    outer, inner = outer[order], inner[order]
    if not exact:
        rank = np.searchsorted(outer, outer, side="right") - np.arange(len(outer))
        outer, inner = outer[rank <= N_CANDIDATES], inner[rank <= N_CANDIDATES]
        both = counts[outer].multiply(counts[inner] > 0)
        is_subset = np.asarray(both.sum(axis=1)).reshape(-1) == sizes[inner]
        outer, inner = outer[is_subset], inner[is_subset]
    largest[outer] = inner  # of several the last, the largest, stays
    return largest


def _subset_pairs(counts: csr_matrix) -> tuple[Index, Index, bool]:
    """Pairs of a set and another within it, and whether these are certain or only hold in a sample of the rows."""
    n_sets = np.asarray((counts > 0).sum(axis=0), dtype=np.float64).reshape(-1)
    # Groups are in the order of a hash, so that the leading ones are a sample of all.
    n_counted = max(int(np.searchsorted(np.cumsum(n_sets**2), MAX_TRIPLES, side="right")), 1)
    sample = counts[:, :n_counted]
    overlap = (sample @ (sample > 0).T).tocoo()
    n_sampled = np.asarray(sample.sum(axis=1)).reshape(-1)
    within = (overlap.row != overlap.col) & (overlap.data == n_sampled[overlap.col])
    outer, inner = (index[within].astype(np.int64) for index in (overlap.row, overlap.col))
    return outer, inner, n_counted == counts.shape[1]


def _count_by_group(sets: list[Index], sizes: Index) -> csr_matrix:
    """Number of rows that each set has of each group; rows that lie in the same sets form a group.

    Groups make overlaps cheap to count: in one dimension there are as many as cuts, however many rows.
    """
    rows, owner = np.concatenate(sets), np.repeat(np.arange(len(sets)), sizes)
    signature = np.zeros(rows.max(initial=-1) + 1, dtype=np.uint64)
    np.add.at(signature, rows, _codes(len(sets))[owner])
    group = np.unique(signature, return_inverse=True)[1]

    def count(group: Index) -> csr_matrix:
        shape = (len(sets), int(group.max()) + 1)
        return csr_matrix((np.ones(len(rows)), (owner, group[rows])), shape=shape)

    counts = count(group)
    if np.array_equal(counts.data, np.bincount(group)[counts.indices]):
        return counts
    return count(np.arange(len(group)))  # two signatures were equal by chance: no groups


def _codes(n: int) -> NDArray[np.uint64]:
    """A random number for each set, the same in every run; the signature of a row is the sum over its sets."""
    return np.random.default_rng(0).integers(2**64, size=n, dtype=np.uint64)


def _chain_tops(sizes: Index, subset: Index) -> list[int]:
    """For each set the largest set of its chain, which is factorised.

    Sets that extend one another form a chain. A set that several others extend belongs to the chain with the largest
    top; the other chains begin with a copy of its factor.
    """
    top = list(range(len(sizes)))
    for k in np.argsort(-sizes, kind="stable").tolist():  # those that extend a set come before it
        inner = int(subset[k])
        if sizes[top[k]] > sizes[top[inner]]:
            top[inner] = top[k]
    return top


@dataclass(frozen=True)
class _ChainFactor:
    """Factor of the top of a chain: its rows in order, the set whose factor it begins with, and the work."""

    rows: Index
    begins_with: int | None
    flops: float


def _order_rows(
    sets: list[Index], sizes: Index, subset: Index, top: list[int]
) -> dict[int, _ChainFactor]:
    """The factor of each chain, by its top; those that others begin with come first."""
    made: dict[int, _ChainFactor] = {}
    n_rows = max((int(rows[-1]) + 1 for rows in sets if len(rows)), default=0)
    place = np.empty(n_rows, dtype=np.int64)  # of a row in its chain
    for base in np.argsort(sizes, kind="stable").tolist():
        inner = int(subset[base])
        if inner != base and top[inner] == top[base]:
            continue  # not the smallest set of its chain
        chain = [top[base]]
        while chain[-1] != base:
            chain.append(int(subset[chain[-1]]))
        n, begun, begins_with = int(sizes[chain[0]]), np.empty(0, dtype=np.int64), None
        flops = float(direct_flops(n))
        if inner != base:
            extended = _extend_flops(n, sizes[inner]) + COPY_FLOPS * n**2 + CALL_FLOPS
            if extended < flops:
                begun, begins_with = made[top[inner]].rows[: sizes[inner]], inner
                flops = float(extended)
        # Rows of the factor that is begun with come first, in its order; then smaller sets before larger ones.
        for k, number in enumerate(chain):
            place[sets[number]] = -k
        place[begun] = np.arange(len(begun)) - len(begun) - len(chain)
        rows = sets[chain[0]]
        order = np.argsort(place[rows], kind="stable")
        made[chain[0]] = _ChainFactor(rows[order], begins_with, flops)
    return made


class NotPositiveDefinite(ArithmeticError):
    """A covariance matrix has no Cholesky factor."""


class SharedFactors:
    """Lower Cholesky factors of all leaves, by a plan.

    Many are leading blocks of another's: to be read, never written to. A factor is computed when it is first needed,
    with those it begins with; several threads may do so at once.

    Parameters
    ----------
    plan : SharingPlan
    fill : callable
        ``fill(leaf, K, first)`` writes the covariance of the observations at ``plan.rows[leaf]``, noise included,
        into the lower triangle of K: its rows from ``first`` on.

    Examples
    --------
    >>> x = np.linspace(0, 1, 300)
    >>> def fill(leaf, K, first):
    ...     at = x[plan.rows[leaf]]
    ...     K[first:] = np.tril(np.exp(-50 * (at[first:, None] - at) ** 2), first)
    ...     K[range(first, len(K)), range(first, len(K))] += 0.1
    >>> plan = plan_sharing([np.arange(300), np.arange(100, 200)])
    >>> factors = SharedFactors(plan, fill)
    >>> np.shares_memory(factors.lower(0), factors.lower(1))
    True
    """

    def __init__(self, plan: SharingPlan, fill: Callable[[int, Array, int], None]) -> None:
        self.plan, self.fill = plan, fill
        self._clear()

    def _clear(self) -> None:
        self._computed: dict[int, Array] = {}
        self._locks = {leaf: threading.Lock() for leaf in self.plan.flops}

    def lower(self, leaf: int) -> Array:
        """Return the factor of a leaf; NotPositiveDefinite if it, or one that it begins with, has none."""
        owner, n = self.plan.owner[leaf], len(self.plan.rows[leaf])
        for needed in reversed(self.plan.lineage(owner)):
            with self._locks[needed]:
                if needed not in self._computed:
                    self._computed[needed] = self._compute(needed)
        return self._computed[owner][:n, :n]

    def _compute(self, owner: int) -> Array:
        n, first = len(self.plan.rows[owner]), 0
        K = np.zeros((n, n))
        if owner in self.plan.start:
            begins_with = self.plan.start[owner]
            first = len(self.plan.rows[begins_with])
            K[:first, :first] = self._computed[self.plan.owner[begins_with]][:first, :first]
        if first < n:
            self.fill(owner, K, first)
            if not append_rows(K, first):
                raise NotPositiveDefinite(f"the covariance of leaf {owner} ({n} rows)")
        return K

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "fill": self.fill}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()
