"""The leave-one-out check of a fit: against fits without each row, and none where leave-one-out is not at hand."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.fitting.loo_check import constant_nlpd, loo_check


def fitted(X, y, kernel="rbf"):
    """One exact GP with given hyperparameters, in the units of y, so that leaving a row out changes nothing else."""
    settings = {"leaf_size": 1000, "sum_children": 1, "optimizer": None, "noise_variance": 0.04}
    settings |= {
        "standardize": False,
        "mean": "zero",
        "weights": "uniform",
        "random_state": 0,
    }
    return DSMGPRegressor(kernel, **settings).fit(X, y)


def test_it_is_what_fits_without_each_row_predict(rng):
    X = rng.normal(size=(30, 1))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=30)
    kernel = fitted(X, y).kernel_  # with values: those that a name begins with depend on the rows
    found = loo_check(fitted(X, y, kernel).state_)
    errors, inside, constant = [], [], []
    for k in range(30):
        others = np.delete(np.arange(30), k)
        distribution = fitted(X[others], y[others], kernel).predict_dist(X[k : k + 1])
        low, high = distribution.interval(0.9)
        errors.append(y[k] - distribution.mean[0])
        inside.append(low[0] <= y[k] <= high[0])
        constant.append(y[k] - y[others].mean())
    assert found.n_rows == 30
    assert found.rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-6)
    assert found.constant_rmse == pytest.approx(np.sqrt(np.mean(np.square(constant))))
    assert found.coverage_90 == pytest.approx(np.mean(inside))


def test_it_has_an_entry_for_each_output(rng):
    X = rng.normal(size=(60, 2))
    Y = np.column_stack([X[:, 0], 100 * X[:, 1]]) + 0.1 * rng.normal(size=(60, 2))
    found = loo_check(DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, Y).state_)
    assert found.rmse.shape == found.coverage_90.shape == (2,)
    assert (found.rmse < found.constant_rmse).all()


def test_there_is_none_for_change_points_and_after_updates(rng):
    X = np.sort(rng.normal(size=(60, 1)), axis=0)
    y = (X[:, 0] > 0) + 0.1 * rng.normal(size=60)
    changes = DSMGPRegressor("rbf", structure="changepoint", max_iter=2, random_state=0).fit(X, y)
    assert loo_check(changes.state_) is None
    model = DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(X[:50], y[:50])
    assert loo_check(model.state_) is not None
    assert loo_check(model.partial_fit(X[50:], y[50:], adapt=False).state_) is None


def test_the_density_of_a_constant_is_that_of_a_gaussian(rng):
    from scipy.stats import norm

    Y = 3 * rng.normal(size=(50, 2)) + 1
    expected = -norm.logpdf(Y, Y.mean(axis=0), Y.std(axis=0)).sum(axis=1).mean()
    assert constant_nlpd(Y) == pytest.approx(expected)
    assert constant_nlpd(np.ones((5, 1))) is None
