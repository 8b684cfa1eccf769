"""Candidate coordinates: their hyperparameters, metrics and networks are learned on some leaves, and judged on others.

Candidates are immutable: what is learned makes another one. Candidates that differ in their kernels only share the
leaf GPs that were set up for their coordinates (:class:`TrialLeaves`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.learning.boosted_trees import held_out_predictions, learn_boosted_trees
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import TRIAL_TOLERANCE, learn_on_trial, loo_posterior
from dsmgp.fitting.learning.metric import learn_metric
from dsmgp.fitting.learning.network import learn_network
from dsmgp.fitting.rows.leaf_setup import build_family, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.candidate_scores import CandidateScores, RowScores
from dsmgp.fitting.selection.loo_predictions import loo_predictions
from dsmgp.fitting.selection.trial_rows import TrialRows
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.process import Family
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.output_warp import OutputWarp
from dsmgp.tree.nodes import Leaf

__all__ = [
    "Candidate",
    "Trial",
    "TrialFold",
    "TrialLeaves",
    "boosted_trees_compete",
    "judge",
    "learn",
    "learn_network_on",
    "with_boosted_trees",
    "with_metric",
    "with_network",
    "without_weak_features",
]

logger = logging.getLogger("dsmgp")

# A feature whose column has another one with so much shorter a length scale is dropped.
PRUNED = 0.1
# Directions of a metric at most; those with so small a share of the largest scale are dropped.
MOST_DIRECTIONS, NEGLIGIBLE_DIRECTION = 20, 3e-3
# Rows that an entry of a metric needs at least.
ROWS_PER_ENTRY = 6
METRIC_ITERATIONS = 30
# Boosted trees are worth a trial if their mean squared error is at most this many times that of large leaves; on how many rows at most
# they are learned for this question, and for the model.
COMPETITIVE, SCREENING_ROWS, MOST_TREE_ROWS = 1.5, 20_000, 50_000
# Mean squared error, relative to the output's variance, below which a smooth function has been found, which steps would only disturb.
SMOOTH = 1e-4


@dataclass(frozen=True, eq=False)
class Trial:
    """What all candidates of a trial share.

    Attributes
    ----------
    rows : TrialRows
    context : FitContext
        With a configuration that computes here, and a generator of the trial's own.
    """

    rows: TrialRows
    context: FitContext

    @property
    def n_inputs(self) -> int:
        return int(self.rows.all_rows.X.shape[1])

    def folds(
        self,
        coordinates: Coordinates | Sequence[Coordinates],
        output_warps: Sequence[OutputWarp | None],
    ) -> tuple[TrialFold, ...]:
        """Return the folds in the same coordinates, or in those of each, with output warps."""
        n_folds = len(self.rows.folds)
        of_fold = [coordinates] * n_folds if isinstance(coordinates, Coordinates) else coordinates
        leaves = {id(each): TrialLeaves(self, each, output_warps) for each in of_fold}
        return tuple(TrialFold(leaves[id(each)], k) for k, each in enumerate(of_fold))


@dataclass(frozen=True, eq=False)
class TrialLeaves:
    """The rows of a trial in some coordinates, and the leaf GPs that were set up there.

    Attributes
    ----------
    trial : Trial
    coordinates : Coordinates
    output_warps : sequence of OutputWarp or None
        By output; empty if no output is warped.
    """

    trial: Trial
    coordinates: Coordinates
    output_warps: Sequence[OutputWarp | None]
    _gps: dict[tuple[Leaf, ...], LeafGPs] = field(default_factory=dict)

    @cached_property
    def data(self) -> ScaledRows:
        """The rows, scaled."""
        config = self.trial.context.config
        return self.trial.rows.rows.rescaled(self.coordinates, self.output_warps, config)

    def gps(self, leaves: tuple[Leaf, ...], family: Family) -> LeafGPs:
        """Return the GPs of some leaves under the kernels of a family; leaves are set up once for all kernels."""
        if leaves not in self._gps:
            config = self.trial.context.config
            self._gps[leaves] = set_up_leaves(leaves, family.leaf_kernels, self.data, config)
        return self._gps[leaves].with_kernels(family.leaf_kernels)


@dataclass(frozen=True, eq=False)
class TrialFold:
    """The leaves of a trial in some coordinates, of which a part is learned on; the others judge.

    Attributes
    ----------
    leaves : TrialLeaves
        Shared by folds in the same coordinates.
    number : int
        Which part is learned on.
    """

    leaves: TrialLeaves
    number: int

    @property
    def trial(self) -> Trial:
        return self.leaves.trial

    @property
    def coordinates(self) -> Coordinates:
        return self.leaves.coordinates

    @property
    def data(self) -> ScaledRows:
        return self.leaves.data

    def learning(self, family: Family) -> LeafGPs:
        """Return the leaves to learn on."""
        return self.leaves.gps(self.trial.rows.folds[self.number], family)

    def judging(self, family: Family, large: bool) -> LeafGPs:
        """Return the small or large leaves that judge."""
        return self.leaves.gps(self.trial.rows.judges(self.number, large), family)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Coordinates and output warps to try.

    Attributes
    ----------
    kernel : str, Kernel, or gpytorch.kernels.Kernel
    folds : tuple of TrialFold
        The coordinates differ between folds where a metric or a network was learned on each anew.
    families : tuple of Family
        By fold, the hyperparameters learned on it.
    without_network : Candidate, optional
        The candidate that a network was added to.
    """

    kernel: Any
    folds: tuple[TrialFold, ...]
    families: tuple[Family, ...] = ()
    without_network: Candidate | None = None

    @property
    def trial(self) -> Trial:
        return self.folds[0].trial

    @property
    def coordinates(self) -> Coordinates:
        """Those of the first fold."""
        return self.folds[0].coordinates

    @property
    def output_warps(self) -> Sequence[OutputWarp | None]:
        return self.folds[0].leaves.output_warps

    def in_coordinates(self, coordinates: Coordinates) -> Candidate:
        """Return the candidate in other coordinates, the same on all folds, with nothing learned."""
        folds = self.trial.folds(coordinates, self.output_warps)
        return replace(self, folds=folds, families=())

    def with_output_warps(self, output_warps: Sequence[OutputWarp | None]) -> Candidate:
        """Return the candidate with other output warps."""
        coordinates = [each.coordinates for each in self.folds]
        return replace(self, folds=self.trial.folds(coordinates, output_warps))


