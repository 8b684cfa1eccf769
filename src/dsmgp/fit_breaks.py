"""From rows to a model whose leaves may break: theta, outliers, and the posterior over segments."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dsmgp.breaking import BreakingModel
from dsmgp.breaks import BreakingLeaf, ChangePoints
from dsmgp.fit import Fitted
from dsmgp.inference import Posterior, infer
from dsmgp.lapack import one_thread
from dsmgp.learn import Learned
from dsmgp.learn_breaks import BreakingObjective, start_hazard
from dsmgp.notices import warn_user
from dsmgp.ordered_leaf import OrderedLeaf, check_memory
from dsmgp.outliers import Outliers
from dsmgp.process import Family
from dsmgp.progress import stopping
from dsmgp.routes import place
from dsmgp.segmented import Segmented
from dsmgp.settings import Settings
from dsmgp.train import Trainer
from dsmgp.tree import Node, Region, leaves
from dsmgp.units import OutputUnits

__all__ = ["fit_breaks"]

Array = NDArray[np.float64]
logger = logging.getLogger("dsmgp")

#: Most rows in a segment unless told, by effort.
LONGEST = {"low": 250, "medium": 500, "high": 1000}
# Kernels that "auto" tries, by their evidence. The first is what outliers are first looked for with.
CANDIDATES = ("matern32", "rbf", "matern12")
# L-BFGS ends when a step improves the objective per row by less than this, relatively.
TOLERANCE = 1e-6
# Most rows in a segment while theta is learned.
LEARN_LONGEST = {"low": 80, "medium": 150, "high": 300}
# Outliers and theta are found in turn: at most so many times, with so many iterations for theta, until the bound per row
# gains less than this.
ROUNDS, ROUND_ITERATIONS, BOUND_TOLERANCE = 5, 5, 1e-4
# A row at a change this probable may have been taken for an outlier because of it.
NEAR_CHANGE = 0.1
# A segment is taken for cut short where it has this share of the longest length or more.
CUT_SHORT = 0.97


def fit_breaks(X: Array, Y: Array, settings: Settings, rng: np.random.Generator) -> Fitted:
    """Fit a mixture over segmentations to rows in the user's units."""
    with one_thread():  # many small matrices: threads would wait for one another
        return _Fit(X, Y, settings, rng).run()


