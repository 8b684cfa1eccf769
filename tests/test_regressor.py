"""The estimator: scikit-learn's contract, frames, units, pickling, and bad input."""

import copy
import logging
import multiprocessing
import pickle
import re
import subprocess
import sys
from datetime import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsmgp import DSMGPRegressor
from dsmgp._util.machine import has_torch
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.tree import Leaf, Product, Region, Sum, leaves


def not_expected_of(estimator):
    """Repeated rows are cut where weighted ones are not: trees are grown by the number of rows, whatever their weights."""
    if estimator.leaf_size == "auto":
        return {}
    return {"check_sample_weight_equivalence_on_dense_data": "rows are in several leaves"}


@parametrize_with_checks(
    [
        DSMGPRegressor(),
        DSMGPRegressor(hypotheses=None, leaf_size=10, sum_children=2, max_iter=5),
        DSMGPRegressor(structure="paper", leaf_size=10, depth=1, weights="uniform", max_iter=5),
    ],
    expected_failed_checks=not_expected_of,
)
def test_scikit_learns_estimator_checks(estimator, check):
    check(estimator)


def test_it_works_in_pipelines_searches_and_cross_validation(wavy):
    X, y = wavy
    pipeline = make_pipeline(
        StandardScaler(), DSMGPRegressor(hypotheses=None, max_iter=10, random_state=0)
    )
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.8
    kernels = ["rbf", "matern32", Kernel((KernelTerm("rbf", [0.7, 0.7], 1.0),))]
    if has_torch():
        kernels.append(gpytorch_kernel())
    grid = {"kernel": kernels, "leaf_size": [30, 60]}
    search = GridSearchCV(
        DSMGPRegressor(hypotheses=None, max_iter=5, random_state=0), grid, cv=2
    ).fit(X, y)
    assert search.best_score_ > 0.8
    assert search.predict(X).shape == (120,)


def gpytorch_kernel():
    gpytorch = pytest.importorskip("gpytorch")
    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))


