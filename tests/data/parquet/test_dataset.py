"""Datasets on disk: fitted and predicted without being held, and the same as if they were."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from dsmgp import DSMGPRegressor, ModelFileError, load
from dsmgp.data.files.tables import TableError
from dsmgp.data.parquet.dataset import RowStream
from dsmgp.distributed.workers import LocalWorkers
from dsmgp.experts.conditioning import condition
from dsmgp.experts.interface import NotAvailableError
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.datasets import fit as dataset
from dsmgp.fitting.datasets import predict as predictions
from dsmgp.linalg.threads import n_threads
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
    assert (store.n_shards > 2) == (memory_limit is not None)
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
        LeafData(inner.inputs.to_experts(X), inner.outputs.to_experts(Y)),
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
    monkeypatch.setattr(predictions, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr("dsmgp.data.parquet.dataset.PIECE_ROWS", 400)
    monkeypatch.setattr("dsmgp.data.parquet.dataset.BATCH_ROWS", 150)
    monkeypatch.setattr("dsmgp.mixture.model.AT_ONCE", 200)  # of a batch, too
    model = DSMGPRegressor(memory_limit="2MB", **OPTIONS).fit_dataset(folder, target="y")
    assert len(model.state_.model.leaf_posterior.leaf_gps.shards) > 3
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
    # More rows than the model was fitted to: shards predict twice.
    model.predict_dataset([folder, folder], out)
    twice = parquet.read_table(out)["y_mean"].to_numpy()
    np.testing.assert_allclose(twice, np.tile(distribution.mean, 2), **EXACT)
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


def test_the_structure_of_the_paper_is_that_of_rows_in_memory(folder, rows):
    options = {
        "structure": "paper",
        "leaf_size": 60,
        "kernel": "rbf",
        "max_iter": 5,
        "random_state": 0,
    }
    streamed = DSMGPRegressor(**options).fit_dataset(folder, target="y")
    held = DSMGPRegressor(**options).fit(rows[["a", "b"]], rows["y"])
    assert streamed.n_induced_trees_ == held.n_induced_trees_ > 1
    test = rows[["a", "b"]][:20] + 0.01
    np.testing.assert_allclose(streamed.predict(test), held.predict(test), **EXACT)


def test_the_structure_of_the_paper_grows_on_a_sample(folder, rows, small_sample):
    options = {
        "structure": "paper",
        "leaf_size": 100,
        "kernel": "rbf",
        "max_iter": 5,
        "random_state": 0,
    }
    model = DSMGPRegressor(**options).fit_dataset(folder, target="y")
    sizes = model.state_.model.leaf_posterior.leaf_sizes
    # Leaves of the sample stand for regions with five times the rows.
    assert 20 < np.median(sizes) < 250
    assert model.score(rows[["a", "b"]][:200], rows["y"][:200]) > 0.95


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
    for options, refused in (
        ({"structure": "learned"}, "a structure other than 'balanced' or 'paper'"),
        ({"structure": "changepoint"}, "a structure other than 'balanced' or 'paper'"),
        ({"objective": "full"}, "objective='full'"),
    ):
        with pytest.raises(ValueError, match=f"{refused} is not available in fit_dataset"):
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
    assert list(model.feature_names_in_) == ["day", "kind", "flag"]
    assert model.state_.schema.input_names == ["day", "kind=a", "kind=b", "flag"]
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
        model.fit_dataset(tmp_path, target="y", missing="error")
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
    model = DSMGPRegressor(memory_limit="30kB", leaf_size=20, kernel="rbf")
    with pytest.raises(MemoryError, match=r"more than 400, .* raise memory_limit to [\d.]+ times"):
        model.fit_dataset(folder, target="y")


@pytest.mark.parametrize("in_files", [True, False])
def test_predictions_in_a_folder_are_those_in_a_file(folder, rows, tmp_path, monkeypatch, in_files):
    monkeypatch.setattr("dsmgp.data.parquet.dataset.PIECE_ROWS", 400)
    model = DSMGPRegressor(memory_limit="3MB", **OPTIONS)
    model.fit_dataset(folder, "y") if in_files else model.fit(rows[["a", "b"]], rows["y"])
    for name in ("new/", "there/"):
        (tmp_path / "there").mkdir(exist_ok=True)
        assert model.predict_dataset(folder, f"{tmp_path}/{name}", keep=["a"], interval=0.9) == N
    model.predict_dataset(folder, tmp_path / "all.parquet", keep=["a"], interval=0.9)
    whole = pd.read_parquet(tmp_path / "all.parquet")
    for name in ("new", "there"):
        files = sorted(path.name for path in (tmp_path / name).iterdir())
        assert files == [f"part-{k:05d}.parquet" for k in range(len(files))]
        assert len(files) > 6
        parts = pd.concat([pd.read_parquet(tmp_path / name / file) for file in files])
        pd.testing.assert_frame_equal(parts.reset_index(drop=True), whole)


def test_a_folder_of_predictions_is_written_completely_or_not_at_all(folder, rows, tmp_path):
    model = DSMGPRegressor(**OPTIONS).fit_dataset(folder, target="y")
    (tmp_path / "bad").mkdir()
    rows.assign(a=np.where(rows.index == 2900, np.inf, rows["a"])).to_parquet(
        tmp_path / "bad/0.parquet"
    )
    with pytest.raises(TableError, match="row 2901"):
        model.predict_dataset(tmp_path / "bad", f"{tmp_path}/out/")
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]
    with pytest.raises(TableError, match="folder with files in it"):
        model.predict_dataset(folder, tmp_path)
    with pytest.raises(TableError, match="does not exist; create it first"):
        model.predict_dataset(folder, f"{tmp_path}/no/out/")


@pytest.fixture(scope="module")
def raw():
    """Text, dates and numbers with gaps, a category of 40 levels, and rows without a target, which have levels of their own."""
    rng, n = np.random.default_rng(2), 900
    shop = rng.integers(0, 40, n)
    frame = pd.DataFrame(
        {
            "x": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "z": rng.normal(size=n),
            "shop": [f"s{k}" for k in shop],
            "kind": rng.choice(np.array(["u", "v", None], dtype=object), n),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, n), "D"),
        }
    )
    frame["y"] = np.nan_to_num(frame["x"]) + rng.normal(size=40)[shop] + (frame["kind"] == "u")
    frame.loc[::50, "y"] = np.nan
    frame.loc[0, ["shop", "kind"]] = "without target"
    frame.loc[50, "z"] = np.nan
    return frame


def in_parts(frame, folder):
    folder.mkdir()
    for k, part in enumerate((frame[:400], frame[400:410], frame[410:])):
        table = pa.Table.from_pandas(part, preserve_index=False)
        parquet.write_table(table, folder / f"{k}.parquet", row_group_size=150)
    return folder


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("missing", ["model", "drop"])
def test_raw_tables_are_fitted_as_in_memory(raw, tmp_path, missing):
    options = {**OPTIONS, "max_iter": 5, "missing": missing}
    X = raw.drop(columns="y")
    held = DSMGPRegressor(**options).fit(X, raw["y"])
    folder = in_parts(raw, tmp_path / "rows")
    streamed = DSMGPRegressor(**options).fit_dataset(folder, target="y")
    one, other = streamed.state_.schema.columns, held.state_.schema.columns
    assert one.input_names == other.input_names
    assert "kind=without target" not in one.input_names
    assert "z missing" not in one.input_names
    np.testing.assert_allclose(streamed.state_.rows.X, held.state_.rows.X, **EXACT)
    np.testing.assert_allclose(streamed.state_.rows.Y, held.state_.rows.Y)
    test = X[1:].dropna()[:40]
    np.testing.assert_allclose(
        streamed.predict(test, return_std=True), held.predict(test, return_std=True), rtol=1e-6
    )
    assert any("without a target" in remark for remark in streamed.remarks_)


def test_columns_that_are_left_out_are_named(raw, tmp_path):
    frame = raw.assign(same="yes", key=[f"id-{k}" for k in range(len(raw))])
    model = DSMGPRegressor(**{**OPTIONS, "max_iter": 2})
    model.fit_dataset(in_parts(frame, tmp_path / "rows"), target="y")
    assert "column 'same' is constant and left out" in model.remarks_
    assert any(r.startswith("column 'key'") and r.endswith("left out") for r in model.remarks_)


@pytest.mark.parametrize("kind_rows", [20_000, 300])
def test_training_rows_in_files_are_remarked_on(raw, tmp_path, monkeypatch, kind_rows):
    monkeypatch.setattr("dsmgp.data.parquet.dataset.KIND_ROWS", kind_rows)
    frame = raw.dropna().assign(
        number=np.arange(len(raw.dropna())), copy=lambda frame: 2 * frame["y"]
    )
    frame.loc[frame.index[5], "kind"] = "once"
    model = DSMGPRegressor(**{**OPTIONS, "max_iter": 2})
    model.fit_dataset(in_parts(frame, tmp_path / "rows"), target="y", drop=["shop"])
    numbers = (
        "column 'number' numbers the rows; if it is an identifier rather than a time or a place, "
    )
    assert (
        numbers + "leave it out with --drop 'number', in Python drop=['number']" in model.remarks_
    )
    assert any("'copy' is nearly a copy of the target 'y'" in r for r in model.remarks_)
    # Other rows might contradict a sample.
    assert any("occur in one row only" in r for r in model.remarks_) == (kind_rows > len(frame))


def test_new_levels_in_files_are_remarked_on(raw, tmp_path, monkeypatch):
    monkeypatch.setattr("dsmgp.data.parquet.dataset.BATCH_ROWS", 50)
    model = DSMGPRegressor(**{**OPTIONS, "max_iter": 2}).fit(
        raw.dropna()[["x", "kind"]], raw.dropna()["y"]
    )
    new = raw.dropna()[["x", "kind"]][:200].copy()
    new.loc[new.index[::10], "kind"] = [f"new {k % 5}" for k in range(20)]
    new.to_parquet(tmp_path / "new.parquet")
    remarks = predictions.predict_files(
        model.state_.model,
        model.state_.schema,
        tmp_path / "new.parquet",
        tmp_path / "out.parquet",
        (),
        (),
        (),
        True,
    )[1]
    assert remarks == [
        "column 'kind': 20 rows with levels that the training rows do not have ('new 0', 'new 1', 'new 2', ...)"
    ]
    assert remarks == model.state_.schema.remarks_on(new)


def test_remarks_do_not_read_the_rows_in_files(raw, tmp_path, monkeypatch):
    model = DSMGPRegressor(**{**OPTIONS, "max_iter": 2, "output_warp": None})
    frame = raw.dropna(subset="y").assign(y=lambda frame: frame["y"] - frame["y"].min())
    model.fit_dataset(in_parts(frame, tmp_path / "rows"), target="y")
    monkeypatch.setattr(type(model.state_.model), "mixture", None)
    assert model.remarks_ == list(model.state_.schema.remarks)


@pytest.mark.filterwarnings("ignore:.*column")
def test_unknown_values_are_predicted_from_files_as_in_memory(raw, tmp_path):
    model = DSMGPRegressor(**{**OPTIONS, "max_iter": 2})
    model.fit_dataset(in_parts(raw, tmp_path / "rows"), target="y")
    new = raw.drop(columns="y")[:300].copy()
    new.loc[::3, "shop"], new.loc[::4, "z"], new.loc[::5, "day"] = "new", np.nan, pd.NaT
    new.to_parquet(tmp_path / "new.parquet")
    model.predict_dataset(tmp_path / "new.parquet", tmp_path / "out.parquet")
    written = pd.read_parquet(tmp_path / "out.parquet")
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(written["y_mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(written["y_std"], std, rtol=1e-9)


@pytest.mark.parametrize("column", ["x", "kind", "day"])
def test_missing_values_are_refused_by_file_and_row(raw, tmp_path, column):
    """Numbers, categories and dates alike."""
    complete = raw[["x", "kind", "day", "y"]].dropna().reset_index(drop=True)
    complete.loc[len(complete) - 1, column] = None
    folder = in_parts(complete, tmp_path / "rows")
    row = len(complete) - 410
    with pytest.raises(TableError, match=rf"in 2\.parquet: column '{column}' has no value in row {row}; .*missing='model'"):  # fmt: skip
        DSMGPRegressor(**OPTIONS, missing="error").fit_dataset(folder, target="y")


def test_kinds_of_columns_are_learned_from_all_over_the_files(tmp_path, monkeypatch):
    """A column that is constant, complete or empty at the beginning of sorted rows is none of these."""
    monkeypatch.setattr("dsmgp.data.parquet.dataset.KIND_ROWS", 60)
    rng, n = np.random.default_rng(0), 600
    year = np.repeat([2019, 2020, 2021], 200)
    frame = pd.DataFrame({"x": rng.normal(size=n), "year": year, "late": rng.normal(size=n)})
    frame.loc[:199, "late"] = np.nan
    frame["gap"] = np.arange(n) % 7.0
    frame.loc[n - 1, "gap"] = np.nan  # in none of the rows that kinds are learned from
    frame["y"] = frame["x"] + year - 2020
    folder = in_parts(frame, tmp_path / "rows")
    names = RowStream.learn(folder, ["y"]).schema.input_names
    assert names == ["x", "year", "late", "late missing", "gap", "gap missing"]


def test_codes_that_are_declared_as_categories_are_refused(folder):
    model = DSMGPRegressor("rbf", categorical_features=["a"])
    with pytest.raises(
        ValueError,
        match="categorical_features is not available in fit_dataset; store such columns as text",
    ):
        model.fit_dataset(folder, "y")


class Backwards:
    """Workers that take the pieces in another order, and in processes that have nothing but what they are sent."""

    def map(self, function, items):
        function = pickle.loads(pickle.dumps(function))
        return reversed([function(item) for item in reversed(items)])


def test_results_do_not_depend_on_who_reads_the_pieces(folder, small_sample, monkeypatch):
    monkeypatch.setattr("dsmgp.data.parquet.dataset.PIECE_ROWS", 400)
    model = DSMGPRegressor(memory_limit="3MB", **OPTIONS).fit_dataset(folder, target="y")
    n_pieces = len(RowStream.learn(folder, ["y"]).pieces)
    assert n_pieces > 6
    store = model.state_.model.leaf_posterior.leaf_gps.store
    assert len(store.files.paths) == n_pieces
    assert store.n_rows == N
    monkeypatch.setattr(LocalWorkers, "map", Backwards.map)
    other = DSMGPRegressor(memory_limit="3MB", **OPTIONS).fit_dataset(folder, target="y")
    assert other.log_marginal_likelihood_ == model.log_marginal_likelihood_
    assert other.loo_score_ == model.loo_score_
    monkeypatch.undo()
    for name in ("LEAST_SAMPLE", "MOST_SAMPLE"):
        monkeypatch.setattr(dataset, name, 600)
    whole = DSMGPRegressor(memory_limit="3MB", **OPTIONS).fit_dataset(folder, target="y")
    assert whole.log_marginal_likelihood_ == model.log_marginal_likelihood_


def test_raw_tables_are_read_alike_by_any_worker(raw, tmp_path, monkeypatch):
    rows = in_parts(raw, tmp_path / "rows")
    whole = RowStream.learn(rows, ["y"])
    monkeypatch.setattr("dsmgp.data.parquet.dataset.PIECE_ROWS", 160)
    monkeypatch.setattr("dsmgp.data.parquet.dataset.BATCH_ROWS", 70)
    parts = RowStream.learn(rows, ["y"], tasks=Backwards())
    assert len(parts.pieces) > len(whole.pieces)
    assert parts.schema == whole.schema
    assert (parts.n_rows, parts.n_left_out) == (whole.n_rows, whole.n_left_out)
    for one, other in zip(
        parts.sample(10**6, np.random.default_rng(0)),
        whole.sample(10**6, np.random.default_rng(0)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert parts.remarks == whole.remarks


def test_workers_read_few_pieces_ahead():
    started, pool = [], LocalWorkers(1e9, "cpu")
    results = pool.map(lambda item: started.append(item) or item, list(range(100)))
    assert next(results) == 0
    assert len(started) <= 2 * n_threads() + 3
    assert list(results) == list(range(1, 100))


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_files_are_read_from_other_file_systems(folder, rows, scheme, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    root = f"memory://rows-{tmp_path.name}" if scheme == "memory" else f"file://{folder}"
    if scheme == "memory":
        for path in folder.iterdir():
            with fsspec.open(f"{root}/{path.name}", "wb") as file:
                file.write(path.read_bytes())
    options = {**OPTIONS, "max_iter": 3}
    near = DSMGPRegressor(**options).fit_dataset(folder, target="y")
    for data in (root, f"{root}/*.parquet", [f"{root}/{k}.parquet" for k in range(3)]):
        far = RowStream.learn(data, ["y"])
        assert far.n_rows == N
        assert [file.name for file in far.files] == ["0.parquet", "1.parquet", "2.parquet"]
    far = DSMGPRegressor(**options).fit_dataset(root, target="y")
    assert far.log_marginal_likelihood_ == near.log_marginal_likelihood_
    far.predict_dataset(f"{root}/0.parquet", tmp_path / "out.parquet")
    assert parquet.read_metadata(tmp_path / "out.parquet").num_rows == 700
    with pytest.raises(TableError, match="does not exist, and no"):
        RowStream.learn(f"{root}/none.parquet", ["y"])
    with pytest.raises(TableError, match="cannot be reached"):
        RowStream.learn("nowhere://rows", ["y"])
