"""structure="learned": the posterior over trees is that of brute force, breaks are found, and smooth functions are left whole."""

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dsmgp import DSMGPRegressor, load
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.leaf_setup import build_family
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.structure import learned as learned_structure
from dsmgp.fitting.structure.row_evidence import RowEvidence
from dsmgp.fitting.structure.tree_search import TreeSearch
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.tree.cut_tree import TreePrior, all_trees, inner_cuts, leaf_rows, to_node
from dsmgp.tree.nodes import Leaf, Product, leaves, nodes

KERNEL = Kernel((KernelTerm("rbf", np.array([0.6, 0.9]), 1.3),))
NOISE = 0.2


def tiny():
    """Rows on a grid of 3 by 3 points, of which all trees can be listed."""
    rng = np.random.default_rng(3)
    X = np.array([[a, b] for a in range(3) for b in range(3)], dtype=float).repeat(5, axis=0)
    y = (X[:, 0] > 0.5) * 0.4 + 0.5 * rng.normal(size=len(X))
    return X, y


def log_evidence(X, y):
    """Of one leaf, by SciPy's normal distribution."""
    Z = X / KERNEL.terms[0].lengthscale
    r2 = np.square(Z[:, None] - Z[None]).sum(-1)
    K = KERNEL.terms[0].outputscale * np.exp(-0.5 * r2) + NOISE * np.eye(len(X))
    return multivariate_normal(cov=K).logpdf(y)


def enumerated(X, y, prior):
    """All trees, their log priors and log evidences."""
    trees = list(all_trees(X, prior.least))
    log_priors = np.array([prior.log_density(tree, X) for tree in trees])
    evidences = [
        sum(log_evidence(X[rows], y[rows]) for rows in leaf_rows(tree, X)) for tree in trees
    ]
    return trees, log_priors, np.array(evidences)


@pytest.fixture
def everything_kept(monkeypatch):
    monkeypatch.setattr(learned_structure, "LEAST_SHARE", 1e-300)
    monkeypatch.setattr(learned_structure, "WIDTH", (3, 10_000))
    monkeypatch.setattr(learned_structure, "MOST_TREES", 10_000)


def test_the_posterior_over_trees_is_that_of_brute_force(everything_kept):
    X, y = tiny()
    model = DSMGPRegressor(
        KERNEL, "zero", NOISE, "learned", optimizer=None, standardize=False, random_state=0
    ).fit(X, y)
    prior = TreePrior(least=learned_structure.LEAST_ROWS)
    trees, log_priors, evidences = enumerated(X, y, prior)
    joint = log_priors + evidences
    total = np.logaddexp.reduce(joint)
    posterior = np.exp(joint - total)
    assert model.log_marginal_likelihood_ == pytest.approx(total, abs=1e-8)
    (weights,) = (w for node, w in model.posterior_weights_.items() if node is model.tree_)
    assert len(weights) == 2 * len(trees) - 1 > 20  # twice each, but for the one that is not cut
    halves = np.repeat(0.5 * posterior[1:], 2)
    expected_weights = np.append(halves, posterior[0])
    assert np.sort(weights) == pytest.approx(np.sort(expected_weights), abs=1e-10)
    for dimension in (0, 1):
        splits = model.split_posterior(dimension)
        expected: dict[float, float] = {}
        for tree, share in zip(trees, posterior, strict=True):
            for _, _, cut in inner_cuts(tree, X):
                if cut.dimension == dimension:
                    expected[cut.split] = expected.get(cut.split, 0.0) + share
        assert dict(zip(splits.position.tolist(), splits.probability.tolist(), strict=True)) == (
            pytest.approx(expected, abs=1e-10)
        )


def test_a_search_sees_all_trees_if_it_goes_on_from_all():
    rng = np.random.default_rng(0)
    X = rng.permutation(12).reshape(6, 2).astype(float)
    config = FitConfig(weights="posterior", local_scale=False)
    data = ScaledRows.of(X, rng.normal(size=(6, 1)), config)
    evidence = RowEvidence(
        data, [build_family("rbf", data, config)], least=2, scan_rows=9, n_lines=1, rng=rng
    )
    search = TreeSearch(evidence, TreePrior(least=2))
    search.run([None], width=10_000, n_best=100)
    assert set(search.scores) == set(all_trees(X, 2))
    best = max(search.scores.values())
    narrow = TreeSearch(evidence, TreePrior(least=2))
    narrow.run([None], width=2, n_best=1)
    assert len(narrow.scores) < len(search.scores)
    assert narrow.scores[narrow.best(1)[0]] == pytest.approx(best)


