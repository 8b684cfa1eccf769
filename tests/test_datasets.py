"""Reading benchmark data, on files made here."""

import numpy as np
import pandas as pd
import pytest

from dsmgp.datasets import load


@pytest.fixture
def folder(tmp_path, rng, monkeypatch):
    pd.DataFrame({"x": range(10), "y": range(10), "is_train": [True] * 6 + [False] * 4}).to_parquet(
        tmp_path / "kin40k.parquet"
    )
    pd.DataFrame({"times": rng.normal(size=10), "accel": range(10)}).to_parquet(
        tmp_path / "motorcycle.parquet"
    )
    monkeypatch.setenv("DSMGP_DATA", str(tmp_path))
    return tmp_path


def test_the_split_laid_down_is_used(folder):
    data = load("kin40k")
    assert data.inputs == ("x",)
    X, Y, X_test, Y_test = data.split(seed=0)
    assert X.shape == Y.shape == (6, 1)
    assert X_test.shape == Y_test.shape == (4, 1)


def test_other_splits_are_the_first_70_percent_of_a_seeded_permutation(folder):
    data = load("motorcycle", folder)
    _, Y, _, Y_test = data.split(seed=3)
    chosen = np.random.default_rng(3).permutation(10)[:7]
    assert set(Y[:, 0]) == set(chosen.tolist())
    assert len(Y_test) == 3


def test_what_is_missing_is_said(folder, monkeypatch):
    with pytest.raises(ValueError, match="unknown data set 'iris': expected one of motorcycle"):
        load("iris")
    with pytest.raises(FileNotFoundError, match=r"house.parquet does not exist"):
        load("house")
    monkeypatch.delenv("DSMGP_DATA")
    with pytest.raises(FileNotFoundError, match="set DSMGP_DATA"):
        load("house")
