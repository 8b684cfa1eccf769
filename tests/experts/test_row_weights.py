"""A row of weight w counts as w copies of itself: whole weights are repetition, others are powers of the likelihood."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal

from dsmgp._util.ragged import Ragged
from dsmgp.distributed.shard import Shard, ShardData, ShardPlan
from dsmgp.experts.backends.numba_backend import NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.points import equal_rows
from dsmgp.fitting.finetuning.pair_evidence import NoiseEvidence
from dsmgp.gp.leaf_parameters import LeafParameters
from dsmgp.gp.process import build_process
from dsmgp.tree.routing import Routes
from tests.support.finite_differences import central_difference

N_ROWS = 40
LEAVES = [np.arange(30), np.empty(0, np.int64), np.arange(18, 40)]


@pytest.fixture(params=["numpy", "numba", "torch"])
def backend(request):
    if request.param == "numpy":
        return NumpyBackend
    if request.param == "numba":
        if not NumbaBackend.supports([[build_process("rbf", "zero", 0.1, 1).leaf_kernel]]):
            pytest.skip("needs numba")
        return NumbaBackend
    pytest.importorskip("torch")
    from dsmgp.experts.backends.torch_backend import TorchBackend

    return TorchBackend


class Case:
    """40 rows, some of which share their inputs, in leaves that overlap, for two outputs."""

    def __init__(self, rng, known=False, whole=True):
        self.X = rng.uniform(-2, 2, size=(N_ROWS, 2))
        self.X[25:33] = self.X[:8]
        self.Y = np.sin(self.X) + 0.3 * rng.normal(size=(N_ROWS, 2))
        self.known = rng.uniform(0.01, 0.5, size=(N_ROWS, 2)) if known else None
        self.weights = rng.integers(1, 4, size=N_ROWS).astype(float)
        if not whole:
            self.weights = rng.choice([0.01, 0.4, 1.0, 2.7], size=N_ROWS)
        self.process = build_process("matern32", "linear", 0.05, 2)
        step = 0.2 * rng.normal(size=(2, len(self.process.theta)))
        self.parameters = list(self.process.kernel_parameters(self.process.theta + step))
        #: Row numbers, each as often as its weight says.
        self.repeated = np.repeat(np.arange(N_ROWS), self.weights.astype(int))

    def leaf_gps(self, backend=None, rows=None, **data):
        rows = np.arange(N_ROWS) if rows is None else rows
        own = [np.flatnonzero(np.isin(rows, leaf)) for leaf in LEAVES]
        return InMemoryLeafGPs(
            Ragged.of(own),
            LeafData(
                self.X[rows],
                self.Y[rows],
                known_noise=None if self.known is None else self.known[rows],
                **data,
            ),
            [self.process.leaf_kernel] * 2,
            backend=backend,
        )

    def weighted(self, backend=None):
        return self.leaf_gps(backend, labels=equal_rows(self.X), row_weights=self.weights)

    def noise(self, output, rows):
        noise = np.full(len(rows), self.process.leaf_kernel.at(self.parameters[output]).noise)
        return noise if self.known is None else noise + self.known[rows, output]


@pytest.mark.parametrize("known", [False, True])
def test_whole_weights_are_repetition(rng, backend, known):
    case = Case(rng, known)
    weighted = case.weighted(backend)
    rows = case.repeated
    repeated = case.leaf_gps(NumpyBackend, rows, labels=equal_rows(case.X[rows]))
    assert weighted.n_observations == len(repeated.leaf_rows.flat)
    for method in ("log_evidence", "squares", "mean_squares"):
        found, expected = (getattr(gps, method)(case.parameters) for gps in (weighted, repeated))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    for scale_rows in (None, 5.0):
        found, expected = (
            gps.log_evidence_and_gradient(case.parameters, scale_rows=scale_rows)
            for gps in (weighted, repeated)
        )
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)
        for one, other in zip(found[1], expected[1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7)
    posteriors = [condition(gps, case.parameters, leave_out=True) for gps in (weighted, repeated)]
    tests, routes = rng.uniform(-2, 2, size=(6, 2)), Routes(np.arange(3), Ragged.of([range(6)] * 3))
    for one, other in zip(*(each.predict(routes, tests) for each in posteriors), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)
    same_rows_left_out(*posteriors, case)


def same_rows_left_out(weighted, repeated, case):
    """The copies of a row are left out as the row is."""
    one, other = (posterior.leave_one_out() for posterior in (weighted, repeated))
    np.testing.assert_allclose(one.squares, other.squares, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(one.counts, other.counts, rtol=1e-9)
    every, copies = np.arange(N_ROWS), np.arange(len(case.repeated))
    np.testing.assert_array_equal(one.weights(every), case.weights)
    assert other.weights(copies) is None
    for grouped in (False, True):
        found, expected = one.components(every, grouped), other.components(copies, grouped)
        for name in ("mean", "variance"):
            table = getattr(found, name)[case.repeated]
            np.testing.assert_allclose(table, getattr(expected, name), rtol=1e-7, atol=1e-9)
        density = one.log_density(every, grouped)[case.repeated]
        np.testing.assert_allclose(density, other.log_density(copies, grouped), rtol=1e-7)
    np.testing.assert_allclose(
        one.scales_without(every)[case.repeated], other.scales_without(copies), rtol=1e-7
    )


@pytest.mark.parametrize("known", [False, True])
def test_other_weights_are_powers_of_the_likelihood_by_dense_algebra(rng, backend, known):
    case = Case(rng, known, whole=False)
    gps, w = case.weighted(backend), case.weights
    evidence = gps.log_evidence(case.parameters)
    moments = condition(gps, case.parameters, leave_out=True).leaf_loo()
    for leaf, rows in enumerate(LEAVES):
        for output in range(2 if len(rows) else 0):
            kernel, y = case.process.leaf_kernel.at(case.parameters[output]), case.Y[rows, output]
            noise, mean = case.noise(output, rows), kernel.mean(case.X[rows])
            K = kernel.cross(case.X[rows], case.X[rows])
            # N(y | f, v)^w is N(y | f, v / w) times a constant.
            constant = 0.5 * np.log(2 * np.pi * noise / w[rows])
            constant -= 0.5 * w[rows] * np.log(2 * np.pi * noise)
            dense = multivariate_normal(mean, K + np.diag(noise / w[rows])).logpdf(y)
            assert evidence[leaf, output] == pytest.approx(dense + constant.sum(), rel=1e-9)
            for entry in np.flatnonzero(moments.leaf == leaf)[::3]:
                i = int(np.flatnonzero(rows == moments.leaf_rows.flat[entry])[0])
                left = w[rows].copy()
                left[i] -= min(left[i], 1.0)
                there = np.flatnonzero(left > 1e-12)
                C = K[np.ix_(there, there)] + np.diag(noise[there] / left[there])
                pull = np.linalg.solve(C, K[there, i])
                found = moments.moments.mean[entry, output], moments.moments.variance[entry, output]
                expected = (
                    mean[i] + pull @ (y - mean)[there],
                    K[i, i] + noise[i] - pull @ K[there, i],
                )
                np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scale_rows", [None, 5.0])
def test_the_gradient_is_that_of_finite_differences(rng, backend, scale_rows):
    case = Case(rng, known=True, whole=False)
    gps = case.weighted(backend)

    def value(vector):
        both = [vector, case.parameters[1]]
        return gps.log_evidence_and_gradient(both, scale_rows=scale_rows)[0][:, 0]

    _, (gradient, _) = gps.log_evidence_and_gradient(case.parameters, scale_rows=scale_rows)
    numerical = central_difference(value, case.parameters[0])
    np.testing.assert_allclose(gradient, numerical, rtol=1e-5, atol=1e-5)


def test_weights_of_one_change_nothing_but_rounding(rng, backend):
    case = Case(rng, known=True)
    case.weights = np.ones(N_ROWS)
    plain = case.leaf_gps(backend, labels=equal_rows(case.X))
    for one, other in zip(
        case.weighted(backend).log_evidence_and_gradient(case.parameters),
        plain.log_evidence_and_gradient(case.parameters),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("whole", [True, False])
def test_updates_are_those_of_conditioning_on_all_rows(rng, whole):
    case = Case(rng, known=True, whole=whole)
    ids, kernels = np.arange(N_ROWS), [case.process.leaf_kernel] * 2

    def conditioned(rows, weights):
        gps = InMemoryLeafGPs(Ragged.of([np.arange(len(rows))]), LeafData(case.X[rows], case.Y[rows], known_noise=case.known[rows], labels=equal_rows(case.X[rows]), row_weights=weights), kernels)  # fmt: skip
        return condition(gps, case.parameters, leave_out=True)

    new = Routes(np.array([0]), Ragged.of([np.arange(20)]))
    for weights in (case.weights, np.where(ids < 20, 1.0, case.weights)):
        # Rows without weights get weights of one when others with weights are added.
        first = conditioned(ids[:20], None if (weights[:20] == 1.0).all() else weights[:20])
        added = first.online(ids[:20]).with_rows(
            new, ids[20:], case.X[20:], case.Y[20:], case.known[20:], weights[20:]
        )
        gone = ids[[0, 3, 25, 39]]
        removed = added.without_rows(Routes(np.array([0]), Ragged.of([np.arange(4)])), gone)
        for online, rows in ((added, ids), (removed, np.setdiff1d(ids, gone))):
            expected = conditioned(rows, weights[rows])
            np.testing.assert_allclose(online.log_evidence, expected.log_evidence, rtol=1e-9)
            tests, routes = rng.uniform(-2, 2, size=(5, 2)), Routes(np.array([0]), Ragged.of([range(5)]))  # fmt: skip
            for one, other in zip(
                online.predict(routes, tests), expected.predict(routes, tests), strict=True
            ):
                np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)
            np.testing.assert_allclose(
                online.scales(np.array([0])), expected.leave_one_out().scales, rtol=1e-8
            )


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("whole", [True, False])
def test_the_noise_alone_can_be_tuned_on_spectra(rng, known, whole):
    case = Case(rng, known, whole)
    thetas = LeafParameters([case.process], np.zeros(len(LEAVES), np.int64))
    theta = np.tile(case.process.theta, (len(LEAVES), 1))
    ties, leaf = sparse.csr_matrix(np.eye(len(LEAVES))), np.array([0, 2])

    def evidence(noise):
        theta[:, -1] = noise
        return NoiseEvidence(case.weighted(), thetas, 0, ties, theta)(leaf, theta[leaf])

    for noise in (-3.0, 0.5):
        value, gradient = evidence(noise)
        parameters = case.process.kernel_parameters(theta[0])
        expected = case.weighted().log_evidence([parameters] * 2)[leaf, 0]
        np.testing.assert_allclose(value, expected, rtol=1e-9)
        numerical = (evidence(noise + 1e-5)[0] - evidence(noise - 1e-5)[0]) / 2e-5
        np.testing.assert_allclose(gradient[:, -1], numerical, rtol=1e-6, atol=1e-6)


def test_a_shard_has_the_weights_of_its_rows(rng):
    case = Case(rng)
    gps, rows = case.weighted(), Ragged.of(LEAVES)
    data = ShardData(np.arange(N_ROWS), rows, gps.data)
    kernels = [[case.process.leaf_kernel] * 3] * 2
    shard = Shard(ShardPlan(lambda: data, np.arange(3), kernels, 1e9, "cpu", "float64"))
    np.testing.assert_array_equal(
        shard.log_evidence(case.parameters), gps.log_evidence(case.parameters)
    )