def broken(n=500, seed=0):
    """Three regions bounded along two of three inputs."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 3))
    region = np.where(X[:, 1] < 0.4, 0, np.where(X[:, 2] < 0.7, 1, 2))
    y = np.array([0.0, 1.0, -1.0])[region] + np.sin(3 * X[:, 0] + region)
    return X, y + 0.1 * rng.normal(size=n)


@pytest.fixture(scope="module")
def learned():
    X, y = broken()
    return DSMGPRegressor("rbf", structure="learned", random_state=0).fit(X, y)


def test_unknown_regions_are_found(learned):
    assert learned.split_posterior(1).within(0.38, 0.42) > 0.99
    assert learned.split_posterior(2).within(0.67, 0.73) > 0.99
    assert learned.split_posterior(0).expected < 0.01
    (change,) = learned.changepoints(0.5, dimension=1)
    assert change.position == pytest.approx(0.4, abs=0.02)
    X, y = broken(seed=1)
    density = learned.predict_dist(X).logpdf(y).mean()
    whole = DSMGPRegressor("rbf", boosted_trees=None, random_state=0).fit(*broken())
    assert density > whole.predict_dist(X).logpdf(y).mean() + 0.2
    assert density > 0.7  # of the noise alone: 0.88


def test_weights_are_those_of_the_posterior_unless_given(learned):
    assert learned.state_.model.weights == "posterior"
    assert "posterior weights" in learned.summary()
    X, y = broken(120)
    gated = DSMGPRegressor("rbf", structure="learned", weights="gated", random_state=0).fit(X, y)
    assert gated.state_.model.weights == "gated"


def test_a_learned_structure_is_saved_and_updated(learned, tmp_path):
    learned.save(tmp_path / "model.dsmgp")
    again = load(tmp_path / "model.dsmgp")
    X, y = broken(40, seed=2)
    assert (again.predict(X) == learned.predict(X)).all()
    assert again.get_params()["structure"] == "learned"
    assert again.partial_fit(X, y).row_ids_.size == 540


def test_the_same_seed_gives_the_same_trees(learned):
    again = DSMGPRegressor("rbf", structure="learned", random_state=0).fit(*broken())
    assert again.log_marginal_likelihood_ == learned.log_marginal_likelihood_


def test_a_smooth_function_is_not_cut():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 2))
    y = np.sin(4 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=300)
    model = DSMGPRegressor("rbf", structure="learned", metric="diagonal", random_state=0).fit(X, y)
    reach = [
        math.exp(model.state_.model.posterior.log_reach[node])
        for node in nodes(model.state_.model.tree)
        if isinstance(node, Product)
    ]
    assert sum(reach) < 0.05


def test_leaf_size_is_the_most_rows_of_a_leaf():
    X, y = broken(200)
    model = DSMGPRegressor(
        "rbf", structure="learned", leaf_size=60, sum_children=3, random_state=0
    ).fit(X, y)
    assert max(leaf.n_rows for leaf in leaves(model.tree_)) <= 60
    assert model.n_induced_trees_ <= 3
    single = DSMGPRegressor("rbf", structure="learned", sum_children=1, random_state=0)
    assert single.fit(X, y).n_induced_trees_ == 1


def test_a_row_inside_a_gap_is_on_both_sides():
    rng = np.random.default_rng(0)
    X = np.append(rng.uniform(0.0, 0.49, 100), rng.uniform(0.51, 1.0, 100))[:, None]
    y = 3.0 * (X[:, 0] > 0.5) + 0.1 * rng.normal(size=200)
    model = DSMGPRegressor("rbf", structure="learned", random_state=0).fit(X, y)
    assert model.split_posterior(0).within(0.45, 0.55) == pytest.approx(1.0, abs=1e-3)
    density = model.predict_dist(np.full((2, 1), 0.5)).logpdf(np.array([0.0, 3.0]))
    assert (density > -3.0).all()


def test_rows_that_are_all_equal_are_one_leaf():
    X = np.ones((30, 2))
    model = DSMGPRegressor("rbf", structure="learned", random_state=0).fit(X, np.arange(30.0))
    assert isinstance(model.tree_, Leaf)


def test_several_outputs_share_their_trees():
    X, y = broken(200)
    model = DSMGPRegressor("rbf", structure="learned", random_state=0)
    model.fit(X, np.stack([y, y[::-1]], axis=1))
    assert model.predict(X[:3]).shape == (3, 2)
    weights = DSMGPRegressor("rbf", structure="learned", random_state=0)
    weights.fit(X, y, noise=np.full(200, 0.01), sample_weight=np.arange(1.0, 201.0))
    assert weights.split_posterior(1).within(0.35, 0.45) > 0.9


def test_to_node_of_the_uncut_tree_is_a_leaf():
    assert isinstance(to_node(None, np.zeros((3, 1))), Leaf)
