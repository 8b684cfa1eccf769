"""Every baseline against its published formula, by dense algebra on small data; and that those that learn do learn."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsmgp import DSMGPRegressor, Mixture, scores
from dsmgp.baselines import (
    BCM,
    GRBCM,
    KISSGP,
    RBCM,
    SVGP,
    ConstantBaseline,
    ExactGP,
    GPoE,
    LinearBaseline,
    MoE,
    NaiveLocalExperts,
    PoE,
)
from dsmgp.baselines.kiss import _Additive, _grid_posterior, _Grids, _log_evidence, _Moments
from dsmgp.baselines.moe import InputGate, _hold_out, _members, _within
from dsmgp.experts.conditioning import condition
from dsmgp.fitting.training_data import TrainingData, build_family, set_up_leaves
from dsmgp.tree import leaves
from tests.support.oracle import kernel

NOISE = 0.05
LENGTHS = np.array([0.8, 1.7])
K = kernel("rbf", LENGTHS, 1.3)
COMMITTEES = [PoE, GPoE, BCM, RBCM, GRBCM]
ALL = [*COMMITTEES, ExactGP, NaiveLocalExperts, MoE, SVGP, KISSGP, LinearBaseline, ConstantBaseline]


def fixed(**more):
    """Hyperparameters that are given: nothing is learned, and units are the user's."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.from_numpy(LENGTHS)
    kernel.outputscale = torch.tensor(1.3, dtype=torch.float64)
    options = {"kernel": kernel, "noise_variance": NOISE, "optimizer": None, "standardize": False}
    return {**options, "random_state": 0, **more}


def small(cls, **more):
    """An estimator for few rows."""
    sizes = {SVGP: {"n_inducing": 20, "max_iter": 200}, KISSGP: {"grid_size": 20}}
    sizes |= {cls: {} for cls in (ExactGP, LinearBaseline, ConstantBaseline)}
    seeded = {} if cls in (KISSGP, LinearBaseline, ConstantBaseline) else {"random_state": 0}
    return cls(**sizes.get(cls, {"leaf_size": 30}), **seeded, **more)


def gp(X, y, X_test):
    """Mean and variance of f by textbook algebra (R&W eqs. 2.23 and 2.24)."""
    A = K(X, X) + NOISE * np.eye(len(X))
    cross = K(X_test, X)
    variance = np.diag(K(X_test, X_test)) - np.einsum(
        "ij,ji->i", cross, np.linalg.solve(A, cross.T)
    )
    return cross @ np.linalg.solve(A, y), variance


def expert_predictions(model, X, y, X_test):
    """Of each expert by itself."""
    rows = model._posterior.leaf_rows
    predicted = [gp(X[rows[k]], y[rows[k]], X_test) for k in range(len(rows))]
    return np.array([m for m, _ in predicted]), np.array([v for _, v in predicted])


@pytest.fixture
def test_inputs(rng):
    return rng.uniform(-3, 3, size=(25, 2))  # some of them beyond the data


@pytest.mark.parametrize("experts", ["random", "balanced", "paper"])
@pytest.mark.parametrize(
    "model",
    [PoE(), GPoE(), GPoE("entropy"), BCM(), RBCM()],
    ids=["PoE", "GPoE", "GPoE entropy", "BCM", "RBCM"],
)
def test_combines_as_published(model, experts, wavy, test_inputs):
    X, y = wavy
    model = clone(model).set_params(**fixed(experts=experts, leaf_size=25)).fit(X, y)
    m, v = expert_predictions(model, X, y, test_inputs)
    prior = 1.3
    learned = 0.5 * (np.log(prior) - np.log(v))
    beta, prior_power = {
        "PoE": (np.ones_like(v), 0.0),
        "BCM": (np.ones_like(v), 1.0 - len(v)),
        "RBCM": (learned, 1.0 - learned.sum(axis=0)),
        "GPoE": (
            learned / learned.sum(axis=0)
            if getattr(model, "weighting", "") == "entropy"
            else np.full_like(v, 1.0 / len(v)),
            0.0,
        ),
    }[type(model).__name__]
    precision = (beta / v).sum(axis=0) + prior_power / prior
    mean = (beta * m / v).sum(axis=0) / precision
    predicted, std = model.predict(test_inputs, return_std=True)
    np.testing.assert_allclose(predicted, mean, atol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(1.0 / precision + NOISE), atol=1e-8)


