"""The whole model against brute force over induced trees with dense matrices."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from dsmgp import DSMGPRegressor
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.tree import Leaf, Product, Region, Sum
from dsmgp.tree.growing import grow_balanced, grow_paper
from tests.support.oracle import brute_force, induced_trees
from tests.support.oracle import kernel as textbook_kernel

ELL, SCALE, NOISE = np.array([0.8, 1.4]), 1.3, 0.2


def uneven_tree():
    """Sums under products under sums, of different widths, with weights of their own."""
    space = Region.whole(2)
    left, right = space.split(0, [0.1])
    low, middle, high = left.split(1, [-0.5, 0.4])
    inner = Sum(
        [Leaf(left), Product([Leaf(low), Leaf(middle), Leaf(high)], 1, [-0.5, 0.4])],
        np.log([0.3, 0.7]),
    )
    other = Product([Leaf(part) for part in space.split(1, [0.2])], 1, [0.2])
    empty = Product([Leaf(part) for part in space.split(1, [50.0])], 1, [50.0])
    return Sum([Leaf(space), Product([inner, Leaf(right)], 0, [0.1]), other, empty])


def grown(structure):
    def grow(X, rng):
        if structure == "paper":
            return grow_paper(X, leaf_size=6, sum_children=2, product_children=2, depth=2, rng=rng)
        return grow_balanced(X, leaf_sizes=[8] * 3, depth=2, rng=rng)

    return grow


TREES = {
    "by_hand": lambda X, rng: uneven_tree(),
    "paper": grown("paper"),
    "balanced": grown("balanced"),
}


def fitted(tree, X, y, kind="rbf", **options):
    return DSMGPRegressor(
        kernel=Kernel((KernelTerm(kind, ELL, SCALE),)),
        noise_variance=NOISE,
        structure=tree,
        optimizer=None,
        standardize=False,
        weights=options.pop("weights", "posterior"),
        **options,
    ).fit(X, y)


@pytest.fixture(params=sorted(TREES))
def case(request):
    rng = np.random.default_rng(5)
    X = rng.uniform(-1.5, 1.5, size=(24, 2))
    y = np.sin(2 * X[:, 0]) + (X[:, 1] > 0.2) + 0.3 * rng.normal(size=24)
    X_test = np.vstack([rng.uniform(-2, 2, size=(9, 2)), [[0.1, 0.2], [0.0, 60.0]], X[:2]])
    tree = TREES[request.param](X, rng)
    return tree, X, y, X_test


@pytest.mark.parametrize("kind", ["rbf", "matern12", "matern52"])
def test_evidence_weights_and_predictions_equal_brute_force(case, kind):
    tree, X, y, X_test = case
    assert 2 < len(induced_trees(tree)) < 2000
    expected = brute_force(tree, X, y, X_test, textbook_kernel(kind, ELL, SCALE), NOISE)
    model = fitted(tree, X, y, kind)
    assert model.n_induced_trees_ == len(expected.trees)
    assert model.log_marginal_likelihood_ == pytest.approx(expected.log_evidence, abs=1e-10)
    np.testing.assert_allclose(model.predict(X_test), expected.mean, atol=1e-10)
    mean, std = model.predict(X_test, return_std=True)
    np.testing.assert_allclose(mean, expected.mean, atol=1e-10)
    np.testing.assert_allclose(std**2, np.diag(expected.covariance) + NOISE, atol=1e-10)
    _, std = model.predict(X_test, return_std=True, include_noise=False)
    np.testing.assert_allclose(std**2, np.diag(expected.covariance), atol=1e-10)
    mean, covariance = model.predict(X_test, return_cov=True, include_noise=False)
    np.testing.assert_allclose(mean, expected.mean, atol=1e-10)
    np.testing.assert_allclose(covariance, expected.covariance, atol=1e-10)
    _, covariance = model.predict(X_test, return_cov=True)
    np.testing.assert_allclose(
        covariance, expected.covariance + NOISE * np.eye(len(X_test)), atol=1e-10
    )
    distribution = model.predict_dist(X_test)
    np.testing.assert_allclose(distribution.weights.sum(axis=1), 1.0, atol=1e-12)
    for shift in (-1.0, 0.0, 0.7):
        at = expected.mean + shift
        np.testing.assert_allclose(distribution.pdf(at), expected.density(at, NOISE), atol=1e-10)


def test_posterior_weights_equal_brute_force(case):
    """At the root: the total posterior of the induced trees that pass through each child."""
    tree, X, y, X_test = case
    expected = brute_force(tree, X, y, X_test, textbook_kernel("rbf", ELL, SCALE), NOISE)
    counts = [len(induced_trees(child)) for child in tree.children]
    shares = [part.sum() for part in np.split(expected.weights, np.cumsum(counts)[:-1])]
    model = fitted(tree, X, y)
    np.testing.assert_allclose(model.posterior_weights_[model.tree_], shares, atol=1e-10)


def test_uniform_weights_average_with_the_prior(case):
    tree, X, y, X_test = case
    brute = brute_force(tree, X, y, X_test, textbook_kernel("rbf", ELL, SCALE), NOISE)
    brute.weights = np.exp([p for p, _ in brute.trees])
    model = fitted(tree, X, y, weights="uniform")
    mean, covariance = model.predict(X_test, return_cov=True, include_noise=False)
    np.testing.assert_allclose(mean, brute.mean, atol=1e-10)
    np.testing.assert_allclose(covariance, brute.covariance, atol=1e-10)
    np.testing.assert_allclose(model.predict(X_test), brute.mean, atol=1e-10)
    assert model.log_marginal_likelihood_ == pytest.approx(brute.log_evidence, abs=1e-10)


def test_the_distribution_of_a_subset_does_not_depend_on_the_other_rows(case):
    """Kolmogorov consistency: moments, densities and joint covariances of a subset are the subset's."""
    tree, X, y, X_test = case
    model = fitted(tree, X, y)
    subset = [0, 4, 7]
    mean, covariance = model.predict(X_test, return_cov=True)
    sub_mean, sub_covariance = model.predict(X_test[subset], return_cov=True)
    np.testing.assert_allclose(mean[subset], sub_mean, atol=1e-12)
    np.testing.assert_allclose(covariance[np.ix_(subset, subset)], sub_covariance, atol=1e-12)
    whole, part = model.predict_dist(X_test), model.predict_dist(X_test[subset])
    for y_value in (-1.0, 0.0, 1.5):
        np.testing.assert_allclose(whole.pdf(y_value)[subset], part.pdf(y_value), atol=1e-12)


