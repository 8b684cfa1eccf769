"""How a model was found, in its file: the searches for hyperparameters, and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.archive import Archive, ModelFileError
from dsmgp.learn import Learned

__all__ = ["read_learned", "read_scores", "write_learned", "write_scores"]

Arrays = dict[str, NDArray[Any]]


def write_learned(learned: Sequence[Learned], arrays: Arrays) -> list[dict[str, Any]]:
    for k, one in enumerate(learned):
        arrays[f"learned.{k}.theta"] = np.asarray(one.theta, dtype=np.float64)
        arrays[f"learned.{k}.path"] = np.asarray(one.path, dtype=np.float64)
    return [
        {
            "objective": float(one.objective),
            "n_iterations": int(one.n_iterations),
            "n_evaluations": int(one.n_evaluations),
        }
        for one in learned
    ]


def read_learned(archive: Archive) -> list[Learned]:
    return [
        Learned(
            archive.array(f"learned.{k}.theta", np.float64, None),
            float(one["objective"]),
            int(one["n_iterations"]),
            int(one["n_evaluations"]),
            # Where a leaf could not be factorised the path has minus infinity.
            archive.array(f"learned.{k}.path", np.float64, None, finite=False).tolist(),
        )
        for k, one in enumerate(archive.entry("learned", lambda v: isinstance(v, list)))
    ]


def write_scores(
    left_out: tuple[float, float] | None, kernels: dict[str, float] | None, n_evaluations: int
) -> dict[str, Any]:
    """Those of rows that were left out are missing where a model has none."""
    assert left_out is not None, "not settled"
    loo, new_inputs = (score if math.isfinite(score) else None for score in left_out)
    return {
        "loo": loo,
        "loo_new_inputs": new_inputs,
        "kernels": kernels,
        "n_evaluations": n_evaluations,
    }


def read_scores(archive: Archive, left_out: bool = True) -> dict[str, Any]:
    scores = archive.entry("scores", lambda v: isinstance(v, dict))
    kernels = scores["kernels"]
    return {
        "loo": _finite(scores["loo"]) if left_out else math.nan,
        "loo_new_inputs": _finite(scores["loo_new_inputs"]) if left_out else math.nan,
        "kernels": None if kernels is None else {str(k): _number(v) for k, v in kernels.items()},
        "n_evaluations": int(scores["n_evaluations"]),
    }


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ModelFileError(f"its score {value!r} is no number")
    return float(value)


def _finite(value: Any) -> float:
    if not math.isfinite(_number(value)):
        raise ModelFileError(f"its score {value!r} is not finite")
    return float(value)
