"""How the scaling of inputs and outputs is stored: coordinates, warps, centres and scales."""

from __future__ import annotations

import math

import numpy as np

from dsmgp._util.archive import ModelFileError
from dsmgp._util.constants import LARGEST
from dsmgp._util.validation import check_finite
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.gp.transforms.boosted_trees import BoostedTrees
from dsmgp.gp.transforms.coordinates import Coordinates, InputWarp
from dsmgp.gp.transforms.network import Layer, Network
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.persistence import checks
from dsmgp.persistence.output_warps import OUTPUT_WARPS, latents_in_range
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
from dsmgp.tree.routing import Cuts

__all__ = ["INPUT_SCALING", "OUTPUT_SCALING", "read_scaling"]

INPUT_WARP = Record(
    "input warp",
    InputWarp,
    {name: ArrayField((None,)) for name in ("knots", "values", "slopes", "tails")},
    check=lambda warp: (
        len({len(warp.knots), len(warp.values), len(warp.slopes)}) == 1
        and len(warp.knots) > 1
        and all((np.diff(each) > 0).all() for each in (warp.knots, warp.values))
        and (warp.slopes > 0).all()
        and len(warp.tails) == 2
        and (warp.tails > 0).all()
    ),
)


LAYER = Record(
    "layer of a network",
    Layer,
    {"weights": ArrayField((None, None)), "biases": ArrayField((None,))},
    check=lambda layer: layer.weights.shape[1] == len(layer.biases) > 0,
)


def _fit_together(network: Network) -> bool:
    """Whether layers take as many inputs as those before have outputs."""
    widths = [len(network.slopes), *(len(layer.biases) for layer in network.layers)]
    n_inputs = [len(layer.weights) for layer in network.layers]
    return n_inputs == widths[:-1] and network.slopes.shape[1] == widths[-1]


NETWORK = Record(
    "network",
    Network,
    {"layers": Items(LAYER, prefix="layer."), "slopes": ArrayField((None, None))},
    check=_fit_together,
)


CUTS = Record(
    "cuts of boosted trees",
    Cuts,
    {
        "dimension": ArrayField((None,), checks.NOT_NEGATIVE, np.int64),
        "split": ArrayField((None,), finite=False),
        "below": ArrayField((None,), dtype=np.int64),
        "above": ArrayField((None,), dtype=np.int64),
    },
)


def _can_be_descended(trees: BoostedTrees) -> bool:
    """Whether every path ends, and arrays fit together: compiled code follows them unchecked."""
    cuts, n = trees.cuts, len(trees.value)
    here = np.arange(n)
    if not all(len(each) == n for each in vars(cuts).values()):
        return False
    ends = cuts.below == here
    onwards = ~ends & (cuts.below > here) & (cuts.above > here)
    return bool(
        (ends == (cuts.above == here)).all()
        and (ends | onwards).all()
        and (np.maximum(cuts.below, cuts.above) < n).all()
        and not np.isnan(cuts.split).any()
        and np.isposinf(cuts.split[ends]).all()
        and trees.roots.size > 0
        and ((trees.roots >= 0) & (trees.roots < n)).all()
        and trees.baseline.shape == trees.roots.shape[:2]
        and trees.lines.shape == (*trees.baseline.shape, len(trees.columns))
        and trees.slopes.shape[1] == trees.n_outputs
        and (np.diff(trees.seen) > 0).all()
    )


BOOSTED_TREES = Record(
    "boosted trees",
    BoostedTrees,
    {
        "cuts": CUTS,
        "value": ArrayField((None,)),
        "roots": ArrayField((None, None, None), dtype=np.int64),
        "lines": ArrayField((None, None, None)),
        "baseline": ArrayField((None, None)),
        "columns": ArrayField((None,), dtype=np.int64),
        "keys": ArrayField((None,), checks.NOT_NEGATIVE, dtype=np.int64),
        "seen": ArrayField((None,), dtype=np.int64),
        "slopes": ArrayField((None, None)),
    },
    check=_can_be_descended,
)


def _is_valid(coordinates: Coordinates) -> bool:
    n_features = len(coordinates.columns)
    return bool(
        n_features == len(coordinates.warps) > 0
        and (coordinates.columns < coordinates.n_inputs).all()
        and (coordinates.metric is None or len(coordinates.metric) == n_features)
        and (coordinates.network is None or len(coordinates.network.slopes) == coordinates.n_linear)
        and (coordinates.trees is None or _fits(coordinates.trees, coordinates.n_inputs))
    )


def _fits(trees: BoostedTrees, n_inputs: int) -> bool:
    return bool(
        len(trees.slopes) == n_inputs
        and (trees.cuts.dimension < n_inputs).all()
        and np.array_equal(np.sort(trees.columns), np.arange(n_inputs))
        and (trees.keys < n_inputs).all()
    )


COORDINATES = Record(
    "coordinates",
    Coordinates,
    {
        "n_inputs": Length("inputs"),
        "columns": Entry(checks.array_of(checks.count())),
        "warps": Items(INPUT_WARP, prefix="warp.", nullable=True),
        "metric": ArrayField((None, None), optional=True),
        "network": Part(NETWORK, prefix="network.", optional=True),
        "trees": Part(BOOSTED_TREES, prefix="trees.", optional=True),
    },
    check=_is_valid,
)
INPUT_SCALING = Record(
    "scaling parameters",
    InputScaling,
    {
        "centre": ArrayField(("coordinates",), array_name="inputs.centre"),
        "scale": ArrayField(("coordinates",), checks.POSITIVE, array_name="inputs.scale"),
        "coordinates": Part(COORDINATES, optional=True),
    },
)
OUTPUT_SCALING = Record(
    "scaling parameters",
    OutputScaling,
    {
        "centre": ArrayField(("outputs",), array_name="outputs.centre"),
        "loading": ArrayField(("outputs", "outputs"), array_name="outputs.loading"),
        "warps": OUTPUT_WARPS,
    },
    check=lambda outputs: math.isfinite(outputs.log_det) and latents_in_range(outputs),
)


def read_scaling(section: Section, rows: TrainingRows) -> tuple[InputScaling, OutputScaling]:
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
