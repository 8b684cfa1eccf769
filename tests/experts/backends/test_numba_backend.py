"""Compiled leaves agree with those of NumPy and torch."""

import itertools

import numpy as np
import pytest

from dsmgp._util.machine import has_numba
from dsmgp.experts.backends.numba_backend import KINDS, NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.tree import Leaf, Region
from tests.support.leaf_predictions import predict_leaves

compiled = pytest.importorskip(
    "dsmgp.experts.backends.numba_leaves", reason="needs numba", exc_type=ImportError
)
pairwise = pytest.importorskip(
    "dsmgp.experts.backends.numba_kernels", reason="needs numba", exc_type=ImportError
)
MEANS = ["zero", "constant", "linear"]


@pytest.fixture(params=["numpy", "torch"])
def reference(request):
    """A backend that compiled code must agree with."""
    if request.param == "numpy":
        return NumpyBackend
    pytest.importorskip("torch")
    from dsmgp.experts.backends.torch_backend import TorchBackend

    return TorchBackend


def data(n, d, mean_kind, seed=0, spread="distinct", noise=0.05):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 3.0
    if spread != "distinct" and n > 1:
        X[n // 2 :] = X[: n - n // 2] + (1e-13 if spread == "close" else 0.0)
    y = np.sin(X.sum(1)) + 0.1 * rng.normal(size=n)
    mean = {"zero": [], "constant": [0.3], "linear": rng.normal(size=d + 1)}[mean_kind]
    kernel_parameters = np.concatenate(
        [rng.uniform(0.5, 3.0, d) * np.sqrt(d), [1.7], mean, [noise]]
    )
    return X, y, kernel_parameters


def leaf_gps_of(backend, X, y, leaf_kernel, rows=None, labels=None):
    rows = [np.arange(len(X))] if rows is None else rows
    leaves = [Leaf(Region.whole(X.shape[1]), of_leaf) for of_leaf in rows]
    return InMemoryLeafGPs(
        leaves, LeafData(X, y[:, None], labels=labels), [leaf_kernel], backend=backend
    )


def found(backend, X, y, kernel_parameters, kind, mean_kind, scale_rows=None):
    leaf_kernel = StationaryKernel(kind, tuple(range(X.shape[1])), mean_kind)
    evidence, gradient = leaf_gps_of(backend, X, y, leaf_kernel).log_evidence_and_gradient(
        [kernel_parameters], scale_rows=scale_rows
    )
    return evidence[0, 0], gradient[0][0]


def both(reference, *given):
    return [found(backend, *given) for backend in (NumbaBackend, reference)]


def agree(got, expected):
    evidence, gradient = expected
    assert got[0] == pytest.approx(evidence, rel=1e-10, abs=1e-10)
    np.testing.assert_allclose(got[1], gradient, rtol=1e-9, atol=1e-9 * np.abs(gradient).max())


def test_it_offers_what_is_compiled():
    assert tuple(compiled.KINDS) == KINDS


@pytest.mark.skipif(not has_numba(), reason="compiled code is turned off")
def test_it_is_what_runs_here():
    X, y, _ = data(5, 2, "zero")
    leaf_kernel = StationaryKernel("rbf", (0, 1), "zero")
    assert isinstance(leaf_gps_of(None, X, y, leaf_kernel).backend, NumbaBackend)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", ["distinct", "repeated", "close"])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 8), (17, 5), (100, 8), (101, 1), (230, 30)])
def test_evidence_and_gradient_are_those_of_other_backends(reference, kind, spread, n, d):
    for mean_kind, scale_rows in itertools.product(MEANS, [None, 4.0]):
        X, y, kernel_parameters = data(n, d, mean_kind, spread=spread)
        agree(*both(reference, X, y, kernel_parameters, kind, mean_kind, scale_rows))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_far_away_takes_no_digits_from_the_others(reference, kind):
    X, y, kernel_parameters = data(40, 2, "constant")
    far = X.copy()
    far[0] += 1e9
    agree(*both(reference, far, y, kernel_parameters, kind, "constant"))


def test_singular_matrices_get_the_jitter_that_other_backends_give_them(reference):
    X, y, kernel_parameters = data(50, 2, "constant", spread="repeated", noise=0.0)
    got, expected = both(reference, X, y, kernel_parameters, "rbf", "constant")
    assert np.isfinite(expected[0])
    assert got[0] == pytest.approx(expected[0], rel=1e-2)  # a condition number of 1e12 leaves this


def test_what_cannot_be_factorised_is_not_a_number():
    X, y, kernel_parameters = data(5, 2, "constant")
    kernel_parameters[-1] = -3.0
    evidence, gradient = found(NumbaBackend, X, y, kernel_parameters, "rbf", "constant")
    assert np.isnan(evidence)
    assert np.isnan(gradient).all()


def test_the_exponential_is_right_to_an_ulp_or_two():
    from numba import njit

    @njit
    def many(x, out):
        for i in range(len(x)):
            out[i] = pairwise.exp(x[i])

    x = -np.concatenate([[0.0], np.geomspace(1e-300, 708.0, 100_000), np.linspace(0, 40, 100_000)])
    out = np.empty_like(x)
    many(x, out)
    assert (np.abs(out / np.exp(x) - 1.0)).max() < 4.5e-16
    many(np.array([-800.0, -1e300, -np.inf]), out[:3])
    assert (out[:3] < 1e-307).all()


def test_many_leaves_with_a_theta_each_are_leaf_by_leaf():
    X, y, kernel_parameters = data(300, 3, "linear")
    rng = np.random.default_rng(1)
    rows = [rng.choice(300, size, replace=False) for size in (120, 0, 7, 60, 1)]
    kernel_parameters = kernel_parameters * rng.uniform(
        0.9, 1.1, size=(len(rows), len(kernel_parameters))
    )
    leaf_kernel = StationaryKernel("matern32", (0, 1, 2), "linear")
    together = leaf_gps_of(NumbaBackend, X, y, leaf_kernel, rows)
    evidence, gradient = together.log_evidence_and_gradient([kernel_parameters])
    assert evidence[1, 0] == 0.0
    assert not gradient[0][1].any()
    for k, of_leaf in enumerate(rows):
        alone = leaf_gps_of(NumbaBackend, X, y, leaf_kernel, [of_leaf])
        one, by = alone.log_evidence_and_gradient([kernel_parameters[k]])
        assert one[0] == evidence[k]
        assert (by[0][0] == gradient[0][k]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 17, 150])
