"""Learning theta: the gradient through the tree, the optimisers, priors, and determinism."""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import LogNormalPrior
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from dsmgp import DSMGPRegressor
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.optimize import OPTIMIZERS, evidence_objective, maximise_evidence
from dsmgp.gp.kernels import KERNELS
from dsmgp.gp.process import NOISE_FLOOR, build_process
from dsmgp.tree import Leaf, Product, Region, leaves, nodes
from dsmgp.tree.growing import grow_paper
from tests.experts.test_leaf_gps import central_difference


@pytest.fixture
def two_outputs(rng):
    X = rng.normal(size=(60, 2))
    Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] ** 2]) + 0.2 * rng.normal(size=(60, 2))
    tree = grow_paper(X, leaf_size=15, sum_children=2, product_children=2, depth=2, rng=rng)
    return tree, X, Y


def objective_of(kernels, tree, X, Y, mean="constant"):
    processes = [build_process(kernel, mean, 0.1, X.shape[1]) for kernel in kernels]
    leaf_kernels = [process.leaf_kernel(X.shape[1]) for process in processes]
    leaf_gps = InMemoryLeafGPs(leaves(tree), torch.from_numpy(X), torch.from_numpy(Y), leaf_kernels)
    return processes, evidence_objective(tree, leaf_gps, processes, range(len(kernels)))


@pytest.mark.parametrize("kernel", [*sorted(KERNELS), "general"])
def test_the_gradient_through_the_tree_equals_finite_differences(two_outputs, kernel):
    tree, X, Y = two_outputs
    if kernel == "general":
        kernel = ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=2))
    processes, objective = objective_of([kernel, "rbf"], tree, X, Y)
    theta = torch.cat([p.theta for p in processes])
    expected = central_difference(lambda at: np.array(objective(at.numpy())[0]), theta)
    _, gradient = objective(theta.numpy())
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_priors_are_part_of_the_objective(two_outputs):
    tree, X, Y = two_outputs
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=LogNormalPrior(0.5, 0.4)))
    processes, objective = objective_of([kernel, "rbf"], tree, X, Y)
    theta = torch.cat([p.theta for p in processes])
    expected = central_difference(lambda at: np.array(objective(at.numpy())[0]), theta)
    np.testing.assert_allclose(objective(theta.numpy())[1], expected, rtol=1e-6, atol=1e-6)


def test_one_leaf_learns_what_scikit_learn_learns(wavy):
    X, y = wavy
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    model = DSMGPRegressor(
        ScaleKernel(RBFKernel(ard_num_dims=2)),  # without the priors that kernels by name carry
        structure=Leaf(Region.whole(2)),
        weights="posterior",
        standardize=False,
        max_iter=300,
    ).fit(X, y)
    kernel = sk.ConstantKernel(1.0) * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(0.1)
    oracle = GaussianProcessRegressor(kernel, alpha=0.0).fit(X, y)
    best = oracle.log_marginal_likelihood(oracle.kernel_.theta)
    assert model.log_marginal_likelihood_ == pytest.approx(best, abs=2e-3)
    np.testing.assert_allclose(model.predict(X), oracle.predict(X), atol=5e-3)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimiser_climbs(wavy, optimizer):
    X, y = wavy
    fixed = DSMGPRegressor("rbf", leaf_size=40, optimizer=None, random_state=0).fit(X, y)
    learned = DSMGPRegressor(
        "rbf", leaf_size=40, optimizer=optimizer, max_iter=60, random_state=0
    ).fit(X, y)
    assert learned.log_marginal_likelihood_ > fixed.log_marginal_likelihood_ + 20


def test_the_full_objective_is_at_least_as_good_as_the_surrogate(wavy):
    X, y = wavy
    options = {
        "kernel": "rbf",
        "structure": "paper",
        "leaf_size": 30,
        "weights": "posterior",
        "random_state": 0,
    }
    surrogate = DSMGPRegressor(objective="surrogate", **options).fit(X, y)
    full = DSMGPRegressor(objective="full", **options).fit(X, y)
    assert full.log_marginal_likelihood_ > surrogate.log_marginal_likelihood_ + 0.1
    assert full.n_induced_trees_ == surrogate.n_induced_trees_  # the same tree


