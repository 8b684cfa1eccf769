"""Fitting a deep structured mixture: from rows to a fitted model.

Scale the rows, choose the output scaling and the kernel on a few leaves, learn hyperparameters on some more, grow the tree, condition
all leaves, and fit the gate by leave-one-out. The tree is grown in :mod:`dsmgp.fitting.partitions`; where rows are on disk,
:mod:`dsmgp.fitting.datasets.fit` supplies them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp.fitting.effort import EFFORTS
from dsmgp.fitting.learning.family import FitContext, learn_family
from dsmgp.fitting.learning.kernel_mixture import build_kernels, learn_kernels
from dsmgp.fitting.learning.optimize import TOLERANCE, SearchRecord, SearchResult
from dsmgp.fitting.partitions import (
    LearnedFamilies,
    grow_tree,
    partitions_may_differ,
    sample_leaves,
    surrogate_leaves,
)
from dsmgp.fitting.selection.coordinates import CoordinateChoice, choose_coordinates
from dsmgp.fitting.selection.kernels import choose_outputs, rank_kernels
from dsmgp.fitting.selection.mean import choose_mean, with_mean
from dsmgp.fitting.training_data import (
    LeafFamilies,
    RowSource,
    set_up_leaves,
)
from dsmgp.gp.process import parameters_by_leaf
from dsmgp.linalg.device_memory import release_cache, warn_if_occupied
from dsmgp.mixture.fitted_model import FittedModel
from dsmgp.mixture.model import Model
from dsmgp.mixture.row_scale import MissingIndicators
from dsmgp.mixture.weighting import LOOSample, weigh
from dsmgp.progress import span
from dsmgp.tree.changepoint_leaf import ChangePoints
from dsmgp.tree.nodes import Node, Product, nodes
from dsmgp.tree.routing import place

__all__ = ["FitResult", "fit"]

# The kernel with which output scalings are compared when the kernel is yet to be chosen.
NEUTRAL_KERNEL = "matern12"
# Partitions alternate between two kernels whose trial scores are this close.
CLOSE_SCORES = 0.05
# Partitions are drawn at random: their hyperparameters need not be found more exactly than this (see optimize.TOLERANCE).
RANDOM_TOLERANCE = 1e-5
# Approximate shares of the time that the stages of a fit take, for progress reports.
SHARES = {
    "coordinates": (0.0, 0.25), "outputs": (0.25, 0.3), "kernels": (0.3, 0.45), "learning": (0.45, 0.55), "growing": (0.55, 0.7),
    "full": (0.6, 0.7), "conditioning": (0.7, 0.95), "gating": (0.95, 1.0),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class FitResult:
    """A fitted model and how it was found.

    Attributes
    ----------
    model : FittedModel
    search : SearchRecord
    scores : tuple of float
        LOO scores, see :func:`dsmgp.mixture.weighting.weigh`.
    learned_on : ndarray of int, or None
        Rows that LOO scores leave out, as a metric was learned on them.
    """

    model: FittedModel
    search: SearchRecord
    scores: tuple[float, float]
    learned_on: Index | None = None


def fit(rows: RowSource, context: FitContext) -> FitResult:
    """Fit a deep structured mixture to the rows of a source, in memory or on disk."""
    config = context.config
    warn_if_occupied(config.device)
    with span(*SHARES["coordinates"], "choosing coordinates"):
        choice = choose_coordinates(rows, context)
    grown = _grow(rows, choice, context)
    if config.structure == "learned" and choice.coordinates is None and grown.is_uncut:
        # Nothing breaks along the inputs: other coordinates can only help, where leave-one-out says so.
        as_balanced = replace(config, structure="balanced", weights="gated", local_scale=True)
        choice = choose_coordinates(rows, replace(context, config=as_balanced))
        if choice.coordinates is not None or choice.output_warps:
            grown = _grow(rows, choice, context)
    rows, learned, tree, searches = grown.rows, grown.learned, grown.tree, grown.searches
    n_evaluations = choice.n_evaluations + learned.n_trial_evaluations
    n_evaluations += sum(each.n_evaluations for each in searches)
    gps = None
    if config.optimizer is not None and config.objective == "full":
        with span(*SHARES["full"], "learning on the whole tree"):
            gps = rows.set_up(tree, learned.outputs)
            searches = learn_family(gps, tree.families[0], context, tree=tree.tree)
        n_evaluations += sum(each.n_evaluations for each in searches)
    n_gate_rows = EFFORTS[config.effort].n_gate_rows if config.weights == "gated" else 0
    # A sample that stands for more rows has other numbers, and is few of them.
    learned_on, missing = None, None
    if len(rows.data.X) == rows.n_rows:
        learned_on = choice.learned_on
        missing = MissingIndicators.of(rows.data.X, rows.data.indicator_inputs)
    loo_sample = LOOSample.draw(rows.n_rows, n_gate_rows, context.rng, learned_on, missing)
    with span(*SHARES["conditioning"], "conditioning leaves"):
        gps = rows.set_up(tree, learned.outputs) if gps is None else gps
        parameters = parameters_by_leaf(tree.families, tree.family)
        posterior = gps.condition(parameters, 0.5 * config.memory, True, loo_sample.rows)
    with span(*SHARES["gating"], "fitting the gate"):
        ungated = Model(
            tree=tree.tree,
            families=tree.families,
            family=tree.family,
            leaf_posterior=posterior,
            inputs=rows.data.inputs,
            outputs=learned.outputs,
            weights=config.weights,
            scales=np.ones((len(tree.family), rows.data.n_outputs)),
            log_jacobian=rows.log_jacobian(learned.outputs),
            n_observations=rows.data.n_observations,
        )
        model, scores = weigh(ungated, config.local_scale, loo_sample)
    search = SearchRecord(
        tuple(searches),
        learned.kernel_scores or None,
        n_evaluations,
        choice.gains or None,
        () if learned.mean is None else (learned.mean.note,),
    )
    release_cache()  # what torch keeps of a GPU for learning is of use to other processes
    return FitResult(model, search, scores, learned_on)


@dataclass(frozen=True, eq=False)
class _Grown:
    """A tree with the families of its leaves, the rows in its coordinates, and what was learned on the way."""

    rows: RowSource
    learned: LearnedFamilies
    tree: LeafFamilies
    searches: list[SearchResult]

    @property
    def is_uncut(self) -> bool:
        return not any(isinstance(node, Product) for node in nodes(self.tree.tree))


def _grow(rows: RowSource, choice: CoordinateChoice, context: FitContext) -> _Grown:
    """Learn hyperparameters and grow the tree, in the coordinates that were chosen."""
    config = context.config
    if choice.coordinates is not None or choice.output_warps:
        data = rows.data.rescaled(choice.coordinates, choice.output_warps, config)
        rows = rows.with_data(data)
    assert not isinstance(config.structure, ChangePoints)  # see fit_changepoints
    given = None if isinstance(config.structure, str) else place(config.structure, rows.data.U)
    learned = _learn(rows, given, context)
    with span(*SHARES["growing"], "growing the tree"):
        tree, searches = grow_tree(rows, given, learned, context)
    return _Grown(rows, learned, tree, learned.searches + searches)


def _learn(rows: RowSource, given: Node | None, context: FitContext) -> LearnedFamilies:
    """Choose output scaling and kernel on a few leaves, and learn hyperparameters on more."""
    config, effort = context.config, EFFORTS[context.config.effort]
    automatic = isinstance(config.kernel, str) and config.kernel == "auto"
    kernels_given = config.kernel if isinstance(config.kernel, tuple) else (config.kernel,)
    kernel = NEUTRAL_KERNEL if automatic else kernels_given[0]
    start = (kernel,) if automatic else kernels_given
    if config.optimizer is None:
        families = build_kernels(start, rows.data, config)
        return LearnedFamilies(rows.data.outputs, families, len(families), {}, [], 0)

    grown = surrogate_leaves(rows, given, context)
    data, surrogate = rows.rows_of(grown, rows.data.outputs)
    trial = sample_leaves(surrogate, effort.n_trial_leaves, context.rng)
    with span(*SHARES["outputs"], "choosing the output scaling"):
        outputs, n_trial_evaluations = choose_outputs(rows.data, data, trial, kernel, context)
    sample, data = rows.data.with_outputs(outputs), data.with_outputs(outputs)

    families = build_kernels(start, sample, config)
    kernels = families[0].leaf_kernels
    kernel_scores: dict[str, float] = {}
    n_close = len(families)
    if automatic:
        with span(*SHARES["kernels"], "trying kernels"):
            gps = set_up_leaves(trial, kernels, data, config)
            ranking = rank_kernels(gps, sample, context)
        kernel_scores = ranking.scores
        families = ranking.families[: 2 if partitions_may_differ(config) else 1]
        scores = np.array([kernel_scores[family.kernel] for family in families])
        n_close = int((scores - scores[0] <= CLOSE_SCORES).sum())
        n_trial_evaluations += ranking.n_evaluations
    chosen = None
    if automatic and config.mean_is_open:
        # A generator of its own: where the mean stays zero, the fit is that of a configuration without a choice.
        chosen = choose_mean(trial, data, families[0], np.random.default_rng(0))
        if chosen is not None and chosen.mean != "zero":
            families = [with_mean(family, chosen.mean, sample, config) for family in families]
            kernels = families[0].leaf_kernels
    if not automatic or trial is not surrogate:
        gps = set_up_leaves(surrogate, kernels, data, config)

    tolerance = RANDOM_TOLERANCE if config.structure == "balanced" else TOLERANCE
    searches: list[SearchResult] = []
    if isinstance(config.kernel, tuple):
        with span(*SHARES["learning"], "learning hyperparameters"):
            searches = learn_kernels(gps, families, context, tolerance=tolerance)
        return LearnedFamilies(outputs, families, n_close, {}, searches, n_trial_evaluations)
    for family in families[:n_close]:
        what = family.kernel if automatic else "hyperparameters"
        with span(*SHARES["learning"], f"learning {what}"):
            searches += learn_family(gps, family, context, tolerance=tolerance)
    return LearnedFamilies(
        outputs, families, n_close, kernel_scores, searches, n_trial_evaluations, chosen
    )