def learn(candidate: Candidate) -> Candidate:
    """Learn hyperparameters on each fold, from those of the candidate if it has any."""
    families, context = [], candidate.trial.context
    for k, fold in enumerate(candidate.folds):
        family = build_family(candidate.kernel, fold.data, context.config)
        if candidate.families:
            family = _start_from(family, candidate.families[k], fold.data)
        learned, _ = learn_on_trial(fold.learning(family), family, context)
        families.append(learned)
    return replace(candidate, families=tuple(families))


def judge(candidate: Candidate) -> CandidateScores:
    """Leave out rows, one by one, that nothing was learned on: those of other small leaves, and of large leaves."""
    return CandidateScores(_row_scores(candidate, large=False), _row_scores(candidate, large=True))


def _row_scores(candidate: Candidate, large: bool) -> RowScores:
    """Leave out the rows of small or large leaves that nothing was learned on, in all folds."""
    losses, errors, weights = [], [], []
    rows = candidate.trial.rows
    for fold, family in zip(candidate.folds, candidate.families, strict=True):
        gps, outputs = fold.judging(family, large), fold.data.outputs
        left_out = loo_predictions(loo_posterior(gps, family), outputs)
        unseen = ~np.isin(np.unique(gps.leaf_rows.flat), rows.learned_on(fold.number))
        unseen |= not unseen.any()  # a single leaf has to do both
        y = outputs.from_experts(left_out.observed)[unseen]
        predictions = [each[unseen] for each in left_out.predictions]
        losses.append(
            [-0.5 * (each.joint_logpdf(y) + each.logpdf(y).sum(axis=1)) for each in predictions]
        )
        errors.append([np.square((each.mean - y) / rows.spread) for each in predictions])
        if left_out.row_weights is not None:
            weights.append(left_out.row_weights[unseen])
    return RowScores(
        np.concatenate(losses, axis=1),
        np.concatenate(errors, axis=1),
        np.concatenate(weights) if weights else None,
    )


def without_weak_features(candidate: Candidate) -> Candidate:
    """Drop features that matter little beside another one of the same column, and learn again."""
    rates = np.mean([_rates(family) for family in candidate.families], axis=0)
    coordinates = candidate.coordinates
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
    return learn(candidate.in_coordinates(fewer))


def with_metric(candidate: Candidate) -> Candidate:
    """Learn a metric on each fold, and length scales along its directions."""
    coordinates = [
        replace(fold.coordinates, metric=_metric(fold, family))
        for fold, family in zip(candidate.folds, candidate.families, strict=True)
    ]
    folds = candidate.trial.folds(coordinates, candidate.output_warps)
    return learn(replace(candidate, folds=folds))