def test_grbcm_combines_as_published(wavy, test_inputs):
    X, y = wavy
    model = GRBCM(**fixed(leaf_size=25)).fit(X, y)
    rows = model._posterior.leaf_rows
    shared = set(rows[0])
    assert all(shared < set(rows[k]) for k in range(1, len(rows)))
    others = [row for k in range(1, len(rows)) for row in set(rows[k]) - shared]
    assert sorted([*others, *shared]) == list(range(len(X)))
    m, v = expert_predictions(model, X, y, test_inputs)
    v = v + NOISE
    beta = 0.5 * (np.log(v[0]) - np.log(v[1:]))
    beta[0] = 1.0
    rest = 1.0 - beta.sum(axis=0)
    precision = (beta / v[1:]).sum(axis=0) + rest / v[0]
    mean = ((beta * m[1:] / v[1:]).sum(axis=0) + rest * m[0] / v[0]) / precision
    predicted, std = model.predict(test_inputs, return_std=True)
    np.testing.assert_allclose(predicted, mean, atol=1e-8)
    np.testing.assert_allclose(std, 1.0 / np.sqrt(precision), atol=1e-8)


def test_grbcm_of_two_experts_is_the_exact_gp(wavy, test_inputs):
    X, y = wavy
    predicted = GRBCM(**fixed(leaf_size=60)).fit(X, y).predict(test_inputs, return_std=True)
    whole = ExactGP(**fixed()).fit(X, y).predict(test_inputs, return_std=True)
    np.testing.assert_allclose(predicted, whole, atol=1e-8)


@pytest.mark.parametrize("model", [PoE, GPoE, BCM, GRBCM])
def test_one_expert_is_the_exact_gp(model, wavy, test_inputs):
    X, y = wavy
    predicted = model(**fixed(leaf_size=len(X))).fit(X, y).predict(test_inputs, return_std=True)
    whole = ExactGP(**fixed()).fit(X, y).predict(test_inputs, return_std=True)
    np.testing.assert_allclose(predicted, whole, atol=1e-8)


def test_exact_gp_is_the_textbooks(wavy, test_inputs):
    X, y = wavy
    mean, std = ExactGP(**fixed()).fit(X, y).predict(test_inputs, return_std=True)
    m, v = gp(X, y, test_inputs)
    np.testing.assert_allclose(mean, m, atol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(v + NOISE), atol=1e-8)


def test_exact_gp_learns_on_some_rows_and_knows_all(wavy):
    X, y = wavy
    some = ExactGP(learning_rows=60, random_state=0).fit(X, y)
    assert some._posterior.leaf_rows.sizes.tolist() == [len(X)]
    assert some.noise_ != ExactGP(random_state=0).fit(X, y).noise_


def test_local_experts_answer_for_their_part_alone(wavy, test_inputs):
    X, y = wavy
    model = NaiveLocalExperts(**fixed(leaf_size=25)).fit(X, y)
    mean, std = model.predict(test_inputs, return_std=True)
    for leaf in leaves(model._tree):
        inside = leaf.region.contains(test_inputs)
        m, v = gp(X[leaf.rows], y[leaf.rows], test_inputs[inside])
        np.testing.assert_allclose(mean[inside], m, atol=1e-8)
        np.testing.assert_allclose(std[inside], np.sqrt(v + NOISE), atol=1e-8)


def test_experts_may_be_those_of_a_fitted_mixture(wavy):
    X, y = wavy
    tree = DSMGPRegressor("rbf", leaf_size=30, sum_children=2, random_state=0).fit(X, y).tree_
    model = NaiveLocalExperts(**fixed(experts=tree)).fit(X, y)
    partitions = [sorted(tuple(leaf.rows) for leaf in leaves(part)) for part in tree.children]
    assert sorted(tuple(leaf.rows) for leaf in leaves(model._tree)) in partitions


