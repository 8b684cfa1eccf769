"""The objective of theta: exact gradients, no value where a covariance cannot be factorised, and no hidden errors."""

import numpy as np
import pytest

from dsmgp import ChangePoints
from dsmgp.changepoints import leaf as leaf_module
from dsmgp.changepoints.fit import prepare
from dsmgp.changepoints.leaf import OrderedLeaf
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.leaf_setup import build_family
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.tree import Leaf, Region, Sum
from dsmgp.tree.changepoint_leaf import ChangePointLeaf


@pytest.fixture
def objective(rng):
    x = np.sort(rng.uniform(0, 5, size=30))
    Y = (np.sin(x) + 2 * (x > 2))[:, None]
    settings = FitConfig(kernel="rbf", structure=ChangePoints(n_changes=1))
    data = prepare(x[:, None], Y, settings, rng)
    return data.objective(build_family("rbf", data.rows, settings), np.ones_like(Y))


def fail_with(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(leaf_module, "PrefixGPs", fail)


def test_a_covariance_without_factor_has_no_value(objective, monkeypatch):
    theta = objective.theta
    assert np.isfinite(objective(theta)[0])
    fail_with(monkeypatch, NotFactorisedError())
    value, gradient = objective(theta)
    assert value == -np.inf
    assert not gradient.any()


@pytest.mark.parametrize("error", [ValueError, np.linalg.LinAlgError])
def test_other_errors_are_not_hidden_by_the_search(objective, monkeypatch, error):
    fail_with(monkeypatch, error("a fault"))
    with pytest.raises(error, match="a fault"):
        objective(objective.theta)


def test_a_covariance_that_cannot_be_factorised_is_reported_with_the_remedy(objective):
    objective.noise_factor = -1e6 * objective.noise_factor
    with pytest.raises(NotFactorisedError, match="raise noise_variance"):
        objective.condition(memory=0.0)


@pytest.mark.parametrize("shift", [800.0, -800.0, -300.0, np.nan, np.inf])
def test_a_theta_far_off_has_a_value_or_none_but_no_warnings(objective, shift):
    start = objective.theta
    for i in range(len(start)):
        theta = start.copy()
        theta[i] += shift
        value, gradient = objective(theta)
        assert np.isfinite(value) or (value == -np.inf and not gradient.any())
        assert np.isfinite(gradient).all()


def test_a_restarted_objective_is_independent_of_the_first(objective):
    processes, theta = objective.processes, objective.theta
    other = objective.restarted()
    other(theta + 0.5)
    np.testing.assert_array_equal(objective.theta, theta)
    objective(theta + 1.0)
    np.testing.assert_array_equal(processes[0].theta, theta)
    np.testing.assert_array_equal(objective.processes[0].theta, theta + 1.0)
    np.testing.assert_array_equal(other.processes[0].theta, theta + 0.5)


@pytest.mark.parametrize(
    "structure",
    [
        ChangePoints(n_changes=1),
        ChangePoints(hazard=0.05),
        ChangePoints(hazard=0.7, gaps="length"),
        Sum(
            [
                Leaf(Region.whole(1)),
                ChangePointLeaf(Region.whole(1), changes=ChangePoints(hazard=0.1)),
            ]
        ),
    ],
)
@pytest.mark.parametrize(("mean", "pays"), [("zero", True), ("linear", True), ("linear", False)])
def test_the_gradient_of_the_evidence_equals_finite_differences(
    structure, mean, pays, rng, monkeypatch
):
    allowed = OrderedLeaf.has_hazard
    monkeypatch.setattr(
        OrderedLeaf, "_differences_are_cheaper", lambda leaf, *_: pays and allowed.fget(leaf)
    )
    x = np.sort(rng.uniform(0, 5, size=40))
    Y = np.column_stack([np.sin(x) + 2 * (x > 2), np.cos(x) - (x > 2)])
    Y += 0.2 * rng.normal(size=Y.shape)
    settings = FitConfig(kernel="matern32", mean=mean, structure=structure, leaf_sizes=[17])
    data = prepare(x[:, None], Y, settings, rng)
    family = build_family("matern32", data.rows, settings)
    objective = data.objective(family, rng.uniform(0.5, 2, size=Y.shape))
    theta = objective.theta + 0.3 * rng.normal(size=objective.theta.shape)
    _, gradient = objective(theta)
    for i in range(len(theta)):
        step = np.zeros_like(theta)
        step[i] = 1e-5
        slope = (objective(theta + step)[0] - objective(theta - step)[0]) / 2e-5
        assert gradient[i] == pytest.approx(slope, rel=2e-5, abs=2e-5)