def test_a_product_of_experts_breaks_that_consistency(case):
    """The same question put to a product of two GP experts: its answer at a point changes."""
    _, X, _, X_test = case
    k = textbook_kernel("rbf", ELL, SCALE)
    precision = np.zeros((2, 2))
    alone = 0.0
    for rows in (slice(0, 12), slice(12, 24)):
        K = k(X[rows], X[rows]) + NOISE * np.eye(12)
        cross = k(X_test[:2], X[rows])
        covariance = k(X_test[:2], X_test[:2]) - cross @ np.linalg.solve(K, cross.T)
        precision += np.linalg.inv(covariance)
        alone += 1.0 / covariance[0, 0]
    asked_together = np.linalg.inv(precision)[0, 0]
    assert abs(asked_together * alone - 1.0) > 1e-3


def test_draws_have_the_predicted_moments(case):
    tree, X, y, X_test = case
    model = fitted(tree, X, y)
    draws = model.sample_y(X_test, n_samples=40_000, random_state=1)
    assert draws.shape == (len(X_test), 40_000)
    mean, covariance = model.predict(X_test, return_cov=True, include_noise=False)
    error = np.sqrt(np.diag(covariance) / 40_000)
    assert (np.abs(draws.mean(axis=1) - mean) < 5 * error).all()
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.06)


def test_draws_follow_the_marginal_mixture(case):
    tree, X, y, X_test = case
    model = fitted(tree, X, y)
    draws = model.sample_y(X_test, n_samples=4000, random_state=2, include_noise=True)
    distribution = model.predict_dist(X_test)
    ranks = np.stack([distribution.cdf(column) for column in draws.T])
    for k in range(len(X_test)):
        assert stats.kstest(ranks[:, k], "uniform").pvalue > 1e-4


def test_draws_repeat_with_their_seed(case):
    tree, X, y, X_test = case
    model = fitted(tree, X, y)
    np.testing.assert_array_equal(
        model.sample_y(X_test, 5, random_state=3), model.sample_y(X_test, 5, random_state=3)
    )
    assert not np.array_equal(model.sample_y(X_test, 5, 3), model.sample_y(X_test, 5, 4))


def test_a_draw_breaks_where_the_tree_says_so():
    """Two leaves that share no row are independent in every draw."""
    X = np.linspace(-1, 1, 20)[:, None]
    parts = [Leaf(part) for part in Region.whole(1).split(0, [0.0])]
    tree = Product(parts, 0, [0.0])
    model = DSMGPRegressor(structure=tree, optimizer=None, standardize=False).fit(
        X, np.sin(X[:, 0])
    )
    _, covariance = model.predict([[-0.01], [0.01]], return_cov=True)
    assert covariance[0, 1] == 0.0
    draws = model.sample_y([[-5.0], [5.0]], 20_000, random_state=0)
    assert abs(np.corrcoef(draws)[0, 1]) < 0.03


