"""Fitted models as files: what an estimator is made of, written to an archive, and read back with every part checked.

Each part has a function that writes it and one that reads it, side by side. A part that a later version adds becomes
an array that may be missing, so older files stay readable; only where an old part changes its meaning does
:data:`dsmgp.archive.FORMAT` grow.

Written are the training rows as they were given, never what can be computed again from them: leaves are conditioned
anew when a file is read, unless their factors were asked for.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dsmgp.archive import Archive, ModelFileError, read_archive, write_archive
from dsmgp.conditioned import Conditioned
from dsmgp.flat_tree import flatten_tree, grow_flat
from dsmgp.frames import OUTPUTS
from dsmgp.gate import BOUNDS, Gate
from dsmgp.learn import Learned
from dsmgp.model import WEIGHTS, Model
from dsmgp.parameters import checked
from dsmgp.settings import Settings
from dsmgp.stored_families import (
    Own,
    prefixed,
    read_families,
    read_module,
    read_naturals,
    read_thetas,
    refuse_unused,
    write_families,
    write_module,
    write_naturals,
)
from dsmgp.stored_leaves import MODEL, StoredLeaves, write_leaves
from dsmgp.stored_search import read_learned, read_scores, write_learned
from dsmgp.timeline import Dates
from dsmgp.tree import Leaf, Node, Product, Sum, leaves
from dsmgp.units import InputUnits, OutputUnits
from dsmgp.updates import Changing, Rows
from dsmgp.validation import LARGEST, check_finite

__all__ = ["MODEL", "Saved", "model_file", "read_model", "write_model"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
# Parameters that say where work is done: not part of what was learned, and not for a file to choose. Whoever wrote it could else
# have a fit overwrite and remove a file, or run on a cluster.
NOT_KEPT = ("checkpoint", "executor")


@dataclass
class Saved:
    """What a file holds of a fitted estimator.

    Attributes
    ----------
    parameters : dict
        Of the constructor.
    state : Changing
        The model with the rows it has seen, as they were given; settled.
    learned : list of Learned
    kernel_scores : dict of str to float, or None
    n_evaluations : int
    squeeze : bool
        Whether y came with one dimension.
    feature_names, target_names : list of str, or None
    table : dict, or None
        How the columns of a table become inputs, for models fitted by the command line.
    dates : dict of int to Dates
        Inputs that came as dates.
    output : str
        What predictions come as, see :meth:`DSMGPRegressor.set_output`.
    """

    parameters: dict[str, Any]
    state: Changing
    learned: list[Learned]
    kernel_scores: dict[str, float] | None
    n_evaluations: int
    squeeze: bool
    feature_names: list[str] | None = None
    target_names: list[str] | None = None
    table: dict[str, Any] | None = None
    dates: dict[int, Dates] = field(default_factory=dict)
    output: str = "default"


def write_model(
    path: str | Path, saved: Saved, include_factors: bool = False, own_modules: bool = False
) -> None:
    """Write a fitted model as one file."""
    own, state, model = Own(own_modules), saved.state, saved.state.model
    assert isinstance(model.experts, Conditioned), "not settled"
    assert state.scores is not None
    arrays: Arrays = {}
    header = {
        "dsmgp": version("dsmgp"),
        "torch": torch.__version__,
        "parameters": _write_parameters(saved.parameters, own, arrays),
        "squeeze": saved.squeeze,
        "feature_names": saved.feature_names,
        "target_names": saved.target_names,
        "table": saved.table,
        "dates": {str(k): str(dates.origin) for k, dates in saved.dates.items()},
        "output": saved.output,
        "units": _told_units(model.inputs, model.outputs),
        "scores": {
            "loo": state.scores[0],
            "loo_new_inputs": state.scores[1],
            "kernels": saved.kernel_scores,
            "n_evaluations": saved.n_evaluations,
        },
        "changes": {
            "local_scale": bool(state.local_scale),
            "n_fitted": int(state.n_fitted),
            "n_changed": int(state.n_changed),
            "n_reviewed": int(state.n_reviewed),
            "following": int(state.rows.following),
        },
        "weights": model.weights,
        "families": write_families(model.families, own, arrays),
        "gate": _write_gate(model.gate, arrays),
        "learned": write_learned(saved.learned, arrays),
    }
    arrays |= {
        "X": state.rows.X,
        "Y": state.rows.Y,
        "leaf.most_rows": np.asarray(state.sizes, dtype=np.int64),
        "inputs.centre": model.inputs.centre,
        "inputs.scale": model.inputs.scale,
        "outputs.centre": model.outputs.centre,
        "outputs.loading": model.outputs.loading,
        "leaf.family": np.asarray(model.family, dtype=np.int32),
        "leaf.scale": model.scales,
    }
    if state.rows.noise is not None:
        arrays["noise"] = state.rows.noise
    if state.rows.following != len(state.rows):  # some have gone
        arrays["ids"] = state.rows.ids
    arrays |= prefixed("tree", flatten_tree(model.tree, state.rows.X))
    write_naturals(model, arrays)
    where, about = write_leaves(Path(path), model.experts, include_factors, arrays)
    write_archive(where, header | about, arrays)


def read_model(
    estimator: Any, path: str | Path, kernel: Any = None, mean: Any = None
) -> tuple[Any, Saved]:
    """An estimator of a class with the parameters of the file, and what the file holds."""
    path = model_file(path)
    archive = read_archive(path)
    own = Own(True, {"kernel": kernel, "mean": mean})
    with _told_of(Path(path).name):
        X = archive.array("X", np.float64, None, None)
        Y = archive.array("Y", np.float64, len(X), None)
        if X.shape[1] == 0 or Y.shape[1] == 0 or len(X) == 0:
            raise ModelFileError("it holds no rows")
        check_finite(X, "X")
        check_finite(Y, "y")
        parameters = _read_parameters(archive, own, X.shape[1])
        known = estimator().get_params(deep=False)
        made = estimator(**{k: v for k, v in parameters.items() if k in known})
        rows = _read_rows(archive, X, Y)
        model = _read_model(archive, checked(made), rows, own, path.parent)
        refuse_unused(own)
        squeeze = archive.entry("squeeze", lambda v: isinstance(v, bool))
        if squeeze and Y.shape[1] != 1:
            raise ModelFileError("it has several outputs in one dimension")
        scores = read_scores(archive)
        return made, Saved(
            parameters=parameters,
            state=_read_state(archive, model, rows, (scores["loo"], scores["loo_new_inputs"])),
            learned=read_learned(archive),
            kernel_scores=scores["kernels"],
            n_evaluations=scores["n_evaluations"],
            squeeze=squeeze,
            feature_names=archive.entry(
                "feature_names", lambda v: v is None or _are_names(v, X.shape[1])
            ),
            target_names=archive.entry(
                "target_names", lambda v: v is None or _are_names(v, Y.shape[1])
            ),
            table=archive.entry("table", lambda v: v is None or isinstance(v, dict)),
            dates=_read_dates(archive, X.shape[1]),
            output=_read_output(archive),
        )


def model_file(path: str | Path) -> Path:
    """The file itself: a folder is that of a model whose rows are beside it."""
    path = Path(path)
    if not path.is_dir():
        return path
    if not (path / MODEL).exists():
        raise ModelFileError(
            f"the folder {path} holds no model ({MODEL} is missing); a fit that was cut short leaves none"
        )
    return path / MODEL


@contextmanager
def _told_of(name: str) -> Any:
    """Whatever is found to be wrong with the content of a file is said of that file, in one kind of error."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{name} cannot be read: {error}") from error.__cause__
    except LookupError as error:
        raise ModelFileError(f"{name} cannot be read: it lacks {error}") from error
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise ModelFileError(f"{name} cannot be read: {error}") from error


