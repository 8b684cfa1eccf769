"""A mixture over segmentations in an archive, and back: its leaves find the posterior over their segments again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dsmgp.archive import Archive, ModelFileError
from dsmgp.breaking import BreakingModel
from dsmgp.breaks import BreakingLeaf
from dsmgp.lapack import one_thread
from dsmgp.learn_breaks import BreakingObjective
from dsmgp.ordered_leaf import OrderedLeaf, check_memory
from dsmgp.outliers import LEAST_RATIO, LEAST_SHARE, MOST_RATIO, MOST_SHARE, Outliers
from dsmgp.process import Family
from dsmgp.settings import Settings
from dsmgp.stored_tree import read_tree, write_tree
from dsmgp.tree import Leaf, leaves
from dsmgp.units import InputUnits, OutputUnits
from dsmgp.updates import Rows

__all__ = ["read_breaks", "write_breaks"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


def write_breaks(model: BreakingModel, X: Array, arrays: Arrays) -> dict[str, Any]:
    """What the header has to say of it."""
    outliers = None
    if model.outlier_probability is not None:
        arrays["breaks.outlier_probability"] = model.outlier_probability
        outliers = {"share": model.contamination.share, "ratio": model.contamination.ratio}
    return {
        "breaks": {
            **write_tree("tree", model.tree, X, arrays),
            "hazards": [None if hazard is None else float(hazard) for hazard in model.hazards],
            "longest": [int(own.longest) for own in model.leaves],
            "outliers": outliers,
        }
    }


def read_breaks(
    archive: Archive,
    settings: Settings,
    rows: Rows,
    families: list[Family],
    units: tuple[InputUnits, OutputUnits],
) -> BreakingModel:
    inputs, outputs = units
    if len(families) != 1:
        raise ModelFileError("its segments are of more than one family")
    (family,) = families
    written = archive.entry("breaks", lambda v: isinstance(v, dict))
    tree = read_tree(archive, "tree", rows.X, rows.X.shape[1], written["changes"])
    found = leaves(tree)
    _check_changes(found, rows)
    longest, hazards = written["longest"], written["hazards"]
    if len(longest) != len(found) or len(hazards) != len(found):
        raise ModelFileError("its leaves are not those whose segments it lists")
    if not all(type(length) is int and length >= 0 for length in longest):
        raise ModelFileError("its segments have lengths that are no counts")
    check_memory(found, max(longest), settings.table_memory)
    Z = torch.from_numpy(np.ascontiguousarray(inputs.to_experts(rows.X)))
    Y = outputs.to_experts(rows.Y)
    own = [
        OrderedLeaf(leaf, rows.X, Z, Y, length) for leaf, length in zip(found, longest, strict=True)
    ]
    for leaf, hazard in zip(own, hazards, strict=True):
        _check_hazard(leaf, hazard)
    outliers = _read_outliers(archive, written["outliers"], own, len(rows.X))
    factor = np.ones_like(Y) if outliers is None else outliers.noise_factor[:, None]
    objective = BreakingObjective(tree, own, family.processes, hazards, factor)
    with one_thread():  # as in the fit
        experts = objective.condition(0.5 * settings.memory)
    model = BreakingModel(
        tree=tree,
        family=family,
        leaves=own,
        experts=experts,
        hazards=list(hazards),
        inputs=inputs,
        outputs=outputs,
        n_rows=len(rows.X),
    )
    if outliers is not None:
        model.allow_for(outliers)
    spread = outputs.variance_to_user(model.noise[None] * model.contamination.mean)
    if not (math.isfinite(model.log_evidence) and np.isfinite(spread).all()):
        raise ModelFileError("its hyperparameters are out of range")
    return model


def _check_changes(found: list[Leaf], rows: Rows) -> None:
    asked = [leaf.changes for leaf in found if isinstance(leaf, BreakingLeaf)]
    if not asked or any(
        type(each.dimension) is not int or each.dimension >= rows.X.shape[1] for each in asked
    ):
        raise ModelFileError("its rows are in order of an input that is not there")
    if any(each.outliers for each in asked) and rows.Y.shape[1] != 1:
        raise ModelFileError("it has outliers of several outputs")


def _check_hazard(leaf: OrderedLeaf, hazard: Any) -> None:
    """There where a leaf may change any number of times, and a probability or a rate."""
    if hazard is None and not leaf.may_change_often:
        return
    equal = leaf.changes is not None and leaf.changes.gaps == "equal"
    most = 1.0 if equal else math.inf
    if not leaf.may_change_often or type(hazard) is not float or not 0.0 < hazard < most:
        raise ModelFileError("its hazards make no sense")


def _read_outliers(
    archive: Archive, written: Any, own: list[OrderedLeaf], n_rows: int
) -> Outliers | None:
    asked = any(leaf.changes is not None and leaf.changes.outliers for leaf in own)
    if asked != (written is not None):
        raise ModelFileError("its outliers are not those it was asked for")
    if written is None:
        return None
    found = Outliers(archive.array("breaks.outlier_probability", np.float64, n_rows))
    found.share, found.ratio = written["share"], written["ratio"]
    sound = (
        type(found.share) is float
        and type(found.ratio) is float
        and LEAST_SHARE <= found.share <= MOST_SHARE
        and LEAST_RATIO <= found.ratio <= MOST_RATIO
        and bool(((found.probability >= 0) & (found.probability <= 1)).all())
    )
    if not sound:
        raise ModelFileError("its outliers make no sense")
    return found
