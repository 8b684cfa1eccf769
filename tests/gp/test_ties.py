"""Inputs that share a length scale: gradients by finite differences, the same process as one with equal length scales, units of a group."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.learning.optimize import evidence_objective
from dsmgp.fitting.rows.scaled_rows import coordinate_ties
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.metric_process import metric_directions, metric_process
from dsmgp.gp.process import build_process
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.scaling import InputScaling
from dsmgp.tree import leaves
from dsmgp.tree.growing import grow_paper
from tests.support.finite_differences import central_difference

TIES = (0, 1, 1, 1, 2)
KERNELS = ("rbf", "matern12", "matern32", "matern52", "rq", "periodic", "matern32+periodic")
SPREAD = np.array([1.0, 2.0, 2.0, 2.0, 0.5])


def process_of(kernel, mean="constant", ties=TIES):
    return build_process(kernel, mean, 0.1, len(TIES), spread=SPREAD, ties=ties)


def untied(process):
    """The process without ties at the same values."""
    parts = np.split(process.theta, np.cumsum([b.size for b in process.blocks])[:-1])
    pairs = zip(process.blocks, parts, strict=True)
    theta = [p[list(TIES)] if b.name == "lengthscale" else p for b, p in pairs]
    return process_of(process.kernel, ties=None).with_theta(np.concatenate(theta))


def without_priors(process):
    """Of length scales that are tied the prior counts once, of others each time."""
    return replace(process, blocks=tuple(replace(b, prior=None) for b in process.blocks))


@pytest.fixture
def rows(rng):
    X = np.column_stack(
        [rng.normal(size=60), np.eye(3)[rng.integers(0, 3, 60)], rng.normal(size=60)]
    )
    Y = (np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=60))[:, None]
    return X, Y, grow_paper(X, leaf_size=20, sum_children=2, product_children=2, depth=1, rng=rng)


def objective_of(process, rows):
    X, Y, tree = rows
    leaf_gps = InMemoryLeafGPs(leaves(tree), LeafData(X, Y), [process.leaf_kernel])
    return evidence_objective(tree, leaf_gps, [process], range(1))


@pytest.mark.parametrize("mean", ["zero", "linear"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_gradient_of_the_evidence_equals_finite_differences(rows, rng, kernel, mean):
    process = process_of(kernel, mean)
    assert process.names.count("lengthscale") == 3 * len(kernel.split("+"))
    theta = process.theta + 0.2 * rng.normal(size=len(process.theta))
    objective = objective_of(process, rows)
    expected = central_difference(lambda at: np.array(objective(at)[0]), theta)
    np.testing.assert_allclose(
        objective(theta)[1], expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max()
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_ties_are_length_scales_that_are_equal(rows, rng, kernel):
    process = process_of(kernel)
    process = process.with_theta(process.theta + 0.2 * rng.normal(size=len(process.theta)))
    other = untied(process)
    np.testing.assert_allclose(other.kernel_parameters(), process.kernel_parameters(), rtol=1e-13)
    evidence, gradient = objective_of(without_priors(process), rows)(process.theta)
    expected, by_each = objective_of(without_priors(other), rows)(other.theta)
    assert evidence == pytest.approx(expected, rel=1e-10)
    # The derivative by a tied length scale is the sum over its inputs.
    n_terms = len(process.kernel.terms)
    tied = gradient[np.array(process.names) == "lengthscale"].reshape(n_terms, 3)
    each = by_each[np.array(other.names) == "lengthscale"].reshape(n_terms, 5)
    for k in range(n_terms):
        np.testing.assert_allclose(tied[k], np.bincount(TIES, each[k]), rtol=1e-7, atol=1e-8)


def test_a_table_of_thetas_gives_what_each_row_gives(rng):
    process = process_of("matern32+periodic", "linear")
    table = process.theta + 0.3 * rng.normal(size=(4, len(process.theta)))
    parameters = process.kernel_parameters(table)
    gradient = rng.normal(size=parameters.shape)
    back = process.pull_back(table, gradient)
    for k, theta in enumerate(table):
        np.testing.assert_allclose(parameters[k], process.kernel_parameters(theta), rtol=1e-14)
        np.testing.assert_allclose(back[k], process.pull_back(theta, gradient[k]), rtol=1e-12)


def test_a_metric_starts_at_the_tied_length_scales(rng):
    process = process_of("rbf")
    process = process.with_theta(process.theta + 0.2 * rng.normal(size=len(process.theta)))
    metric = metric_process(process, rank=5)
    A = metric_directions(metric)
    lengthscale = process.kernel.terms[0].lengthscale
    np.testing.assert_allclose(A @ A.T, np.diag(1 / lengthscale**2), rtol=1e-10, atol=1e-14)
    assert np.isfinite(metric.log_prior(metric.theta)[0])


def test_a_kernel_that_is_given_has_a_value_for_each_input():
    given = process_of("rbf").kernel
    assert isinstance(given, Kernel)
    assert process_of(given).ties is None


@pytest.mark.parametrize("shares", [[0.2, 0.3, 0.5], [0.01, 0.01, 0.98]])
def test_a_group_has_unit_variance_together(rng, shares):
    X = np.column_stack([rng.normal(size=5000), np.eye(3)[rng.choice(3, 5000, p=shares)]])
    scaling = InputScaling.of(X, True, ties=[0, 1, 1, 1])
    scaled = scaling.scaled(X)
    np.testing.assert_allclose(scaled.var(axis=0)[0], 1.0)
    assert scaled[:, 1:].var(axis=0).sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(scaling.scale[1:], scaling.scale[1])
    # All levels are equally far from one another.
    levels = scaling.scaled(np.column_stack([np.zeros(3), np.eye(3)]))
    gaps = [np.linalg.norm(levels[a] - levels[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    np.testing.assert_allclose(gaps, gaps[0])


def test_ties_follow_the_columns_of_coordinates():
    ties = np.array([0, 1, 1, 3])
    assert coordinate_ties(None, None) is None
    assert coordinate_ties(np.arange(3), None) is None
    assert coordinate_ties(ties, None) == (0, 1, 1, 2)
    assert coordinate_ties(np.array([0, 0, 2]), None) == (0, 0, 1)
    chosen = Coordinates(4, np.array([3, 2, 0, 1, 3]), (None,) * 5)
    assert coordinate_ties(ties, chosen) == (0, 1, 2, 1, 3)
    metric = Coordinates(4, np.arange(4), (None,) * 4, np.eye(4))
    assert coordinate_ties(ties, metric) is None


def test_levels_of_a_fitted_category_share_a_length_scale(rng):
    frame = pd.DataFrame({"x": rng.normal(size=150), "c": rng.choice(["u", "v", "w"], 150)})
    y = np.sin(frame["x"]) * (frame["c"] == "u") + 0.1 * rng.normal(size=150)
    model = DSMGPRegressor("rbf", leaf_size=60, max_iter=10, random_state=0).fit(frame, y)
    scales = np.ravel(model.kernel_.terms[0].lengthscale)
    assert scales[1] == scales[2] == scales[3] != scales[0]
    model.finetune(parameters="all", max_iter=2, rounds=1)
    assert np.isfinite(model.predict(frame)).all()