def _metric(fold: TrialFold, family: Family) -> Array:
    """Learn a linear map of the features on the leaves of a fold, (n_features, n_directions)."""
    gps, n_features = fold.learning(family), len(fold.coordinates.columns)
    # As many directions as rows can tell: a matrix learned on too few of them does not hold elsewhere.
    rank = int(
        np.clip(
            gps.n_observations / (ROWS_PER_ENTRY * n_features),
            1,
            min(n_features, MOST_DIRECTIONS),
        )
    )
    directions = learn_metric(
        gps,
        family,
        fold.trial.context,
        rank=rank,
        max_iter=METRIC_ITERATIONS,
        tolerance=TRIAL_TOLERANCE,
    )
    lengths = np.linalg.norm(directions, axis=0)
    directions = directions[:, lengths > NEGLIGIBLE_DIRECTION * lengths.max()]
    return np.asarray(directions / fold.data.inputs.scale[:, None])


def with_network(candidate: Candidate) -> Candidate:
    """Learn a network on the rows of each fold and on those that do not judge, and length scales beside it."""
    trial = candidate.trial
    rows = trial.rows
    spare = np.setdiff1d(np.arange(len(rows.all_rows.X)), rows.used)
    coordinates = [
        learn_network_on(fold, family, np.union1d(rows.used[rows.learned_on(fold.number)], spare))
        for fold, family in zip(candidate.folds, candidate.families, strict=True)
    ]
    folds = trial.folds(coordinates, candidate.output_warps)
    return learn(replace(candidate, folds=folds, families=(), without_network=candidate))


def learn_network_on(fold: TrialFold, family: Family, numbers: Index) -> Coordinates:
    """Return the coordinates of a fold with a network that is learned on some rows of the training set.

    Parameters
    ----------
    fold : TrialFold
        Whose scaling is used.
    family : Family
        With the hyperparameters that the network is learned under.
    numbers : ndarray of shape (n_rows,)
        In the training set.
    """
    data, rows = fold.data, fold.trial.rows.all_rows
    Z = data.inputs.to_experts(rows.X[numbers])
    targets = data.outputs.to_experts(rows.Y[numbers])
    network = learn_network(Z, targets, family.processes, fold.trial.context.rng)
    return replace(fold.coordinates, network=network.after(data.inputs.centre, data.inputs.scale))


def boosted_trees_compete(candidate: Candidate, scores: CandidateScores) -> bool:
    """Return whether boosted trees predict rows of the large leaves about as well as a candidate does; they are learned on other rows."""
    trial, outputs, large = candidate.trial, candidate.folds[0].data.outputs, scores.large
    of_leaves = np.average(large.error[0], axis=0, weights=large.row_weights).mean()
    if of_leaves < SMOOTH:
        return False
    rows, data = trial.rows, trial.rows.all_rows
    judged = rows.used[rows.in_large]
    others = np.setdiff1d(np.arange(len(data.X)), judged)
    if len(others) < len(judged):  # a small table: half of these rows
        judged, others = judged[::2], np.union1d(others, judged[1::2])
    learned_on = np.sort(trial.context.rng.permutation(others)[:SCREENING_ROWS])
    targets = outputs.to_experts(data.Y)
    weights = data.row_weights
    predicted = outputs.from_experts(
        held_out_predictions(data.X, targets, learned_on, judged, weights)
    )
    squares = np.square((predicted - data.Y[judged]) / rows.spread).mean(axis=1)
    error = np.average(squares, weights=None if weights is None else weights[judged])
    logger.info("boosted trees: mean squared error %.4f, large leaves %.4f", error, of_leaves)
    return bool(error <= COMPETITIVE * of_leaves)


def with_boosted_trees(candidate: Candidate) -> Candidate | None:
    """Add the predictions of boosted trees to the coordinates of all folds, and learn length scales beside them; None if there are too few rows."""
    trial, outputs = candidate.trial, candidate.folds[0].data.outputs
    rows, data = trial.rows, trial.rows.all_rows
    others = np.setdiff1d(np.arange(len(data.X)), rows.used)
    n_others = max(MOST_TREE_ROWS - len(rows.used), 0)
    numbers = np.union1d(rows.used, trial.context.rng.permutation(others)[:n_others])
    weights = None if data.row_weights is None else data.row_weights[numbers]
    trees = learn_boosted_trees(
        data.X[numbers],
        outputs.to_experts(data.Y[numbers]),
        weights,
        data.input_order,
        data.direct_inputs,
    )
    if trees is None:
        return None
    coordinates = [replace(fold.coordinates, trees=trees) for fold in candidate.folds]
    folds = trial.folds(coordinates, candidate.output_warps)
    return learn(replace(candidate, folds=folds, families=()))


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
