"""How the hypotheses of a stacked fit are stored: their weights and scores, and a section for the model of each alternative.

Files of other fits have none of it, nor have those of earlier versions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dsmgp._util.archive import ModelFileError
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.edges import with_edges
from dsmgp.fitting.state import FittedState
from dsmgp.mixture.stacking import Stacking
from dsmgp.persistence import checks
from dsmgp.persistence.mixture import read_mixture, write_mixture
from dsmgp.persistence.processes import FAMILIES, read_families
from dsmgp.persistence.record import ArrayField, Entry, Part, Record, Section
from dsmgp.persistence.scaling import INPUT_SCALING, OUTPUT_SCALING, read_scaling
from dsmgp.persistence.search import SCORES, SEARCH

__all__ = ["read_hypotheses", "write_hypotheses"]

# Where the alternatives are: a list in the header, and arrays by number.
ALTERNATIVES, PREFIX = "alternatives", "alternative."

STACKING = Record(
    "weights of hypotheses",
    lambda names, weights, score, at_new_inputs: Stacking(
        tuple(names), np.array(weights, dtype=np.float64), (float(score), float(at_new_inputs))
    ),
    {
        "names": Entry("names", checks.list_of(checks.TEXT), encode=list),
        "weights": Entry(
            "weights", checks.list_of(checks.POSITIVE_NUMBER), encode=np.ndarray.tolist
        ),
        "score": Entry("score", checks.number()),
        "at_new_inputs": Entry("score_new_inputs", checks.number()),
    },
    check=lambda stacking: (
        len(stacking.names) == len(stacking.weights) > 0
        and abs(stacking.weights.sum() - 1.0) <= 1e-9
    ),
    values={
        "score": lambda stacking: stacking.scores[0],
        "at_new_inputs": lambda stacking: stacking.scores[1],
    },
)
STACKED = Part("stacking", STACKING, optional=True)
# What an alternative does not share with the heaviest hypothesis, apart from its model.
ALTERNATIVE = Record(
    "alternatives",
    SimpleNamespace,
    {
        "search": SEARCH,
        "scores": SCORES,
        "partition_sizes": ArrayField("leaf.most_rows", ("leaves",), dtype=np.int64),
    },
)


def write_hypotheses(state: FittedState, section: Section) -> None:
    """Write weights and alternatives, if hypotheses were stacked."""
    if state.stacking is None:
        return
    STACKED.write(state.stacking, section)
    headers = []
    for k, alternative in enumerate(state.alternatives):
        own, model = Section(context=section.context), alternative.mixture
        INPUT_SCALING.write(model.inputs, own)
        OUTPUT_SCALING.write(model.outputs, own)
        FAMILIES.write(model.families, own)
        ALTERNATIVE.write(alternative, own)
        write_mixture(model, state.rows, Path(), own)
        headers.append(own.header)
        section.arrays |= {f"{PREFIX}{k}.{name}": array for name, array in own.arrays.items()}
    section.put(ALTERNATIVES, headers)


def read_hypotheses(state: FittedState, config: FitConfig, section: Section) -> FittedState:
    """Return the state with the weights and alternatives of a file; the same state if it has none."""
    stacking = STACKED.read(section)
    if stacking is None:
        return state
    headers = section.entry(ALTERNATIVES, checks.list_of(checks.OBJECT))
    if len(headers) != len(stacking.weights) - 1:
        raise ModelFileError(
            f"its {ALTERNATIVES!r} has {len(headers)} entries, expected {len(stacking.weights) - 1}"
        )
    alternatives = []
    for k, header in enumerate(headers):
        prefix = f"{PREFIX}{k}."
        own = Section(
            header,
            {n.removeprefix(prefix): a for n, a in section.arrays.items() if n.startswith(prefix)},
            path=f"{ALTERNATIVES}.{k}.",
            sizes={name: section.sizes[name] for name in ("rows", "inputs", "outputs")},
            context=section.context,
        )
        alternatives.append(_read_alternative(state, config, own))
    return replace(state, alternatives=tuple(alternatives), stacking=stacking)


def _read_alternative(state: FittedState, config: FitConfig, section: Section) -> FittedState:
    scaling = read_scaling(section, state.rows)
    outputs, own = state.model.outputs, scaling[1]
    # Only a warp makes the latent outputs, and their scaling, differ.
    if not (own.warps or outputs.warps) and not (
        np.array_equal(own.centre, outputs.centre) and np.array_equal(own.loading, outputs.loading)
    ):
        raise ModelFileError("its hypotheses differ in the scaling of y")
    families = read_families(section)
    model = read_mixture(section, config, state.rows, families, scaling, Path())
    if model.edges is None:  # in a file of an earlier version
        model = with_edges(model, state.rows.X, state.schema.columns.measured_inputs)
    stored = ALTERNATIVE.read(section)
    if any(map(math.isnan, stored.scores)):
        raise ModelFileError("it lacks 'scores.loo' or 'scores.loo_new_inputs'")
    return replace(
        state,
        model=model,
        search=stored.search,
        scores=stored.scores,
        partition_sizes=stored.partition_sizes,
        metric_ids=None,
    )
