"""Learning theta: the gradient through the tree, the optimisers, priors, and determinism."""

import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from dsmgp import DSMGPRegressor
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.learning.optimize import (
    LEARNING_RATE,
    OPTIMIZERS,
    evidence_objective,
    maximise,
    maximise_evidence,
)
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.process import NOISE_FLOOR, build_process
from dsmgp.gp.terms import NAMED_KERNELS
from dsmgp.linalg.threads import n_threads
from dsmgp.mixture.inference import infer
from dsmgp.tree import Leaf, Product, Region, leaves, nodes
from dsmgp.tree.growing import grow_paper
from tests.support.cores import using_threads
from tests.support.finite_differences import central_difference
from tests.support.sklearn_kernels import covariance, evidence_and_gradient


@pytest.fixture
def two_outputs(rng):
    X = rng.normal(size=(60, 2))
    Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] ** 2]) + 0.2 * rng.normal(size=(60, 2))
    tree = grow_paper(X, leaf_size=15, sum_children=2, product_children=2, depth=2, rng=rng)
    return tree, X, Y


def objective_of(kernels, tree, X, Y, mean="constant"):
    processes = [build_process(kernel, mean, 0.1, X.shape[1]) for kernel in kernels]
    leaf_kernels = [process.leaf_kernel for process in processes]
    leaf_gps = InMemoryLeafGPs(leaves(tree), LeafData(X, Y), leaf_kernels)
    return processes, evidence_objective(tree, leaf_gps, processes, range(len(kernels)))


@pytest.mark.parametrize("kernel", [*NAMED_KERNELS, "matern32+periodic", "rq+rbf", "general"])
def test_the_gradient_through_the_tree_equals_finite_differences(two_outputs, kernel):
    tree, X, Y = two_outputs
    if kernel == "general":
        pytest.importorskip("torch")
        from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

        kernel = ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=2))
    processes, objective = objective_of([kernel, "rbf"], tree, X, Y)
    theta = np.concatenate([p.theta for p in processes])
    expected = central_difference(lambda at: np.array(objective(at)[0]), theta)
    _, gradient = objective(theta)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_priors_are_part_of_the_objective(two_outputs):
    tree, X, Y = two_outputs
    processes, objective = objective_of(["rbf", "periodic"], tree, X, Y)
    theta = np.concatenate([p.theta for p in processes])
    priors = sum(p.log_prior(p.theta)[0] for p in processes)
    leaf_gps = InMemoryLeafGPs(leaves(tree), LeafData(X, Y), [p.leaf_kernel for p in processes])
    evidence = leaf_gps.log_evidence([p.kernel_parameters() for p in processes])
    expected = infer(tree, evidence.sum(axis=1)).log_evidence + priors
    assert objective(theta)[0] == pytest.approx(expected, rel=1e-12)