@pytest.mark.parametrize("weights", ["posterior", "gated"])
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "rq", "periodic", "matern32+periodic"])
def test_a_learned_kernel_passed_back_gives_the_same_predictions(wavy, kernel, weights):
    X, y = wavy
    space = Region.whole(2)
    tree = Sum([Leaf(space), Product([Leaf(p) for p in space.split(0, [0.0])], 0, [0.0])])
    options = {"structure": tree, "weights": weights, "random_state": 0}
    learned = DSMGPRegressor(kernel, max_iter=10, **options).fit(X, y)
    assert learned.kernel_.name == kernel
    given = {"noise_variance": learned.noise_, "optimizer": None}
    again = DSMGPRegressor(learned.kernel_, **given, **options).fit(X, y)
    assert repr(again.kernel_) == repr(learned.kernel_)
    assert again.n_evaluations_ == 0
    for one, other in zip(
        again.predict(X, return_std=True), learned.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    assert again.log_marginal_likelihood_ == pytest.approx(learned.log_marginal_likelihood_)


def test_learning_goes_on_from_a_kernel_with_values(wavy):
    X, y = wavy
    leaf = Leaf(Region.whole(2))
    learned = DSMGPRegressor("rbf", structure=leaf, weights="posterior").fit(X, y)
    given = {"noise_variance": learned.noise_, "structure": leaf, "weights": "posterior"}
    again = DSMGPRegressor(learned.kernel_, max_iter=2, **given).fit(X, y)
    far = DSMGPRegressor("rbf", max_iter=2, **given).fit(X, y)
    assert abs(again.log_marginal_likelihood_ - learned.log_marginal_likelihood_) < 0.01
    assert far.log_marginal_likelihood_ < learned.log_marginal_likelihood_ - 0.1


def test_a_kernel_for_another_number_of_inputs_is_refused(wavy):
    X, y = wavy
    kernel = DSMGPRegressor("rbf", max_iter=2).fit(X, y).kernel_
    with pytest.raises(ValueError, match="inputs with 1 columns: it has 2 length scales"):
        DSMGPRegressor(kernel).fit(X[:, :1], y)


def test_several_outputs_have_a_kernel_each(wavy):
    X, y = wavy
    model = DSMGPRegressor("matern32", max_iter=3).fit(X, np.column_stack([y, y**2]))
    assert [kernel.name for kernel in model.kernel_] == ["matern32"] * 2
    assert not np.array_equal(*(kernel.lengthscale for kernel in model.kernel_))


def test_clones_carry_parameters_and_no_fit(wavy):
    X, y = wavy
    space = Region.whole(2)
    tree = Sum([Leaf(space), Product([Leaf(p) for p in space.split(0, [0.0])], 0, [0.0])])
    model = DSMGPRegressor(structure=tree, leaf_size=[20, 40], max_iter=3, random_state=0).fit(X, y)
    again = clone(model)
    assert again.leaf_size == [20, 40]
    assert not hasattr(again, "tree_")
    with pytest.raises(NotFittedError):
        again.predict(X)
    np.testing.assert_allclose(again.fit(X, y).predict(X), model.predict(X))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_keep_their_feature_names(wavy, frame):
    X, y = wavy
    table = frame({"height": X[:, 0], "weight": X[:, 1]})
    model = DSMGPRegressor(hypotheses=None, random_state=0).fit(table, frame({"y": y})["y"])
    assert list(model.feature_names_in_) == ["height", "weight"]
    assert "height" in model.summary()
    plain = DSMGPRegressor(hypotheses=None, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.predict(table), plain.predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame({"weight": X[:, 1], "height": X[:, 0]}))


@pytest.mark.parametrize("module", [pickle, copy])
def test_copies_predict_the_same(wavy, module):
    X, y = wavy
    model = DSMGPRegressor(hypotheses=None, leaf_size=30, random_state=0).fit(X, y)
    again = pickle.loads(pickle.dumps(model)) if module is pickle else copy.deepcopy(model)
    np.testing.assert_array_equal(model.predict(X), again.predict(X))
    np.testing.assert_array_equal(
        model.predict_dist(X).quantile(0.1), again.predict_dist(X).quantile(0.1)
    )
    assert set(again.posterior_weights_) == {again.tree_}


def test_a_seed_makes_the_fit_repeatable(wavy):
    X, y = wavy
    first, second, other = (
        DSMGPRegressor(hypotheses=None, leaf_size=20, random_state=s).fit(X, y).predict(X)
        for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("structure", ["balanced", "paper"])
def test_shifting_and_scaling_the_data_shifts_and_scales_the_predictions(wavy, structure):
    X, y = wavy
    options = {"leaf_size": 40, "structure": structure, "hypotheses": None, "random_state": 0}
    plain = DSMGPRegressor(**options).fit(X, y)
    moved = DSMGPRegressor(**options).fit(X * [1e-6, 1e5] + [3.0, -2e6], 1e4 * y + 1e6)
    mean, std = plain.predict(X, return_std=True)
    moved_mean, moved_std = moved.predict(X * [1e-6, 1e5] + [3.0, -2e6], return_std=True)
    np.testing.assert_allclose((moved_mean - 1e6) / 1e4, mean, atol=1e-4)
    np.testing.assert_allclose(moved_std / 1e4, std, rtol=1e-3)
    expected = plain.log_marginal_likelihood_ - len(y) * np.log(1e4)
    assert moved.log_marginal_likelihood_ == pytest.approx(expected, abs=0.05)


def test_without_standardising_the_scale_of_the_data_does_not_matter(wavy):
    X, y = wavy
    options = {"kernel": "rbf", "standardize": False, "random_state": 0}
    plain = DSMGPRegressor(**options).fit(X, y).score(X, y)
    for X_unit, y_unit in ((1.0, 1e-6), (100.0, 1.0), (1e-3, 1e5)):
        moved = DSMGPRegressor(**options).fit(X * X_unit, y * y_unit).score(X * X_unit, y * y_unit)
        assert moved == pytest.approx(plain, abs=0.01)


@pytest.mark.parametrize("unit", [1e-200, 1e-9, 1e9, 1e140])
def test_very_large_and_small_inputs_are_learned_from(wavy, unit):
    X, y = wavy
    model = DSMGPRegressor("rbf", random_state=0, max_iter=30).fit(X * unit, y)
    assert model.score(X * unit, y) > 0.9


def test_a_generator_can_be_the_random_state(wavy):
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=3, random_state=np.random.default_rng(0)).fit(X, y)
    assert model.sample_y(X[:2], 3, random_state=np.random.default_rng(1)).shape == (2, 3)


def test_it_works_in_processes_that_were_forked(wavy):
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, y)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        result = pool.apply_async(_fit_again, (X, y))
        np.testing.assert_allclose(result.get(timeout=60), model.predict(X))


