"""Leave-one-out densities under hyperparameters that have not seen the row: a score of a fitted mixture that is not optimistic.

Plain leave-one-out conditions on all other rows, but its hyperparameters were learned on the row, too. On small tables that is too kind. Plain
cross-validation learns them without a fold of the rows, but also conditions on fewer rows than the model does. Here the output
scaling, the hyperparameters and the gate are learned without a fold, starting from those of the model, then all rows are conditioned on, and
each row of the fold is left out in closed form. Partitions and the choice of kernels stay those of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.points import equal_rows
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import learn_each_family
from dsmgp.fitting.learning.optimize import SearchResult
from dsmgp.fitting.learning.surrogate import surrogate_leaves
from dsmgp.fitting.rows.leaf_setup import LeafFamilies, set_up_leaves
from dsmgp.fitting.rows.row_source import InMemoryRows
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.state import FittedState
from dsmgp.gp.process import Family, parameters_by_leaf
from dsmgp.gp.transforms.output_warp import OutputWarp, SplineWarp, normal_scores
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.model import Model
from dsmgp.mixture.weighting import LOOSample, fit_weights
from dsmgp.progress import stopping
from dsmgp.tree.nodes import leaves

__all__ = ["HeldOut", "conditioned", "held_out_log_densities", "scaled_data"]

# Learning starts close to where it ends; its result need not be more exact than folds differ (see optimize.TOLERANCE).
FOLD_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions of rows under hyperparameters that have not seen them.

    Attributes
    ----------
    log_densities : ndarray of shape (2, n_rows)
        Of each row given all others, and given all rows with other inputs.
    mean, cdf : ndarray of shape (n_rows,)
        Mean, and cumulative probability of the observation, of each row given all others.
    n_evaluations : int
        Evaluations of the evidence.
    """

    log_densities: Array
    mean: Array
    cdf: Array
    n_evaluations: int


def held_out_log_densities(
    state: FittedState, fold: Index, config: FitConfig, seed: int
) -> HeldOut | None:
    """Leave out the rows of each fold.

    Parameters
    ----------
    state : FittedState
        A fit of one output.
    fold : ndarray of shape (n_rows,)
        The fold of each row.
    config : FitConfig
        That of the fit.
    seed : int
        For the leaves that hyperparameters are learned on.

    Returns
    -------
    HeldOut or None
        None if the fit is asked to stop.
    """
    log_densities = np.empty((2, len(fold)))
    mean, cdf = np.empty((2, len(fold)))
    n_evaluations = 0
    for number in np.unique(fold):
        inside, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        context = FitContext(config, np.random.default_rng(seed))
        data = _scaled_without(state, inside, config)
        families, searches = _learned_on(state.mixture, data, others, context)
        n_evaluations += sum(each.n_evaluations for each in searches)
        if stopping():
            return None
        model = conditioned(state.mixture, data, families, config)
        has_gate = config.weights == "gated"
        sample = LOOSample(others if has_gate else others[:0], inside, state.missing)
        model, loo = fit_weights(model, state.local_scale, sample, state.mixture.gate)
        Y = data.Y[inside]
        for k, grouped in enumerate((False, True)):
            left_out = model.loo_distribution(loo, inside, grouped, sample.missing)
            log_densities[k, inside] = left_out.logpdf(Y)[:, 0]
            if not grouped:
                mean[inside], cdf[inside] = left_out.mean.ravel(), left_out.cdf(Y).ravel()
    return HeldOut(log_densities, mean, cdf, n_evaluations)


def _scaled_without(state: FittedState, inside: Index, config: FitConfig) -> ScaledRows:
    """Return all rows, with outputs scaled and warped as the rows outside of a fold say."""
    others = state.rows.removed(inside)
    warps = [
        _learned_again(warp, y, others.weights)
        for warp, y in zip(state.model.outputs.warps, others.Y.T, strict=False)
    ]
    outputs = OutputScaling.of(others.Y, config.standardize, warps, others.weights)
    return scaled_data(state, outputs, config)


def scaled_data(state: FittedState, outputs: OutputScaling, config: FitConfig) -> ScaledRows:
    """Return all rows in the coordinates of a fit, under an output scaling."""
    rows, model, columns = state.rows, state.model, state.schema.columns
    return ScaledRows(
        rows.X,
        rows.Y,
        rows.noise,
        model.inputs,
        outputs,
        equal_rows(rows.X),
        config.dtype,
        rows.weights,
        columns.input_ties,
        columns.indicator_inputs,
        state.schema.input_order(rows.X, rows.Y),
        columns.measured_inputs,
    )


def _learned_again(warp: OutputWarp | None, y: Array, weights: Array | None) -> OutputWarp | None:
    """Return the warp that other outputs call for; the same where they are too few."""
    if not isinstance(warp, SplineWarp):
        return warp
    return normal_scores(y, warp.strength, warp.lower, weights) or warp


def _learned_on(
    model: Model, data: ScaledRows, others: Index, context: FitContext
) -> tuple[list[Family], list[SearchResult]]:
    """Return the families of a model with hyperparameters learned on some rows."""
    config = context.config
    part = data.taken(others)
    if config.optimizer is None:
        return model.families, []
    grown = surrogate_leaves(InMemoryRows(part, config), None, context)
    gps = set_up_leaves(grown, model.families[0].leaf_kernels, part, config)
    return learn_each_family(gps, model.families, context, tolerance=FOLD_TOLERANCE)


def conditioned(model: Model, data: ScaledRows, families: list[Family], config: FitConfig) -> Model:
    """Return a model with other families and output scaling, conditioned on all rows, with leave-one-out results of all.

    Parameters
    ----------
    model : Model
        Whose tree is kept.
    data : ScaledRows
        All rows, in the output scaling of the result.
    families : list of Family
        In place of those of the model.
    config : FitConfig
    """
    tree = LeafFamilies(model.tree, families, model.family)
    gps = InMemoryRows(data, config).set_up(tree, data.outputs)
    parameters = parameters_by_leaf(families, model.family)
    return replace(
        model,
        families=families,
        leaf_posterior=gps.condition(parameters, 0, True, np.arange(len(data.X))),
        outputs=data.outputs,
        scales=np.ones((len(leaves(model.tree)), data.n_outputs)),
        gate=None,
        row_scale=None,
    )