# Parameters of the constructor


def _write_parameters(parameters: dict[str, Any], own: Own, arrays: Arrays) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in NOT_KEPT:
            continue
        if isinstance(value, torch.nn.Module):
            written[name] = {"module": write_module(value, name, name, own, arrays)}
        elif isinstance(value, (Sum, Product, Leaf)):
            written[name] = {"tree": name}
            flat = flatten_tree(value)
            arrays |= prefixed(name, {k: flat[k] for k in ("numbers", "values")})
        elif isinstance(value, np.generic):
            written[name] = value.item()
        elif name != "random_state" and not isinstance(value, str) and np.iterable(value):
            written[name] = np.asarray(value).tolist()
        elif isinstance(value, (str, int, float, bool, type(None))):
            written[name] = value
        else:  # a generator of random numbers
            written[name] = None
    return written


def _read_parameters(archive: Archive, own: Own, n_dims: int) -> dict[str, Any]:
    written = archive.entry("parameters", lambda v: isinstance(v, dict))
    read: dict[str, Any] = {}
    for name, value in written.items():
        if name in NOT_KEPT:
            continue
        if isinstance(value, dict) and "module" in value:
            read[name] = read_module(archive, value["module"], name, name, own, None)
        elif isinstance(value, dict):
            read[name] = _read_tree(archive, name, None, n_dims)
        else:
            read[name] = value
    return read


# Rows, and how many of them have come and gone


def _read_rows(archive: Archive, X: Array, Y: Array) -> Rows:
    noise = archive.array("noise", np.float64, *Y.shape) if "noise" in archive else None
    if noise is not None and (noise < 0).any():
        raise ModelFileError("its noise is negative")
    ids = np.arange(len(X))
    if "ids" in archive:
        ids = archive.array("ids", np.int64, len(X))
    following = _count(archive, "following")
    if ids[0] < 0 or (np.diff(ids) <= 0).any() or following <= ids[-1]:
        raise ModelFileError("its rows are not numbered in their order")
    return Rows(X, Y, noise, ids, following)


