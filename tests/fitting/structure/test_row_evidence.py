"""Scans of cuts have the evidences of leaf GPs, for all rows and kernels."""

import numpy as np
import pytest
from scipy.special import logsumexp

from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.leaf_setup import build_family, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.structure.row_evidence import RowEvidence
from dsmgp.tree.cut_tree import Cut, leaf_rows, snapped
from dsmgp.tree.nodes import Leaf
from dsmgp.tree.region import Region

CONFIG = FitConfig(weights="posterior", local_scale=False)


def made(n_outputs=1, noise=False, weights=False, kernels=("matern32",), **options):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 3))
    X[40:50] = X[:10]  # duplicate inputs
    X[:, 2] = X[:, 2].round(1)
    Y = np.sin(5 * X[:, [0]]) + rng.normal(size=(60, n_outputs))
    data = ScaledRows.of(
        X,
        Y,
        CONFIG,
        rng.uniform(0.01, 0.5, Y.shape) if noise else None,
        row_weights=rng.uniform(0.5, 3.0, 60) if weights else None,
    )
    families = [build_family(kernel, data, CONFIG) for kernel in kernels]
    settings = {"least": 5, "scan_rows": 100, "n_lines": 1, "rng": rng} | options
    return data, families, RowEvidence(data, families, **settings)


def of_leaf(data, families, rows):
    """The log evidence of a sum over one leaf for each family, by the leaf GPs of a model."""
    leaf = Leaf(Region.whole(3), rows)
    each = []
    for family in families:
        gps = set_up_leaves([leaf], family.leaf_kernels, data, CONFIG)
        each.append(gps.log_evidence(family.kernel_parameters).sum())
    return logsumexp(each) - np.log(len(each))


CASES = [
    {},
    {"n_outputs": 2},
    {"noise": True},
    {"weights": True},
    {"noise": True, "weights": True},
    {"kernels": ("rbf", "matern12", "rq+periodic")},
]


@pytest.mark.parametrize("case", CASES)
def test_evidences_are_those_of_leaf_gps(case):
    data, families, evidence = made(**case)
    rows = np.arange(3, 50)
    assert np.isclose(evidence.log_evidence(rows), of_leaf(data, families, rows), rtol=1e-9)
    scan = evidence.scan(rows)
    assert set(scan.dimension.tolist()) == {0, 1, 2}
    for k in range(0, len(scan), 7):
        is_above = data.U[rows, scan.dimension[k]] >= scan.split[k]
        assert np.isclose(scan.below[k], of_leaf(data, families, rows[~is_above]), rtol=1e-9)
        assert np.isclose(scan.above[k], of_leaf(data, families, rows[is_above]), rtol=1e-9)


def test_cached_evidences_equal_fresh_ones():
    data, _, evidence = made()
    rows = np.arange(30)
    scan = evidence.scan(rows)
    is_above = data.U[rows, scan.dimension[2]] >= scan.split[2]
    evidence.remember(rows[is_above], float(scan.above[2]))
    before = evidence.n_operations
    assert evidence.log_evidence(rows[is_above]) == scan.above[2]
    assert evidence.scan(rows) is scan
    assert evidence.n_operations == before
    fresh = made()[2]
    assert np.isclose(fresh.log_evidence(rows[is_above]), scan.above[2], rtol=1e-12)


def test_a_cut_moves_given_the_cuts_below_it():
    data, families, evidence = made()
    rows = np.arange(60)
    cut, is_valid = snapped(Cut(0, 0.5, Cut(1, 0.5), None), data.U, 5)
    assert is_valid
    scan = evidence.conditional_scan(rows, cut)
    assert 5 < len(scan) < 50  # fewer where a part would be too small
    for k in range(len(scan)):
        parts = leaf_rows(Cut(0, float(scan.split[k]), cut.below), data.U, rows)
        assert min(map(len, parts)) >= 5
        if k % 5 == 0:
            exact = sum(of_leaf(data, families, part) for part in parts)
            assert np.isclose(scan.evidence[k], exact, rtol=1e-9)


def test_some_rows_choose_the_inputs_that_all_rows_scan():
    data, families, evidence = made(scan_rows=40, n_lines=2)
    rows = np.arange(60)
    scan = evidence.scan(rows)
    assert len(set(scan.dimension.tolist())) == 2
    is_above = data.U[rows, scan.dimension[4]] >= scan.split[4]
    assert np.isclose(scan.above[4], of_leaf(data, families, rows[is_above]), rtol=1e-9)


def test_rows_too_close_for_the_noise_are_factorised_with_jitter():
    data, families, _ = made(kernels=("rbf",))
    process = families[0].processes[0]
    theta = process.theta.copy()
    theta[1:-1] += 8.0  # a nearly constant function
    theta[-1] = -80.0
    families = [families[0].with_processes([process.with_theta(theta)])]
    evidence = RowEvidence(
        data, families, least=5, scan_rows=100, n_lines=1, rng=np.random.default_rng(0)
    )
    assert np.isfinite(evidence.log_evidence(np.arange(40)))