@pytest.mark.parametrize("spread", ["distinct", "repeated"])
def test_conditioning_and_prediction_are_those_of_other_backends(reference, kind, n, spread):
    X, y, kernel_parameters = data(200, 4, "linear")
    if spread == "repeated" and n > 3:
        X[n // 3 : 2 * (n // 3)] = X[: n // 3]
    labels = np.unique(X, axis=0, return_inverse=True)[1].reshape(-1)
    leaf_kernel = StationaryKernel(kind, (0, 2, 3), "linear")
    kernel_parameters = np.concatenate([kernel_parameters[:3], kernel_parameters[4:]])
    got, expected = (
        condition(
            leaf_gps_of(e, X, y, leaf_kernel, [np.arange(n)], labels=labels),
            [kernel_parameters],
            leave_out=True,
        )
        for e in (NumbaBackend, reference)
    )
    np.testing.assert_allclose(got.log_evidence, expected.log_evidence, rtol=1e-10)
    if n:
        names = ["mean", "variance", "grouped_mean", "grouped_variance"]
        if spread == "repeated" and n > 3:
            names.append("grouped_log_density")
        for name in names:
            values = [getattr(c.leaf_loo().moments, name) for c in (got, expected)]
            np.testing.assert_allclose(*values, rtol=1e-8, atol=1e-10)
    tests = np.concatenate([X[:20], X[150:] + 0.1])
    ((mean, variance),), ((expected_mean, expected_variance),) = (
        predict_leaves(c, [(0, tests)]) for c in (got, expected)
    )
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(variance, expected_variance, rtol=1e-9, atol=1e-10)
    ((alone, none),) = predict_leaves(got, [(0, tests)], with_variance=False)
    assert (alone == mean).all()
    assert not none.size
