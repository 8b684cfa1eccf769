"""A search for the trees of cuts with the largest posterior probability, at given hyperparameters.

The score of a tree is its log prior plus the log evidences of its leaves, which are kept: a move costs the leaves it touches
only. Proposals are guided by exact scans (:mod:`dsmgp.fitting.structure.row_evidence`): a leaf grows, and a cut between two leaves changes, where all cuts of
their region score best; a cut further up moves to where it scores best given the cuts below it. Cuts are pruned and swapped, too.
The search keeps the best trees and goes on from each until none of them leads to a better one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.fitting.structure.row_evidence import CutScan, RowEvidence
from dsmgp.progress import stopping
from dsmgp.tree.cut_tree import (
    Cut,
    CutTree,
    TreePrior,
    grown,
    inner_cuts,
    leaf_rows,
    prunings,
    replaced,
    snapped,
    swaps,
)

__all__ = ["TreeSearch"]


@dataclass
class TreeSearch:
    """Trees that were scored so far, at one set of hyperparameters.

    Attributes
    ----------
    evidence : RowEvidence
    prior : TreePrior
    scores : dict of CutTree to float
        Log posterior probability of each tree that was seen, up to a constant.
    """

    evidence: RowEvidence
    prior: TreePrior
    scores: dict[CutTree, float] = field(default_factory=dict)

    @property
    def X(self) -> Array:
        """Coordinates in which trees cut."""
        return self.evidence.data.U

    def score(self, tree: CutTree) -> float:
        """Return the log prior plus the log evidence of a tree."""
        if tree not in self.scores:
            log_prior = self.prior.log_density(tree, self.X)
            if log_prior > -math.inf:
                log_prior += sum(self.evidence.log_evidence(r) for r in leaf_rows(tree, self.X))
            self.scores[tree] = log_prior
        return self.scores[tree]

    def best(self, most: int) -> list[CutTree]:
        """Return the best trees so far, best first."""
        possible = [tree for tree, score in self.scores.items() if score > -math.inf]
        return sorted(possible, key=lambda tree: -self.scores[tree])[:most]

    def run(
        self,
        starts: Sequence[CutTree],
        width: int,
        n_best: int,
        within: float = math.inf,
        budget: float = math.inf,
    ) -> None:
        """Go on from the best trees until all of them have been gone on from.

        Parameters
        ----------
        starts : sequence of CutTree
        width : int
            How many of the best trees are gone on from.
        n_best : int
            Cuts that are proposed in a region, besides the best along each input.
        within : float
            Trees that score less than the best by more than this are not gone on from.
        budget : float
            Multiplications in factorisations, after which the search ends.
        """
        for tree in starts:
            placed, is_valid = snapped(tree, self.X, self.prior.least)
            if is_valid:
                self.score(self._reduced(placed))
        limit = self.evidence.n_operations + budget
        done: set[CutTree] = set()
        while self.evidence.n_operations < limit:
            leaders = self.best(width)
            open_trees = [
                tree
                for tree in leaders
                if tree not in done and self.scores[tree] >= self.scores[leaders[0]] - within
            ]
            if not open_trees:
                return
            done.add(open_trees[0])
            for tree in self._moves(open_trees[0], n_best):
                self.score(tree)
                if self.evidence.n_operations >= limit or stopping():
                    return

    def _reduced(self, tree: CutTree) -> CutTree:
        """Cut leaves with more rows than a leaf may have where a scan of some of their rows says best."""
        for path, rows in list(grown(tree, self.X)):
            if len(rows) > self.prior.most:
                scan = self.evidence.scan(rows, exactly=False)
                share = self._share_below(rows, scan)
                # Without a break any cut loses least at the edge, where it hardly makes parts smaller.
                breaks = scan.evidence.max(initial=-math.inf) > scan.whole + math.log(len(scan) + 1)
                margin = 0.1 if breaks else 0.35
                inside = np.flatnonzero((share > margin) & (share < 1.0 - margin))
                if not len(inside):
                    continue
                k = inside[np.argmax(scan.evidence[inside])]
                part = Cut(int(scan.dimension[k]), float(scan.split[k]))
                placed, is_valid = snapped(part, self.X, self.prior.least, rows)
                if is_valid:
                    return self._reduced(replaced(tree, path, placed))
        return tree

    def _share_below(self, rows: Index, scan: CutScan) -> Array:
        """Return the share of a region's rows that are below each cut, (n_cuts,)."""
        share = np.empty(len(scan))
        for dimension in np.unique(scan.dimension).tolist():
            along = scan.dimension == dimension
            ordered = np.sort(self.X[rows, dimension])
            share[along] = np.searchsorted(ordered, scan.split[along]) / len(rows)
        return share

    def _moves(self, tree: CutTree, n_best: int) -> Iterator[CutTree]:
        """Yield the trees that one move leads to."""
        for path, rows in grown(tree, self.X):
            for part in self._cuts_of(rows, len(path), n_best):
                yield replaced(tree, path, part)
        for path, rows, cut in inner_cuts(tree, self.X):
            if cut.below is None and cut.above is None:
                parts = self._cuts_of(rows, len(path), n_best)
            else:
                parts = self._moved(rows, cut, n_best)
            for part in parts:
                yield replaced(tree, path, part)
        yield from prunings(tree, self.X)
        for swapped in swaps(tree, self.X):
            placed, is_valid = snapped(swapped, self.X, self.prior.least)
            if is_valid:
                yield placed

    def _cuts_of(self, rows: Index, depth: int, n_best: int) -> Iterator[Cut]:
        """Yield the best cuts of a region into two leaves, and remember the evidence of these."""
        if len(rows) > self.prior.most:
            return
        scan = self.evidence.scan(rows)
        choices = self.prior.log_choices(self.X, rows, depth)[2]
        for k in _leading(scan, scan.evidence - choices[scan.dimension], n_best):
            cut = Cut(int(scan.dimension[k]), float(scan.split[k]))
            is_above = self.X[rows, cut.dimension] >= cut.split
            self.evidence.remember(rows[~is_above], float(scan.below[k]))
            self.evidence.remember(rows[is_above], float(scan.above[k]))
            yield cut

    def _moved(self, rows: Index, cut: Cut, n_best: int) -> Iterator[Cut]:
        """Yield a cut at the best positions along its input, given the cuts below it."""
        scan = self.evidence.conditional_scan(rows, cut)
        for k in _leading(scan, scan.evidence, n_best):
            moved = Cut(cut.dimension, float(scan.split[k]), cut.below, cut.above)
            placed, is_valid = snapped(moved, self.X, self.prior.least, rows)
            if is_valid:
                assert placed is not None
                yield placed


def _leading(scan: CutScan, score: Array, n_best: int) -> list[int]:
    """Return the best cuts of a scan: the best ones overall, and the best along each input."""
    if not len(scan):
        return []
    order = np.argsort(-score, kind="stable")
    _, first = np.unique(scan.dimension[order], return_index=True)
    return list(dict.fromkeys([*order[:n_best].tolist(), *order[np.sort(first)].tolist()]))