FORKED = """
import os, signal, sys
import numpy as np
from dsmgp import DSMGPRegressor
from dsmgp._util.machine import has_torch

rng = np.random.default_rng(0)
X = rng.normal(size=(60_000, 3))
y = X[:, 0] + 0.1 * rng.normal(size=len(X))
cases = [(400, 0, "float64"), (9000, 300, "float64"), (400, 60_000, "float64")]
if has_torch() and sys.argv[1] == "with torch":
    import torch
    torch.set_num_threads(2)
    cases.append((400, 2000, "float32"))
for n_fit, n_predict, dtype in cases:
    def work():
        model = DSMGPRegressor(
            "matern32", noise_variance=0.1, optimizer=None, leaf_size=20, dtype=dtype, random_state=0
        ).fit(X[:n_fit], y[:n_fit])
        return model.predict(X[: max(n_predict, 1)], return_std=True)[0].sum()
    expected = work()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # kills a child that hangs
        os._exit(0 if work() == expected else 1)
    status = os.waitpid(child, 0)[1]
    assert status == 0, (n_fit, n_predict, dtype, status)
"""


@pytest.mark.parametrize("loaded", ["with torch", "without torch"])
def test_a_forked_process_fits_and_predicts_what_its_parent_did(loaded):
    """Torch's own threads do not survive a fork: the calling thread must never have started them."""
    if loaded == "with torch":
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", FORKED, loaded], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _fit_again(X, y):
    return DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, y).predict(X)


def test_trees_and_splits_are_in_the_users_units(wavy):
    X, y = wavy
    model = DSMGPRegressor(hypotheses=None, leaf_size=40, random_state=0).fit(1000 * X + 5e4, y)
    for leaf in leaves(model.tree_):
        np.testing.assert_array_equal(
            np.flatnonzero(leaf.region.contains(1000 * X + 5e4)), np.sort(leaf.rows)
        )


def test_a_tree_built_by_hand_is_used_as_it_is(wavy):
    X, y = wavy
    space = Region.whole(2)
    tree = Product([Leaf(part) for part in space.split(1, [-0.5, 0.5])], 1, [-0.5, 0.5])
    model = DSMGPRegressor(structure=tree).fit(X, y)
    assert model.tree_.splits == (-0.5, 0.5)
    assert sum(leaf.n_rows for leaf in leaves(model.tree_)) == 120
    assert model.n_induced_trees_ == 1


def test_many_leaf_sizes_make_a_partition_each(wavy):
    X, y = wavy
    model = DSMGPRegressor(hypotheses=None, leaf_size=[15, 30, 60, 1000], random_state=0).fit(X, y)
    assert len(model.tree_.children) == 4


