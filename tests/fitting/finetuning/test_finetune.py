"""Fine-tuning: its objectives by dense algebra, its limits (one theta for all, leaves alone), and what it does to a model."""

import copy
import pickle

import numpy as np
import pytest
from scipy import optimize, sparse, stats

from dsmgp import DSMGPRegressor, scores
from dsmgp._util.ragged import Ragged
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.finetuning import finetune as module
from dsmgp.fitting.finetuning.batched_lbfgs import maximise
from dsmgp.fitting.finetuning.finetune import TiedObjective, finetune_model
from dsmgp.fitting.finetuning.pair_evidence import NoiseEvidence, PairEvidence
from dsmgp.fitting.finetuning.similarity import jaccard, overlap, similarity_matrix
from dsmgp.fitting.learning.optimize import evidence_objective
from dsmgp.fitting.learning.optimize import maximise as search
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.leaf_parameters import LeafParameters
from dsmgp.gp.process import build_process
from dsmgp.mixture.inference import infer, prior_log_path_weights
from dsmgp.mixture.weighting import LOOSample
from dsmgp.tree import Leaf, Product, Region, Sum, leaves
from tests.support.sklearn_kernels import covariance

# Similarity


@pytest.fixture
def lists(rng):
    return [rng.choice(40, size=n, replace=False) for n in (12, 1, 0, 30, 40, 7)]


@pytest.mark.parametrize("at_once", [1, 2**24])
@pytest.mark.parametrize("least", [0.0, 0.3])
def test_similarities_are_shares_of_common_rows(lists, at_once, least, monkeypatch):
    monkeypatch.setattr("dsmgp.fitting.finetuning.similarity.CHUNK", at_once)
    sets = [set(rows.tolist()) for rows in lists]
    for of, share in (
        (overlap, lambda a, b: len(a & b) / max(len(a), 1)),
        (jaccard, lambda a, b: len(a & b) / max(len(a | b), 1)),
    ):
        expected = np.array([[share(a, b) for b in sets] for a in sets])
        expected[expected < max(least, 1e-12)] = 0.0
        np.fill_diagonal(expected, 1.0)
        S = of(Ragged.of(lists), 40, least)
        assert sparse.issparse(S)
        assert S.nnz == np.count_nonzero(expected)
        np.testing.assert_allclose(S.toarray(), expected, rtol=1e-15)


def test_a_similarity_may_be_sparse_dense_or_made_from_the_leaves(lists):
    chosen = [Leaf(Region.whole(1), rows) for rows in lists]
    given = np.eye(6)
    given[0, 3] = 0.5
    for similarity in (given, given.tolist(), sparse.coo_matrix(given), lambda leaves: given):
        np.testing.assert_array_equal(similarity_matrix(similarity, chosen, 40).toarray(), given)
    seen = []
    similarity_matrix(lambda leaves: seen.extend(leaves) or given, chosen, 40)
    assert seen == chosen


# The optimiser


def test_many_problems_each_reach_the_top_that_they_reach_alone(rng):
    """Rosenbrock's valleys of different steepness, against SciPy's L-BFGS."""
    steep = np.array([1.0, 10.0, 100.0])
    start = rng.normal(size=(3, 2))

    def valley(x, s):
        value = -s * (x[1] - x[0] ** 2) ** 2 - (1 - x[0]) ** 2
        away = x[1] - x[0] ** 2
        return value, np.array([4 * s * x[0] * away + 2 * (1 - x[0]), -2 * s * away])

    n_evaluated = []

    def objective(which, x):
        n_evaluated.append(len(which))
        result = [valley(p, steep[k]) for k, p in zip(which, x, strict=True)]
        return np.array([v for v, _ in result]), np.array([g for _, g in result])

    result = maximise(objective, start, np.ones(3), 200, 1e-14, flat=1e-9)
    for k in range(3):
        alone = optimize.minimize(
            lambda x, s=steep[k]: tuple(-np.asarray(p) for p in valley(x, s)), start[k], jac=True
        )
        np.testing.assert_allclose(result.point[k], alone.x, atol=1e-4)
    np.testing.assert_allclose(result.value, 0.0, atol=1e-9)
    assert n_evaluated[0] == 3 > n_evaluated[-1]  # those that are done are not evaluated again
    assert result.n_evaluations == len(n_evaluated)


