"""Laws that hold whatever the table: a valid predictive law or an error that says why; units, form and order do not matter."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsmgp import ChangePoints, DSMGPRegressor
from dsmgp._util.errors import InputError
from dsmgp._util.validation import SINGLE_LARGEST
from dsmgp._util.warnings import FactorisationWarning
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.process import NOISE_FLOOR
from dsmgp.tree import Leaf, Product, Region, Sum
from tests.support.odd_tables import FORMS, dressed, options, options_with_breaks, tables

pytestmark = pytest.mark.filterwarnings("ignore::dsmgp._util.warnings.FactorisationWarning")


def holds(law, n, *drawn):
    """Check a law on so many draws, always the same ones: a failure can be made again."""
    checked = given(*drawn)(law)
    settings(
        max_examples=n,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(checked)()


def often(few, many):
    """So many draws, and far more in the slow run."""
    return pytest.mark.parametrize("n", [few, pytest.param(many, marks=pytest.mark.slow)])


def fitted_or_refused(table, chosen, noise=None):
    """A model, or None where the rows were refused by an error in words."""
    if noise is not None:  # which does not go with a warp
        chosen = {**chosen, "output_warp": None}
    try:
        return DSMGPRegressor(**chosen).fit(*table.given, noise)
    except ValueError as error:
        refusal = error
    assert type(refusal) in (InputError, ValueError), repr(refusal)  # the latter of scikit-learn
    if cannot_be_cut(table, chosen):
        assert "same value of the input that orders them" in str(refusal)
        return None
    if too_few_for_segments(table, chosen) and "shortest" in str(refusal):
        return None
    assert len(table.X) == 1, f"rows that can be learned from were refused: {refusal!r}"
    assert "minimum of 2" in str(refusal)
    return None


def cannot_be_cut(table, chosen):
    """Whether rows with one value of the input that orders them, between which there is no gap, are more than a segment may hold."""
    structure = chosen["structure"]
    if structure != "changepoint" and not isinstance(structure, ChangePoints):
        return False
    dimension = 0 if structure == "changepoint" else structure.dimension
    tied = np.unique(np.asarray(table.given[0])[:, dimension], return_counts=True)[1].max()
    return chosen["leaf_size"] != "auto" and tied > chosen["leaf_size"]


def too_few_for_segments(table, chosen):
    """Whether segments of the shortest length allowed may not tile the rows."""
    shortest = getattr(chosen["structure"], "shortest", 1)
    return shortest > 1


def is_out_of_reach(model, asked):
    """Whether some row lies too far away for single precision."""
    far = np.abs(model.state_.model.inputs.to_experts(np.asarray(asked, dtype=np.float64))).max()
    return model.dtype == "float32" and far >= SINGLE_LARGEST


def holds_a_valid_law(model, asked):
    if is_out_of_reach(model, asked):
        with pytest.raises(ValueError, match="out of range in single precision"):
            model.predict_dist(asked)
        return
    law = model.predict_dist(asked)
    mean, std = (np.asarray(part) for part in model.predict(asked, return_std=True))
    _, std_f = model.predict(asked, return_std=True, include_noise=False)
    for part in (mean, std, std_f, law.mean, law.std, law.weights, law.component_means):
        assert np.isfinite(part).all()
    np.testing.assert_allclose(law.weights.sum(axis=1), 1.0, rtol=1e-9)
    assert (law.weights >= 0).all()
    assert (std > 0).all()
    assert (std >= np.asarray(std_f) * (1 - 1e-9)).all()
    asked_for = model.noise_variance
    if model.standardize:
        floor = NOISE_FLOOR if asked_for is None else min(NOISE_FLOOR, 0.5 * asked_for)
        assert np.min(model.noise_) >= 0.99 * floor
    levels = law.quantile([0.001, 0.05, 0.5, 0.95, 0.999])
    assert np.isfinite(levels).all()
    assert (np.diff(levels, axis=0) >= 0).all()
    assert np.isfinite(law.logpdf(law.mean)).all()
    assert np.isfinite(model.log_marginal_likelihood_)
    if model.state_.model.has_change_points:
        noise = np.atleast_1d(model.noise_) * np.diag(model.output_loading_) ** 2
        assert (std.reshape(len(std), -1) ** 2 >= noise * (1 - 1e-6)).all()
    else:
        # A new observation varies at least as its noise does.
        assert (std**2 >= model.noise_at(asked) * (1 - 1e-6)).all()
        assert np.isfinite([model.loo_score_, model.loo_score_new_inputs_]).all()


@often(15, 2000)
def test_any_table_gives_a_valid_law_or_an_error_in_words(n):
    def law(table, chosen):
        model = fitted_or_refused(table, chosen, table.noise)
        if model is not None:
            holds_a_valid_law(model, table.asked)

    holds(law, n, tables(), options())


@often(4, 300)
@pytest.mark.filterwarnings("ignore:.* as long as leaf_size")
def test_any_table_cut_anywhere_gives_a_valid_law_or_an_error_in_words(n):
    def law(table, chosen):
        changes = chosen["structure"]
        if isinstance(changes, ChangePoints):
            alone = table.Y.shape[1] == 1  # outliers are looked for in one output
            changes = replace(
                changes,
                dimension=changes.dimension % table.X.shape[1],
                outliers=changes.outliers and alone,
            )
            chosen = chosen | {"structure": changes}
        model = fitted_or_refused(table, chosen)
        if model is not None:
            holds_a_valid_law(model, table.asked)

    holds(law, n, tables(most_rows=80, most_inputs=6), options_with_breaks())


def trees(draw, X, region=None, depth=3):
    """A tree built by hand for rows; its cuts may lie where none are, so that leaves are empty."""
    n_dims = X.shape[1]
    region = Region.whole(n_dims) if region is None else region
    kind = draw(st.sampled_from(["leaf", "product", "sum"])) if depth else "leaf"
    if kind == "leaf":
        return Leaf(region)
    if kind == "sum":
        n = draw(st.integers(1, 3))
        children = [trees(draw, X, region, depth - 1) for _ in range(n)]
        weights = np.array([draw(st.floats(0.05, 1.0)) for _ in range(n)])
        return Sum(children, np.log(weights / weights.sum()))
    dimension = draw(st.integers(0, n_dims - 1))
    low, high = region.lower[dimension], region.upper[dimension]
    split = X[:, dimension].mean() + X[:, dimension].std() * draw(st.floats(-2.5, 2.5))
    if not low < split < high:
        return Leaf(region)
    parts = region.split(dimension, [split])
    return Product([trees(draw, X, p, depth - 1) for p in parts], dimension, [split])


@often(15, 500)
def test_any_tree_over_any_table_gives_a_valid_law(n):
    def law(data, table, kernel, weights, optimizer):
        tree = trees(data.draw, table.X)
        chosen = {"structure": tree, "kernel": kernel, "weights": weights, "optimizer": optimizer}
        model = fitted_or_refused(table, {"max_iter": 2, "random_state": 0, **chosen}, table.noise)
        holds_a_valid_law(model, table.asked)

    kernels = st.sampled_from(["rbf", "matern12", "rq", "periodic"])
    ways = st.sampled_from(["gated", "posterior", "uniform"])
    optimizers = st.sampled_from([None, "lbfgs", "adam", "rmsprop"])
    rows = tables(most_rows=80, most_inputs=6, least_rows=2)
    holds(law, n, st.data(), rows, kernels, ways, optimizers)


@often(10, 200)
def test_the_form_of_a_table_does_not_matter(n):
    def law(table, form):
        if form in ("float32", "integers"):
            X = np.asarray(dressed(table.X, form), dtype=np.float64)
        else:
            X = table.X
        options = {"kernel": "matern32", "max_iter": 2, "effort": "low", "random_state": 0}
        plain = DSMGPRegressor(**options).fit(X, table.Y)
        given_so = DSMGPRegressor(**options).fit(dressed(X, form), table.Y)
        np.testing.assert_array_equal(
            np.asarray(given_so.predict(dressed(X, form))), plain.predict(X)
        )

    holds(law, n, tables(most_rows=80, most_inputs=8, least_rows=2), st.sampled_from(FORMS))


def conditioned(X, Y, tree, weights="posterior"):
    """A model whose hyperparameters and tree are given: nothing in it is drawn or searched for."""
    term = KernelTerm("rbf", lengthscale=np.full(X.shape[1], 0.7), outputscale=0.7)
    model = DSMGPRegressor(
        Kernel((term,)),
        structure=tree,
        noise_variance=0.05,
        optimizer=None,
        weights=weights,
        local_scale=False,
    )
    return model.fit(X, Y)


def halves(X, dimension=0):
    """A sum of all rows, and of two halves along an input."""
    whole = Region.whole(X.shape[1])
    split = float(np.median(X[:, dimension]))
    parts = [Leaf(part) for part in whole.split(dimension, [split])]
    return Sum([Leaf(whole), Product(parts, dimension, [split])])


def told(model, asked):
    """What can be compared: moments, quantiles and the evidence."""
    law = model.predict_dist(asked)
    return law.mean, law.std, law.quantile(0.1), model.log_marginal_likelihood_


@often(15, 500)
def test_the_order_of_rows_does_not_matter(n):
    def law(table, weights, seed):
        X, Y, tree = table.X, table.Y, halves(table.X)
        order = np.random.default_rng(seed).permutation(len(X))
        first = told(conditioned(X, Y, tree, weights), table.new)
        other = told(conditioned(X[order], Y[order], tree, weights), table.new)
        spread = np.ptp(Y) + 1e-9 * np.abs(Y).max()
        for ours, theirs in zip(first[:3], other[:3], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * spread)
        assert first[3] == pytest.approx(other[3], rel=1e-6, abs=1e-4)

    rows = tables(most_rows=60, most_inputs=5, least_rows=2)
    holds(law, n, rows, st.sampled_from(["posterior", "uniform"]), st.integers(0, 99))


@often(4, 100)
def test_the_order_of_rows_does_not_matter_to_a_whole_fit(n):
    """Structure, kernel, theta and gate are found from the rows in another order: only rounding differs."""

    def law(seed, n_rows, n_dims, n_outputs, chosen):
        rng = np.random.default_rng(seed)
        X, new = rng.normal(size=(n_rows, n_dims)), rng.normal(size=(20, n_dims))
        Y = np.sin(2 * X @ rng.normal(size=(n_dims, n_outputs)))
        Y += 0.1 * rng.normal(size=Y.shape)
        noise = 0.01 * rng.uniform(size=(n_rows, 1)) if chosen.pop("known noise") else None
        order = rng.permutation(n_rows)
        first = DSMGPRegressor(hypotheses=None, random_state=0, **chosen).fit(X, Y, noise)
        noise = None if noise is None else noise[order]
        other = DSMGPRegressor(hypotheses=None, random_state=0, **chosen).fit(
            X[order], Y[order], noise
        )
        (mean, std), (mean_of_other, std_of_other) = (
            model.predict(new, return_std=True) for model in (first, other)
        )
        np.testing.assert_allclose(mean_of_other, mean, atol=1e-3)
        np.testing.assert_allclose(std_of_other, std, rtol=1e-2)

    chosen = st.fixed_dictionaries(
        {
            "kernel": st.sampled_from(["auto", "auto", "rbf", "rq"]),
            "leaf_size": st.sampled_from(["auto", 30]),
            "effort": st.sampled_from(["low", "medium"]),
            "max_iter": st.just(15),
            "known noise": st.booleans(),
        }
    )
    holds(
        law,
        n,
        st.integers(0, 99),
        st.integers(20, 150),
        st.integers(1, 3),
        st.integers(1, 2),
        chosen,
    )


@often(15, 500)
def test_shifted_and_scaled_rows_give_shifted_and_scaled_laws(n):
    """Powers of two: what is left is the model's own doing, not rounding."""

    def law(seed, scale_exponents, y_exponent, shift, y_shift):
        rng = np.random.default_rng(seed)
        X = np.round(rng.normal(size=(50, 3)), 3)
        Y = np.round(np.sin(X @ rng.normal(size=(3, 2))), 3)
        unit, y_unit = 2.0 ** np.array(scale_exponents), 2.0**y_exponent
        moved_X, moved_Y = (X + shift) * unit, (Y + y_shift) * y_unit
        plain = conditioned(X, Y, halves(X))
        moved = conditioned(moved_X, moved_Y, halves(moved_X))
        new = X[:10] + 0.25
        ours, theirs = told(plain, new), told(moved, (new + shift) * unit)
        digits = 1e-6 * (1 + 1e-6 * max(abs(shift), abs(y_shift)))
        for mean in (0, 2):
            back = theirs[mean] / y_unit - y_shift
            np.testing.assert_allclose(back, ours[mean], atol=10 * digits)
        np.testing.assert_allclose(theirs[1] / y_unit, ours[1], rtol=10 * digits)
        expected = ours[3] - 2 * len(X) * np.log(y_unit)
        assert theirs[3] == pytest.approx(expected, rel=1e-6, abs=1e-2)

    exponents = st.integers(-27, 27)  # 1e-8 to 1e8
    shifts = st.sampled_from([0.0, 1.0, -1e3, 1e6, 1e9])
    holds(
        law,
        n,
        st.integers(0, 99),
        st.tuples(exponents, exponents, exponents),
        exponents,
        shifts,
        shifts,
    )


