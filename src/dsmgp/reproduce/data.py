"""Data sets of the experiments, split and standardised as in the paper's appendix, and their scores."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from dsmgp import scores
from dsmgp._util.arrays import Array
from dsmgp.datasets import ORIGINALS, Dataset, load, load_original
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution

__all__ = ["available", "loaded", "score", "split"]

Split = tuple[Array, Array, Array, Array]
#: Rows that quick runs train and test on.
QUICK_ROWS, QUICK_TEST = 600, 400


def loaded(name: str) -> Dataset:
    """Load a data set, prepared or in the format of its publisher."""
    return load_original(name) if name in ORIGINALS else load(name)


def available(name: str) -> bool:
    """Whether the file of a data set exists."""
    folder = os.environ.get("DSMGP_DATA")
    if folder is None:
        return False
    if name in ORIGINALS:
        return ORIGINALS[name].find(Path(folder)) is not None
    return (Path(folder) / f"{name}.parquet").exists()


def split(name: str, seed: int, quick: bool = False) -> Split:
    """Return X, Y, X_test, Y_test, standardised by the training rows; only some of the rows for quick runs."""
    X, Y, X_test, Y_test = loaded(name).split(seed)
    if quick:
        rng = np.random.default_rng(seed)
        train, test = (
            rng.permutation(len(A))[:n] for A, n in ((X, QUICK_ROWS), (X_test, QUICK_TEST))
        )
        X, Y, X_test, Y_test = X[train], Y[train], X_test[test], Y_test[test]
    (mx, sx), (my, sy) = (_centre_and_scale(A) for A in (X, Y))
    return (X - mx) / sx, (Y - my) / sy, (X_test - mx) / sx, (Y_test - my) / sy


def _centre_and_scale(A: Array) -> tuple[Array, Array]:
    scale = A.std(axis=0)
    return A.mean(axis=0), np.where(scale == 0, 1.0, scale)


def score(predicted: PredictiveDistribution, Y: Array) -> dict[str, float]:
    """Return the paper's scores of the predictions at test rows, and those of the whole predictive distribution."""
    values = {
        "mae": scores.mae(Y, predicted.mean),
        "rmse": scores.rmse(Y, predicted.mean),
        "nlpd": scores.nlpd(Y, predicted),
        "gaussian_nlpd": scores.gaussian_nlpd(Y, predicted),
        "joint_nlpd": scores.joint_nlpd(Y, predicted),
        "coverage90": scores.coverage(Y, predicted, 0.9),
    }
    return {key: round(value, 5) for key, value in values.items()}
