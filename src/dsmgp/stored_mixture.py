"""A mixture over partitions in an archive, and back: its tree, leaves and gate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.archive import Archive, ModelFileError
from dsmgp.conditioned import Conditioned
from dsmgp.gate import BOUNDS, Gate
from dsmgp.model import WEIGHTS, Model
from dsmgp.process import Family
from dsmgp.settings import Settings
from dsmgp.stored_families import read_naturals, read_thetas, write_naturals
from dsmgp.stored_leaves import StoredLeaves
from dsmgp.stored_tree import read_tree, write_tree
from dsmgp.tree import leaves
from dsmgp.units import InputUnits, OutputUnits
from dsmgp.updates import Rows

__all__ = ["read_mixture", "write_mixture"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


def write_mixture(model: Model, X: Array, arrays: Arrays) -> dict[str, Any]:
    """What the header has to say of it; the leaves' factors are written elsewhere, or made again."""
    arrays |= {"leaf.family": np.asarray(model.family, dtype=np.int32), "leaf.scale": model.scales}
    write_tree("tree", model.tree, X, arrays)
    write_naturals(model, arrays)
    return {"weights": model.weights, "gate": _write_gate(model.gate, arrays)}


def read_mixture(
    archive: Archive,
    settings: Settings,
    rows: Rows,
    families: list[Family],
    units: tuple[InputUnits, OutputUnits],
    folder: Path,
) -> Model:
    n_dims, n_outputs = rows.X.shape[1], rows.Y.shape[1]
    tree = read_tree(archive, "tree", rows.X, n_dims)
    n_leaves = len(leaves(tree))
    family = archive.array("leaf.family", np.int32, n_leaves).astype(np.int64)
    if family.min() < 0 or family.max() >= len(families):
        raise ModelFileError("its leaves are of families that are not there")
    scales = archive.array("leaf.scale", np.float64, n_leaves, n_outputs)
    if not (scales > 0).all():
        raise ModelFileError("its leaves have scales that are not positive")
    weights = archive.entry("weights", lambda v: v in WEIGHTS)
    gate = _read_gate(archive)
    if (gate is not None) != (weights == "gated"):
        raise ModelFileError("its weights do not go with its gate")
    naturals = read_naturals(archive, families, family, n_dims)
    stored = StoredLeaves(tree, families, family, naturals, units)
    conditioned = stored.read(archive, settings, rows, folder)
    thetas = read_thetas(archive, families, family)
    model = Model(tree, families, family, conditioned, *units, weights, scales, gate, thetas)
    _check_variances(model, conditioned)
    return model


def _check_variances(model: Model, conditioned: Conditioned) -> None:
    """The least and the most that a leaf's variance can be are numbers in the user's units."""
    prior = conditioned.prior_variance
    prior = np.where(prior < np.finfo(np.float64).max, prior, 0.0)  # where there is no bound
    with np.errstate(all="ignore"):
        spread = model.scales * model.shape.mean_variance
        told = [
            model.outputs.variance_to_user(variance * spread)
            for variance in (conditioned.noise, conditioned.noise + prior)
        ]
    if not all((np.isfinite(each) & (each > 0)).all() for each in told):
        raise ModelFileError("its variances are out of range")


def _write_gate(gate: Gate | None, arrays: Arrays) -> dict[str, float] | None:
    if gate is None:
        return None
    arrays["gate.shape_weights"] = gate.shape_weights
    arrays["gate.shape_variances"] = gate.shape_variances
    return {
        "variance_exponent": float(gate.variance_exponent),
        "scale_exponent": float(gate.scale_exponent),
    }


def _read_gate(archive: Archive) -> Gate | None:
    written = archive.entry("gate", lambda v: v is None or isinstance(v, dict))
    if written is None:
        return None
    weights = archive.array("gate.shape_weights", np.float64, None)
    variances = archive.array("gate.shape_variances", np.float64, len(weights))
    exponents = [written["variance_exponent"], written["scale_exponent"]]
    if not all(isinstance(e, float) and math.isfinite(e) for e in exponents):
        raise ModelFileError("its gate has exponents that are no numbers")
    # What a fit can find; beyond, a leaf that is less sure could be asked instead of one that is more so.
    within = all(
        low <= e <= high
        for e, (low, high) in zip(exponents, (BOUNDS["exponent"], BOUNDS["scale"]), strict=True)
    )
    low, high = np.exp(BOUNDS["shape"]) * [1 - 1e-9, 1 + 1e-9]
    sound = (weights >= 0).all() and abs(weights.sum() - 1) <= 1e-9
    if not within or not sound or not ((low <= variances) & (variances <= high)).all():
        raise ModelFileError("its gate makes no sense")
    return Gate(exponents[0], exponents[1], weights, variances)
