"""Inference over kernels is the sum over all combinations of kernels and regions, by brute force."""

from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp

from dsmgp import DSMGPRegressor, load
from dsmgp.mixture.kernel_posterior import kernel_probabilities
from dsmgp.tree.nodes import Leaf, Product, Sum
from dsmgp.tree.region import Region

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

KERNELS = ["rbf", "matern12", "matern32"]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(40, 2))
    return X, np.sin(3 * X[:, 0]) + np.abs(X[:, 1]) + 0.1 * rng.normal(size=40)


@pytest.fixture(scope="module")
def tree():
    """The whole, or cut along the first input; the part below may be cut along the second."""
    space = Region.whole(2)
    below, above = space.split(0, [0.1])
    quarters = [Leaf(part) for part in below.split(1, [-0.2])]
    halves = Product([Sum([Leaf(below), Product(quarters, 1, [-0.2])]), Leaf(above)], 0, [0.1])
    return Sum([Leaf(space), halves], np.log([0.3, 0.7]))


@pytest.fixture(scope="module")
def model(rows, tree):
    return DSMGPRegressor(KERNELS, structure=tree, random_state=0).fit(*rows)


def gp(model, kernel, rows, X_new):
    """Log evidence and predictive mean of y, in the experts' units, of one exact GP by dense algebra."""
    fitted = model.state_.model
    family = fitted.families[KERNELS.index(kernel)]
    bound = family.leaf_kernels[0].at(family.kernel_parameters[0])
    scaled = fitted.inputs.to_experts(model.state_.rows.X)[rows]
    y = fitted.outputs.to_experts(model.state_.rows.Y)[rows, 0]
    K = bound.cross(scaled, scaled) + bound.noise * np.eye(len(rows))
    alpha = np.linalg.solve(K, y)
    _, log_det = np.linalg.slogdet(K)
    evidence = -0.5 * (y @ alpha + log_det + len(rows) * np.log(2 * np.pi))
    return evidence, bound.cross(fitted.inputs.to_experts(X_new), scaled) @ alpha


def test_the_evidence_and_the_mean_are_sums_over_all_combinations(model, rows):
    X, _ = rows
    X_new = np.array([[-0.5, -0.5], [-0.5, 0.5], [0.6, 0.0]])
    parts = {
        "whole": np.ones(40, dtype=bool),
        "below": X[:, 0] < 0.1,
        "above": X[:, 0] >= 0.1,
        "low": (X[:, 0] < 0.1) & (X[:, 1] < -0.2),
        "high": (X[:, 0] < 0.1) & (X[:, 1] >= -0.2),
    }
    reached = {"whole": [1, 1, 1], "below": [1, 1, 0], "above": [0, 0, 1], "low": [1, 0, 0]}
    reached["high"] = [0, 1, 0]
    partitions = {("whole",): 0.3, ("below", "above"): 0.35, ("low", "high", "above"): 0.35}
    cases, means = [], []
    for partition, prior in partitions.items():
        for kernels in product(KERNELS, repeat=len(partition)):
            total, mean = np.log(prior) - len(partition) * np.log(3), np.zeros(3)
            for part, kernel in zip(partition, kernels, strict=True):
                evidence, predicted = gp(model, kernel, np.flatnonzero(parts[part]), X_new)
                total += evidence
                mean += np.where(reached[part], predicted, 0.0)
            cases.append(total)
            means.append(mean)
    posterior = np.exp(cases - logsumexp(cases))
    fitted = model.state_.model
    assert model.n_induced_trees_ == len(cases) == 39
    assert fitted.posterior.log_evidence == pytest.approx(logsumexp(cases), abs=1e-10)
    expected = fitted.outputs.from_experts((posterior @ np.array(means))[:, None])[:, 0]
    assert model.predict(X_new) == pytest.approx(expected, abs=1e-10)
    # The posterior over kernels, wherever a row lies.
    at = kernel_probabilities(fitted, X_new)
    assert at.sum(axis=1) == pytest.approx(np.ones(3))
    regions = {"whole": 0, "low": 0, "high": 0, "below": 0, "above": 0}
    by_kernel = np.zeros(3)
    number = 0
    for partition in partitions:
        for kernels in product(range(3), repeat=len(partition)):
            by_kernel[kernels[0]] += posterior[number]  # of the part that holds the first row
            number += 1
    assert at[0] == pytest.approx(by_kernel, abs=1e-10)
    assert len(model.kernel_posterior_) == len(regions)


def test_the_posterior_of_each_region_is_that_of_its_evidences(model, rows):
    X, _ = rows
    for each in model.kernel_posterior_:
        inside = np.flatnonzero(each.region.contains(X))
        assert each.n_rows == len(inside)
        evidences = [gp(model, kernel, inside, X[:1])[0] for kernel in KERNELS]
        expected = np.exp(evidences - logsumexp(evidences))
        assert list(each.probabilities) == KERNELS
        assert list(each.probabilities.values()) == pytest.approx(expected, abs=1e-10)
        assert 0.0 <= each.reach <= 1.0


def test_kernels_are_told_apart_region_by_region():
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(-1, 1, 300))
    rough = 2.0 * np.cumsum(rng.normal(size=300) * np.sqrt(np.diff(x, prepend=-1.0)))
    y = np.where(x < 0, np.sin(4 * x), rough - rough[x >= 0][0]) + 0.01 * rng.normal(size=300)
    left, right = (Leaf(part) for part in Region.whole(1).split(0, [0.0]))
    model = DSMGPRegressor(
        ["rbf", "matern12"], structure=Product([left, right], 0, [0.0]), random_state=0
    ).fit(x[:, None], y)
    smooth, jagged = model.kernel_posterior_
    assert smooth.probabilities["rbf"] > 0.9
    assert jagged.probabilities["matern12"] > 0.9
    assert "RegionKernels([-inf, 0)" in repr(smooth)


def test_sums_over_kernels_are_in_summary_plot_and_file(model, rows, tmp_path):
    assert "kernel posterior rbf" in model.summary()
    ax = model.plot_kernels("x1", n_bins=5)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == KERNELS
    matplotlib.pyplot.close("all")
    model.save(tmp_path / "model.dsmgp")
    again = load(tmp_path / "model.dsmgp")
    assert again.get_params()["kernel"] == KERNELS
    assert (again.predict(rows[0]) == model.predict(rows[0])).all()
    assert repr(again.kernel_posterior_) == repr(model.kernel_posterior_)
    single = DSMGPRegressor("rbf", max_iter=2).fit(*rows)
    assert single.kernel_posterior_ == []
    with pytest.raises(ValueError, match="list of kernels"):
        single.plot_kernels()


@pytest.mark.parametrize("structure", ["balanced", "paper", "learned"])
def test_every_structure_has_sums_over_kernels(structure, rows):
    model = DSMGPRegressor(["rbf", "matern12"], structure=structure, leaf_size=20, random_state=0)
    model.fit(*rows)
    assert model.state_.model.weights == "posterior"
    assert all(len(each.probabilities) == 2 for each in model.kernel_posterior_)
    assert 2 * len(model.kernel_posterior_) == len(model.leaf_noise_)
    kept = DSMGPRegressor(["rbf", "matern12"], structure=structure, leaf_size=20, optimizer=None)
    assert len(kept.fit(*rows).state_.model.families) == 2
