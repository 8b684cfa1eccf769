"""Model files: saving and loading changes nothing, and no damaged file is believed."""

import copy
import hashlib
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dsmgp
from dsmgp import DSMGPRegressor, ModelFileError, load
from dsmgp._util import archive
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.tree import Leaf, Product, Region, Sum
from tests.support.damage import packed, unpacked

SPACE = Region.whole(2)
TREE = Sum([Leaf(SPACE), Product([Leaf(p) for p in SPACE.split(0, [0.0])], 0, [0.0])])
VALUES = Kernel(
    (KernelTerm("rbf", [0.5, 1.0], 2.0), KernelTerm("periodic", [1, 1], 1, period=[1, 2]))
)
CASES = {
    "defaults": {"hypotheses": None},
    "posterior": {"weights": "posterior", "structure": "paper", "leaf_size": 30, "kernel": "rbf"},
    "shared factors": {"leaf_size": 40, "sum_children": 20, "kernel": "rbf", "one_input": True},
    "uniform": {"weights": "uniform", "leaf_size": [20, 50], "kernel": "matern12"},
    "float32": {"dtype": "float32", "kernel": "matern32", "effort": "low"},
    "periodic": {"kernel": "periodic", "leaf_size": 60},
    "named sum": {"kernel": "rq+periodic", "mean": "constant", "leaf_size": 60},
    "kernel with values": {"kernel": VALUES, "leaf_size": 60},
    "sum of kernels": {"modules": "sum", "leaf_size": 120},
    "product of kernels": {"modules": "product", "leaf_size": 120},
    "mean of gpytorch": {"kernel": "rbf", "modules": "mean", "leaf_size": 60},
    "linear mean": {"kernel": "rbf", "mean": "linear", "leaf_size": 60},
    "two outputs": {"leaf_size": 60, "kernel": "matern52", "two": True},
    "tree by hand": {"structure": TREE, "kernel": "rbf", "standardize": False},
    "warped": {"output_warp": "rank", "kernel": "rbf", "leaf_size": 60},
    "warped outputs": {"output_warp": "positive", "kernel": "rbf", "leaf_size": 60, "two": True},
    "logarithm": {"output_warp": "log", "kernel": "rbf", "leaf_size": 60},
    "nothing learned": {"optimizer": None, "kernel": "rbf", "noise_variance": 0.1},
}


def test_a_model_of_another_machine_answers_here(wavy, tmp_path):
    model, X = fitted(wavy, "defaults")
    model.save(tmp_path / "m.dsmgp")
    header, arrays = unpacked((tmp_path / "m.dsmgp").read_bytes())
    header["parameters"]["device"] = "cuda:77"
    (tmp_path / "far.dsmgp").write_bytes(packed(header, arrays))
    with pytest.warns(UserWarning, match="was fitted on 'cuda:77', which this machine lacks"):
        far = load(tmp_path / "far.dsmgp")
    assert far.device == "auto"
    np.testing.assert_array_equal(far.predict(X), model.predict(X))