def test_theta_maximises_the_evidence_of_all_experts(wavy):
    X, y = wavy
    y = (y - y.mean()) / y.std()
    model = PoE(leaf_size=30, random_state=0).fit(X, y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = model._posterior.leaf_rows

    def log_evidence(lengths, scale, noise):
        k = kernel("rbf", lengths, scale)
        return sum(
            multivariate_normal.logpdf(
                y[part], np.zeros(len(part)), k(Z[part], Z[part]) + noise * np.eye(len(part))
            )
            for part in (rows[k] for k in range(len(rows)))
        )

    learned = model.kernel_[0]
    lengths = learned.base_kernel.lengthscale.detach().numpy()[0]
    scale, noise = learned.outputscale.item(), model.noise_[0]
    best = log_evidence(lengths, scale, noise)
    for factor in (0.8, 1.25):
        assert log_evidence(factor * lengths, scale, noise) < best
        assert log_evidence(lengths, scale, factor * noise) < best


def test_rules_that_adopt_experts_answer_as_if_fitted(wavy, test_inputs):
    X, y = wavy
    poe = PoE(leaf_size=30, random_state=0).fit(X, y)
    for model in (BCM, RBCM, GPoE):
        fitted = model(leaf_size=30, random_state=0).fit(X, y).predict(test_inputs)
        np.testing.assert_allclose(model().adopt(poe).predict(test_inputs), fitted)
    assert GPoE("entropy").adopt(GPoE(leaf_size=30).fit(X, y)).weighting == "entropy"
    with pytest.raises(ValueError, match="cannot adopt"):
        GRBCM().adopt(poe)
    with pytest.raises(ValueError, match="not fitted"):
        BCM().adopt(PoE())


def test_linear_baseline_is_least_squares_with_the_inferred_noise(wavy, test_inputs):
    X, y = wavy
    mean, std = LinearBaseline().fit(X, y).predict(test_inputs, return_std=True)
    known = LinearRegression().fit(X, y)
    np.testing.assert_allclose(mean, known.predict(test_inputs))
    residual = y - known.predict(X)
    np.testing.assert_allclose(std, np.sqrt(residual @ residual / (len(y) - 3)))


def test_constant_baseline_is_the_mean(wavy, test_inputs):
    X, y = wavy
    predicted = ConstantBaseline().fit(X, y).predict_dist(test_inputs)
    np.testing.assert_allclose(predicted.mean, y.mean())
    np.testing.assert_allclose(predicted.std, y.std(ddof=1))


# KISS


def dense_ski(model, X, n_dims):
    """GPyTorch's own interpolated kernels, one for each input, added up."""
    total = 0.0
    for d in range(n_dims):
        base = gpytorch.kernels.RBFKernel().double()
        base.lengthscale = model.log_length[d].exp().detach()
        interpolated = gpytorch.kernels.GridInterpolationKernel(
            base, grid_size=model.points.shape[1], grid_bounds=((-1.0, 1.0),)
        ).double()
        interpolated.update_grid([model.points[d, :, 0]])
        total = total + model.log_scale[d].exp() * interpolated(X[:, d : d + 1]).to_dense()
    return total


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of GPyTorch, in the oracle only
def test_kiss_evidence_is_that_of_the_interpolated_kernel(wavy):
    X, y = wavy
    fitted = KISSGP(grid_size=24, max_iter=5, standardize=False).fit(X, y)
    grids = fitted._grids
    model = _Additive("rbf", grids, 1.0)
    with torch.no_grad():
        model.log_length += torch.tensor([0.3, -0.4])
    W = grids.weights(X)
    facts = _Moments(
        torch.from_numpy((W.T @ W).toarray()), torch.from_numpy(W.T @ y), float(y @ y), len(y)
    )
    with torch.no_grad():
        C = dense_ski(model, torch.from_numpy(X), 2).numpy() + float(model.noise) * np.eye(len(y))
    expected = multivariate_normal.logpdf(y, np.zeros(len(y)), C)
    np.testing.assert_allclose(_log_evidence(model, facts).item(), expected, rtol=1e-6)


def test_kiss_predictions_are_those_of_the_interpolated_kernel(wavy, test_inputs):
    X, y = wavy
    grids = _Grids.around(X, 24)
    model = _Additive("rbf", grids, 1.0)
    W, W_test = grids.weights(X), grids.weights(test_inputs)
    facts = _Moments(
        torch.from_numpy((W.T @ W).toarray()), torch.from_numpy(W.T @ y), float(y @ y), len(y)
    )
    mean, half, noise = _grid_posterior(model, facts)
    with torch.no_grad():
        L = torch.block_diag(*model.factor()).numpy()
    K = L @ L.T
    C, cross = W @ K @ W.T + noise * np.eye(len(y)), W @ K @ W_test.T
    np.testing.assert_allclose(W_test @ mean, cross.T @ np.linalg.solve(C, y), atol=1e-9)
    expected = np.diag(W_test @ K @ W_test.T - cross.T @ np.linalg.solve(C, cross))
    np.testing.assert_allclose(np.square(W_test @ half).sum(axis=1), expected, atol=1e-9)


def test_kiss_learns_an_additive_function(rng):
    X = rng.uniform(-2, 2, size=(400, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=400)
    model = KISSGP().fit(X[:300], y[:300])
    predicted = model.predict_dist(X[300:])
    assert scores.rmse(y[300:], predicted.mean) < 0.13
    assert 0.08 < np.median(predicted.std) < 0.13
    assert np.isfinite(model.predict([[9.0, -9.0, 0.0]])).all()  # beyond the grids


# SVGP


def test_svgp_with_a_point_at_every_row_is_close_to_the_exact_gp(rng):
    X = np.linspace(-2, 2, 40)[:, None]
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=40)
    model = SVGP(n_inducing=40, max_iter=400, batch_size=40, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    exact_mean, exact_std = ExactGP(random_state=0).fit(X, y).predict(X, return_std=True)
    np.testing.assert_allclose(mean, exact_mean, atol=0.05)
    np.testing.assert_allclose(std, exact_std, atol=0.03)
    path = model.path_[0]
    assert path[-1] > path[0]


def test_svgp_law_is_titsias_best_for_its_theta_and_points(wavy, test_inputs):
    X, y = wavy
    fitted = SVGP(15, max_iter=400, batch_size=len(y), standardize=False, random_state=0).fit(X, y)
    model = fitted._models[0]
    rows, test, y = (torch.from_numpy(A) for A in (X, test_inputs, y))
    with torch.no_grad():
        points, noise = model.variational_strategy.inducing_points, model.likelihood.noise
        K = model.kernel(points, points).to_dense()
        K = K + 1e-6 * torch.eye(len(K), dtype=K.dtype)  # GPyTorch's jitter
        K_rows, K_test = (model.kernel(points, A).to_dense() for A in (rows, test))
        A = K + K_rows @ K_rows.mT / noise
        mean = K_test.mT @ torch.linalg.solve(A, K_rows @ y) / noise
        known = (K_test * torch.linalg.solve(K, K_test)).sum(0)
        left = (K_test * torch.linalg.solve(A, K_test)).sum(0)
        variance = model.kernel(test, diag=True) - known + left + noise
    predicted = fitted.predict_dist(test_inputs)
    np.testing.assert_allclose(predicted.mean, mean.numpy(), atol=1e-3)
    np.testing.assert_allclose(predicted.var, variance.numpy(), atol=1e-3)


@pytest.mark.parametrize("cls", [SVGP, KISSGP, MoE])
def test_those_that_approximate_beat_a_linear_model(cls, wavy, rng):
    X, y = wavy
    X_test = rng.uniform(-2, 2, size=(200, 2))
    y_test = np.sin(2 * X_test[:, 0]) + 0.5 * X_test[:, 1] + 0.1 * rng.normal(size=200)
    predicted, line = (m.fit(X, y).predict_dist(X_test) for m in (small(cls), LinearBaseline()))
    assert scores.mae(y_test, predicted.mean) < 0.5 * scores.mae(y_test, line.mean)
    assert scores.nlpd(y_test, predicted) < scores.nlpd(y_test, line)


# Mixture of experts


def test_gate_is_bayes_rule(rng):
    Z, expert = rng.normal(size=(60, 3)), np.repeat([0, 1, 2], 20)
    gate = InputGate.of(Z, expert)
    X = rng.normal(size=(7, 3))
    expected = np.stack(
        [
            np.log(1 / 3) + norm.logpdf(X, gate.centre[k], np.sqrt(gate.spread[k])).sum(axis=1)
            for k in range(3)
        ],
        axis=1,
    )
    np.testing.assert_allclose(gate.log_joint(X), expected)
    chosen, log_gate = gate.most_likely(X, 2)
    np.testing.assert_allclose(np.exp(log_gate).sum(axis=1), 1.0)
    assert all(expected[i].argmax() in chosen[i] for i in range(7))


def test_moe_law_is_the_gated_mixture_of_its_experts(wavy, test_inputs):
    X, y = wavy
    model = MoE(**fixed(leaf_size=30, n_reached=99)).fit(X, y)
    m, v = expert_predictions(model, X, y, test_inputs)
    joint = model.gate_.log_joint(test_inputs)
    gate = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)).T
    predicted = model.predict_dist(test_inputs)
    np.testing.assert_allclose(predicted.mean, (gate * m).sum(axis=0), atol=1e-8)
    density = (gate * norm.pdf(0.4, m, np.sqrt(v + NOISE))).sum(axis=0)
    np.testing.assert_allclose(predicted.pdf(0.4), density, rtol=1e-7)


