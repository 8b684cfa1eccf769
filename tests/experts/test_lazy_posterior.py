"""Leaves that are conditioned when they are first asked answer as those that were conditioned before."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsmgp._util.machine import has_numba
from dsmgp._util.ragged import Ragged
from dsmgp.experts.conditioning import condition
from dsmgp.experts.lazy_posterior import LazyLeafPosterior
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.tree.routing import Routes

KERNEL = StationaryKernel("matern32", (0, 1), "constant")
PARAMETERS = [np.array([0.8, 1.2, 1.3, 0.2, 0.05])]
N_LEAVES = 6


@pytest.fixture
def posteriors(rng):
    # Leaves large enough to be groups of their own, and one without rows.
    X = rng.normal(size=(1500, 2))
    y = np.sin(X.sum(1, keepdims=True)) + 0.1 * rng.normal(size=(1500, 1))
    rows = [np.arange(300 * k, 300 * (k + 1)) for k in range(5)] + [np.arange(0)]
    gps = InMemoryLeafGPs(Ragged.of(rows), LeafData(X, y), [KERNEL])
    eager = condition(gps, PARAMETERS, share=False)
    return eager, LazyLeafPosterior(gps, PARAMETERS, eager.log_evidence, 1e9)


def routes(*leaves):
    return Routes(np.array(leaves), Ragged.of([np.arange(4)] * len(leaves)))


def tolerances():
    yield 0.0
    return np.full(N_LEAVES, 2e-3)


def test_only_leaves_that_are_asked_are_conditioned(posteriors, rng):
    eager, lazy = posteriors
    new = rng.normal(size=(4, 2))
    for asked in (routes(1), routes(5), routes(1, 3, 5)):
        for one, other in zip(lazy.predict(asked, new), eager.predict(asked, new), strict=True):
            np.testing.assert_array_equal(one, other)
    known = [bool(np.isfinite(lazy.alpha[0][lazy.place(k)]).all()) for k in range(5)]
    assert known == [False, True, False, True, False]
    lazy.to_memory()
    np.testing.assert_array_equal(lazy.alpha, eager.alpha)


@pytest.mark.parametrize("memory", [1e9, 8 * 300**2 * 2.0, 0.0])
def test_factors_joints_and_copies_agree(posteriors, rng, memory):
    eager, lazy = posteriors
    lazy = LazyLeafPosterior(lazy.leaf_gps, PARAMETERS, eager.log_evidence, memory)
    new = rng.normal(size=(4, 2))
    exact = {"rtol": 1e-9, "atol": 1e-12}  # a factor that is not kept is made again, on all cores
    for one, other in zip(lazy.joint(2, new), eager.joint(2, new), strict=True):
        np.testing.assert_allclose(one, other, **exact)
    np.testing.assert_allclose(lazy.factor(0, 0), eager.factor(0, 0), **exact)
    (ours,), (theirs,) = lazy.leaf_factor(4), eager.leaf_factor(4)
    np.testing.assert_allclose(ours.factor.whole(), theirs.factor.whole(), **exact)
    np.testing.assert_array_equal(ours.alpha, theirs.alpha)
    again = pickle.loads(pickle.dumps(lazy))
    for one, other in zip(
        again.predict(routes(3), new), eager.predict(routes(3), new), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not has_numba(), reason="needs numba")
@pytest.mark.parametrize("low_rank", [False, True])
def test_few_rows_condition_the_leaves_that_they_reach(posteriors, rng, low_rank):
    eager, lazy = posteriors
    new, leaves = rng.normal(size=(2, 2)), np.array([[1, -1], [1, 3]])
    bases = {} if low_rank else None
    expected = eager.predict_few(leaves, new, True, bases)
    for one, other in zip(lazy.predict_few(leaves, new, True, bases), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert lazy._conditioned[lazy.group[:5]].tolist() == [False, True, False, True, False]
    again = pickle.loads(pickle.dumps(lazy))  # addresses are not copied
    for one, other in zip(again.predict_few(leaves, new, True, bases), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not has_numba(), reason="needs numba")
def test_low_rank_variances_are_those_of_leaves_conditioned_before(posteriors, rng):
    eager, lazy = posteriors
    new, asked = rng.normal(size=(4, 2)), routes(0, 2, 5)
    leaves = np.tile([0, 2, 5], (4, 1))
    for posterior in (eager, lazy):
        posterior.prepare(asked.leaf, np.full(3, 10_000), False, tolerances)
    assert set(lazy.bases.of_leaf) == set(eager.bases.of_leaf) == {0, 2}  # leaf 5 has no rows
    np.testing.assert_array_equal(lazy.bases.made.errors, eager.bases.made.errors)
    for ask in (
        lambda posterior: posterior.predict(asked, new, True, posterior.bases.of_leaf),
        lambda posterior: posterior.predict_few(leaves, new, True, posterior.bases.of_leaf),
    ):
        for one, other in zip(ask(lazy), ask(eager), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not has_numba(), reason="needs numba")
def test_what_is_pickled_does_not_change_while_another_thread_predicts(posteriors):
    """A dict or set that grows while it is pickled raises."""
    eager, _ = posteriors
    holders = (eager.bases, eager.factors, eager.leaf_rows)
    states = [holder.__getstate__() for holder in holders]
    before = [pickle.dumps(state) for state in states]
    leaves = np.arange(5)
    eager.prepare(leaves, np.full(5, 10_000), False, tolerances)
    eager.factors.keep_less()
    assert eager.leaf_rows.sizes.any()
    assert eager.bases.of_leaf
    assert [pickle.dumps(state) for state in states] == before


@pytest.mark.skipif(not has_numba(), reason="needs numba")
def test_few_rows_are_left_to_others_where_factors_are_not_kept(posteriors, rng):
    eager, lazy = posteriors
    lazy = LazyLeafPosterior(lazy.leaf_gps, PARAMETERS, eager.log_evidence, 0.0)
    assert lazy.predict_few(np.array([[1]]), rng.normal(size=(1, 2)), True, None) is None


def test_threads_that_ask_at_once_get_the_same(posteriors, rng):
    eager, lazy = posteriors
    new = rng.normal(size=(4, 2))
    asked = routes(0, 1, 2, 3, 4)
    expected = eager.predict(asked, new)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: lazy.predict(asked, new), range(8)):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_leaf_that_cannot_be_factorised_is_refused(posteriors):
    _, lazy = posteriors
    broken = [np.array([0.8, 1.2, np.nan, 0.2, 0.05])]
    lazy = LazyLeafPosterior(lazy.leaf_gps, broken, lazy.log_evidence, 1e9)
    with pytest.raises(ValueError, match="could not be factorised"):
        lazy.predict(routes(0), np.zeros((4, 2)))