def test_summary_says_what_was_learned(wavy):
    X, y = wavy
    text = DSMGPRegressor(hypotheses=None, leaf_size=40, random_state=0).fit(X, 10 * y).summary()
    for part in ("120 rows, 2 inputs", "leaves of", "induced trees", "carry the posterior",
                 "log evidence", "length scale", "noise           std"):  # fmt: skip
        assert part in text
    noise = float(re.search(r"noise +std ([\d.e+-]+)", text)[1])
    assert noise == pytest.approx(1.0, rel=0.4)  # in the units of 10 y
    assert "periodic(lengthscale=" in DSMGPRegressor("rbf+periodic", max_iter=2).fit(X, y).summary()
    if has_torch():
        general = gpytorch_kernel() + gpytorch_kernel()
        assert "AdditiveKernel" in DSMGPRegressor(general, max_iter=2).fit(X, y).summary()
    Y = np.column_stack([y, y + 0.01 * X[:, 0]])
    both = DSMGPRegressor("rbf", random_state=0).fit(X, Y)
    assert "rotated" in both.summary()
    assert abs(both.output_loading_[0, 0]) > 0
    for mean in ("constant", "linear"):
        assert f"{mean} mean" in DSMGPRegressor("rq", mean, max_iter=3).fit(X, y).summary()


def test_float32_is_close_to_float64(wavy):
    pytest.importorskip("torch")
    X, y = wavy
    double = DSMGPRegressor(hypotheses=None, leaf_size=60, random_state=0, max_iter=20).fit(X, y)
    single = DSMGPRegressor(
        hypotheses=None, leaf_size=60, random_state=0, max_iter=20, dtype="float32"
    ).fit(X, y)
    np.testing.assert_allclose(single.predict(X), double.predict(X), atol=0.02)
    assert single.predict(X).dtype == np.float64


def test_a_memory_limit_changes_no_result(wavy):
    X, y = wavy
    free = DSMGPRegressor(hypotheses=None, leaf_size=20, random_state=0).fit(X, y)
    tight = DSMGPRegressor(hypotheses=None, leaf_size=20, random_state=0, memory_limit="20 kB").fit(
        X, y
    )
    assert (
        tight.state_.model.leaf_posterior.factors.n_bytes
        < free.state_.model.leaf_posterior.factors.n_bytes
    )
    np.testing.assert_array_equal(
        free.predict(X, return_std=True)[1], tight.predict(X, return_std=True)[1]
    )


def test_sizes_are_chosen_that_memory_can_hold(rng):
    X = rng.uniform(size=(3000, 2))
    y = np.sin(6 * X[:, 0])
    model = DSMGPRegressor("matern32", memory_limit="5MB", max_iter=2, random_state=0).fit(X, y)
    assert 200 < max(leaf.n_rows for leaf in leaves(model.tree_)) < 400
    with pytest.raises(ValueError, match="lower leaf_size, raise memory_limit"):
        model.set_params(leaf_size=1500).fit(X, y)


@pytest.mark.parametrize("columns", [1, 2])
def test_outputs_whose_squares_are_out_of_range_are_refused(wavy, columns):
    X, y = wavy
    small = 1e-200 * y if columns == 1 else np.column_stack([y, 1e-200 * y])
    with pytest.raises(ValueError, match=r"y varies by .* only.*; rescale the data"):
        DSMGPRegressor("rbf").fit(X, small)
    DSMGPRegressor("rbf", max_iter=2).fit(X, 1e-140 * y)


def test_verbose_reports_and_silence_is_the_default(wavy, capfd):
    X, y = wavy
    DSMGPRegressor(hypotheses=None, max_iter=3).fit(X, y)
    assert capfd.readouterr() == ("", "")
    DSMGPRegressor(hypotheses=None, max_iter=3, verbose=True).fit(X, y)
    assert "evaluations" in capfd.readouterr().err
    assert not logging.getLogger("dsmgp").handlers


def test_global_settings_are_left_alone(wavy):
    X, y = wavy
    np.random.seed(5)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    DSMGPRegressor(leaf_size=20, mean="linear", random_state=0).fit(X, y).predict(X)
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"kernel": "gpytorch"}])
def test_global_settings_of_torch_are_left_alone(wavy, options):
    torch = pytest.importorskip("torch")
    X, y = wavy
    if "kernel" in options:
        options = {"kernel": gpytorch_kernel()}
    torch.manual_seed(5)
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.random.get_rng_state())
    DSMGPRegressor(leaf_size=20, mean="linear", random_state=0, **options).fit(X, y).predict(X)
    assert torch.get_default_dtype() == before[0]
    assert torch.get_num_threads() == before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])


