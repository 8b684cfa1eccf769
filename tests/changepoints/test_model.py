"""Models with change points: exact, compared with brute force over all split positions and all segmentations."""

import numpy as np
import pytest

from dsmgp import ChangePoints, DSMGPRegressor
from dsmgp.changepoints import components
from dsmgp.changepoints import model as changepoint_model
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.tree import Leaf, Product, Region, Sum
from dsmgp.tree.changepoint_leaf import ChangePointLeaf
from tests.support.oracle import kernel
from tests.support.segmentations import BruteForce, overall, segmentations

SCALE, SIGNAL, NOISE = 0.8, 1.5, 0.2
k = kernel("matern32", SCALE, SIGNAL)
AT = np.array([-0.3, 0.05, 0.6, 1.02, 1.9, 2.2, 2.25, 3.4, 4.1, 9.0])


@pytest.fixture
def few():
    """Nine rows with a jump, unequal gaps and two rows at one place."""
    x = np.array([0.0, 0.2, 1.0, 1.0, 1.3, 2.1, 2.4, 3.0, 3.3])
    y = np.array([0.1, 0.3, -0.2, 0.2, 0.0, 2.4, 2.0, 2.6, 2.2])
    return x, y


def fixed(structure, **options):
    """Return an estimator with fixed hyperparameters, without scaling."""
    return DSMGPRegressor(
        Kernel((KernelTerm("matern32", [SCALE], SIGNAL),)),
        structure=structure,
        noise_variance=NOISE,
        optimizer=None,
        standardize=False,
        **options,
    )


def density(weights, means, covariances, y):
    variance = np.diagonal(covariances, axis1=1, axis2=2) + NOISE
    each = np.exp(-0.5 * (y - means) ** 2 / variance) / np.sqrt(2 * np.pi * variance)
    return weights @ each


def hazard_prior(x, h=None, rate=None):
    gap = np.concatenate([[0.0], np.diff(x), [0.0]])

    def prior(way):
        total = 1.0
        for b in np.flatnonzero(gap):
            p = h if rate is None else 1 - np.exp(-rate * gap[b])
            total *= p if b in way else 1 - p
        return total

    return prior


CASES = {
    "one_equal": (
        ChangePoints(n_changes=1),
        {},
        lambda x: (w for w in segmentations(x) if len(w) == 3),
        lambda x: lambda way: 1.0,
    ),
    "one_length": (
        ChangePoints(n_changes=1, gaps="length"),
        {},
        lambda x: (w for w in segmentations(x) if len(w) == 3),
        lambda x: lambda way: x[way[1]] - x[way[1] - 1],
    ),
    "many_equal": (
        ChangePoints(hazard=0.2),
        {},
        segmentations,
        lambda x: hazard_prior(x, h=0.2),
    ),
    "many_length": (
        ChangePoints(hazard=0.7, gaps="length"),
        {},
        segmentations,
        lambda x: hazard_prior(x, rate=0.7),
    ),
    "one_shortest": (
        ChangePoints(n_changes=1, shortest=3),
        {},
        lambda x: (w for w in segmentations(x) if len(w) == 3 and min(np.diff(w)) >= 3),
        lambda x: lambda way: 1.0,
    ),
    "many_shortest": (
        ChangePoints(hazard=0.2, shortest=3),
        {},
        lambda x: (w for w in segmentations(x) if min(np.diff(w)) >= 3),
        lambda x: hazard_prior(x, h=0.2),
    ),
    "many_short": (
        ChangePoints(hazard=0.2),
        {"leaf_size": 4},
        lambda x: segmentations(x, 4),
        lambda x: hazard_prior(x, h=0.2),
    ),
}


@pytest.fixture(params=CASES)
def both(request, few):
    """A model at fixed theta and brute force."""
    changes, options, ways, prior = CASES[request.param]
    x, y = few
    shuffled = np.random.default_rng(1).permutation(len(x))
    with pytest.warns(UserWarning, match="leaf_size") if options else _nothing():
        model = fixed(changes, **options).fit(x[shuffled, None], y[shuffled])
    return model, BruteForce(x, y, k, NOISE, ways(x), prior(x))


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def test_evidence_is_the_sum_over_segmentations(both):
    model, exact = both
    assert model.log_marginal_likelihood_ == pytest.approx(exact.log_evidence, abs=1e-9)


def test_posterior_of_changes_is_that_of_brute_force(both):
    model, exact = both
    splits = model.split_posterior()
    x = exact.x
    at = np.flatnonzero(np.diff(x)) + 1
    np.testing.assert_array_equal(splits.low, x[at - 1])
    np.testing.assert_array_equal(splits.high, x[at])
    np.testing.assert_allclose(splits.probability, exact.change()[at], atol=1e-8)
    middle = splits.position
    np.testing.assert_allclose(
        splits.density(middle), exact.change()[at] / (x[at] - x[at - 1]), atol=1e-7
    )