def test_restarts_keep_the_best(rng, caplog):
    """Two explanations, a slow wave with noise or a fast one without: a bad start finds the worse."""
    x = np.linspace(0, 1, 60)[:, None]
    y = np.sin(40 * x)
    leaf = [Leaf(Region.whole(1), np.arange(60))]
    objectives = []
    for n_restarts in (0, 6):
        process = build_process("rbf", "zero", 0.5, 1)
        process.kernel.base_kernel.lengthscale = 0.15
        leaf_kernel = process.leaf_kernel(1)
        leaf_gps = InMemoryLeafGPs(leaf, torch.from_numpy(x), torch.from_numpy(y), [leaf_kernel])
        with caplog.at_level("INFO", "dsmgp"):
            (best,) = maximise_evidence(
                None, leaf_gps, [process], optimizer="lbfgs", rng=np.random.default_rng(0),
                n_restarts=n_restarts,
            )  # fmt: skip
        assert len(caplog.records) == n_restarts + 1
        caplog.clear()
        objectives.append(best.objective)
    assert objectives[1] > objectives[0] + 10


def test_noise_stays_above_its_floor(rng):
    X = np.repeat(rng.uniform(size=(15, 1)), 2, axis=0)  # repeated rows that agree: no noise at all
    model = DSMGPRegressor("rbf", weights="posterior").fit(X, np.sin(3 * X[:, 0]))
    assert NOISE_FLOOR <= model.noise_ < 1e-3


def test_trees_follow_the_learned_length_scales(rng):
    """Of two inputs only one matters: nearly all cuts are along it."""
    X = rng.uniform(-1, 1, size=(400, 2))
    y = np.sin(6 * X[:, 1])
    model = DSMGPRegressor("rbf", leaf_size=30, random_state=0).fit(
        X, y + 0.1 * rng.normal(size=400)
    )
    cuts = [node.dimension for node in nodes(model.tree_) if isinstance(node, Product)]
    assert np.mean(cuts) > 0.65


def test_leaves_with_scales_of_their_own_do_not_let_a_noisy_leaf_decide(rng):
    """The Student evidence: its gradient, and what it is for."""
    X = rng.normal(size=(60, 2))
    Y = np.sin(2 * X[:, :1]) + 0.1 * rng.normal(size=(60, 1))
    leaves = [Leaf(Region.whole(2), np.arange(k, k + 20)) for k in (0, 20, 40)]
    Y[40:] += 30 * rng.normal(size=(20, 1))
    process = build_process("matern32", "constant", 0.1, 2)
    leaf_kernel = process.leaf_kernel(2)
    leaf_gps = InMemoryLeafGPs(leaves, torch.from_numpy(X), torch.from_numpy(Y), [leaf_kernel])
    objective = evidence_objective(None, leaf_gps, [process], [0], scale_rows=5.0)
    theta = process.theta
    expected = central_difference(lambda at: np.array(objective(at.numpy())[0]), theta)
    np.testing.assert_allclose(objective(theta.numpy())[1], expected, rtol=1e-6, atol=1e-7)
    # Against scipy's multivariate t: scale matrix K, 5 degrees of freedom.
    process.theta = theta
    K = process.kernel(leaf_gps.X[:20]).to_dense().detach().numpy() + process.noise * np.eye(20)
    mean = np.full(20, float(process.mean.constant.detach()))
    oracle = stats.multivariate_t(mean, K, df=5).logpdf(Y[:20, 0])
    evidence, _ = leaf_gps.log_evidence_and_gradient(
        [process.kernel_parameters(leaf_kernel)], scale_rows=5.0
    )
    assert evidence[0, 0] == pytest.approx(oracle, rel=1e-9)


def test_a_fit_of_one_leaf_does_not_depend_on_the_number_of_threads(rng):
    X = rng.normal(size=(450, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=450)
    before = torch.get_num_threads()
    results = []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            model = DSMGPRegressor("matern32", weights="posterior", random_state=0).fit(X, y)
            results.append(np.append(model.predict(X), model.log_marginal_likelihood_))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-9, atol=1e-9)