def _read_state(
    archive: Archive, model: Model, rows: Rows, scores: tuple[float, float]
) -> Changing:
    sizes = archive.array("leaf.most_rows", np.int64, len(model.family))
    return Changing(
        model,
        rows,
        bool(archive.header["changes"]["local_scale"]),
        sizes,
        max(1, _count(archive, "n_fitted")),
        scores,
        _count(archive, "n_changed"),
        _count(archive, "n_reviewed"),
    )


def _count(archive: Archive, name: str) -> int:
    found = archive.entry("changes", lambda v: isinstance(v, dict))[name]
    if type(found) is not int or found < 0:
        raise ModelFileError(f"its {name} is no count")
    return found


# The model


def _read_model(archive: Archive, settings: Settings, rows: Rows, own: Own, folder: Path) -> Model:
    X, Y = rows.X, rows.Y
    n_dims, n_outputs = X.shape[1], Y.shape[1]
    tree = _read_tree(archive, "tree", X, n_dims)
    n_leaves = len(leaves(tree))
    families = read_families(archive, own, n_dims, n_outputs)
    family = archive.array("leaf.family", np.int32, n_leaves).astype(np.int64)
    if family.min() < 0 or family.max() >= len(families):
        raise ModelFileError("its leaves are of families that are not there")
    scales = archive.array("leaf.scale", np.float64, n_leaves, n_outputs)
    if not (scales > 0).all():
        raise ModelFileError("its leaves have scales that are not positive")
    inputs = InputUnits(
        archive.array("inputs.centre", np.float64, n_dims),
        archive.array("inputs.scale", np.float64, n_dims),
    )
    outputs = OutputUnits(
        archive.array("outputs.centre", np.float64, n_outputs),
        archive.array("outputs.loading", np.float64, n_outputs, n_outputs),
    )
    _check_units(inputs, outputs, rows)
    weights = archive.entry("weights", lambda v: v in WEIGHTS)
    gate = _read_gate(archive)
    if (gate is not None) != (weights == "gated"):
        raise ModelFileError("its weights do not go with its gate")
    naturals = read_naturals(archive, families, family, n_dims)
    stored = StoredLeaves(tree, families, family, naturals, (inputs, outputs))
    conditioned = stored.read(archive, settings, rows, folder)
    thetas = read_thetas(archive, families, family)
    model = Model(
        tree, families, family, conditioned, inputs, outputs, weights, scales, gate, thetas
    )
    _check_variances(model, conditioned)
    return model


def _told_units(inputs: InputUnits, outputs: OutputUnits) -> dict[str, dict[str, list[float]]]:
    """For whoever reads a header; a model takes its units from the arrays."""
    spread = np.sqrt(np.square(outputs.loading).sum(axis=1))  # of y where experts see ones
    return {
        "inputs": {"centre": inputs.centre.tolist(), "scale": inputs.scale.tolist()},
        "outputs": {"centre": outputs.centre.tolist(), "scale": spread.tolist()},
    }


def _check_units(inputs: InputUnits, outputs: OutputUnits, rows: Rows) -> None:
    """Units in which the rows can be told, there and back."""
    sound = (inputs.scale > 0).all() and math.isfinite(outputs.log_det)
    if sound:
        check_finite(outputs.loading, "the units of y")
        with np.errstate(all="ignore"):
            seen = inputs.to_experts(rows.X), outputs.to_experts(rows.Y)
            sound = all((np.abs(told) < LARGEST).all() for told in seen)
    if not sound:
        raise ModelFileError("its units make no sense")


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


def _read_tree(archive: Archive, prefix: str, X: Array | None, n_dims: int) -> Node:
    flat = {
        "numbers": archive.array(f"{prefix}.numbers", np.int32, None, 3),
        "values": archive.array(f"{prefix}.values", np.float64, None),
    }
    if f"{prefix}.rows" in archive:
        flat["rows"] = archive.array(f"{prefix}.rows", np.int64, None)
        flat["row_ends"] = archive.array(f"{prefix}.row_ends", np.int64, None)
    return grow_flat(flat, X, n_dims)


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


# Inputs that are dates


def _read_dates(archive: Archive, n_dims: int) -> dict[int, Dates]:
    written = archive.entry("dates", lambda v: isinstance(v, dict))
    found = {}
    for name, origin in written.items():
        number, since = int(name), np.datetime64(origin, "us")
        if not 0 <= number < n_dims or np.isnat(since):
            raise ModelFileError("its dates make no sense")
        found[number] = Dates(since)
    return found


# What predictions come as


def _read_output(archive: Archive) -> str:
    if "output" not in archive.header:  # as in files of dsmgp 0.1.0 before it was kept
        return "default"
    return str(archive.entry("output", lambda v: isinstance(v, str) and v in OUTPUTS))


def _are_names(value: Any, n: int) -> bool:
    return isinstance(value, list) and len(value) == n and all(isinstance(v, str) for v in value)