def bad_rows():
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20.0)
    inf, y_inf = X.copy(), y.copy()
    inf[4, 0] = y_inf[7] = np.inf
    cases = {
        "inf": (inf, y, "infinity (inf) in row 4, column 0"),
        "y_inf": (X, y_inf, "y contains infinity (inf) in row 7"),
        "y_gone": (X, y + np.nan, "0 of 20 rows have a target"),
        "y_text": (X, ["a"] * 20, "y holds text ('a' in row 0); expected numbers"),
        "y_short": (X, y[:-1], "got 19 and 20"),
        "no_rows": (X[:0], y[:0], "0 sample"),
        "one_row": (X[:1], y[:1], "minimum of 2"),
        "one_dimension": (X[:, 0], y, "2D array"),
        "y_missing": (X, None, "requires y to be passed"),
        "y_dates": (X, pd.Series(pd.date_range("2020", periods=20)), "y holds dates"),
        "y_series": (X, pd.Series(["q"] * 20), "y holds text ('q' in row 0); expected numbers"),
        "lazy": (pl.DataFrame({"a": y}).lazy(), y, "call .collect()"),
        "arrow": (pa.table({"a": y}), y, "call .to_pandas()"),
        "huge": (X * 1e160, y, "rescale the data"),
        "masked": (np.ma.masked_less(X, X[7, 1]), y, "X is masked in row"),
        "y_masked": (X, np.ma.array(y, mask=y == y[7]), "y is masked in row 7; drop"),
        "moment": (
            np.array([[np.datetime64("2020"), 1.0], [3.0, 1.0]] * 10, dtype=object),
            y,
            "a datetime64 in column 0 of X, row 0",
        ),
        "y_lapse": (X, [np.timedelta64(5, "D"), *y[1:]], "a timedelta64 in y, row 0"),
        "y_moment": (X, [np.datetime64("2020"), *y[1:]], "a datetime64 in y, row 0"),
        "cell": (
            np.array([[1.0, {}]] * 20, dtype=object),
            y,
            "a dict in column 1 of X, row 0, which is not a number",
        ),
        "endless": ([[10**400, 1.0]] * 20, y, "out of range in column 0 of X, row 0"),
        "time": (pl.DataFrame({"a": [time(12)] * 20}), y, "column 'a' of X holds times"),
        "by_name": ([{"a": 1.0}] * 20, y, "X holds values by name; turn it into a frame"),
        "lengths": ([[1.0], [1.0, 2.0]] * 10, y, "rows of different lengths"),
        "y_cube": (X, np.zeros((20, 1, 1)), "one or two dimensions"),
        "y_no_columns": (X, np.zeros((20, 0)), "one or two dimensions"),
    }
    if has_torch():
        import torch

        cases["gradient"] = (torch.ones(20, 2, requires_grad=True), y, "call .detach()")
    return cases


def test_whole_numbers_that_lose_digits_are_warned_of(rng):
    with pytest.warns(UserWarning, match="y holds whole numbers beyond"):
        DSMGPRegressor("rbf", optimizer=None).fit(rng.uniform(size=(9, 1)), 2**60 + np.arange(9))


