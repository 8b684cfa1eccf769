"""Models fitted to datasets: rows of further files are added and rows are forgotten as if the leaves had been conditioned so at once."""

import datetime
import pickle
import zlib
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

from dsmgp import DSMGPRegressor, load
from dsmgp.data.columns.schema import Column, ColumnSchema
from dsmgp.data.parquet.conditions import RowCondition
from dsmgp.data.table_error import TableError
from dsmgp.distributed.row_store import RowStore
from dsmgp.distributed.row_writer import RowWriter
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.datasets import fit as dataset
from dsmgp.fitting.datasets import updates
from dsmgp.tree import leaves
from dsmgp.tree.routing import place

OPTIONS = {"kernel": "rbf", "leaf_size": 40, "memory_limit": "2MB", "random_state": 0, "max_iter": 3}  # fmt: skip
N = 900


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, size=(N, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=N)
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})


@pytest.fixture
def folder(rows, tmp_path, monkeypatch):
    for name in ("LEAST_SAMPLE", "MOST_SAMPLE"):
        monkeypatch.setattr(dataset, name, 300)
    for k in range(3):
        rows[300 * k : 300 * (k + 1)].to_parquet(tmp_path / f"{k}.parquet", row_group_size=130)
    return tmp_path


def conditioned_at_once(model, rows):
    """Tree, hyperparameters, scales and gate of a model, with all leaves conditioned on some rows in this process."""
    X, Y = rows[["a", "b"]].to_numpy(), rows[["y"]].to_numpy()
    inner = model.state_.model
    tree = place(inner.tree, inner.inputs.to_coordinates(X), replace_rows=True)
    leaf_gps = InMemoryLeafGPs(
        leaves(tree),
        LeafData(inner.inputs.to_experts(X), inner.outputs.to_experts(Y)),
        inner.leaf_posterior.leaf_gps.kernels,
    )
    posterior = condition(leaf_gps, inner.leaf_posterior.kernel_parameters)
    return replace(inner, tree=tree, leaf_posterior=posterior)


def same(model, rows):
    expected, test = conditioned_at_once(model, rows), rows[["a", "b"]].to_numpy()[:60] + 0.01
    sizes = np.array([leaf.n_rows for leaf in leaves(expected.tree)])
    np.testing.assert_array_equal(model.state_.model.leaf_posterior.leaf_sizes, sizes)
    for one, other in zip(model.state_.model.moments(test), expected.moments(test), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    assert model.log_marginal_likelihood_ == pytest.approx(expected.log_evidence, rel=1e-9)
    assert model.state_.model.n_rows == len(rows)


@pytest.mark.parametrize("warp", [None, "rank"])
def test_rows_of_further_files_count_like_the_first(folder, rows, warp):
    model = DSMGPRegressor(**OPTIONS, output_warp=warp)
    model.fit_dataset([folder / "0.parquet", folder / "1.parquet"], target="y")
    before = model.predict(rows[["a", "b"]][:20])
    copy, score = DSMGPRegressor(**OPTIONS), model.loo_score_
    copy._state = model.state_
    if warp is None:
        model.partial_fit_dataset(folder / "2.parquet")
        same(model, rows)
        assert model.loo_score_ != score
        assert np.isfinite(model.loo_score_)
        model.forget_dataset((pc.field("a") < 0) & (pc.field("y") > 0))
        same(model, rows[~((rows["a"] < 0) & (rows["y"] > 0))])
    else:
        # All rows again and away: evidence and its correction for the warp are as before.
        inside = rows["y"].between(*rows["y"][:300].quantile([0.05, 0.95]))
        rows[600:][inside[600:]].to_parquet(folder / "2.parquet")
        evidence = model.log_marginal_likelihood_
        model.partial_fit_dataset(folder / "2.parquet")
        jacobian = model.state_.model.log_jacobian
        known = rows[inside][["y"]].to_numpy()
        added = known[inside[:600].sum() :]
        assert jacobian - copy.state_.model.log_jacobian == pytest.approx(
            model.state_.model.outputs.log_jacobian(added)
        )
        assert model.log_marginal_likelihood_ != evidence
    # The state before is whole.
    np.testing.assert_array_equal(copy.predict(rows[["a", "b"]][:20]), before)


def test_a_saved_model_is_saved_again(folder, rows, tmp_path):
    store = tmp_path / "model"
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder / "0.parquet", target="y", store=store)
    first = model.predict(rows[["a", "b"]][:20])
    model.partial_fit_dataset(folder / "1.parquet")
    np.testing.assert_array_equal(load(store).predict(rows[["a", "b"]][:20]), first)
    model.save(store)
    again = load(store)
    np.testing.assert_array_equal(
        again.predict(rows[["a", "b"]][:20]), model.predict(rows[["a", "b"]][:20])
    )
    again.partial_fit_dataset(folder / "2.parquet")
    same(again, rows)


