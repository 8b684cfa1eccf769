"""How a fitted estimator is stored: parameters of the constructor, training rows, scaling, model, search and scores.

A file holds the training rows as given and nothing that can be computed again from them: leaves are conditioned on
reading, unless their factors were written too. A field that a later version adds is optional, so that older files stay
readable; only where the meaning of a field changes does :data:`dsmgp._util.archive.FORMAT` grow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dsmgp._util.archive import ModelFileError, read_archive, write_archive
from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_finite
from dsmgp._util.warnings import warn_user
from dsmgp.data.columns.schema import Column, ColumnSchema, input_names, output_names
from dsmgp.data.frames import OUTPUTS
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.config import GPU, check_device, check_parameters
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.persistence import checks
from dsmgp.persistence.hypotheses import (
    read_alternatives,
    read_hypothesis,
    write_alternatives,
    write_hypothesis,
)
from dsmgp.persistence.mixture import remove_forgotten_rows
from dsmgp.persistence.model_path import model_file
from dsmgp.persistence.parameters import read_parameters, write_parameters
from dsmgp.persistence.processes import OwnModules
from dsmgp.persistence.record import (
    ArrayField,
    Entry,
    Length,
    Record,
    Section,
    refused,
)

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
        raise InputError("there are none")
    check_finite(X, "X")
    check_finite(Y, "y")
    ids = np.arange(len(X)) if ids is None else ids
    if ids[0] < 0 or (np.diff(ids) <= 0).any() or next_id <= ids[-1]:
        raise InputError("they are not numbered in their order")
    return TrainingRows(X, Y, noise, weights, ids, next_id)


ROWS = Record(
    "training rows",
    _make_rows,
    {
        "X": ArrayField(("rows", "inputs")),
        "Y": ArrayField(("rows", "outputs")),
        "noise": ArrayField(("rows", "outputs"), checks.NOT_NEGATIVE, optional=True),
        "weights": ArrayField(("rows",), checks.POSITIVE, array_name="row_weights", optional=True),
        "ids": ArrayField(("rows",), optional=True, dtype=np.int64),
        "next_id": Entry(checks.count(), "changes.following"),
    },
    # They are 0, 1, 2, ... as long as no row was forgotten, or had no weight.
    values={"ids": lambda rows: None if rows.next_id == len(rows) else rows.ids},
)


# Columns of the table


def _make_schema(
    n_inputs: int,
    feature_names: tuple[str, ...] | None,
    target_names: tuple[str, ...] | None,
    table: Any,
    dates: dict[str, str] | None,
    remarks: tuple[str, ...] | None,
    **fields: Any,
) -> InputSchema:
    targets = output_names(target_names, fields["n_outputs"], fields["single_output"])
    if table is None:  # a file of an earlier version, fitted to an array or a frame
        if feature_names is not None and len(feature_names) != n_inputs:
            raise InputError("feature_names do not fit the inputs")
        columns = _former_columns(input_names(feature_names, n_inputs), dates or {}, targets)
    else:
        columns = ColumnSchema.from_dict(table)
        if (
            dates is not None
        ):  # of an earlier version, fitted to a file: the names were those of the inputs
            feature_names = tuple(column.name for column in columns.columns)
    if len(columns.input_names) != n_inputs:
        raise InputError("its columns and inputs do not agree")
    schema = InputSchema(
        columns=columns,
        feature_names=feature_names,
        target_names=target_names,
        remarks=remarks or (),
        **fields,
    )
    if not {column.name for column in columns.columns} <= set(schema.column_names):
        raise InputError("feature_names lack a column of the table")
    return schema


def _former_columns(
    names: Sequence[str], dates: dict[str, str], targets: Sequence[str]
) -> ColumnSchema:
    """Return numbers and dates as earlier versions stored them: by number the first moment of each column of dates."""
    columns = [Column(name, "number") for name in names]
    for key, text in dates.items():
        if key not in map(str, range(len(names))):
            raise InputError("it lists dates in columns that do not exist")
        origin = np.datetime64(text, "us")
        if np.isnat(origin):
            raise InputError("a date is missing")
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
        "single_output": Entry(checks.BOOLEAN, "squeeze"),
        "feature_names": Entry(NAMES, optional=True),
        "target_names": Entry(NAMES, optional=True, size="outputs"),
        "table": Entry(checks.OBJECT, optional=True),
        "dates": Entry(checks.values_of(checks.TEXT), optional=True),
        "remarks": Entry(NAMES, optional=True),
        "n_array_columns": Entry(checks.count(), optional=True),
    },
    check=lambda schema: schema.n_outputs == 1 or not schema.single_output,
    values={
        "n_inputs": lambda schema: schema.n_features,
        "table": lambda schema: schema.columns.to_dict(),
        "dates": lambda schema: None,
    },
)
# All of a fitted state but its rows and what a hypothesis has of its own.
STATE = Record(
    "state",
    dict,
    {
        "schema": SCHEMA,
        "local_scale": Entry(checks.BOOLEAN, "changes.local_scale"),
        "n_fitted": Entry(checks.count(1), "changes.n_fitted"),
        "n_changed": Entry(checks.count(), "changes.n_changed"),
        "n_reviewed": Entry(checks.count(), "changes.n_reviewed"),
        "metric_ids": ArrayField((None,), optional=True, dtype=np.int64),
    },
)


# In files of early versions it is missing.
OUTPUT = Entry(checks.one_of(*OUTPUTS), "output", optional=True)


# Parameters that older files lack, where what they did then is not what their default does.
FORMER_DEFAULTS = {
    "input_warp": None,
    "output_warp": None,
    "metric": "diagonal",
    "missing": "error",
    "mean": "zero",
    "hypotheses": None,
    "boosted_trees": None,
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
    section = Section(context=OwnModules(own_modules))
    is_named = all(isinstance(p, NamedProcess) for f in state.model.families for p in f.processes)
    # The version of torch matters only where GPyTorch's modules are stored.
    torch = None if is_named else version("torch")
    section.header |= {"dsmgp": version("dsmgp"), "torch": torch}
    write_parameters(parameters, section)
    OUTPUT.write(output, section)
    section.header["units"] = _units(state.model.inputs, state.model.outputs)
    ROWS.write(state.rows, section)
    STATE.write(state, section)
    target = write_hypothesis(state, Path(path), section)
    write_alternatives(state, section)
    write_archive(target, section.header, section.arrays)
    if state.model.has_rows_in_files:
        remove_forgotten_rows(state.mixture, Path(path))


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
        stored = STATE.read(section)
        found = read_hypothesis(section, config, rows, stored["schema"], path.parent)
        modules.refuse_unused()
        state = read_alternatives(FittedState(rows=rows, **stored, **found), config, section)
        return made, state, OUTPUT.read(section) or "default"


def _units(inputs: InputScaling, outputs: OutputScaling) -> dict[str, dict[str, list[float]]]:
    """Centre and scale of inputs and outputs, for readers of the header; a model takes them from arrays."""
    scale = np.sqrt(np.square(outputs.loading).sum(axis=1))
    return {
        "inputs": {"centre": inputs.centre.tolist(), "scale": inputs.scale.tolist()},
        "outputs": {"centre": outputs.centre.tolist(), "scale": scale.tolist()},
    }


def _use_available_device(estimator: Any) -> None:
    """Let a model that was fitted on a device which is missing here use another."""
    if not re.fullmatch(GPU, str(estimator.device)):
        return
    try:
        check_device(estimator.device)
    except (ValueError, ImportError):  # without a GPU, or without torch
        warn_user(
            f"the model was fitted on {estimator.device!r}, which this machine lacks: it predicts on another device",
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