def test_a_search_steps_back_from_where_there_is_no_value():
    def objective(which, x):
        value = np.where(x[:, 0] > 1.0, np.nan, -np.square(x[:, 0] - 0.99))
        return value, -2.0 * (x - 0.99)

    start = np.array([[0.0], [2.0]])
    result = maximise(objective, start, np.ones(2), 60, 1e-14)
    assert result.point[0, 0] == pytest.approx(0.99, abs=1e-4)
    assert result.point[1, 0] == 2.0  # no value at the start: left alone
    assert result.n_iterations[1] == 0


# The objectives


def periodic_module():
    """A kernel of GPyTorch without closed form, with a prior."""
    gpytorch = pytest.importorskip("gpytorch")
    return gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.PeriodicKernel(lengthscale_prior=gpytorch.priors.GammaPrior(2.0, 1.0))
    )


class Case:
    """Overlapping leaves, two kernels, a theta for each leaf."""

    def __init__(self, rng, kernels=("rbf", "matern32"), known=False):
        self.X = rng.uniform(-2, 2, size=(40, 2))
        self.y = np.sin(2 * self.X[:, 0]) + 0.3 * rng.normal(size=40)
        self.known_noise = rng.uniform(0, 0.5, size=40) * known
        rows = [np.arange(0, 22), np.arange(22, 40), np.arange(10, 30), np.arange(40)]
        self.leaves = [Leaf(Region.whole(2), r) for r in rows]
        kernels = [periodic_module() if kernel == "gpytorch" else kernel for kernel in kernels]
        processes = [build_process(kernel, "constant", 0.1, 2) for kernel in kernels]
        self.thetas = LeafParameters(processes, np.arange(4) % len(kernels))
        self.table = self.thetas.start()
        self.table += 0.3 * rng.normal(size=self.table.shape)
        self.leaf_gps = InMemoryLeafGPs(
            self.leaves,
            LeafData(
                self.X, self.y[:, None], known_noise=self.known_noise[:, None] if known else None
            ),
            [[self.thetas.leaf_kernels[f] for f in self.thetas.family]],
        )
        S = rng.uniform(0.1, 1, size=(4, 4))
        S[0, 1] = S[2, 3] = 0.0
        np.fill_diagonal(S, 1.0)
        self.ties = sparse.csr_matrix(S * rng.uniform(0.1, 0.9, size=4))

    def dense(self, i, theta):
        """Leaf i's objective, by the matrices of scikit-learn or of GPyTorch, and SciPy's density."""
        process = self.thetas.processes[self.thetas.family[i]].with_theta(theta)
        W, total = self.ties.toarray(), 0.0
        for j, leaf in enumerate(self.leaves):
            x = self.X[leaf.rows]
            K, mean = matrix_and_mean(process, x)
            K = K + np.diag(process.noise + self.known_noise[leaf.rows])
            if W[i, j]:
                total += W[i, j] * stats.multivariate_normal.logpdf(self.y[leaf.rows], mean, K)
        return total + min(W[i].sum(), 1.0) * process.log_prior(theta)[0]


