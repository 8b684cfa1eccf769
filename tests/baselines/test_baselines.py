"""Baselines in NumPy against their published formulas, by dense algebra on small data; none of them needs torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsmgp import DSMGPRegressor, baselines
from dsmgp._util import machine
from dsmgp.baselines import (
    BCM,
    GRBCM,
    RBCM,
    ConstantBaseline,
    ExactGP,
    GPoE,
    LinearBaseline,
    MoE,
    NaiveLocalExperts,
    PoE,
)
from dsmgp.baselines.moe import InputGate, _hold_out, _members, _within
from dsmgp.experts.conditioning import condition
from dsmgp.fitting.rows.leaf_setup import build_family, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.tree import leaves
from tests.baselines.contract import beats_a_linear_model, holds_its_contract, ignores_units
from tests.support.oracle import kernel

NOISE = 0.05
LENGTHS = np.array([0.8, 1.7])
K = kernel("rbf", LENGTHS, 1.3)
COMMITTEES = [PoE, GPoE, BCM, RBCM, GRBCM]
ALL = [*COMMITTEES, ExactGP, NaiveLocalExperts, MoE, LinearBaseline, ConstantBaseline]


def fixed(**more):
    """Hyperparameters that are given: nothing is learned, and units are the user's."""
    kernel = Kernel((KernelTerm("rbf", LENGTHS, 1.3),))
    options = {"kernel": kernel, "noise_variance": NOISE, "optimizer": None, "standardize": False}
    return {**options, "random_state": 0, **more}


def small(cls, **more):
    """An estimator for few rows."""
    sizes = {cls: {} for cls in (ExactGP, LinearBaseline, ConstantBaseline)}
    seeded = {} if cls in (LinearBaseline, ConstantBaseline) else {"random_state": 0}
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
    lengths, scale, noise = learned.lengthscale, learned.outputscale, model.noise_[0]
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


# Mixture of experts


def test_moe_beats_a_linear_model(wavy, rng):
    beats_a_linear_model(small(MoE), *wavy, rng)


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
    data = ScaledRows.of(X, y[:, None], config)
    family = build_family(model.kernel, data, config)
    gps = set_up_leaves(some, family.leaf_kernels, data, config)
    posterior = condition(gps, family.kernel_parameters, leave_out=True)
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


@parametrize_with_checks([ConstantBaseline(), LinearBaseline(), GRBCM(leaf_size=10, max_iter=5)])
def test_scikit_learns_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        RBCM(leaf_size=10, max_iter=5),
        NaiveLocalExperts(leaf_size=10, max_iter=5),
        ExactGP(max_iter=5),
        MoE(leaf_size=10, max_iter=5),
    ]
)
def test_scikit_learns_estimator_checks_of_the_others(estimator, check):
    check(estimator)


@pytest.mark.parametrize("cls", ALL)
def test_contract(cls, wavy):
    holds_its_contract(small(cls), *wavy)


@pytest.mark.parametrize("cls", [ExactGP, NaiveLocalExperts, RBCM, LinearBaseline])
def test_units_do_not_matter(cls, wavy):
    ignores_units(small(cls), *wavy)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PoE(experts="sorted"), "experts"),
        (NaiveLocalExperts(experts="random"), "no partition"),
        (PoE(leaf_size=0), "leaf_size"),
        (GPoE("loud"), "weighting"),
        (ExactGP(learning_rows=0), "learning_rows"),
        (MoE(n_sweeps=-1), "n_sweeps"),
        (PoE(kernel="auto"), "kernel"),
    ],
)
def test_what_cannot_be_is_refused(model, message, wavy):
    with pytest.raises(ValueError, match=message):
        model.fit(*wavy)


def test_tables_are_read_as_by_the_estimator(wavy):
    pd = pytest.importorskip("pandas")
    X, y = wavy[0][:, :1], wavy[1]
    table = pd.DataFrame({"x": X[:, 0], "day": pd.Timestamp("2020"), "colour": "red"})
    model = LinearBaseline().fit(table[["x"]], pd.Series(y))
    assert model.feature_names_in_.tolist() == ["x"]
    np.testing.assert_array_equal(
        model.predict(table[["x"]]), LinearBaseline().fit(X, y).predict(X)
    )
    for name, kind in (("day", "dates"), ("colour", "text")):
        refused = f"column '{name}' of X holds {kind} .* in row 0.; expected numbers"
        with pytest.raises(ValueError, match=refused):
            LinearBaseline().fit(table[["x", name]], y)
    with pytest.raises(ValueError, match="column 1 of X holds text"):
        LinearBaseline().fit(table[["x", "colour"]].to_numpy(), y)
    with pytest.raises(ValueError, match="minimum of 2"):
        LinearBaseline().fit(table[["x"]][:1], y[:1])
    with pytest.raises(ValueError, match="X contains NaN in row 3"):
        model.predict(table[["x"]].assign(x=[0.0, 0.0, 0.0, np.nan] + [0.0] * (len(y) - 4)))


# Without torch


def test_torch_is_loaded_for_those_only_that_need_it():
    code = """
import sys
import numpy as np
from dsmgp import baselines
X = np.linspace(0, 1, 40)[:, None]
for cls in (baselines.ExactGP, baselines.NaiveLocalExperts, baselines.MoE, baselines.RBCM, baselines.GRBCM):
    cls(random_state=0).fit(X, X[:, 0]).predict(X)
dir(baselines), baselines.__all__
assert not {"torch", "gpytorch"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["KISSGP", "SVGP"])
def test_without_torch_the_remedy_is_named(name, monkeypatch):
    monkeypatch.delitem(vars(baselines), name, raising=False)
    monkeypatch.setattr(machine, "has_torch", lambda: False)
    with pytest.raises(
        ImportError, match=rf"^dsmgp.baselines.{name} needs torch .*dsmgp\[torch\]'$"
    ):
        getattr(baselines, name)


def test_all_names_are_listed():
    assert set(baselines.__all__) <= set(dir(baselines))
    with pytest.raises(AttributeError, match="has no attribute 'Oracle'"):
        _ = baselines.Oracle
