"""A weighted sum of models has the predictive distribution of that sum, by any of its methods."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, Mixture
from dsmgp.mixture.ensemble import Ensemble
from dsmgp.mixture.fitted_model import Predictive, check_supported

WEIGHTS = np.array([0.6, 0.3, 0.1])


@pytest.fixture(scope="module")
def models():
    rng = np.random.default_rng(3)
    X = rng.exponential(size=(80, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=80)
    settings = [{}, {"input_warp": "rank"}, {"mean": "linear", "leaf_size": 30}]
    fits = [DSMGPRegressor("rbf", random_state=0, **each).fit(X, y) for each in settings]
    return [fit.state_.model for fit in fits]


@pytest.fixture(scope="module")
def ensemble(models):
    return Ensemble(tuple(models), WEIGHTS)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(4).exponential(size=(9, 2))


def test_it_has_all_that_predicts(ensemble):
    members = [name for name in dir(Predictive) if not name.startswith("_")]
    assert len(members) > 6
    assert [name for name in members if not hasattr(ensemble, name)] == []


def test_density_and_probabilities_are_sums_over_models(ensemble, models, X):
    mixture, y = ensemble.mixture(X), np.linspace(-1, 3, 9)
    parts = [model.mixture(X) for model in models]
    np.testing.assert_allclose(
        mixture.pdf(y), sum(w * p.pdf(y) for w, p in zip(WEIGHTS, parts, strict=True))
    )
    np.testing.assert_allclose(
        mixture.cdf(y), sum(w * p.cdf(y) for w, p in zip(WEIGHTS, parts, strict=True))
    )
    np.testing.assert_allclose(mixture.weights.sum(axis=1), 1.0)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.95])
def test_quantiles_invert_the_sum(ensemble, models, X, level):
    quantile = ensemble.mixture(X).quantile(level)
    total = sum(w * m.mixture(X).cdf(quantile) for w, m in zip(WEIGHTS, models, strict=True))
    np.testing.assert_allclose(total, level, atol=1e-10)


@pytest.mark.parametrize("include_noise", [False, True])
def test_moments_are_those_of_the_mixture(ensemble, X, include_noise):
    mixture = ensemble.mixture(X, include_noise, squeeze=False)
    mean, std = ensemble.moments(X, include_noise)
    np.testing.assert_allclose(ensemble.mean(X), mean)
    np.testing.assert_allclose(mean, mixture.mean)
    np.testing.assert_allclose(std, mixture.std)
    joint_mean, covariance = ensemble.covariance(X, include_noise)
    np.testing.assert_allclose(joint_mean, mean, rtol=1e-7)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance[0])), std[:, 0], rtol=1e-6)


def test_draws_have_the_joint_moments(ensemble, X):
    mean, covariance = ensemble.covariance(X)
    draws = ensemble.draws(X, 6000, np.random.default_rng(0), include_noise=True)
    assert draws.shape == (len(X), 1, 6000)
    spread = np.sqrt(np.diagonal(covariance[0]).max())
    np.testing.assert_allclose(draws.mean(-1), mean, atol=6 * spread / np.sqrt(6000))
    np.testing.assert_allclose(np.cov(draws[:, 0]), covariance[0], atol=0.15 * spread**2)


def test_noise_is_the_variance_of_y_beyond_that_of_f(ensemble, X):
    of_y, of_f = (np.square(ensemble.moments(X, noisy)[1]) for noisy in (True, False))
    np.testing.assert_allclose(ensemble.noise_at(X), of_y - of_f, rtol=1e-6)


def test_fine_tuning_is_refused_with_the_remedy(ensemble):
    with pytest.raises(ValueError, match="several hypotheses; fit with hypotheses=None"):
        check_supported(ensemble, "finetune")


def test_mixtures_in_other_units_are_not_joined(models, X):
    mixture = models[0].mixture(X)
    other = Mixture(np.ones((9, 1)), np.zeros((9, 1, 1)), np.ones((9, 1, 1)))
    with pytest.raises(ValueError, match="the same units"):
        Mixture.joined([mixture, other], [0.5, 0.5])
    with pytest.raises(ValueError, match="a weight for each of 1 mixtures, got 2"):
        Mixture.joined([mixture], [0.5, 0.5])