def test_moe_keeps_its_best_sweep(rng):
    # Two curves that cross: k-means over the inputs cannot tell them apart at first.
    X = rng.uniform(-2, 2, size=(300, 2))
    y = np.where(X[:, 1] > 0.3, np.sin(4 * X[:, 0]), -X[:, 0]) + 0.05 * rng.normal(size=300)
    models = {n: MoE(leaf_size=40, n_sweeps=n, random_state=1).fit(X, y) for n in (0, 1, 4)}
    assert models[0].path_ == pytest.approx(models[4].path_[:1])
    assert models[1].path_ == pytest.approx(models[4].path_[:2])
    assert max(models[4].path_) > models[4].path_[0]  # moving rows was worth it
    for model in models.values():  # every row has one expert
        np.testing.assert_array_equal(np.sort(model._posterior.leaf_rows.flat), np.arange(300))


def test_moe_judges_sweeps_by_rows_that_no_expert_has(wavy):
    X, y = wavy
    held, kept = _hold_out(len(X), np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort([*held, *kept]), np.arange(len(X)))
    expert = np.arange(len(kept)) % 4
    some = _members(expert, kept, 2)
    assert sorted(np.concatenate([leaf.rows for leaf in some])) == kept.tolist()
    model = MoE(**fixed(leaf_size=30, n_reached=99))
    config = model._config()
    data = TrainingData.of(X, y[:, None], config)
    family = build_family(model.kernel, data, config)
    gps = set_up_leaves(some, family.leaf_kernels(2), data, config)
    posterior = condition(gps, family.kernel_parameters(2), labels=data.labels)
    gate = InputGate.of(X[kept], expert)
    candidates, joint = model._joint(posterior, data, gate, X, held)
    log_joint = gate.log_joint(X[held])
    for place, row in enumerate(held):
        for k, value in zip(candidates[place], joint[place], strict=True):
            m, v = gp(X[some[k].rows], y[some[k].rows], X[[row]])
            expected = norm.logpdf(y[row], m[0], np.sqrt(v[0] + NOISE))
            expected += log_joint[place, k] - np.logaddexp.reduce(log_joint[place])
            assert value == pytest.approx(expected, abs=1e-7)
    # A row of an expert's own is predicted without itself.
    row = some[2].rows[3]
    others = np.setdiff1d(some[2].rows, row)
    candidates, joint = model._joint(posterior, data, gate, X, np.array([row]))
    m, v = gp(X[others], y[others], X[[row]])
    log_joint = gate.log_joint(X[[row]])[0]
    expected = norm.logpdf(y[row], m[0], np.sqrt(v[0] + NOISE))
    expected += log_joint[2] - np.logaddexp.reduce(log_joint)
    assert joint[0][candidates[0] == 2][0] == pytest.approx(expected, abs=1e-7)


