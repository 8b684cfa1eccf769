"""Low-rank variances of a leaf: as close to the exact ones as they claim, or none."""

from __future__ import annotations

import numpy as np
import pytest

from dsmgp.experts import low_rank
from dsmgp.experts.low_rank import LowRankVariance, low_rank_variance
from dsmgp.gp.leaf_kernels import StationaryKernel

TOLERANCE = 2e-3


def leaf(kind="rbf", n=400, n_dims=2, noise=1e-2, seed=0, duplicates=0, lengthscale=0.8):
    """Kernel, points, covariance of y, and rows like the points, between and outside them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, n_dims))
    counts = np.ones(n)
    counts[:duplicates] = 5.0
    kernel = StationaryKernel(kind, tuple(range(n_dims)), "zero").at(
        np.array([*[lengthscale] * n_dims, 1.5, noise])
    )
    K = kernel.cross(X, X) + np.diag(noise / counts)
    tests = np.concatenate([rng.normal(size=(300, n_dims)), X[:50], 1.5 * X[:50], 50.0 + X[:5]])
    return kernel, X, K, tests


def exact_variance(kernel, X, K, tests):
    cross = kernel.cross(tests, X)
    return kernel.variance(tests) - np.sum(cross.T * np.linalg.solve(K, cross.T), axis=0)


def found(kernel, X, K, noise, tolerance=TOLERANCE) -> LowRankVariance | None:
    factor = np.linalg.cholesky(K)
    return low_rank_variance(kernel, X, factor, np.zeros(len(X)), noise, tolerance)


@pytest.mark.parametrize("kind", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("noise", [1e-1, 1e-2, 1e-4, 1e-6])
def test_standard_deviations_are_within_a_thousandth_or_there_is_no_basis(kind, noise):
    kernel, X, K, tests = leaf(kind, noise=noise)
    basis = found(kernel, X, K, noise)
    if basis is None:
        assert noise <= 1e-4  # single precision is not enough
        return
    covariances = kernel.cross(tests, X[basis.order[: basis.rank]])
    ratio = (basis.variance(covariances) + noise) / (exact_variance(kernel, X, K, tests) + noise)
    # At rows beyond the check points the error may be a little larger.
    np.testing.assert_allclose(np.sqrt(ratio), 1.0, atol=1.5 * TOLERANCE / 2)


def test_a_smooth_leaf_needs_few_pivots_and_a_rough_one_all():
    kernel, X, K, _ = leaf("rbf", n=600)
    assert found(kernel, X, K, 1e-2).rank < 150
    kernel, X, K, _ = leaf("matern12", n=600)
    assert found(kernel, X, K, 1e-2).rank == 600


def test_duplicate_inputs_count_by_their_noise():
    kernel, X, K, tests = leaf(duplicates=100)
    basis = found(kernel, X, K, 1e-2)
    covariances = kernel.cross(tests, X[basis.order[: basis.rank]])
    exact = exact_variance(kernel, X, K, tests) + 1e-2
    np.testing.assert_allclose(basis.variance(covariances) + 1e-2, exact, rtol=TOLERANCE)


def test_far_away_rows_have_the_prior_variance():
    kernel, X, K, _ = leaf()
    basis = found(kernel, X, K, 1e-2)
    far = kernel.cross(np.full((1, 2), 1e3), X[basis.order[: basis.rank]])
    assert basis.variance(far) == pytest.approx(1.5, rel=1e-12)


def test_more_accuracy_takes_more_pivots_down_to_rounding():
    kernel, X, K, _ = leaf()
    ranks = [found(kernel, X, K, 1e-2, tolerance).rank for tolerance in (2e-2, 2e-3, 2e-4)]
    assert ranks == sorted(ranks)
    assert ranks[0] < ranks[-1]


def test_pivots_come_first_and_every_point_once():
    kernel, X, K, _ = leaf()
    alpha = np.arange(400.0)
    basis = low_rank_variance(kernel, X, np.linalg.cholesky(K), alpha, 1e-2, TOLERANCE)
    np.testing.assert_array_equal(np.sort(basis.order), np.arange(400))
    np.testing.assert_array_equal(basis.alpha, alpha[basis.order])


def test_small_leaves_have_none():
    kernel, X, K, _ = leaf(n=100)
    assert found(kernel, X, K, 1e-2) is None


def test_a_rough_leaf_is_given_up_after_few_pivots(monkeypatch):
    ranks = []
    extend = low_rank._Search.extend

    def counted(search, size):
        ranks.append(search.rank)
        return extend(search, size)

    monkeypatch.setattr(low_rank._Search, "extend", counted)
    monkeypatch.setattr(low_rank._Search, "project", None)  # and before any solve of pivots
    kernel, X, K, _ = leaf("matern12", n=600)
    assert found(kernel, X, K, 1e-2).rank == 600
    assert max(ranks) < 0.2 * 600


def test_steps_are_small_and_their_work_is_counted():
    kernel, X, K, _ = leaf(n=600)
    steps = low_rank.low_rank_steps(kernel, X, np.linalg.cholesky(K), np.zeros(600), 1e-2, 2e-3)
    work = list(steps)
    assert len(work) > 10
    assert max(work) < 0.5 * 64 * 600**2 + 64 * 600 * 360
    assert 600**3 / 3 < sum(work) < 2 * 600**3
