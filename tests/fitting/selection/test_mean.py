"""The mean is chosen by leave-one-out, in closed form: by brute force it is the same."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.hypotheses.at_edges import blocks_of
from dsmgp.fitting.rows.leaf_setup import build_family
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection import mean as mean_module
from dsmgp.fitting.selection.mean import LeafInverses, choose_mean, edge_blocks_of, with_mean
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.region import Region

CONFIG = FitConfig()


def two_leaves(rng, y, X=None):
    X = rng.normal(size=(len(y), 2)) if X is None else X
    data = ScaledRows.of(X, y[:, None], CONFIG)
    halves = np.array_split(rng.permutation(len(y)), 2)
    return data, [Leaf(Region.whole(2), rows) for rows in halves]


@pytest.mark.parametrize("features", [0, 1, 3])
def test_a_row_left_out_is_left_out_of_the_mean_too(rng, features):
    """The generalised least squares estimate without the row, and the GP of its leaf without it."""
    data, leaves = two_leaves(rng, rng.normal(size=40))
    family = build_family("matern32", data, CONFIG)
    blocks = LeafInverses.of(leaves, data, family, rng)
    rows, n = blocks.rows, len(blocks.rows)
    every = np.hstack([np.ones((n, 1)), data.scaled_X[rows]])
    H = every[:, :features]
    found = blocks.scores(H)
    (process,) = family.processes
    K = process.kernel(data.scaled_X[rows]) + process.noise * np.eye(n)
    leaf = np.repeat([0, 1], [leaf.n_rows for leaf in leaves])
    K *= leaf[:, None] == leaf  # independent
    y = data.scaled_Y[rows, 0]
    for i in (0, 7, 25, 39):
        others = np.arange(n) != i
        inverse = np.linalg.inv(K[np.ix_(others, others)])
        k = K[i, others]
        A = H[others].T @ inverse @ H[others]
        b = np.linalg.solve(A, H[others].T @ inverse @ y[others])
        mean = H[i] @ b + k @ inverse @ (y[others] - H[others] @ b)
        assert found.error[0, i, 0] == pytest.approx((y[i] - mean) ** 2, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("features", [0, 1, 3])
def test_a_block_left_out_is_left_out_of_the_mean_and_of_every_leaf(rng, features):
    data, leaves = two_leaves(rng, rng.normal(size=40))
    family = build_family("matern32", data, CONFIG)
    inverses = LeafInverses.of(leaves, data, family, rng)
    Z, y, n = data.scaled_X[inverses.rows], data.scaled_Y[inverses.rows, 0], 40
    H = np.hstack([np.ones((n, 1)), Z])[:, :features]
    block = np.flatnonzero(Z[:, 0] > 0.7)
    densities, squares = inverses.left_out(H, block)
    (process,) = family.processes
    leaf = np.repeat([0, 1], [leaf.n_rows for leaf in leaves])
    K = process.kernel(Z) + process.noise * np.eye(n)
    K *= leaf[:, None] == leaf  # independent
    others = np.setdiff1d(np.arange(n), block)
    assert len(np.unique(leaf[block])) == 2
    inverse, k = np.linalg.inv(K[np.ix_(others, others)]), K[np.ix_(block, others)]
    A = H[others].T @ inverse @ H[others]
    b = np.linalg.solve(A, H[others].T @ inverse @ y[others])
    residual = y[block] - H[block] @ b - k @ inverse @ (y[others] - H[others] @ b)
    np.testing.assert_allclose(squares, residual**2, rtol=1e-6, atol=1e-12)
    assert np.isfinite(densities).all()


@pytest.mark.parametrize(
    ("shape", "expected"), [(lambda x: x, "linear"), (np.tanh, "zero"), (np.zeros_like, "zero")]
)
def test_a_line_is_kept_that_the_data_support_at_both_ends(shape, expected):
    """Among the rows a kernel is as good as a line, and leave-one-out is indifferent."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 2))
    y = shape(2.0 * X[:, 0]) + 0.1 * rng.normal(size=300)
    model = DSMGPRegressor(effort="low", hypotheses=None, random_state=0).fit(X, y)
    gains = model.state_.search.notes[0]
    assert gains.startswith(f"mean            {expected}")
    if expected == "linear":
        assert "blocks left out at the edges" in gains
        far = model.predict_dist([[8.0, 0.0], [-8.0, 0.0]])
        low, high = far.interval(0.99)
        assert ((low < [16, -16]) & (high > [16, -16])).all()
        assert (far.std < 1.0).all()