def test_a_full_expert_takes_those_that_gain_most():
    expert, wanted = np.array([0, 0, 1, 1, 1]), np.array([0, 0, 0, 0, 1])
    gain = np.array([1.0, 1.0, 5.0, 2.0, 1.0])
    assert _within(expert, wanted, gain, 3).tolist() == [0, 0, 0, 1, 1]


# The contract of all


@parametrize_with_checks(
    [ConstantBaseline(), LinearBaseline(), GRBCM(leaf_size=10, max_iter=5), KISSGP(12, max_iter=5)]
)
def test_scikit_learns_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        RBCM(leaf_size=10, max_iter=5),
        NaiveLocalExperts(leaf_size=10, max_iter=5),
        ExactGP(max_iter=5),
        MoE(leaf_size=10, max_iter=5),
        SVGP(n_inducing=5, max_iter=100),
    ]
)
def test_scikit_learns_estimator_checks_of_the_others(estimator, check):
    check(estimator)


@pytest.mark.parametrize("cls", ALL)
def test_contract(cls, wavy, rng):
    X, y = wavy
    model = small(cls)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(Exception, match="not fitted"):
        model.predict(X)
    assert model.fit(X, y) is model
    predicted = model.predict_dist(X[:9])
    assert isinstance(predicted, Mixture)
    mean, std = model.predict(X[:9], return_std=True)
    np.testing.assert_allclose(mean, predicted.mean)
    np.testing.assert_allclose(std, predicted.std)
    assert mean.shape == std.shape == (9,)
    again = clone(model).fit(X, y)
    np.testing.assert_allclose(again.predict(X[:9]), mean, atol=1e-6)
    # Two outputs, independent: each is what it is alone.
    Y = np.column_stack([y, X[:, 0]])
    both = clone(model).fit(X, Y).predict_dist(X[:9])
    assert both.mean.shape == (9, 2)
    np.testing.assert_allclose(both.joint_logpdf(Y[:9]).shape, (9,))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 1.9, np.nan, X), y)


