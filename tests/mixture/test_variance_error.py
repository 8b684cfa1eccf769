"""Low-rank variances in the mixture: standard deviations within a thousandth, and the same answers whoever asks."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.experts.leaf_bases import LeafBases
from dsmgp.mixture.variance_error import (
    exact_variances,
    leaves_beyond_limit,
    relative_error,
)

WITHIN = 1e-3


def table(n_rows=900, n_outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(n_rows, 2))
    Y = np.stack([np.sin((3.0 + k) * X[:, 0]) + X[:, 1] ** 2 for k in range(n_outputs)], axis=1)
    return X, np.squeeze(Y + 0.1 * rng.normal(size=Y.shape), axis=1 if n_outputs == 1 else ())


def rows_to_predict(n=1100, seed=1):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.uniform(-1.3, 1.3, size=(n - 2, 2)), [[50.0, 0.0], [1e4, -1e4]]])


def estimator(kernel="rbf", **settings):
    settings = {"leaf_size": [900, 450], "max_iter": 15, "effort": "low", **settings}
    return DSMGPRegressor(
        kernel, input_warp=None, output_warp=None, metric="diagonal", random_state=0, **settings
    )


@pytest.fixture(scope="module")
def model():
    return warm(estimator().fit(*table()))


@pytest.fixture(scope="module")
def fresh(model):
    """Copies of a model that has predicted nothing."""
    posterior = copy.copy(model.state_.model.leaf_posterior)
    posterior.bases = LeafBases(posterior)
    copied = pickle.dumps((model, posterior.bases))

    def load():
        fitted, unused = pickle.loads(copied)
        fitted.state_.model.leaf_posterior.bases = unused
        return fitted

    return load


def warm(model):
    """Predict so many rows that low-rank variances pay."""
    model.predict(rows_to_predict(8000), return_std=True)
    return model


def bases(model):
    return model.state_.model.leaf_posterior.bases.of_leaf


def errors(model, X):
    """Largest error of the standard deviation, relative, and of the mean, in standard deviations."""
    mean, std = model.predict(X, return_std=True)
    with exact_variances():
        exact_mean, exact_std = model.predict(X, return_std=True)
    return np.abs(std / exact_std - 1.0).max(), np.abs((mean - exact_mean) / exact_std).max()


def test_standard_deviations_are_within_a_thousandth_of_exact_ones(model):
    assert len(bases(model)) >= 2
    assert max(errors(model, rows_to_predict(2000, seed=2))) < WITHIN
    assert max(errors(model, table()[0])) < WITHIN


CASES = {
    "posterior weights": (estimator(weights="posterior"), {}),
    "uniform weights": (estimator("matern52", weights="uniform"), {}),
    "one leaf": (estimator(leaf_size=900, sum_children=1), {}),
    "two outputs": (estimator(), {"n_outputs": 2}),
    "known noise": (estimator(), {"noise": True}),
    "row weights": (estimator(), {"weights": True}),
    "duplicate inputs": (estimator(), {"duplicates": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_errors_stay_within_a_thousandth(case):
    regressor, how = CASES[case]
    X, y = table(n_outputs=how.get("n_outputs", 1))
    rng, given = np.random.default_rng(3), {}
    if "noise" in how:
        given["noise"] = rng.uniform(0.0, 0.05, size=len(y))
    if "weights" in how:
        given["sample_weight"] = rng.uniform(0.5, 3.0, size=len(y))
    if "duplicates" in how:
        X[::3] = X[1::3]
    fitted = warm(regressor.fit(X, y, **given))
    assert bases(fitted)
    assert max(errors(fitted, rows_to_predict(600, seed=2))) < WITHIN
    assert max(errors(fitted, rows_to_predict(6, seed=4))) < WITHIN


def test_means_do_not_depend_on_whether_standard_deviations_are_asked_for(model):
    for X in (rows_to_predict(), rows_to_predict()[:1]):
        np.testing.assert_array_equal(model.predict(X), model.predict(X, return_std=True)[0])
        distribution = model.predict_dist(X)
        mean, std = model.predict(X, return_std=True)
        np.testing.assert_allclose(distribution.mean, mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(distribution.std, std, rtol=1e-9)


def test_a_row_alone_gets_the_answer_that_it_gets_among_others(model):
    X = rows_to_predict()[-200:]
    mean, std = model.predict(X, return_std=True)
    alone = [model.predict(x[None], return_std=True) for x in X]
    np.testing.assert_allclose([m[0] for m, _ in alone], mean, rtol=0, atol=WITHIN * std.min())
    np.testing.assert_allclose([s[0] for _, s in alone], std, rtol=WITHIN)
    with exact_variances():
        mean, std = model.predict(X, return_std=True)
        alone = [model.predict(x[None], return_std=True) for x in X]
    np.testing.assert_allclose([m[0] for m, _ in alone], mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose([s[0] for _, s in alone], std, rtol=1e-9)


def test_threads_that_ask_single_rows_get_the_same_answers(model):
    X = rows_to_predict()[:100]

    def ask(k):
        mean, std = model.predict(X[k : k + 1], return_std=True)
        return mean[0], std[0]

    expected = [ask(k) for k in range(100)]
    fresh = pickle.loads(pickle.dumps(model))  # whose tables are filled by all threads at once
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(100))) == expected
        model = fresh
        assert list(pool.map(ask, range(100))) == expected


def test_the_estimator_can_be_told_to_be_exact(model):
    X, told = rows_to_predict(), copy.copy(model).set_params(variances="exact")
    with exact_variances():
        expected = model.predict(X, return_std=True)
    np.testing.assert_array_equal(told.predict(X, return_std=True), expected)
    np.testing.assert_array_equal(told.predict_dist(X).std, model_std(told, X))
    with pytest.raises(ValueError, match="expected variances to be one of 'auto', 'exact'"):
        estimator(variances="fast").fit(*table(50))


def model_std(model, X):
    with exact_variances():
        return model.predict_dist(X).std


def test_spreads_of_the_function_covariances_and_draws_are_exact(model):
    X = rows_to_predict()[:40]
    of_function = model.predict(X, return_std=True, include_noise=False)[1]
    with exact_variances():
        np.testing.assert_array_equal(
            of_function, model.predict(X, return_std=True, include_noise=False)[1]
        )
        std = model.predict(X, return_std=True)[1]
    covariance = model.predict(X, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    assert model.sample_y(X, 3).shape == (40, 3)


@pytest.mark.parametrize(("n_rows", "n_calls", "n_before"), [(1, 400, 230), (100, 40, 10)])
def test_bases_are_made_little_by_little_when_as_much_was_spent(fresh, n_rows, n_calls, n_before):
    fitted, X, n_bases = fresh(), rows_to_predict(200), []
    assert not bases(fitted)
    for _ in range(n_calls):
        fitted.predict(X[:n_rows])
        n_bases.append(len(bases(fitted)))
    assert not n_bases[n_before]
    assert n_bases[-1]
    assert np.diff(n_bases).max() == 1  # a call makes one at most


def test_bases_need_memory(fresh):
    fitted = fresh()
    fitted.state_.model.leaf_posterior.memory = 0.0
    assert not bases(warm(fitted))


def test_bases_that_rows_cannot_use_are_given_up(fresh, monkeypatch):
    fitted = warm(fresh())
    used = set(bases(fitted))
    monkeypatch.setattr("dsmgp.mixture.variance_error.LIMIT", 1e-12)
    X = rows_to_predict(600)
    with exact_variances():
        expected = fitted.predict(X, return_std=True)[1]
    np.testing.assert_allclose(fitted.predict(X, return_std=True)[1], expected, rtol=1e-9)
    assert used - set(bases(fitted))
    np.testing.assert_allclose(fitted.predict(X, return_std=True)[1], expected, rtol=1e-9)
    warm(fitted)  # a leaf is not tried again
    assert set(bases(fitted)) < used


def test_updates_leave_no_trace_of_old_bases(model):
    X, y = table(20, seed=9)
    fitted = pickle.loads(pickle.dumps(model))
    fitted.partial_fit(X, y + 3.0, adapt=False)
    assert max(errors(fitted, rows_to_predict(50))) < WITHIN
    assert np.abs(fitted.predict(X) - model.predict(X)).max() > 0.1


def test_the_error_of_one_leaf_counts_by_its_weight_and_by_the_gate(model):
    fitted = model.state_.model
    X = rows_to_predict()[:30]
    with exact_variances():
        components = fitted.leaf_predictions(fitted.inputs.to_coordinates(X))
    moved, leaf = 1e-5, components.leaf[0, 0]
    leaf_errors = np.zeros((len(fitted.scales), 2))
    leaf_errors[leaf, 1] = moved
    bound = relative_error(fitted, components, leaf_errors)
    before = fitted.distribution(components).var
    components.variance[components.leaf == leaf] *= 1.0 + moved
    after = fitted.distribution(components).var
    actual = np.abs(after / before - 1.0)
    assert (actual <= 1.01 * bound + 1e-12).all()
    assert (actual[bound > 1e-8] > 0.0).all()


def test_only_leaves_with_the_largest_effects_are_computed_exactly(model):
    fitted = model.state_.model
    with exact_variances():
        components = fitted.leaf_predictions(fitted.inputs.to_coordinates(rows_to_predict()))
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.0, 4e-3, size=(*components.leaf.shape, 1)) * [0.2, 1.0]
    beyond = leaves_beyond_limit(fitted, components, errors)

    assert beyond.any()
    assert not beyond.all()
    kept = np.where(beyond[:, :, None], 0.0, errors)
    assert not leaves_beyond_limit(
        fitted, components, kept
    ).any()  # the others are within the limit
    one = np.argmax(beyond, axis=1), np.flatnonzero(beyond.any(axis=1))
    kept[one[1], one[0][one[1]]] = errors[one[1], one[0][one[1]]]
    assert leaves_beyond_limit(fitted, components, kept).any(axis=1)[one[1]].mean() > 0.5