def matrix_and_mean(process, X):
    """The covariance of f and the prior mean of a process, by code of others."""
    if isinstance(process.kernel, Kernel):
        constant = process.theta[process.names.index("mean")]
        return covariance(process.kernel, X, X), np.full(len(X), constant)
    import torch

    with torch.no_grad():
        x = torch.from_numpy(X)
        return process.kernel(x).to_dense().numpy(), process.modules.mean(x).numpy()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "kernels", [("rbf", "matern32"), ("rq",), ("periodic",), ("rbf+periodic",), ("gpytorch",)]
)
def test_objective_and_gradient_are_those_of_dense_algebra(rng, kernels, known):
    case = Case(rng, kernels, known)
    columns = np.arange(len(case.thetas.names))
    evidence = PairEvidence(case.leaf_gps, case.leaves, case.thetas, 0, case.ties)
    tied = TiedObjective(evidence, case.thetas, case.ties, case.table, columns)
    value, gradient = tied(np.arange(4), case.table)
    for i in range(4):
        assert value[i] == pytest.approx(case.dense(i, case.table[i].copy()), rel=1e-9)
        expected = optimize.approx_fprime(
            case.table[i], lambda theta, i=i: case.dense(i, theta.copy()), 1e-6
        )
        np.testing.assert_allclose(gradient[i], expected, rtol=2e-4, atol=2e-4)
    # Some of the leaves, and some of the parameters: the rest stay where they are.
    chosen = np.array([1, 3])
    few = np.flatnonzero([name in ("lengthscale", "noise") for name in case.thetas.names])
    tied = TiedObjective(evidence, case.thetas, case.ties, case.table, few)
    again = tied(chosen, case.table[np.ix_(chosen, few)])
    np.testing.assert_allclose(again[0], value[chosen], rtol=1e-12)
    np.testing.assert_allclose(again[1], gradient[np.ix_(chosen, few)], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kernels", [("rbf", "matern32"), ("periodic",), ("gpytorch",)])
@pytest.mark.parametrize("at_once", [30, 2**21])
def test_noise_alone_by_eigenvalues_is_the_evidence_of_the_pairs(
    rng, kernels, at_once, monkeypatch
):
    monkeypatch.setattr("dsmgp.fitting.finetuning.pair_evidence.CHUNK", at_once)
    case = Case(rng, kernels, known=at_once == 30)
    noise = np.array([name == "noise" for name in case.thetas.names])
    case.table[2, ~noise] = case.table[
        0, ~noise
    ]  # two leaves with one kernel share a decomposition
    pairs = PairEvidence(case.leaf_gps, case.leaves, case.thetas, 0, case.ties)
    fast = NoiseEvidence(case.leaf_gps, case.thetas, 0, case.ties, case.table)
    case.table[:, noise] += rng.normal(size=(4, 1))
    for chosen in (np.arange(4), np.array([0, 2])):
        value, gradient = pairs(chosen, case.table[chosen])
        result = fast(chosen, case.table[chosen])
        np.testing.assert_allclose(result[0], value, rtol=1e-9)
        np.testing.assert_allclose(result[1][:, noise], gradient[:, noise], rtol=1e-7, atol=1e-9)
        assert not result[1][:, ~noise].any()


def test_a_fault_of_a_prior_is_not_hidden():
    gpytorch = pytest.importorskip("gpytorch")

    class Faulty(gpytorch.priors.NormalPrior):
        """A prior with a fault that shows in its first evaluation only."""

        n_evaluations = 0

        def log_prob(self, value):
            type(self).n_evaluations += 1
            if self.n_evaluations == 1:
                raise RuntimeError("a fault of the prior")
            return super().log_prob(value)

    kernel = gpytorch.kernels.RBFKernel(lengthscale_prior=Faulty(0.0, 1.0))
    thetas = LeafParameters([build_process(kernel, "zero", 0.1, 1)], np.zeros(2, dtype=int))
    with pytest.raises(RuntimeError, match="a fault of the prior"):
        thetas.log_prior(np.arange(2), thetas.start())


def with_prior(name):
    """A kernel of GPyTorch with one of its priors, or one of the user's own."""
    gpytorch = pytest.importorskip("gpytorch")

    class Picky(gpytorch.priors.NormalPrior):
        """A prior that looks at its values, which is not possible for many leaves at once."""

        def log_prob(self, x):
            return super().log_prob(x) - (1.0 if bool((x > 0.5).any()) else 0.0)

    prior = Picky(0.0, 1.0) if name == "picky" else gpytorch.priors.GammaPrior(2.0, 1.0)
    return gpytorch.kernels.RBFKernel(ard_num_dims=2, lengthscale_prior=prior)


@pytest.mark.parametrize("prior", [None, "gamma", "picky"])
def test_tables_of_theta_say_what_their_processes_say(rng, prior):
    kernels = ["rbf", "matern32"] if prior is None else [with_prior(prior)]
    processes = [build_process(kernel, "linear", 0.1, 2) for kernel in kernels]
    thetas = LeafParameters(processes, np.arange(5) % len(kernels))
    leaf = np.array([4, 0, 3])
    table = thetas.start()[leaf] + 0.5 * rng.normal(size=(3, len(thetas.names)))
    kernel_parameters = thetas.kernel_parameters(leaf, table)
    pull = rng.normal(size=kernel_parameters.shape)
    back, noise = thetas.pull_back(leaf, table, pull), thetas.noise(leaf, table)
    log_prior = thetas.log_prior(leaf, table)
    for k, number in enumerate(leaf):
        process = processes[thetas.family[number]].with_theta(table[k])
        np.testing.assert_allclose(kernel_parameters[k], process.kernel_parameters(), rtol=1e-12)
        np.testing.assert_allclose(back[k], process.pull_back(table[k], pull[k]))
        value, by = process.log_prior(table[k])
        assert log_prior[0][k] == pytest.approx(value)
        np.testing.assert_allclose(log_prior[1][k], by, atol=1e-12)
        assert noise[0][k] == pytest.approx(process.noise)
        by_noise = np.zeros(len(thetas.names))
        by_noise[-1] = process.noise - 1e-6  # exp(raw) above the floor
        np.testing.assert_allclose(noise[1][k], by_noise, rtol=1e-9)


def test_with_similarities_of_one_every_leaf_has_the_global_gradient(rng):
    """That of the mixture's own evidence, where leaves count with their posterior responsibilities."""
    case = Case(rng, kernels=("rbf",))
    case.table[:] = case.table[0]
    tree = Sum([Leaf(Region.whole(2), leaf.rows) for leaf in case.leaves])
    process = case.thetas.processes[0]
    objective = evidence_objective(tree, case.leaf_gps, [process], [0])
    _, expected = objective(case.table[0])
    kernel_parameters = case.thetas.kernel_parameters(np.arange(1), case.table[:1])[0]
    posterior = infer(tree, case.leaf_gps.log_evidence([kernel_parameters])[:, 0])
    for r, whole in (
        (np.exp(posterior.log_responsibilities), expected),
        (np.exp(prior_log_path_weights(tree)), None),
    ):
        ties = sparse.csr_matrix(np.tile(r, (4, 1)))
        evidence = PairEvidence(case.leaf_gps, case.leaves, case.thetas, 0, ties)
        columns = np.arange(len(case.thetas.names))
        _, gradient = TiedObjective(evidence, case.thetas, ties, case.table, columns)(
            np.arange(4), case.table
        )
        if whole is None:  # sum_j r_j d log p_j / d theta
            theta = case.table[0]
            _, (by,) = case.leaf_gps.log_evidence_and_gradient([process.kernel_parameters(theta)])
            whole = process.pull_back(theta, r @ by) + process.log_prior(theta)[1]
        np.testing.assert_allclose(gradient, np.tile(whole, (4, 1)), rtol=1e-8, atol=1e-8)


# The whole way


@pytest.fixture
def rows(rng):
    """Quiet on the left, noisy on the right."""
    X = rng.uniform(0, 2, size=(240, 1))
    return X, np.sin(3 * X[:, 0]) + true_noise(X) * rng.normal(size=240)


def true_noise(X):
    return np.where(X[:, 0] < 1, 0.05, 0.5)


def fitted(rows, **options):
    options = {
        "kernel": "rbf",
        "leaf_size": 40,
        "sum_children": 4,
        "weights": "posterior",
    } | options
    return DSMGPRegressor(random_state=0, **options).fit(*rows)


def on_some(objective, theta, free):
    """An objective as a function of some entries of theta; the others stay."""

    def of_some(point):
        at = theta.copy()
        at[free] = point
        value, gradient = objective(at)
        return value, gradient[free]

    return of_some


@pytest.mark.parametrize("parameters", ["noise", "all"])
def test_with_the_identity_every_leaf_learns_alone(rows, parameters):
    model = fitted(rows)
    process = model.state_.model.families[0].processes[0]
    noise = np.array([name == "noise" for name in process.names])
    free = noise if parameters == "noise" else np.ones_like(noise)
    tuned = (
        copy.deepcopy(model)
        .finetune(
            max_iter=200, similarity=lambda leaves: np.eye(len(leaves)), parameters=parameters
        )
        .state_.model
    )
    leaf_gps, same = tuned.leaf_posterior.leaf_gps, []
    for number, leaf in enumerate(leaves(tuned.tree)):
        alone = InMemoryLeafGPs([leaf], leaf_gps.data, [process.leaf_kernel])
        objective = on_some(evidence_objective(None, alone, [process], [0]), process.theta, free)
        result = search(objective, process.theta[free], leaf.n_rows, "lbfgs", None, 1e-12)
        own = tuned.thetas[0][number]
        np.testing.assert_array_equal(own[~free], process.theta[~free])
        reached, slope = objective(own[free])
        assert np.abs(slope).max() < 2e-3 * leaf.n_rows
        same.append(reached == pytest.approx(result.objective, abs=1e-4 * leaf.n_rows))
    # Few rows may have two tops, and a search may end on either.
    assert np.mean(same) > (0.99 if parameters == "noise" else 0.9)


def test_with_similarities_of_one_all_leaves_end_at_one_theta(rows):
    model = fitted(rows).finetune(similarity=lambda leaves: np.ones((len(leaves), len(leaves))))
    np.testing.assert_allclose(model.leaf_noise_, model.leaf_noise_[0], rtol=1e-9)


def test_a_tuned_model_is_what_its_leaves_say(rows):
    """Evidence, posterior weights, predictions and rows left out, by dense algebra with each leaf's own theta."""
    X, y = rows
    for weights in ("posterior", "uniform"):
        model = fitted(rows, weights=weights).finetune(parameters=["noise", "lengthscale"])
        inner = model.state_.model
        Z, t = inner.inputs.to_experts(X), inner.outputs.to_experts(y[:, None])[:, 0]
        shared = inner.families[0].processes[0]
        at = np.array([[0.3], [1.1], [1.9]])
        test = inner.inputs.to_experts(at)
        logs, means, seconds, left, number = [], [], [], np.zeros((4, len(X))), 0
        for k, child in enumerate(inner.tree.children):
            total, mean, variance = 0.0, np.full(3, np.nan), np.full(3, np.nan)
            for leaf in leaves(child):
                process = shared.with_theta(inner.thetas[0][number])
                assert model.leaf_noise_[number] == pytest.approx(process.noise)
                own = Z[leaf.rows]
                K = covariance(process.kernel, own, own) + process.noise * np.eye(len(own))
                cross = covariance(process.kernel, test, own)
                prior = covariance(process.kernel, test, test).diagonal()
                inverse = np.linalg.inv(K)
                inside = leaf.region.contains(at)
                total += stats.multivariate_normal.logpdf(t[leaf.rows], cov=K)
                mean[inside] = (cross @ inverse @ t[leaf.rows])[inside]
                explained = np.einsum("ij,jk,ik->i", cross, inverse, cross)
                variance[inside] = (prior - explained + process.noise)[inside]
                away = inverse @ t[leaf.rows] / np.diag(inverse)
                left[k, leaf.rows] = stats.norm.pdf(away, scale=np.diag(inverse) ** -0.5)
                number += 1
            logs.append(total - np.log(4))
            means.append(mean)
            seconds.append(variance + mean**2)
        expected = np.logaddexp.reduce(logs) - len(X) * inner.outputs.log_det
        assert model.log_marginal_likelihood_ == pytest.approx(expected, rel=1e-8)
        w = np.exp(logs - np.logaddexp.reduce(logs))
        np.testing.assert_allclose(model.posterior_weights_[inner.tree], w, atol=1e-8)
        left_out = 1.0 / (w @ (1.0 / left))
        if weights == "uniform":
            w, left_out = np.full(4, 0.25), left.mean(axis=0)
        mean, std = model.predict(at, return_std=True)
        scale = inner.outputs.loading[0, 0]
        np.testing.assert_allclose(mean, inner.outputs.centre[0] + scale * (w @ means), rtol=1e-7)
        variance = w @ seconds - (w @ means) ** 2
        np.testing.assert_allclose(std, scale * np.sqrt(variance), rtol=1e-7)
        assert model.loo_score_ == pytest.approx(-np.log(left_out / scale).mean(), rel=1e-7)


@pytest.mark.parametrize("weights", ["posterior", "gated"])
def test_noise_at_a_row_is_what_y_varies_beyond_f(rows, weights):
    model = fitted(rows, weights=weights).finetune()
    X = np.linspace(0, 2, 9)[:, None]
    y, f = (model.predict(X, return_std=True, include_noise=noise)[1] for noise in (True, False))
    np.testing.assert_allclose(model.noise_at(X), y**2 - f**2, rtol=1e-8)


def test_noise_follows_the_spread_and_new_rows_are_predicted_better(rows, rng):
    X = rng.uniform(0, 2, size=(1000, 1))
    y = np.sin(3 * X[:, 0]) + true_noise(X) * rng.normal(size=1000)
    model = fitted(rows)
    before = scores.nlpd(y, model.predict_dist(X))
    shared = model.noise_at(X)
    assert np.ptp(shared) < 1e-12
    model.finetune()
    assert scores.nlpd(y, model.predict_dist(X)) < before - 0.3
    away = np.abs(X[:, 0] - 1) > 0.25  # leaves at the step hold both kinds of rows
    ratio = np.sqrt(model.noise_at(X)) / true_noise(X)
    assert 0.6 < ratio[away].min() < ratio[away].max() < 1.6
    assert "fine-tuned      noise;" in model.summary()


def test_gated_weights_keep_their_scales_and_get_a_new_gate(rows):
    model = fitted(rows, weights="gated")
    before = model.state_.model
    model.finetune()
    after = model.state_.model
    assert (after.scales != 1.0).any()
    assert after.gate not in (None, before.gate)
    # What the scales had to say the noise says now.
    assert np.std(np.log(after.scales)) < 0.5 * np.std(np.log(before.scales))


def test_posterior_responsibilities_are_taken_anew_in_each_round(rows, monkeypatch):
    seen = []
    whole = module._responsibilities
    monkeypatch.setattr(module, "_responsibilities", lambda *a: seen.append(whole(*a)) or seen[-1])
    model = fitted(rows)
    first = np.exp(model.state_.model.posterior.log_responsibilities)
    tuned = copy.deepcopy(model).finetune(weights="posterior", rounds=3)
    np.testing.assert_array_equal(seen[0], first)
    once = copy.deepcopy(model).finetune(weights="posterior", rounds=1)
    np.testing.assert_allclose(
        seen[1], np.exp(once.state_.model.posterior.log_responsibilities), rtol=1e-6, atol=1e-12
    )
    assert 2 <= len(seen) <= 4
    assert not np.array_equal(tuned.leaf_noise_, model.leaf_noise_)
    seen.clear()
    model.finetune(rounds=3)
    assert len(seen) == 2  # prior weights do not move, and a second round would change nothing


def test_tuning_goes_on_from_where_it_ended(rows):
    model = fitted(rows).finetune(max_iter=200)
    again = copy.deepcopy(model).finetune(max_iter=200)
    np.testing.assert_allclose(again.leaf_noise_, model.leaf_noise_, rtol=0.02)
    more = copy.deepcopy(model).finetune(parameters="lengthscale")
    np.testing.assert_array_equal(more.leaf_noise_, model.leaf_noise_)
    assert "lengthscale, noise" in more.summary()


def test_pieces_of_leaves_give_what_all_at_once_give(rows, monkeypatch):
    model = fitted(rows)
    whole = copy.deepcopy(model).finetune(parameters="all")
    monkeypatch.setattr(module, "MOST_ROWS", 500)
    parts = model.finetune(parameters="all")
    np.testing.assert_allclose(
        parts.state_.model.thetas[0], whole.state_.model.thetas[0], rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "periodic"},
        {"kernel": "gpytorch"},
        {"dtype": "float32"},
        {"kernel": "auto", "weights": "gated", "mean": "constant"},
        {"structure": "paper", "leaf_size": 60},
    ],
)
@pytest.mark.parametrize("parameters", ["noise", ["noise", "outputscale"]])
def test_other_models_are_tuned_too(rows, options, parameters):
    X, y = rows
    options = {"leaf_size": 60, "sum_children": 2} | options
    if "dtype" in options:
        pytest.importorskip("torch")
    if options.get("kernel") == "gpytorch":
        kernels = pytest.importorskip("gpytorch").kernels
        options["kernel"] = kernels.ScaleKernel(kernels.PeriodicKernel())
    model = fitted((X[:120], y[:120]), **options)
    model.finetune(max_iter=5, parameters=parameters)
    noise = np.sqrt(model.noise_at([[0.3], [1.7]]))
    assert noise[1] > 1.5 * noise[0]
    mean, covariance = model.predict(X[:5], return_cov=True)
    std = model.predict(X[:5], return_std=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-4)
    same = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(same.predict(X[:5]), mean, rtol=1e-4)


