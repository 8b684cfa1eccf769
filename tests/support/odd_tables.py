"""Tables and options as nobody would wish for: what the property tests draw from.

A table is drawn by a seed and a handful of mishaps, not number by number: hypothesis then has few choices to
shrink, and what it reports can be made again from one line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import polars as pl
from hypothesis import strategies as st

from dsmgp import ChangePoints
from dsmgp._util.machine import has_torch

ODD_NAMES = ("", " ", "a b", "naïve", "x" * 200, "0", "y", "f'\"\\", "\n", "columns", "__class__")


@dataclass(frozen=True)
class Table:
    """What was drawn: rows to fit, rows to ask, in what form they come, and what is known of their noise."""

    X: np.ndarray
    Y: np.ndarray
    new: np.ndarray
    form: str
    noise: np.ndarray | float | None

    @property
    def given(self):
        return dressed(self.X, self.form), dressed_outputs(self.Y, self.form)

    @property
    def asked(self):
        return dressed(self.new, self.form)


def dressed(X, form):
    """The same numbers in another form."""
    match form:
        case "fortran":
            return np.asfortranarray(X)
        case "read-only":
            X = X.copy()
            X.flags.writeable = False
            return X
        case "strided":
            wide = np.full((2 * len(X), 3 * X.shape[1]), np.nan)
            wide[::2, 1::3] = X
            return wide[::2, 1::3]
        case "reversed":
            return X[::-1].copy()[::-1]
        case "float32":
            return X.astype(np.float32)
        case "integers":
            return np.rint(np.clip(X, -(2.0**53), 2.0**53)).astype(np.int64)
        case "list":
            return X.tolist()
        case "pandas":
            return pd.DataFrame(X, columns=names(X.shape[1]), index=np.arange(len(X))[::-1] * 7)
        case "polars":
            return pl.DataFrame({name: X[:, k] for k, name in enumerate(names(X.shape[1]))})
    return X


def dressed_outputs(Y, form):
    """One output as a vector, several as a table; frames where the inputs are frames."""
    y = Y[:, 0] if Y.shape[1] == 1 else Y
    if form == "pandas":
        return pd.Series(y, name="0") if y.ndim == 1 else pd.DataFrame(y, columns=names(y.shape[1]))
    if form == "polars":
        columns = {name: Y[:, k] for k, name in enumerate(names(Y.shape[1]))}
        return next(iter(pl.DataFrame(columns))) if y.ndim == 1 else pl.DataFrame(columns)
    if form in ("list", "float32", "fortran"):
        return dressed(y, form)
    return y


def names(n):
    return [*ODD_NAMES[:n], *(f"column {k}" for k in range(n - len(ODD_NAMES)))]


FORMS = ("plain", "fortran", "read-only", "strided", "reversed", "float32", "integers", "list",
         "pandas", "polars")  # fmt: skip
MISHAPS = ("repeated rows", "constant column", "collinear", "few values", "scales", "offset",
           "far row", "one cluster")  # fmt: skip
OUTPUT_MISHAPS = ("none", "constant", "scales", "offset", "outlier", "noise only", "equal outputs",
                  "two values", "tiny spread on offset")  # fmt: skip


NOISES = ("unknown", "unknown", "one for all", "one for each row", "one for each output")


@st.composite
def tables(draw, most_rows=500, most_inputs=40, most_outputs=3, least_rows=1):
    """A table with any of the mishaps, in any form."""
    sizes = st.one_of(
        st.integers(least_rows, min(12, most_rows)), st.integers(least_rows, most_rows)
    )
    n, d = draw(sizes), draw(st.one_of(st.integers(1, 3), st.integers(1, most_inputs)))
    n_outputs = draw(st.integers(1, most_outputs))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mishaps = draw(st.sets(st.sampled_from(MISHAPS), max_size=3))
    X = rng.normal(size=(n, d))
    if "one cluster" in mishaps:
        X[: n // 2] = X[0] + 1e-9 * X[: n // 2]
    if "few values" in mishaps:
        X = np.rint(X)
    if "repeated rows" in mishaps:
        X = X[rng.integers(0, max(1, n // 3), size=n)]
    if "collinear" in mishaps and d > 1:
        X[:, -1] = 2.0 * X[:, 0] - 1.0
    if "constant column" in mishaps:
        X[:, rng.integers(d)] = rng.normal()
    if "far row" in mishaps:
        X[rng.integers(n)] *= 1e6
    Y = smooth(X, n_outputs, rng)
    if "scales" in mishaps:
        X = X * 10.0 ** rng.uniform(-8, 8, size=d)
    if "offset" in mishaps:
        X = X + rng.choice([-1e9, 0.0, 1e9], size=d)
    Y = spoilt(Y, draw(st.sampled_from(OUTPUT_MISHAPS)), rng)
    noise = known_noise(Y, draw(st.sampled_from(NOISES)), rng)
    near = X[rng.integers(0, n, size=min(n, 8))]
    far = X[:1] + 10.0 * (np.abs(X).max(axis=0) + 1.0)
    between = 0.5 * (X[rng.integers(0, n, size=8)] + X[rng.integers(0, n, size=8)])
    return Table(X, Y, np.concatenate([near, between, far]), draw(st.sampled_from(FORMS)), noise)


def smooth(X, n_outputs, rng):
    """Functions of the inputs as they are before units are changed."""
    weights = rng.normal(size=(X.shape[1], n_outputs)) / np.sqrt(X.shape[1])
    return np.sin(X @ weights) + 0.1 * rng.normal(size=(len(X), n_outputs))


def spoilt(Y, mishap, rng):
    match mishap:
        case "constant":
            return np.full_like(Y, rng.normal())
        case "scales":
            return Y * 10.0 ** rng.uniform(-8, 8, size=Y.shape[1])
        case "offset":
            return Y + 1e9
        case "outlier":
            Y[rng.integers(len(Y))] += 1e6
            return Y
        case "noise only":
            return rng.normal(size=Y.shape)
        case "equal outputs":
            return np.repeat(Y[:, :1], Y.shape[1], axis=1)
        case "two values":
            return (Y > 0).astype(np.float64)
        case "tiny spread on offset":
            return 1e9 + 1e-6 * Y
    return Y


def known_noise(Y, kind, rng):
    """Variances of the measurements, from none to as much as the outputs vary."""
    if kind == "unknown":
        return None
    most = np.var(Y)
    if kind == "one for all":
        return float(most * rng.uniform())
    shape = (len(Y), 1 if kind == "one for each row" else Y.shape[1])
    return most * rng.uniform(size=shape) * rng.integers(0, 2, size=shape)


KERNELS = ("auto", "rbf", "matern12", "matern32", "matern52", "rq", "periodic", "rbf+matern12")


def linear_trend():
    """A kernel of GPyTorch that has no closed form here."""
    from gpytorch.kernels import LinearKernel, RBFKernel, ScaleKernel

    return ScaleKernel(RBFKernel()) + LinearKernel()


@st.composite
def options(draw):
    """Settings that go together; what they cost is kept low. Those that need torch only where it is installed."""
    chosen = {
        "kernel": draw(
            st.one_of(st.sampled_from(KERNELS), st.builds(linear_trend))
            if has_torch()
            else st.sampled_from(KERNELS)
        ),
        "mean": draw(st.sampled_from(["zero", "constant", "linear"])),
        "weights": draw(st.sampled_from(["gated", "posterior", "uniform"])),
        "local_scale": draw(st.sampled_from([None, True, False])),
        "standardize": draw(st.sampled_from([True, True, False])),
        "output_warp": draw(st.sampled_from(["auto", "auto", "rank"])),
        "optimizer": draw(st.sampled_from(["lbfgs", "lbfgs", "adam", "rmsprop", None])),
        "noise_variance": draw(st.sampled_from([None, None, 1e-8, 1.0])),
        "dtype": draw(st.sampled_from(["float64", "float64", "float32"]))
        if has_torch()
        else "float64",
        "objective": draw(st.sampled_from(["surrogate", "surrogate", "full"])),
        "structure": draw(st.sampled_from(["balanced", "balanced", "paper"])),
        "max_iter": draw(st.integers(1, 4)),
        "effort": "low",
        "random_state": draw(st.integers(0, 2**31 - 1)),
    }
    if chosen["structure"] == "paper":
        chosen |= {"leaf_size": 40, "sum_children": 2, "depth": draw(st.integers(1, 2))}
    else:
        size = st.integers(2, 60)
        chosen["leaf_size"] = draw(
            st.one_of(st.just("auto"), size, st.lists(size, min_size=1, max_size=3))
        )
        chosen["sum_children"] = draw(st.sampled_from(["auto", 1, 2]))
    return chosen


@st.composite
def options_with_breaks(draw):
    """Settings of fits whose leaves may break, along any input; what they cost is kept low."""
    changes = {
        "dimension": draw(st.integers(0, 5)),
        "n_changes": draw(st.sampled_from([None, None, 1])),
        "gaps": draw(st.sampled_from(["equal", "length"])),
        "hazard": draw(st.sampled_from([None, None, 0.1])),
        "shortest": draw(st.sampled_from([1, 1, 1, 3])),
        "outliers": draw(st.booleans()),
    }
    return {
        "kernel": draw(st.sampled_from(["rbf", "matern12", "matern32", "rq", "periodic"])),
        "mean": draw(st.sampled_from(["zero", "constant", "linear"])),
        "optimizer": draw(st.sampled_from(["lbfgs", "adam", "rmsprop", None])),
        "standardize": draw(st.sampled_from([True, True, False])),
        "structure": draw(st.sampled_from(["changepoint", ChangePoints(**changes)])),
        "leaf_size": draw(st.sampled_from(["auto", 20, 60])),
        "max_iter": draw(st.integers(1, 3)),
        "effort": "low",
        "random_state": 0,
    }
