"""Leave-one-out against refitting without the row, and without its duplicates."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.experts.conditioning import condition
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.tree import Leaf, Product, Region, Sum, leaves
from dsmgp.tree.routing import place
from tests.support.oracle import brute_force
from tests.support.oracle import kernel as textbook_kernel

ELL, SCALE, NOISE = np.array([0.9, 1.2]), 1.1, 0.15


@pytest.fixture
def case(rng):
    X = rng.uniform(-1, 1, size=(24, 2))
    X[3] = X[10] = X[17]
    X[5] = X[6]
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=24)
    space = Region.whole(2)
    tree = Sum(
        [
            Leaf(space),
            *(Product([Leaf(p) for p in space.split(d, [0.1])], d, [0.1]) for d in (0, 1)),
        ]
    )
    return X, y, tree, Kernel((KernelTerm("rbf", ELL, SCALE),))


def conditioned(X, y, tree, kernel, weights, **options):
    model = DSMGPRegressor(
        kernel,
        noise_variance=NOISE,
        structure=tree,
        weights=weights,
        optimizer=None,
        standardize=False,
        **options,
    ).fit(X, y)
    inner = model.state_.model
    leaf_gps = inner.leaf_posterior.leaf_gps
    parameters = inner.leaf_posterior.kernel_parameters
    return model, condition(leaf_gps, parameters, 0, leave_out=True).leave_one_out()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("grouped", [False, True])
def test_each_leafs_loo_distributions_equal_refitting(case, grouped):
    X, y, tree, kernel = case
    _, loo = conditioned(X, y, tree, kernel, "uniform")
    found = loo.components(np.arange(24), grouped)
    k = textbook_kernel("rbf", ELL, SCALE)
    all_leaves = leaves(place(tree, X))
    for i in range(24):
        out = (X[i] == X).all(axis=1) if grouped else np.arange(24) == i
        for number, mean, variance in zip(
            found.leaf[i], found.mean[i], found.variance[i], strict=True
        ):
            rows = all_leaves[number].rows
            rows = rows[~out[rows]]
            K = k(X[rows], X[rows]) + NOISE * np.eye(len(rows))
            cross = k(X[i : i + 1], X[rows])
            expected = SCALE + NOISE - cross @ np.linalg.solve(K, cross.T)
            assert mean[0] == pytest.approx((cross @ np.linalg.solve(K, y[rows]))[0], abs=1e-10)
            assert variance[0] == pytest.approx(expected[0, 0], abs=1e-10)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.usefixtures("backend")
def test_under_posterior_weights_the_left_out_density_is_that_of_the_model_without_the_row(
    case, rng, grouped, n_outputs
):
    """Exactly p(y_i | y_-i), weights and all, by brute force on the other rows; and without all duplicates."""
    X, y, tree, kernel = case
    Y = np.stack([y, np.cos(X[:, 1]) + 0.3 * rng.normal(size=24)], axis=1)[:, :n_outputs]
    model, loo = conditioned(X, Y, tree, kernel, "posterior")
    density = model.state_.model.loo_distribution(loo, np.arange(24), grouped).pdf(Y)
    k = textbook_kernel("rbf", ELL, SCALE)
    for i in range(24):
        others = (X[i] != X).any(axis=1) if grouped else np.arange(24) != i
        brute = [brute_force(tree, X[others], y[others], X[[i]], k, NOISE) for y in Y.T]
        # Outputs share the tree: their evidences multiply.
        weights = np.prod([one.weights for one in brute], axis=0)
        prior = np.exp([log_prior for log_prior, _ in brute[0].trees])
        weights = weights / prior ** (n_outputs - 1)
        for output, one in enumerate(brute):
            one.weights = weights / weights.sum()
            expected = one.density(Y[i, output], NOISE)[0]
            assert density[i, output] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("grouped", [False, True])
def test_posterior_weights_without_a_row_do_not_depend_on_scales(case, grouped):
    """They come from the evidence, which knows of no scales."""
    X, y, tree, kernel = case
    plain, scaled = (
        model.state_.model.loo_distribution(loo, np.arange(24), grouped)
        for model, loo in (
            conditioned(X, y, tree, kernel, "posterior", local_scale=scale)
            for scale in (False, True)
        )
    )
    assert not np.allclose(scaled.component_variances, plain.component_variances)
    np.testing.assert_allclose(scaled.weights, plain.weights, rtol=1e-12)


def test_the_score_is_the_mean_of_those_densities(case):
    X, y, tree, kernel = case
    model, loo = conditioned(X, y, tree, kernel, "posterior")
    density = model.state_.model.loo_distribution(loo, np.arange(24)).pdf(y[:, None])[:, 0]
    assert model.loo_score_ == pytest.approx(-np.log(density).mean(), abs=1e-10)
    assert model.loo_score_new_inputs_ != model.loo_score_


def test_a_leafs_scale_without_a_row_does_not_know_it(case):
    """Moving one observation, and with it how its duplicates are missed, does not change its own scale much."""
    X, y, tree, kernel = case
    _, loo = conditioned(X, y, tree, kernel, "uniform", local_scale=True)
    before = loo.scales_without(np.array([5]))
    y = y.copy()
    y[5] += 50.0  # its duplicate, row 6, is now missed by as much
    _, loo = conditioned(X, y, tree, kernel, "uniform", local_scale=True)
    after = loo.scales_without(np.array([5]))
    assert (loo.scales > 5).any()  # the leaves themselves do know
    own = loo.components(np.array([5])).leaf[0]
    assert after[0].max() < 0.5 * loo.scales[own].max()
    assert before.shape == after.shape == (1, 3, 1)


def test_scores_estimate_those_of_new_rows(rng):
    X = rng.uniform(-2, 2, size=(900, 2))
    y = np.sin(3 * X[:, 0]) * X[:, 1] + 0.2 * (1 + (X[:, 1] > 0)) * rng.normal(size=900)
    model = DSMGPRegressor("matern52", random_state=0).fit(X[:600], y[:600])
    test = -model.predict_dist(X[600:]).logpdf(y[600:])
    assert model.loo_score_ == pytest.approx(test.mean(), abs=0.05 + 2 * test.std() / np.sqrt(300))
    assert model.loo_score_ == pytest.approx(model.loo_score_new_inputs_)  # no row twice