def test_one_leaf_and_leaves_without_rows_are_no_exception(rows):
    alone = fitted(rows, structure=Leaf(Region.whole(1))).finetune()
    assert alone.leaf_noise_ == pytest.approx(alone.noise_, rel=0.1)  # where fit had put it
    parts = Region.whole(1).split(0, [1.0, 5.0])
    product = Product([Leaf(part) for part in parts], dimension=0, splits=[1.0, 5.0])
    for parameters in ("noise", "all"):
        model = fitted(rows, structure=Sum([Leaf(Region.whole(1)), product]))
        model.finetune(parameters=parameters)
        _, quiet, noisy, empty = np.sqrt(model.leaf_noise_)
        assert noisy > 1.3 * quiet  # the leaf over everything has a say in both
        assert empty == pytest.approx(np.sqrt(model.noise_))
        assert np.isfinite(model.predict([[6.0]])).all()


def test_outputs_are_tuned_each_on_its_own(rows, rng):
    X, y = rows
    other = np.cos(2 * X[:, 0]) + np.where(X[:, 0] < 1, 0.4, 0.04) * rng.normal(size=len(X))
    model = fitted((X, np.column_stack([y, other])), sum_children=2).finetune()
    assert model.leaf_noise_.shape == (len(leaves(model.tree_)), 2)
    noise = np.sqrt(model.noise_at([[0.3], [1.7]]))
    assert noise[1, 0] > 3 * noise[0, 0]
    assert noise[0, 1] > 3 * noise[1, 1]


