"""Averaging over hyperparameters is the sum over all hypotheses, by brute force."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from dsmgp import DSMGPRegressor, load
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.config import check_parameters
from dsmgp.fitting.fit import fit_rows
from dsmgp.fitting.hypotheses.average import _draws, _with_all_priors
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.tree.nodes import Leaf, Sum, nodes

AVERAGED = {"hypotheses": "average", "kernel": "rbf", "max_iter": 10, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(14, 2))
    X[1] = X[0]  # duplicate inputs are left out together
    return X, X[:, 0] + 0.5 * np.sin(2.0 * X[:, 1]) + 0.2 * rng.normal(size=14)


@pytest.fixture(scope="module")
def fitted(rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsmgp.fitting.hypotheses.average.N_DRAWS", 16)
        return DSMGPRegressor(leaf_size=[5, 14], **AVERAGED).fit(*rows)


class Dense:
    """A hypothesis by dense algebra: the tree's sums and products written out, leaf by leaf."""

    def __init__(self, member):
        self.tree, outputs = member.model.tree, member.model.outputs
        self.X = member.model.inputs.to_experts(member.rows.X)
        self.y = member.model.outputs.to_experts(member.rows.Y)[:, 0]
        self.inputs, self.unit, self.centre = (
            member.model.inputs,
            outputs.loading[0, 0],
            outputs.centre[0],
        )
        values = member.model.processes[0].kernel_parameters()
        self.lengthscale, self.outputscale, self.noise = values[:2], values[2], values[-1]
        self.of_mean = values[3:-1] if len(values) > 4 else np.zeros(3)

    def mean(self, X):
        return X @ self.of_mean[:2] + self.of_mean[2]

    def kernel(self, A, B):
        away = (A[:, None] - B[None]) / self.lengthscale
        return self.outputscale * np.exp(-0.5 * np.square(away).sum(axis=-1))

    def log_evidence(self, kept, node=None):
        """Log evidence of some rows in the user's units."""
        if node is None:
            n = np.count_nonzero(kept)
            return self.log_evidence(kept, self.tree) - n * np.log(self.unit)
        if isinstance(node, Leaf):
            rows = node.rows[kept[node.rows]]
            if not len(rows):
                return 0.0
            X = self.X[rows]
            K = self.kernel(X, X) + self.noise * np.eye(len(rows))
            return multivariate_normal(self.mean(X), K).logpdf(self.y[rows])
        parts = [self.log_evidence(kept, child) for child in node.children]
        return logsumexp(node.log_weights + parts) if isinstance(node, Sum) else sum(parts)

    def log_joint(self, x, y):
        """Log density of the training rows together with a further one, by which predictions follow from evidences."""
        whole = np.ones(len(self.y), dtype=bool)

        def walk(node):
            if isinstance(node, Leaf):
                inside = all(
                    low <= u < high for u, (low, high) in zip(u_of_x, bounds(node), strict=True)
                )
                value = self.log_evidence(whole, node)
                if not inside:
                    return value
                A, z = self.X[node.rows], self.inputs.to_experts(x[None])
                K = self.kernel(A, A) + self.noise * np.eye(len(A))
                k = self.kernel(z, A)[0]
                solved = np.linalg.solve(K, k)
                mean = self.mean(z)[0] + solved @ (self.y[node.rows] - self.mean(A))
                variance = self.outputscale - solved @ k + self.noise
                scaled = (y - self.centre) / self.unit
                return value + norm.logpdf(scaled, mean, np.sqrt(variance)) - np.log(self.unit)
            parts = [walk(child) for child in node.children]
            return logsumexp(node.log_weights + parts) if isinstance(node, Sum) else sum(parts)

        u_of_x = self.inputs.to_coordinates(x[None])[0]
        return walk(self.tree) - len(self.y) * np.log(self.unit)


def bounds(leaf):
    return zip(leaf.region.lower, leaf.region.upper, strict=True)


def test_weights_evidence_scores_and_predictions_are_sums_over_all_hypotheses(fitted, rows):
    X, y = rows
    state = fitted.state_
    dense = [Dense(member) for member in state.members]
    assert any(isinstance(node, Sum) for node in nodes(fitted.tree_))
    assert set(state.stacking.names) == {"rbf, zero mean", "rbf, linear mean"}
    log_prior = state.stacking.log_prior

    def average(kept):
        return logsumexp(log_prior + [each.log_evidence(kept) for each in dense])

    every = np.ones(len(y), dtype=bool)
    evidence = average(every)
    assert fitted.log_marginal_likelihood_ == pytest.approx(evidence, abs=1e-10)
    weights = np.exp(log_prior + [each.log_evidence(every) for each in dense] - evidence)
    np.testing.assert_allclose(state.hypothesis_weights, weights, atol=1e-10)
    without = [every & (np.arange(len(y)) != k) for k in range(len(y))]
    alone = np.mean([average(kept) - evidence for kept in without])
    assert fitted.loo_score_ == pytest.approx(alone, abs=1e-10)
    others = [~(x == X).all(axis=1) for x in X]
    at_new_inputs = np.mean(
        [
            average(group) - average(group | (np.arange(len(y)) == k))
            for k, group in enumerate(others)
        ]
    )
    assert fitted.loo_score_new_inputs_ == pytest.approx(at_new_inputs, abs=1e-10)
    x, values = np.array([0.3, -0.2]), np.linspace(-2.0, 2.0, 5)
    density = [
        logsumexp(log_prior + [each.log_joint(x, value) for each in dense]) - evidence
        for value in values
    ]
    predicted = fitted.predict_dist(np.tile(x, (5, 1))).logpdf(values)
    np.testing.assert_allclose(predicted, density, atol=1e-10)


