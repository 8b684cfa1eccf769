"""The text summary: exponents with their sign, outputs by their names."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.summary import summarise


def fitted(X, Y, **options):
    return DSMGPRegressor("rbf", max_iter=2, random_state=0, **options).fit(X, Y)


@pytest.mark.parametrize(
    ("exponent", "line"), [(0.0787, "scale^-0.0787,"), (-0.0787, "scale^0.0787,"), (0.0, "scale^0,")]
)  # fmt: skip
def test_exponents_of_the_gate_have_one_sign(wavy, exponent, line):
    state = fitted(*wavy).state_
    gate = replace(state.model.gate, scale_exponent=exponent)
    assert line in summarise(replace(state, model=replace(state.model, gate=gate)))


def named(y, noise):
    return pd.DataFrame({"price": y, "rent": noise})


def test_outputs_are_called_by_their_names(wavy):
    X, y = wavy
    apart = named(y, np.random.default_rng(0).normal(size=len(y)))
    together = named(y, y + 0.01 * X[:, 0])
    for Y, line in ((apart, "kernel of price"), (together, "  price = ")):
        assert line in fitted(X, Y).summary()
        assert line.replace("price", "output 0") in fitted(X, Y.to_numpy()).summary()


def test_outputs_of_fine_tuned_and_changepoint_models_are_called_by_their_names(wavy):
    X, y = wavy
    Y = named(y, np.random.default_rng(0).normal(size=len(y)))
    assert "fine-tuned      price: " in fitted(X, Y, leaf_size=60).finetune(max_iter=1).summary()
    changing = fitted(X[:40], Y[:40], structure="changepoint")
    assert "kernel of rent" in changing.summary()


def column_line(frame, **options):
    rng = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*left out")
        lines = fitted(frame, rng.normal(size=len(frame)), **options).summary().splitlines()
    found = [line for line in lines if line.startswith("columns")]
    return found[0].removeprefix("columns").strip() if found else None


def test_what_became_of_columns_is_counted(rng):
    n = 200
    numbers = pd.DataFrame({"x": rng.normal(size=n), "z": rng.normal(size=n)})
    assert column_line(numbers) is None
    many = [f"s{k}" for k in rng.integers(0, 70, n)]
    frame = numbers.assign(shop=many, flag=rng.random(n) < 0.5)
    assert column_line(frame) == f"1 category ({len(set(many))} levels by their effects)"
    frame = frame.assign(
        colour=rng.choice(np.array(["red", "blue", None], dtype=object), n),
        when=pd.date_range("2020-01-01", periods=n),
        same="yes",
    )
    frame.loc[::7, "x"] = np.nan
    levels = f"{len(set(many))} levels by their effects"
    expected = f"2 categories (1 with {levels}), 1 date, 2 with missing values, 1 left out"
    assert column_line(frame) == expected
    frame["town"] = [f"t{k}" for k in rng.integers(0, 9, n)]
    most = f"2 with up to {levels}"
    assert column_line(frame) == expected.replace("2 categories", "3 categories").replace(f"1 with {levels}", most)  # fmt: skip