def test_predictions_average_over_segmentations_and_positions_in_gaps(both):
    model, exact = both
    moments = exact.predict(AT)
    mean, covariance = overall(*moments)
    m, std = model.predict(AT[:, None], return_std=True, include_noise=False)
    np.testing.assert_allclose(m, mean, atol=1e-7)
    np.testing.assert_allclose(std**2, np.diag(covariance), atol=1e-7)
    m, C = model.predict(AT[:, None], return_cov=True, include_noise=False)
    np.testing.assert_allclose(m, mean, atol=1e-7)
    np.testing.assert_allclose(C, covariance, atol=1e-7)
    _, noisy = model.predict(AT[:, None], return_cov=True)
    np.testing.assert_allclose(noisy - C, NOISE * np.eye(len(AT)), atol=1e-12)
    predicted = model.predict_dist(AT[:, None])
    np.testing.assert_allclose(predicted.mean, mean, atol=1e-7)
    for y in (-1.0, 0.2, 2.1):
        np.testing.assert_allclose(predicted.pdf(y), density(*moments, y), rtol=1e-5)
    np.testing.assert_allclose(predicted.weights.sum(axis=1), 1.0)


def test_draws_have_the_predicted_moments(both):
    model, exact = both
    mean, covariance = overall(*exact.predict(AT))
    draws = model.sample_y(AT[:, None], 4_000, random_state=0)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=0.12)
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.15)


def test_the_order_of_test_rows_does_not_matter(both):
    model, _ = both
    back = AT[::-1].copy()
    _, C = model.predict(AT[:, None], return_cov=True)
    _, reversed_C = model.predict(back[:, None], return_cov=True)
    np.testing.assert_allclose(reversed_C[::-1, ::-1], C, atol=1e-12)


def test_other_inputs_enter_the_kernel_only(few):
    x, y = few
    Z = np.column_stack([np.sin(5 * x), x])
    k2 = kernel("matern32", np.array([1.1, 0.6]), SIGNAL)
    model = DSMGPRegressor(
        Kernel((KernelTerm("matern32", [1.1, 0.6], SIGNAL),)),
        structure=ChangePoints(1, hazard=0.2),
        noise_variance=NOISE,
        optimizer=None,
        standardize=False,
    ).fit(Z, y)
    exact = BruteForce(x, y, k2, NOISE, segmentations(x), hazard_prior(x, h=0.2), Z)
    assert model.log_marginal_likelihood_ == pytest.approx(exact.log_evidence, abs=1e-8)
    new = np.column_stack([np.cos(AT), AT])
    mean, covariance = overall(*exact.predict(AT, new))
    m, C = model.predict(new, return_cov=True, include_noise=False)
    np.testing.assert_allclose(m, mean, atol=1e-6)
    np.testing.assert_allclose(C, covariance, atol=1e-6)
    assert len(model.split_posterior(0)) == 0
    assert model.changepoints(0.3) == model.changepoints(0.3, dimension=1)


def test_a_leaf_with_a_change_point_can_be_a_child_of_a_sum(few):
    x, y = few
    space = Region.whole(1)
    tree = Sum([Leaf(space), ChangePointLeaf(space, changes=ChangePoints(n_changes=1))])
    model = fixed(tree).fit(x[:, None], y)
    ways = [(0, len(x)), *(w for w in segmentations(x) if len(w) == 3)]
    exact = BruteForce(x, y, k, NOISE, ways, lambda w: 0.5 if len(w) == 2 else 0.5 / 7)
    assert model.log_marginal_likelihood_ == pytest.approx(exact.log_evidence, abs=1e-9)
    weights = next(iter(model.posterior_weights_.values()))
    assert weights[0] == pytest.approx(exact.weights[0])
    mean, covariance = overall(*exact.predict(AT))
    m, C = model.predict(AT[:, None], return_cov=True, include_noise=False)
    np.testing.assert_allclose(m, mean, atol=1e-8)
    np.testing.assert_allclose(C, covariance, atol=1e-8)
    draws = model.sample_y(AT[:, None], 4_000, random_state=0)
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.15)
    assert model.n_induced_trees_ == 1 + 7


def test_a_leaf_with_a_change_point_can_be_a_child_of_a_product(few):
    x, y = few
    left, right = Region.whole(1).split(0, [2.0])
    tree = Product(
        [ChangePointLeaf(left, changes=ChangePoints(n_changes=1)), Leaf(right)], 0, [2.0]
    )
    model = fixed(tree).fit(x[:, None], y)
    parts = [
        fixed(ChangePoints(n_changes=1)).fit(x[:5, None], y[:5]),
        fixed(Leaf(Region.whole(1)), weights="posterior").fit(x[5:, None], y[5:]),
    ]
    total = sum(part.log_marginal_likelihood_ for part in parts)
    assert model.log_marginal_likelihood_ == pytest.approx(total)
    for part, side in zip(parts, (AT < 2.0, AT >= 2.0), strict=True):
        expected = part.predict(AT[side, None], return_std=True)
        np.testing.assert_allclose(model.predict(AT[side, None], return_std=True), expected)
    _, C = model.predict(AT[:, None], return_cov=True)
    assert not C[np.ix_(AT < 2.0, AT >= 2.0)].any()
    assert model.split_posterior().within(1.3, 2.1) == pytest.approx(1.0, abs=1e-6)


