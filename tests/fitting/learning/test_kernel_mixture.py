"""Hyperparameters of several kernels are learned together, each from the leaves that it explains best."""

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.special import logsumexp

from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.kernel_mixture import kernels_objective, learn_kernels
from dsmgp.fitting.rows.leaf_setup import build_family, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.region import Region

CONFIG = FitConfig(weights="posterior", local_scale=False)


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 2))
    Y = np.stack([np.sin(6 * X[:, 0]), np.abs(X[:, 1])], axis=1) + 0.1 * rng.normal(size=(60, 2))
    data = ScaledRows.of(X, Y, CONFIG)
    families = [build_family(kernel, data, CONFIG) for kernel in ("rbf", "matern12")]
    leaves = [Leaf(Region.whole(2), rows) for rows in np.arange(60).reshape(3, 20)]
    return set_up_leaves(leaves, families[0].leaf_kernels, data, CONFIG), families


def test_the_objective_is_the_evidence_of_sums_over_kernels_and_its_gradient_fits(case):
    gps, families = case
    processes = [process for family in families for process in family.processes]
    theta = np.concatenate([process.theta for process in processes])
    objective = kernels_objective(gps, families)
    evidences = [
        gps.with_kernels(f.leaf_kernels).log_evidence(f.kernel_parameters).sum(axis=1)
        for f in families
    ]
    log_prior = sum(process.log_prior(process.theta)[0] for process in processes)
    expected = (logsumexp(evidences, axis=0) - np.log(2)).sum() + log_prior
    assert objective(theta)[0] == pytest.approx(expected, abs=1e-9)
    error = check_grad(lambda t: objective(t)[0], lambda t: objective(t)[1], theta + 0.1)
    assert error < 1e-3
    assert objective(theta + 1e4)[0] == -np.inf


def test_no_kernel_is_given_up_by_learning_together(case):
    gps, families = case
    context = FitContext(CONFIG, np.random.default_rng(0))
    learned, (*alone, together) = learn_kernels(gps, families, context)
    assert len(alone) == 4
    assert together.objective >= together.path[0]
    theta = np.concatenate([p.theta for family in learned for p in family.processes])
    # Here the joint evidence gives up a kernel: each keeps what it has learned alone.
    np.testing.assert_array_equal(theta, np.concatenate([result.theta for result in alone]))
