"""A fit to rows in memory, from training rows to a fitted state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.fit import fit
from dsmgp.fitting.learning.family import FitContext
from dsmgp.fitting.learning.optimize import Objective
from dsmgp.fitting.state import FittedState, TrainingRows
from dsmgp.fitting.training_data import InMemoryRows, TrainingData

__all__ = ["fit_rows"]


def fit_rows(
    rows: TrainingRows,
    schema: InputSchema,
    config: FitConfig,
    rng: np.random.Generator,
    recorded: Callable[[Objective], Objective] = lambda objective: objective,
) -> FittedState:
    """Fit one deep structured mixture; ``recorded`` is that of :class:`~dsmgp.fitting.learning.family.FitContext`."""
    data = TrainingData.of(
        rows.X,
        rows.Y,
        config,
        rows.noise,
        row_weights=rows.weights,
        input_ties=schema.columns.input_ties,
        indicator_inputs=schema.columns.indicator_inputs,
    )
    fitted = fit(InMemoryRows(data, config), FitContext(config, rng, recorded))
    return FittedState.from_fit(fitted, rows, schema, config.local_scale)
