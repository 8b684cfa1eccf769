"""Updated Cholesky factors are those of the updated matrices."""

import numpy as np
import pytest

from dsmgp.linalg import lapack
from dsmgp.linalg.cholesky_update import remove_rows

pytestmark = pytest.mark.skipif(not lapack.available, reason="SciPy does not export LAPACK")


def covariance(n):
    x = np.sort(np.random.default_rng(0).uniform(size=n))
    return np.exp(-20.0 * (x[:, None] - x) ** 2) + 0.05 * np.eye(n)


@pytest.mark.parametrize("removed", [[0], [0, 1, 2, 3], [17, 18, 30, 59], [59], [], range(1, 60)])
def test_removing_rows_is_factorising_without_them(removed):
    K, removed = covariance(60), np.array(removed, dtype=np.int64)
    kept = np.delete(np.arange(60), removed)
    L = np.linalg.cholesky(K)
    before = L.copy()
    factor = remove_rows(L, removed)
    assert (factor.diagonal() > 0).all()
    assert np.array_equal(L, before)
    separate = np.linalg.cholesky(K[np.ix_(kept, kept)])
    np.testing.assert_allclose(factor, separate, rtol=0.0, atol=1e-14)