def test_a_strong_prior_wins_over_the_data(wavy):
    X, y = wavy
    prior = LogNormalPrior(np.log(3.3), 0.001)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=prior))
    model = DSMGPRegressor(kernel, structure=Leaf(Region.whole(2))).fit(X, y)
    np.testing.assert_allclose(model.kernel_.base_kernel.lengthscale.detach(), 3.3, rtol=0.02)


def test_constraints_hold(wavy):
    X, y = wavy
    constraint = gpytorch.constraints.Interval(2.0, 2.5)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_constraint=constraint))
    lengthscale = DSMGPRegressor(kernel).fit(X, y).kernel_.base_kernel.lengthscale.detach()
    assert (lengthscale >= 2.0).all()
    assert (lengthscale <= 2.5).all()


def test_an_output_scale_that_is_held_fixed_stays(wavy):
    X, y = wavy
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    kernel.outputscale = torch.tensor(3.0, dtype=torch.float64)
    kernel.raw_outputscale.requires_grad_(False)
    model = DSMGPRegressor(kernel, leaf_size=30, random_state=0).fit(X, y)
    assert float(model.kernel_.outputscale) == pytest.approx(3.0, rel=1e-12)


def test_without_an_optimiser_everything_stays_as_given(wavy):
    X, y = wavy
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.4, 0.9]], dtype=torch.float64)
    model = DSMGPRegressor(kernel, noise_variance=0.3, optimizer=None).fit(X, y)
    np.testing.assert_allclose(model.kernel_.base_kernel.lengthscale.detach(), [[0.4, 0.9]])
    assert model.noise_ == pytest.approx(0.3, rel=1e-12)


def test_where_a_leaf_cannot_be_factorised_the_objective_is_minus_infinity(two_outputs):
    tree, X, Y = two_outputs
    processes, objective = objective_of(["rbf", "rbf"], tree, X, Y)
    theta = np.concatenate([p.theta.numpy() for p in processes])
    value, gradient = objective(theta + 800.0)  # exp overflows
    assert value == -np.inf
    assert not gradient.any()


def test_learning_starts_from_and_returns_to_a_usable_theta(two_outputs, rng):
    """Steps into nonsense are taken back: the best theta seen is what remains."""
    tree, X, Y = two_outputs
    processes = [build_process("rbf", "zero", 0.1, 2)]
    leaf_kernel = processes[0].leaf_kernel(2)
    leaf_gps = InMemoryLeafGPs(
        leaves(tree), torch.from_numpy(X), torch.from_numpy(Y[:, :1]), [leaf_kernel]
    )
    (result,) = maximise_evidence(tree, leaf_gps, processes, optimizer="lbfgs", rng=rng)
    assert result.objective == max(result.path)
    assert result.n_evaluations == len(result.path)
    np.testing.assert_array_equal(processes[0].theta, result.theta)


@pytest.mark.parametrize("structure", ["balanced", "paper"])
def test_the_number_of_threads_does_not_change_the_result(rng, structure):
    X = rng.normal(size=(600, 3))
    Y = np.column_stack([np.sin(X[:, 0]) + X[:, 1], np.cos(X[:, 2])]) + 0.1 * rng.normal(
        size=(600, 2)
    )
    before = torch.get_num_threads()
    results = []
    try:
        for n_threads in (1, 2, 5):
            torch.set_num_threads(n_threads)
            model = DSMGPRegressor(leaf_size=60, structure=structure, random_state=0).fit(X, Y)
            results.append(
                (
                    [kernel.base_kernel.lengthscale.detach().numpy() for kernel in model.kernel_],
                    [leaf.rows for leaf in leaves(model.tree_)],
                    np.array([model.log_marginal_likelihood_]),
                    np.stack(model.predict(X[:50], return_std=True)),
                )
            )
            assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0][1], other[1], strict=True):
            np.testing.assert_array_equal(a, b)
        for k in (0, 2, 3):
            np.testing.assert_allclose(results[0][k], other[k], rtol=1e-9, atol=1e-9)
