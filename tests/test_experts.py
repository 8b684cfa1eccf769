"""GP leaves: evidence, gradients, conditioning, prediction, against scikit-learn and finite differences."""

import gpytorch
import numpy as np
import pytest
import torch
from asking import ask
from gpytorch.constraints import Interval
from gpytorch.kernels import (
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.priors import GammaPrior, NormalPrior
from oracle import kernel as textbook_kernel
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from dsmgp import batched as batched_module
from dsmgp.conditioned import Conditioned
from dsmgp.experts import Experts
from dsmgp.general import General
from dsmgp.grow import grow_balanced
from dsmgp.native import NativeEngine
from dsmgp.notices import FactorisationWarning
from dsmgp.process import KERNELS, build_process
from dsmgp.stationary import Stationary
from dsmgp.tree import Leaf, Product, Region, leaves

NAMED = sorted(KERNELS)


@pytest.fixture(autouse=True, params=["native", "batched"])
def engine(request, monkeypatch):
    """Every test runs with compiled code and with torch."""
    if request.param == "batched":
        monkeypatch.setattr(NativeEngine, "can", staticmethod(lambda X, laws: False))
    return request.param


class Manhattan(RBFKernel):
    """A kernel of the user's own, with a distance of its own."""

    def covar_dist(self, x1, x2, diag=False, square_dist=False, **params):
        d = (x1 - x2).abs().sum(-1) if diag else (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs().sum(-1)
        return d.square() if square_dist else d


GENERAL = {
    "periodic": lambda: PeriodicKernel(),
    "piecewise": lambda: PiecewisePolynomialKernel(q=2),
    "mixture": lambda: SpectralMixtureKernel(num_mixtures=2, ard_num_dims=3),
    "manhattan": lambda: Manhattan(),
    "linear_sum": lambda: ScaleKernel(RBFKernel()) + LinearKernel(),
    "sum": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)) + ScaleKernel(MaternKernel(nu=0.5)),
    "product": lambda: (
        ScaleKernel(PeriodicKernel(active_dims=[0])) * LinearKernel(active_dims=[1, 2])
    ),
    "polynomial": lambda: ScaleKernel(PolynomialKernel(power=2)),
    "matern_parts": lambda: (
        ScaleKernel(MaternKernel(nu=0.5, active_dims=[0]))
        + ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2, active_dims=[1, 2]))
    ),
}
CLOSED = {
    "isotropic": lambda: ScaleKernel(RBFKernel()),
    "bare": lambda: MaternKernel(nu=2.5, ard_num_dims=3),
    "active_dims": lambda: ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=2, active_dims=[0, 2])),
    "constrained": lambda: ScaleKernel(
        RBFKernel(ard_num_dims=3, lengthscale_constraint=Interval(0.05, 8.0)),
        outputscale_prior=GammaPrior(2.0, 1.0),
    ),
    "rq": lambda: ScaleKernel(RQKernel(ard_num_dims=3)),
}


def random_rows(rng, n=70, twins=True):
    """Rows with exact twins and rows 1e-13 apart among them."""
    X = rng.normal(size=(n, 3))
    if twins:
        X[5] = X[6] = X[7]
        X[8] = X[9] + 1e-13
    return X, rng.normal(size=(n, 1))


def build(kernel, mean, X, Y, leaf_size=20, noise=0.05, seed=0):
    process = build_process(kernel, mean, noise, X.shape[1])
    step = np.random.default_rng(seed).normal(scale=0.2, size=len(process.theta))
    process.theta = process.theta + torch.from_numpy(step)
    law = process.law(X.shape[1])
    tree = grow_balanced(X, leaf_sizes=[leaf_size], rng=np.random.default_rng(seed))
    return process, law, Experts(leaves(tree), torch.from_numpy(X), torch.from_numpy(Y), [law])


