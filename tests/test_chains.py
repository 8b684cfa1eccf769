"""Factors from other factors: every step against dense algebra."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from dsmgp import lapack, sharing
from dsmgp.chains import NotPositiveDefinite, SharedFactors, append_rows, remove_rows
from dsmgp.sharing import SharingPlan, plan_sharing

pytestmark = pytest.mark.skipif(not lapack.available, reason="SciPy does not export LAPACK")


def covariance(n):
    x = np.sort(np.random.default_rng(0).uniform(size=n))
    return np.exp(-20.0 * (x[:, None] - x) ** 2) + 0.05 * np.eye(n)


@dataclass
class Fill:
    """Covariances from a matrix of all rows; counts its calls."""

    plan: SharingPlan
    K: np.ndarray
    n_calls: int = 0

    def __call__(self, leaf, K, first):
        rows = self.plan.rows[leaf]
        K[first:] = np.tril(self.K[np.ix_(rows, rows)])[first:]
        self.n_calls += 1


def shared(leaf_rows, K):
    plan = plan_sharing(leaf_rows)
    return SharedFactors(plan, Fill(plan, K))


@pytest.fixture
def overlapping(monkeypatch):
    """Intervals of which most start from others, however small."""
    monkeypatch.setattr(sharing, "CALL_FLOPS", 0.0)
    monkeypatch.setattr(sharing, "MOVE_FLOPS", 1.0)
    monkeypatch.setattr(sharing, "SWEEP_FLOPS", 1.0)
    return [np.arange(k % 17, 80 + 3 * k % 40) for k in range(40)]


@pytest.mark.parametrize("removed", [[0], [0, 1, 2, 3], [17, 18, 30, 59], [59], [], range(1, 60)])
def test_removing_rows_is_factorising_without_them(removed):
    K, removed = covariance(60), np.array(removed, dtype=np.int64)
    kept = np.delete(np.arange(60), removed)
    L = np.linalg.cholesky(K)
    before = L.copy()
    found = remove_rows(L, removed)
    assert (found.diagonal() > 0).all()
    assert np.array_equal(L, before)
    separate = np.linalg.cholesky(K[np.ix_(kept, kept)])
    np.testing.assert_allclose(found, separate, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("n", [0, 1, 20, 59])
def test_appending_rows_is_factorising_with_them(n):
    K = covariance(60)
    begun = np.tril(K)
    begun[:n, :n] = np.linalg.cholesky(K[:n, :n])
    assert append_rows(begun, n)
    np.testing.assert_allclose(begun, np.linalg.cholesky(K), rtol=0.0, atol=1e-13)


def test_appending_rows_notices_what_is_not_positive_definite():
    assert not append_rows(np.array([[1.0, 0.0], [2.0, 1.0]]), 1)


def test_a_leaf_without_a_factor_is_named_and_the_others_have_theirs(overlapping):
    K = covariance(120)
    K[118, 118] = -1.0
    factors = shared([np.arange(60), np.arange(50, 119)], K)
    factors.lower(0)
    with pytest.raises(NotPositiveDefinite, match=r"leaf 1 \(69 rows\)"):
        factors.lower(1)


def test_side_by_side_is_one_by_one(overlapping):
    alone, together = (shared(overlapping, covariance(120)) for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(together.lower, range(40)))
    assert together.fill.n_calls <= len(together.plan.flops)  # nothing was made twice
    for leaf in reversed(range(40)):
        assert np.array_equal(alone.lower(leaf), found[leaf])


def test_pickled_factors_are_made_again(overlapping):
    factors = shared(overlapping, covariance(120))
    before = factors.lower(3)
    again = pickle.loads(pickle.dumps(factors))
    assert np.array_equal(again.lower(3), before)