BAD_DEVICE = "try 'auto' or 'cpu'" if has_torch() else "expected device to be 'auto', 'cpu' or"
BAD_PARAMETERS = {
    "kernel": ({"kernel": "gauss"}, "'rbf', 'matern12'"),
    "kernel_object": ({"kernel": object()}, "or a gpytorch kernel"),
    "mean": ({"mean": "cubic"}, "'zero', 'constant', 'linear' or a gpytorch mean"),
    "weights": (
        {"weights": "best"},
        "expected weights to be one of 'auto', 'gated', 'posterior', 'uniform'",
    ),
    "structure": ({"structure": "random"}, "'balanced', 'paper', 'learned', 'changepoint' or"),
    "optimizer": ({"optimizer": "sgd"}, "'lbfgs', 'adam', 'rmsprop' or None"),
    "objective": ({"objective": "both"}, "'surrogate', 'full'"),
    "dtype": ({"dtype": "float16"}, "'float64', 'float32'"),
    "leaf_size": ({"leaf_size": 0}, "leaf_size to be a whole number of at least 1, got 0"),
    "leaf_size_negative": ({"leaf_size": -3}, "at least 1, got -3"),
    "leaf_size_float": ({"leaf_size": 2.5}, "whole number"),
    "leaf_size_text": ({"leaf_size": "big"}, "whole number"),
    "leaf_size_list": ({"leaf_size": [10, 0]}, "every entry of leaf_size"),
    "leaf_size_empty": ({"leaf_size": []}, "at least one leaf_size"),
    "leaf_size_paper": ({"leaf_size": [10, 20], "structure": "paper"}, "structure='balanced'"),
    "leaf_size_learned": ({"leaf_size": [10, 20], "structure": "learned"}, "one leaf_size"),
    "kernels_few": ({"kernel": ["rbf"]}, "at least two different kernels"),
    "kernels_twice": ({"kernel": ["rbf", "rbf"]}, "at least two different kernels"),
    "kernels_auto": ({"kernel": ["rbf", "auto"]}, "expected kernel to be one of"),
    "kernels_objects": ({"kernel": ["rbf", 3]}, "expected names in a list of kernels"),
    "kernels_unlike": ({"kernel": ["rbf", "rq"]}, "'rbf' has 4, 'rq' has 5"),
    "kernels_full": ({"kernel": ["rbf", "rq"], "objective": "full"}, "learns one kernel"),
    "kernels_changes": (
        {"kernel": ["rbf", "rq"], "structure": "changepoint"},
        "a list of kernels is not available with structure=",
    ),
    "outputs": ({"outputs": "mixed"}, "expected outputs to be one of 'auto', 'independent'"),
    "priors": ({"priors": "flat"}, "expected priors to be one of 'lognormal' or None"),
    "sum_children": ({"sum_children": 0}, "sum_children to be a whole number"),
    "product_children": ({"product_children": 1}, "at least 2, got 1"),
    "depth": ({"depth": 0}, "depth to be a whole number of at least 1"),
    "noise": ({"noise_variance": -1.0}, "noise_variance to be a positive number"),
    "noise_text": ({"noise_variance": "a"}, "noise_variance to be a positive number"),
    "standardize": ({"standardize": "no"}, "standardize to be True or False, got 'no'"),
    "output_warp": ({"output_warp": "sqrt"}, "'auto', 'rank', 'log', 'positive' or None"),
    "local_scale": ({"local_scale": 3}, "local_scale to be None or True or False, got 3"),
    "effort": ({"effort": "extreme"}, "'low', 'medium', 'high'"),
    "device_meta": ({"device": "meta"}, BAD_DEVICE),
    "max_iter": ({"max_iter": 0}, "max_iter to be a whole number"),
    "n_restarts": ({"n_restarts": -1}, "n_restarts to be a whole number of at least 0"),
    "device": ({"device": "quantum"}, BAD_DEVICE),
    "memory": ({"memory_limit": "lots"}, "such as '4GB'"),
    "memory_zero": ({"memory_limit": 0}, "such as '4GB'"),
    "tree_dims": ({"structure": Leaf(Region.whole(3))}, "3 dimensions, X has 2 columns"),
    "tree_rows": ({"structure": Leaf(Region.whole(2), np.arange(5))}, "leave rows out"),
    "monster": (
        {"structure": "paper", "leaf_size": 1, "sum_children": 50, "depth": 5},
        "operations",
    ),
}


def state_of(model):
    return {key: id(value) for key, value in vars(model).items()}


@pytest.mark.parametrize("name", sorted(bad_rows()))
def test_bad_rows_are_refused_and_leave_the_estimator_as_it_was(wavy, name):
    X, y, message = bad_rows()[name]
    model = DSMGPRegressor(hypotheses=None, max_iter=3)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        model.fit(X, y)
    assert state_of(model) == state_of(clone(model)) or not hasattr(model, "n_features_in_")
    model.fit(*wavy)
    before, expected = state_of(model), model.predict(wavy[0])
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        model.fit(X, y)
    assert state_of(model) == before
    np.testing.assert_array_equal(model.predict(wavy[0]), expected)