def central_difference(f, theta, h=3e-4):
    """Sixth-order central differences: at this step rounding and truncation both stay below 1e-9."""
    columns = []
    for k in range(len(theta)):
        e = torch.zeros_like(theta)
        e[k] = h
        d1, d2, d3 = (f(theta + m * e) - f(theta - m * e) for m in (1, 2, 3))
        columns.append((45 * d1 - 9 * d2 + d3) / (60 * h))
    return np.stack(columns, -1)


def assert_gradient_is_right(process, law, experts):
    theta = process.theta

    def evidence(at):
        process.theta = at
        return experts.log_evidence([process.natural(law)]).sum(axis=1)

    expected = central_difference(evidence, theta)
    process.theta = theta
    _, (by_natural,) = experts.log_evidence_and_gradient([process.natural(law)])
    found = np.stack([process.pull_back(law, torch.from_numpy(g)).numpy() for g in by_natural])
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert (np.abs(found - expected) <= 1e-6 * scale).all()


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("kernel", NAMED)
@pytest.mark.parametrize("twins", [False, True])
def test_closed_form_gradients_equal_finite_differences(rng, kernel, mean, twins):
    process, law, experts = build(kernel, mean, *random_rows(rng, twins=twins))
    assert isinstance(law, Stationary)
    assert_gradient_is_right(process, law, experts)


@pytest.mark.parametrize("name", sorted(CLOSED))
def test_gpytorch_kernels_with_a_closed_form_use_it(rng, name):
    process, law, experts = build(CLOSED[name](), "constant", *random_rows(rng))
    assert isinstance(law, Stationary)
    assert_gradient_is_right(process, law, experts)


@pytest.mark.parametrize("mean", ["zero", "linear"])
@pytest.mark.parametrize("name", sorted(GENERAL))
def test_autograd_gradients_equal_finite_differences(rng, name, mean):
    process, law, experts = build(GENERAL[name](), mean, *random_rows(rng))
    assert isinstance(law, General)
    assert_gradient_is_right(process, law, experts)


def test_a_mean_of_the_users_own_goes_through_autograd(rng):
    class Quadratic(gpytorch.means.Mean):
        def __init__(self):
            super().__init__()
            self.register_parameter("a", torch.nn.Parameter(torch.tensor(0.3)))

        def forward(self, x):
            return self.a * x.square().sum(-1)

    process, law, experts = build("matern12", Quadratic(), *random_rows(rng))
    assert isinstance(law, General)
    assert_gradient_is_right(process, law, experts)


