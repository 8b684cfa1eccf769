"""Fitted models as files: what an estimator is made of, written to an archive, and read back with every part checked.

Each part has a function that writes it and one that reads it, side by side. A part that a later version adds becomes
an array that may be missing, so older files stay readable; only where an old part changes its meaning does
:data:`dsmgp.archive.FORMAT` grow.

Written are the training rows as they were given, never what can be computed again from them: leaves are conditioned
anew when a file is read, unless their factors were asked for.
"""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dsmgp.archive import Archive, ModelFileError, read_archive, write_archive
from dsmgp.breaking import BreakingModel
from dsmgp.breaks import ChangePoints
from dsmgp.conditioned import Conditioned
from dsmgp.frames import OUTPUTS
from dsmgp.learn import Learned
from dsmgp.notices import warn_user
from dsmgp.parameters import checked
from dsmgp.stored_breaks import read_breaks, write_breaks
from dsmgp.stored_families import (
    Own,
    read_families,
    read_module,
    refuse_unused,
    write_families,
    write_module,
)
from dsmgp.stored_leaves import MODEL, write_leaves
from dsmgp.stored_mixture import read_mixture, write_mixture
from dsmgp.stored_search import read_learned, read_scores, write_learned, write_scores
from dsmgp.stored_tree import read_changes, read_tree, write_changes, write_tree
from dsmgp.timeline import Dates
from dsmgp.tree import Leaf, Product, Sum, leaves
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
        "scores": write_scores(state.scores, saved.kernel_scores, saved.n_evaluations),
        "families": write_families(model.families, own, arrays),
        "learned": write_learned(saved.learned, arrays),
    }
    arrays |= {
        "inputs.centre": model.inputs.centre,
        "inputs.scale": model.inputs.scale,
        "outputs.centre": model.outputs.centre,
        "outputs.loading": model.outputs.loading,
    }
    header |= _write_state(state, arrays)
    where = Path(path)
    if isinstance(model, BreakingModel):
        if include_factors:
            raise ModelFileError(
                "the factors of segments are made again when a file is read; leave include_factors out"
            )
        header |= write_breaks(model, state.rows.X, arrays)
    else:
        assert isinstance(model.experts, Conditioned), "not settled"
        header |= write_mixture(model, state.rows.X, arrays)
        where, about = write_leaves(where, model.experts, include_factors, arrays)
        header |= about
    write_archive(where, header, arrays)


def read_model(
    estimator: Any, path: str | Path, kernel: Any = None, mean: Any = None
) -> tuple[Any, Saved]:
    """An estimator of a class with the parameters of the file, and what the file holds."""
    path = model_file(path)
    archive = read_archive(path)
    own = Own(True, {"kernel": kernel, "mean": mean})
    with _told_of(Path(path).name):
        rows = _read_rows(archive)
        (_, n_dims), (_, n_outputs) = rows.X.shape, rows.Y.shape
        parameters = _read_parameters(archive, own, n_dims)
        known = estimator().get_params(deep=False)
        made = estimator(**{k: v for k, v in parameters.items() if k in known})
        _settle_device(made)
        breaks = "breaks" in archive.header
        families = read_families(archive, own, n_dims, n_outputs)
        units = _read_units(archive, rows)
        settings = checked(made)
        model: Any
        if breaks:
            model = read_breaks(archive, settings, rows, families, units)
        else:
            model = read_mixture(archive, settings, rows, families, units, path.parent)
        refuse_unused(own)
        squeeze = archive.entry("squeeze", lambda v: isinstance(v, bool))
        if squeeze and n_outputs != 1:
            raise ModelFileError("it has several outputs in one dimension")
        scores = read_scores(archive, left_out=not breaks)
        return made, Saved(
            parameters=parameters,
            state=_read_state(archive, model, rows, (scores["loo"], scores["loo_new_inputs"])),
            learned=read_learned(archive),
            kernel_scores=scores["kernels"],
            n_evaluations=scores["n_evaluations"],
            squeeze=squeeze,
            feature_names=_read_names(archive, "feature_names", n_dims),
            target_names=_read_names(archive, "target_names", n_outputs),
            table=archive.entry("table", lambda v: v is None or isinstance(v, dict)),
            dates=_read_dates(archive, n_dims),
            output=_read_output(archive),
        )


def model_file(path: str | Path) -> Path:
    """The file itself: a folder is that of a model whose rows are beside it."""
    path = Path(path)
    try:
        if not path.is_dir():
            return path
    except OSError as error:  # a name that is too long
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error
    if not (path / MODEL).exists():
        raise ModelFileError(
            f"the folder {path} holds no model ({MODEL} is missing); a fit that was cut short leaves none"
        )
    return path / MODEL


