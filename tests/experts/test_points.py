"""Rows with equal inputs are computed as one, with the results of dense algebra on all of them."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dsmgp import DSMGPRegressor
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends.numba_backend import KINDS, NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.points import LeafPoints, Observations, equal_rows
from dsmgp.fitting.finetuning.pair_evidence import NoiseEvidence
from dsmgp.gp.leaf_parameters import LeafParameters
from dsmgp.gp.process import build_process
from dsmgp.tree.routing import Routes
from tests.support.finite_differences import central_difference

LEAVES = [np.arange(0, 80), np.empty(0, np.int64), np.arange(50, 120), np.arange(7)]
N_OUTPUTS = 2


@pytest.mark.parametrize("collide", [False, True])
def test_equal_rows_and_no_others_share_a_number(rng, monkeypatch, collide):
    if collide:  # different rows of one hash
        monkeypatch.setattr("dsmgp.experts.points._hashes", lambda bits: bits[:, 0] & np.uint64(1))
    for X in (
        np.array([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0], [-0.0, 2.0]]),
        rng.integers(-1, 2, size=(200, 3)) * 0.5,
        rng.normal(size=(50, 2)),
        np.asfortranarray(rng.normal(size=(20, 4))[rng.integers(0, 20, size=60)]),
        np.zeros((5, 1)),
    ):
        labels = equal_rows(X)
        assert labels.shape == (len(X),)
        np.testing.assert_array_equal(
            labels[:, None] == labels, (X[:, None, :] == X[None, :, :]).all(axis=2)
        )
        assert len(np.unique(labels)) == len(np.unique(X + 0.0, axis=0))


@pytest.mark.parametrize("n_distinct", [1, 8, 60])
def test_points_are_the_distinct_inputs_of_each_leaf(rng, n_distinct):
    labels = rng.integers(0, n_distinct, size=60)
    leaf_rows = Ragged.of([rng.permutation(60)[:40], [], np.arange(5), [3]])
    points = LeafPoints.of(leaf_rows, labels)
    for leaf, rows in enumerate(leaf_rows[k] for k in range(4)):
        found, starts = points.of_leaf(leaf)
        assert sorted(found) == sorted(rows)
        groups = [labels[found[a:b]] for a, b in pairwise(starts)]
        assert all(len(set(group)) == 1 for group in groups)
        # In the order of their first rows, each of them once.
        firsts = list(dict.fromkeys(labels[rows].tolist()))
        assert [group[0] for group in groups] == firsts
        np.testing.assert_array_equal(points.first[leaf], found[starts[:-1]])
    some = points.take(np.array([2, 0]))
    np.testing.assert_array_equal(some.of_leaf(1)[1], points.of_leaf(0)[1])
    np.testing.assert_array_equal(some.rows[0], points.rows[2])


def test_without_equal_inputs_rows_stay_in_their_order():
    leaf_rows = Ragged.of([[4, 2], [3]])
    for labels in (None, np.arange(5), np.array([0, 0, 1, 2, 3])):
        points = LeafPoints.of(leaf_rows, labels)
        assert points.rows is points.first is leaf_rows
        assert not points.any_shared


def test_a_row_alone_keeps_its_last_digits(rng):
    y, noise = rng.normal(size=5), rng.uniform(0.1, 1.0, size=5)
    observations = Observations.of(y, noise, np.array([0, 1, 3, 4, 5]))
    alone = [0, 2, 3]
    np.testing.assert_array_equal(observations.mean[alone], y[[0, 3, 4]])
    np.testing.assert_array_equal(observations.variance[alone], noise[[0, 3, 4]])


@pytest.fixture(params=["numpy", "numba", "torch"])
def collapsing(request):
    """A backend, and the kernels it is tried with."""
    if request.param == "numpy":
        return NumpyBackend, ["rbf", "rq", "matern32+periodic"]
    if request.param == "numba":
        if not NumbaBackend.supports([[build_process("rbf", "zero", 0.1, 1).leaf_kernel]]):
            pytest.skip("needs numba")
        return NumbaBackend, list(KINDS)
    pytest.importorskip("torch")
    from dsmgp.experts.backends.torch_backend import TorchBackend

    return TorchBackend, ["rbf", "matern12", "matern32+periodic"]


class Case:
    """120 rows at 30 inputs, one of which has a third of them; in leaves, for two outputs."""

    def __init__(self, rng, kernel, known):
        place = rng.integers(0, 30, size=120)
        place[::3] = 0
        self.X = rng.uniform(-2, 2, size=(30, 2))[place]
        self.Y = np.sin(self.X) + 0.3 * rng.normal(size=(120, 2))
        self.known = rng.uniform(0.01, 0.5, size=(120, 2)) if known else None
        self.process = build_process(kernel, "linear", 0.05, 2)
        step = 0.2 * rng.normal(size=(N_OUTPUTS, len(self.process.theta)))
        self.parameters = list(self.process.kernel_parameters(self.process.theta + step))

    def leaf_gps(self, backend, labels=True):
        return InMemoryLeafGPs(
            Ragged.of(LEAVES),
            LeafData(
                self.X,
                self.Y,
                known_noise=self.known,
                labels=equal_rows(self.X) if labels else None,
            ),
            [self.process.leaf_kernel] * N_OUTPUTS,
            backend=backend,
        )

    def dense(self, output, rows):
        """Mean and covariance of the observations at rows."""
        kernel, X = self.process.leaf_kernel.at(self.parameters[output]), self.X[rows]
        noise = np.full(len(rows), kernel.noise)
        if self.known is not None:
            noise += self.known[rows, output]
        return kernel.mean(X), kernel.cross(X, X) + np.diag(noise)


@pytest.mark.parametrize("known", [False, True])
def test_evidence_and_gradient_are_those_of_all_rows(rng, collapsing, known):
    backend, kernels = collapsing
    for kernel in kernels:
        case = Case(rng, kernel, known)
        collapsed = case.leaf_gps(backend)
        assert collapsed.points.first.sizes.max() <= 30
        evidence = collapsed.log_evidence(case.parameters)
        for leaf, rows in enumerate(LEAVES):
            for output in range(N_OUTPUTS):
                mean, K = case.dense(output, rows)
                expected = (
                    multivariate_normal(mean, K).logpdf(case.Y[rows, output]) if len(rows) else 0.0
                )
                assert evidence[leaf, output] == pytest.approx(expected, rel=1e-9)
        for scale_rows in (None, 5.0):
            found, gradients = collapsed.log_evidence_and_gradient(
                case.parameters, scale_rows=scale_rows
            )
            plain, expected = case.leaf_gps(NumpyBackend, labels=False).log_evidence_and_gradient(
                case.parameters, scale_rows=scale_rows
            )
            np.testing.assert_allclose(found, plain, rtol=1e-9)
            for one, other in zip(gradients, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7)

        def of_first(vector, collapsed=collapsed, case=case):
            return collapsed.log_evidence([vector, case.parameters[1]])[:, 0]

        numerical = central_difference(of_first, case.parameters[0])
        _, (gradient, _) = collapsed.log_evidence_and_gradient(case.parameters)
        np.testing.assert_allclose(gradient, numerical, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("known", [False, True])
def test_predictions_and_rows_left_out_are_those_of_dense_algebra(rng, collapsing, known):
    backend, kernels = collapsing
    case = Case(rng, kernels[0], known)
    posterior = condition(case.leaf_gps(backend), case.parameters, leave_out=True)
    tests = rng.uniform(-2, 2, size=(6, 2))
    routes = Routes(np.array([0, 2]), Ragged.of([np.arange(6)] * 2))
    mean, variance = posterior.predict(routes, tests)
    moments, leaf = posterior.leaf_loo().moments, posterior.leaf_rows.owner
    for place, number in enumerate((0, 2)):
        rows, inside = LEAVES[number], np.flatnonzero(leaf == number)
        for output in range(N_OUTPUTS):
            kernel = case.process.leaf_kernel.at(case.parameters[output])
            m, K = case.dense(output, rows)
            y, cross = case.Y[rows, output], kernel.cross(tests, case.X[rows])
            where = slice(6 * place, 6 * place + 6)
            expected = kernel.mean(tests) + cross @ np.linalg.solve(K, y - m)
            np.testing.assert_allclose(mean[where, output], expected, rtol=1e-8, atol=1e-9)
            explained = np.diag(cross @ np.linalg.solve(K, cross.T))
            np.testing.assert_allclose(
                variance[where, output], kernel.variance(tests) - explained, rtol=1e-7, atol=1e-9
            )
            for entry in inside:
                i = int(np.flatnonzero(rows == posterior.leaf_rows.flat[entry])[0])
                same = np.flatnonzero((case.X[rows] == case.X[rows[i]]).all(axis=1))
                for out, prefix in ((np.array([i]), ""), (same, "grouped_")):
                    others = np.setdiff1d(np.arange(len(rows)), out)
                    B = np.linalg.solve(K[np.ix_(others, others)], K[np.ix_(others, out)]).T
                    centre = m[out] + B @ (y[others] - m[others])
                    C = K[np.ix_(out, out)] - B @ K[np.ix_(others, out)]
                    k = int(np.flatnonzero(out == i)[0])
                    found = [
                        getattr(moments, prefix + name)[entry, output]
                        for name in ("mean", "variance")
                    ]
                    np.testing.assert_allclose(found, [centre[k], C[k, k]], rtol=1e-7, atol=1e-8)
                density = multivariate_normal(centre, C).logpdf(y[out])
                assert moments.grouped_log_density[entry, output] == pytest.approx(
                    density, rel=1e-6
                )


def test_updates_of_shared_inputs_are_those_of_conditioning_on_all_rows(rng):
    case = Case(rng, "matern52", known=False)
    ids, every = np.arange(120), Ragged.of([np.arange(80)])
    first = condition(
        InMemoryLeafGPs(every, LeafData(case.X[:80], case.Y[:80], labels=equal_rows(case.X[:80])), [case.process.leaf_kernel] * 2),
        case.parameters,
        leave_out=True,
    ).online(ids[:80])  # fmt: skip
    added = first.with_rows(
        Routes(np.array([0]), Ragged.of([np.arange(40)])), ids[80:], case.X[80:], case.Y[80:], None
    )
    removed = added.without_rows(Routes(np.array([0]), Ragged.of([np.arange(3)])), ids[[0, 1, 100]])
    kept = np.setdiff1d(ids, [0, 1, 100])
    for online, rows in ((added, ids), (removed, kept)):
        plain = InMemoryLeafGPs(
            Ragged.of([np.arange(len(rows))]),
            LeafData(case.X[rows], case.Y[rows]),
            [case.process.leaf_kernel] * 2,
        )
        expected = condition(plain, case.parameters, leave_out=True)
        np.testing.assert_allclose(online.log_evidence, expected.log_evidence, rtol=1e-9)
        tests = rng.uniform(-2, 2, size=(5, 2))
        routes = Routes(np.array([0]), Ragged.of([np.arange(5)]))
        for one, other in zip(
            online.predict(routes, tests), expected.predict(routes, tests), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(
            online.scales(np.array([0])), expected.leave_one_out().scales, rtol=1e-8
        )


def test_the_noise_alone_can_be_tuned_on_spectra_of_distinct_inputs(rng):
    from scipy import sparse

    case = Case(rng, "rbf", known=False)
    thetas = LeafParameters([case.process], np.zeros(len(LEAVES), np.int64))
    theta = np.tile(case.process.theta, (len(LEAVES), 1))
    for noise in (-3.0, 0.5):
        theta[:, -1] = noise
        evidence = NoiseEvidence(
            case.leaf_gps(None), thetas, 0, sparse.csr_matrix(np.eye(len(LEAVES))), theta
        )
        leaf = np.array([0, 2, 3])
        value, _ = evidence(leaf, theta[leaf])
        parameters = case.process.kernel_parameters(theta[0])
        expected = case.leaf_gps(None, labels=False).log_evidence([parameters] * 2)[leaf, 0]
        np.testing.assert_allclose(value, expected, rtol=1e-9)


def test_a_fit_on_rows_that_nearly_all_share_one_input_ends():
    """It took a minute with 2,000 such rows, and did not end with 4,000."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(4000, 3))
    X[rng.uniform(size=4000) < 0.97] = 0.0
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=4000)
    model = DSMGPRegressor("matern32", random_state=0).fit(X, y)
    mean, std = model.predict(np.zeros((1, 3)), return_std=True)
    at_zero = y[(X == 0).all(axis=1)]
    assert mean[0] == pytest.approx(at_zero.mean(), abs=0.02)
    assert std[0] == pytest.approx(at_zero.std(), rel=0.1)


def test_memory_is_needed_for_distinct_inputs_only():
    rng = np.random.default_rng(0)
    X = np.concatenate([np.zeros((3000, 1)), rng.uniform(1, 2, size=(50, 1))])
    y = X[:, 0] + 0.1 * rng.normal(size=len(X))
    options = {"kernel": "rbf", "leaf_size": 4000, "sum_children": 1, "memory_limit": "8MB"}
    model = DSMGPRegressor(**options, random_state=0).fit(X, y)
    assert model.predict([[0.0]])[0] == pytest.approx(y[:3000].mean(), abs=0.02)
    distinct = rng.uniform(size=(3050, 1))
    with pytest.raises(ValueError, match="3050 rows with distinct inputs"):
        DSMGPRegressor(**options).fit(distinct, y)