def test_saving_and_loading_keeps_what_was_tuned(rows, tmp_path):
    model = fitted(rows, weights="gated").finetune(max_iter=3)
    model.save(tmp_path / "tuned.dsmgp")
    same = DSMGPRegressor.load(tmp_path / "tuned.dsmgp")
    np.testing.assert_array_equal(same.leaf_noise_, model.leaf_noise_)
    assert same.summary() == model.summary()
    expected = model.predict_dist(rows[0]).logpdf(rows[1])
    np.testing.assert_allclose(same.predict_dist(rows[0]).logpdf(rows[1]), expected, rtol=1e-9)
    # Tuning goes on from there, not from where fit ended.
    np.testing.assert_allclose(
        same.finetune(max_iter=1).leaf_noise_, model.finetune(max_iter=1).leaf_noise_, rtol=1e-9
    )


# What is refused


def _wrong(n):
    off, low, high = np.eye(n), np.eye(n), np.eye(n)
    off[1, 1], low[0, 1], high[0, 1] = 0.5, -0.1, 1.1
    return off, low, high


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda n: {"similarity": "distance"}, "expected similarity to be one of 'overlap'"),
        (lambda n: {"similarity": np.eye(n + 1)}, r"of shape \({n}, {n}\), .* got shape"),
        (lambda n: {"similarity": lambda leaves: np.ones(n)}, "got shape"),
        (lambda n: {"similarity": lambda leaves: "none"}, "got str"),
        (lambda n: {"similarity": _wrong(n)[0]}, "with itself to be 1, got 0.5 for leaf 1"),
        (lambda n: {"similarity": _wrong(n)[1]}, r"in \[0, 1\], got -0.1"),
        (lambda n: {"similarity": sparse.csr_matrix(_wrong(n)[2])}, r"in \[0, 1\], got 1.1"),
        (lambda n: {"similarity": np.full((n, n), np.nan)}, r"in \[0, 1\], got nan"),
        (lambda n: {"parameters": "period"}, "'outputscale', 'lengthscale', 'noise'.*got 'period'"),
        (lambda n: {"parameters": []}, r"got \[\]"),
        (lambda n: {"parameters": ["noise", "mean"]}, "expected parameters to be 'all' or"),
        (lambda n: {"weights": "gated"}, "expected weights to be one of 'prior', 'posterior'"),
        (lambda n: {"rounds": 0}, "expected rounds to be a whole number"),
        (lambda n: {"max_iter": 1.5}, "expected max_iter to be a whole number"),
    ],
)
def test_bad_input_is_refused_and_leaves_the_model_as_it_was(rows, arguments, message):
    model = fitted(rows, optimizer=None, noise_variance=0.1)
    n = len(leaves(model.tree_))
    before, theta = dict(model.__dict__), model.state_.model.families[0].processes[0].theta
    with pytest.raises(ValueError, match=message.replace("{n}", str(n))):
        model.finetune(**arguments(n))
    assert model.__dict__ == before
    np.testing.assert_array_equal(model.state_.model.families[0].processes[0].theta, theta)


