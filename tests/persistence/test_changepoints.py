"""Files of models whose leaves may break: the same after loading, and nothing made up is believed."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from dsmgp import ChangePoints, DSMGPRegressor, ModelFileError, load
from dsmgp.tree import Leaf, Product, Region, Sum, leaves
from dsmgp.tree.changepoint_leaf import ChangePointLeaf, has_changepoints
from tests.support.damage import packed, unpacked

SPACE = Region.whole(2)
LEFT, RIGHT = SPACE.split(0, [0.5])
ONE = ChangePoints(1, n_changes=1)
CASES = {
    "by name": {"structure": "changepoint"},
    "one change": {"structure": ChangePoints(1, n_changes=1, gaps="length")},
    "rates": {"structure": ChangePoints(1, gaps="length", shortest=2), "leaf_size": 50},
    "numbers of numpy": {"structure": ChangePoints(np.int64(1), shortest=np.int64(2))},
    "outliers": {"structure": ChangePoints(1, outliers=True), "kernel": "auto"},
    "two outputs": {"structure": ChangePoints(1), "two": True, "mean": "linear"},
    "nothing learned": {"structure": ChangePoints(1, hazard=0.1), "optimizer": None},
    "units as given": {"structure": ChangePoints(1), "standardize": False},
    "a break or none": {"structure": Sum([Leaf(SPACE), ChangePointLeaf(SPACE, changes=ONE)])},
    "one side breaks": {"structure": Product([Leaf(LEFT), ChangePointLeaf(RIGHT, changes=ONE)], 0, [0.5])},
    "a leaf without rows": {"structure": Product([ChangePointLeaf(LEFT, changes=ONE), Leaf(RIGHT)], 0, [0.5]), "shift": 5.0},
    "fractions": {"structure": ChangePoints(1, hazard=Fraction(1, 8))},
    "sum of kernels": {"structure": ChangePoints(1), "kernel": "rbf+periodic"},
    "kernel of gpytorch": {"structure": ChangePoints(1), "modules": True},
}  # fmt: skip


def with_modules(options):
    """The options of a case, with a kernel that is a module of GPyTorch where the case asks for one."""
    if not options.pop("modules", False):
        return options
    kernels = pytest.importorskip("gpytorch").kernels
    return options | {"kernel": kernels.ScaleKernel(kernels.RBFKernel())}


def jumping(rng, n=60):
    X = np.column_stack([rng.uniform(size=n), np.sort(rng.uniform(0, 10, size=n))])
    y = np.sin(X[:, 1]) + 3.0 * (X[:, 1] > 4) + 0.1 * rng.normal(size=n)
    y[10] += 6.0
    return X, y


def everything(model, X):
    distribution = model.predict_dist(X)
    return [
        *model.predict(X, return_std=True),
        distribution.weights,
        distribution.quantile(0.9),
        model.predict(X, return_cov=True)[1],
        model.sample_y(X, 2, random_state=1, include_noise=True),
        np.array(model.log_marginal_likelihood_),
        model.split_posterior(1).probability,
        model.row_ids_,
    ]


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory):
    """A model of each case, its training rows, and its file."""
    (X, y), options = (
        jumping(np.random.default_rng(20260711)),
        with_modules(dict(CASES[request.param])),
    )
    if options.pop("two", False):
        y = np.column_stack([y, -y])
    X = X - [options.pop("shift", 0.0), 0.0]
    model = DSMGPRegressor(**{"kernel": "rbf", "max_iter": 3, **options}).fit(X, y)
    path = tmp_path_factory.mktemp("saved") / "m.dsmgp"
    model.save(path)
    return model, X, y, path


def test_a_loaded_model_is_the_same_bit_for_bit(saved, tmp_path):
    model, X, _, path = saved
    duplicate = load(path)
    new = np.concatenate([X[::7], X[:3] + [0.0, 20.0]])
    for one, other in zip(everything(model, new), everything(duplicate, new), strict=True):
        np.testing.assert_array_equal(one, other)
    assert duplicate.summary() == model.summary()
    assert duplicate.changepoints() == model.changepoints()
    assert duplicate.kernel_scores_ == model.kernel_scores_
    assert not hasattr(duplicate, "loo_score_")
    assert not hasattr(duplicate, "loo_score_new_inputs_")
    duplicate.save(tmp_path / "again.dsmgp")
    assert (tmp_path / "again.dsmgp").read_bytes() == path.read_bytes()


def test_a_loaded_model_can_be_fitted_again(saved):
    """The file holds the structure that the user gave, with names of inputs."""
    model, X, y, path = saved
    duplicate = load(path)
    given, stored = model.structure, duplicate.structure
    if isinstance(given, str | ChangePoints):
        assert stored == given
    else:
        assert has_changepoints(stored)
        assert [getattr(leaf, "changes", None) for leaf in leaves(stored)] == [
            getattr(leaf, "changes", None) for leaf in leaves(given)
        ]
    np.testing.assert_array_equal(duplicate.fit(X, y).predict(X), model.predict(X))


def test_names_and_dates_come_back(rng, tmp_path):
    days = pd.date_range("2020-01-01", periods=50, freq="D")
    y = (np.arange(50) > 30) + 0.1 * rng.normal(size=50)
    frame = pd.DataFrame({"level": rng.normal(size=50), "day": days})
    model = DSMGPRegressor("rbf", structure=ChangePoints("day"), max_iter=5).fit(frame, y)
    model.save(tmp_path / "m.dsmgp")
    duplicate = load(tmp_path / "m.dsmgp")
    assert duplicate.structure == ChangePoints("day")
    (change,) = duplicate.changepoints(0.5)
    assert np.datetime64("2020-01-30") < change.position < np.datetime64("2020-02-02")
    np.testing.assert_array_equal(duplicate.predict(frame), model.predict(frame))


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    path, found = tmp_path_factory.mktemp("breaks") / "m.dsmgp", []
    X, y = jumping(np.random.default_rng(0))
    for structure in (
        ChangePoints(1),
        ChangePoints(1, outliers=True),
        CASES["a break or none"]["structure"],
    ):
        DSMGPRegressor("rbf", structure=structure, max_iter=2).fit(X, y).save(path)
        found.append(path.read_bytes())
    return found


def of_leaf(**values):
    return lambda h, a: h["breaks"]["changes"][-1].update(values)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (0, lambda h, a: h["breaks"].update(hazards=[None]), "hazards"),
        (0, lambda h, a: h["breaks"].update(hazards=[1.0]), "hazards"),
        (0, lambda h, a: h["breaks"].update(hazards=[0.1, 0.1]), "hazards' has 2 entries, expected 1"),
        (0, lambda h, a: h["breaks"].update(longest=[-1]), "longest.*whole number"),
        (0, lambda h, a: h["parameters"].update(memory_limit="10kb"), "raise memory_limit"),
        (0, lambda h, a: h.update(breaks=1), "'breaks' is 1, expected an object"),
        (0, lambda h, a: h["breaks"].update(longest=[1]), "twice as long as the shortest"),
        (0, lambda h, a: h["breaks"].update(longest=[True]), "longest.*whole number"),
        (0, lambda h, a: h["breaks"].update(changes=[None]), "not there"),
        (0, lambda h, a: h["breaks"].update(changes=[]), "breaks.changes' has 0 entries, expected 1"),
        (0, lambda h, a: h["breaks"].update(changes=[3]), "each entry an object"),
        (0, lambda h, a: h["breaks"].update(outliers={"share": 0.1, "ratio": 20.0}), "outlier_probability"),
        (0, of_leaf(dimension=2), "not there"),
        (0, of_leaf(dimension="x1"), "not there"),
        (0, of_leaf(dimension=-1), "dimension"),
        (0, of_leaf(gaps="wide"), "gaps"),
        (0, of_leaf(often=True), "often"),
        (0, of_leaf(outliers=True), "outliers do not go with"),
        (0, of_leaf(n_changes=1), "hazards"),
        (1, lambda h, a: h["breaks"]["outliers"].update(ratio=0.5), "breaks.outliers.ratio' is 0.5"),
        (1, lambda h, a: h["breaks"]["outliers"].update(share="0.1"), "breaks.outliers.share"),
        (1, lambda h, a: a["breaks.outlier_probability"].__setitem__(0, 1.5), "not between 0 and 1"),
        (1, lambda h, a: a.pop("breaks.outlier_probability"), "lacks the array"),
        (1, lambda h, a: h["breaks"].update(outliers=None), "outliers do not go with"),
        (2, lambda h, a: h["breaks"].update(hazards=[None, 0.5]), "hazards"),
        (2, lambda h, a: h["families"].append(h["families"][0]), "famil|missing"),
    ],
)  # fmt: skip
def test_what_no_fit_could_have_found_is_refused(contents, tmp_path, kind, change, message):
    header, arrays = unpacked(contents[kind])
    change(header, arrays)
    (tmp_path / "m.dsmgp").write_bytes(packed(header, arrays))
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path / "m.dsmgp")


def test_a_small_file_cannot_ask_for_all_memory(contents, tmp_path):
    """Its tables would take a hundred thousand rows times as many."""
    header, arrays = unpacked(contents[0])
    n = 100_000
    arrays["X"] = np.column_stack([np.arange(n, dtype=float), np.arange(n, dtype=float)])
    arrays["Y"] = np.zeros((n, 1))
    header["breaks"]["longest"] = [n]
    header["changes"] |= {"n_fitted": n, "following": n}
    (tmp_path / "m.dsmgp").write_bytes(packed(header, arrays))
    with pytest.raises(ModelFileError, match="raise memory_limit"):
        load(tmp_path / "m.dsmgp")
