"""The text summary: exponents with their sign, outputs by their names."""

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
