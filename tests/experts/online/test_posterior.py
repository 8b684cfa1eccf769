"""Online updates: adding and removing rows is conditioning on the rows that are there."""

import numpy as np
import pytest

from dsmgp._util.ragged import Ragged
from dsmgp.experts.conditioning import condition
from dsmgp.experts.interface import NotAvailableError
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.tree.routing import Routes

pytestmark = pytest.mark.usefixtures("backend")
KERNEL = StationaryKernel("matern52", (0, 1), "constant")
PARAMETERS = [np.array([0.8, 1.2, 1.3, 0.2, 0.05])]
EXACT = {"rtol": 1e-9, "atol": 1e-10}


def posterior_of(X, y, leaf_rows):
    gps = InMemoryLeafGPs(Ragged.of(leaf_rows), LeafData(X, y), [KERNEL])
    return condition(gps, PARAMETERS)


@pytest.fixture
def rows(rng):
    X = rng.normal(size=(60, 2))
    return X, np.sin(X.sum(1, keepdims=True)) + 0.1 * rng.normal(size=(60, 1))


def assert_equal(online, expected, X_test):
    routes = Routes(np.arange(2), Ragged.of([np.arange(len(X_test))] * 2))
    for one, other in zip(
        online.predict(routes, X_test), expected.predict(routes, X_test), strict=True
    ):
        np.testing.assert_allclose(one, other, **EXACT)
    np.testing.assert_allclose(online.log_evidence, expected.log_evidence, **EXACT)
    for leaf in range(2):
        for one, other in zip(
            online.joint(leaf, X_test), expected.joint(leaf, X_test), strict=True
        ):
            np.testing.assert_allclose(one, other, **EXACT)


def test_conditioning_twice_is_conditioning_once(rng, rows):
    (X, y), ids = rows, np.arange(60)
    X_test = rng.normal(size=(5, 2))
    first = posterior_of(X[:40], y[:40], [np.arange(20), np.arange(20, 40)]).online(ids[:40])
    routes = Routes(np.array([1]), Ragged.of([np.arange(20)]))  # new rows reach the second leaf
    both = first.with_rows(routes, ids[40:], X[40:], y[40:], None)
    assert both.n_rows == 60
    assert_equal(both, posterior_of(X, y, [np.arange(20), np.arange(20, 60)]), X_test)
    again = both.without_rows(routes, ids[40:])
    assert_equal(again, first, X_test)


def test_after_updates_what_needs_all_leaves_conditioned_is_refused(rows):
    (X, y), ids = rows, np.arange(60)
    posterior = posterior_of(X, y, [np.arange(30), np.arange(30, 60)])
    assert posterior.settled() is posterior
    online = posterior.online(ids)
    assert online.online(ids) is online
    for use in (
        lambda: online.settled(),
        lambda: online.leave_one_out(),
        lambda: online.leaf_rows,
        lambda: online.leaf_sizes,
        lambda: online.sharing,
        lambda: online.to_memory(),
    ):
        with pytest.raises(NotAvailableError, match="rows were added or removed"):
            use()
