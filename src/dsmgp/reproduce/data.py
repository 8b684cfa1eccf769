"""Data of the experiments: split and standardised as in the paper's appendix."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsmgp import Mixture, scores
from dsmgp.datasets import Dataset, load
from dsmgp.originals import ORIGINALS, load_original

__all__ = ["available", "loaded", "score", "split"]

Array = NDArray[np.float64]
Split = tuple[Array, Array, Array, Array]
#: Rows that quick runs train and test on.
QUICK_ROWS, QUICK_TEST = 600, 400


def loaded(name: str) -> Dataset:
    return load_original(name) if name in ORIGINALS else load(name)


def available(name: str) -> bool:
    """Whether the file of a data set is there."""
    folder = os.environ.get("DSMGP_DATA")
    if folder is None:
        return False
    if name in ORIGINALS:
        return ORIGINALS[name].find(Path(folder)) is not None
    return (Path(folder) / f"{name}.parquet").exists()


def split(name: str, seed: int, quick: bool = False) -> Split:
    """X, Y, X_test, Y_test in units of the training rows' standard deviations; of a quick run only some."""
    X, Y, X_test, Y_test = loaded(name).split(seed)
    if quick:
        rng = np.random.default_rng(seed)
        train, test = (
            rng.permutation(len(A))[:n] for A, n in ((X, QUICK_ROWS), (X_test, QUICK_TEST))
        )
        X, Y, X_test, Y_test = X[train], Y[train], X_test[test], Y_test[test]
    (mx, sx), (my, sy) = (_units(A) for A in (X, Y))
    return (X - mx) / sx, (Y - my) / sy, (X_test - mx) / sx, (Y_test - my) / sy


def _units(A: Array) -> tuple[Array, Array]:
    scale = A.std(axis=0)
    return A.mean(axis=0), np.where(scale == 0, 1.0, scale)


def score(law: Mixture, Y: Array) -> dict[str, float]:
    """The paper's scores of test rows, and those of the whole law beside them."""
    found = {
        "mae": scores.mae(Y, law.mean),
        "rmse": scores.rmse(Y, law.mean),
        "nlpd": scores.nlpd(Y, law),
        "gaussian_nlpd": scores.gaussian_nlpd(Y, law),
        "joint_nlpd": scores.joint_nlpd(Y, law),
        "coverage90": scores.coverage(Y, law, 0.9),
    }
    return {key: round(value, 5) for key, value in found.items()}
