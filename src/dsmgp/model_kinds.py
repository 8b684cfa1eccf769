"""Fits and updates as the estimator asks for them: which kind of model is fitted, and what happens when rows come and go.

:func:`fit_model` is where the kinds part: change points, a model of a time series, stacked or
averaged hypotheses, or one deep structured mixture.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp._util.errors import InputError
from dsmgp.changepoints.config import changepoint_config
from dsmgp.changepoints.fit import fit_changepoints
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.checkpoint import checkpointed
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.effect_encoding import with_chosen_encoding
from dsmgp.fitting.fit import fit_rows
from dsmgp.fitting.forecasting.time_model import choose_time_model
from dsmgp.fitting.hypotheses.average import average_hypotheses
from dsmgp.fitting.hypotheses.fit import fit_hypotheses, hypotheses_pay
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.fitting.updates import add_rows, remove_rows, update
from dsmgp.progress import StageTimes, listening
from dsmgp.tree.changepoint_leaf import has_changepoints

__all__ = ["add_to_model", "fit_model", "remove_from_model"]

logger = logging.getLogger("dsmgp")


def fit_model(rows: TrainingRows, schema: InputSchema, config: FitConfig) -> FittedState:
    """Fit the kind of model that configuration and rows call for, and record how long its stages took."""
    times = StageTimes()
    with listening(times):
        state = _fit(rows, schema, config)
        state = with_chosen_encoding(state)
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in times.seconds.items())
    logger.info("seconds: %s", stages)
    return replace(state, fit_times=times.seconds)


def _fit(rows: TrainingRows, schema: InputSchema, config: FitConfig) -> FittedState:
    rng = config.generator()
    if has_changepoints(config.structure):
        config = changepoint_config(config, rows, schema)
        return fit_changepoints(rows, schema, config, rng)
    if config.hypotheses == "average":
        return average_hypotheses(rows, schema, config, rng)
    time_model = choose_time_model(rows, schema, config)
    if time_model is not None:
        config = time_model.config
    elif hypotheses_pay(rows, config):
        return fit_hypotheses(rows, schema, config, rng)
    with checkpointed(rows.arrays, config, rng) as record:
        state = fit_rows(rows, schema, FitContext(config, rng, record))
    return state if time_model is None else time_model.recorded_in(state)


def add_to_model(
    state: FittedState, rows: TrainingRows, config: FitConfig, adapt: bool
) -> FittedState:
    """Add training rows, with maintenance when it is due if ``adapt``.

    A fit that has chosen the logarithm of the output by itself is made again without it at the first output that has none.

    Parameters
    ----------
    state : FittedState
    rows : TrainingRows
        Those to add.
    config : FitConfig
    adapt : bool
    """
    first = _first_without_logarithm(state, rows, config)
    if first is None:
        return _updated(
            state, len(rows), lambda each, part: add_rows(each, rows.take(part)), config, adapt
        )
    if not adapt:
        raise InputError(
            f"expected outputs above 0, got {rows.Y[first, 0]:g} in row {first}: the fit chose to model their logarithm, which forecasts the "
            "training rows best; leave out adapt=False to fit all rows again, or call fit with output_warp=None"
        )
    before = add_to_model(state, rows.take(slice(first)), config, adapt)
    joined = before.rows.added(rows.take(slice(first, first + 1)))
    refitted = fit_model(joined, state.schema, config)
    after = add_to_model(refitted, rows.take(slice(first + 1, None)), config, adapt)
    step = f"fitted again on {len(joined)} rows, as the logarithm of the output was modelled and an output is not above 0"
    logger.info("%s", step)
    return replace(after, maintenance=(*before.maintenance, step, *after.maintenance))


def _first_without_logarithm(
    state: FittedState, rows: TrainingRows, config: FitConfig
) -> int | None:
    """Return the position of the first row that a warp chosen by the fit has no value for; None if there is none."""
    if config.output_warp != "auto":
        return None  # the user has chosen the warp, and hears of it
    warps = state.model.outputs.warps
    low = [-np.inf if warp is None or warp.lower is None else warp.lower for warp in warps]
    outside = np.flatnonzero((rows.Y[:, : len(low)] <= low).any(axis=1))
    return int(outside[0]) if len(outside) else None


def remove_from_model(
    state: FittedState, ids: Index, config: FitConfig, adapt: bool
) -> FittedState:
    """Remove training rows by their numbers, with maintenance when it is due if ``adapt``."""
    state.rows.positions(ids)  # check all of them before any is removed
    return _updated(state, len(ids), lambda each, part: remove_rows(each, ids[part]), config, adapt)


def _updated(
    state: FittedState,
    n_rows: int,
    change: Callable[[FittedState, slice], FittedState],
    config: FitConfig,
    adapt: bool,
) -> FittedState:
    if adapt and has_changepoints(config.structure):
        raise InputError(
            "structure has been set to one with change points since the fit; call fit on all rows"
        )

    def refit(state: FittedState) -> FittedState:
        return fit_model(state.rows, state.schema, config)

    return update(state, n_rows, change, config, refit if adapt else None)
