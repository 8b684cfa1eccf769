"""How a model with change points is stored: tree, hazards and outliers; its leaves are conditioned again on reading."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np

from dsmgp._util.archive import ModelFileError
from dsmgp.changepoints.leaf import OrderedLeaf, check_memory
from dsmgp.changepoints.model import ChangePointModel
from dsmgp.changepoints.objective import ChangePointObjective
from dsmgp.changepoints.outliers import (
    LEAST_RATIO,
    LEAST_SHARE,
    MOST_RATIO,
    MOST_SHARE,
    Contamination,
    Outliers,
)
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.gp.process import Family
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.linalg.threads import one_thread
from dsmgp.persistence import checks
from dsmgp.persistence.record import ArrayField, Entry, Part, Record, Section, refused
from dsmgp.persistence.tree import read_tree, write_tree
from dsmgp.tree.changepoint_leaf import ChangePointLeaf
from dsmgp.tree.nodes import Leaf, leaves

__all__ = ["read_changepoints", "write_changepoints"]

PROBABILITIES = checks.Check("between 0 and 1", lambda p: bool(((p >= 0) & (p <= 1)).all()))
HAZARD = checks.Check(
    "a number or null", lambda value: value is None or checks.number().holds(value)
)

OUTLIERS = Record(
    "outliers",
    lambda probability, share, ratio: Outliers(probability, Contamination(share, ratio)),
    {
        "probability": ArrayField(("rows",), PROBABILITIES),
        "share": Entry(checks.number(LEAST_SHARE, MOST_SHARE)),
        "ratio": Entry(checks.number(LEAST_RATIO, MOST_RATIO)),
    },
    values={
        "share": lambda outliers: outliers.contamination.share,
        "ratio": lambda outliers: outliers.contamination.ratio,
    },
)
SEGMENTATION = Record(
    "change points",
    SimpleNamespace,
    {
        "hazards": Entry(checks.list_of(HAZARD), size="leaves"),
        "longest": Entry(checks.list_of(checks.count()), size="leaves"),
        "outliers": Part(OUTLIERS, prefix="breaks.outlier_", optional=True),
    },
    values={
        "hazards": lambda model: [gp.hazard for gp in model.segmented_gps],
        "longest": lambda model: [leaf.longest for leaf in model.leaves],
    },
)


def write_changepoints(model: ChangePointModel, rows: TrainingRows, section: Section) -> None:
    """Write the tree and what was learned about changes."""
    inner = section.inner(section.created("breaks"), "breaks")
    write_tree("tree", model.tree, rows.X, inner)
    SEGMENTATION.write(model, inner)


def read_changepoints(
    section: Section,
    config: FitConfig,
    rows: TrainingRows,
    families: list[Family],
    scaling: tuple[InputScaling, OutputScaling],
) -> ChangePointModel:
    """Read a model with change points, and condition its leaves on their rows."""
    inputs, outputs = scaling
    if len(families) != 1:
        raise ModelFileError("it has change points and more than one family of kernels")
    (family,) = families
    inner = section.inner(section.entry("breaks", checks.OBJECT), "breaks")
    tree = read_tree("tree", rows.X, inner)
    tree_leaves = leaves(tree)
    _check_leaves(tree_leaves, rows)
    section.sizes["leaves"] = len(tree_leaves)
    stored = SEGMENTATION.read(inner)
    Z, Y = inputs.to_experts(rows.X), outputs.to_experts(rows.Y)
    with refused("change points"):
        check_memory(tree_leaves, max(stored.longest), config.table_memory)
        ordered = [
            OrderedLeaf(leaf, rows.X, Z, Y, length)
            for leaf, length in zip(tree_leaves, stored.longest, strict=True)
        ]
    for leaf, hazard in zip(ordered, stored.hazards, strict=True):
        _check_hazard(leaf, hazard)
    if any(leaf.changes and leaf.changes.outliers for leaf in ordered) != (
        stored.outliers is not None
    ):
        raise ModelFileError("its outliers do not go with the settings of its change points")
    noise_factor = np.ones_like(Y) if stored.outliers is None else stored.outliers.noise_factor
    objective = ChangePointObjective(tree, ordered, family.processes, noise_factor, stored.hazards)
    with one_thread(), refused("hyperparameters", NotFactorisedError):  # one thread as in the fit
        segmented_gps = objective.condition(0.5 * config.memory)
    model = ChangePointModel(
        tree, family, segmented_gps, inputs, outputs, len(rows.X), stored.outliers
    )
    variance = outputs.variance_to_latent(model.noise[None] * model.contamination.mean)
    if not (math.isfinite(model.log_evidence) and np.isfinite(variance).all()):
        raise ModelFileError("its hyperparameters are out of range")
    return model


def _check_leaves(tree_leaves: list[Leaf], rows: TrainingRows) -> None:
    settings = [leaf.changes for leaf in tree_leaves if isinstance(leaf, ChangePointLeaf)]
    n_inputs = rows.X.shape[1]
    if not settings or any(
        isinstance(changes.dimension, str) or changes.dimension >= n_inputs for changes in settings
    ):
        raise ModelFileError("it has change points along an input that is not there")
    if any(changes.outliers for changes in settings) and rows.Y.shape[1] != 1:
        raise ModelFileError("it has outliers and several outputs")


def _check_hazard(leaf: OrderedLeaf, hazard: float | None) -> None:
    """Refuse a hazard where there is none, and one that is no probability, or no rate."""
    highest = 1.0 if leaf.changes is not None and leaf.changes.gaps == "equal" else math.inf
    if leaf.has_hazard != (hazard is not None) or not (hazard is None or 0.0 < hazard < highest):
        raise ModelFileError(f"its 'breaks.hazards' has {hazard!r}, which is no hazard of its leaf")