def test_the_average_evidence_is_the_integral_over_hyperparameters(rows):
    """Against quadrature over length scale, output scale and noise."""
    X, y = rows[0][:9, 1:], rows[1][:9]
    config = check_parameters(DSMGPRegressor(mean="zero", **AVERAGED))
    schema, table = InputSchema.learn(X, y, "model", "from_dtype")
    state = fit_rows(
        TrainingRows.of_table(table, None, None, least=2),
        schema,
        FitContext(config, np.random.default_rng(0)),
    )
    draws = _draws(state, config, 1000, np.random.default_rng(1))
    process = _with_all_priors(state.model.processes[0])
    loc, scale = process.normal_prior
    axes = [np.linspace(m - 5 * s, m + 5 * s, 35) for m, s in zip(loc, scale, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    volume = np.prod([axis[1] - axis[0] for axis in axes])
    Z, z = state.model.inputs.to_experts(X), state.model.outputs.to_experts(y[:, None])[:, 0]
    values = process.kernel_parameters(grid)
    r2 = np.square(Z - Z.T)[None] / values[:, 0, None, None] ** 2
    K = values[:, 1, None, None] * np.exp(-0.5 * r2) + values[:, 2, None, None] * np.eye(9)
    half = 0.5 * np.einsum("i,nij,j->n", z, np.linalg.inv(K), z)
    log_evidence = -half - 0.5 * np.linalg.slogdet(K)[1] - 4.5 * np.log(2.0 * np.pi)
    exact = logsumexp(log_evidence + norm.logpdf(grid, loc, scale).sum(axis=1)) + np.log(volume)
    assert logsumexp(draws.log_prior + draws.log_evidence) == pytest.approx(
        exact, abs=0.15
    )  # importance sampling


def test_online_updates_weigh_by_the_new_evidence(fitted, rows, tmp_path):
    model = fitted.save(tmp_path / "a.dsmgp") or load(tmp_path / "a.dsmgp")
    np.testing.assert_array_equal(model.predict(rows[0]), fitted.predict(rows[0]))
    assert model.log_marginal_likelihood_ == fitted.log_marginal_likelihood_
    assert model.loo_score_ == fitted.loo_score_
    model.partial_fit([[0.5, 0.5]], [3.0], adapt=False)
    state = model.state_
    dense = [Dense(member) for member in model.state_.members]
    evidences = [member.model.log_evidence for member in state.members]
    assert len(dense[0].y) == 15
    log_weights = state.stacking.log_prior + evidences
    np.testing.assert_allclose(
        state.hypothesis_weights, np.exp(log_weights - logsumexp(log_weights))
    )
    assert not np.allclose(state.hypothesis_weights, fitted.state_.hypothesis_weights)
    assert (np.diff(state.hypothesis_weights) <= 0).all()
    assert model.log_marginal_likelihood_ == pytest.approx(logsumexp(log_weights))


def test_the_summary_says_what_is_averaged_and_how_it_is_weighed(fitted):
    text = fitted.summary()
    assert f"leave-one-out   NLPD {fitted.loo_score_:.4g}" in text
    assert f"average has the logarithm {fitted.log_marginal_likelihood_:.6g}" in text
    assert "rbf, linear mean (" in text
    assert "posterior weights" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": "gated"}, "needs weights='posterior' or 'auto'"), ({"priors": None}, "needs priors"),
        ({"optimizer": None}, "needs an optimizer"), ({"kernel": ["rbf", "matern32"]}, "needs one named kernel"),
        ({"structure": "changepoint"}, "needs structure='balanced'"), ({"local_scale": True}, "needs local_scale=False"),
        ({"kernel": "rq"}, "has none on its 'alpha'"), ({"standardize": False}, "needs standardize=True"),
    ],
)  # fmt: skip
def test_what_has_no_exact_average_is_refused(rows, settings, message):
    with pytest.raises(ValueError, match=message):
        DSMGPRegressor(**AVERAGED | settings).fit(*rows)


def test_it_is_for_one_output(rows):
    with pytest.raises(ValueError, match="is for one output, got 2"):
        DSMGPRegressor(**AVERAGED).fit(rows[0], np.stack([rows[1], rows[1]], axis=1))
