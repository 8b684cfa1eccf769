"""Candidate coordinates on some leaves: each learns on a few of them, and is judged by leave-one-out on others.

What a candidate has learned counts only as far as it holds elsewhere. Rows are the same for all candidates, and a more complicated one
replaces a simpler one only if its gain is clear: more than twice the standard error of the difference.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.weighted import weighted_median
from dsmgp.distributed.executor import LocalExecutor
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.learning.boosted_trees import held_out_predictions, learn_boosted_trees
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import TRIAL_TOLERANCE, learn_on_trial, loo_posterior
from dsmgp.fitting.learning.metric import learn_metric
from dsmgp.fitting.learning.network import learn_network
from dsmgp.fitting.rows.leaf_setup import build_family, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.candidate_scores import CandidateScores, RowScores
from dsmgp.fitting.selection.loo_predictions import loo_predictions
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.process import Family
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.output_warp import OutputWarp, normal_scores
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.tree.growing import grow_leaves
from dsmgp.tree.nodes import Leaf

__all__ = ["Candidate", "CoordinateTrial"]

logger = logging.getLogger("dsmgp")

# The kernels of which candidates are compared with the best, where the kernel is yet to be chosen: what looks like a gain with a smooth
# kernel may be one that a rough kernel has anyway.
TRIAL_KERNELS = ("rbf", "matern32", "matern12")
# Rows of the large leaves that judge, and how many of these.
LARGE_LEAF, N_LARGE = 1000, 6
# With no more leaves to learn on than this, both halves of them learn in turn.
FEW_LEAVES = 24
# A function counts as known if half of the squared errors are below this share of the output's variance.
EXACT = 1.5e-6
# A feature whose column has another one with so much shorter a length scale is dropped.
PRUNED = 0.1
# Strengths of the output warps that are tried, 1 being normal scores.
STRENGTHS = (0.5, 1.0)
# Directions of a metric at most; those with so small a share of the largest scale are dropped.
MOST_DIRECTIONS, NEGLIGIBLE_DIRECTION = 20, 3e-3
# Rows that an entry of a metric needs at least.
ROWS_PER_ENTRY = 6
METRIC_ITERATIONS = 30
# Share of the rows that the network of the model is not learned on, and most of them: the gate is fitted to these.
NETWORK_HELD_OUT, MOST_HELD_OUT = 0.2, 10_000
# Boosted trees are tried if their mean squared error is at most this many times that of large leaves, by trees that are
# learned on at most so many rows; those of the model, on so many.
COMPETITIVE, SCREENING_ROWS, MOST_TREE_ROWS = 1.5, 20_000, 50_000
# Trees have passed one test by then, and only one candidate is compared: a gain of one standard error will do.
TREES_CLEAR, TREES_LEAST_GAIN = 1.0, 0.02


@dataclass(frozen=True, eq=False)
class Candidate:
    """Coordinates and output warps to try.

    Attributes
    ----------
    kernel : str, Kernel, or gpytorch.kernels.Kernel
    coordinates : tuple of Coordinates
        By fold: a metric is learned on each anew.
    output_warps : sequence of OutputWarp or None
        By output; empty if no output is warped.
    families : tuple of Family
        By fold, the hyperparameters learned on it.
    without_network : Candidate, optional
        The candidate that a network was added to.
    """

    kernel: Any
    coordinates: tuple[Coordinates, ...]
    output_warps: Sequence[OutputWarp | None]
    families: tuple[Family, ...] = ()
    without_network: Candidate | None = None


class CoordinateTrial:
    """Candidates on some leaves: learns, judges, and keeps the best so far."""

    def __init__(self, data: ScaledRows, context: FitContext) -> None:
        config, effort = context.config, EFFORTS[context.config.effort]
        if not isinstance(config.executor, LocalExecutor):
            # A few leaves are computed here sooner than sent to workers.
            config = replace(config, executor=LocalExecutor(), device="cpu")
        # A generator of its own: where nothing is chosen, the fit is that of a configuration without a choice.
        rng = np.random.default_rng(0)
        self.context = replace(context, config=config, rng=rng)
        self.config = config
        automatic = isinstance(config.kernel, str) and config.kernel == "auto"
        self.kernels: Sequence[Any] = TRIAL_KERNELS if automatic else [config.kernel]
        self.X = data.X  # of all rows, from which warps are made
        self.Y = data.Y
        self.row_weights = data.row_weights
        sizes = config.leaf_sizes

        def grown(size: int, most: int) -> list[Leaf]:
            return grow_leaves(
                data.columns,
                leaf_size=min(size, config.max_leaf_rows),
                most=most,
                rng=rng,
                unit=data.inputs.scale,
            )

        small = int(np.median(sizes)) if sizes else effort.leaf_size
        leaves = grown(small, 2 * effort.n_trial_leaves)
        large = grown(min(LARGE_LEAF, max(sizes)) if sizes else LARGE_LEAF, N_LARGE)
        leaves = [leaves[k] for k in rng.permutation(len(leaves))]
        used = np.unique(np.concatenate([leaf.rows for leaf in (*leaves, *large)]))
        self.used = used
        self.rows = data.taken(used)
        self.large = [_renumbered(leaf, used) for leaf in large]
        self.leaves = leaves = [_renumbered(leaf, used) for leaf in leaves]
        half = (len(leaves) + 1) // 2
        #: Leaves to learn on. Rows that are not in them judge.
        self.folds = [leaves[:half]]
        if 1 < len(leaves) <= FEW_LEAVES:
            self.folds.append(leaves[half:])
        scaling = OutputScaling.of(data.Y, True, row_weights=data.row_weights)
        self.spread = np.diag(scaling.loading)  # one for a constant output
        self.learned_on: Index = np.empty(0, dtype=np.int64)
        self.gains: dict[str, float] = {}

    def start(
        self, coordinates: Coordinates | None, output_warps: Sequence[OutputWarp | None]
    ) -> None:
        """Begin with what the user asked for."""
        on_folds = (coordinates or Coordinates.identity(self.X.shape[1]),) * len(self.folds)
        candidates = [
            self._learned(Candidate(kernel, on_folds, output_warps)) for kernel in self.kernels
        ]
        judged = [self._judged(candidate) for candidate in candidates]
        gains = [scores.gain_over(judged[0])[0] for scores in judged]
        best = int(np.argmax(gains))
        self.best, self.scores = candidates[best], judged[best]

    @property
    def is_exact(self) -> bool:
        """Whether outputs follow from the inputs nearly without error, so that there is nothing to gain."""
        small = self.scores.small
        return bool((weighted_median(small.error[0], small.row_weights) < EXACT).all())

    @property
    def n_features(self) -> int:
        return len(self.best.coordinates[0].columns)

    # Steps

    def try_input_warps(self) -> None:
        """Try normal scores of all columns, and columns both as they are and warped, the less relevant of the two dropped."""
        n_inputs = self.X.shape[1]
        rank = Coordinates.of_columns(self.X, [("rank",)] * n_inputs, self.row_weights)
        if rank.is_identity:
            return
        ranked = self._learned(self._in(rank))
        both = Coordinates.of_columns(self.X, [("raw", "rank")] * n_inputs, self.row_weights)
        side_by_side = self._pruned(self._learned(self._in(both)))
        self._take_best("input warp", [ranked, side_by_side])

    def try_output_warps(self) -> None:
        """Try output warps of several strengths."""
        candidates = []
        for strength in STRENGTHS:
            warps = tuple(normal_scores(y, strength, weights=self.row_weights) for y in self.Y.T)
            if all(warp is None for warp in warps):
                return
            candidates.append(self._learned(replace(self.best, output_warps=warps)))
        self._take_best("output warp", candidates)

    def try_metric(self, forced: bool, also_raw: bool) -> None:
        """Try a linear map of the features so far and, if these are warped, of the columns as they are."""
        starts = [self.best]
        if also_raw and not self.best.coordinates[0].is_identity:
            plain = Coordinates.identity(self.X.shape[1])
            starts.append(self._learned(self._in(plain)))
        candidates = [self._with_metric(start) for start in starts]
        if self._take_best("metric", candidates, forced=forced):
            self.learned_on = self.used[_rows(self.folds[0])]
            if all(warp is None for warp in self.best.coordinates[0].warps):
                self.gains.pop("input warp", None)

    def try_network(self, forced: bool) -> None:
        """Try a network of the coordinates so far, whose outputs are further coordinates."""
        self._take_best("network", [self._with_network(self.best)], forced=forced)

    def try_boosted_trees(self, forced: bool) -> None:
        """Try predictions of boosted trees as further coordinates, if trees predict about as well as large leaves do."""
        if not (forced or self._trees_compete()):
            return
        data = self.rows.rescaled(self.best.coordinates[0], self.best.output_warps, self.config)
        others = np.setdiff1d(np.arange(len(self.X)), self.used)
        n_others = max(min(len(others), MOST_TREE_ROWS - len(self.used)), 0)
        rows = np.union1d(self.used, self.context.rng.permutation(others)[:n_others])
        weights = None if self.row_weights is None else self.row_weights[rows]
        trees = learn_boosted_trees(self.X[rows], data.outputs.to_experts(self.Y[rows]), weights)
        coordinates = tuple(replace(each, trees=trees) for each in self.best.coordinates)
        candidate = replace(self.best, coordinates=coordinates, families=())
        clear = {"n_errors": TREES_CLEAR, "least": TREES_LEAST_GAIN}
        self._take_best("boosted trees", [self._learned(candidate)], forced=forced, **clear)

    def _trees_compete(self) -> bool:
        """Whether trees predict rows of the large leaves about as well as the best candidate does, learned on other rows."""
        judged = self.used[_rows(self.large)]
        others = np.setdiff1d(np.arange(len(self.X)), judged)
        if len(others) < len(judged):  # a small table: half of its rows
            judged, others = judged[::2], np.union1d(others, judged[1::2])
        learned_on = np.sort(self.context.rng.permutation(others)[:SCREENING_ROWS])
        data = self.rows.rescaled(None, self.best.output_warps, self.config)
        targets = data.outputs.to_experts(self.Y)
        predicted = held_out_predictions(self.X, targets, learned_on, judged)
        away = (data.outputs.from_experts(predicted) - self.Y[judged]) / self.spread
        error = np.mean(np.square(away), axis=0)
        large = self.scores.large
        of_leaves = np.average(large.error[0], axis=0, weights=large.row_weights)
        logger.info("boosted trees: mean squared error %s, of large leaves %s", error, of_leaves)
        return bool(error.mean() <= COMPETITIVE * of_leaves.mean())

    def learned_coordinates(self) -> Coordinates:
        """Return the coordinates of the best candidate; a network is learned again, on more rows than when it was judged."""
        start = self.best.without_network
        if start is None:
            return self.best.coordinates[0]
        n_rows = len(self.X)
        n_held_out = min(round(NETWORK_HELD_OUT * n_rows), MOST_HELD_OUT)
        self.learned_on = np.sort(self.context.rng.permutation(n_rows)[n_held_out:])
        linear = start.coordinates[0]
        data = self.rows.rescaled(linear, self.best.output_warps, self.config)
        with_network = self._network(linear, start.families[0], data, self.learned_on)
        return replace(with_network, trees=self.best.coordinates[0].trees)

    def _take_best(
        self,
        what: str,
        candidates: Sequence[Candidate],
        forced: bool = False,
        **clear: float,
    ) -> bool:
        """Replace the best so far by a candidate with a clear gain; of several the first, unless another's gain over it is clear.

        Returns whether any was taken.
        """
        taken: Candidate | None = None
        before = scores = self.scores
        for k, candidate in enumerate(candidates):
            of_candidate = self._judged(candidate)
            gain, error = of_candidate.gain_over(before)
            logger.info("%s %d: gain %.4f +- %.4f per row", what, k, gain, error)
            if of_candidate.is_clear(scores, **clear) or (forced and taken is None):
                taken, scores = candidate, of_candidate
        if taken is not None:
            self.best, self.scores = taken, scores
            self.gains[what] = scores.gain_over(before)[0]
        return taken is not None

    # Learning and judging

    def _in(self, coordinates: Coordinates) -> Candidate:
        """Return the best so far in other coordinates, the same on all folds, with nothing learned."""
        return replace(self.best, coordinates=(coordinates,) * len(self.folds), families=())

    def _learned(self, candidate: Candidate) -> Candidate:
        """Learn hyperparameters on each fold, from those of the candidate if it has any."""
        families = []
        for k, learned_on in enumerate(self.folds):
            data = self.rows.rescaled(candidate.coordinates[k], candidate.output_warps, self.config)
            family = build_family(candidate.kernel, data, self.config)
            if candidate.families:
                family = _start_from(family, candidate.families[k], data)
            gps = set_up_leaves(learned_on, family.leaf_kernels, data, self.config)
            learned, _ = learn_on_trial(gps, family, self.context)
            families.append(learned)
        return replace(candidate, families=tuple(families))

    def _judged(self, candidate: Candidate) -> CandidateScores:
        """Leave out rows, one by one, that nothing was learned on: those of other small leaves, and of large leaves."""
        small, large = (self._scores(candidate, judges) for judges in (self.leaves, self.large))
        return CandidateScores(small, large)

    def _scores(self, candidate: Candidate, judges: list[Leaf]) -> RowScores:
        """Leave out the rows of some leaves that nothing was learned on, in all folds."""
        losses, errors, weights = [], [], []
        of_folds = zip(candidate.coordinates, candidate.families, self.folds, strict=True)
        for coordinates, family, learned_on in of_folds:
            seen = _rows(learned_on)
            judging = [leaf for leaf in judges if not np.isin(_rows([leaf]), seen).all()] or judges
            data = self.rows.rescaled(coordinates, candidate.output_warps, self.config)
            gps = set_up_leaves(judging, family.leaf_kernels, data, self.config)
            left_out = loo_predictions(loo_posterior(gps, family), data.outputs)
            unseen = ~np.isin(np.unique(gps.leaf_rows.flat), seen)
            unseen |= not unseen.any()  # a single leaf has to do both
            y = data.outputs.from_experts(left_out.observed)[unseen]
            predictions = [each[unseen] for each in left_out.predictions]
            losses.append(
                [-0.5 * (each.joint_logpdf(y) + each.logpdf(y).sum(axis=1)) for each in predictions]
            )
            errors.append([np.square((each.mean - y) / self.spread) for each in predictions])
            if left_out.row_weights is not None:
                weights.append(left_out.row_weights[unseen])
        return RowScores(
            np.concatenate(losses, axis=1),
            np.concatenate(errors, axis=1),
            np.concatenate(weights) if weights else None,
        )

    def _pruned(self, candidate: Candidate) -> Candidate:
        """Drop features that matter little beside another one of the same column, and learn again."""
        rates = np.mean([_rates(family) for family in candidate.families], axis=0)
        coordinates = candidate.coordinates[0]
        largest = np.zeros(coordinates.n_inputs)
        np.maximum.at(largest, coordinates.columns, rates)
        kept = np.flatnonzero(rates >= PRUNED * largest[coordinates.columns])
        if len(kept) == len(rates):
            return candidate
        fewer = replace(
            coordinates,
            columns=coordinates.columns[kept],
            warps=tuple(coordinates.warps[k] for k in kept),
        )
        return self._learned(self._in(fewer))

    def _with_metric(self, start: Candidate) -> Candidate:
        """Learn a metric on each fold, and length scales along its directions."""
        of_folds = zip(start.coordinates, start.families, self.folds, strict=True)
        coordinates = tuple(
            replace(each, metric=self._metric(each, start.output_warps, family, learned_on))
            for each, family, learned_on in of_folds
        )
        return self._learned(replace(start, coordinates=coordinates))

    def _with_network(self, start: Candidate) -> Candidate:
        """Learn a network on the rows of each fold and on those that do not judge, and length scales beside it."""
        spare = np.setdiff1d(np.arange(len(self.X)), self.used)
        coordinates = []
        for each, family, fold in zip(start.coordinates, start.families, self.folds, strict=True):
            data = self.rows.rescaled(each, start.output_warps, self.config)
            rows = np.union1d(self.used[_rows(fold)], spare)
            coordinates.append(self._network(each, family, data, rows))
        candidate = replace(
            start, coordinates=tuple(coordinates), families=(), without_network=start
        )
        return self._learned(candidate)

    def _network(
        self, linear: Coordinates, family: Family, data: ScaledRows, rows: Index
    ) -> Coordinates:
        """Return coordinates with a network that is learned on some of all rows, in the scaling of ``data``."""
        Z, targets = data.inputs.to_experts(self.X[rows]), data.outputs.to_experts(self.Y[rows])
        network = learn_network(Z, targets, family.processes, self.context.rng)
        return replace(linear, network=network.after(data.inputs.centre, data.inputs.scale))

    def _metric(
        self,
        coordinates: Coordinates,
        warps: Sequence[OutputWarp | None],
        family: Family,
        leaves: Sequence[Leaf],
    ) -> Array:
        """Learn a linear map of the features on some leaves, (n_features, n_directions)."""
        data = self.rows.rescaled(coordinates, warps, self.config)
        gps = set_up_leaves(leaves, family.leaf_kernels, data, self.config)
        n_features, n_rows = len(coordinates.columns), gps.n_observations
        # As many directions as rows can tell: a matrix learned on too few of them does not hold elsewhere.
        rank = int(
            np.clip(n_rows / (ROWS_PER_ENTRY * n_features), 1, min(n_features, MOST_DIRECTIONS))
        )
        directions = learn_metric(
            gps,
            family,
            self.context,
            rank=rank,
            max_iter=METRIC_ITERATIONS,
            tolerance=TRIAL_TOLERANCE,
        )
        lengths = np.linalg.norm(directions, axis=0)
        directions = directions[:, lengths > NEGLIGIBLE_DIRECTION * lengths.max()]
        return np.asarray(directions / data.inputs.scale[:, None])


def _renumbered(leaf: Leaf, used: Index) -> Leaf:
    """Return a leaf whose rows are positions among those used."""
    assert leaf.rows is not None
    return replace(leaf, rows=np.searchsorted(used, leaf.rows))


def _rows(leaves: Sequence[Leaf]) -> Index:
    """Return the rows of disjoint leaves, in order."""
    return np.sort(np.concatenate([leaf.rows for leaf in leaves if leaf.rows is not None]))


def _rates(family: Family) -> Array:
    """Return the inverse length scales of a stationary family, the root mean square over outputs, (n_dims,)."""
    by_output = []
    for vector, kernel in zip(family.kernel_parameters, family.leaf_kernels, strict=True):
        assert isinstance(kernel, StationaryKernel)
        by_output.append(1.0 / vector[: len(kernel.columns)])
    return np.asarray(np.sqrt(np.mean(np.square(by_output), axis=0)))


def _start_from(family: Family, learned: Family, data: ScaledRows) -> Family:
    """Return a family at what another has learned, whose length scales are one along the directions of a metric."""
    metric = data.inputs.coordinates is not None and data.inputs.coordinates.metric is not None
    processes = []
    for new, old in zip(family.processes, learned.processes, strict=True):
        theta = new.theta.copy()
        names, old_names = np.array(new.names), np.array(old.names)
        for name in dict.fromkeys(old.names):
            if not metric or name != "lengthscale":
                theta[names == name] = old.theta[old_names == name]
        if metric:
            theta[names == "lengthscale"] = -np.log(data.inputs.scale)
        processes.append(new.with_theta(theta))
    return family.with_processes(processes)