def test_errors_leave_the_model_and_its_files_as_they_were(folder, rows):
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder / "0.parquet", target="y")
    store = model.state_.model.leaf_posterior.leaf_gps.store
    state, files = model.state_, sorted(p.name for p in (store.folder / "shards").iterdir())
    rows.drop(columns="b").to_parquet(folder / "3.parquet")
    with pytest.raises(TableError, match="no column 'b'"):
        model.partial_fit_dataset(folder / "3.parquet")
    bad = rows.copy()
    bad.loc[800, "a"] = np.inf
    bad.to_parquet(folder / "3.parquet", row_group_size=100)
    with pytest.raises(TableError, match=r"in 3\.parquet: column 'a' has inf"):
        model.partial_fit_dataset(folder / "3.parquet")
    with pytest.raises(TableError, match=r"the columns are 'a' \(numbers\), 'b' \(numbers\), 'y'"):
        model.forget_dataset(pc.field("z") > 0)
    with pytest.raises(TableError, match="string"):
        model.forget_dataset(pc.field("a") == "red")
    with pytest.raises(ValueError, match=r"expected a condition such as .* got 'a > 0'"):
        model.forget_dataset("a > 0")
    with pytest.raises(ValueError, match="at least two must stay"):
        model.forget_dataset(pc.field("a") > -100)
    assert model.forget_dataset(pc.field("a") > 100).state_ is state
    assert sorted(p.name for p in (store.folder / "shards").iterdir()) == files
    in_memory = DSMGPRegressor(**OPTIONS).fit(rows[["a", "b"]][:100], rows["y"][:100])
    with pytest.raises(ValueError, match="use partial_fit"):
        in_memory.partial_fit_dataset(folder / "0.parquet")


