"""Cholesky factors that overlapping leaves share: which leaves to factorise, and which take part of another's factor.

If one leaf's rows lie within another's, order the rows of the larger leaf so that those of the smaller come first: the
smaller factor then is the leading block of the larger one, and costs nothing (Trapp et al. 2020, appendix A). So a chain of nested
leaves costs its largest. The appendix's other steps, to add rows to a factor or to remove some, are left out: plans hardly chose them.

A plan needs the rows of the leaves, and which of them have the same kernel and hyperparameters. It pays where leaves are nested or
equal: few input dimensions, uneven or repeated cuts, many partitions. Leaves of balanced trees in many dimensions hardly overlap,
and a plan finds that out at little cost. It does not help with gradients, which need every inverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from dsmgp._util.arrays import Index

__all__ = ["SharingPlan", "direct_flops", "plan_sharing"]

# Other costs, in flops of a Cholesky factorisation of some hundred rows on one core (about 10 in a nanosecond), as
# measured: to evaluate an element of a kernel, and what a leaf that takes part of another's factor costs in the interpreter.
KERNEL_FLOPS = 60.0
CALL_FLOPS = 2e6
# Rows of a leaf that are looked up in the others. If all of them are there, the leaf may lie within the other.
N_PROBES = 8
# Leaves that may lie within another and are compared with it row by row, the largest first.
N_CANDIDATES = 8
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
    flops : dict of int to float
        Estimated work of each owner, kernel evaluations included.
    flops_direct : float
        Estimated work if each leaf is factorised for itself.
    """

    rows: list[Index]
    owner: list[int]
    flops: dict[int, float]
    flops_direct: float

    @property
    def flops_shared(self) -> float:
        return math.fsum(self.flops.values())

    @property
    def saving(self) -> float:
        """Share of the work that the plan saves, between 0 and 1."""
        return 1.0 - self.flops_shared / self.flops_direct if self.flops_direct else 0.0


def plan_sharing(leaf_rows: Sequence[Index], families: Index | None = None) -> SharingPlan:
    """Find for each leaf the cheapest way to its factor.

    Parameters
    ----------
    leaf_rows : sequence of integer arrays
        Row numbers of each leaf, distinct within a leaf.
    families : ndarray of shape (n_leaves,), optional
        Equal for leaves with the same kernel and hyperparameters; only these share. All leaves do by default.

    Examples
    --------
    Two cuts of the same rows. The leaves left of them are nested, and so are those right of them.

    >>> cuts = [np.arange(400), np.arange(400, 1000), np.arange(600), np.arange(600, 1000)]
    >>> plan = plan_sharing(cuts)
    >>> plan.owner
    [2, 1, 2, 1]
    >>> plan.rows[1][[0, 399, 400]]  # the smaller leaf's rows come first
    array([600, 999, 400])
    >>> round(plan.saving, 2)
    0.25
    """
    if families is None:
        families = np.zeros(len(leaf_rows), dtype=np.int64)
    sets, first_leaf, set_of_leaf = _distinct_sets(leaf_rows, families)
    sizes = np.array([len(rows) for rows in sets], dtype=np.int64)
    subset = _largest_subsets(sets, sizes, families[first_leaf])
    top = _chain_tops(sizes, subset)
    ordered = _order_rows(sets, subset, top)
    return SharingPlan(
        rows=[ordered[top[k]][: len(sets[k])] for k in set_of_leaf],
        owner=[first_leaf[top[k]] for k in set_of_leaf],
        flops={first_leaf[k]: float(direct_flops(len(rows))) for k, rows in ordered.items()},
        flops_direct=math.fsum(direct_flops(sizes[set_of_leaf])),
    )


def direct_flops(n: Count) -> Count:
    """Return the work of leaves of ``n`` rows, each factorised for itself."""
    return n**3 / 3.0 + KERNEL_FLOPS * n**2


