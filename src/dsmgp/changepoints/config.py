"""The configuration of a fit with change points: what it supports, and which input orders the rows."""

from __future__ import annotations

from dataclasses import replace

from dsmgp._util.errors import InputError
from dsmgp._util.validation import input_number
from dsmgp.data.input_schema import InputSchema
from dsmgp.distributed.executor import LocalExecutor
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.mixture.fitted_model import CHANGE_POINTS
from dsmgp.tree.changepoint_leaf import ChangePoints, map_changes

__all__ = ["changepoint_config"]


def changepoint_config(config: FitConfig, rows: TrainingRows, schema: InputSchema) -> FitConfig:
    """Replace the name of the input that orders the rows by its number; refuse what such a fit does not support."""

    def numbered(changes: ChangePoints) -> ChangePoints:
        number = input_number(changes.dimension, schema.n_features, schema.input_names)
        for column, (name, inputs) in zip(schema.columns.columns, schema.groups, strict=True):
            if column.had_missing and number in inputs:
                raise InputError(
                    f"the column {name!r} orders the rows and has missing values; remove such rows, or use missing='drop'"
                )
        return replace(changes, dimension=number)

    structure = config.structure
    if isinstance(structure, ChangePoints):
        structure = numbered(structure)
    elif isinstance(structure, str):
        numbered(ChangePoints())
    else:
        structure = map_changes(structure, numbered)
    CHANGE_POINTS.refuse_given(
        {
            "a list of kernels": isinstance(config.kernel, tuple),
            "executor": not isinstance(config.executor, LocalExecutor),
            "checkpoint": config.checkpoint is not None,
            "weights='uniform'": config.weights == "uniform",
            "output_warp": config.output_warp not in (None, "auto"),
            "noise": rows.noise is not None,
            "sample_weight": rows.weights is not None,
        }
    )
    return replace(config, structure=structure)
