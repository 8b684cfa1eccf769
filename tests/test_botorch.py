"""BoTorch's acquisition functions on the mixture's posterior, and leaves as GPyTorch's exact GPs."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor

pytest.importorskip("botorch")

import gpytorch
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import Hartmann

from dsmgp.botorch import DSMGPModel, MixturePosterior


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(120, 2))
    y = np.sin(6 * X[:, 0]) - (X[:, 1] - 0.4) ** 2 + 0.05 * rng.normal(size=120)
    return DSMGPRegressor("rbf", leaf_size=50, max_iter=15, random_state=0).fit(X, y)


def test_the_posterior_has_the_models_moments(fitted):
    model = DSMGPModel(fitted)
    X = torch.rand(4, 3, 2, dtype=torch.float64)
    for noise in (False, True):
        posterior = model.posterior(X, observation_noise=noise)
        assert posterior.mean.shape == (4, 3, 1)
        for b in range(4):
            mean, cov = fitted.predict(X[b].numpy(), return_cov=True, include_noise=noise)
            np.testing.assert_allclose(posterior.mean[b, :, 0], mean)
            np.testing.assert_allclose(posterior.distribution.covariance_matrix[b], cov, atol=1e-12)
    one = model.posterior(X[:, :1])
    mean, std = fitted.predict(X[:, 0].numpy(), return_std=True, include_noise=False)
    np.testing.assert_allclose(one.mean[:, 0, 0], mean)
    np.testing.assert_allclose(one.variance[:, 0, 0], std**2)


@pytest.mark.parametrize("q", [1, 2])
def test_gradients_are_those_of_the_moments(fitted, q):
    model = DSMGPModel(fitted)
    X = torch.rand(3 - q, q, 2, dtype=torch.float64, requires_grad=True)

    def value(X):
        posterior = model.posterior(X)
        return (posterior.mean.sum(dim=(-1, -2)) + posterior.distribution.covariance_matrix.sum((-1, -2))).sum()  # fmt: skip

    (gradient,) = torch.autograd.grad(value(X), X)
    step = 1e-4
    for index in np.ndindex(*X.shape):
        moved = torch.zeros_like(X)
        moved[index] = step
        with torch.no_grad():
            slope = (value(X + moved) - value(X - moved)) / (2 * step)
        assert gradient[index] == pytest.approx(float(slope), rel=1e-2, abs=1e-3)


def test_draws_of_the_mixture_have_its_moments(fitted):
    model = DSMGPModel(fitted, posterior_kind="mixture")
    X = torch.rand(2, 3, 2, dtype=torch.float64)
    posterior = model.posterior(X)
    assert isinstance(posterior, MixturePosterior)
    torch.manual_seed(0)
    draws = posterior.rsample(torch.Size([4000]))
    assert draws.shape == (4000, 2, 3, 1)
    np.testing.assert_allclose(draws.mean(0), posterior.mean, atol=0.02)
    np.testing.assert_allclose(draws.var(0), posterior.variance, rtol=0.15, atol=1e-4)
    torch.manual_seed(0)
    assert torch.equal(posterior.rsample(torch.Size([4000])), draws)


def test_acquisition_functions_by_monte_carlo_work_on_the_mixture(fitted):
    model = DSMGPModel(fitted, posterior_kind="mixture")
    value = qLogExpectedImprovement(model, best_f=0.5)
    candidates = torch.rand(20, 2, dtype=torch.float64)
    best, gain = optimize_acqf_discrete(value, q=2, choices=candidates)
    assert best.shape == (2, 2)
    assert torch.isfinite(gain).all()
    moments = qLogExpectedImprovement(
        DSMGPModel(fitted), best_f=0.5, sampler=SobolQMCNormalSampler(torch.Size([256]), seed=0)
    )
    singles = candidates[:, None, :]
    assert torch.corrcoef(torch.stack([value(singles), moments(singles)]))[0, 1] > 0.9


def test_several_outputs_are_independent_gaussians():
    X = np.random.default_rng(0).uniform(size=(60, 1))
    Y = np.column_stack([np.sin(6 * X[:, 0]), X[:, 0] ** 2])
    fitted = DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, Y)
    model = DSMGPModel(fitted)
    assert model.num_outputs == 2
    posterior = model.posterior(torch.rand(5, 2, 1, dtype=torch.float64))
    assert posterior.mean.shape == (5, 2, 2)
    assert model.posterior(torch.rand(5, 2, 1), output_indices=[1]).mean.shape == (5, 2, 1)


def test_further_rows_are_taken_in(fitted):
    model = DSMGPModel(fitted)
    X = torch.tensor([[1.5, 0.5]], dtype=torch.float64)
    more = model.condition_on_observations(X.repeat(3, 1), torch.full((3, 1), 7.0))
    assert len(more.train_targets) == 123
    assert more.posterior(X).mean.item() > model.posterior(X).mean.item() + 1
    assert more.posterior(X).variance.item() < model.posterior(X).variance.item()


def test_a_batch_of_rows_is_not_taken_for_more_rows(fitted):
    model = DSMGPModel(fitted)
    X, Y = torch.rand(4, 2, 2, dtype=torch.float64), torch.zeros(4, 2, 1)
    for rows, outputs in ((X, Y), (X[0], Y), (X, Y[0])):
        with pytest.raises(NotImplementedError, match="one set of rows after the other"):
            model.condition_on_observations(rows, outputs)
    assert len(model.condition_on_observations(X[:1], Y[:1]).train_targets) == 122


def test_gradients_of_draws_are_refused_with_the_remedy(fitted):
    value = qLogExpectedImprovement(DSMGPModel(fitted, posterior_kind="mixture"), best_f=0.5)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="optimize_acqf_discrete"):
        optimize_acqf(value, bounds, q=1, num_restarts=1, raw_samples=4)
    with torch.no_grad():  # nobody asks for any
        assert torch.isfinite(value(torch.rand(1, 1, 2).double().requires_grad_())).all()


def test_methods_that_need_several_models_are_refused(fitted):
    model = DSMGPModel(fitted)
    sampler = SobolQMCNormalSampler(torch.Size([4]))
    with pytest.raises(NotImplementedError, match="one draw at a time"):
        model.fantasize(torch.rand(1, 2), sampler)
    with pytest.raises(NotImplementedError, match=r"output_indices=\[0\]"):
        model.subset_output([0])


def test_wrong_requests_are_refused(fitted):
    with pytest.raises(ValueError, match="'moments' or 'mixture'"):
        DSMGPModel(fitted, posterior_kind="samples")
    with pytest.raises(AttributeError, match="not fitted"):
        DSMGPModel(DSMGPRegressor())


# Where leaves meet, the acquisition function has small edges, at which a line search may end early.
@pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")
@pytest.mark.slow  # half a minute of fits
def test_optimising_hartmann_beats_random_search():
    """2,000 rows to begin with, then a few that expected improvement asks for."""
    function = Hartmann(dim=6, negate=True)
    rng = np.random.default_rng(0)
    n_more = 6
    X = rng.uniform(size=(2000, 6))
    y = function(torch.from_numpy(X)).numpy()
    regressor = DSMGPRegressor("matern52", effort="low", random_state=0).fit(X, y)
    model, best = DSMGPModel(regressor), float(y.max())
    torch.manual_seed(0)
    for _ in range(n_more):
        start = model.train_inputs[0][model.train_targets[:, 0].argsort()[-3:], None]
        new, _ = optimize_acqf(
            LogExpectedImprovement(model, best_f=best),
            bounds=torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.float64),
            q=1, num_restarts=3, batch_initial_conditions=start, options={"maxiter": 15},
        )  # fmt: skip
        seen = function(new)
        best = max(best, float(seen.max()))
        model = model.condition_on_observations(new, seen.reshape(-1, 1))
    random = float(function(torch.from_numpy(rng.uniform(size=(2000 + n_more, 6)))).max())
    assert best > random + 0.1
    assert best > 3.0  # of 3.32


# Leaves as exact GPs


def assert_leaves_predict_the_same(model, X):
    """Compare the first and the last leaf with what GPyTorch predicts from their modules."""
    fitted = model.state_.model
    Z = fitted.to_experts(X[:7] + 0.1)
    for leaf in (0, len(fitted.family) - 1):
        exact = model.to_gpytorch(leaf=leaf)
        with torch.no_grad():
            predicted = exact(torch.from_numpy(Z))
        mean, covariance = fitted.leaf_posterior.joint(leaf, Z)
        np.testing.assert_allclose(predicted.mean, mean[:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(predicted.covariance_matrix, covariance[0], rtol=1e-4, atol=1e-5)
        noise = float(fitted.leaf_posterior.noise[leaf, 0])
        assert exact.likelihood.noise.item() == pytest.approx(noise)


SETTINGS = {
    "rbf": {"kernel": "rbf"},
    "rq, linear mean": {"kernel": "rq", "mean": "linear"},
    "sum": {"kernel": "rbf+periodic", "mean": "constant"},
    "module in closed form": {"kernel": gpytorch.kernels.RBFKernel(), "mean": "constant"},
    "module without": {"kernel": gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel()},
}


def fit(X, y, **settings):
    return DSMGPRegressor(
        hypotheses=None, leaf_size=60, max_iter=5, random_state=0, **settings
    ).fit(X, y)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_leaf_in_gpytorch_predicts_the_same(wavy, settings):
    assert_leaves_predict_the_same(fit(*wavy, **settings), wavy[0])


def test_a_leaf_of_one_of_several_families_predicts_the_same(wavy):
    assert_leaves_predict_the_same(fit(*wavy, kernel="auto", mean="constant"), wavy[0])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_fine_tuned_leaf_has_its_own_hyperparameters(wavy, settings):
    model = fit(*wavy, **settings)
    of_family = model.to_gpytorch().likelihood.noise.item()
    model.finetune(max_iter=3, parameters="all")
    assert model.to_gpytorch().likelihood.noise.item() != pytest.approx(of_family, rel=1e-3)
    assert_leaves_predict_the_same(model, wavy[0])


def test_known_noise_adds_to_that_of_the_leaf(wavy):
    X, y = wavy
    known = np.linspace(0.01, 0.3, len(y))
    model = DSMGPRegressor("rbf", leaf_size=60, max_iter=5, random_state=0).fit(X, y, noise=known)
    posterior = model.state_.model.leaf_posterior
    rows = posterior.leaf_gps.leaf_rows[0]
    expected = posterior.leaf_gps.data.known_noise[rows, 0] + posterior.noise[0, 0]
    np.testing.assert_allclose(model.to_gpytorch().likelihood.noise.numpy(), expected)


def test_leaves_out_of_range_are_refused(fitted):
    with pytest.raises(ValueError, match="expected a leaf from 0 to"):
        fitted.to_gpytorch(leaf=10_000)
    with pytest.raises(ValueError, match="expected a leaf from 0 to"):
        fitted.to_gpytorch(leaf="first")
    with pytest.raises(ValueError, match="expected an output from 0 to 0"):
        fitted.to_gpytorch(output=1)


def test_a_warped_model_has_its_moments_and_draws_above_its_bound():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(80, 2))
    y = np.exp(np.sin(6 * X[:, 0]) + 0.2 * rng.normal(size=80))
    warped = DSMGPRegressor("rbf", leaf_size=50, max_iter=5, output_warp="log", random_state=0)
    model, new = DSMGPModel(warped.fit(X, y)), torch.rand(3, 2, dtype=torch.float64)
    mean, covariance = warped.predict(new.numpy(), return_cov=True, include_noise=False)
    posterior = model.posterior(new)
    np.testing.assert_allclose(posterior.mean[:, 0], mean)
    np.testing.assert_allclose(posterior.distribution.covariance_matrix, covariance, atol=1e-12)
    draws = DSMGPModel(warped, "mixture").posterior(new).rsample(torch.Size([50]))
    assert (draws > 0).all()
    assert (model.condition_on_observations(new, torch.ones(3, 1)).posterior(new).mean > 0).all()