def test_a_line_is_taken_where_leaves_cannot_learn_it_and_zero_stays_elsewhere(rng):
    X = rng.uniform(-3, 3, size=(300, 2))
    wiggle = np.sin(9 * X[:, 0]) * np.cos(7 * X[:, 1])
    for slope, expected in ((4.0, "linear"), (0.0, "zero")):
        data, leaves = two_leaves(rng, slope * X[:, 0] + wiggle, X)
        family = build_family("rbf", data, CONFIG)
        # Length scales of the wiggle: what a line leaves to be explained.
        theta = family.processes[0].theta.copy()
        theta[1:3] = np.log(0.1)
        family = family.with_processes([family.processes[0].with_theta(theta)])
        choice = choose_mean(leaves, data, family, rng)
        assert choice.mean == expected
        assert set(choice.gains) == {"constant", "linear"}
        assert choice.note.startswith(f"mean            {expected} (")


def test_no_blocks_are_left_out_along_effects_of_levels(rng):
    """They have no outside; numbers of the table have."""
    data, _ = two_leaves(rng, rng.normal(size=100))
    family, rows = build_family("rbf", data, CONFIG), np.arange(100)
    assert {block.column for block in edge_blocks_of(data, family, rows)} == {0, 1}
    measured = replace(data, measured_inputs=np.array([1]))
    assert {block.column for block in edge_blocks_of(measured, family, rows)} == {1}
    frame = pd.DataFrame({"c": [f"l{k % 70}" for k in range(210)], "x": rng.normal(size=210)})
    model = DSMGPRegressor("rbf", max_iter=2, hypotheses=None, random_state=0)
    state = model.fit(frame, rng.normal(size=210)).state_
    assert state.schema.input_names == ["c effect", "x"]
    assert {block.column for block in blocks_of(state, CONFIG)} == {1}


def test_a_covariance_that_takes_jitter_does_not_end_the_choice(rng, monkeypatch):
    """The model factorises it too. With an output scale that is huge beside the noise, no matrix is positive definite in double precision."""
    data, leaves = two_leaves(rng, rng.normal(size=200))
    (process,) = build_family("rbf", data, CONFIG).processes
    theta = process.theta.copy()
    theta[:] = np.log([1e12, 30.0, 30.0, 1e-6])
    process = process.with_theta(theta)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(process.kernel(data.scaled_X) + process.noise * np.eye(200))
    family = build_family("rbf", data, CONFIG).with_processes([process])
    assert set(choose_mean(leaves, data, family, rng).gains) == {"constant", "linear"}

    def fail(*_):
        raise error

    monkeypatch.setattr(mean_module, "cholesky", fail)
    error = NotFactorisedError()
    assert choose_mean(leaves, data, family, rng) is None
    error = np.linalg.LinAlgError("a fault")
    with pytest.raises(np.linalg.LinAlgError, match="a fault"):
        choose_mean(leaves, data, family, rng)


def test_another_mean_keeps_what_was_learned(rng):
    data, _ = two_leaves(rng, rng.normal(size=40))
    family = build_family("rbf", data, CONFIG)
    family = family.with_processes([family.processes[0].with_theta(rng.normal(size=4))])
    linear = with_mean(family, "linear", data, CONFIG)
    assert linear.leaf_kernels[0].mean_kind == "linear"
    np.testing.assert_array_equal(linear.processes[0].theta[:3], 0.0)
    np.testing.assert_array_equal(linear.processes[0].theta[3:], family.processes[0].theta)


def test_the_summary_says_which_and_why(rng):
    X = rng.normal(size=(120, 2))
    model = DSMGPRegressor(hypotheses=None, random_state=0)
    model.fit(X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=120))
    assert any(
        line.startswith("mean            zero (leave-one-out")
        for line in model.summary().splitlines()
    )
    given = DSMGPRegressor(mean="constant", random_state=0).fit(X, X[:, 0])
    assert not given.state_.search.notes