def doubles_in(*blobs):
    """All doubles that bytes hold, wherever they begin."""
    return np.unique(
        np.concatenate(
            [np.frombuffer(b[k : k + (len(b) - k) // 8 * 8]) for b in blobs for k in range(8)]
        )
    )


def test_forgotten_values_are_nowhere_once_the_model_is_saved(folder, rows, tmp_path):
    store = tmp_path / "model"
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y", store=store)
    gone = (rows["a"] < -0.5) & (rows["y"] > 0)
    there, left = rows[gone].to_numpy().ravel(), rows[~gone].to_numpy().ravel()

    def found(values):
        blobs = [path.read_bytes() for path in store.rglob("*") if path.is_file()]
        return np.isin(values, doubles_in(*blobs)).mean()

    def in_model(values):
        return np.isin(values, doubles_in(pickle.dumps(model.state_))).mean()

    assert found(there) == found(left) == 1
    assert in_model(there) > 0.2  # the sample
    model.forget_dataset((pc.field("a") < -0.5) & (pc.field("y") > 0))
    assert in_model(there) == 0 < in_model(left)
    model.save(store)
    assert found(there) == 0
    assert found(left) == 1
    assert sum(leaf.n_rows for leaf in leaves(model.tree_)) > 0
    same(load(store), rows[~gone])
    model.forget_dataset(pc.field("a") < 1.9)  # next to nothing of the sample is left
    model.save(store)
    same(load(store), rows[rows["a"] >= 1.9])
    assert set(model.state_.rows.X[:, 0]) <= set(rows["a"][rows["a"] >= 1.9])


def test_files_that_another_model_uses_stay_until_it_is_gone(folder, rows, tmp_path):
    store, test = tmp_path / "model", rows[["a", "b"]][:20]
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder / "0.parquet", "y", store=store)
    other = load(store)
    n_files = len(list((store / "shards").iterdir()))
    before = model.predict(test)
    model.forget_dataset(pc.field("a") < 0)
    with pytest.warns(UserWarning, match=f"still in {n_files} files of .*, since another model"):
        model.save(store)
    np.testing.assert_array_equal(other.predict(test), before)
    del other
    model.save(store)
    assert len(list((store / "shards").iterdir())) == n_files
    np.testing.assert_array_equal(load(store).predict(test), model.predict(test))


def test_ranges_of_inputs_follow_the_rows_as_in_memory(rows, tmp_path):
    within = rows["a"].abs() < 1
    rows[within].to_parquet(tmp_path / "0.parquet", index=False)
    rows[~within].to_parquet(tmp_path / "1.parquet", index=False)
    X, test = rows[["a", "b"]], rows[["a", "b"]][:60]
    store = tmp_path / "model"
    options = {**OPTIONS, "memory_limit": "20MB"}
    DSMGPRegressor(**options).fit_dataset(tmp_path / "0.parquet", "y", store=store)
    model, memory = load(store), DSMGPRegressor(**options).fit(X[within], rows["y"][within])
    assert model.predict_dist(test).outside.max() > 0

    def same_ranges():
        for name in ("low", "high"):
            one, other = (getattr(m.state_.model.edges, name) for m in (model, memory))
            np.testing.assert_array_equal(one, other)
        outside = [m.predict_dist(test).outside for m in (model, memory)]
        np.testing.assert_allclose(*outside, rtol=1e-9)
        return outside[0].max()

    model.partial_fit_dataset(tmp_path / "1.parquet")
    memory.partial_fit(X[~within], rows["y"][~within], adapt=False)
    assert same_ranges() == 0
    model.forget_dataset(pc.field("b") > 0.3)
    ids = np.concatenate([rows.index[within], rows.index[~within]])  # in the order they came
    memory.forget(np.flatnonzero(rows["b"][ids] > 0.3), adapt=False)
    assert same_ranges() > 0


def test_rows_are_forgotten_from_stores_of_version_0_1(tmp_path):
    """There a row is in the files of several shards: they become one."""
    rng, numbers = np.random.default_rng(7), np.arange(60)
    X, Y = rng.normal(size=(60, 1)), rng.normal(size=(60, 1))
    (tmp_path / "shards").mkdir()
    checksums = []
    for shard in range(2):  # each with one leaf that holds all rows
        table = np.column_stack([np.zeros(60), numbers, X, Y])
        (tmp_path / "shards" / f"{shard:05d}.rows").write_bytes(table.tobytes())
        checksums.append(zlib.crc32(table.tobytes()))
    store = RowStore.stored(
        None, np.array(checksums), n_rows=60, n_inputs=1, n_outputs=1, firsts=np.arange(3),
        sizes=np.array([60, 60]),
    ).moved(tmp_path)  # fmt: skip
    schema = ColumnSchema((Column("a", "number"),), ("y",))
    search = updates._Search(store, RowCondition.of(pc.field("a") > 0, schema))
    every, found, found_Y = search(store.files.units[0])
    np.testing.assert_array_equal(every, numbers)
    np.testing.assert_array_equal(found, np.flatnonzero(X[:, 0] > 0))
    np.testing.assert_array_equal(found_Y, Y[found])
    writer = RowWriter(tmp_path, store.firsts, 1, 1)
    kept = writer.store([updates._without(search, writer, (store.files.units[0], 2, 0))])
    assert kept.files.units == [(2,)]
    np.testing.assert_array_equal(kept.sizes, [60 - len(found)] * 2)
    for leaf, row, left, _ in kept.read_file(2):
        assert len(np.unique(leaf)) == 1
        np.testing.assert_array_equal(row, np.arange(60 - len(found)))
        np.testing.assert_array_equal(left, np.delete(X, found, axis=0))


@pytest.fixture(scope="module")
def mixed():
    """Numbers, some missing (those of two columns together), a flag, dates, a category with missing values, and one of many levels."""
    rng = np.random.default_rng(5)
    n = 400
    table = pd.DataFrame(
        {
            "a": rng.uniform(-2, 2, n),
            "deep": np.where(rng.random(n) < 0.3, np.nan, rng.integers(0, 9, n)),
            "flag": rng.random(n) < 0.5,
            "when": pd.Timestamp("2020-01-01 06:30")
            + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "colour": rng.choice(["red", "green", "blue", None], n),
            "shop": [f"s{k}" for k in rng.permutation(n) % 120],
        }
    )
    table["wide"] = np.where(table["deep"].isna(), np.nan, rng.normal(size=n))
    return table.assign(y=np.sin(2 * table["a"]) + (table["colour"] == "red") + 0.1 * rng.normal(size=n))  # fmt: skip


@pytest.fixture(scope="module")
def fitted_to_mixed(mixed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    mixed[:200].to_parquet(folder / "0.parquet")
    mixed[200:].to_parquet(folder / "1.parquet")
    options = {**OPTIONS, "leaf_size": 100, "memory_limit": "20MB"}
    return DSMGPRegressor(**options).fit_dataset(folder, target="y")


def kept_targets(model):
    store = model.state_.model.leaf_posterior.leaf_gps.store
    runs = [run for number in store.files.numbers for run in store.read_file(number)]
    return np.unique(np.concatenate([Y[:, 0] for *_, Y in runs]))


CONDITIONS = {
    "level": (pc.field("colour") == "red", lambda t: t["colour"] == "red"),
    "levels": (pc.field("colour").isin(["red", "blue"]), lambda t: t["colour"].isin(["red", "blue"])),
    "missing level": (pc.field("colour").is_null(), lambda t: t["colour"].isna()),
    "not the level": (pc.field("colour") != "red", lambda t: t["colour"].notna() & (t["colour"] != "red")),
    "moment": (pc.field("when") < pd.Timestamp("2020-11-11 06:30"), lambda t: t["when"] < "2020-11-11 06:30"),
    "day": (pc.field("when") >= datetime.date(2021, 5, 1), lambda t: t["when"] >= "2021-05-01"),
    "year": (pc.year(pc.field("when")) == 2021, lambda t: t["when"].dt.year == 2021),
    "missing number": (pc.field("deep").is_null(), lambda t: t["deep"].isna()),
    "missing together": (pc.field("wide") > 0.2, lambda t: t["wide"] > 0.2),
    "whole numbers": (pc.field("deep").isin([1, 2]), lambda t: t["deep"].isin([1, 2])),
    "flag": (pc.field("flag") == 1, lambda t: t["flag"]),
    "several": ((pc.field("colour") == "red") & (pc.field("y") > 1) | (pc.field("a") > 1), lambda t: (t["colour"] == "red") & (t["y"] > 1) | (t["a"] > 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDITIONS)
def test_rows_are_forgotten_by_conditions_on_the_columns_of_the_files(mixed, fitted_to_mixed, name):
    condition, holds = CONDITIONS[name]
    model = DSMGPRegressor(**OPTIONS)
    model._state = fitted_to_mixed.state_
    expected = np.sort(mixed["y"][~holds(mixed)])
    assert 0 < len(expected) < len(mixed)
    model.forget_dataset(condition)
    np.testing.assert_array_equal(kept_targets(model), expected)
    assert model.state_.model.n_rows == len(expected)


def test_a_column_that_shares_one_of_several_indicators_is_refused():
    number = partial(Column, kind="number", fill=0.0, had_missing=True)
    columns = number("a", indicator=True), number("b", indicator=True), number("c")
    schema = ColumnSchema(columns, ("y",))
    assert RowCondition.of(pc.field("b") > 0, schema).names == ("b",)
    with pytest.raises(
        TableError, match="'c' are not supported: the model does not store in which rows"
    ):
        RowCondition.of(pc.field("c") > 0, schema)


def test_conditions_that_the_inputs_cannot_answer_are_refused(mixed, fitted_to_mixed, tmp_path):
    model = DSMGPRegressor(**OPTIONS)
    model._state = fitted_to_mixed.state_
    with pytest.raises(
        TableError, match=r"conditions on column 'shop' are not supported: .* its 120 levels"
    ):
        model.forget_dataset((pc.field("a") > 0) & (pc.field("shop") == "s3"))
    with pytest.raises(TableError, match=r"'when' \(dates\), 'colour' \(text\)"):
        model.forget_dataset(pc.field("when") == "red")
    mixed[:50].assign(colour="violet").to_parquet(tmp_path / "more.parquet")
    model.partial_fit_dataset(tmp_path / "more.parquet")
    with pytest.raises(
        TableError, match="'colour' are not supported: rows with new levels were added"
    ):
        model.forget_dataset(pc.field("colour") == "red")
    n_rows = model.state_.model.n_rows
    assert model.forget_dataset(pc.field("a") > 0).state_.model.n_rows < n_rows
