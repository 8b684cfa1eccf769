"""Leaves with a linear map of the inputs: gradients, agreement of backends, and what the map may not change."""

import numpy as np
import pytest

from dsmgp._util.machine import has_numba
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.numba_backend import NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.points import equal_rows
from dsmgp.gp.leaf_kernels import MetricKernel, StationaryKernel
from tests.support.finite_differences import central_difference
from tests.support.leaf_predictions import predict_leaves

KINDS = ["rbf", "matern12", "matern32", "matern52"]
MEANS = ["zero", "constant", "linear"]
SIZES = (40, 0, 7, 1, 25)
D, RANK = 4, 3


@pytest.fixture(params=["numba", "numpy", "torch"])
def own_backend(request):
    if request.param == "numpy":
        return NumpyBackend
    if request.param == "numba":
        if not has_numba():
            pytest.skip("needs numba")
        return NumbaBackend
    pytest.importorskip("torch")
    from dsmgp.experts.backends.torch_backend import TorchBackend

    return TorchBackend


class Case:
    """Overlapping leaves of different sizes, some with duplicate inputs."""

    def __init__(self, rng, kind="rbf", mean="linear", rank=RANK, known=False):
        self.X, self.Y = rng.normal(size=(60, D)) + 1.0, rng.normal(size=(60, 1))
        self.X[30:40] = self.X[20:30]
        self.X[40] = self.X[30]
        self.X[41] = self.X[42] + 1e-13
        self.known = rng.choice([0.0, 0.02, 0.5], size=(60, 1)) if known else None
        self.rows = Ragged.of([rng.choice(60, size, replace=False) for size in SIZES])
        self.kernel = MetricKernel(kind, D, rank, mean)
        weights = {"zero": [], "constant": [0.3], "linear": rng.normal(size=D + 1)}[mean]
        self.A = 0.5 * rng.normal(size=(D, rank))
        self.rest = np.array([1.7, *weights, 0.1])

    @property
    def parameters(self):
        return np.concatenate([self.A.reshape(-1), self.rest])

    def leaf_gps(self, backend, kernel=None, X=None, collapsed=True):
        X = self.X if X is None else X
        return InMemoryLeafGPs(
            self.rows,
            LeafData(
                X, self.Y, known_noise=self.known, labels=equal_rows(self.X) if collapsed else None
            ),
            [kernel or self.kernel],
            backend=backend,
        )


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("scale_rows", [None, 5.0])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences(rng, own_backend, kind, mean, scale_rows, collapsed):
    case = Case(rng, kind, mean)
    leaf_gps = case.leaf_gps(own_backend, collapsed=collapsed)

    def evidence(parameters):
        return leaf_gps.log_evidence_and_gradient([parameters], scale_rows=scale_rows)[0][:, 0]

    _, (gradient,) = leaf_gps.log_evidence_and_gradient([case.parameters], scale_rows=scale_rows)
    expected = central_difference(evidence, case.parameters)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7 * scale)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("by_leaf", [False, True])