@pytest.mark.parametrize("cls", [ExactGP, NaiveLocalExperts, RBCM, KISSGP, LinearBaseline])
def test_units_do_not_matter(cls, wavy):
    X, y = wavy
    mean, std = small(cls).fit(X, y).predict(X[:9], return_std=True)
    scaled = small(cls).fit(10.0 * X - 3.0, 5.0 * y + 7.0)
    far, wide = scaled.predict(10.0 * X[:9] - 3.0, return_std=True)
    np.testing.assert_allclose(far, 5.0 * mean + 7.0, atol=1e-3)
    np.testing.assert_allclose(wide, 5.0 * std, rtol=1e-2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PoE(experts="sorted"), "experts"),
        (NaiveLocalExperts(experts="random"), "no partition"),
        (PoE(leaf_size=0), "leaf_size"),
        (GPoE("loud"), "weighting"),
        (ExactGP(learning_rows=0), "learning_rows"),
        (SVGP(n_inducing=0), "n_inducing"),
        (KISSGP(grid_size=2), "grid_size"),
        (KISSGP(kernel="rq"), "kernel"),
        (MoE(n_sweeps=-1), "n_sweeps"),
        (PoE(kernel="auto"), "kernel"),
    ],
)
def test_what_cannot_be_is_refused(model, message, wavy):
    with pytest.raises(ValueError, match=message):
        model.fit(*wavy)
