"""A factor that grows without being copied is the factor of the whole matrix."""

import numpy as np
import pytest

from dsmgp.experts.online.grown_factor import MOST_ROWS, MOST_SHARE, GrownFactor
from dsmgp.linalg import lapack


def grown(rng, m, added):
    """A dense factor, and the same built from its leading m rows by adding others; above the diagonal is rubbish."""
    n = m + sum(added)
    A = rng.normal(size=(n, n + 3))
    L = np.linalg.cholesky(A @ A.T)
    block = L[:m, :m] + np.triu(np.full((m, m), 7.0), 1)
    factor = GrownFactor(lambda: block, np.empty((0, m)))
    for k in added:
        at = len(factor)
        factor = factor.with_rows(L[at : at + k, : at + k])
    return L, factor


@pytest.mark.parametrize("with_lapack", [True, False])
@pytest.mark.parametrize(
    ("m", "added"), [(0, [3]), (5, []), (20, [1]), (20, [1, 4, 2]), (10, [60])]
)
def test_solves_are_those_of_the_whole_factor(rng, monkeypatch, m, added, with_lapack):
    monkeypatch.setattr(lapack, "available", with_lapack)
    L, factor = grown(rng, m, added)
    rows = rng.normal(size=(4, len(L)))
    given = rows.copy()
    exact = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(factor.whole(), L, **exact)
    np.testing.assert_allclose(factor.diagonal, L.diagonal(), **exact)
    np.testing.assert_allclose(factor.solve(rows), np.linalg.solve(L, rows.T).T, **exact)
    np.testing.assert_allclose(
        factor.solve_transposed(rows), np.linalg.solve(L.T, rows.T).T, **exact
    )
    np.testing.assert_array_equal(rows, given)


def test_only_added_rows_take_memory_until_there_are_many(rng):
    _, few = grown(rng, 40, [5])
    assert few.n_bytes == 8 * 5 * 45
    n_new = int(MOST_ROWS + MOST_SHARE * 40) + 1
    _, many = grown(rng, 40, [n_new])
    assert len(many.below) == 0
    assert many.n_bytes == 8 * (40 + n_new) ** 2