def test_an_interrupt_leaves_the_model_as_it_was(rows, monkeypatch):
    model = fitted(rows).finetune()
    before, table = dict(model.__dict__), model.state_.model.thetas[0].copy()
    expected = model.predict_dist(rows[0]).logpdf(rows[1])

    def interrupted(*_):
        raise KeyboardInterrupt

    for where in ("maximise", "weigh"):
        with monkeypatch.context() as patched:
            patched.setattr(module, where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.finetune(parameters="all")
        assert model.__dict__ == before
        np.testing.assert_array_equal(model.state_.model.thetas[0], table)
        np.testing.assert_array_equal(model.predict_dist(rows[0]).logpdf(rows[1]), expected)


def test_a_fixed_noise_cannot_be_tuned(rows):
    pytest.importorskip("torch")
    from gpytorch.kernels import RBFKernel

    model = fitted(rows, kernel=RBFKernel(), optimizer=None, noise_variance=0.1)
    process = model.state_.model.families[0].processes[0]
    process.modules.likelihood.noise_covar.raw_noise.requires_grad_(False)
    with pytest.raises(ValueError, match="that this model learns"):
        model.finetune()


def test_what_would_take_hours_is_refused_beforehand(rows, monkeypatch):
    model = fitted(rows)
    monkeypatch.setattr(module, "MOST_HOURS", 1e-9)
    with pytest.raises(ValueError, match=r"hours.*similarity='jaccard'"):
        model.finetune(parameters="all")
    model.finetune()  # noise alone is cheap


def test_tuning_before_fit_is_refused():
    with pytest.raises(Exception, match="not fitted"):
        DSMGPRegressor().finetune()


def test_the_other_model_is_not_changed(rows):
    X, _ = rows
    model = fitted(rows).state_.model
    noise = model.leaf_posterior.noise.copy()
    tuned = finetune_model(
        model, similarity="jaccard", parameters="noise", weights="prior", rounds=1, max_iter=20, local_scale=False,
        loo_sample=LOOSample.draw(len(X), 100, np.random.default_rng(0)),
    )  # fmt: skip
    assert model.thetas is None
    np.testing.assert_array_equal(model.leaf_posterior.noise, noise)
    assert np.ptp(tuned.model.leaf_posterior.noise) > 0.01


# Rows that come and go, and noise that is known


@pytest.mark.parametrize("weights", ["posterior", "gated"])
def test_rows_that_come_after_tuning_are_seen_with_their_leaves_own_theta(rows, weights):
    X, y = rows
    model = fitted((X[:200], y[:200]), weights=weights).finetune()
    noise = model.leaf_noise_
    model.partial_fit(X[200:], y[200:], adapt=False)
    distribution = model.predict_dist(X)
    np.testing.assert_array_equal(model.leaf_noise_, noise)
    inner = model.state_.conditioned.model  # all leaves conditioned together
    np.testing.assert_allclose(
        inner.mixture(X).logpdf(y), distribution.logpdf(y), rtol=1e-7, atol=1e-7
    )
    again = model.finetune()
    assert np.ptp(again.leaf_noise_ - noise) > 0  # on the rows of now
    assert len(again.state_.model.thetas[0]) == len(noise)


def test_known_noise_is_not_learned_twice(rng):
    """The right half is measured badly, and it is known how badly: what is left to learn is the same everywhere."""
    X = rng.uniform(0, 2, size=(240, 1))
    known = np.where(X[:, 0] < 1, 0.0, 0.25)
    y = np.sin(3 * X[:, 0]) + np.sqrt(0.01 + known) * rng.normal(size=240)
    model = DSMGPRegressor(
        "rbf", leaf_size=80, sum_children=4, weights="posterior", random_state=0
    ).fit(X, y, noise=known)
    left = np.sqrt(model.finetune().noise_at([[0.4]]))
    assert left == pytest.approx(0.1, rel=0.3)
    assert np.sqrt(model.noise_at([[1.6]])) < 0.3  # and not sqrt(0.26)