@pytest.mark.parametrize("wrong", [{"leaf_size": -1}, {"kernel": "nonsense"}, {"max_iter": 0}])
def test_parameters_that_make_no_sense_are_refused_before_a_file_is_replaced(wrong, wavy, tmp_path):
    model, _ = fitted(wavy, "nothing learned")
    path = tmp_path / "m.dsmgp"
    model.save(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        model.set_params(**wrong).save(path)
    assert path.read_bytes() == before


def modules(kind):
    """Parameters that are modules of GPyTorch."""
    gpytorch = pytest.importorskip("gpytorch")
    kernels, constant = gpytorch.kernels, gpytorch.means.ConstantMean()
    rbf = kernels.ScaleKernel(kernels.RBFKernel(active_dims=[0]))
    return {
        "sum": {"kernel": kernels.ScaleKernel(kernels.RBFKernel()) + kernels.LinearKernel()},
        "product": {"kernel": rbf * kernels.PeriodicKernel(active_dims=[1]), "mean": constant},
        "mean": {"mean": constant},
    }[kind]


def fitted(wavy, case, **more):
    X, y = wavy
    settings = {"max_iter": 3, "random_state": 0, **CASES[case], **more}
    if "modules" in settings:
        settings |= modules(settings.pop("modules"))
    if settings.get("dtype") == "float32":
        pytest.importorskip("torch")
    if settings.pop("one_input", False):
        X = X[:, :1]
    if settings.pop("two", False):
        y = np.column_stack([y, y + np.cos(X[:, 0])])
    if settings.get("output_warp") in ("log", "positive"):
        y = np.exp(y)
    return DSMGPRegressor(**settings).fit(X, y), X


def everything(model, X):
    distribution = model.predict_dist(X)
    mean, std = model.predict(X, return_std=True)
    return [
        mean,
        std,
        distribution.quantile(0.05),
        distribution.weights,
        model.predict(X, include_noise=False, return_cov=True)[1],
        model.sample_y(X, 2, random_state=3),
        np.array(model.log_marginal_likelihood_),
        np.array([model.loo_score_, model.loo_score_new_inputs_]),
    ]


@pytest.mark.parametrize("case", CASES)
def test_saving_and_loading_changes_nothing(wavy, tmp_path, case):
    model, X = fitted(wavy, case)
    new = X[:20] + 0.05
    before = everything(model, new)
    model.save(tmp_path / "model.dsmgp")
    again = load(tmp_path / "model.dsmgp")
    for ours, theirs in zip(everything(again, new), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    same = ("n_iter_", "n_evaluations_", "n_features_in_", "n_induced_trees_", "kernel_scores_")
    assert all(getattr(again, name) == getattr(model, name) for name in same)
    assert again.summary() == model.summary()


@pytest.mark.parametrize("kind", [None, "sum"])
def test_a_loaded_model_is_an_estimator_like_any_other(wavy, tmp_path, kind):
    X, y = wavy
    frame = pd.DataFrame({"height": X[:, 0], "weight": X[:, 1]})
    parameters = {"kernel": VALUES} if kind is None else modules(kind)
    model = DSMGPRegressor(**parameters, leaf_size=(30, 60), max_iter=3, random_state=np.int64(0))
    model.fit(frame, y).save(tmp_path / "model.dsmgp")
    again = DSMGPRegressor.load(tmp_path / "model.dsmgp")
    assert list(again.feature_names_in_) == ["height", "weight"]
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame[["weight", "height"]])
    np.testing.assert_array_equal(clone(again).fit(frame, y).predict(frame), model.predict(frame))
    again.save(tmp_path / "again.dsmgp")
    assert (tmp_path / "again.dsmgp").read_bytes() == (tmp_path / "model.dsmgp").read_bytes()


@pytest.mark.parametrize("number", [1, 2])
def test_a_sample_of_every_format_predicts_what_it_did(number):
    folder = Path(__file__).parents[1] / "data"
    expected = json.loads((folder / f"format-{number}.json").read_text())
    model = load(folder / f"format-{number}.dsmgp")
    header = archive.read_archive(folder / f"format-{number}.dsmgp").header
    assert header["format"] == number <= archive.FORMAT
    mean, std = model.predict(expected["X"], return_std=True)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-6)
    np.testing.assert_allclose(std, expected["std"], rtol=1e-6)
    assert model.log_marginal_likelihood_ == pytest.approx(
        expected["log_marginal_likelihood"], 1e-6
    )
    assert model.loo_score_ == pytest.approx(expected["loo_score"], 1e-6)
    rows = model.state_.rows
    assert model.fit(rows.X, rows.Y).predict(expected["X"]).shape == (6, 2)


@pytest.mark.parametrize("case", ["defaults", "two outputs", "tree by hand"])
def test_the_header_has_the_units(wavy, tmp_path, case):
    model, X = fitted(wavy, case)
    model.save(tmp_path / "model.dsmgp")
    units = archive.read_archive(tmp_path / "model.dsmgp").header["units"]
    plain = case == "tree by hand"  # which is not standardised
    for unit, table in ((units["inputs"], X), (units["outputs"], model.state_.rows.Y)):
        nothing = np.zeros(table.shape[1])
        np.testing.assert_allclose(unit["centre"], nothing if plain else table.mean(axis=0))
        expected = nothing + 1 if plain else table.std(axis=0)
        np.testing.assert_allclose(unit["scale"], expected, rtol=1e-6)


