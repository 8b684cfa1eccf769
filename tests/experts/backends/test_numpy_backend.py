"""Leaves in NumPy are those of the other backends, and so is a fit without compiled code."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from dsmgp._util.machine import has_numba
from dsmgp.experts.backends.numba_backend import KINDS, NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.process import build_process
from dsmgp.gp.terms import NAMED_KERNELS
from dsmgp.tree import Leaf, Region
from tests.support.leaf_predictions import predict_leaves
from tests.support.sklearn_kernels import covariance

KERNELS = [
    *NAMED_KERNELS,
    "matern32+periodic",
    "rq+rbf",
    "rbf*periodic",
    "linear*rq[2]+matern12[0,1]",
]
PAIRS = [("numba", kernel) for kernel in KINDS] + [("torch", kernel) for kernel in KERNELS]
SIZES = (40, 0, 7, 1, 25)
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


@pytest.fixture
def other(request):
    """A backend that NumPy's must agree with."""
    if request.param == "numba":
        if not has_numba():
            pytest.skip("needs numba")
        return NumbaBackend
    pytest.importorskip("torch")
    from dsmgp.experts.backends.torch_backend import TorchBackend

    return TorchBackend


class Case:
    """Overlapping leaves of different sizes, some with duplicate inputs, and two outputs with hyperparameters of their own."""

    def __init__(self, rng, kernel, mean, known, by_leaf):
        self.X, self.Y = rng.normal(size=(60, 3)) + 3.0, rng.normal(size=(60, 2))
        self.X[30:40] = self.X[20:30]
        self.X[40] = self.X[30]
        self.X[41] = self.X[42] + 1e-13
        self.known = rng.choice([0.0, 0.02, 0.5], size=(60, 2)) if known else None
        self.rows = [rng.choice(60, size, replace=False) for size in SIZES]
        processes = [build_process(kernel, mean, noise, 3) for noise in (0.05, 0.2)]
        self.processes = [
            p.with_theta(p.theta + 0.2 * rng.normal(size=len(p.theta))) for p in processes
        ]
        self.parameters = [process.kernel_parameters() for process in self.processes]
        if by_leaf:
            factors = rng.uniform(0.8, 1.2, size=(len(SIZES), 1))
            self.parameters = [factors * vector for vector in self.parameters]
        self.labels = np.unique(self.X, axis=0, return_inverse=True)[1].reshape(-1)

    def leaf_gps(self, backend, collapsed=True):
        leaves = [Leaf(Region.whole(3), rows) for rows in self.rows]
        kernels = [process.leaf_kernel for process in self.processes]
        labels = self.labels if collapsed else None
        return InMemoryLeafGPs(
            leaves,
            LeafData(self.X, self.Y, known_noise=self.known, labels=labels),
            kernels,
            backend=backend,
        )


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, another in zip(found, expected, strict=True):
        scale = np.abs(another).max(initial=0.0)
        np.testing.assert_allclose(one, another, rtol=1e-9, atol=1e-10 + 1e-9 * scale)