def _settle_device(made: Any) -> None:
    """A model that was fitted on a device which is not here answers on one that is."""
    if not re.fullmatch(r"(cuda|mps|xpu)(:\d+)?", str(made.device)):
        return
    try:
        checked(made)
    except ValueError:
        warn_user(
            f"the model was fitted on {made.device!r}, which is not here: it answers on another device",
            topic="device of a file",
        )
        made.set_params(device="auto")


@contextmanager
def _told_of(name: str) -> Any:
    """Whatever is found to be wrong with the content of a file is said of that file, in one kind of error."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{name} cannot be read: {error}") from error.__cause__
    except MemoryError as error:
        raise ModelFileError(
            f"{name} cannot be read: it needs more memory than there is"
        ) from error
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
            written[name] = write_tree(name, value, None, arrays)
        elif isinstance(value, ChangePoints):
            written[name] = {"changes": write_changes(value)}
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
        elif isinstance(value, dict) and "tree" in value:
            read[name] = read_tree(archive, name, None, n_dims, value.get("changes"))
        elif isinstance(value, dict):
            read[name] = read_changes(value["changes"])
        else:
            read[name] = value
    return read


# Rows, and how many of them have come and gone


def _write_state(state: Changing, arrays: Arrays) -> dict[str, Any]:
    rows = state.rows
    arrays |= {"X": rows.X, "Y": rows.Y, "leaf.most_rows": np.asarray(state.sizes, dtype=np.int64)}
    if rows.noise is not None:
        arrays["noise"] = rows.noise
    if rows.following != len(rows):  # some have gone
        arrays["ids"] = rows.ids
    return {
        "changes": {
            "local_scale": bool(state.local_scale),
            "n_fitted": int(state.n_fitted),
            "n_changed": int(state.n_changed),
            "n_reviewed": int(state.n_reviewed),
            "following": int(rows.following),
        }
    }


def _read_rows(archive: Archive) -> Rows:
    X = archive.array("X", np.float64, None, None)
    Y = archive.array("Y", np.float64, len(X), None)
    if X.shape[1] == 0 or Y.shape[1] == 0 or len(X) == 0:
        raise ModelFileError("it holds no rows")
    check_finite(X, "X")
    check_finite(Y, "y")
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


def _read_state(archive: Archive, model: Any, rows: Rows, scores: tuple[float, float]) -> Changing:
    sizes = archive.array("leaf.most_rows", np.int64, len(leaves(model.tree)))
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


# Units


def _told_units(inputs: InputUnits, outputs: OutputUnits) -> dict[str, dict[str, list[float]]]:
    """For whoever reads a header; a model takes its units from the arrays."""
    spread = np.sqrt(np.square(outputs.loading).sum(axis=1))  # of y where experts see ones
    return {
        "inputs": {"centre": inputs.centre.tolist(), "scale": inputs.scale.tolist()},
        "outputs": {"centre": outputs.centre.tolist(), "scale": spread.tolist()},
    }


def _read_units(archive: Archive, rows: Rows) -> tuple[InputUnits, OutputUnits]:
    """Units in which the rows can be told, there and back."""
    n_dims, n_outputs = rows.X.shape[1], rows.Y.shape[1]
    inputs = InputUnits(
        archive.array("inputs.centre", np.float64, n_dims),
        archive.array("inputs.scale", np.float64, n_dims),
    )
    outputs = OutputUnits(
        archive.array("outputs.centre", np.float64, n_outputs),
        archive.array("outputs.loading", np.float64, n_outputs, n_outputs),
    )
    sound = (inputs.scale > 0).all() and math.isfinite(outputs.log_det)
    if sound:
        check_finite(outputs.loading, "the units of y")
        with np.errstate(all="ignore"):
            seen = inputs.to_experts(rows.X), outputs.to_experts(rows.Y)
            sound = all((np.abs(told) < LARGEST).all() for told in seen)
    if not sound:
        raise ModelFileError("its units make no sense")
    return inputs, outputs


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


# Names of columns


def _read_names(archive: Archive, entry: str, n: int) -> list[str] | None:
    def are_names(value: Any) -> bool:
        return isinstance(value, list) and len(value) == n and all(type(v) is str for v in value)

    names: list[str] | None = archive.entry(entry, lambda v: v is None or are_names(v))
    return names
