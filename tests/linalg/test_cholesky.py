"""Factors are those of SciPy, and matrices that rounding made indefinite take the least jitter of the ladder."""

import pickle

import numpy as np
import pytest
import scipy.linalg

from dsmgp.linalg import lapack
from dsmgp.linalg.cholesky import NotFactorisedError, cholesky, inverse_from_factor, solve
from dsmgp.linalg.jitter import jitter_ladder


@pytest.fixture(params=["lapack", "numpy"])
def routine(request, monkeypatch):
    monkeypatch.setattr(lapack, "available", request.param == "lapack" and lapack.available)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [0, 1, 40])
@pytest.mark.usefixtures("routine")
def test_the_factor_is_scipys_and_the_matrix_stays(rng, n, order):
    A = rng.normal(size=(n, n))
    K = np.asarray(A @ A.T, order=order)
    before, noise = K.copy(), rng.uniform(0.5, 2.0, size=n)
    L, jitter = cholesky(K, noise)
    assert jitter == 0.0
    np.testing.assert_array_equal(K, before)
    covariance = K + np.diag(noise)
    if n:
        expected = scipy.linalg.cholesky(covariance, lower=True)
        np.testing.assert_allclose(np.tril(L), expected, rtol=1e-9, atol=1e-12)
    B = rng.normal(size=(n, 3))
    both_ways = solve(L, solve(L, B), transposed=True)
    np.testing.assert_allclose(covariance @ both_ways, B, atol=1e-9)
    np.testing.assert_allclose(covariance @ inverse_from_factor(L), np.eye(n), atol=1e-9)


@pytest.mark.usefixtures("routine")
def test_the_least_jitter_that_helps_is_added(rng):
    a = rng.normal(size=(30, 3))
    K = 100.0 * (a @ a.T)  # of rank 3
    smallest = 2e-9 * K.diagonal().mean()
    K -= smallest * np.eye(30)  # so that rounding does not decide
    before = K.copy()
    L, jitter = cholesky(K)
    np.testing.assert_array_equal(K, before)
    np.testing.assert_array_equal(L, cholesky(K.copy(), overwrite=True)[0])
    ladder = list(jitter_ladder(float(K.diagonal().mean())))
    assert jitter == min(step for step in ladder if step > smallest)
    np.testing.assert_allclose(np.tril(L) @ np.tril(L).T, K + jitter * np.eye(30), atol=1e-9)


@pytest.mark.parametrize(
    "K",
    [
        -np.eye(2),
        np.full((2, 2), np.nan),
        np.diag([1.0, np.nan]),
        np.array([[1.0, np.nan], [np.nan, 1.0]]),
    ],
)
@pytest.mark.usefixtures("routine")
def test_what_no_jitter_makes_a_covariance_is_refused_with_the_remedy(K):
    with pytest.raises(NotFactorisedError, match="raise noise_variance") as caught:
        cholesky(K)
    assert isinstance(caught.value, ValueError)
    copy = pickle.loads(pickle.dumps(caught.value))  # it may come from another process
    assert type(copy) is NotFactorisedError
    assert str(copy) == str(caught.value)