@pytest.mark.parametrize("by_leaf", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize(("other", "kernel"), PAIRS, indirect=["other"])
def test_every_quantity_is_that_of_another_backend(rng, other, kernel, mean, known, by_leaf):
    case = Case(rng, kernel, mean, known, by_leaf)
    ours, theirs = case.leaf_gps(NumpyBackend), case.leaf_gps(other)
    for quantity in ("log_evidence", "squares", "mean_squares"):
        values = [getattr(gps, quantity)(case.parameters) for gps in (ours, theirs)]
        np.testing.assert_allclose(*values, **CLOSE)
    for scale_rows in (None, 4.0):
        (evidence, gradient), (expected, by) = (
            gps.log_evidence_and_gradient(case.parameters, scale_rows=scale_rows)
            for gps in (ours, theirs)
        )
        np.testing.assert_allclose(evidence, expected, **CLOSE)
        assert_same(gradient, by)
    posteriors = [
        condition(gps, case.parameters, leave_out=True, share=False) for gps in (ours, theirs)
    ]
    for name in ("log_evidence", "noise"):
        values = [getattr(posterior, name) for posterior in posteriors]
        np.testing.assert_allclose(*values, **CLOSE)
    assert_same(posteriors[0].alpha, posteriors[1].alpha)
    for name in (
        "mean",
        "variance",
        "grouped_mean",
        "grouped_variance",
        "grouped_log_density",
    ):
        values = [getattr(posterior.leaf_loo().moments, name) for posterior in posteriors]
        np.testing.assert_allclose(*values, rtol=1e-8, atol=1e-10)
    tests = np.concatenate([case.X[:5], rng.normal(size=(9, 3)) + 3.0])
    tasks = [(leaf, tests[: 14 - leaf]) for leaf in range(len(SIZES))]
    for one, another in zip(*(predict_leaves(p, tasks) for p in posteriors), strict=True):
        assert_same(one, another)
    for one, another in zip(*(predict_leaves(p, tasks, False) for p in posteriors), strict=True):
        assert_same(one, another)
    for leaf, size in enumerate(SIZES):
        assert_same(*(posterior.joint(leaf, tests) for posterior in posteriors))
        if size:
            factors = [[np.tril(p.factor(output, leaf)) for output in range(2)] for p in posteriors]
            assert_same(*factors)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_evidence_with_its_scale_integrated_out_is_that_of_a_student_t(rng, kernel):
    """By SciPy, with scikit-learn's covariances."""
    case = Case(rng, kernel, "zero", True, False)
    evidence, _ = case.leaf_gps(NumpyBackend).log_evidence_and_gradient(
        case.parameters, scale_rows=5.0
    )
    for leaf, rows in enumerate(case.rows):
        for output, process in enumerate(case.processes):
            expected = 0.0
            if len(rows):
                K = covariance(process.kernel, case.X[rows], case.X[rows])
                K += np.diag(process.noise + case.known[rows, output])
                expected = stats.multivariate_t(np.zeros(len(rows)), K, df=5).logpdf(
                    case.Y[rows, output]
                )
            assert evidence[leaf, output] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("scale_rows", [None, 4.0])
def test_a_leaf_that_cannot_be_factorised_takes_nothing_from_the_others(rng, scale_rows):
    case = Case(rng, "rq", "constant", False, True)
    good = case.leaf_gps(NumpyBackend)
    expected, by = good.log_evidence_and_gradient(case.parameters, scale_rows=scale_rows)
    table = case.parameters[0].copy()
    table[2, -1] = -30.0
    evidence, gradient = good.log_evidence_and_gradient(
        [table, case.parameters[1]], scale_rows=scale_rows
    )
    assert np.isnan(evidence[2, 0])
    assert np.isnan(gradient[0][2]).all()
    for leaf in (0, 1, 3, 4):
        np.testing.assert_array_equal(evidence[leaf], expected[leaf])
        np.testing.assert_array_equal(gradient[0][leaf], by[0][leaf])
    for quantity in ("log_evidence", "squares"):
        values = getattr(good, quantity)([table, case.parameters[1]])
        assert np.isnan(values).sum() == 1
        assert np.isnan(values[2, 0])


def test_predictions_in_pieces_are_those_in_one_go(rng, monkeypatch):
    case = Case(rng, "rq", "linear", False, False)
    posterior = condition(case.leaf_gps(NumpyBackend), case.parameters)
    tasks = [(leaf, case.X) for leaf in range(len(SIZES))]
    whole = predict_leaves(posterior, tasks)
    monkeypatch.setattr("dsmgp.experts.backends.numpy_backend.TILE_ELEMENTS", 100)
    for one, another in zip(predict_leaves(posterior, tasks), whole, strict=True):
        for found, expected in zip(one, another, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS)
def test_numpy_computes_what_has_no_compiled_form(rng, kernel, monkeypatch):
    case = Case(rng, kernel, "zero", False, False)
    compiled = has_numba() and kernel in KINDS
    assert type(case.leaf_gps(None).backend) is (NumbaBackend if compiled else NumpyBackend)
    monkeypatch.setattr("dsmgp.experts.backends.numba_backend.has_numba", lambda: False)
    assert type(case.leaf_gps(None).backend) is NumpyBackend


FIT = """
import sys
import numpy as np
from dsmgp import DSMGPRegressor
from dsmgp._util.machine import has_numba

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(150, 2))
y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=150)
model = DSMGPRegressor(hypotheses=None, random_state=0).fit(X, y)
new = rng.uniform(-2, 2, size=(50, 2))
mean, std = model.predict(new, return_std=True)
np.savez(sys.argv[1], numba=has_numba(), modules=sorted(sys.modules), mean=mean, std=std,
         evidence=model.log_marginal_likelihood_, loo=model.loo_score_)
"""


@pytest.mark.skipif(not has_numba(), reason="needs numba")
def test_a_default_fit_without_compiled_code_is_the_same(tmp_path):
    found = []
    for name, environment in (("numba", {}), ("numpy", {"DSMGP_NO_NUMBA": "1"})):
        path = tmp_path / f"{name}.npz"
        done = subprocess.run(
            [sys.executable, "-c", FIT, str(path)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found.append(np.load(path))
    compiled, plain = found
    assert compiled["numba"]
    assert not plain["numba"]
    assert "numba" not in plain["modules"]
    for name in ("mean", "std", "evidence", "loo"):
        np.testing.assert_allclose(plain[name], compiled[name], rtol=1e-8, atol=1e-8)