@pytest.mark.parametrize("module", [pickle, joblib])
def test_pickle_and_joblib_work_before_and_after(wavy, tmp_path, module):
    model, X = fitted(wavy, "sum of kernels")
    model.save(tmp_path / "model.dsmgp")
    for one in (model, load(tmp_path / "model.dsmgp")):
        with open(tmp_path / "pickled", "wb") as file:
            module.dump(one, file)
        with open(tmp_path / "pickled", "rb") as file:
            np.testing.assert_array_equal(module.load(file).predict(X), model.predict(X))


@pytest.mark.slow
def test_another_process_reads_it(wavy, tmp_path):
    model, X = fitted(wavy, "defaults")
    path = tmp_path / "model.dsmgp"
    model.save(path)
    code = f"import dsmgp; print(*dsmgp.load({str(path)!r}).predict({X[:3].tolist()}).tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    np.testing.assert_array_equal([float(v) for v in done.stdout.split()], model.predict(X[:3]))


def test_files_are_about_as_large_as_the_rows(rng, tmp_path):
    X = rng.uniform(size=(4000, 8))
    model = DSMGPRegressor("rbf", leaf_size=100, max_iter=2, random_state=0).fit(X, X[:, 0])
    model.save(tmp_path / "model.dsmgp")
    assert os.path.getsize(tmp_path / "model.dsmgp") < 1.3 * (X.nbytes + 8 * len(X))


def test_what_the_user_does_to_the_rows_later_is_not_saved(wavy, tmp_path):
    X, y = (np.ascontiguousarray(a) for a in wavy)
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, y)
    new = X.copy()
    before = model.predict(new)
    X[:], y[:] = 0.0, 7.0
    model.save(tmp_path / "model.dsmgp")
    np.testing.assert_array_equal(load(tmp_path / "model.dsmgp").predict(new), before)


def test_rows_that_came_and_went_are_as_they_are_now(wavy, tmp_path):
    X, y = wavy
    path = tmp_path / "model.dsmgp"
    model = DSMGPRegressor("rbf", leaf_size=30, max_iter=5, random_state=0).fit(X[:90], y[:90])
    model.partial_fit(X[90:110], y[90:110], adapt=False).forget(np.arange(5, 12), adapt=False)
    before = everything(model, X[:20])
    model.save(path)
    again = load(path)
    for ours, theirs in zip(everything(again, X[:20]), before, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(again.row_ids_, model.row_ids_)
    for one in (again, model):
        one.partial_fit(X[110:], y[110:]).forget([20], adapt=False)
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-9)
    assert again.row_ids_[-1] == 119