def _predicted_pairs(model, X):
    """How many pairs of leaf and row are computed for a prediction, and the prediction."""
    posterior, n_pairs = model.state_.model.leaf_posterior, []
    predict = posterior.predict
    posterior.predict = lambda routes, *rest: (
        n_pairs.append(len(routes.rows.flat)) or predict(routes, *rest)
    )
    moments = model.predict(X, return_std=True)
    del posterior.predict
    return sum(n_pairs), moments


@pytest.mark.parametrize("weights", ["posterior", "gated"])
def test_leaves_whose_weight_cannot_matter_do_not_predict(weights, monkeypatch):
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(600, 1))
    # A jump in the middle, which only one of the trees has; and on the right the noise is next to nothing.
    y = 3.0 * (X[:, 0] < 0.5) + np.where(X[:, 0] < 0.5, 0.3, 1e-3) * rng.normal(size=600)
    space = Region.whole(1)
    tree = Sum([Leaf(space), *(_halves(space, at) for at in (0.3, 0.5, 0.7))])
    model = DSMGPRegressor(
        "rbf", noise_variance=0.1, structure=tree, weights=weights, optimizer=None, random_state=0
    ).fit(X, y)
    if weights == "gated":  # leaves of different scales, and a gate that heeds them
        gate = dataclasses.replace(model.state_.model.gate, scale_exponent=15.0)
        changed = dataclasses.replace(model.state_.model, gate=gate)
        model._state = dataclasses.replace(model.state_, model=changed)
    X_test = np.linspace(-0.1, 1.1, 50)[:, None]
    n_pairs, (mean, std) = _predicted_pairs(model, X_test)
    monkeypatch.setattr("dsmgp.mixture.weights.component_weights.NEGLIGIBLE", -np.inf)
    all_pairs, (full_mean, full_std) = _predicted_pairs(model, X_test)
    assert all_pairs == 4 * 50
    assert n_pairs <= (50 if weights == "posterior" else 150)
    assert np.abs(mean - full_mean).max() <= 1e-3 * full_std.min()
    np.testing.assert_allclose(std, full_std, rtol=1e-3)


def _halves(space, at):
    return Product([Leaf(part) for part in space.split(0, [at])], 0, [at])


def test_rows_answered_in_parts_are_answered_alike(case, monkeypatch):
    tree, X, y, X_test = case
    for weights in ("posterior", "uniform"):
        model = fitted(tree, X, y, "rbf", weights=weights)
        together = model.predict(X_test, return_std=True), model.predict(X_test)
        monkeypatch.setattr("dsmgp.mixture.model.AT_ONCE", 5)
        apart = model.predict(X_test, return_std=True), model.predict(X_test)
        monkeypatch.undo()
        np.testing.assert_allclose(apart[0], together[0], rtol=1e-12)
        np.testing.assert_allclose(apart[1], together[1], rtol=1e-12)
        np.testing.assert_allclose(together[0][1], model.predict_dist(X_test).std, rtol=1e-10)


@pytest.mark.parametrize("weights", ["gated", "posterior", "uniform"])
@pytest.mark.parametrize("outputs", ["one", "rotated"])
def test_the_mean_is_the_same_to_the_last_bit_with_and_without_its_std(rng, weights, outputs):
    X = rng.uniform(-2, 2, size=(150, 2))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    y = f if outputs == "one" else np.column_stack([f, f + 0.1 * rng.normal(size=150)])
    model = DSMGPRegressor(
        "matern32", leaf_size=[20, 40], max_iter=3, weights=weights, random_state=0
    ).fit(X, y)
    assert model.state_.model.outputs.diagonal == (outputs == "one")
    test = rng.uniform(-2.5, 2.5, size=(300, 2))
    np.testing.assert_array_equal(model.predict(test), model.predict(test, return_std=True)[0])
    model.partial_fit(X[:9], y[:9] + 0.1, adapt=False)
    np.testing.assert_array_equal(model.predict(test), model.predict(test, return_std=True)[0])


def test_a_fitted_model_is_immutable(wavy):
    fitted = DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(*wavy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        fitted.state_.model.gate = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        fitted.state_.model = None
    with pytest.raises(AttributeError):
        fitted.n_features_in_ = 3
