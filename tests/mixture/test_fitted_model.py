"""The protocol of fitted models: both kinds implement it, and what one does not support is refused in one way."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.mixture.fitted_model import FittedModel, Unsupported, check_supported
from dsmgp.tree import Product, Region, Sum
from dsmgp.tree.changepoint_leaf import ChangePointLeaf


def changepoint_tree():
    """A sum over the whole input space, and over two halves of it, all with change points."""
    whole = Region.whole(1)
    halves = [ChangePointLeaf(half) for half in whole.split(0, [0.3])]
    return Sum([Product(halves, dimension=0, splits=[0.3]), ChangePointLeaf(whole)])


KINDS = {
    "mixture": {"leaf_size": 20},
    "changepoint": {"structure": "changepoint"},
    "changepoint tree": {"structure": changepoint_tree()},
}


@pytest.fixture(scope="module", params=KINDS)
def fitted(request):
    rng = np.random.default_rng(0)
    X = np.linspace(0, 1, 60)[:, None]
    y = (X[:, 0] > 0.5) + 0.05 * rng.normal(size=60)
    return DSMGPRegressor("rbf", max_iter=3, random_state=0, **KINDS[request.param]).fit(X, y), X


def test_every_kind_has_all_members(fitted):
    model = fitted[0].state_.model
    members = [name for name in dir(FittedModel) if not name.startswith("_")]
    assert len(members) > 20
    assert [name for name in members if not hasattr(model, name)] == []


def test_predictions_agree_with_one_another(fitted):
    X = fitted[1][::7] + 0.003
    model, n = fitted[0].state_.model, len(X)
    mean, std = model.moments(X)
    np.testing.assert_array_equal(model.mean(X), mean)
    distribution = model.mixture(X, squeeze=False)
    np.testing.assert_allclose(distribution.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(distribution.std, std, rtol=1e-9)
    joint_mean, covariance = model.covariance(X)
    np.testing.assert_allclose(joint_mean, mean, rtol=1e-7)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance[0])), std[:, 0], rtol=1e-6)
    draws = model.draws(X, 4000, np.random.default_rng(0), include_noise=True)
    assert draws.shape == (n, 1, 4000)
    np.testing.assert_allclose(draws.mean(-1), mean, atol=6 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(draws[:, 0]), covariance[0], atol=0.15 * std.max() ** 2)
    assert model.leaf_noise.shape == (len(model.posterior.log_responsibilities), 1)
    assert model.leaf_weights(X).sum() == pytest.approx(1.0)


def test_noise_is_the_variance_of_y_beyond_that_of_f(fitted):
    model, X = fitted
    of_y, of_f = (model.predict_dist(X, include_noise=noisy).var for noisy in (True, False))
    np.testing.assert_allclose(model.noise_at(X), of_y - of_f, rtol=1e-6, atol=1e-12)


def test_what_is_not_supported_is_refused_with_the_remedy(fitted):
    class Limited:
        unsupported = Unsupported("here", {"shrink": "call fit", "size_": "count them"})

    with pytest.raises(ValueError, match="shrink is not available here; call fit"):
        check_supported(Limited(), "shrink")
    with pytest.raises(AttributeError, match="size_ is not available here; count them"):
        check_supported(Limited(), "size_")
    check_supported(Limited(), "grow")
    estimator = fitted[0]
    remedies = estimator.state_.model.unsupported.remedies
    for name in ("loo_score_", "loo_score_new_inputs_", "row_ids_"):
        assert hasattr(estimator, name) == (name not in remedies)


def test_models_with_rows_in_memory_are_not_updated_from_files(fitted):
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="partial_fit_dataset is not available"):
        fitted[0].partial_fit_dataset("rows.parquet")
    with pytest.raises(ValueError, match="forget_dataset is not available"):
        fitted[0].forget_dataset(None)
