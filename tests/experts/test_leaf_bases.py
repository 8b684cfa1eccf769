"""When low-rank variances of leaves are made: once for each leaf, when they pay, and little by little in small calls."""

from __future__ import annotations

import numpy as np
import pytest

from dsmgp._util.machine import has_numba
from dsmgp._util.ragged import Ragged
from dsmgp.experts import leaf_bases
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_bases import LeafBases
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.leaf_kernels import StationaryKernel

pytestmark = pytest.mark.skipif(not has_numba(), reason="needs numba")
LARGE, SMALL = 0, 2


@pytest.fixture(scope="module")
def conditioned():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2))
    y = np.sin(X.sum(1, keepdims=True)) + 0.1 * rng.normal(size=(900, 1))
    rows = Ragged.of([np.arange(400), np.arange(400, 800), np.arange(800, 900)])
    gps = InMemoryLeafGPs(rows, LeafData(X, y), [StationaryKernel("rbf", (0, 1), "zero")])
    return condition(gps, [np.array([0.8, 1.2, 1.3, 0.05])], share=False)


@pytest.fixture
def posterior(conditioned):
    conditioned.bases = LeafBases(conditioned)
    return conditioned


def tolerances():
    yield 0.0
    return np.full(3, 2e-3)


def ask(posterior, leaves, n_rows, alone=False):
    leaves = np.array(leaves)
    return posterior.prepare(leaves, np.full(len(leaves), n_rows), alone, tolerances).of_leaf


def test_a_leaf_gets_a_basis_when_its_rows_have_cost_as_much(posterior):
    assert not ask(posterior, [LARGE, SMALL], 1000)
    assert not ask(posterior, [1, SMALL], 1000)
    assert not ask(posterior, [LARGE, SMALL], 1000)
    assert set(ask(posterior, [LARGE, SMALL], 1000)) == {LARGE}
    assert set(ask(posterior, [1], 100_000)) == {LARGE, 1}


def test_small_calls_make_the_basis_that_a_large_one_makes(posterior, monkeypatch):
    (at_once,) = ask(posterior, [LARGE], 100_000)[LARGE]
    posterior.bases = LeafBases(posterior)
    monkeypatch.setattr(leaf_bases, "BRIEF_WORK", 1e6)
    n_calls = 1
    while not (bases := ask(posterior, [LARGE], 20, alone=True)):
        n_calls += 1
    cost = 1200 + 0.5 * 400
    assert cost / (6 * 20) + 5 < n_calls < 10 * cost / (6 * 20)
    np.testing.assert_array_equal(bases[LARGE][0].weights, at_once.weights)
    np.testing.assert_array_equal(bases[LARGE][0].order, at_once.order)


def test_a_leaf_without_a_basis_is_tried_once(posterior, monkeypatch):
    tried = []

    def steps(*_):
        tried.append(1)
        yield 1.0

    monkeypatch.setattr(leaf_bases, "low_rank_steps", steps)
    for _ in range(3):
        assert not ask(posterior, [LARGE], 100_000)
    assert len(tried) == 1


def test_what_is_interrupted_is_tried_again(posterior, monkeypatch):
    def steps(*_):
        yield 1.0
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(leaf_bases, "low_rank_steps", steps)
        with pytest.raises(KeyboardInterrupt):
            ask(posterior, [LARGE], 100_000)
    assert ask(posterior, [LARGE], 100_000)


def test_nobody_waits_for_a_thread_that_makes_bases(posterior):
    with posterior.bases._lock:
        assert not ask(posterior, [LARGE], 100_000)
    assert ask(posterior, [LARGE], 100_000)
