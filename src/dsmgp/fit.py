"""From rows to a fitted model: units, theta on a part of the leaves, the tree, conditioning, the gate."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsmgp.breaks import ChangePoints
from dsmgp.choose import choose_units, left_out_score, rank_kernels
from dsmgp.conditioned import Conditioned
from dsmgp.effort import EFFORTS, GRADIENT, leaf_rows, seconds
from dsmgp.grow import grow_paper
from dsmgp.learn import TOLERANCE, Learned, Objective
from dsmgp.model import Model
from dsmgp.process import Family
from dsmgp.progress import span
from dsmgp.routes import place
from dsmgp.settings import Settings
from dsmgp.stationary import Stationary
from dsmgp.train import Trainer, length_scales
from dsmgp.tree import Leaf, Node, Sum, induced_tree, leaves
from dsmgp.weigh import Witnesses, weigh

__all__ = ["Fitted", "fit", "fit_by"]

Array = NDArray[np.float64]
logger = logging.getLogger("dsmgp")

PAPER_SIZE, PAPER_CHILDREN, BALANCED_CHILDREN = 100, 4, 8
# The kernel with which outputs as they are and mixed are compared when it is yet to be chosen.
NEUTRAL_KERNEL = "matern12"
# Partitions alternate between two kernels whose trial scores are this close.
CLOSE_SCORES = 0.05
# Leaves this much larger than those theta is learned on get a theta of their own, if it can be had for this share of
# the seconds: two kernels, on this share of the rows theta was learned on, for at least and at most so many iterations.
LARGE, POLISH_SHARE, POLISH_ROWS, POLISH_ITERATIONS = 2.0, 0.25, 0.5, (8, 40)
# About which shares of the time the parts of a fit take, for those who watch it.
SHARES = {
    "units": (0.0, 0.1), "kernels": (0.1, 0.4), "learning": (0.4, 0.55), "growing": (0.55, 0.7),
    "full": (0.6, 0.7), "conditioning": (0.7, 0.95), "weighing": (0.95, 1.0),
}  # fmt: skip
# Theta of partitions that are drawn at random need not be found more exactly than this (see learn.TOLERANCE).
DRAWN_TOLERANCE = 1e-5


@dataclass
class Fitted:
    """A fitted model and how it was found.

    ``learned`` has for each family one entry per output, or one for all together; ``kernel_scores`` what each
    kernel that was tried scored; ``n_evaluations`` counts trials too. The other scores are negative log
    predictive densities of rows left out, in the user's units: alone, and with all rows of the same inputs.
    """

    model: Model
    learned: list[Learned]
    kernel_scores: dict[str, float]
    n_evaluations: int
    loo_score: float
    loo_score_new_inputs: float


def fit(
    X: Array,
    Y: Array,
    settings: Settings,
    rng: np.random.Generator,
    noise: Array | None = None,
    remember: Callable[[Objective], Objective] = lambda objective: objective,
) -> Fitted:
    """Fit a deep structured mixture to rows in the user's units.

    ``noise`` is what is known of the observations' variances; ``remember`` makes objectives that are told what
    was evaluated before (:mod:`dsmgp.checkpoint`).
    """
    return fit_by(Trainer(X, Y, settings, rng, noise, remember))


def fit_by(trainer: Trainer) -> Fitted:
    """Fit to the rows that a trainer has."""
    return _Fit(trainer).run()


class _Fit:
    """One fit: what all its steps share."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.settings, self.rng = trainer, trainer.settings, trainer.rng
        self.effort = EFFORTS[self.settings.effort]
        self.learned: list[Learned] = []
        self.kernel_scores: dict[str, float] = {}

    def run(self) -> Fitted:
        settings = self.settings
        asked = settings.structure
        assert not isinstance(asked, ChangePoints)  # which is for fit_breaks
        given = None if isinstance(asked, str) else place(asked, self.trainer.X)
        families = self._families(given)
        with span(*SHARES["growing"], "growing the tree"):
            partitions = [(given, families[0])] if given else self._partitions(families)
        tree, families, family = _join(partitions)
        if settings.optimizer is not None and settings.objective == "full":
            with span(*SHARES["full"], "learning on the whole tree"):
                self.learned = self.trainer.learn(leaves(tree), families[0], tree=tree)
        gated = settings.weights == "gated"
        n_gate_rows = self.effort.n_gate_rows if gated else 0
        witnesses = Witnesses.draw(self.trainer.n_rows, n_gate_rows, self.rng)
        with span(*SHARES["conditioning"], "conditioning leaves"):
            conditioned = self.trainer.conditioned(tree, families, family, witnesses.rows)
        with span(*SHARES["weighing"], "fitting the gate"):
            return self._weigh(tree, families, family, conditioned, witnesses)

    @property
    def _may_mix(self) -> bool:
        """Whether partitions may differ in kernel and theta: not in structures that nest sum nodes."""
        settings = self.settings
        nested = (settings.depth or 1) > 1 or settings.structure != "balanced"
        return settings.optimizer is not None and settings.objective != "full" and not nested

    # Theta, on a part of the leaves

    def _families(self, given: Node | None) -> list[Family]:
        """What leaves may be made of, learned. With more than one the best comes first; the second may be far
        behind."""
        settings, trainer = self.settings, self.trainer
        automatic = isinstance(settings.kernel, str) and settings.kernel == "auto"
        kernel = NEUTRAL_KERNEL if automatic else settings.kernel
        if settings.optimizer is None:
            return [trainer.build(kernel)]  # given for the outputs as they are
        surrogate = self._surrogate(given)
        trial = trainer.some(surrogate, self.effort.n_trial_leaves)
        with span(*SHARES["units"], "trying units of the outputs"):
            trainer.outputs = choose_units(trainer, trial, kernel)
        families = [trainer.build(kernel)]
        if automatic:
            with span(*SHARES["kernels"], "trying kernels"):
                ranked = rank_kernels(trainer, trial)
            self.kernel_scores = {name: score for name, (score, _) in ranked.items()}
            families = [family for _, family in ranked.values()][: 2 if self._may_mix else 1]
        for family in self._close(families):
            tolerance = DRAWN_TOLERANCE if settings.structure == "balanced" else TOLERANCE
            with span(*SHARES["learning"], f"learning {family.kernel if automatic else 'theta'}"):
                self.learned += trainer.learn(surrogate, family, tolerance=tolerance)
        return families

    def _close(self, families: list[Family]) -> list[Family]:
        """Those whose kernel is about as good as the best."""
        if len(families) == 1:
            return families
        best = self.kernel_scores[families[0].kernel]
        return [f for f in families if self.kernel_scores[f.kernel] - best <= CLOSE_SCORES]

    def _surrogate(self, given: Node | None) -> list[Leaf]:
        """Leaves of one partition to learn on: all of them with the paper's structure, else some."""
        settings = self.settings
        if settings.structure == "paper":
            return leaves(self._grow_paper(1))
        if given is not None:
            return leaves(induced_tree(given, self.rng))
        size = int(np.median(settings.leaf_sizes)) if settings.leaf_sizes else self.effort.leaf_size
        return self.trainer.grow_leaves(size, self.effort.n_leaves, self.trainer.inputs.scale)

    def _large_family(self, families: list[Family], sizes: Sequence[int]) -> Family | None:
        """Theta for partitions of large leaves, from leaves as large as theirs, where that can be afforded.

        Large leaves see further than those theta was learned on, and may prefer another kernel: the best two
        go on from where they are, and leave-one-out decides.
        """
        effort, device, n = self.effort, self.settings.device.type, self.trainer.n_rows
        if not all(isinstance(law, Stationary) for law in families[0].laws(self.trainer.n_dims)):
            return None
        fewest, most_iterations = POLISH_ITERATIONS
        # Seconds for one iteration, if there are as few of them as may be.
        budget = POLISH_SHARE * effort.budget(device) / fewest
        budget /= GRADIENT * len(families) * self.trainer.n_outputs
        least = min(n, POLISH_ROWS * effort.n_leaves * leaf_rows(effort.leaf_size, n))
        large = sorted({s for s in sizes if self._is_large(s)})
        # One theta serves all of them, and that of a middling size does so best; unless one leaf holds all rows, which
        # counts most then.
        if large and large[-1] < n:
            large = large[: (len(large) + 1) // 2]
        for size in reversed(large):
            rows = leaf_rows(size, n)
            n_leaves = int(budget / seconds(rows, rows, device))
            if n_leaves * rows >= least:
                break
        else:
            return None
        trainer = self.trainer
        most = min(n_leaves, effort.n_leaves)
        found = trainer.grow_leaves(
            size, 2 * most, length_scales(families[0], trainer.inputs.scale)
        )
        some = trainer.some(found, most)
        spent = sum(seconds(leaf.n_rows, leaf.n_rows, device) for leaf in some)
        n_iterations = int(min(fewest * max(budget / spent, 1.0), most_iterations))
        # Leaves that theta was not learned on tell best whether it is any better, where there are others.
        taken = {id(leaf) for leaf in some}
        others = [leaf for leaf in found if id(leaf) not in taken] or some
        candidates = [(False, family) for family in families[:1]]
        for family in families:
            candidates.append((True, copy.deepcopy(family)))
            self.learned += trainer.learn(some, candidates[-1][1], n_iterations)
        scores = []
        for learned, family in candidates:
            left_out = trainer.left_out(others, family)
            scores.append(left_out_score(left_out))
            how = "its own theta" if learned else "the theta of small ones"
            logger.info("large leaves, kernel %s, %s: %.4f", family.kernel, how, scores[-1])
        learned, best = candidates[int(np.argmin(scores))]
        return best if learned else None

    def _is_large(self, size: int) -> bool:
        return min(size, self.trainer.n_rows) >= LARGE * self.effort.leaf_size

    # The tree

    def _partitions(self, families: list[Family]) -> list[tuple[Node, Family]]:
        """Sums over partitions, and the family that the leaves of each are of."""
        settings, trainer = self.settings, self.trainer
        if settings.structure == "paper":
            tree = self._grow_paper(settings.sum_children or PAPER_CHILDREN)
            return [(tree, families[0])]
        sizes, close = self._sizes(), self._close(families)
        large = None
        if self._may_mix and settings.leaf_sizes is None:
            large = self._large_family(families, sizes)
        owners = [*close, *([] if large is None else [large])]
        owned: list[list[int]] = [[] for _ in owners]
        for k, size in enumerate(sizes):
            if large is not None and self._is_large(size):
                owned[-1].append(size)
            else:  # partitions of one size take turns
                owned[sizes[:k].count(size) % len(close)].append(size)
        return [
            (trainer.grow(own, length_scales(family, trainer.inputs.scale)), family)
            for own, family in zip(owned, owners, strict=True)
            if own
        ]

    def _sizes(self) -> list[int]:
        """Sizes of the leaves, one entry per partition."""
        settings = self.settings
        trainer, device = self.trainer, settings.device.type
        sizes = list(
            settings.leaf_sizes
            or self.effort.leaf_sizes(trainer.n_rows, device, trainer.most_leaf_rows)
        )
        n_children = settings.sum_children
        if n_children is None:
            n_children = len(sizes) if len(sizes) > 1 else BALANCED_CHILDREN
        # Fewer partitions than sizes: spread over the sizes; more: go round.
        if n_children < len(sizes):
            return [sizes[round(k)] for k in np.linspace(0, len(sizes) - 1, n_children)]
        return [sizes[k % len(sizes)] for k in range(n_children)]

    def _grow_paper(self, sum_children: int) -> Node:
        settings = self.settings
        return grow_paper(
            self.trainer.X,
            leaf_size=settings.leaf_sizes[0] if settings.leaf_sizes else PAPER_SIZE,
            sum_children=sum_children,
            product_children=settings.product_children,
            depth=settings.depth or 2,
            rng=self.rng,
            unit=self.trainer.inputs.scale,
        )

    # Weights

    def _weigh(
        self,
        tree: Node,
        families: list[Family],
        family: NDArray[np.int64],
        conditioned: Conditioned,
        witnesses: Witnesses,
    ) -> Fitted:
        """Scales of the leaves, the gate, and the scores of rows left out."""
        settings, trainer = self.settings, self.trainer
        model = Model(
            tree=tree,
            families=families,
            family=family,
            experts=conditioned,
            inputs=trainer.inputs,
            outputs=trainer.outputs,
            weights=settings.weights,
            scales=np.ones((len(family), self.trainer.n_outputs)),
        )
        scores = weigh(model, settings.local_scale, witnesses)
        return Fitted(model, self.learned, self.kernel_scores, trainer.n_evaluations, *scores)


def _join(
    partitions: Sequence[tuple[Node, Family]],
) -> tuple[Node, list[Family], NDArray[np.int64]]:
    """One sum over all partitions, the families, and which of them each leaf is of."""
    trees = [tree for tree, _ in partitions]
    families = [family for _, family in partitions]
    family = np.repeat(np.arange(len(trees)), [len(leaves(tree)) for tree in trees])
    if len(trees) == 1:
        return trees[0], families, family
    children = [c for tree in trees for c in (tree.children if isinstance(tree, Sum) else [tree])]
    return Sum(tuple(children)), families, family
