"""Fitting a deep structured mixture: from training rows to the state of a fitted estimator.

:func:`fit` is the walk of docs/design.md, one call for each step. :func:`fit_rows` starts it from rows in memory,
:mod:`dsmgp.fitting.datasets.fit` from files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import learn_family
from dsmgp.fitting.learning.optimize import SearchRecord, SearchResult
from dsmgp.fitting.outside.edges import calibrate_edges, with_edges
from dsmgp.fitting.rows.leaf_setup import LeafFamilies
from dsmgp.fitting.rows.row_source import InMemoryRows, RowSource
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.selection.coordinates import CoordinateChoice, choose_coordinates
from dsmgp.fitting.selection.families import LearnedFamilies, learn_families
from dsmgp.fitting.stages import stage
from dsmgp.fitting.state import FittedState
from dsmgp.fitting.structure.grow_tree import grow_tree
from dsmgp.gp.process import parameters_by_leaf
from dsmgp.linalg.device_memory import release_cache, warn_if_occupied
from dsmgp.mixture.model import Model
from dsmgp.mixture.weighting import LOOSample, weigh
from dsmgp.mixture.weights.row_scale import MissingIndicators
from dsmgp.tree.changepoint_leaf import ChangePoints
from dsmgp.tree.nodes import Product, nodes
from dsmgp.tree.routing import place

__all__ = ["fit", "fit_rows"]


def fit_rows(rows: TrainingRows, schema: InputSchema, context: FitContext) -> FittedState:
    """Fit a deep structured mixture to rows in memory."""
    data = ScaledRows.of(
        rows.X,
        rows.Y,
        context.config,
        rows.noise,
        row_weights=rows.weights,
        input_ties=schema.columns.input_ties,
        indicator_inputs=schema.columns.indicator_inputs,
        input_order=schema.input_order(rows.X, rows.Y),
        measured_inputs=schema.columns.measured_inputs,
        direct_inputs=schema.columns.direct_inputs,
    )
    return fit(InMemoryRows(data, context.config), rows, schema, context)


def fit(
    source: RowSource, rows: TrainingRows, schema: InputSchema, context: FitContext
) -> FittedState:
    """Fit a deep structured mixture to the rows of a source, in memory or on disk.

    Parameters
    ----------
    source : RowSource
    rows : TrainingRows
        What the state keeps: all rows, or the sample that the tree was grown on.
    schema : InputSchema
    context : FitContext
    """
    config = context.config
    warn_if_occupied(config.device)
    choice, grown = _grown(source, context)
    source, learned, tree = grown.source, grown.learned, grown.tree
    gps, searches = None, grown.searches
    if config.optimizer is not None and config.objective == "full":
        with stage("learning on the whole tree"):
            gps = source.set_up(tree, learned.outputs)
            family, searches = learn_family(gps, tree.families[0], context, tree=tree.tree)
            tree = replace(tree, families=[family, *tree.families[1:]])
    sample = _loo_sample(source, choice.learned_on, context)
    with stage("conditioning leaves"):
        gps = source.set_up(tree, learned.outputs) if gps is None else gps
        parameters = parameters_by_leaf(tree.families, tree.family)
        posterior = gps.condition(parameters, 0.5 * config.memory, True, sample.rows)
    with stage("fitting the gate"):
        ungated = Model(
            tree=tree.tree,
            families=tree.families,
            family=tree.family,
            leaf_posterior=posterior,
            inputs=source.data.inputs,
            outputs=learned.outputs,
            weights=config.weights,
            scales=np.ones((len(tree.family), source.data.n_outputs)),
            log_jacobian=source.log_jacobian(learned.outputs),
            n_observations=source.data.n_observations,
        )
        model, scores = weigh(ungated, config.local_scale, sample)
    model = with_edges(model, rows.X, schema.columns.measured_inputs)
    if config.local_scale:
        model = calibrate_edges(model, rows)
    release_cache()  # what torch keeps of a GPU for learning is of use to other processes
    search = SearchRecord(
        tuple(searches),
        learned.kernel_scores,
        context.evaluations.n,
        choice.gains or None,
        () if learned.mean is None else (learned.mean.note,),
    )
    metric_ids = rows.ids[choice.learned_on] if source.holds_all else None
    return FittedState.of(model, rows, schema, search, scores, config.local_scale, metric_ids)


@dataclass(frozen=True, eq=False)
class _GrownTree:
    """A tree with the families of its leaves, the rows in its coordinates, and what was learned on the way."""

    source: RowSource
    learned: LearnedFamilies
    tree: LeafFamilies
    searches: list[SearchResult]

    @property
    def is_uncut(self) -> bool:
        return not any(isinstance(node, Product) for node in nodes(self.tree.tree))


def _grown(source: RowSource, context: FitContext) -> tuple[CoordinateChoice, _GrownTree]:
    """Choose coordinates, and grow the tree in them."""
    config = context.config
    with stage("choosing coordinates"):
        choice = choose_coordinates(source, context)
    grown = _grown_in(choice, source, context)
    if config.structure == "learned" and choice.coordinates is None and grown.is_uncut:
        # Nothing breaks along the inputs: other coordinates can only help, where leave-one-out says so.
        as_balanced = replace(config, structure="balanced", weights="gated", local_scale=True)
        choice = choose_coordinates(source, replace(context, config=as_balanced))
        if choice.coordinates is not None or choice.output_warps:
            grown = _grown_in(choice, source, context)
    return choice, grown


def _grown_in(choice: CoordinateChoice, source: RowSource, context: FitContext) -> _GrownTree:
    """Learn hyperparameters and grow the tree, in the coordinates that were chosen."""
    config = context.config
    if choice.coordinates is not None or choice.output_warps:
        data = source.data.rescaled(choice.coordinates, choice.output_warps, config)
        source = source.with_data(data)
    assert not isinstance(config.structure, ChangePoints)  # see fit_changepoints
    given = None if isinstance(config.structure, str) else place(config.structure, source.data.U)
    learned = learn_families(source, given, context)
    with stage("growing the tree"):
        tree, searches = grow_tree(source, given, learned, context)
    return _GrownTree(source, learned, tree, learned.searches + searches)


def _loo_sample(source: RowSource, learned_on: Index, context: FitContext) -> LOOSample:
    """Draw the rows whose leave-one-out results fit the gate and score the model."""
    config = context.config
    n_gate_rows = config.n_gate_rows(config.weights)
    if not source.holds_all:
        # The rows of a sample have other numbers, and are few of all.
        return LOOSample.draw(source.n_rows, n_gate_rows, context.rng)
    missing = MissingIndicators.of(source.data.X, source.data.indicator_inputs)
    return LOOSample.draw(source.n_rows, n_gate_rows, context.rng, learned_on, missing)