@often(4, 60)
def test_a_whole_fit_is_the_same_in_other_units(n):
    """Structure, kernel and theta are found anew from the moved rows."""

    def law(seed, exponent, y_exponent, shift, y_shift):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2, 2, size=(90, 2))
        y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=90)
        unit, y_unit = 2.0**exponent, 2.0**y_exponent
        options = {"kernel": "matern52", "leaf_size": 40, "max_iter": 15, "random_state": 0}
        plain = DSMGPRegressor(**options).fit(X, y).predict(X, return_std=True)
        moved = (X + shift) * unit
        model = DSMGPRegressor(**options).fit(moved, (y + y_shift) * y_unit)
        mean, std = model.predict(moved, return_std=True)
        # An offset of 1e9 leaves seven digits of a spread of one.
        lost = 10.0 if max(abs(shift), abs(y_shift)) > 1e6 else 1.0
        np.testing.assert_allclose(mean / y_unit - y_shift, plain[0], atol=1e-3 * lost)
        np.testing.assert_allclose(std / y_unit, plain[1], rtol=1e-2)

    exponents, shifts = st.integers(-27, 27), st.sampled_from([0.0, -1e3, 1e9, -1e9])
    holds(law, n, st.integers(0, 99), exponents, exponents, shifts, shifts)