def test_priors_of_gpytorch_are_part_of_the_objective(two_outputs):
    pytest.importorskip("torch")
    from gpytorch.kernels import RBFKernel, ScaleKernel
    from gpytorch.priors import LogNormalPrior

    tree, X, Y = two_outputs
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=LogNormalPrior(0.5, 0.4)))
    processes, objective = objective_of([kernel, "rbf"], tree, X, Y)
    theta = np.concatenate([p.theta for p in processes])
    expected = central_difference(lambda at: np.array(objective(at)[0]), theta)
    np.testing.assert_allclose(objective(theta)[1], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
def test_one_leaf_maximises_scikit_learns_evidence_and_the_prior(wavy, kernel):
    X, y = wavy
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    model = DSMGPRegressor(
        kernel,
        structure=Leaf(Region.whole(2)),
        weights="posterior",
        standardize=False,
        max_iter=300,
    ).fit(X, y)
    process = build_process(kernel, "zero", None, 2, spread=X.std(0), variance=y.var())

    def loss(theta):
        at = process.with_theta(theta)
        value, by = evidence_and_gradient(at.kernel, at.noise, X, y)
        log_prior, by_prior = at.log_prior(theta)
        return -value - log_prior, -process.pull_back(theta, by) - by_prior

    best = optimize.minimize(loss, process.theta, jac=True, method="L-BFGS-B")
    expected = process.with_theta(best.x)
    evidence, _ = evidence_and_gradient(expected.kernel, expected.noise, X, y)
    assert model.log_marginal_likelihood_ == pytest.approx(evidence, abs=2e-3)
    np.testing.assert_allclose(model.kernel_.lengthscale, expected.kernel.lengthscale, rtol=0.01)
    K = covariance(expected.kernel, X, X)
    mean = K @ np.linalg.solve(K + expected.noise * np.eye(len(X)), y)
    np.testing.assert_allclose(model.predict(X), mean, atol=5e-3)


def test_one_leaf_learns_what_scikit_learn_learns(wavy):
    pytest.importorskip("torch")
    from gpytorch.kernels import RBFKernel, ScaleKernel

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
        process = build_process(Kernel((KernelTerm("rbf", 0.15, 1.0),)), "zero", 0.5, 1)
        leaf_gps = InMemoryLeafGPs(leaf, LeafData(x, y), [process.leaf_kernel])
        with caplog.at_level("INFO", "dsmgp"):
            _, (best,) = maximise_evidence(
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
    process = process.with_theta(np.r_[0.3, process.theta[1:]])  # the mean is its first entry
    leaf_gps = InMemoryLeafGPs(leaves, LeafData(X, Y), [process.leaf_kernel])
    objective = evidence_objective(None, leaf_gps, [process], [0], scale_rows=5.0)
    theta = process.theta
    expected = central_difference(lambda at: np.array(objective(at)[0]), theta)
    np.testing.assert_allclose(objective(theta)[1], expected, rtol=1e-6, atol=1e-7)
    # Against scipy's multivariate t: scale matrix K, 5 degrees of freedom.
    K = covariance(process.kernel, X[:20], X[:20]) + process.noise * np.eye(20)
    oracle = stats.multivariate_t(np.full(20, 0.3), K, df=5).logpdf(Y[:20, 0])
    evidence, _ = leaf_gps.log_evidence_and_gradient([process.kernel_parameters()], scale_rows=5.0)
    assert evidence[0, 0] == pytest.approx(oracle, rel=1e-9)


def test_a_fit_of_one_leaf_does_not_depend_on_the_number_of_threads(rng):
    X = rng.normal(size=(450, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=450)
    results = []
    for number in (1, 2):
        with using_threads(number):
            model = DSMGPRegressor("matern32", weights="posterior", random_state=0).fit(X, y)
            results.append(np.append(model.predict(X), model.log_marginal_likelihood_))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-9, atol=1e-9)


def test_a_strong_prior_wins_over_the_data(wavy):
    pytest.importorskip("torch")
    from gpytorch.kernels import RBFKernel, ScaleKernel
    from gpytorch.priors import LogNormalPrior

    X, y = wavy
    prior = LogNormalPrior(np.log(3.3), 0.001)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=prior))
    model = DSMGPRegressor(kernel, structure=Leaf(Region.whole(2))).fit(X, y)
    np.testing.assert_allclose(model.kernel_.base_kernel.lengthscale.detach(), 3.3, rtol=0.02)


def test_constraints_hold(wavy):
    pytest.importorskip("torch")
    from gpytorch.constraints import Interval
    from gpytorch.kernels import RBFKernel, ScaleKernel

    X, y = wavy
    constraint = Interval(2.0, 2.5)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_constraint=constraint))
    lengthscale = DSMGPRegressor(kernel).fit(X, y).kernel_.base_kernel.lengthscale.detach()
    assert (lengthscale >= 2.0).all()
    assert (lengthscale <= 2.5).all()


def test_an_output_scale_that_is_held_fixed_stays(wavy):
    torch = pytest.importorskip("torch")
    from gpytorch.kernels import RBFKernel, ScaleKernel

    X, y = wavy
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    kernel.outputscale = torch.tensor(3.0, dtype=torch.float64)
    kernel.raw_outputscale.requires_grad_(False)
    model = DSMGPRegressor(kernel, leaf_size=30, random_state=0).fit(X, y)
    assert float(model.kernel_.outputscale) == pytest.approx(3.0, rel=1e-12)


def test_without_an_optimiser_everything_stays_as_given(wavy):
    X, y = wavy
    kernel = Kernel((KernelTerm("rq", [0.4, 0.9], 1.3, alpha=0.7),))
    model = DSMGPRegressor(kernel, noise_variance=0.3, optimizer=None).fit(X, y)
    (term,) = model.kernel_.terms
    np.testing.assert_allclose(term.lengthscale, [0.4, 0.9])
    assert term.outputscale == pytest.approx(1.3, rel=1e-12)
    assert term.alpha == pytest.approx(0.7, rel=1e-12)
    assert model.noise_ == pytest.approx(0.3, rel=1e-12)


def test_without_an_optimiser_a_gpytorch_kernel_stays_as_given(wavy):
    torch = pytest.importorskip("torch")
    from gpytorch.kernels import RBFKernel, ScaleKernel

    X, y = wavy
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.4, 0.9]], dtype=torch.float64)
    model = DSMGPRegressor(kernel, noise_variance=0.3, optimizer=None).fit(X, y)
    np.testing.assert_allclose(model.kernel_.base_kernel.lengthscale.detach(), [[0.4, 0.9]])
    assert model.noise_ == pytest.approx(0.3, rel=1e-12)


