"""Models fitted to datasets: rows of further files are added and rows are forgotten as if the leaves had been conditioned so at once."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

from dsmgp import DSMGPRegressor, load
from dsmgp.data.table_error import TableError
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.datasets import fit as dataset
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
        inner.inputs.to_experts(X),
        inner.outputs.to_experts(Y),
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
    with pytest.raises(TableError, match="the columns are 'a', 'b', 'y'"):
        model.forget_dataset(pc.field("z") > 0)
    with pytest.raises(ValueError, match="at least two must stay"):
        model.forget_dataset(pc.field("a") > -100)
    assert model.forget_dataset(pc.field("a") > 100).state_ is state
    assert sorted(p.name for p in (store.folder / "shards").iterdir()) == files
    in_memory = DSMGPRegressor(**OPTIONS).fit(rows[["a", "b"]][:100], rows["y"][:100])
    with pytest.raises(ValueError, match="use partial_fit"):
        in_memory.partial_fit_dataset(folder / "0.parquet")
