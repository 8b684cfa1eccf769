"""Leaves conditioned together are those conditioned each for itself; and they are where that is faster."""

import math
import pickle

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, FactorisationWarning
from dsmgp._util.machine import has_numba
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backends import shared_backend as shared
from dsmgp.experts.conditioning import condition
from dsmgp.experts.factors import sharing
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.points import equal_rows
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.linalg import lapack
from dsmgp.tree import Leaf, Region, leaves
from dsmgp.tree.growing import grow_balanced, grow_paper
from dsmgp.tree.routing import Routes
from tests.support.cores import using_threads
from tests.support.leaf_predictions import predict_leaves

pytestmark = pytest.mark.skipif(not lapack.available, reason="SciPy does not export LAPACK")
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(autouse=True)
def one_core():
    """Matrices this small are slower on two."""
    with using_threads(1):
        yield


@pytest.fixture
def always(monkeypatch):
    """Leaves share wherever they can, however small."""
    monkeypatch.setattr(shared, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(shared, "MOST_PLANNING", math.inf)
    monkeypatch.setattr(sharing, "CALL_FLOPS", 0.0)


def rows_of(n, n_outputs=1, repeated=False, d=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    if repeated:
        X[n // 2 : n // 2 + n // 4] = X[: n // 4]
    waves = np.sin(6.0 * X[:, :1] * (1.0 + np.arange(n_outputs)))
    return X, waves + 0.1 * rng.normal(size=waves.shape)


def leaf_gps_of(X, Y, tree, mean_kind="zero", dtype="float64", **data):
    leaf_kernels = [StationaryKernel("matern52", tuple(range(X.shape[1])), mean_kind)] * Y.shape[1]
    return InMemoryLeafGPs(leaves(tree), LeafData(X, Y, **data), leaf_kernels, dtype=dtype)


def kernel_parameters_of(X, Y, mean=(), noise=0.02):
    return [np.array([0.3 + 0.1 * k] * X.shape[1] + [1.0, *mean, noise]) for k in range(Y.shape[1])]


def paper(X, n=8, leaf_size=100, **options):
    return grow_paper(
        X, leaf_size=leaf_size, sum_children=n, product_children=2, rng=np.random.default_rng(0),
        **options,
    )  # fmt: skip


TREES = {
    "paper": lambda X: paper(X, 6, 30, depth=1),
    "paper, two layers": lambda X: paper(X, 3, 20, depth=2),
    "balanced": lambda X: grow_balanced(X, leaf_sizes=[60, 100] * 3, rng=np.random.default_rng(0)),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("backend")
def test_shared_is_separate(always, tree, n_outputs, repeated, known, weighted):
    X, Y = rows_of(250, n_outputs, repeated)
    tree = TREES[tree](X)
    noise = np.random.default_rng(1).uniform(0.01, 0.1, size=Y.shape) if known else None
    weights = np.random.default_rng(2).uniform(0.2, 3.0, size=len(X)) if weighted else None
    leaf_gps = leaf_gps_of(
        X, Y, tree, "constant", labels=equal_rows(X), known_noise=noise, row_weights=weights
    )
    kernel_parameters = kernel_parameters_of(X, Y, mean=(0.3,))
    alone, together = (
        condition(leaf_gps, kernel_parameters, leave_out=True, share=s) for s in (0, 1)
    )
    assert alone.sharing is None
    assert together.sharing.saving > 0.2
    np.testing.assert_allclose(together.log_evidence, alone.log_evidence, **EXACT)
    every = np.arange(len(X))
    loo = [c.leave_one_out() for c in (together, alone)]
    for grouped in (False, True):
        found, expected = (one.components(every, grouped) for one in loo)
        np.testing.assert_allclose(found.mean, expected.mean, **EXACT)
        np.testing.assert_allclose(found.variance, expected.variance, **EXACT)
        densities = (one.log_density(every, grouped) for one in loo)
        np.testing.assert_allclose(*densities, **EXACT)
    np.testing.assert_allclose(loo[0].scales_without(every), loo[1].scales_without(every), **EXACT)
    test = np.linspace(-0.1, 1.1, 40)[:, None]
    tasks = [(number, test) for number in range(leaf_gps.n_leaves)]
    for one, other in zip(
        predict_leaves(together, tasks), predict_leaves(alone, tasks), strict=True
    ):
        for table, expected in zip(one, other, strict=True):
            np.testing.assert_allclose(table, expected, **EXACT)
    for number, _ in tasks:
        for table, expected in zip(
            together.joint(number, test), alone.joint(number, test), strict=True
        ):
            np.testing.assert_allclose(table, expected, **EXACT)


def test_leaves_with_some_of_the_rows_at_an_input_do_not_share(always):
    """Their averages there differ. Leaves of a tree have all of them."""
    X, Y = rows_of(120, repeated=True)
    nodes = [Leaf(Region.whole(1), rows) for rows in (np.arange(70), np.arange(100), np.arange(90))]
    leaf_kernel = StationaryKernel("matern52", (0,), "zero")
    for labels in (None, equal_rows(X)):
        leaf_gps = InMemoryLeafGPs(nodes, LeafData(X, Y, labels=labels), [leaf_kernel])
        found = condition(leaf_gps, kernel_parameters_of(X, Y))
        assert (found.sharing is None) == (labels is not None)
        if labels is None:
            expected = found.log_evidence
    np.testing.assert_allclose(found.log_evidence, expected, **EXACT)


@pytest.mark.parametrize("structure", ["paper", "balanced"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_a_fitted_model_is_the_same_shared(always, monkeypatch, structure, n_outputs):
    X, Y = rows_of(300, n_outputs, repeated=True)
    model = DSMGPRegressor(
        "matern52", noise_variance=0.02, structure=structure, leaf_size=60, sum_children=6,
        weights="posterior", optimizer=None, random_state=0,
    )  # fmt: skip

    def found():
        model.fit(X, Y)
        mean, std = model.predict(np.linspace(0, 1, 30)[:, None], return_std=True)
        _, covariance = model.predict(np.linspace(0, 1, 30)[:, None], return_cov=True)
        weights = np.concatenate(list(model.posterior_weights_.values()))
        scores = [model.log_marginal_likelihood_, model.loo_score_, model.loo_score_new_inputs_]
        return [mean, std, covariance, weights, np.array(scores)]

    together = found()
    assert "shared factors" in model.summary()
    monkeypatch.setattr(shared, "LEAST_GAIN", math.inf)
    alone = found()
    assert "shared factors" not in model.summary()
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


def test_leaves_share_where_it_pays():
    X, Y = rows_of(1000)
    leaf_gps = leaf_gps_of(X, Y, paper(X, 16, depth=1))
    conditioned = condition(leaf_gps, kernel_parameters_of(X, Y))
    assert conditioned.sharing.saving > 0.8
    assert conditioned.factors.n_bytes < 2 * 8 * 800**2


def test_leaves_of_a_family_share(always):
    """Partitions that differ in kernel or hyperparameters share among themselves, in many inputs too."""
    X, Y = rows_of(300, n_outputs=2, d=6)
    tree = grow_paper(
        X, leaf_size=60, sum_children=36, product_children=2, depth=1, rng=np.random.default_rng(0)
    )
    family = np.arange(len(leaves(tree))) // 2 % 3  # of the partition
    kinds = ["matern52", "matern52", "rbf"]
    kernels = [
        [StationaryKernel(kinds[k], tuple(range(6)), "constant") for k in family] for _ in range(2)
    ]
    leaf_gps = InMemoryLeafGPs(leaves(tree), LeafData(X, Y), kernels)
    values = np.array([[0.5] * 6 + [1.0, 0.2, 0.05], [0.9] * 6 + [1.3, 0.1, 0.02]])
    parameters = [values[np.minimum(family, 1)], 1.1 * values[np.minimum(family, 1)]]
    alone, together = (condition(leaf_gps, parameters, leave_out=True, share=s) for s in (0, 1))
    plan = together.sharing
    assert plan.saving > 0.1
    assert (family[plan.owner] == family).all()
    assert len({int(family[k]) for k in np.flatnonzero(np.diff(plan.owner, append=-1))}) > 1
    np.testing.assert_allclose(together.log_evidence, alone.log_evidence, **EXACT)
    loo = [c.leave_one_out().components(np.arange(300)) for c in (together, alone)]
    np.testing.assert_allclose(loo[0].mean, loo[1].mean, **EXACT)
    np.testing.assert_allclose(loo[0].variance, loo[1].variance, **EXACT)
    tests = np.random.default_rng(3).uniform(size=(20, 6))
    tasks = [(number, tests) for number in range(leaf_gps.n_leaves)]
    for one, other in zip(
        predict_leaves(together, tasks), predict_leaves(alone, tasks), strict=True
    ):
        for table, expected in zip(one, other, strict=True):
            np.testing.assert_allclose(table, expected, **EXACT)


def test_many_inputs_share_where_it_pays():
    X, Y = rows_of(1000, d=8)
    tree = grow_paper(
        X, leaf_size=100, sum_children=32, product_children=2, depth=1, rng=np.random.default_rng(0)
    )
    conditioned = condition(leaf_gps_of(X, Y, tree), kernel_parameters_of(X, Y))
    assert conditioned.sharing.saving > 0.3


@pytest.mark.skipif(not has_numba(), reason="needs numba")
def test_leaves_that_share_get_low_rank_variances_too():
    X, Y = rows_of(1000)
    leaf_gps = leaf_gps_of(X, Y, paper(X, 16, depth=1))
    posterior = condition(leaf_gps, kernel_parameters_of(X, Y))
    assert posterior.sharing is not None
    every, n_leaves = np.arange(1000), leaf_gps.n_leaves
    routes = Routes(np.arange(n_leaves), Ragged.of([every] * n_leaves))

    def tolerances():
        yield 0.0
        return np.full(n_leaves, 1e-3)

    made = posterior.prepare(routes.leaf, np.full(n_leaves, 10_000), False, tolerances)
    assert len(made.of_leaf) > n_leaves / 2
    (mean, exact), (same, low_rank) = (
        posterior.predict(routes, X, bases=bases) for bases in (None, made.of_leaf)
    )
    np.testing.assert_allclose(same, mean, **EXACT)
    assert (low_rank != exact).any()
    np.testing.assert_allclose(low_rank + 0.02, exact + 0.02, rtol=2e-3)


@pytest.mark.parametrize("why", ["one partition", "small", "float32", "a theta each"])
def test_nothing_is_planned_where_it_cannot_pay(why, monkeypatch):
    X, Y = rows_of(1000)
    tree = TREES["balanced"](X) if why == "small" else paper(X, 1 if why == "one partition" else 8)
    leaf_gps, kernel_parameters = leaf_gps_of(X, Y, tree), kernel_parameters_of(X, Y)
    if why == "float32":
        pytest.importorskip("torch")
        leaf_gps = leaf_gps_of(X, Y, tree, dtype="float32")
    if why == "a theta each":
        factor = np.linspace(1.0, 2.0, leaf_gps.n_leaves)[:, None]
        kernel_parameters = [factor * kernel_parameters[0]]
    monkeypatch.setattr(shared, "plan_sharing", lambda *_: pytest.fail("planned in vain"))
    assert condition(leaf_gps, kernel_parameters).sharing is None


def test_many_threads_for_few_factors_do_not_pay():
    rows = [np.arange(500), np.arange(500, 1000), np.arange(480), np.arange(480, 1000)]
    plan = sharing.plan_sharing(rows)
    assert shared._gain(plan, 1) > 1.5
    assert shared._gain(plan, 16) < 1.0


def test_what_does_not_fit_in_memory_is_not_shared():
    X, Y = rows_of(1000)
    leaf_gps, kernel_parameters = (
        leaf_gps_of(X, Y, paper(X, 16, depth=1)),
        kernel_parameters_of(X, Y),
    )
    kept = condition(leaf_gps, kernel_parameters)
    limit = kept.factors.n_bytes - 1
    limited = condition(leaf_gps, kernel_parameters, memory=limit)
    assert limited.sharing is None
    assert limited.factors.n_bytes <= limit
    test = np.random.default_rng(0).uniform(size=(5, 1))
    tasks = [(number, test) for number in range(leaf_gps.n_leaves)]
    for one, other in zip(predict_leaves(kept, tasks), predict_leaves(limited, tasks), strict=True):
        for table, expected in zip(one, other, strict=True):
            np.testing.assert_allclose(table, expected, **EXACT)
    assert limited.factors.n_bytes <= limit


def test_a_leaf_that_needs_noise_gets_as_much_as_alone(always):
    X, Y = rows_of(120)
    X[100:] = X[80:100]
    cuts = [np.arange(90), np.arange(60), np.arange(120), np.arange(70, 120)]
    nodes = [Leaf(Region.whole(1), rows) for rows in cuts]
    leaf_kernel = StationaryKernel("rbf", (0,), "zero")
    leaf_gps = InMemoryLeafGPs(nodes, LeafData(X, Y), [leaf_kernel])
    kernel_parameters = [np.array([0.02, 1.0, 0.0])]
    found = []
    for share in (False, True):
        with pytest.warns(FactorisationWarning, match=r"leaf 2 \(120 rows\), leaf 3 \(50 rows\)"):
            found.append(condition(leaf_gps, kernel_parameters, leave_out=True, share=share))
    assert found[1].sharing is None
    assert np.array_equal(found[0].log_evidence, found[1].log_evidence)


def test_equal_leaves_are_left_out_once(always, monkeypatch):
    calls = []
    monkeypatch.setattr(lapack, "invert_factor", lambda A: calls.append(len(A)))
    X, Y = rows_of(60)
    nodes = [Leaf(Region.whole(1), rows) for rows in (np.arange(60), np.arange(60)[::-1].copy())]
    leaf_kernel = StationaryKernel("rbf", (0,), "zero")
    leaf_gps = InMemoryLeafGPs(nodes, LeafData(X, Y), [leaf_kernel])
    condition(leaf_gps, kernel_parameters_of(X, Y), leave_out=True)
    assert calls == [60]


def test_a_fitted_model_survives_pickling_and_stays_small():
    X, Y = rows_of(1000)
    model = DSMGPRegressor(
        "rbf", noise_variance=0.02, structure="paper", sum_children=16, product_children=2, depth=1,
        optimizer=None, random_state=0,
    ).fit(X, Y[:, 0])  # fmt: skip
    assert "shared factors  2 of 32 leaves factorised" in model.summary()
    text = pickle.dumps(model)
    assert len(text) < 3 * 8 * 800**2
    again = pickle.loads(text)
    assert again.summary() == model.summary()
    for one, other in zip(
        again.predict(X[:20], return_std=True), model.predict(X[:20], return_std=True), strict=True
    ):
        assert np.array_equal(one, other)
