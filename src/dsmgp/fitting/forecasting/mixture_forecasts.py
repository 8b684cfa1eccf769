"""Forecasts of the mixture that a table is fitted with where no time model is chosen.

A time model is one leaf, with one noise and one kernel. Where the scale of the output or the function itself differs between levels of the
other inputs, a mixture of leaves can describe later rows better although it knows neither trends nor seasons.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsmgp._util.constants import LOG_2PI
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.fit import fit_rows
from dsmgp.fitting.forecasting.rolling_origin import MOST_DEVIATIONS, Forecasts, RollingOrigin
from dsmgp.fitting.learning.context import FitContext

__all__ = ["mixture_forecasts"]


def mixture_forecasts(rolling: RollingOrigin, schema: InputSchema, config: FitConfig) -> Forecasts:
    """Fit the rows before each origin as a table without a time, and forecast those after it.

    Small tables are fitted under one hypothesis, which takes a fraction of the time.
    """
    rows, config = rolling.rows, replace(config, device="cpu", hypotheses=None)
    forecasts = Forecasts([], [], [])
    for before, after in rolling.folds:
        context = FitContext(config, np.random.default_rng(0))
        state = fit_rows(rows.take(before), schema, context)
        distribution = state.model.mixture(rows.X[after])
        y = rows.Y[after, 0]
        # As for the candidates, large errors do not count as larger still.
        floor = -0.5 * MOST_DEVIATIONS**2 - np.log(distribution.std) - 0.5 * LOG_2PI
        low, high = distribution.interval(0.9)
        forecasts.loss.append(-np.maximum(distribution.logpdf(y), floor))
        forecasts.error.append(np.square(y - distribution.mean))
        forecasts.inside.append((low <= y) & (y <= high))
    return forecasts