def test_where_a_leaf_cannot_be_factorised_the_objective_is_minus_infinity(two_outputs):
    tree, X, Y = two_outputs
    processes, objective = objective_of(["rbf", "rbf"], tree, X, Y)
    theta = np.concatenate([p.theta for p in processes])
    value, gradient = objective(theta + 800.0)  # exp overflows
    assert value == -np.inf
    assert not gradient.any()


def test_learning_starts_from_and_returns_to_a_usable_theta(two_outputs, rng):
    """Steps into nonsense are taken back: the best theta seen is what remains."""
    tree, X, Y = two_outputs
    processes = [build_process("rbf", "zero", 0.1, 2)]
    leaf_gps = InMemoryLeafGPs(leaves(tree), LeafData(X, Y[:, :1]), [processes[0].leaf_kernel])
    (learned,), (result,) = maximise_evidence(tree, leaf_gps, processes, optimizer="lbfgs", rng=rng)
    assert result.objective == max(result.path)
    assert result.n_evaluations == len(result.path)
    np.testing.assert_array_equal(learned.theta, result.theta)


@pytest.mark.parametrize("structure", ["balanced", "paper"])
def test_the_number_of_threads_does_not_change_the_result(rng, structure):
    X = rng.normal(size=(300, 3))
    Y = np.column_stack([np.sin(X[:, 0]) + X[:, 1], np.cos(X[:, 2])]) + 0.1 * rng.normal(
        size=(300, 2)
    )
    settings = {"leaf_size": 60, "structure": structure, "max_iter": 10, "random_state": 0}
    results = []
    for number in (1, 2, 5):
        with using_threads(number):
            allowed = n_threads()
            assert allowed <= number
            model = DSMGPRegressor(**settings).fit(X, Y)
            results.append(
                (
                    [kernel.lengthscale for kernel in model.kernel_],
                    [leaf.rows for leaf in leaves(model.tree_)],
                    np.array([model.log_marginal_likelihood_]),
                    np.stack(model.predict(X[:50], return_std=True)),
                )
            )
            assert n_threads() == allowed
    for other in results[1:]:
        for a, b in zip(results[0][1], other[1], strict=True):
            np.testing.assert_array_equal(a, b)
        for k in (0, 2, 3):
            np.testing.assert_allclose(results[0][k], other[k], rtol=1e-9, atol=1e-9)


# The optimisers themselves


def valley(theta):
    """Rosenbrock's, upside down."""
    x, y = theta
    away = y - x**2
    return -10.0 * away**2 - (1 - x) ** 2, np.array([40 * x * away + 2 * (1 - x), -20 * away])


def visited(objective, start, n_rows, optimizer, max_iter):
    """The thetas that a search evaluates."""
    path = []

    def recorded(theta):
        path.append(theta.copy())
        return objective(theta)

    result = maximise(recorded, start, n_rows, optimizer, max_iter, tolerance=1e-12)
    return np.array(path), result


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_steps_are_those_of_torch(optimizer):
    torch = pytest.importorskip("torch")
    start, n_rows = np.array([-0.7, 0.4]), 3
    path, result = visited(valley, start, n_rows, optimizer, 200)
    theta = torch.tensor(start, requires_grad=True)
    steps = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[optimizer](
        [theta], lr=LEARNING_RATE
    )
    for at in path:
        np.testing.assert_allclose(at, theta.detach().numpy(), rtol=1e-9, atol=1e-11)
        theta.grad = torch.from_numpy(-valley(theta.detach().numpy())[1] / n_rows)
        steps.step()
    assert len(path) == result.n_iterations == result.n_evaluations == 200


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_the_first_step_depends_on_the_sign_of_the_gradient_only(optimizer):
    """Both divide the gradient by its own size: Adam by all of it at first, RMSprop by a tenth."""
    start = np.array([-0.7, 0.4])
    path, _ = visited(valley, start, 3, optimizer, 2)
    most = LEARNING_RATE * (1.0 if optimizer == "adam" else 10.0)
    np.testing.assert_allclose(path[1] - start, most * np.sign(valley(start)[1]), rtol=1e-5)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimiser_comes_near_the_top_and_the_best_theta_counts(optimizer):
    path, result = visited(valley, np.array([-0.7, 0.4]), 1, optimizer, 2000)
    assert result.objective > -0.05  # from -3; the step of RMSprop does not get smaller
    assert result.objective == max(result.path) == valley(result.theta)[0]
    assert len(path) == result.n_evaluations


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_search_ends_where_the_objective_has_no_value(optimizer):
    def objective(theta):
        return (valley(theta) if theta[0] < -0.5 else (-np.inf, np.zeros(2)))  # fmt: skip

    path, result = visited(objective, np.array([-0.7, 0.4]), 1, optimizer, 500)
    assert len(path) < 500
    assert path[-1][0] >= -0.5
    assert np.isfinite(result.objective)
