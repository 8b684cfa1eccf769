"""How a fitted estimator is stored: parameters of the constructor, training rows, scaling, model, search and scores.

A file holds the training rows as given and nothing that can be computed again from them: leaves are conditioned on
reading, unless their factors were written too. A field that a later version adds is optional, so that older files stay
readable; only where the meaning of a field changes does :data:`dsmgp._util.archive.FORMAT` grow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dsmgp._util.archive import ModelFileError, read_archive, write_archive
from dsmgp._util.arrays import Array, Index
from dsmgp._util.dates import Dates
from dsmgp._util.validation import LARGEST, check_finite
from dsmgp._util.warnings import warn_user
from dsmgp.changepoints.model import ChangePointModel
from dsmgp.data.frames import OUTPUTS
from dsmgp.data.input_schema import InputSchema
from dsmgp.data.schema import ColumnSchema
from dsmgp.fitting.config import check_parameters
from dsmgp.fitting.optimize import SearchRecord, SearchResult
from dsmgp.fitting.state import FittedState, TrainingRows
from dsmgp.gp.coordinates import Coordinates, InputWarp
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.scaling import InputScaling, OutputScaling
from dsmgp.persistence import checks
from dsmgp.persistence.changepoints import read_changepoints, write_changepoints
from dsmgp.persistence.mixture import read_mixture, write_mixture
from dsmgp.persistence.model_path import model_file
from dsmgp.persistence.output_warps import OUTPUT_WARPS, latents_in_range
from dsmgp.persistence.parameters import read_parameters, write_parameters
from dsmgp.persistence.processes import FAMILIES, OwnModules, read_families
from dsmgp.persistence.record import (
    ArrayField,
    Entry,
    Items,
    Length,
    Part,
    Record,
    Section,
    refused,
)

__all__ = ["read_model", "write_model"]

# Training rows and scaling


def _make_rows(X: Array, Y: Array, noise: Array | None, ids: Index | None, next_id: int) -> Any:
    if X.size == 0 or Y.size == 0:
        raise ValueError("there are none")
    check_finite(X, "X")
    check_finite(Y, "y")
    ids = np.arange(len(X)) if ids is None else ids
    if ids[0] < 0 or (np.diff(ids) <= 0).any() or next_id <= ids[-1]:
        raise ValueError("they are not numbered in their order")
    return TrainingRows(X, Y, noise, ids, next_id)


ROWS = Record(
    "training rows",
    _make_rows,
    {
        "X": ArrayField("X", ("rows", "inputs")),
        "Y": ArrayField("Y", ("rows", "outputs")),
        "noise": ArrayField("noise", ("rows", "outputs"), checks.NOT_NEGATIVE, optional=True),
        "ids": ArrayField("ids", ("rows",), optional=True, dtype=np.int64),
        "next_id": Entry("changes.following", checks.count()),
    },
    # They are 0, 1, 2, ... as long as no row was forgotten.
    values={"ids": lambda rows: None if rows.next_id == len(rows) else rows.ids},
)
INPUT_WARP = Record(
    "input warp",
    InputWarp,
    {name: ArrayField(name, (None,)) for name in ("knots", "values", "slopes", "tails")},
    check=lambda warp: (
        len({len(warp.knots), len(warp.values), len(warp.slopes)}) == 1
        and len(warp.knots) > 1
        and all((np.diff(each) > 0).all() for each in (warp.knots, warp.values))
        and (warp.slopes > 0).all()
        and len(warp.tails) == 2
        and (warp.tails > 0).all()
    ),
)


def _is_valid(coordinates: Coordinates) -> bool:
    n_features = len(coordinates.columns)
    return bool(
        n_features == len(coordinates.warps) > 0
        and (coordinates.columns < coordinates.n_inputs).all()
        and (coordinates.metric is None or len(coordinates.metric) == n_features)
    )


COORDINATES = Record(
    "coordinates",
    lambda columns, warps, **fields: Coordinates(
        columns=np.array(columns, dtype=np.int64), warps=tuple(warps), **fields
    ),
    {
        "n_inputs": Length("inputs"),
        "columns": Entry("columns", checks.list_of(checks.count()), encode=np.ndarray.tolist),
        "warps": Items("warps", INPUT_WARP, prefix="warp.", optional=True),
        "metric": ArrayField("metric", (None, "coordinates"), optional=True),
    },
    check=_is_valid,
)
INPUT_SCALING = Record(
    "scaling parameters",
    InputScaling,
    {
        "centre": ArrayField("inputs.centre", ("coordinates",)),
        "scale": ArrayField("inputs.scale", ("coordinates",), checks.POSITIVE),
        "coordinates": Part("coordinates", COORDINATES, prefix="coordinates.", optional=True),
    },
)
OUTPUT_SCALING = Record(
    "scaling parameters",
    OutputScaling,
    {
        "centre": ArrayField("outputs.centre", ("outputs",)),
        "loading": ArrayField("outputs.loading", ("outputs", "outputs")),
        "warps": OUTPUT_WARPS,
    },
    check=lambda outputs: math.isfinite(outputs.log_det) and latents_in_range(outputs),
)


# Names and dates of columns, search and scores


def _names(size: str) -> Entry:
    names = checks.list_of(checks.TEXT)
    key = {"inputs": "feature_names", "outputs": "target_names"}[size]
    return Entry(key, names, optional=True, size=size, encode=lambda names: list(map(str, names)))


def _make_schema(n_features: int, dates: dict[str, str], table: Any, **fields: Any) -> InputSchema:
    columns = {str(k): k for k in range(n_features)}
    if not dates.keys() <= columns.keys():
        raise ValueError("there are dates in columns that it does not have")
    origins = {columns[k]: np.datetime64(text, "us") for k, text in dates.items()}
    if any(np.isnat(origin) for origin in origins.values()):
        raise ValueError("a date is missing")
    by_column = {k: Dates(origin) for k, origin in origins.items()}
    fields |= {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
    columns_of_file = None if table is None else ColumnSchema.from_dict(table)
    return InputSchema(n_features=n_features, dates=by_column, table=columns_of_file, **fields)


SCHEMA = Record(
    "columns",
    _make_schema,
    {
        "n_features": Length("inputs"),
        "n_outputs": Length("outputs"),
        "single_output": Entry("squeeze", checks.BOOLEAN),
        "feature_names": _names("inputs"),
        "target_names": _names("outputs"),
        "table": Entry("table", checks.OBJECT, optional=True, encode=ColumnSchema.to_dict),
        "dates": Entry("dates", checks.values_of(checks.TEXT)),
    },
    check=lambda schema: (
        (schema.n_outputs == 1 or not schema.single_output)
        and (schema.table is None or len(schema.table.input_names) == schema.n_features)
    ),
    values={"dates": lambda schema: {str(k): str(d.origin) for k, d in schema.dates.items()}},
)
SEARCH_RESULT = Record(
    "search results",
    lambda path, **fields: SearchResult(**fields, path=path.tolist()),
    {
        "theta": ArrayField("theta", (None,)),
        "objective": Entry("objective", checks.NUMBER, encode=float),
        "n_iterations": Entry("n_iterations", checks.count(), encode=int),
        "n_evaluations": Entry("n_evaluations", checks.count(), encode=int),
        # Minus infinity where a leaf could not be factorised.
        "path": ArrayField("path", (None,), finite=False),
    },
)
SEARCH = Record(
    "search results",
    lambda results, **fields: SearchRecord(tuple(results), **fields),
    {
        "results": Items("learned", SEARCH_RESULT, prefix="learned."),
        "kernel_scores": Entry("scores.kernels", checks.values_of(checks.NUMBER), optional=True),
        "n_evaluations": Entry("scores.n_evaluations", checks.count()),
        "gains": Entry("scores.gains", checks.values_of(checks.NUMBER), optional=True),
    },
)
# Models with change points have no leave-one-out scores; JSON has no NaN.
SCORES = Record(
    "scores",
    lambda **scores: tuple(math.nan if score is None else score for score in scores.values()),
    {
        "loo": Entry("scores.loo", checks.number(), optional=True),
        "new_inputs": Entry("scores.loo_new_inputs", checks.number(), optional=True),
    },
    values={
        "loo": lambda scores: scores[0] if math.isfinite(scores[0]) else None,
        "new_inputs": lambda scores: scores[1] if math.isfinite(scores[1]) else None,
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
FORMER_DEFAULTS = {"input_warp": None, "output_warp": None, "metric": "diagonal"}


# Writing and reading


def write_model(
    path: str | Path,
    parameters: Mapping[str, Any],
    state: FittedState,
    output: str,
    include_factors: bool = False,
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
    include_factors, own_modules : bool
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
        if include_factors:
            raise ModelFileError(
                "the factors of segments are made again when a file is read; leave include_factors out"
            )
        write_changepoints(model, state.rows, section)
    else:
        target = write_mixture(state.mixture, state.rows, target, include_factors, section)
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
        scaling = _read_scaling(section, rows)
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
        return made, state, OUTPUT.read(section) or "default"


def _read_scaling(section: Section, rows: TrainingRows) -> tuple[InputScaling, OutputScaling]:
    """Read the scaling, under which the rows must stay in range."""
    inputs, outputs = INPUT_SCALING.read(section), OUTPUT_SCALING.read(section)
    n_inputs, coordinates = rows.X.shape[1], inputs.coordinates
    if inputs.n_coordinates != (n_inputs if coordinates is None else coordinates.n_coordinates):
        raise ModelFileError("it has invalid scaling parameters")
    with refused("scaling parameters"):
        check_finite(outputs.loading, "the scaling of y")
    with np.errstate(all="ignore"):
        scaled = inputs.to_experts(rows.X), outputs.to_experts(rows.Y)
    if not all((np.abs(table) < LARGEST).all() for table in scaled):
        raise ModelFileError("it has invalid scaling parameters")
    return inputs, outputs


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
