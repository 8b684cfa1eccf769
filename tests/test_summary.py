"""A fitted model in words: exponents with their sign, outputs by their names."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.summary import summarise
from dsmgp.summary_breaks import summarise_breaks

INPUTS = ["size", "rooms"]


def fitted(X, Y, **options):
    return DSMGPRegressor("rbf", max_iter=2, random_state=0, **options).fit(X, Y)


@pytest.mark.parametrize(
    ("exponent", "told"), [(0.0787, "scale^-0.0787,"), (-0.0787, "scale^0.0787,"), (0.0, "scale^0,")]
)  # fmt: skip
def test_exponents_of_the_gate_have_one_sign(wavy, exponent, told):
    model = fitted(*wavy)._model
    model = replace(model, gate=replace(model.gate, scale_exponent=exponent))
    assert told in summarise(model, INPUTS, (0.0, 0.0), None)


def test_outputs_are_called_by_their_names(wavy):
    X, y = wavy
    apart = np.column_stack([y, np.random.default_rng(0).normal(size=len(y))])
    together = np.column_stack([y, y + 0.01 * X[:, 0]])
    for Y, line in ((apart, "kernel of price"), (together, "  price = ")):
        model = fitted(X, Y)._model
        assert line in summarise(model, INPUTS, (0.0, 0.0), None, ["price", "rent"])
        numbered = summarise(model, INPUTS, (0.0, 0.0), None)
        assert line.replace("price", "output 0") in numbered


def test_names_of_columns_reach_the_summary(wavy):
    X, y = wavy
    noise = np.random.default_rng(0).normal(size=len(y))
    frame = pd.DataFrame({"price": y, "rent": noise})
    assert "kernel of rent" in fitted(X, frame).summary()


def test_so_are_outputs_that_were_fine_tuned_and_that_break(wavy):
    X, y = wavy
    Y = np.column_stack([y, np.random.default_rng(0).normal(size=len(y))])
    tuned = fitted(X, Y, leaf_size=60).finetune(max_iter=1)._settled().model
    text = summarise(tuned, INPUTS, (0.0, 0.0), None, ["price", "rent"])
    assert "fine-tuned      price: " in text
    broken = fitted(X[:40], Y[:40], structure="changepoint")._model
    assert "kernel of rent" in summarise_breaks(broken, INPUTS, None, ["price", "rent"])