def test_noise_known_row_by_row_is_kept(wavy, tmp_path):
    X, y = wavy
    noise = np.linspace(0.001, 0.5, len(y))
    model = DSMGPRegressor("rbf", leaf_size=40, max_iter=5, random_state=0).fit(X, y, noise=noise)
    model.save(tmp_path / "model.dsmgp")
    again = load(tmp_path / "model.dsmgp")
    for ours, theirs in zip(everything(again, X[:9]), everything(model, X[:9]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_theta_of_every_leaf_is_kept(wavy, tmp_path):
    X, y = wavy
    model = DSMGPRegressor("rbf", leaf_size=40, sum_children=3, max_iter=3, random_state=0)
    model.fit(X, y).finetune(max_iter=5)
    model.save(tmp_path / "model.dsmgp")
    again = load(tmp_path / "model.dsmgp")
    for ours, theirs in zip(everything(again, X[:9]), everything(model, X[:9]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(again.noise_at(X), model.noise_at(X))


def test_hyperparameters_of_each_leaf_are_kept(wavy, tmp_path):
    """Leaves may have been given theirs since the fit."""
    model, X = fitted(wavy, "uniform")
    posterior = model.state_.model.leaf_posterior
    n_leaves = posterior.leaf_gps.n_leaves
    tables = [np.tile(parameters, (n_leaves, 1)) for parameters in posterior.kernel_parameters]
    tables[0][:, 0] *= np.linspace(0.5, 2.0, n_leaves)
    posterior = posterior.leaf_gps.condition(tables)
    changed = replace(model.state_.model, leaf_posterior=posterior)
    model._state = replace(model.state_, model=changed)
    model.save(tmp_path / "model.dsmgp")
    again = load(tmp_path / "model.dsmgp")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


# The user's own modules


def test_a_kernel_of_ones_own_is_refused_with_the_remedy(wavy, tmp_path):
    gpytorch = pytest.importorskip("gpytorch")

    class OwnKernel(gpytorch.kernels.RBFKernel):
        """A class of the user's own."""

    class OwnMean(gpytorch.means.ConstantMean):
        """Another."""

    X, y = wavy
    model = DSMGPRegressor(OwnKernel(), OwnMean(), max_iter=3, random_state=0).fit(X, y)
    path = tmp_path / "model.dsmgp"
    with pytest.raises(ModelFileError, match=r"OwnKernel.*own_modules=True.*kernel=\.\.\."):
        model.save(path)
    assert not list(tmp_path.iterdir())
    model.save(path, own_modules=True)
    with pytest.raises(ModelFileError, match=r"of your own \(.*OwnKernel\).*load\(path, kernel"):
        load(path)
    with pytest.raises(ModelFileError, match=r"OwnKernel.*RBFKernel\) was given"):
        load(path, kernel=gpytorch.kernels.RBFKernel(), mean=OwnMean())
    with pytest.raises(ModelFileError, match="invalid kernels or means: expected kernel to be"):
        load(path, kernel=3, mean=OwnMean())
    again = load(path, kernel=OwnKernel(), mean=OwnMean())
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_a_kernel_that_is_not_wanted_is_refused(wavy, tmp_path):
    model, _ = fitted(wavy, "uniform")
    model.save(tmp_path / "model.dsmgp")
    with pytest.raises(ModelFileError, match="leave kernel out"):
        load(tmp_path / "model.dsmgp", kernel="rbf")


# Files


def test_errors_name_the_file_and_the_remedy(wavy, tmp_path):
    model, _ = fitted(wavy, "nothing learned")
    with pytest.raises(ModelFileError, match="does not exist; check the path"):
        load(tmp_path / "nothing.dsmgp")
    with pytest.raises(ModelFileError, match="holds no model"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("a,b\n1,2\n" * 10)
    with pytest.raises(ModelFileError, match=r"notes\.txt is not a dsmgp model file"):
        load(tmp_path / "notes.txt")
    with pytest.raises(ModelFileError, match=r"folder .* does not exist"):
        model.save(tmp_path / "no" / "model.dsmgp")
    with pytest.raises(ModelFileError, match="is a folder"):
        model.save(tmp_path)
    with pytest.raises(NotFittedError):
        DSMGPRegressor().save(tmp_path / "model.dsmgp")


def test_files_of_a_later_format_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "FORMAT", archive.FORMAT + 1)
    archive.write_archive(tmp_path / "later.dsmgp", {"dsmgp": "9.1"}, {"X": np.ones(3)})
    monkeypatch.undo()
    with pytest.raises(ModelFileError, match=r"format 3, written by dsmgp 9\.1.*upgrade dsmgp"):
        load(tmp_path / "later.dsmgp")


def test_a_write_that_fails_leaves_the_old_file(wavy, tmp_path, monkeypatch):
    model, _ = fitted(wavy, "nothing learned")
    path = tmp_path / "model.dsmgp"
    model.save(path)
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFileError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.dsmgp"]


def test_a_new_file_may_be_read_by_whom_files_may(wavy, tmp_path):
    model, _ = fitted(wavy, "nothing learned")
    before = os.umask(0o022)
    try:
        model.save(tmp_path / "model.dsmgp")
    finally:
        os.umask(before)
    assert (tmp_path / "model.dsmgp").stat().st_mode & 0o777 == 0o644


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of a small file."""
    X = np.linspace(0, 1, 30)[:, None]
    path = tmp_path_factory.mktemp("small") / "model.dsmgp"
    DSMGPRegressor(hypotheses=None, leaf_size=10, max_iter=3, random_state=0).fit(
        X, np.sin(6 * X[:, 0])
    ).save(path)
    return path.read_bytes()


def damaged(content, rng):
    """A file that something has happened to."""
    at, n = int(rng.integers(len(content))), int(rng.integers(1, 40))
    match rng.integers(5):
        case 0:
            return content[:at]
        case 1:
            return content + rng.bytes(n)
        case 2:
            return content[:at] + rng.bytes(n) + content[at:]
        case 3:
            return content[:at] + content[at + n :]
        case _:
            bit = bytes([content[at] ^ (1 << int(rng.integers(8)))])
            return content[:at] + bit + content[at + 1 :]


@pytest.mark.parametrize("n", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_are_all_refused(small, tmp_path, rng, n):
    path = tmp_path / "model.dsmgp"
    for _ in range(n):
        content = damaged(small, rng)
        if content == small:
            continue
        path.write_bytes(content)
        with pytest.raises(ModelFileError):
            load(path)


def signed(content):
    """With a checksum that is right again."""
    start = content.index(archive.MARK) + len(archive.MARK)
    blank = content[:start] + b"0" * archive.DIGITS + content[start + archive.DIGITS :]
    return (
        content[:start]
        + hashlib.sha256(blank).hexdigest().encode()
        + blank[start + archive.DIGITS :]
    )


def test_files_with_a_right_sum_and_wrong_content_are_refused_or_read(small, tmp_path, rng):
    """Whoever made them, nothing but the one error comes out."""
    path = tmp_path / "model.dsmgp"
    outcomes = set()
    for _ in range(100):
        content = bytearray(small)
        for _ in range(int(rng.integers(1, 4))):
            content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        if archive.MARK not in content:
            continue
        path.write_bytes(signed(bytes(content)))
        try:
            outcomes.add(type(load(path)))
        except ModelFileError as error:
            outcomes.add(type(error))
    assert outcomes == {ModelFileError, DSMGPRegressor}


def changed(content, change):
    """A file whose header, or whose arrays, were changed and summed again."""
    header, arrays = unpacked(content)
    change(header, arrays)
    return packed(header, arrays)


def entry(*keys, value):
    def change(header, arrays):
        for key in keys[:-1]:
            header = header[key]
        header[keys[-1]] = value

    return change


def array(name, value):
    def change(header, arrays):
        arrays[name] = value(arrays[name])

    return change


def add_rows_without_ends(header, arrays):
    arrays["tree.rows"] = np.arange(30)


def add_family_with_another_mean(header, arrays):
    """The mean has a hyperparameter that those of the first family lack."""
    family = copy.deepcopy(header["families"][0])
    process = family["processes"][0]
    assert process["mean"] == "zero"
    process["mean"] = "constant"
    mean = {"name": "mean", "size": 1, "transform": "identity", "lower": 0.0}
    process["parameters"].insert(0, mean)
    header["families"].append(family)
    arrays["family.1.0.theta"] = np.append(0.0, arrays["family.0.0.theta"])
    arrays["leaf.family"][0] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add_rows_without_ends, "invalid tree"),
        (add_family_with_another_mean, "different numbers of hyperparameters"),
        (entry("scores", "kernels", value={"rbf": 10**400}), "scores.kernels"),
        (entry("parameters", "memory_limit", value=10**400), "memory_limit"),
        (entry("squeeze", value=3), "squeeze"),
        (entry("weights", value="none"), "weights"),
        (entry("weights", value="posterior"), "gate"),
        (entry("families", value=[]), "families"),
        (entry("families", 0, "processes", value=[]), "processes' has 0 entries, expected 1"),
        (entry("families", 0, "processes", 0, "terms", 0, "kernel", value="Popen"), "Popen"),
        (entry("families", 0, "processes", 0, "terms", value=[]), "cannot be read"),
        (entry("parameters", "weights", value="best"), "weights"),
        (entry("parameters", "device", value="abacus"), "abacus"),
        (entry("feature_names", value=["a", "b"]), "feature_names"),
        (entry("gate", "variance_exponent", value="3"), "gate.variance_exponent"),
        (entry("changes", value={}), "lacks 'changes.following'"),
        (entry("changes", "following", value=3), "numbered"),
        (entry("changes", "n_changed", value=-1), "n_changed"),
        (entry("scores", value={}), "lacks 'scores.n_evaluations'"),
        (array("X", lambda a: a * np.nan), "not finite"),
        (array("X", lambda a: a.astype(np.float32)), "float32"),
        (array("X", lambda a: a[:-1]), "expected"),
        (array("X", lambda a: a[:0]), "cannot be read"),
        (array("leaf.scale", np.negative), "not positive"),
        (array("leaf.family", lambda a: a + 7), "families"),
        (entry("families", value=2 * [None]), "each entry an object"),
        (array("inputs.scale", lambda a: 0 * a), "inputs.scale' is not positive"),
        (array("gate.shape_weights", lambda a: 2 * a), "gate"),
        (array("tree.values", lambda a: a[::-1]), "cannot be read"),
        (array("tree.numbers", lambda a: a[:-1]), "do not agree"),
        (array("family.0.0.theta", lambda a: 0 * a + np.inf), "finite"),
        (array("family.0.0.theta", lambda a: 0 * a + 1e4), "finite"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(small, tmp_path, change, message):
    path = tmp_path / "model.dsmgp"
    path.write_bytes(changed(small, lambda header, arrays: None))
    assert load(path).predict([[0.5]]).shape == (1,)
    path.write_bytes(changed(small, change))
    with pytest.raises(ModelFileError, match=message):
        load(path)


def nest_kernels(process):
    kernel = process["kernel"]
    for _ in range(300):
        kernel = {**kernel, "class": "ScaleKernel", "options": {}, "parts": [kernel]}
    process["kernel"] = kernel


def nest_numbers(process):
    bound = process["likelihood"]["constraint"]["lower"]
    for _ in range(800):
        bound["values"] = [bound["values"]]


@pytest.mark.parametrize(
    ("nest", "message"),
    [(nest_kernels, "nested more than 50 deep"), (nest_numbers, "lower.values")],
)
def test_headers_that_nest_without_end_are_refused(tmp_path, nest, message):
    path, sample = tmp_path / "model.dsmgp", Path(__file__).parents[1] / "data" / "format-1.dsmgp"

    def change(header, arrays):
        nest(header["families"][0]["processes"][0])

    path.write_bytes(changed(sample.read_bytes(), change))
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_factors_are_no_longer_written(wavy, tmp_path):
    model, X = fitted(wavy, "uniform")
    with pytest.warns(FutureWarning, match="include_factors is ignored"):
        model.save(tmp_path / "model.dsmgp", include_factors=True)
    _, arrays = unpacked((tmp_path / "model.dsmgp").read_bytes())
    assert not [name for name in arrays if name.startswith("factor.")]
    np.testing.assert_array_equal(load(tmp_path / "model.dsmgp").predict(X), model.predict(X))


def test_load_is_a_public_name():
    assert dsmgp.load is load


def test_a_file_from_before_warps_is_not_warped(wavy, tmp_path):
    """It lacks the parameter, and would be fitted again without a warp."""
    model, X = fitted(wavy, "defaults")
    model.save(tmp_path / "m.dsmgp")
    header, arrays = unpacked((tmp_path / "m.dsmgp").read_bytes())
    assert "output_warps" not in header
    del header["parameters"]["output_warp"]
    (tmp_path / "old.dsmgp").write_bytes(packed(header, arrays))
    old = load(tmp_path / "old.dsmgp")
    assert old.output_warp is None
    np.testing.assert_array_equal(old.predict(X), model.predict(X))
