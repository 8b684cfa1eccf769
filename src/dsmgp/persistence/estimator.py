"""How a fitted estimator is stored: parameters of the constructor, training rows, scaling, model, search and scores.

A file holds the training rows as given and nothing that can be computed again from them: leaves are conditioned on
reading, unless their factors were written too. A field that a later version adds is optional, so that older files stay
readable; only where the meaning of a field changes does :data:`dsmgp._util.archive.FORMAT` grow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dsmgp._util.archive import ModelFileError, read_archive, write_archive
from dsmgp._util.arrays import Array, Index
from dsmgp._util.validation import check_finite
from dsmgp._util.warnings import warn_user
from dsmgp.changepoints.model import ChangePointModel
from dsmgp.data.columns.schema import Column, ColumnSchema, input_names, output_names
from dsmgp.data.frames import OUTPUTS
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.config import check_parameters
from dsmgp.fitting.edges import with_edges
from dsmgp.fitting.state import FittedState
from dsmgp.fitting.training_rows import TrainingRows
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.scaling import InputScaling, OutputScaling
from dsmgp.persistence import checks
from dsmgp.persistence.changepoints import read_changepoints, write_changepoints
from dsmgp.persistence.hypotheses import read_hypotheses, write_hypotheses
from dsmgp.persistence.mixture import read_mixture, write_mixture
from dsmgp.persistence.model_path import model_file
from dsmgp.persistence.parameters import read_parameters, write_parameters
from dsmgp.persistence.processes import FAMILIES, OwnModules, read_families
from dsmgp.persistence.record import (
    ArrayField,
    Entry,
    Length,
    Record,
    Section,
    refused,
)
from dsmgp.persistence.scaling import INPUT_SCALING, OUTPUT_SCALING, read_scaling
from dsmgp.persistence.search import SCORES, SEARCH

__all__ = ["read_model", "write_model"]

# Training rows


def _make_rows(
    X: Array,
    Y: Array,
    noise: Array | None,
    weights: Array | None,
    ids: Index | None,
    next_id: int,
) -> Any:
    if X.size == 0 or Y.size == 0:
        raise ValueError("there are none")
    check_finite(X, "X")
    check_finite(Y, "y")
    ids = np.arange(len(X)) if ids is None else ids
    if ids[0] < 0 or (np.diff(ids) <= 0).any() or next_id <= ids[-1]:
        raise ValueError("they are not numbered in their order")
    return TrainingRows(X, Y, noise, weights, ids, next_id)


ROWS = Record(
    "training rows",
    _make_rows,
    {
        "X": ArrayField("X", ("rows", "inputs")),
        "Y": ArrayField("Y", ("rows", "outputs")),
        "noise": ArrayField("noise", ("rows", "outputs"), checks.NOT_NEGATIVE, optional=True),
        "weights": ArrayField("row_weights", ("rows",), checks.POSITIVE, optional=True),
        "ids": ArrayField("ids", ("rows",), optional=True, dtype=np.int64),
        "next_id": Entry("changes.following", checks.count()),
    },
    # They are 0, 1, 2, ... as long as no row was forgotten, or had no weight.
    values={"ids": lambda rows: None if rows.next_id == len(rows) else rows.ids},
)


# Columns of the table


def _make_schema(
    n_inputs: int,
    feature_names: list[str] | None,
    target_names: list[str] | None,
    table: Any,
    dates: dict[str, str] | None,
    remarks: list[str] | None,
    **fields: Any,
) -> InputSchema:
    targets = output_names(target_names, fields["n_outputs"], fields["single_output"])
    if table is None:  # a file of an earlier version, fitted to an array or a frame
        if feature_names is not None and len(feature_names) != n_inputs:
            raise ValueError("feature_names do not fit the inputs")
        columns = _former_columns(input_names(feature_names, n_inputs), dates or {}, targets)
    else:
        columns = ColumnSchema.from_dict(table)
        if (
            dates is not None
        ):  # of an earlier version, fitted to a file: the names were those of the inputs
            feature_names = [column.name for column in columns.columns]
    if len(columns.input_names) != n_inputs:
        raise ValueError("the columns of its table do not make its inputs")
    schema = InputSchema(
        columns=columns,
        feature_names=None if feature_names is None else tuple(feature_names),
        target_names=None if target_names is None else tuple(target_names),
        remarks=tuple(remarks or ()),
        **fields,
    )
    if not {column.name for column in columns.columns} <= set(schema.column_names):
        raise ValueError("feature_names lack a column of the table")
    return schema


def _former_columns(
    names: list[str], dates: dict[str, str], targets: Sequence[str]
) -> ColumnSchema:
    """Return numbers and dates as earlier versions stored them: by number the first moment of each column of dates."""
    columns = [Column(name, "number") for name in names]
    for key, text in dates.items():
        if key not in map(str, range(len(names))):
            raise ValueError("there are dates in columns that it does not have")
        origin = np.datetime64(text, "us")
        if np.isnat(origin):
            raise ValueError("a date is missing")
        number = int(key)
        columns[number] = Column(names[number], "date", origin=int(origin.astype(np.int64)))
    return ColumnSchema(tuple(columns), tuple(targets))


NAMES = checks.list_of(checks.TEXT)
SCHEMA = Record(
    "columns",
    _make_schema,
    {
        "n_inputs": Length("inputs"),
        "n_outputs": Length("outputs"),
        "single_output": Entry("squeeze", checks.BOOLEAN),
        "feature_names": Entry("feature_names", NAMES, optional=True, encode=list),
        "target_names": Entry("target_names", NAMES, optional=True, size="outputs", encode=list),
        "table": Entry("table", checks.OBJECT, optional=True, encode=ColumnSchema.to_dict),
        "dates": Entry("dates", checks.values_of(checks.TEXT), optional=True),
        "remarks": Entry("remarks", NAMES, optional=True, encode=list),
        "n_array_columns": Entry("n_array_columns", checks.count(), optional=True),
    },
    check=lambda schema: schema.n_outputs == 1 or not schema.single_output,
    values={
        "n_inputs": lambda schema: schema.n_features,
        "table": lambda schema: schema.columns,
        "dates": lambda schema: None,
    },
)
#: All of a :class:`FittedState` but the model and its rows.
STATE = Record(
    "state",
    dict,
    {
        "schema": SCHEMA,
        "search": SEARCH,
        "scores": SCORES,
        "local_scale": Entry("changes.local_scale", checks.BOOLEAN, encode=bool),
        "n_fitted": Entry("changes.n_fitted", checks.count(1), encode=int),
        "n_changed": Entry("changes.n_changed", checks.count(), encode=int),
        "n_reviewed": Entry("changes.n_reviewed", checks.count(), encode=int),
        "metric_ids": ArrayField("metric_ids", (None,), optional=True, dtype=np.int64),
        "partition_sizes": ArrayField("leaf.most_rows", ("leaves",), dtype=np.int64),
    },
)


# In files of early versions it is missing.
OUTPUT = Entry("output", checks.one_of(*OUTPUTS), optional=True)


# Parameters that older files lack, where what they did then is not what their default does.
FORMER_DEFAULTS = {
    "input_warp": None,
    "output_warp": None,
    "metric": "diagonal",
    "missing": "error",
    "mean": "zero",
    "hypotheses": None,
}


# Writing and reading


def write_model(
    path: str | Path,
    parameters: Mapping[str, Any],
    state: FittedState,
    output: str,
    own_modules: bool = False,
) -> None:
    """Write a fitted estimator as one file, or as a folder if its rows are in files.

    Parameters
    ----------
    path : str or Path
    parameters : dict
        Parameters of the constructor.
    state : FittedState
        With all leaves conditioned on the present rows.
    output : str
        The container of predictions, see :meth:`DSMGPRegressor.set_output`.
    own_modules : bool
        See :meth:`DSMGPRegressor.save`.
    """
    section, model, target = Section(context=OwnModules(own_modules)), state.model, Path(path)
    is_named = all(isinstance(p, NamedProcess) for f in model.families for p in f.processes)
    # The version of torch matters only where GPyTorch's modules are stored.
    torch = None if is_named else version("torch")
    section.header |= {"dsmgp": version("dsmgp"), "torch": torch}
    write_parameters(parameters, section)
    OUTPUT.write(output, section)
    section.put("units", _units(model.inputs, model.outputs))
    ROWS.write(state.rows, section)
    INPUT_SCALING.write(model.inputs, section)
    OUTPUT_SCALING.write(model.outputs, section)
    FAMILIES.write(model.families, section)
    STATE.write(state, section)
    if isinstance(model, ChangePointModel):
        write_changepoints(model, state.rows, section)
    else:
        target = write_mixture(state.mixture, state.rows, target, section)
        write_hypotheses(state, section)
    write_archive(target, section.header, section.arrays)


def read_model(
    estimator: Any, path: str | Path, kernel: Any = None, mean: Any = None
) -> tuple[Any, FittedState, str]:
    """Read a file; return an estimator of a class with its parameters, the fitted state, and the container of predictions."""
    path = model_file(path)
    archive = read_archive(path)
    modules = OwnModules(True, {"kernel": kernel, "mean": mean})
    section = Section(archive.header, dict(archive.arrays), context=modules)
    with _named_in_errors(path.name):
        rows = ROWS.read(section)
        known = estimator().get_params(deep=False)
        made = estimator(**(FORMER_DEFAULTS | read_parameters(known, section)))
        _use_available_device(made)
        with refused("parameters"):
            config = check_parameters(made)
        scaling = read_scaling(section, rows)
        families = read_families(section)
        model: Any
        if "breaks" in section.header:
            model = read_changepoints(section, config, rows, families, scaling)
        else:
            model = read_mixture(section, config, rows, families, scaling, path.parent)
        modules.refuse_unused()
        state = FittedState(model=model, rows=rows, **STATE.read(section))
        if any(map(math.isnan, state.scores or ())) and not isinstance(model, ChangePointModel):
            raise ModelFileError("it lacks 'scores.loo' or 'scores.loo_new_inputs'")
        state = read_hypotheses(_with_ranges(state), config, section)
        return made, state, OUTPUT.read(section) or "default"


def _with_ranges(state: FittedState) -> FittedState:
    """Return a state whose model knows the ranges of its inputs, which files of earlier versions and of change points do not hold."""
    if state.model.edges is not None:
        return state
    model = with_edges(state.model, state.rows.X, state.schema.columns.measured_inputs)
    return replace(state, model=model)


def _units(inputs: InputScaling, outputs: OutputScaling) -> dict[str, dict[str, list[float]]]:
    """Centre and scale of inputs and outputs, for readers of the header; a model takes them from arrays."""
    scale = np.sqrt(np.square(outputs.loading).sum(axis=1))
    return {
        "inputs": {"centre": inputs.centre.tolist(), "scale": inputs.scale.tolist()},
        "outputs": {"centre": outputs.centre.tolist(), "scale": scale.tolist()},
    }


def _use_available_device(estimator: Any) -> None:
    """Let a model that was fitted on a device which is missing here use another."""
    if not re.fullmatch(r"(cuda|mps|xpu)(:\d+)?", str(estimator.device)):
        return
    try:
        check_parameters(estimator)
    except (ValueError, ImportError):  # without a GPU, or without torch
        warn_user(
            f"the model was fitted on {estimator.device!r}, which is not here: it predicts on another device",
            topic="device of a file",
        )
        estimator.set_params(device="auto")


@contextmanager
def _named_in_errors(name: str) -> Iterator[None]:
    """Name the file in errors about its content. Any other error is a fault of the program, and surfaces."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{name} cannot be read: {error}") from error.__cause__
    except MemoryError as error:
        raise ModelFileError(
            f"{name} cannot be read: it needs more memory than there is"
        ) from error
