"""Inference in log space against plain sums over all induced trees."""

import math

import numpy as np
import pytest

from dsmgp.mixture.inference import infer, prior_log_path_weights
from dsmgp.tree import Leaf, Product, Region, Sum, leaves, nodes
from dsmgp.tree.growing import grow_paper
from tests.support.oracle import induced_trees


@pytest.fixture(params=range(4))
def case(request):
    rng = np.random.default_rng(request.param)
    X = rng.normal(size=(40, 2))
    tree = grow_paper(X, leaf_size=8, sum_children=2, product_children=2, depth=3, rng=rng)
    return tree, rng.normal(scale=2.0, size=len(leaves(tree)))


def tree_posterior(tree, evidence):
    """Log joint of every induced tree, and the leaf numbers it keeps."""
    number = {id(leaf): k for k, leaf in enumerate(leaves(tree))}
    kept = [[number[id(leaf)] for leaf in numbers] for _, numbers in induced_trees(tree)]
    log_joint = np.array(
        [
            p + evidence[numbers].sum()
            for (p, _), numbers in zip(induced_trees(tree), kept, strict=True)
        ]
    )
    return log_joint, kept


def test_the_upward_pass_is_the_sum_over_induced_trees(case):
    tree, evidence = case
    log_joint, _ = tree_posterior(tree, evidence)
    assert infer(tree, evidence).log_evidence == pytest.approx(
        np.logaddexp.reduce(log_joint), rel=1e-12
    )


def test_responsibilities_are_marginal_posteriors_of_leaves(case):
    tree, evidence = case
    log_joint, kept = tree_posterior(tree, evidence)
    posterior = np.exp(log_joint - np.logaddexp.reduce(log_joint))
    expected = [
        sum(p for p, numbers in zip(posterior, kept, strict=True) if k in numbers)
        for k in range(len(evidence))
    ]
    responsibilities = np.exp(infer(tree, evidence).log_responsibilities)
    np.testing.assert_allclose(responsibilities, expected, rtol=1e-10)


def test_responsibilities_are_the_gradient_of_the_log_evidence(case):
    tree, evidence = case
    h = 1e-5
    expected = [
        (infer(tree, evidence + h * e).log_evidence - infer(tree, evidence - h * e).log_evidence)
        / (2 * h)
        for e in np.eye(len(evidence))
    ]
    responsibilities = np.exp(infer(tree, evidence).log_responsibilities)
    np.testing.assert_allclose(responsibilities, expected, atol=1e-9)


def test_posterior_weights_sum_to_one_at_every_sum_node(case):
    tree, evidence = case
    posterior = infer(tree, evidence)
    sums = [node for node in nodes(tree) if isinstance(node, Sum)]
    assert set(posterior.log_weights) == set(sums)
    for node in sums:
        assert np.exp(posterior.log_weights[node]).sum() == pytest.approx(1.0, abs=1e-12)


def test_the_effective_number_of_trees_is_exp_of_the_posteriors_entropy(case):
    tree, evidence = case
    log_joint, _ = tree_posterior(tree, evidence)
    log_posterior = log_joint - np.logaddexp.reduce(log_joint)
    entropy = -(np.exp(log_posterior) * log_posterior).sum()
    assert infer(tree, evidence).n_effective_trees == pytest.approx(math.exp(entropy), rel=1e-10)


def test_the_prior_is_the_posterior_without_data(case):
    tree, evidence = case
    without = infer(tree, np.zeros_like(evidence))
    assert without.log_evidence == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(
        prior_log_path_weights(tree), without.log_responsibilities, atol=1e-12
    )


def test_hugely_different_evidences_neither_overflow_nor_lose_the_winner():
    space = Region.whole(1)
    tree = Sum([Leaf(space), Leaf(space)], np.log([0.25, 0.75]))
    posterior = infer(tree, [-1e6, -2e6])
    assert posterior.log_evidence == pytest.approx(-1e6 + math.log(0.25))
    np.testing.assert_allclose(np.exp(posterior.log_weights[tree]), [1.0, 0.0])
    assert posterior.n_effective_trees == pytest.approx(1.0)


def test_weights_of_a_prior_of_ones_own_are_respected():
    space = Region.whole(1)
    parts = [Leaf(part) for part in space.split(0, [0.0])]
    tree = Sum([Leaf(space), Product(parts, 0, [0.0])], np.log([0.9, 0.1]))
    posterior = infer(tree, np.log([0.2, 0.3, 0.4]))
    joint = np.array([0.9 * 0.2, 0.1 * 0.3 * 0.4])
    np.testing.assert_allclose(np.exp(posterior.log_weights[tree]), joint / joint.sum())


def test_the_number_of_evidences_must_be_that_of_the_leaves():
    with pytest.raises(ValueError, match="expected 1 leaf evidences, got 2"):
        infer(Leaf(Region.whole(1)), [0.0, 0.0])
