"""The baselines that are written in GPyTorch against dense algebra on small data; and that they learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

torch = pytest.importorskip("torch")
gpytorch = pytest.importorskip("gpytorch")

from dsmgp import scores  # noqa: E402
from dsmgp.baselines import KISSGP, SVGP, ExactGP, PoE  # noqa: E402
from dsmgp.baselines.kiss import (  # noqa: E402
    _Additive,
    _grid_posterior,
    _Grids,
    _log_evidence,
    _Moments,
)
from dsmgp.gp.kernels import Kernel, KernelTerm  # noqa: E402
from tests.baselines.contract import (  # noqa: E402
    beats_a_linear_model,
    holds_its_contract,
    ignores_units,
)

SMALL = [SVGP(n_inducing=20, max_iter=200, random_state=0), KISSGP(grid_size=20)]


@pytest.fixture
def test_inputs(rng):
    return rng.uniform(-3, 3, size=(25, 2))  # some of them beyond the data


# KISS


def dense_ski(model, X, n_dims):
    """GPyTorch's own interpolated kernels, one for each input, added up."""
    total = 0.0
    for d in range(n_dims):
        base = gpytorch.kernels.RBFKernel().double()
        base.lengthscale = model.log_length[d].exp().detach()
        interpolated = gpytorch.kernels.GridInterpolationKernel(
            base, grid_size=model.points.shape[1], grid_bounds=((-1.0, 1.0),)
        ).double()
        interpolated.update_grid([model.points[d, :, 0]])
        total = total + model.log_scale[d].exp() * interpolated(X[:, d : d + 1]).to_dense()
    return total


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of GPyTorch, in the oracle only
def test_kiss_evidence_is_that_of_the_interpolated_kernel(wavy):
    X, y = wavy
    fitted = KISSGP(grid_size=24, max_iter=5, standardize=False).fit(X, y)
    grids = fitted._grids
    model = _Additive("rbf", grids, 1.0)
    with torch.no_grad():
        model.log_length += torch.tensor([0.3, -0.4])
    W = grids.weights(X)
    facts = _Moments(
        torch.from_numpy((W.T @ W).toarray()), torch.from_numpy(W.T @ y), float(y @ y), len(y)
    )
    with torch.no_grad():
        C = dense_ski(model, torch.from_numpy(X), 2).numpy() + float(model.noise) * np.eye(len(y))
    expected = multivariate_normal.logpdf(y, np.zeros(len(y)), C)
    np.testing.assert_allclose(_log_evidence(model, facts).item(), expected, rtol=1e-6)


def test_kiss_predictions_are_those_of_the_interpolated_kernel(wavy, test_inputs):
    X, y = wavy
    grids = _Grids.around(X, 24)
    model = _Additive("rbf", grids, 1.0)
    W, W_test = grids.weights(X), grids.weights(test_inputs)
    facts = _Moments(
        torch.from_numpy((W.T @ W).toarray()), torch.from_numpy(W.T @ y), float(y @ y), len(y)
    )
    mean, half, noise = _grid_posterior(model, facts)
    with torch.no_grad():
        L = torch.block_diag(*model.factor()).numpy()
    K = L @ L.T
    C, cross = W @ K @ W.T + noise * np.eye(len(y)), W @ K @ W_test.T
    np.testing.assert_allclose(W_test @ mean, cross.T @ np.linalg.solve(C, y), atol=1e-9)
    expected = np.diag(W_test @ K @ W_test.T - cross.T @ np.linalg.solve(C, cross))
    np.testing.assert_allclose(np.square(W_test @ half).sum(axis=1), expected, atol=1e-9)


def test_kiss_learns_an_additive_function(rng):
    X = rng.uniform(-2, 2, size=(400, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=400)
    model = KISSGP().fit(X[:300], y[:300])
    predicted = model.predict_dist(X[300:])
    assert scores.rmse(y[300:], predicted.mean) < 0.13
    assert 0.08 < np.median(predicted.std) < 0.13
    assert np.isfinite(model.predict([[9.0, -9.0, 0.0]])).all()  # beyond the grids


# SVGP


def test_svgp_with_a_point_at_every_row_is_close_to_the_exact_gp(rng):
    X = np.linspace(-2, 2, 40)[:, None]
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=40)
    model = SVGP(n_inducing=40, max_iter=400, batch_size=40, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    exact_mean, exact_std = ExactGP(random_state=0).fit(X, y).predict(X, return_std=True)
    np.testing.assert_allclose(mean, exact_mean, atol=0.05)
    np.testing.assert_allclose(std, exact_std, atol=0.03)
    path = model.path_[0]
    assert path[-1] > path[0]


def test_svgp_law_is_titsias_best_for_its_theta_and_points(wavy, test_inputs):
    X, y = wavy
    fitted = SVGP(15, max_iter=400, batch_size=len(y), standardize=False, random_state=0).fit(X, y)
    model = fitted._models[0]
    rows, test, y = (torch.from_numpy(A) for A in (X, test_inputs, y))
    with torch.no_grad():
        points, noise = model.variational_strategy.inducing_points, model.likelihood.noise
        K = model.kernel(points, points).to_dense()
        K = K + 1e-6 * torch.eye(len(K), dtype=K.dtype)  # GPyTorch's jitter
        K_rows, K_test = (model.kernel(points, A).to_dense() for A in (rows, test))
        A = K + K_rows @ K_rows.mT / noise
        mean = K_test.mT @ torch.linalg.solve(A, K_rows @ y) / noise
        known = (K_test * torch.linalg.solve(K, K_test)).sum(0)
        left = (K_test * torch.linalg.solve(A, K_test)).sum(0)
        variance = model.kernel(test, diag=True) - known + left + noise
    predicted = fitted.predict_dist(test_inputs)
    np.testing.assert_allclose(predicted.mean, mean.numpy(), atol=1e-3)
    np.testing.assert_allclose(predicted.var, variance.numpy(), atol=1e-3)


# GPyTorch's kernels in the other baselines


@pytest.mark.parametrize("model", [ExactGP(), PoE(leaf_size=30)])
def test_a_kernel_of_gpytorch_is_its_named_twin(model, wavy, test_inputs):
    named = Kernel((KernelTerm("rbf", [0.8, 1.7], 1.3),))
    fixed = {"noise_variance": 0.05, "optimizer": None, "standardize": False, "random_state": 0}
    ours, theirs = (
        clone(model).set_params(kernel=kernel, **fixed).fit(*wavy).predict(test_inputs, True)
        for kernel in (named, named.to_gpytorch())
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


# The contract of all


@pytest.mark.parametrize("model", [SVGP(n_inducing=20, max_iter=50, random_state=0), SMALL[1]])
def test_contract(model, wavy):
    holds_its_contract(clone(model), *wavy)


@pytest.mark.parametrize("model", SMALL)
def test_they_beat_a_linear_model(model, wavy, rng):
    beats_a_linear_model(clone(model), *wavy, rng)


def test_units_do_not_matter_to_kiss(wavy):
    ignores_units(KISSGP(grid_size=20), *wavy)


@parametrize_with_checks([KISSGP(12, max_iter=5)])
def test_scikit_learns_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([SVGP(n_inducing=5, max_iter=100)])
def test_scikit_learns_estimator_checks_of_svgp(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SVGP(n_inducing=0), "n_inducing"),
        (KISSGP(grid_size=2), "grid_size"),
        (KISSGP(kernel="rq"), "kernel"),
    ],
)
def test_what_cannot_be_is_refused(model, message, wavy):
    with pytest.raises(ValueError, match=message):
        model.fit(*wavy)
