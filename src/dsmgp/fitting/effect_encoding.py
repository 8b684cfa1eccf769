"""How rows to predict are encoded where inputs are effects of levels: by all training rows, or as training rows are.

The effect of a level among the inputs of a training row was learned without the row's fold. That of a new row can be learned from all rows, which
is more exact, but where outputs are nearly a function of the inputs the GPs have then never seen the inputs that they predict at, and
interpolate between those of the folds. Leave-one-out cannot notice: it predicts at inputs without a fold. So folds are held out with
all that has seen them: the effects among the inputs of the other rows are learned without them, too.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.significance import is_clear
from dsmgp.data.columns.effects import RowEffects, nearest_folds
from dsmgp.data.columns.schema import ColumnSchema
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.mixture.model import Model
from dsmgp.progress import stopping

__all__ = ["with_chosen_encoding"]

logger = logging.getLogger("dsmgp")


def with_chosen_encoding(state: FittedState) -> FittedState:
    """Return a fit whose new rows are encoded in the way that predicts held-out rows best."""
    effects = state.rows.effects
    members = [each.model for each in state.members]
    if effects is None or stopping() or not all(isinstance(model, Model) for model in members):
        return state
    folds = range(effects.n_held_out)
    gains = np.concatenate([_gains(state, effects, number) for number in folds])
    weights = np.ones(len(gains))
    if state.rows.weights is not None:
        weights = np.concatenate([state.rows.weights[effects.folds == k] for k in folds])
    mean = np.average(gains, weights=weights)
    error = np.sqrt(np.average(np.square(gains - mean), weights=weights) / weights.sum())
    is_better = is_clear(mean, error)
    logger.info(
        "effects of levels without a fold for new rows, too: log density of held-out rows %+.3g (standard error %.2g), %s",
        mean,
        error,
        "chosen" if is_better else "not chosen",
    )
    if not is_better:
        return state
    columns = state.schema.columns.with_fold_effects(effects.by_fold)
    schema = replace(state.schema, columns=columns)
    others = tuple(replace(each, schema=schema) for each in state.alternatives)
    return replace(state, schema=schema, alternatives=others)


def _gains(state: FittedState, effects: RowEffects, number: int) -> Array:
    """Return by how much log densities of the rows of a fold are larger if they are encoded as training rows are, (n_rows,)."""
    is_inside = effects.folds == number
    inside, others = effects.taken(is_inside), effects.taken(~is_inside)
    names = list(effects.by_fold)
    # Effects without the fold, of all other rows and without a second fold.
    of_all = {name: effects.by_fold[name][number] for name in names}
    by_fold = {name: effects.by_pair[name][number] for name in names}
    learned = replace(others, by_fold=by_fold)
    columns, kept = state.schema.columns, state.rows.take(np.flatnonzero(~is_inside))
    X = _replaced(columns, kept.X, {name: learned.of_rows(name) for name in names})
    model = _conditioned(state, replace(kept, X=X, effects=None)).predictive
    second = [fold for fold in np.unique(effects.folds).tolist() if fold != number]
    codes = [inside.codes[name] for name in names]
    nearest = nearest_folds(
        [by_fold[name][second] for name in names], [of_all[name] for name in names], codes
    )
    held_out = state.rows.take(np.flatnonzero(is_inside))
    log_densities = [
        model.mixture(_replaced(columns, held_out.X, encoded), squeeze=False).logpdf(held_out.Y)
        for encoded in (
            dict(zip(names, nearest, strict=True)),
            {name: of_all[name][inside.codes[name]] for name in names},
        )
    ]
    return np.asarray(log_densities[0] - log_densities[1]).sum(axis=1)


def _replaced(columns: ColumnSchema, X: Array, effects: dict[str, Array]) -> Array:
    """Return inputs with other effects of levels."""
    X = X.copy()
    for name, inputs in columns.effect_inputs.items():
        X[:, inputs] = effects[name]
    return X


def _conditioned(state: FittedState, rows: TrainingRows) -> FittedState:
    """Return the same hypotheses, with their hyperparameters, conditioned on other rows."""
    members = [replace(each, rows=rows, scores=None).conditioned for each in state.members]
    first, *others = members
    return replace(first, alternatives=tuple(others), stacking=state.stacking)