@pytest.mark.parametrize("rank", [1, RANK, D])
@pytest.mark.parametrize("kind", KINDS)
def test_every_quantity_is_that_of_numpy(rng, own_backend, kind, rank, by_leaf, known):
    case = Case(rng, kind, rank=rank, known=known)
    parameters = case.parameters
    if by_leaf:
        parameters = rng.uniform(0.8, 1.2, size=(len(SIZES), 1)) * parameters
    ours, expected = (case.leaf_gps(backend) for backend in (own_backend, NumpyBackend))
    close = {"rtol": 1e-9, "atol": 1e-9}
    for quantity in ("log_evidence", "squares", "mean_squares"):
        values = [getattr(gps, quantity)([parameters]) for gps in (ours, expected)]
        np.testing.assert_allclose(*values, **close)
    for scale_rows in (None, 4.0):
        (one, (by,)), (other, (by_other,)) = (
            gps.log_evidence_and_gradient([parameters], scale_rows=scale_rows)
            for gps in (ours, expected)
        )
        np.testing.assert_allclose(one, other, **close)
        np.testing.assert_allclose(by, by_other, rtol=1e-9, atol=1e-9 * np.abs(by_other).max())
    posteriors = [
        condition(gps, [parameters], leave_out=True, share=False) for gps in (ours, expected)
    ]
    for name in ("mean", "variance", "grouped_mean", "grouped_variance", "grouped_log_density"):
        values = [getattr(posterior.leaf_loo().moments, name) for posterior in posteriors]
        np.testing.assert_allclose(*values, rtol=1e-8, atol=1e-9)
    np.testing.assert_array_equal(*(posterior.noise for posterior in posteriors))
    bounds = [gps.bind([parameters]).prior_variance for gps in (ours, expected)]
    np.testing.assert_array_equal(*bounds)
    tasks = [(leaf, np.concatenate([case.X[:5], case.X[:6] + 0.3])) for leaf in range(len(SIZES))]
    for one, other in zip(*(predict_leaves(p, tasks) for p in posteriors), strict=True):
        for values in zip(one, other, strict=True):
            np.testing.assert_allclose(*values, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_diagonal_map_has_the_evidence_and_gradient_of_its_length_scales(rng, own_backend, kind):
    case = Case(rng, kind, rank=D)
    lengthscale = rng.uniform(0.5, 2.0, size=D)
    case.A = np.diag(1.0 / lengthscale)
    ard = StationaryKernel(kind, tuple(range(D)), "linear")
    expected, (by_length,) = case.leaf_gps(own_backend, ard).log_evidence_and_gradient(
        [np.concatenate([lengthscale, case.rest])]
    )
    found, (by_map,) = case.leaf_gps(own_backend).log_evidence_and_gradient([case.parameters])
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    on_diagonal = by_map[:, : D * D].reshape(-1, D, D).diagonal(axis1=1, axis2=2)
    scale = np.abs(by_length).max()
    np.testing.assert_allclose(
        -on_diagonal / lengthscale**2, by_length[:, :D], rtol=1e-9, atol=1e-9 * scale
    )
    np.testing.assert_allclose(by_map[:, D * D :], by_length[:, D:], rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_the_evidence_does_not_see_a_rotation_of_the_image(rng, own_backend, kind):
    case = Case(rng, kind)
    leaf_gps = case.leaf_gps(own_backend)
    before = leaf_gps.log_evidence([case.parameters])
    case.A = case.A @ np.linalg.qr(rng.normal(size=(RANK, RANK)))[0]
    np.testing.assert_allclose(leaf_gps.log_evidence([case.parameters]), before, rtol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_on_rotated_rows_is_the_rotated_map_on_rows(rng, own_backend, kind):
    case = Case(rng, kind, "constant")
    Q = np.linalg.qr(rng.normal(size=(D, D)))[0]
    expected, (by,) = case.leaf_gps(own_backend).log_evidence_and_gradient([case.parameters])
    case.A = Q.T @ case.A
    rotated = case.leaf_gps(own_backend, X=case.X @ Q)
    found, (by_rotated,) = rotated.log_evidence_and_gradient([case.parameters])
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    n = D * RANK
    back = np.einsum("ij,ljk->lik", Q, by_rotated[:, :n].reshape(-1, D, RANK)).reshape(-1, n)
    np.testing.assert_allclose(back, by[:, :n], rtol=1e-7, atol=1e-8 * np.abs(by).max())


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_far_away_takes_no_digits_from_the_others(rng, own_backend, kind):
    case = Case(rng, kind, "constant")
    case.X[case.rows[0][0]] += 1e9
    _, (found,) = case.leaf_gps(own_backend).log_evidence_and_gradient([case.parameters])
    # Without that row its evidence is missing, but no digits of the gradient by the map.
    case.rows = Ragged.of([case.rows[0][1:], *([],) * (len(SIZES) - 1)])
    _, (expected,) = case.leaf_gps(own_backend).log_evidence_and_gradient([case.parameters])
    n = D * RANK
    np.testing.assert_allclose(
        found[0, :n], expected[0, :n], rtol=1e-8, atol=1e-8 * np.abs(expected).max()
    )


def test_single_precision_is_close_to_double(rng):
    pytest.importorskip("torch")
    case = Case(rng, "matern52")
    single = InMemoryLeafGPs(case.rows, LeafData(case.X, case.Y), [case.kernel], dtype="float32")
    assert not single.compiled
    evidence, (gradient,) = single.log_evidence_and_gradient([case.parameters])
    expected, (by,) = case.leaf_gps(NumpyBackend, collapsed=False).log_evidence_and_gradient(
        [case.parameters]
    )
    np.testing.assert_allclose(evidence, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient, by, rtol=1e-3, atol=1e-4 * np.abs(by).max())


@pytest.mark.skipif(not has_numba(), reason="compiled code is turned off")
def test_compiled_code_runs_it():
    X, y = np.zeros((3, 2)), np.zeros((3, 1))
    kernels = [MetricKernel("rbf", 2, 1, "zero")]
    assert InMemoryLeafGPs(Ragged.of([[0, 1, 2]]), LeafData(X, y), kernels).compiled