@pytest.mark.parametrize("name", sorted(BAD_PARAMETERS))
def test_bad_parameters_are_refused_and_leave_the_estimator_as_it_was(wavy, name):
    parameters, message = BAD_PARAMETERS[name]
    model = DSMGPRegressor(hypotheses=None, max_iter=3).fit(*wavy)
    expected = model.predict(wavy[0])
    model.set_params(**parameters)
    before = state_of(model)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        model.fit(*wavy)
    assert state_of(model) == before
    np.testing.assert_array_equal(model.predict(wavy[0]), expected)


def test_bad_test_rows_are_refused(wavy):
    X, y = wavy
    model = DSMGPRegressor(hypotheses=None, max_iter=3).fit(X, y)
    with pytest.raises(ValueError, match="2 features"):
        model.predict(X[:, :1])
    with pytest.raises(ValueError, match="infinity \\(inf\\) in row 1, column 0"):
        model.predict([[0.0, 0.0], [np.inf, 0.0]])
    strict = DSMGPRegressor(hypotheses=None, max_iter=3, missing="error").fit(X, y)
    with pytest.raises(ValueError, match="column 'x0' has no value in row 1; remove such rows"):
        strict.predict([[0.0, 0.0], [np.nan, 0.0]])
    with pytest.raises(ValueError, match="at most one of return_std and return_cov"):
        model.predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="n_samples"):
        model.sample_y(X, n_samples=0)


@pytest.mark.parametrize(
    "X",
    [
        np.zeros((30, 2)),  # nothing varies
        np.repeat([[0.0, 1.0], [1.0, 0.0]], 15, axis=0),  # two distinct rows
        np.column_stack([np.arange(30.0), np.full(30, 3.0)]),  # a constant column
        np.arange(60.0).reshape(30, 2) * 1e-300,
    ],
    ids=["constant", "repeated", "constant_column", "tiny"],
)
@pytest.mark.parametrize("structure", ["balanced", "paper"])
def test_degenerate_inputs_still_give_a_valid_distribution(X, structure, rng):
    y = rng.normal(size=30)
    model = DSMGPRegressor(leaf_size=5, structure=structure, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_a_constant_output_is_predicted(rng):
    X = rng.normal(size=(30, 2))
    mean, std = DSMGPRegressor(random_state=0).fit(X, np.full(30, 4.2)).predict(X, return_std=True)
    np.testing.assert_allclose(mean, 4.2)
    assert np.isfinite(std).all()


def test_more_rows_in_a_leaf_than_memory_allows_are_refused_with_the_remedy(rng):
    X, y = rng.normal(size=(800, 2)), rng.normal(size=800)
    message = r"largest leaf has 800 rows with distinct inputs.*lower leaf_size"
    with pytest.raises(ValueError, match=message):
        DSMGPRegressor("rbf", leaf_size=800, memory_limit="1 MB").fit(X, y)
    # Rows with equal inputs, which no cut can separate, need no more memory than one.
    repeated = np.repeat(X[:2], 400, axis=0)
    DSMGPRegressor("rbf", leaf_size=50, memory_limit="1 MB").fit(repeated, y)


def test_evaluations_of_trials_are_counted(rng):
    X = rng.uniform(size=(60, 1))
    y = np.sin(5 * X[:, 0]) + 0.1 * rng.normal(size=60)
    one = DSMGPRegressor("matern32", random_state=0).fit(X, y)
    tried = DSMGPRegressor(hypotheses=None, random_state=0).fit(X, y)
    assert (
        one.n_evaluations_ == sum(result.n_evaluations for result in one.state_.search.results) > 0
    )
    assert tried.n_evaluations_ > sum(
        result.n_evaluations for result in tried.state_.search.results
    )
    assert DSMGPRegressor("matern32", optimizer=None).fit(X, y).n_evaluations_ == 0
