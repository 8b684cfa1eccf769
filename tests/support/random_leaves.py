"""Leaf GPs of a grown tree at hyperparameters away from where learning starts, and their gradient by finite differences."""

from __future__ import annotations

import numpy as np

from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.process import build_process
from dsmgp.tree import leaves
from dsmgp.tree.growing import grow_balanced
from tests.support.finite_differences import central_difference


def random_rows(rng, n=70, duplicates=True):
    """Rows with exact duplicates and rows 1e-13 apart among them."""
    X = rng.normal(size=(n, 3))
    if duplicates:
        X[5] = X[6] = X[7]
        X[8] = X[9] + 1e-13
    return X, rng.normal(size=(n, 1))


def build(kernel, mean, X, Y, leaf_size=20, noise=0.05, seed=0, **options):
    """Return a process and leaf GPs with its kernel."""
    process = build_process(kernel, mean, noise, X.shape[1])
    step = np.random.default_rng(seed).normal(scale=0.2, size=len(process.theta))
    process = process.with_theta(process.theta + step)
    tree = grow_balanced(X, leaf_sizes=[leaf_size], rng=np.random.default_rng(seed))
    return process, InMemoryLeafGPs(leaves(tree), LeafData(X, Y), [process.leaf_kernel], **options)


def assert_gradient_is_right(process, leaf_gps):
    """Of the log evidence of each leaf by theta."""

    def evidence(theta):
        return leaf_gps.log_evidence([process.kernel_parameters(theta)]).sum(axis=1)

    expected = central_difference(evidence, process.theta)
    _, (by_kernel_parameters,) = leaf_gps.log_evidence_and_gradient([process.kernel_parameters()])
    found = np.stack([process.pull_back(process.theta, g) for g in by_kernel_parameters])
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert (np.abs(found - expected) <= 1e-6 * scale).all()
