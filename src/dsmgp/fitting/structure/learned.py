"""Structure learned by posterior inference: ``structure="learned"``.

Trees and hyperparameters are learned in turn. A smooth kernel with short length scales absorbs a jump, so the
first search uses what was learned inside of small leaves, which few jumps cross; what the leaves of the best
tree then agree on makes the remaining jumps stand out, and so on until the tree stays. A tree that is not cut
at all competes with hyperparameters of its own. The best trees found at the final hyperparameters become
children of one sum node, weighted by the prior of :class:`~dsmgp.tree.cut_tree.TreePrior`: each twice, with
its cuts at either end of their gaps between rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.fitting.effort import EFFORTS, GRADIENT, seconds
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.kernel_mixture import learn_kernels
from dsmgp.fitting.learning.optimize import SearchResult
from dsmgp.fitting.rows.leaf_setup import set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.kernels import rank_kernels
from dsmgp.fitting.structure.row_evidence import RowEvidence
from dsmgp.fitting.structure.tree_search import TreeSearch
from dsmgp.gp.process import Family
from dsmgp.progress import tick
from dsmgp.tree.cut_tree import CutTree, TreePrior, gap_ends, leaf_rows, to_node
from dsmgp.tree.nodes import Leaf, Node, Sum
from dsmgp.tree.region import Region

__all__ = ["LearnedTrees", "learn_structure"]

logger = logging.getLogger("dsmgp")

# Times that structure and hyperparameters are learned in turn at most.
ROUNDS = 4
# Fewest rows in a leaf.
LEAST_ROWS = 10
# The best trees that a search goes on from, and cuts of a region that it proposes besides the best along each
# input: while hyperparameters are learned, and at last.
WIDTH, N_BEST = (3, 6), (1, 8)
# Trees whose posterior probability is below this share of the best tree's are left out, and so are those
# beyond so many.
LEAST_SHARE, MOST_TREES = 1e-3, 32
# Rows of a leaf on which hyperparameters are learned before the last round, and the share of the seconds of
# an effort for the last.
LEARN_ROWS, LAST_SECONDS, LAST_ITERATIONS = 400, 0.25, (5, 40)


@dataclass(frozen=True)
class SearchEffort:
    """What a search may cost.

    Attributes
    ----------
    scan_rows : int
        Rows with which all inputs of a region are scanned.
    operations : float
        Multiplications in factorisations of one search.
    largest_leaf : int
        Regions with more rows are always cut.
    """

    scan_rows: int
    operations: float
    largest_leaf: int


SEARCH_EFFORTS = {
    "low": SearchEffort(500, 5e10, 2000),
    "medium": SearchEffort(1000, 3e11, 4000),
    "high": SearchEffort(2000, 3e12, 10_000),
}
# Inputs for which that many rows are scanned; with more, fewer rows, so that a scan takes as long.
SCAN_INPUTS = 10


@dataclass(frozen=True, eq=False)
class LearnedTrees:
    """Trees found by :func:`learn_structure`.

    Attributes
    ----------
    tree : Node
        A sum over the best trees, with their prior weights; or the only tree.
    families : list of Family
        With hyperparameters learned on the leaves of the best tree.
    searches : list of SearchResult
        The last search for them.
    """

    tree: Node
    families: list[Family]
    searches: list[SearchResult]


@dataclass(frozen=True, eq=False)
class _Found:
    """A tree, the hyperparameters learned on its leaves, and the log posterior probability of both, up to a constant."""

    tree: CutTree
    families: list[Family]
    score: float


def learn_structure(
    data: ScaledRows, families: Sequence[Family], automatic: bool, context: FitContext
) -> LearnedTrees:
    """Learn trees and hyperparameters in turn.

    Parameters
    ----------
    data : ScaledRows
    families : sequence of Family
        With hyperparameters to start from; several if each leaf is a sum over kernels.
    automatic : bool
        Whether the kernel is chosen anew for the leaves that are found.
    context : FitContext
    """
    return _Learning(data, automatic, context).run(list(families))


class _Learning:
    """One run of :func:`learn_structure`."""

    def __init__(self, data: ScaledRows, automatic: bool, context: FitContext) -> None:
        self.data, self.automatic, self.context = data, automatic, context
        self.config = context.config
        self.effort = SEARCH_EFFORTS[self.config.effort]
        largest = self.config.leaf_sizes[0] if self.config.leaf_sizes else self.effort.largest_leaf
        self.prior = TreePrior(
            least=LEAST_ROWS, most=min(largest, max(self.config.max_leaf_rows, 2 * LEAST_ROWS))
        )
        self.learns = self.config.optimizer is not None

    def run(self, families: list[Family]) -> LearnedTrees:
        """Learn, and return the best trees."""
        found = self._alternate(families)
        if found.tree is not None and self.learns and len(self.data.X) <= self.prior.most:
            # With hyperparameters of its own the uncut tree may be better after all.
            uncut = self._scored(None, self._learned(None, found.families))
            logger.info("best tree %.6g, uncut %.6g", found.score, uncut.score)
            found = max(found, uncut, key=lambda each: each.score)
        families = found.families
        searches: list[SearchResult] = []
        if self.learns:
            families, searches = self._learned_at_last(found.tree, families)
        search = self._search(families, [found.tree, None], at_last=True)
        trees = search.best(max((self.config.sum_children or 2 * MOST_TREES) // 2, 1))
        least = search.scores[trees[0]] + math.log(LEAST_SHARE)
        trees = [tree for tree in trees if search.scores[tree] >= least]
        logger.info("%d trees of %d are kept", len(trees), len(search.scores))
        return LearnedTrees(self._joined(trees), families, searches)

    def _alternate(self, families: list[Family]) -> _Found:
        """Learn trees and hyperparameters in turn until the tree stays."""
        tree: CutTree = None
        for number in range(ROUNDS):
            tick(number / (ROUNDS + 1))
            search = self._search(families, [None, tree])
            best = search.best(1)[0]
            logger.info(
                "round %d: %d leaves, score %.6g; %d trees seen",
                number, len(leaf_rows(best, self.data.U)), search.scores[best], len(search.scores),
            )  # fmt: skip
            if (number and best == tree) or not self.learns:
                tree = best
                break
            tree = best
            families = self._learned(tree, families)
        return self._scored(tree, families)

    def _search(
        self, families: Sequence[Family], starts: Sequence[CutTree], at_last: bool = False
    ) -> TreeSearch:
        """Search for trees at given hyperparameters."""
        search = TreeSearch(self._evidence(families), self.prior)
        search.run(
            starts,
            WIDTH[at_last],
            N_BEST[at_last],
            within=-math.log(LEAST_SHARE) if at_last else math.inf,
            budget=self.effort.operations,
        )
        return search

    def _evidence(self, families: Sequence[Family]) -> RowEvidence:
        fewer = min(1.0, SCAN_INPUTS / self.data.n_dims) ** (1 / 3)
        return RowEvidence(
            self.data,
            families,
            least=self.prior.least,
            scan_rows=round(self.effort.scan_rows * fewer),
            n_lines=2,
            rng=self.context.rng,
        )

    def _scored(self, tree: CutTree, families: list[Family]) -> _Found:
        """Score a tree together with its hyperparameters."""
        score = TreeSearch(self._evidence(families), self.prior).score(tree)
        for family in families:
            score += sum(float(p.log_prior(p.theta)[0]) for p in family.processes)
        return _Found(tree, families, score)

    def _learned(self, tree: CutTree, families: Sequence[Family]) -> list[Family]:
        """Learn hyperparameters on some rows of each leaf of a tree, from those of ``families``."""
        leaves = self._leaves(tree, LEARN_ROWS)
        gps = set_up_leaves(leaves, families[0].leaf_kernels, self.data, self.config)
        if self.automatic:
            ranking = rank_kernels(gps, self.data, self.context)
            families = ranking.families[:1]
        return learn_kernels(gps, families, self.context)[0]

    def _learned_at_last(
        self, tree: CutTree, families: Sequence[Family]
    ) -> tuple[list[Family], list[SearchResult]]:
        """Learn hyperparameters on all rows of the leaves of a tree, for as many iterations as can be afforded."""
        leaves = self._leaves(tree, None)
        device, (fewest, most) = self.config.device_type, LAST_ITERATIONS
        once = GRADIENT * sum(seconds(leaf.n_rows, leaf.n_rows, device) for leaf in leaves)
        once *= len(families) * self.data.n_outputs
        affordable = LAST_SECONDS * EFFORTS[self.config.effort].budget(device) / once
        gps = set_up_leaves(leaves, families[0].leaf_kernels, self.data, self.config)
        max_iter = int(np.clip(affordable, fewest, most))
        return learn_kernels(gps, families, self.context, max_iter=max_iter)

    def _leaves(self, tree: CutTree, most: int | None) -> list[Leaf]:
        """Return the leaves of a tree, with at most so many of their rows, for learning."""
        whole = Region.whole(self.data.n_dims)
        parts = leaf_rows(tree, self.data.U)
        if most is not None:
            rng = self.context.rng
            parts = [
                rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
                for rows in parts
            ]
        return [Leaf(whole, rows) for rows in parts]

    def _joined(self, trees: Sequence[CutTree]) -> Node:
        """Return a sum over trees with their prior weights.

        Nothing is known about where in its gap between two rows a cut is: every tree is there twice, with its
        cuts at either end of their gaps, so that a new row inside a gap is on both sides.
        """
        X: Array = self.data.U
        children, log_weights = [], []
        for tree in trees:
            ends = {tree} if self.config.sum_children == 1 else {*gap_ends(tree, X)}
            children += [to_node(end, X) for end in sorted(ends, key=repr)]
            log_weights += [self.prior.log_density(tree, X) - math.log(len(ends))] * len(ends)
        if len(children) == 1:
            return children[0]
        return Sum(tuple(children), np.array(log_weights) - np.logaddexp.reduce(log_weights))
