"""How what a fit found is stored: scaling, families, model and search of a hypothesis, and of the alternatives of a stacked fit.

The heaviest hypothesis, in most fits the only one, lies at the top of the file. Each alternative has a section of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from dsmgp._util.archive import ModelFileError
from dsmgp.changepoints.model import ChangePointModel
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.outside.edges import with_edges
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.mixture.fitted_model import supports
from dsmgp.mixture.weights.stacking import Stacking
from dsmgp.persistence import checks
from dsmgp.persistence.changepoints import read_changepoints, write_changepoints
from dsmgp.persistence.mixture import read_mixture, write_mixture
from dsmgp.persistence.processes import FAMILIES, read_families
from dsmgp.persistence.record import ArrayField, Entry, Part, Record, Section
from dsmgp.persistence.scaling import INPUT_SCALING, OUTPUT_SCALING, read_scaling
from dsmgp.persistence.search import SCORES, SEARCH

__all__ = ["read_alternatives", "read_hypothesis", "write_alternatives", "write_hypothesis"]

# Where the alternatives are: a list in the header, and arrays by number.
ALTERNATIVES, PREFIX = "alternatives", "alternative."

STACKING = Record(
    "weights of hypotheses",
    lambda names, weights, score, at_new_inputs, log_prior: Stacking(
        names, weights, (score, at_new_inputs), log_prior
    ),
    {
        "names": Entry(checks.list_of(checks.TEXT)),
        "weights": Entry(checks.array_of(checks.POSITIVE_NUMBER)),
        "score": Entry(checks.number()),
        "at_new_inputs": Entry(checks.number(), "score_new_inputs"),
        "log_prior": Entry(checks.array_of(checks.number()), optional=True),
    },
    check=lambda stacking: (
        len(stacking.names) == len(stacking.weights) > 0
        and (stacking.log_prior is None or len(stacking.log_prior) == len(stacking.weights))
        and abs(stacking.weights.sum() - 1.0) <= 1e-9
    ),
    values={
        "score": lambda stacking: stacking.scores[0],
        "at_new_inputs": lambda stacking: stacking.scores[1],
    },
)
STACKED = Part(STACKING, "stacking", optional=True)
# Fields of a fitted state that belong to a hypothesis, besides its model.
SEARCHED = Record(
    "search results",
    dict,
    {
        "search": SEARCH,
        "scores": SCORES,
        "partition_sizes": ArrayField(("leaves",), dtype=np.int64, array_name="leaf.most_rows"),
    },
)


def write_hypothesis(state: FittedState, path: Path, section: Section) -> Path:
    """Write the model of a state and how it was found; return where the file goes, see :func:`write_mixture`."""
    INPUT_SCALING.write(state.model.inputs, section)
    OUTPUT_SCALING.write(state.model.outputs, section)
    FAMILIES.write(state.model.families, section)
    SEARCHED.write(state, section)
    if state.model.has_change_points:
        write_changepoints(cast(ChangePointModel, state.model), state.rows, section)
        return path
    return write_mixture(state.mixture, state.rows, path, section)


def read_hypothesis(
    section: Section, config: FitConfig, rows: TrainingRows, schema: InputSchema, folder: Path
) -> dict[str, Any]:
    """Return the fields of a :class:`FittedState` that belong to a hypothesis."""
    scaling = read_scaling(section, rows)
    families = read_families(section)
    model: Any
    if "breaks" in section.header:
        model = read_changepoints(section, config, rows, families, scaling)
    else:
        model = read_mixture(section, config, rows, families, scaling, folder)
    if model.edges is None:  # in files of earlier versions, and of change points
        model = with_edges(model, rows.X, schema.columns.measured_inputs)
    searched = SEARCHED.read(section)
    if any(map(math.isnan, searched["scores"])) and supports(model, "loo_score_"):
        raise ModelFileError("it lacks 'scores.loo' or 'scores.loo_new_inputs'")
    return {"model": model, **searched}


def write_alternatives(state: FittedState, section: Section) -> None:
    """Write weights and alternatives, if hypotheses were stacked."""
    if state.stacking is None:
        return
    STACKED.write(state.stacking, section)
    headers: list[dict[str, Any]] = [{} for _ in state.alternatives]
    for own, alternative in zip(_sections(section, headers), state.alternatives, strict=True):
        write_hypothesis(alternative, Path(), own)
    section.header[ALTERNATIVES] = headers


def read_alternatives(state: FittedState, config: FitConfig, section: Section) -> FittedState:
    """Return the state with the weights and alternatives of a file; the same state if it has none."""
    stacking = STACKED.read(section)
    if stacking is None:
        return state
    headers = section.entry(ALTERNATIVES, checks.list_of(checks.OBJECT))
    if len(headers) != len(stacking.weights) - 1:
        raise ModelFileError(
            f"its {ALTERNATIVES!r} has {len(headers)} entries, expected {len(stacking.weights) - 1}"
        )
    alternatives = [
        replace(
            state,
            metric_ids=None,
            **read_hypothesis(own, config, state.rows, state.schema, Path()),
        )
        for own in _sections(section, headers)
    ]
    outputs = state.model.outputs
    for alternative in alternatives:
        own = alternative.model.outputs
        if alternative.model.has_change_points:
            raise ModelFileError("its hypotheses have change points")
        # Only a warp makes the latent outputs, and their scaling, differ.
        if not (own.warps or outputs.warps) and not (
            np.array_equal(own.centre, outputs.centre)
            and np.array_equal(own.loading, outputs.loading)
        ):
            raise ModelFileError("its hypotheses differ in the scaling of y")
    return replace(state, alternatives=tuple(alternatives), stacking=stacking)


def _sections(section: Section, headers: Sequence[dict[str, Any]]) -> list[Section]:
    """Return the section of each alternative; they share the rows and nothing else."""
    shared: tuple[str, ...] = ("rows", "inputs", "outputs")
    sizes = {name: section.sizes[name] for name in shared if name in section.sizes}
    return [
        section.inner(header, f"{ALTERNATIVES}.{k}", f"{PREFIX}{k}.", dict(sizes))
        for k, header in enumerate(headers)
    ]
