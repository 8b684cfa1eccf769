"""Rows that come and go: the same as conditioning on the rows that are there, in any order and any batches."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from dsmgp import DSMGPRegressor
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.online.posterior import OnlineLeafPosterior
from dsmgp.experts.posterior import InMemoryLeafPosterior
from dsmgp.tree import leaves


def made(rng, n=260, outputs=1, dims=2):
    X = rng.uniform(-2, 2, size=(n, dims))
    f = np.stack([np.sin(2 * X[:, 0] + k) + 0.5 * X[:, -1] for k in range(outputs)], axis=1)
    y = f + 0.1 * rng.normal(size=f.shape)
    return X, y[:, 0] if outputs == 1 else y


def fitted(X, y, **options):
    settings = {"leaf_size": [25, 50], "kernel": "matern32", "max_iter": 8, "random_state": 0}
    return DSMGPRegressor(**settings | options).fit(X, y)


def all_at_once(model, X, y, noise=None):
    """Conditioning on rows, at the tree, the units, theta and gate of a model, by no code of updates.

    A fit on the tree itself; the units are those the model was fitted with.
    """
    from dsmgp.experts.points import equal_rows
    from dsmgp.tree.routing import place

    full = model.state_.model
    base = full.leaf_posterior
    tree = place(full.tree, X, replace_rows=True)
    Y = y.reshape(len(y), -1)
    known = None
    if noise is not None:
        known = noise.reshape(len(y), -1) / np.diag(full.outputs.loading) ** 2
    leaf_gps = InMemoryLeafGPs(
        leaves(tree),
        LeafData(
            full.inputs.to_experts(X),
            full.outputs.to_experts(Y),
            known_noise=known,
            labels=equal_rows(X),
        ),
        base.leaf_gps.kernels,
        dtype=base.leaf_gps.dtype,
    )
    posterior = condition(leaf_gps, base.kernel_parameters, leave_out=True)
    scales = posterior.leave_one_out().scales if model.state_.local_scale else full.scales
    return replace(full, tree=tree, leaf_posterior=posterior, scales=scales)


def same(model, expected, X_test, rtol=1e-8):
    for got, wanted in zip(
        model.state_.model.moments(X_test), expected.moments(X_test), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol)
    assert model.log_marginal_likelihood_ == pytest.approx(expected.log_evidence, rel=rtol)
    np.testing.assert_allclose(model.state_.model.scales, expected.scales, rtol=rtol)
    y = np.zeros((len(X_test), expected.outputs.n_outputs))
    distributions = [
        m.mixture(X_test, squeeze=False).joint_logpdf(y) for m in (model.state_.model, expected)
    ]
    np.testing.assert_allclose(*distributions, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("weights", ["gated", "posterior", "uniform"])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("batches", [[60], [1] * 60, [7, 30, 1, 22]])
def test_new_rows_in_any_batches(rng, weights, outputs, batches):
    X, y = made(rng, outputs=outputs)
    model = fitted(X[:200], y[:200], weights=weights)
    first = 200
    for n in batches:
        model.partial_fit(X[first : first + n], y[first : first + n], adapt=False)
        first += n
    same(model, all_at_once(model, X, y), rng.uniform(-2.5, 2.5, size=(40, 2)))
    assert isinstance(
        model.state_.model.leaf_posterior, OnlineLeafPosterior
    )  # nothing was started over


def test_the_order_of_rows_does_not_matter(rng):
    X, y = made(rng)
    test = rng.uniform(-2.5, 2.5, size=(40, 2))
    answers = []
    for order in (np.arange(200, 260), rng.permutation(np.arange(200, 260))):
        model = fitted(X[:200], y[:200]).partial_fit(X[order], y[order], adapt=False)
        answers.append(model.predict(test, return_std=True))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-9)


@pytest.mark.parametrize("weights", ["gated", "posterior"])
def test_forgotten_rows_were_never_there(rng, weights):
    X, y = made(rng)
    model = fitted(X, y, weights=weights)
    gone = rng.permutation(260)[:90]
    for part in np.array_split(gone, 4):
        model.forget(part, adapt=False)
    kept = np.delete(np.arange(260), gone)
    np.testing.assert_array_equal(model.row_ids_, kept)
    same(model, all_at_once(model, X[kept], y[kept]), rng.uniform(-2.5, 2.5, size=(40, 2)))


def test_a_window_slides(rng):
    X, y = made(rng, n=600)
    model = fitted(X[:200], y[:200])
    for first in range(200, 600, 20):
        model.partial_fit(X[first : first + 20], y[first : first + 20], adapt=False)
        model.forget(model.row_ids_[:20], adapt=False)
    np.testing.assert_array_equal(model.row_ids_, np.arange(400, 600))
    same(model, all_at_once(model, X[400:], y[400:]), rng.uniform(-2.5, 2.5, size=(40, 2)), 1e-7)


def test_leaves_may_start_and_end_empty(rng):
    X, y = made(rng)
    left = X[:, 0] < 0
    model = fitted(X, y)
    model.forget(np.flatnonzero(left), adapt=False)
    same(model, all_at_once(model, X[~left], y[~left]), X[:30])
    model.partial_fit(X[left], y[left], adapt=False)
    together = np.r_[np.flatnonzero(~left), np.flatnonzero(left)]
    same(model, all_at_once(model, X[together], y[together]), X[:30])
    np.testing.assert_array_equal(model.row_ids_[-left.sum() :], 260 + np.arange(left.sum()))


def test_duplicate_rows_and_known_noise(rng):
    X, y = made(rng)
    X[200:230] = X[:30]
    noise = rng.choice([0.0, 0.01, 0.3], size=260)
    settings = {"leaf_size": [25, 50], "kernel": "matern32", "max_iter": 8, "random_state": 0}
    model = DSMGPRegressor(**settings).fit(X[:200], y[:200], noise=noise[:200])
    model.partial_fit(X[200:], y[200:], noise=noise[200:], adapt=False)
    same(model, all_at_once(model, X, y, noise), rng.uniform(-2.5, 2.5, size=(40, 2)))
    plain = DSMGPRegressor(**settings).fit(X[:200], y[:200])
    plain.partial_fit(X[200:], y[200:], noise=noise[200:], adapt=False)
    same(plain, all_at_once(plain, X, y, np.r_[np.zeros(200), noise[200:]]), X[:30])


@pytest.mark.parametrize("options", [
    {"kernel": "gpytorch", "leaf_size": 60, "max_iter": 3},
    {"kernel": "rbf+periodic", "leaf_size": 60, "max_iter": 3},
    {"kernel": "rq", "leaf_size": 60, "max_iter": 3},
    {"mean": "linear", "leaf_size": 60},
    {"structure": "paper", "leaf_size": 60},
    {"leaf_size": 300},
])  # fmt: skip
def test_other_kernels_means_and_structures(rng, options):
    if options.get("kernel") == "gpytorch":
        kernels = pytest.importorskip("gpytorch").kernels
        trend = kernels.ScaleKernel(kernels.RBFKernel()) + kernels.LinearKernel()
        options = options | {"kernel": trend}
    X, y = made(rng)
    model = fitted(X[:200], y[:200], **options).partial_fit(X[200:], y[200:], adapt=False)
    model.forget(np.arange(10, 40), adapt=False)
    kept = np.delete(np.arange(260), np.arange(10, 40))
    same(model, all_at_once(model, X[kept], y[kept]), X[:30])


def test_joint_distributions_follow(rng):
    X, y = made(rng)
    model = fitted(X[:200], y[:200]).partial_fit(X[200:], y[200:], adapt=False)
    expected = all_at_once(model, X, y)
    test = rng.uniform(-2, 2, size=(12, 2))
    for got, wanted in zip(
        model.state_.model.covariance(test), expected.covariance(test), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)


def test_scores_tree_and_summary_follow(rng):
    X, y = made(rng)
    model = fitted(X[:200], y[:200])
    before = model.loo_score_
    model.partial_fit(X[200:], y[200:] + 3.0, adapt=False)
    state, mean = model.state_, model.predict(X[:20])
    assert model.loo_score_ > before + 0.1  # rows that fit badly
    conditioned = state.conditioned
    assert isinstance(conditioned.model.leaf_posterior, InMemoryLeafPosterior)
    np.testing.assert_allclose(conditioned.model.mean(X[:20])[:, 0], mean, rtol=1e-8)
    own = np.concatenate([leaf.rows for leaf in leaves(model.tree_.children[0])])
    np.testing.assert_array_equal(np.sort(own), np.arange(260))
    assert "260" in model.summary()
    # Reading changes nothing, and conditions all leaves once only.
    assert model.state_ is state
    assert state.conditioned is conditioned
    np.testing.assert_array_equal(model.predict(X[:20]), mean)


def test_reading_the_tree_after_updates_conditions_no_leaf_again(rng, monkeypatch):
    X, y = made(rng)
    model = fitted(X[:200], y[:200], weights="posterior").partial_fit(X[200:], y[200:], adapt=False)
    monkeypatch.setattr(InMemoryLeafGPs, "condition", None)  # any conditioning would fail
    state = model.state_
    for part in model.tree_.children:
        rows = np.concatenate([leaf.rows for leaf in leaves(part)])
        np.testing.assert_array_equal(np.sort(rows), np.arange(260))
    assert model.tree_ is model.tree_
    assert model.tree_ in model.posterior_weights_
    assert model.split_posterior(0).expected > 0
    assert model.leaf_noise_.shape == (len(leaves(model.tree_)),)
    model.plot_tree()
    model.plot_splits()
    assert model.state_ is state


def test_what_is_due_is_done_and_does_not_depend_on_batches(rng):
    X, y = made(rng, n=520)
    X[200:, 0] = rng.uniform(2, 6, size=320)  # elsewhere: leaves at the edge outgrow their size
    answers, done = [], []
    for batches in ([320], [50, 200, 70]):
        model, first, steps = fitted(X[:200], y[:200]), 200, []
        for n in batches:
            model.partial_fit(X[first : first + n], y[first : first + n])
            first, steps = first + n, steps + model.adapted_
        answers.append(model.predict(X[::7], return_std=True))
        done.append(steps)
    assert done[0] == done[1]
    assert len(done[0]) == 6  # reviews at 40 to 160 rows, a fit at 200, a review at 80 more
    assert done[0][4].startswith("fitted again on 400")
    assert any(not text.endswith(" 0 leaves cut") for text in done[0][:4])
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-7)


def test_what_was_due_before_is_done_when_it_may_be(rng):
    X, y = made(rng)
    model = fitted(X[:100], y[:100]).partial_fit(X[100:150], y[100:150], adapt=False)
    assert model.adapted_ == []
    model.partial_fit(X[150:151], y[150:151])
    assert len(model.adapted_) == 1
    model.partial_fit(X[151:152], y[151:152])
    assert model.adapted_ == []
    late = fitted(X[:100], y[:100]).partial_fit(X[100:220], y[100:220], adapt=False)
    assert late.partial_fit(X[220:221], y[220:221]).adapted_ == ["fitted again on 220 rows"]


def test_cut_leaves_keep_the_distribution_of_a_partition(rng):
    """Every row still stands in one leaf of every partition."""
    X, y = made(rng, n=320)
    X[200:] = X[0] + 0.05 * rng.normal(size=(120, 2))
    model = fitted(X[:200], y[:200], leaf_size=[25, 50]).partial_fit(X[200:], y[200:])
    assert model.adapted_
    for part in model.tree_.children:
        rows = np.concatenate([leaf.rows for leaf in leaves(part)])
        np.testing.assert_array_equal(np.sort(rows), np.arange(320))
        assert max(leaf.n_rows for leaf in leaves(part)) <= 1.5 * 50 + 40


def test_without_room_for_changed_leaves_all_are_conditioned_together(rng):
    X, y = made(rng)
    model = fitted(
        X[:200], y[:200], memory_limit=60_000
    )  # half of it for factors, half of that for changed leaves
    model.partial_fit(X[200:201], y[200:201], adapt=False)
    assert isinstance(model.state_.model.leaf_posterior, OnlineLeafPosterior)
    model.partial_fit(X[201:], y[201:], adapt=False)
    assert isinstance(model.state_.model.leaf_posterior, InMemoryLeafPosterior)
    same(model, all_at_once(model, X, y), X[:30])


def test_partial_fit_on_nothing_is_fit(wavy):
    X, y = wavy
    settings = {"leaf_size": 50, "kernel": "rbf", "max_iter": 3, "random_state": 0}
    one, two = DSMGPRegressor(**settings).fit(X, y), DSMGPRegressor(**settings).partial_fit(X, y)
    np.testing.assert_array_equal(one.predict(X), two.predict(X))


def test_copies_and_pickles_part_ways(rng):
    X, y = made(rng)
    model = fitted(X[:200], y[:200]).partial_fit(X[200:220], y[200:220], adapt=False)
    for duplicate in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        before = model.predict(X[:9])
        duplicate.partial_fit(X[220:], y[220:] + 5.0, adapt=False)
        np.testing.assert_array_equal(model.predict(X[:9]), before)
        assert len(duplicate.row_ids_) == 260
        assert len(model.row_ids_) == 220


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.partial_fit(np.zeros((3, 5)), np.zeros(3)), "features"),
        (lambda m: m.partial_fit(np.zeros((3, 2)), np.zeros((3, 2))), "expected y with 1 outputs"),
        (lambda m: m.partial_fit(np.zeros((3, 2)), np.zeros(4)), "as many values of y"),
        (lambda m: m.partial_fit(np.full((1, 2), np.inf), np.zeros(1)), "X"),
        (lambda m: m.partial_fit(np.zeros((1, 2)), np.zeros(1), noise=-1.0), "negative"),
        (
            lambda m: m.partial_fit(np.zeros((1, 2)), np.zeros(1), noise={}),
            "noise holds values by name",
        ),
        (lambda m: m.finetune(parameters=None), "expected parameters"),
        (lambda m: m.forget([500]), "row 500 cannot be forgotten"),
        (lambda m: m.forget([-1]), "row -1"),
        (lambda m: m.forget([3, 4, 3]), "3 twice"),
        (lambda m: m.forget([0.5]), "whole numbers"),
        (lambda m: m.forget(np.arange(199)), "forget 199 of 200 rows: at least two must stay"),
        (lambda m: m.forget(np.arange(200)), "forget 200 of 200 rows"),
    ],
)
def test_bad_input_leaves_the_model_as_it_was(rng, call, message):
    X, y = made(rng)
    model = fitted(X[:200], y[:200])
    before, state = model.predict(X, return_std=True), dict(model.__dict__)
    with pytest.raises(ValueError, match=message):
        call(model)
    assert model.__dict__ == state
    np.testing.assert_array_equal(model.predict(X, return_std=True), before)


def test_forget_before_fit():
    with pytest.raises(NotFittedError):
        DSMGPRegressor().forget([0])
