"""Fits and updates as the estimator asks for them: which kind of model is fitted, and what happens when rows come and go.

:func:`fit_model` is where the kinds part: change points, a model of a time series, stacked hypotheses, or one deep structured mixture.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from dsmgp.changepoints.config import changepoint_config
from dsmgp.changepoints.fit import fit_changepoints
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.checkpoint import checkpointed
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.fit import fit_rows
from dsmgp.fitting.forecasting.time_model import choose_time_model
from dsmgp.fitting.hypotheses.fit import fit_hypotheses, hypotheses_pay
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.state import FittedState
from dsmgp.fitting.training_rows import TrainingRows
from dsmgp.fitting.updates import update
from dsmgp.progress import StageTimes, listening
from dsmgp.tree.changepoint_leaf import has_changepoints

__all__ = ["fit_model", "update_model"]

logger = logging.getLogger("dsmgp")


def fit_model(rows: TrainingRows, schema: InputSchema, config: FitConfig) -> FittedState:
    """Fit the kind of model that configuration and rows call for, and record how long its stages took."""
    times = StageTimes()
    with listening(times):
        state = _fit(rows, schema, config)
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in times.seconds.items())
    logger.info("seconds: %s", stages)
    return replace(state, fit_times=times.seconds)


def _fit(rows: TrainingRows, schema: InputSchema, config: FitConfig) -> FittedState:
    rng = config.generator()
    if has_changepoints(config.structure):
        config = changepoint_config(config, rows, schema)
        return fit_changepoints(rows, schema, config, rng)
    time_model = choose_time_model(rows, schema, config)
    if time_model is not None:
        config = time_model.config
    elif hypotheses_pay(rows, config):
        return fit_hypotheses(rows, schema, config, rng)
    with checkpointed(rows.arrays, config, rng) as record:
        state = fit_rows(rows, schema, FitContext(config, rng, record))
    return state if time_model is None else time_model.recorded_in(state)


def update_model(
    state: FittedState,
    n_rows: int,
    change: Callable[[FittedState, slice], FittedState],
    config: FitConfig,
    adapt: bool,
) -> FittedState:
    """Add or remove rows, with maintenance when it is due if ``adapt``; see :func:`dsmgp.fitting.updates.update`."""
    if adapt and has_changepoints(config.structure):
        raise ValueError(
            "structure has been set to one with change points since the fit; call fit on all rows"
        )

    def refit(state: FittedState) -> FittedState:
        return fit_model(state.rows, state.schema, config)

    return update(state, n_rows, change, config, refit if adapt else None)