class _Fit:
    """One fit: what all its steps share."""

    def __init__(self, X: Array, Y: Array, settings: Settings, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self.trainer = Trainer(X, Y, settings, rng)
        self.tree = place(_tree(settings.structure, X.shape[1]), X)
        sizes = settings.leaf_sizes
        longest = max(sizes) if sizes else LONGEST[settings.effort]
        self._check(X, longest)
        if self._asks_for_outliers:
            self.trainer.outputs = OutputUnits.robust(Y, settings.standardize)
        Z = torch.from_numpy(np.ascontiguousarray(self.trainer.inputs.to_experts(X)))
        self.Y = self.trainer.outputs.to_experts(Y)
        found = leaves(self.tree)
        self.leaves = [OrderedLeaf(leaf, X, Z, self.Y, longest) for leaf in found]
        # Theta is learned with shorter segments, at a fraction of the cost. Rows that cannot be parted may need more.
        short = min(
            longest,
            max(
                LEARN_LONGEST[settings.effort],
                *(2 * max(o.most_tied, o.shortest) for o in self.leaves),
                1,
            ),
        )
        self.short_leaves = [OrderedLeaf(leaf, X, Z, self.Y, short) for leaf in found]
        self.n_evaluations = 0

    def run(self) -> Fitted:
        settings = self.settings
        automatic = isinstance(settings.kernel, str) and settings.kernel == "auto"
        kernels = CANDIDATES if automatic else (settings.kernel,)
        if settings.optimizer is None:
            kernels = kernels[:1]
        best: tuple[float, BreakingModel, Learned] | None = None
        scores: dict[str, float] = {}
        for kernel in kernels:
            if best is not None and stopping():
                break
            model, learned = self._fit(self.trainer.build(kernel))
            score = -model.log_evidence / len(self.Y)
            scores[str(kernel)] = score
            logger.info("kernel %s: log evidence %.6g", kernel, model.log_evidence)
            if best is None or score < best[0] or np.isnan(best[0]):
                best = score, model, learned
        assert best is not None
        _, model, learned = best
        if not np.isfinite(model.log_evidence):
            raise ValueError(
                "no segmentation has segments of the lengths allowed; lower shortest or raise leaf_size"
            )
        self._warn_of_long(model)
        known = [] if settings.optimizer is None else [learned]
        return Fitted(
            model=model,  # type: ignore[arg-type]  # it has the same verbs
            learned=known,
            kernel_scores=scores if automatic else {},
            n_evaluations=self.n_evaluations,
            loo_score=float("nan"),
            loo_score_new_inputs=float("nan"),
        )

    def _fit(self, family: Family) -> tuple[BreakingModel, Learned]:
        """Theta and, where they are asked for, outliers; of two beginnings the better."""
        if not self._asks_for_outliers:
            objective = self._objective(family, np.ones_like(self.Y))
            learned = self._learn(objective, self.settings.max_iter)
            return self._model(family, objective, None), learned
        found: list[tuple[float, Family, BreakingObjective, Outliers]] = []
        for outliers in Outliers.beginnings(self.leaves, self.Y[:, 0]):
            if found and stopping():
                break
            family = copy.deepcopy(family)  # where the beginning before ended
            objective = self._objective(family, np.ones_like(self.Y))
            bound = self._find_outliers(objective, outliers)
            logger.info("outliers: bound %.6g, share %.3g", bound, outliers.share)
            found.append((bound, family, objective, outliers))
        _, own, objective, outliers = max(found, key=lambda each: each[0])
        learned = self._learn(objective, self.settings.max_iter)
        return self._model(own, objective, outliers), learned

    def _find_outliers(self, objective: BreakingObjective, outliers: Outliers) -> float:
        """Theta given which rows are outliers, and outliers given theta, in turn: each raises the bound, which is returned."""
        y, bound = self.Y[:, 0], -np.inf
        for _ in range(ROUNDS):
            objective.noise_factor = outliers.noise_factor[:, None]
            self._learn(objective, ROUND_ITERATIONS)
            before, (bound, posterior, experts) = bound, self._bound(objective, outliers)
            if bound - before < BOUND_TOLERANCE * len(y) or stopping():
                break
            mean, variance = _in_sample(posterior, self.short_leaves, experts)
            outliers.update(y, mean, variance, objective.processes[0])
            bound = self._release(objective, outliers)
        objective.noise_factor = outliers.noise_factor[:, None]
        return bound

    def _bound(
        self, objective: BreakingObjective, outliers: Outliers
    ) -> tuple[float, Posterior, list[Segmented]]:
        """The lower bound of the evidence at the theta of now, and what the leaves say there."""
        objective.noise_factor = outliers.noise_factor[:, None]
        experts = objective.condition(0.0)
        posterior = infer(self.tree, [expert.log_evidence for expert in experts])
        return posterior.log_evidence + outliers.bound_gap(), posterior, experts

    def _release(self, objective: BreakingObjective, outliers: Outliers) -> float:
        """Take rows next to a change for no outliers, where that raises the bound, which is returned.

        Once a row at the edge of a segment is suspected, the change beside it may lie on either side of it, and the
        suspicion feeds itself.
        """
        bound, _, experts = self._bound(objective, outliers)
        near = np.zeros(len(self.Y), dtype=bool)
        for own, expert in zip(self.short_leaves, experts, strict=True):
            change = expert.segments.change > NEAR_CHANGE
            near[own.rows[change[:-1] | change[1:]]] = True
        suspects = near & (outliers.probability > 0.5)
        if suspects.any():
            kept = outliers.probability.copy()
            outliers.probability = np.where(suspects, 0.0, kept)
            released, _, _ = self._bound(objective, outliers)
            if released > bound:
                return released
            outliers.probability = kept
        return bound

    @property
    def _asks_for_outliers(self) -> bool:
        found = leaves(self.tree)
        return any(isinstance(leaf, BreakingLeaf) and leaf.changes.outliers for leaf in found)

    @property
    def _is_shorter(self) -> bool:
        pairs = zip(self.short_leaves, self.leaves, strict=True)
        return any(short.longest < own.longest for short, own in pairs)

    def _objective(self, family: Family, factor: Array) -> BreakingObjective:
        hazards = [start_hazard(leaf) for leaf in self.leaves]
        return BreakingObjective(self.tree, self.short_leaves, family.processes, hazards, factor)

    def _learn(self, objective: BreakingObjective, max_iter: int | None) -> Learned:
        settings = self.settings
        if settings.optimizer is None:
            return Learned(objective.theta, -np.inf)
        found = objective.learn(
            settings.optimizer, self.rng, max_iter, TOLERANCE, settings.n_restarts
        )
        self.n_evaluations += found.n_evaluations
        return found

    def _model(
        self, family: Family, objective: BreakingObjective, outliers: Outliers | None
    ) -> BreakingModel:
        whole = BreakingObjective(
            self.tree, self.leaves, family.processes, objective.hazards, objective.noise_factor
        )
        memory = 0.5 * self.trainer.memory
        experts = whole.condition(memory)
        if self.settings.optimizer is not None and self._is_shorter:
            whole.follow(experts)
            experts = whole.condition(memory)
        model = BreakingModel(
            tree=self.tree,
            family=family,
            leaves=self.leaves,
            experts=experts,
            hazards=list(whole.hazards),
            inputs=self.trainer.inputs,
            outputs=self.trainer.outputs,
            n_rows=len(self.Y),
        )
        if outliers is not None:
            model.allow_for(outliers)
        return model

    def _check(self, X: Array, longest: int) -> None:
        """Refuse what cannot be done, before anything is computed."""
        changes = [leaf.changes for leaf in leaves(self.tree) if isinstance(leaf, BreakingLeaf)]
        for each in changes:
            if isinstance(each.dimension, str) or each.dimension >= X.shape[1]:
                raise ValueError(
                    f"expected the dimension that orders rows to be one of 0..{X.shape[1] - 1}, "
                    f"got {each.dimension!r}"
                )
        if any(each.outliers for each in changes) and self.trainer.Y.shape[1] > 1:
            raise ValueError(
                f"outliers=True takes one output, got {self.trainer.Y.shape[1]}; fit outputs one by one"
            )
        if self.settings.weights == "uniform":
            raise ValueError(
                "weights='uniform' has no meaning where leaves break: segmentations are weighed by their "
                "posterior; leave weights out"
            )
        check_memory(leaves(self.tree), longest, self.settings.table_memory)

    def _warn_of_long(self, model: BreakingModel) -> None:
        """Changes that are there only because segments must end look like others."""
        for own, expert in zip(self.leaves, model.experts, strict=True):
            if own.longest >= len(own.rows):
                continue
            segments = expert.segments
            long = segments.end - segments.start >= CUT_SHORT * own.longest
            expected = float(segments.probability[long].sum())
            if expected > 0.5:
                count = round(expected)
                what = "a segment is" if count == 1 else f"about {count} segments are"
                warn_user(
                    f"{what} as long as leaf_size={own.longest} allows, and may end only because of that; raise leaf_size",
                    topic="segments cut short",
                )


def _tree(structure: str | ChangePoints | Node, n_dims: int) -> Node:
    """A structure as a tree; dimensions given by name were turned into numbers before."""
    if isinstance(structure, str):
        structure = ChangePoints()
    if isinstance(structure, ChangePoints):
        return BreakingLeaf(Region.whole(n_dims), changes=structure)
    return structure


def _in_sample(
    posterior: Posterior, own_leaves: Sequence[OrderedLeaf], experts: Sequence[Segmented]
) -> tuple[Array, Array]:
    """Mean and variance of f at the training rows, in the units of the experts; one output."""
    n_rows = 1 + max(int(own.rows.max(initial=-1)) for own in own_leaves)
    first, second = np.zeros(n_rows), np.zeros(n_rows)
    for own, expert in zip(own_leaves, experts, strict=True):
        path = np.exp(posterior.log_reach[own.leaf])
        who, weight, means, variances = expert.entries(own.X, own.order.position)
        n = len(own.rows)
        first[own.rows] += path * np.bincount(who, weight * means[:, 0], n)
        second[own.rows] += path * np.bincount(who, weight * (variances + means**2)[:, 0], n)
    return first, second - first**2