@pytest.mark.parametrize("kernel", NAMED)
def test_both_laws_agree_on_the_same_kernel(rng, kernel):
    X, Y = random_rows(rng)
    process, law, experts = build(kernel, "linear", X, Y)
    general = General(process)
    other = Experts(
        [Leaf(Region.whole(3), experts.leaf_rows[k]) for k in range(experts.n_leaves)],
        experts.X,
        experts.Y,
        [general],
    )
    evidence, (by_natural,) = experts.log_evidence_and_gradient([process.natural(law)])
    expected, (by_theta,) = other.log_evidence_and_gradient([process.natural(general)])
    np.testing.assert_allclose(evidence, expected, rtol=1e-10)
    found = [process.pull_back(law, torch.from_numpy(g)).numpy() for g in by_natural]
    np.testing.assert_allclose(found, by_theta, rtol=1e-7, atol=1e-8)
    test = torch.from_numpy(rng.normal(size=(9, 3)))
    for (m1, v1), (m2, v2) in zip(
        ask(Conditioned(experts, [process.natural(law)]), [(0, test)]),
        ask(Conditioned(other, [process.natural(general)]), [(0, test)]),
        strict=True,
    ):
        torch.testing.assert_close(m1, m2, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(v1, v2, rtol=1e-8, atol=1e-9)


SKLEARN = {
    "rbf": lambda ell: sk.RBF(ell),
    "matern12": lambda ell: sk.Matern(ell, nu=0.5),
    "matern32": lambda ell: sk.Matern(ell, nu=1.5),
    "matern52": lambda ell: sk.Matern(ell, nu=2.5),
}


@pytest.mark.parametrize("kernel", sorted(SKLEARN))
def test_one_leaf_is_scikit_learns_gp(rng, kernel):
    X, Y = rng.normal(size=(80, 3)), rng.normal(size=(80, 1))
    process = build_process(kernel, "zero", 0.07, 3)
    ell = np.array([0.7, 1.3, 2.0])
    process.kernel.base_kernel.lengthscale = torch.from_numpy(ell)
    process.kernel.outputscale = torch.tensor(1.7, dtype=torch.float64)
    law = process.law(3)
    experts = Experts(
        [Leaf(Region.whole(3), np.arange(80))], torch.from_numpy(X), torch.from_numpy(Y), [law]
    )
    conditioned = Conditioned(experts, [process.natural(law)])
    oracle = GaussianProcessRegressor(1.7 * SKLEARN[kernel](ell), alpha=0.07, optimizer=None)
    oracle.fit(X, Y[:, 0])
    X_test = rng.normal(size=(30, 3))
    mean, covariance = oracle.predict(X_test, return_cov=True)
    ((found_mean, found_variance),) = ask(conditioned, [(0, torch.from_numpy(X_test))])
    joint_mean, joint_covariance = conditioned.joint(0, torch.from_numpy(X_test))
    assert conditioned.log_evidence[0, 0] == pytest.approx(
        oracle.log_marginal_likelihood(), abs=1e-8
    )
    np.testing.assert_allclose(found_mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(found_variance[:, 0], np.diag(covariance), atol=1e-8)
    np.testing.assert_allclose(joint_mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(joint_covariance[0], covariance, atol=1e-8)


def test_rational_quadratic_is_its_textbook_formula(rng):
    X = rng.normal(size=(20, 2))
    process = build_process("rq", "zero", 0.1, 2)
    process.kernel.base_kernel.alpha = torch.tensor(0.6, dtype=torch.float64)
    bound = process.law(2).bind(process.natural(process.law(2)).detach())
    ell = process.kernel.base_kernel.lengthscale.detach().numpy()
    expected = textbook_kernel("rq", ell, 1.0, alpha=0.6)(X, X)
    found = bound.cross(torch.from_numpy(X)[None], torch.from_numpy(X)[None])[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("kernel", NAMED)
def test_leaves_together_give_what_each_gives_alone(rng, kernel, monkeypatch):
    """Leaves of very different size in one call; in torch, padding changes nothing."""
    X, Y = random_rows(rng, 90)
    bounds = [0, 3, 40, 90]
    parts = Region.whole(3).split(0, [-1.0, 1.0])
    some = [
        Leaf(p, np.arange(a, b)) for p, a, b in zip(parts, bounds[:-1], bounds[1:], strict=True)
    ]
    process = build_process(kernel, "constant", 0.05, 3)
    law = process.law(3)
    monkeypatch.setattr(batched_module, "MOST_PADDING", 1.0)
    together = Experts(some, torch.from_numpy(X), torch.from_numpy(Y), [law])
    assert len(together.groups) == 1
    natural = [process.natural(law)]
    evidence, gradient = together.log_evidence_and_gradient(natural)
    test = torch.from_numpy(X[:4])
    answers = ask(Conditioned(together, natural), [(k, test) for k in range(3)])
    for k, leaf in enumerate(some):
        alone = Experts([leaf], torch.from_numpy(X), torch.from_numpy(Y), [law])
        e, g = alone.log_evidence_and_gradient(natural)
        np.testing.assert_allclose(evidence[k], e[0], rtol=1e-12)
        np.testing.assert_allclose(gradient[0][k], g[0][0], rtol=1e-9, atol=1e-10)
        ((mean, variance),) = ask(Conditioned(alone, natural), [(0, test)])
        torch.testing.assert_close(answers[k][0], mean, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(answers[k][1], variance, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_padding_changes_nothing_for_heavy_tails(rng, alpha, dtype, monkeypatch):
    X = torch.from_numpy(rng.normal(size=(60, 2))).to(dtype)
    Y = torch.from_numpy(rng.normal(size=(60, 1))).to(dtype)
    parts = Region.whole(2).split(0, [0.0])
    some = [Leaf(parts[0], np.arange(32)), Leaf(parts[1], np.arange(32, 60))]
    process = build_process("rq", "zero", 0.1, 2)
    process.kernel.base_kernel.alpha = alpha
    law = process.law(2)
    monkeypatch.setattr(batched_module, "MOST_PADDING", 1.0)
    _, (together,) = Experts(some, X, Y, [law]).log_evidence_and_gradient([process.natural(law)])
    for k, leaf in enumerate(some):
        _, (alone,) = Experts([leaf], X, Y, [law]).log_evidence_and_gradient([process.natural(law)])
        tolerance = 1e-9 if dtype == torch.float64 else 1e-2
        np.testing.assert_allclose(together[k], alone[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", sorted(SKLEARN))
def test_a_row_far_away_costs_the_others_no_digits(rng, kernel):
    X = rng.normal(size=(40, 3))
    X[7, 1] = 1e7
    Y = rng.normal(size=(40, 1))
    process = build_process(kernel, "zero", 1e-3, 3)
    law = process.law(3)
    ell = process.kernel.base_kernel.lengthscale.detach().numpy()[0]
    experts = Experts(
        [Leaf(Region.whole(3), np.arange(40))], torch.from_numpy(X), torch.from_numpy(Y), [law]
    )
    conditioned = Conditioned(experts, [process.natural(law)])
    oracle = GaussianProcessRegressor(1.0 * SKLEARN[kernel](ell), alpha=1e-3, optimizer=None)
    oracle.fit(X, Y[:, 0])
    X_test = np.vstack([rng.normal(size=(5, 3)), [[1e8, 0, 0]]])
    mean, covariance = oracle.predict(X_test, return_cov=True)
    found_mean, found_covariance = conditioned.joint(0, torch.from_numpy(X_test))
    assert conditioned.log_evidence[0, 0] == pytest.approx(
        oracle.log_marginal_likelihood(), abs=1e-5
    )
    np.testing.assert_allclose(found_mean[:, 0], mean, atol=1e-6)
    np.testing.assert_allclose(found_covariance[0], covariance, atol=1e-6)


def test_bare_kernels_get_an_output_scale():
    for bare in (RBFKernel(), PeriodicKernel(), PiecewisePolynomialKernel(q=1)):
        assert isinstance(build_process(bare, "zero", 0.1, 3).kernel, ScaleKernel)
    own = build_process(LinearKernel(), "zero", 0.1, 3).kernel
    assert isinstance(own, LinearKernel)


def test_a_kernels_own_distance_is_kept(rng):
    process = build_process(Manhattan(), "zero", 0.1, 3)
    X = torch.from_numpy(rng.normal(size=(1, 6, 3)))
    law = process.law(3)
    K, _ = law.bind(process.natural(law)).covariance(X, torch.ones(1, 6, dtype=torch.bool))
    torch.testing.assert_close(K, process.kernel(X).to_dense())


def test_per_leaf_hyperparameters_equal_separate_leaves(rng):
    """A batch may carry one natural vector per leaf."""
    X = torch.from_numpy(rng.normal(size=(2, 15, 3)))
    mask = torch.ones(2, 15, dtype=torch.bool)
    process = build_process("matern32", "zero", 0.1, 3)
    law = process.law(3)
    naturals = torch.stack([process.natural(law).detach() * f for f in (0.5, 1.5)])
    K, _ = law.bind(naturals).covariance(X, mask)
    for leaf in range(2):
        alone, _ = law.bind(naturals[leaf]).covariance(X[leaf : leaf + 1], mask[:1])
        torch.testing.assert_close(K[leaf], alone[0])


def test_an_empty_leaf_has_evidence_one_and_predicts_its_prior(rng):
    X, Y = rng.normal(size=(10, 1)), rng.normal(size=(10, 1))
    left, right = Region.whole(1).split(0, [100.0])
    tree = Product([Leaf(left, np.arange(10)), Leaf(right, np.arange(0))], 0, [100.0])
    process = build_process("rbf", "constant", 0.1, 1)
    process.mean.constant = 0.4
    law = process.law(1)
    experts = Experts(leaves(tree), torch.from_numpy(X), torch.from_numpy(Y), [law])
    evidence, (gradient,) = experts.log_evidence_and_gradient([process.natural(law)])
    assert evidence[1, 0] == 0.0
    assert not gradient[1].any()
    conditioned = Conditioned(experts, [process.natural(law)])
    ((mean, variance),) = ask(conditioned, [(1, torch.full((2, 1), 101.0).double())])
    np.testing.assert_allclose(mean[:, 0], 0.4)
    np.testing.assert_allclose(variance[:, 0], 1.0)


def test_factors_beyond_the_memory_limit_are_made_again(rng):
    X, Y = random_rows(rng, 100)
    process, law, experts = build("matern52", "zero", X, Y)
    natural = [process.natural(law)]
    kept, made = Conditioned(experts, natural), Conditioned(experts, natural, memory=10_000)
    groups = range(len(experts.groups))
    assert all(kept.factors.keeps(k) for k in groups)
    assert not all(made.factors.keeps(k) for k in groups)
    test = torch.from_numpy(rng.normal(size=(6, 3)))
    tasks = [(k, test) for k in range(experts.n_leaves)]
    for (m1, v1), (m2, v2) in zip(ask(kept, tasks), ask(made, tasks), strict=True):
        assert torch.equal(m1, m2)
        assert torch.equal(v1, v2)


def test_means_alone_equal_means_with_variances(rng):
    X, Y = random_rows(rng)
    process, law, experts = build("rbf", "linear", X, Y)
    conditioned = Conditioned(experts, [process.natural(law)])
    test = torch.from_numpy(rng.normal(size=(6, 3)))
    ((mean, none),) = ask(conditioned, [(0, test)], with_variance=False)
    ((expected, _),) = ask(conditioned, [(0, test)])
    assert torch.equal(mean, expected)
    assert none.numel() == 0


def test_the_jitter_ladder_warns_and_names_the_leaf(rng):
    X = np.repeat(rng.normal(size=(4, 2)), 5, axis=0)
    process = build_process("rbf", "zero", 1e-18, 2, noise_floor=1e-18)
    law = process.law(2)
    experts = Experts(
        [Leaf(Region.whole(2), np.arange(20))],
        torch.from_numpy(X),
        torch.from_numpy(rng.normal(size=(20, 1))),
        [law],
    )
    with pytest.warns(
        FactorisationWarning, match=r"covariance of leaf 0 \(20 rows\).*raise noise_variance"
    ):
        conditioned = Conditioned(experts, [process.natural(law)])
    assert np.isfinite(conditioned.log_evidence).all()


def test_hyperparameters_out_of_range_give_no_number_and_conditioning_says_so(rng):
    X, Y = random_rows(rng)
    process, law, experts = build("rbf", "zero", X, Y)
    natural = [process.natural(law).detach() * torch.nan]
    evidence, _ = experts.log_evidence_and_gradient(natural)
    assert np.isnan(evidence).all()
    with pytest.raises(ValueError, match="could not be factorised"):
        Conditioned(experts, natural)


def test_float32_agrees_with_float64_to_its_precision(rng):
    X, Y = random_rows(rng)
    process, law, experts = build("matern52", "zero", X, Y, noise=0.1)
    single = Experts(
        [Leaf(Region.whole(3), experts.leaf_rows[k]) for k in range(experts.n_leaves)],
        experts.X.float(),
        experts.Y.float(),
        [law],
    )
    natural = [process.natural(law)]
    evidence, (gradient,) = experts.log_evidence_and_gradient(natural)
    evidence32, (gradient32,) = single.log_evidence_and_gradient(natural)
    np.testing.assert_allclose(evidence32, evidence, rtol=1e-4)
    np.testing.assert_allclose(gradient32, gradient, rtol=1e-2, atol=1e-2)


def test_priors_add_their_log_density_and_gradient():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=GammaPrior(3.0, 2.0)))
    mean = gpytorch.means.ConstantMean(constant_prior=NormalPrior(0.0, 0.5))
    process = build_process(kernel, mean, 0.1, 2)
    process.theta = process.theta + 0.3
    theta = process.theta
    value, gradient = process.log_prior()
    lengthscale = process.kernel.base_kernel.lengthscale.detach()
    expected = GammaPrior(3.0, 2.0).log_prob(lengthscale).sum() + NormalPrior(0.0, 0.5).log_prob(
        process.mean.constant.detach()
    )
    assert value == pytest.approx(float(expected), rel=1e-6)

    def log_prior(at):
        process.theta = at
        return np.array(process.log_prior()[0])

    np.testing.assert_allclose(gradient, central_difference(log_prior, theta), rtol=1e-6, atol=1e-8)


def test_parameters_that_are_frozen_stay_out_of_theta():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    process = build_process(kernel, "zero", 0.1, 2)
    assert len(process.theta) == 2  # output scale and noise
    assert len(process.pull_back(process.law(2), torch.ones(4))) == 2


def test_what_is_passed_in_is_not_changed():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    process = build_process(kernel, "zero", 0.1, 2)
    process.theta = process.theta + 1.0
    for name, value in kernel.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("kernel", "mean", "message"),
    [
        ("gauss", "zero", "unknown kernel 'gauss': expected one of 'rbf'"),
        (3, "zero", "or a gpytorch kernel, got 3"),
        ("rbf", "quadratic", "unknown mean 'quadratic': expected one of 'zero'"),
        ("rbf", 1.0, "or a gpytorch mean, got 1.0"),
        (ScaleKernel(RBFKernel(ard_num_dims=5)), "zero", "inputs with 3 columns"),
        (ScaleKernel(RBFKernel(active_dims=[7])), "zero", "active_dims"),
        ("rbf", gpytorch.means.LinearMean(9), "mean cannot be evaluated on inputs with 3 columns"),
        (ScaleKernel(RBFKernel(batch_shape=torch.Size([2]))), "zero", "no batch shape"),
    ],
)
def test_kernels_and_means_that_do_not_fit_are_refused(kernel, mean, message):
    with pytest.raises(ValueError, match=message):
        build_process(kernel, mean, 0.1, 3)


@pytest.mark.parametrize("noise", [0.0, -1.0, np.nan, np.inf])
def test_noise_must_be_positive(noise):
    with pytest.raises(ValueError, match="noise_variance to be a positive number"):
        build_process("rbf", "zero", noise, 3)


def test_batches_keep_to_the_memory_they_are_given(rng):
    X, Y = random_rows(rng, 400)
    law = Stationary("rbf", (0, 1, 2), "zero")
    leaves = [Leaf(Region.whole(3), rows) for rows in np.arange(400).reshape(20, 20)]
    natural = [torch.tensor([1.0, 1.0, 1.0, 1.0, 0.1], dtype=torch.float64)]
    X, Y = torch.as_tensor(X), torch.as_tensor(Y)
    free, tight = (
        Experts(leaves, X, Y, [law], engine=batched_module.BatchedEngine, memory=memory)
        for memory in (np.inf, 8 * batched_module.WORKING_ARRAYS * 3 * 20**2)
    )
    assert len(free.groups) == 1
    assert [len(group) for group in tight.groups] == [3] * 6 + [2]
    np.testing.assert_allclose(free.log_evidence(natural), tight.log_evidence(natural), rtol=1e-12)