def test_a_leaf_without_rows_is_the_prior(few):
    x, y = few
    left, right = Region.whole(1).split(0, [100.0])
    changes = ChangePoints(n_changes=1)
    tree = Product(
        [ChangePointLeaf(left, changes=changes), ChangePointLeaf(right, changes=changes)],
        0,
        [100.0],
    )
    model = fixed(tree).fit(x[:, None], y)
    mean, std = model.predict([[200.0]], return_std=True)
    assert (mean[0], std[0]) == (0.0, pytest.approx(np.sqrt(SIGNAL + NOISE)))
    alone = fixed(changes).fit(x[:, None], y)
    assert model.log_marginal_likelihood_ == pytest.approx(alone.log_marginal_likelihood_)
    learned = DSMGPRegressor("rbf", structure=tree, max_iter=3).fit(x[:, None], y)
    draws = learned.sample_y([[1.0], [200.0]], 5)
    assert np.isfinite(draws).all()


def test_rows_at_one_position_are_one_segment(few):
    _, y = few
    X = np.ones((len(y), 1))
    for structure in ("changepoint", ChangePoints(n_changes=1)):
        model = fixed(structure).fit(X, y)
        assert model.changepoints() == []
        assert model.n_induced_trees_ == 1
        mean, _ = model.predict([[1.0], [3.0]], return_std=True)
        assert mean[0] == pytest.approx(y.sum() * SIGNAL / (len(y) * SIGNAL + NOISE))


def test_small_components_are_merged_without_moving_the_moments(few, monkeypatch):
    x, y = few
    model = fixed(ChangePoints(hazard=0.2)).fit(x[:, None], y)
    whole = model.predict_dist(AT[:, None])
    monkeypatch.setattr(components, "MERGED", 0.05)
    short = model.predict_dist(AT[:, None])
    assert short.weights.shape[1] < whole.weights.shape[1]
    np.testing.assert_allclose(short.mean, whole.mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(short.var, whole.var, rtol=1e-10)
    monkeypatch.setattr(changepoint_model, "COMPONENTS_AT_ONCE", 20)
    in_parts = model.predict_dist(AT[:, None])
    np.testing.assert_allclose(in_parts.cdf(0.5), short.cdf(0.5), rtol=1e-10)
    np.testing.assert_allclose(
        model.predict(AT[:, None], return_std=True), (short.mean, short.std), rtol=1e-10
    )


def test_a_leaf_with_a_change_point_is_a_sum_over_products(few):
    """The leaf against the tree that it stands for, whose splits lie in the middle of the gaps."""
    x, y = few
    space = Region.whole(1)
    gaps = np.unique(0.5 * (x[1:] + x[:-1])[np.diff(x) > 0])
    tree = Sum([Product([Leaf(p) for p in space.split(0, [s])], 0, [s]) for s in gaps])
    written = fixed(tree, weights="posterior").fit(x[:, None], y)
    folded = fixed(ChangePoints(n_changes=1)).fit(x[:, None], y)
    assert folded.log_marginal_likelihood_ == pytest.approx(written.log_marginal_likelihood_)
    np.testing.assert_allclose(
        folded.predict(x[:, None], return_std=True), written.predict(x[:, None], return_std=True)
    )
    np.testing.assert_allclose(
        folded.split_posterior().probability, written.split_posterior().probability, atol=1e-9
    )
    np.testing.assert_allclose(folded.split_posterior().low, written.split_posterior().low)
    assert folded.n_induced_trees_ == written.n_induced_trees_


def test_several_outputs_change_together(few):
    x, y = few
    Y = np.column_stack([y, np.cos(x) + (x > 2)])
    model = fixed(ChangePoints(hazard=0.2)).fit(x[:, None], Y)
    ways = list(segmentations(x))
    log_prior = np.log([hazard_prior(x, h=0.2)(way) for way in ways])
    each = [BruteForce(x, col, k, NOISE, ways, lambda w: 1.0) for col in Y.T]
    terms = log_prior + sum(np.log(e.weights) + e.log_evidence + np.log(len(ways)) for e in each)
    assert model.log_marginal_likelihood_ == pytest.approx(np.logaddexp.reduce(terms))
    weights = np.exp(terms - np.logaddexp.reduce(terms))
    for output, exact in enumerate(each):
        exact.weights = weights
        mean, covariance = overall(*exact.predict(AT))
        m, C = model.predict(AT[:, None], return_cov=True, include_noise=False)
        np.testing.assert_allclose(m[:, output], mean, atol=1e-7)
        np.testing.assert_allclose(C[:, :, output], covariance, atol=1e-7)
    assert model.sample_y(AT[:, None], 3).shape == (len(AT), 2, 3)
