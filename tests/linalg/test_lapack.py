"""LAPACK without the interpreter lock, and BLAS kept to one thread."""

import threading
from functools import partial

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from dsmgp._util.machine import has_numba
from dsmgp.linalg import lapack
from dsmgp.linalg.threads import one_thread

if has_numba():
    from dsmgp.linalg import lapack_numba as fortran


@pytest.mark.parametrize("n", [1, 5, 48, 49, 97, 200, 333])
def test_factors_and_inverses_are_numpys(n):
    A = np.random.default_rng(0).normal(size=(n, 2 * n))
    A = A @ A.T / n + np.eye(n)
    K = A.copy()
    assert lapack.factorise(K)
    L = np.tril(K)
    np.testing.assert_allclose(L, np.linalg.cholesky(A), atol=1e-12)
    half = L.copy()
    lapack.invert_factor(half)
    np.testing.assert_allclose(half, np.linalg.inv(L), atol=1e-12)


@pytest.mark.parametrize(("n", "most"), [(97, 97), (97, 96), (97, 48), (97, 30), (60, 20), (3, 1)])
def test_blocks_make_the_same_factor(n, most):
    """OpenBLAS's threads cannot be trusted with very large matrices at once."""
    A = np.random.default_rng(0).normal(size=(n, 2 * n))
    A = A @ A.T / n + np.eye(n)
    above = np.triu(np.full((n, n), 7.0), 1)  # never looked at, nor touched
    compiled = [partial(fortran.factorise, lapack.addresses())] if has_numba() else []
    for factorise in (lapack.factorise, *compiled):
        K = np.tril(A) + above
        assert factorise(K, most)
        np.testing.assert_allclose(np.tril(K), np.linalg.cholesky(A), atol=1e-12)
        np.testing.assert_array_equal(np.triu(K, 1), above)
        K = np.tril(A)
        K[-1, -1] = -1.0
        assert not factorise(K, most)


def test_rows_may_lie_apart():
    A = np.eye(7) * 2.0 + 1.0
    wide = np.full((7, 12), np.nan)
    wide[:, 3:10] = A
    assert lapack.factorise(wide[:, 3:10])
    np.testing.assert_allclose(np.tril(wide[:, 3:10]), np.linalg.cholesky(A))


def test_addresses_are_those_of_numpy():
    A = np.zeros((7, 12))
    for a in (A, A[2:, 3:10], A[::-1], A.T, A[:0], np.zeros((3, 0)), A[0]):
        assert lapack._address(a) == a.ctypes.data
    A.flags.writeable = False
    assert lapack._address(A) == A.ctypes.data


def test_what_has_no_factor_is_said_to_have_none():
    assert not lapack.factorise(-np.eye(3))


def test_half_solutions_make_a_whole_one():
    L, b = np.linalg.cholesky(np.eye(9) * 2.0 + 1.0), np.arange(9.0)
    white = b.copy()
    lapack.solve_lower(L[:6, :6], white[:6])
    np.testing.assert_allclose(L[:6, :6] @ white[:6], b[:6])
    halves = b.copy()
    lapack.solve_lower(L, halves)
    lapack.solve_transposed(L, halves)
    np.testing.assert_allclose(halves, np.linalg.solve(L @ L.T, b), atol=1e-14)


@pytest.mark.parametrize(("n", "width"), [(1, 1), (5, 3), (40, 70)])
def test_squares_are_taken_from_matrices_and_added_to_factors(n, width):
    rng = np.random.default_rng(0)
    B, L = rng.normal(size=(n, width)), np.tril(rng.normal(size=(n, n))) + 2.0 * np.eye(n)
    A = np.zeros((n, n))
    lapack.subtract_square(A, B)
    np.testing.assert_allclose(A, -np.tril(B @ B.T), atol=1e-12)
    expected = L @ L.T + B @ B.T
    lapack.add_to_factor(L, B.copy())
    np.testing.assert_allclose(np.tril(L) @ np.tril(L).T, expected, atol=1e-12)


def blas_threads():
    return [lib["num_threads"] for lib in threadpool_info() if lib["internal_api"] == "openblas"]


def test_blas_has_its_threads_back_after_overlapping_calls():
    before = blas_threads()
    inside, leave = threading.Barrier(3), threading.Event()

    def work():
        with one_thread():
            inside.wait(10)
            leave.wait(10)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    with one_thread():
        inside.wait(10)
        assert set(blas_threads()) <= {1}
    assert set(blas_threads()) <= {1}  # two others are still inside
    leave.set()
    for thread in threads:
        thread.join()
    assert blas_threads() == before
