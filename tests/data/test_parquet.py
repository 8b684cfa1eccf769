"""Datasets on disk: fitted and predicted without being held, and the same as if they were."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from dsmgp import DSMGPRegressor, ModelFileError, load
from dsmgp.data import predictions
from dsmgp.data.parquet import RowStream
from dsmgp.data.tables import TableError
from dsmgp.experts.conditioning import condition
from dsmgp.experts.interface import NotAvailableError
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting import dataset
from dsmgp.tree import leaves
from dsmgp.tree.routing import place

EXACT = {"rtol": 1e-9, "atol": 1e-9}
N = 3000


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, size=(N, 2))
    X[500:520] = X[:20]  # some rows stand twice
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=N)
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    """Three files, in row groups of odd sizes."""
    folder = tmp_path_factory.mktemp("rows")
    for k, part in enumerate((rows[:700], rows[700:701], rows[701:])):
        table = pa.Table.from_pandas(part, preserve_index=False)
        parquet.write_table(table, folder / f"{k}.parquet", row_group_size=333)
    return folder


@pytest.fixture
def small_sample(monkeypatch):
    monkeypatch.setattr(dataset, "LEAST_SAMPLE", 600)
    monkeypatch.setattr(dataset, "MOST_SAMPLE", 600)


OPTIONS = {"leaf_size": [60, 150], "kernel": "matern32", "random_state": 0}


@pytest.mark.parametrize("memory_limit", [None, "2MB"])
def test_with_a_sample_of_all_rows_it_is_the_fit_in_memory(folder, rows, memory_limit):
    options = {**OPTIONS, "memory_limit": memory_limit}
    held = DSMGPRegressor(**options).fit(rows[["a", "b"]], rows["y"])
    streamed = DSMGPRegressor(**options).fit_dataset(folder, target="y")
    store = streamed.state_.model.leaf_posterior.leaf_gps.store
    assert (len(store.checksums) > 2) == (memory_limit is not None)
    assert streamed.log_marginal_likelihood_ == pytest.approx(
        held.log_marginal_likelihood_, rel=1e-9
    )
    for one, other in zip(streamed.state_.search.results, held.state_.search.results, strict=True):
        np.testing.assert_allclose(one.path, other.path, **EXACT)
    assert streamed.loo_score_ == pytest.approx(held.loo_score_, abs=1e-9)
    assert streamed.loo_score_new_inputs_ == pytest.approx(held.loo_score_new_inputs_, abs=1e-9)
    test = rows[["a", "b"]][:50]
    np.testing.assert_allclose(
        streamed.predict(test, return_std=True), held.predict(test, return_std=True), **EXACT
    )
    for one, other in zip(
        streamed.predict(test, return_cov=True), held.predict(test, return_cov=True), strict=True
    ):
        np.testing.assert_allclose(one, other, **EXACT)


def in_memory(model, rows):
    """The same tree, theta, scales and gate, with all leaves conditioned in this process."""
    X, Y = rows[["a", "b"]].to_numpy(), rows[["y"]].to_numpy()
    inner = model.state_.model
    tree = place(inner.tree, X, replace_rows=True)
    leaf_gps = InMemoryLeafGPs(
        leaves(tree),
        inner.inputs.to_experts(X),
        inner.outputs.to_experts(Y),
        inner.leaf_posterior.leaf_gps.kernels,
    )
    posterior = condition(leaf_gps, inner.leaf_posterior.kernel_parameters)
    return replace(inner, tree=tree, leaf_posterior=posterior)


@pytest.mark.parametrize("weights", ["gated", "posterior"])
def test_every_row_is_seen_whatever_the_sample(folder, rows, small_sample, weights):
    model = DSMGPRegressor(weights=weights, memory_limit="3MB", **OPTIONS)
    model.fit_dataset(folder, target="y")
    assert len(model.state_.rows.X) == 600
    expected = in_memory(model, rows)
    sizes = np.array([leaf.n_rows for leaf in leaves(expected.tree)])
    np.testing.assert_array_equal(model.state_.model.leaf_posterior.leaf_sizes, sizes)
    test = rows[["a", "b"]].to_numpy()[:80] + 0.01
    for one, other in zip(model.state_.model.moments(test), expected.moments(test), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)
    assert model.log_marginal_likelihood_ == pytest.approx(expected.log_evidence, rel=1e-9)
    truth = np.sin(2 * test[:, 0]) + test[:, 1] ** 2
    assert np.sqrt(np.mean((model.state_.model.moments(test)[0][:, 0] - truth) ** 2)) < 0.1
    assert f"{N} rows" in model.summary()


def test_predictions_are_streamed_to_a_file(folder, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "PREDICTED_ROWS", 700)
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y")
    out = tmp_path / "predicted.parquet"
    n = model.predict_dataset(
        folder / "*.parquet", out, interval=0.8, quantiles=[0.5], keep=["a", "y"]
    )
    table = parquet.read_table(out).to_pandas()
    assert n == N == len(table)
    assert list(table) == ["a", "y", "y_mean", "y_std", "y_low_80", "y_high_80", "y_q50"]
    distribution = model.predict_dist(rows[["a", "b"]])
    np.testing.assert_allclose(table["y_mean"], distribution.mean, **EXACT)
    np.testing.assert_allclose(table["y_std"], distribution.std, **EXACT)
    np.testing.assert_allclose(table["y_low_80"], distribution.interval(0.8)[0], **EXACT)
    np.testing.assert_allclose(table["y_q50"], distribution.quantile(0.5), **EXACT)
    np.testing.assert_array_equal(table["y"], rows["y"])
    model.predict_dataset([folder / "0.parquet"], out)
    assert parquet.read_table(out).column_names == ["y_mean", "y_std"]
    assert [p.name for p in tmp_path.iterdir()] == ["predicted.parquet"]


def test_a_model_in_memory_predicts_files_too(folder, rows, tmp_path):
    model = DSMGPRegressor(**OPTIONS).fit(rows[["a", "b"]][:500], rows["y"][:500])
    model.predict_dataset(folder, tmp_path / "out.parquet")
    means = parquet.read_table(tmp_path / "out.parquet")["y_mean"].to_numpy()
    np.testing.assert_allclose(means, model.predict(rows[["a", "b"]]), **EXACT)
    nameless = DSMGPRegressor(**OPTIONS).fit(rows[["a", "b"]].to_numpy()[:300], rows["y"][:300])
    with pytest.raises(ValueError, match="does not know its columns by name"):
        nameless.predict_dataset(folder, tmp_path / "out.parquet")


def test_a_store_is_a_model_on_disk(folder, rows, tmp_path):
    store = tmp_path / "model"
    model = DSMGPRegressor(memory_limit="2MB", **OPTIONS).fit_dataset(
        folder, target="y", store=store
    )
    test = rows[["a", "b"]][:40]
    expected = model.predict(test, return_std=True)
    for again in (load(store), load(store / "model.dsmgp"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_allclose(again.predict(test, return_std=True), expected, **EXACT)
        assert again.loo_score_ == model.loo_score_
    model.save(tmp_path / "copy")
    for part in (store / "shards").iterdir():
        part.unlink()
    np.testing.assert_allclose(load(tmp_path / "copy").predict(test), expected[0], **EXACT)
    with pytest.raises(ModelFileError, match="rows of some leaves are gone"):
        load(store).predict(test)
    damaged = tmp_path / "copy" / "shards" / "00001.rows"
    damaged.write_bytes(damaged.read_bytes()[:-8] + b"12345678")
    with pytest.raises(ModelFileError, match=r"00001\.rows is damaged"):
        load(tmp_path / "copy").predict(test)
    with pytest.raises(ModelFileError, match="with a model in it; give another path"):
        DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y", store=store)
    (tmp_path / "none").mkdir()
    with pytest.raises(ModelFileError, match="holds no model"):
        load(tmp_path / "none")


def test_temporary_rows_are_removed_with_their_model(folder):
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y")
    where = model.state_.model.leaf_posterior.leaf_gps.store.folder
    assert any((where / "shards").iterdir())
    with pytest.raises(TypeError, match="save the model"):
        pickle.dumps(model)
    del model
    import gc

    gc.collect()
    assert not where.exists()


def test_methods_that_need_rows_in_memory_are_refused(folder, rows):
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y")
    X, y = rows[["a", "b"]][:5], rows["y"][:5]
    for call in (
        lambda: model.partial_fit(X, y),
        lambda: model.forget([0]),
        model.finetune,
        model.to_gpytorch,
    ):
        with pytest.raises(ValueError, match="not available after fit_dataset"):
            call()
    with pytest.raises(AttributeError, match="row_ids_ is not available after fit_dataset"):
        _ = model.row_ids_
    assert "What was learned" in model._repr_html_()
    for options in ({"structure": "paper"}, {"objective": "full"}, {"structure": "changepoint"}):
        with pytest.raises(ValueError, match="fit_dataset needs structure='balanced'"):
            DSMGPRegressor(**options).fit_dataset(folder, target="y")


def test_columns_of_all_kinds(tmp_path):
    rng = np.random.default_rng(0)
    n = 400
    table = pd.DataFrame(
        {
            "day": pd.date_range("2024-01-01", periods=n),
            "kind": np.where(np.arange(n) < 390, "a", "b"),  # rare, and far from the head
            "flag": rng.integers(0, 2, n).astype(bool),
            "first": rng.normal(size=n),
            "second": rng.normal(size=n),
        }
    )
    table.to_parquet(tmp_path / "rows.parquet")
    model = DSMGPRegressor("rbf", leaf_size=100, random_state=0)
    model.fit_dataset(tmp_path / "rows.parquet", target=["first", "second"])
    assert list(model.feature_names_in_) == ["day", "kind=a", "kind=b", "flag"]
    n_rows = model.predict_dataset(tmp_path / "rows.parquet", tmp_path / "out.parquet")
    assert n_rows == n
    names = parquet.read_table(tmp_path / "out.parquet").column_names
    assert names == ["first_mean", "first_std", "second_mean", "second_std"]


def test_errors_name_the_file_and_the_row(folder, tmp_path):
    bad = pd.DataFrame({"a": [0.0, np.nan], "b": [0.0, 1.0], "y": [1.0, 2.0]})
    for name in ("0", "1"):
        pd.DataFrame({"a": [0.5, 1.0], "b": [0.0, 1.0], "y": [1.0, 2.0]}).to_parquet(
            tmp_path / f"{name}.parquet"
        )
    bad.to_parquet(tmp_path / "2.parquet")
    model = DSMGPRegressor(**OPTIONS)
    with pytest.raises(TableError, match=r"in 2\.parquet: column 'a' .*row 2"):
        model.fit_dataset(tmp_path, target="y")
    assert not hasattr(model, "tree_")
    pd.DataFrame({"a": [0.0, 1.0], "b": [0.0, 1.0]}).to_parquet(tmp_path / "2.parquet")
    with pytest.raises(TableError, match=r"no column 'y'; 2\.parquet has 'a', 'b'"):
        model.fit_dataset(tmp_path, target="y")
    pd.DataFrame({"a": [0.0, np.inf], "b": [0.0, 1.0], "y": [1.0, 2.0]}).to_parquet(
        tmp_path / "2.parquet"
    )
    with pytest.raises(TableError, match=r"in 2\.parquet: column 'a' has inf in row 2"):
        model.fit_dataset(tmp_path, target="y")
    for data, message in (
        (tmp_path / "no" / "*.parquet", "no file matches it"),
        (tmp_path / "empty", "has no Parquet files"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(TableError, match=message):
            model.fit_dataset(data, target="y")
    with pytest.raises(TableError, match="there is no column 'z'"):
        model.fit_dataset(folder, target="z")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(TableError, match="cannot be read as Parquet"):
        model.fit_dataset(tmp_path / "text.parquet", target="y")


def test_rows_of_a_sample_are_those_of_the_files(folder, rows):
    stream = RowStream.learn(folder, ["y"])
    assert stream.n_rows == N
    X, Y = stream.sample(100, np.random.default_rng(0))
    both = {tuple(row) for row in rows.to_numpy()}
    assert len(X) == 100
    assert all((*x, *y) in both for x, y in zip(X, Y, strict=True))


def test_a_streamed_fit_goes_on_from_its_checkpoint(folder, tmp_path, monkeypatch, rows):
    path, evaluate, seen = (
        tmp_path / "fit.ckpt",
        InMemoryLeafGPs.log_evidence_and_gradient,
        {"n": 0},
    )
    options = {**OPTIONS, "random_state": None}

    def counted(self, *arguments, **more):
        seen["n"] += 1
        if seen["n"] == 8:
            raise KeyboardInterrupt
        return evaluate(self, *arguments, **more)

    monkeypatch.setattr(InMemoryLeafGPs, "log_evidence_and_gradient", counted)
    store = tmp_path / "model"
    with pytest.raises(KeyboardInterrupt):
        DSMGPRegressor(checkpoint=path, **options).fit_dataset(folder, target="y", store=store)
    seen["n"] = 100
    model = DSMGPRegressor(checkpoint=path, **options).fit_dataset(folder, target="y", store=store)
    assert seen["n"] - 100 == model.n_evaluations_ - 5
    assert load(store).loo_score_ == model.loo_score_


def test_a_store_that_holds_the_data_is_refused(rows, tmp_path):
    """And nothing in it is lost."""
    data = tmp_path / "data" / "shards"
    data.mkdir(parents=True)
    rows.to_parquet(data / "0.parquet")
    model = DSMGPRegressor(**OPTIONS)
    with pytest.raises(ModelFileError, match="give another path"):
        model.fit_dataset(data, target="y", store=tmp_path / "data")
    with pytest.raises(ModelFileError, match="give another path"):
        model.fit_dataset(data, target="y", store=data)
    assert [p.name for p in data.iterdir()] == ["0.parquet"]


def test_a_checkpoint_of_another_target_is_refused(rows, tmp_path, monkeypatch):
    rows.assign(z=rows["a"] * 2).to_parquet(tmp_path / "rows.parquet")
    evaluate, seen = InMemoryLeafGPs.log_evidence_and_gradient, {"n": 0}

    def cut_short(self, *arguments, **more):
        seen["n"] += 1
        if seen["n"] == 7:
            raise KeyboardInterrupt
        return evaluate(self, *arguments, **more)

    monkeypatch.setattr(InMemoryLeafGPs, "log_evidence_and_gradient", cut_short)
    model = DSMGPRegressor(checkpoint=tmp_path / "fit.ckpt", **OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        model.fit_dataset(tmp_path / "rows.parquet", target="y", drop=["z"])
    with pytest.raises(ValueError, match="belongs to a fit of other rows"):
        model.fit_dataset(tmp_path / "rows.parquet", target="z", drop=["y"])


def test_a_fit_in_memory_forgets_the_dataset_before_it(folder, rows, tmp_path):
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y")
    model.fit(rows[["b"]][:300], rows["y"][:300])
    model.predict_dataset(folder, tmp_path / "out.parquet")
    means = parquet.read_table(tmp_path / "out.parquet")["y_mean"].to_numpy()
    np.testing.assert_allclose(means, model.predict(rows[["b"]]), **EXACT)


def test_prediction_works_again_after_an_interrupt(folder, rows, monkeypatch):
    model = DSMGPRegressor(memory_limit="3MB", **OPTIONS).fit_dataset(folder, target="y")
    test = rows[["a", "b"]][:100]
    expected = model.predict(test)
    condition, calls = InMemoryLeafGPs.condition, {"n": 0}

    def interrupted(self, *arguments, **more):
        calls["n"] += 1
        if calls["n"] == 2:
            raise KeyboardInterrupt
        return condition(self, *arguments, **more)

    monkeypatch.setattr(InMemoryLeafGPs, "condition", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.predict(test)
    np.testing.assert_array_equal(model.predict(test), expected)


def test_leaf_rows_that_are_in_files_are_refused(folder):
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y")
    with pytest.raises(NotAvailableError, match="rows are in files"):
        _ = model.state_.model.leaf_posterior.leaf_rows


def test_too_many_shards_are_refused(folder):
    with pytest.raises(MemoryError, match=r"more than 400; raise memory_limit"):
        DSMGPRegressor(memory_limit="30kB", leaf_size=20, kernel="rbf").fit_dataset(
            folder, target="y"
        )


def test_out_must_be_a_file(folder, tmp_path):
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y")
    with pytest.raises(TableError, match="is a folder"):
        model.predict_dataset(folder, tmp_path)