def _distinct_sets(
    leaf_rows: Sequence[Index], families: Index
) -> tuple[list[Index], list[int], list[int]]:
    """Distinct sets of rows of each family, sorted; the first leaf of each; and the set of each leaf."""
    number_of: dict[tuple[int, bytes], int] = {}
    sets: list[Index] = []
    first_leaf, set_of_leaf = [], []
    for leaf, (given, family) in enumerate(zip(leaf_rows, families.tolist(), strict=True)):
        rows = np.sort(np.asarray(given, dtype=np.int64))
        number = number_of.setdefault((family, rows.tobytes()), len(sets))
        if number == len(sets):
            sets.append(rows)
            first_leaf.append(leaf)
        set_of_leaf.append(number)
    return sets, first_leaf, set_of_leaf


def _largest_subsets(sets: list[Index], sizes: Index, families: Index) -> Index:
    """For each set the largest other set of its family that lies within it; itself where none does that is worth a copy."""
    largest = np.arange(len(sets))
    worth = np.flatnonzero(direct_flops(sizes) > CALL_FLOPS)
    if len(sets) < 2 or not len(worth):
        return largest
    rows = np.concatenate(sets)
    ends = np.append(0, np.cumsum(sizes))
    by_set = csr_matrix((np.ones(len(rows), dtype=np.int8), rows, ends))
    inner, outer = _candidates(by_set.tocsc().T, rows, ends[:-1], sizes, worth)
    possible = (sizes[inner] < sizes[outer]) & (families[inner] == families[outer])
    inner, outer = inner[possible], outer[possible]
    order = np.lexsort((sizes[inner], outer))
    inner, outer = inner[order], outer[order]
    for _ in range(N_CANDIDATES):
        if not len(outer):
            break
        last = np.flatnonzero(np.diff(outer, append=-1))  # the largest candidate of each
        common = by_set[outer[last]].multiply(by_set[inner[last]])
        within = last[np.diff(common.tocsr().indptr) == sizes[inner[last]]]
        largest[outer[within]] = inner[within]
        remaining = ~np.isin(outer, outer[within])
        remaining[last] = False
        inner, outer = inner[remaining], outer[remaining]
    return largest


def _candidates(
    by_row: csr_matrix, rows: Index, starts: Index, sizes: Index, chosen: Index
) -> tuple[Index, Index]:
    """Pairs of a chosen set and another that has some rows of it: :data:`N_PROBES`, evenly spaced.

    The sets of a partition are disjoint, so that there are few pairs: one for each set and partition at most.
    """
    n_shared = csr_matrix((len(chosen), by_row.shape[1]), dtype=np.int8)
    for k in range(N_PROBES):
        places = starts[chosen] + (sizes[chosen] - 1) * k // (N_PROBES - 1)
        n_shared = n_shared + by_row[rows[places]]
    found = n_shared.tocoo()
    in_all = found.data == N_PROBES
    return chosen[found.row[in_all]], found.col[in_all].astype(np.int64)


def _chain_tops(sizes: Index, subset: Index) -> list[int]:
    """For each set the largest set of its chain, which is factorised.

    Each set is followed in its chain by the largest one within it. One that several others have within them belongs to the chain
    with the largest top, and the other chains end above it.
    """
    top = list(range(len(sizes)))
    for k in np.argsort(-sizes, kind="stable").tolist():  # supersets come before their subsets
        inner = int(subset[k])
        if sizes[top[k]] > sizes[top[inner]]:
            top[inner] = top[k]
    return top


def _order_rows(sets: list[Index], subset: Index, top: list[int]) -> dict[int, Index]:
    """The rows of each top, those of smaller sets of its chain before those of larger ones."""
    place = np.empty(max((int(rows[-1]) + 1 for rows in sets if len(rows)), default=0), np.int64)
    ordered: dict[int, Index] = {}
    for number, rows in enumerate(sets):
        if top[number] != number:
            continue
        chain = [number]
        while (inner := int(subset[chain[-1]])) != chain[-1] and top[inner] == number:
            chain.append(inner)
        for depth, k in enumerate(chain):
            place[sets[k]] = -depth
        ordered[number] = rows[np.argsort(place[rows], kind="stable")] if len(chain) > 1 else rows
    return ordered