def test_rows_far_from_zero_lose_no_more_than_their_own_digits():
    """An offset of 1e9 leaves seven digits of a spread of one."""
    rng = np.random.default_rng(1)
    X, new = rng.normal(size=(80, 2)), rng.normal(size=(20, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=80)
    options = {"kernel": "rbf", "leaf_size": 40, "max_iter": 20, "random_state": 0}
    plain, std = DSMGPRegressor(**options).fit(X, y).predict(new, return_std=True)
    far = DSMGPRegressor(**options).fit(X + 1e9, y + 1e9)
    mean, far_std = far.predict(new + 1e9, return_std=True)
    np.testing.assert_allclose(mean - 1e9, plain, atol=1e-2)
    np.testing.assert_allclose(far_std, std, rtol=1e-2)


def test_twins_in_single_precision_with_little_noise_are_left_out():
    """Their block of the inverse is all but singular: in single precision these could not be factorised."""
    pytest.importorskip("torch")
    for seed, noise in ((62, 1e-8), (84, 1e-8), (119, 1e-8), (20, 1e-7), (39, 1e-7), (42, 1e-7)):
        rng = np.random.default_rng(seed)
        X = np.rint(rng.normal(size=(10, 3)) * [1, 0.3, 0.3])
        y = np.sin(X @ rng.normal(size=(3, 1))) + 0.1 * rng.normal(size=(10, 1))
        model = DSMGPRegressor(
            "matern52",
            noise_variance=noise,
            optimizer=None,
            leaf_size=[43],
            sum_children=1,
            dtype="float32",
            effort="low",
            random_state=0,
        ).fit(X, y)
        assert np.isfinite(model.loo_score_new_inputs_)
        assert np.isfinite(model.predict(X)).all()


def test_warnings_of_added_noise_name_the_remedy():
    X = np.repeat(np.random.default_rng(0).normal(size=(3, 1)), 20, axis=0)
    X = X + 1e-12 * np.arange(60)[:, None]  # distinct, and closer than the covariance can tell
    with warnings.catch_warnings():
        warnings.simplefilter("error", FactorisationWarning)
        with pytest.raises(FactorisationWarning, match="raise noise_variance"):
            DSMGPRegressor("rbf", noise_variance=1e-18, optimizer=None).fit(X, X[:, 0])
