"""Columns in unusual forms: what they mean does not depend on how they are stored."""

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor
from dsmgp._util.machine import has_torch
from dsmgp.data.columns.effects import level_effects

N = 80


@pytest.fixture
def rows(rng):
    x = rng.normal(size=N)
    return x, np.sin(x) + 0.1 * rng.normal(size=N)


def model(**options):
    return DSMGPRegressor("rbf", max_iter=5, random_state=0, **options)


def test_rows_of_tiny_weight_do_not_widen_predictions_at_missing_values(rng):
    x = rng.normal(size=200)
    y = np.sin(x) + 0.1 * rng.normal(size=200)
    X = np.column_stack([x, rng.normal(size=200)])
    missing = rng.choice(200, 60, replace=False)
    X[missing, 0] = np.nan
    bad = missing[:30]
    y[bad] += 50 * rng.normal(size=30)

    def width(weight):
        weights = np.ones(200)
        weights[bad] = weight
        fitted = model().fit(X, y, sample_weight=weights)
        return fitted.predict([[np.nan, 0.0]], return_std=True)[1][0]

    assert width(1e-6) < 2.0 * width(0.0)


def test_levels_without_rows_have_no_effect(rng):
    codes = rng.integers(0, 3, 50)
    found = level_effects([codes], [], rng.normal(size=(50, 1)), np.arange(50) % 5, [5])
    assert found.effects[0].shape == (5, 1)
    np.testing.assert_array_equal(found.effects[0][3:], 0.0)


@pytest.mark.skipif(not has_torch(), reason="needs dsmgp[torch]")
def test_a_leaf_with_tied_length_scales_is_exported(rows, rng):
    import torch

    x, y = rows
    frame = pd.DataFrame({"x": x, "g": rng.choice(list("abc"), N)})
    fitted = model(leaf_size=N, sum_children=1).fit(frame, y)
    leaf = fitted.to_gpytorch(0).eval()
    state = fitted.state_
    new = frame.assign(x=x + 0.01)  # GPyTorch warns of training inputs
    Z = torch.from_numpy(state.mixture.to_experts(state.schema.to_numbers(new)))
    with torch.no_grad():
        mean = leaf(Z).mean.numpy()
    outputs = state.model.outputs
    np.testing.assert_allclose(
        outputs.mean_to_latent(mean[:, None])[:, 0], fitted.predict(new), rtol=1e-5, atol=1e-6
    )


def test_dictionaries_of_any_kind_are_read(rng):
    pa = pytest.importorskip("pyarrow")
    from dsmgp.data.columns.arrow_values import column_of_arrow

    indices = pa.array([0, 1, None, 0], pa.uint32())
    unsigned = pa.DictionaryArray.from_arrays(indices, pa.array(["b", "a"]))
    values = column_of_arrow(pa.chunked_array([unsigned]), "c")
    assert (values.levels, values.data.tolist()) == (("a", "b"), [1, 0, -1, 1])
    with_null = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    values = column_of_arrow(pa.chunked_array([with_null]), "c")
    assert (values.levels, values.data.tolist()) == (("a",), [0, -1, -1])
    times = pa.array([0, 86_400_000_000], pa.timestamp("us"))
    dates = pa.DictionaryArray.from_arrays(pa.array([1, 0]), times)
    assert column_of_arrow(pa.chunked_array([dates]), "c").kind == "date"


def test_texts_that_are_no_numbers_yet_are_missing_where_they_say_so(rows):
    x, y = rows
    fitted = model().fit(pd.DataFrame({"x": x}), y)
    with pytest.warns(UserWarning, match="column 'x': 1 missing"):
        by_text = fitted.predict(pd.DataFrame({"x": ["NaN", "1"]}))
    with pytest.warns(UserWarning, match="column 'x': 1 missing"):
        by_number = fitted.predict(pd.DataFrame({"x": [np.nan, 1.0]}))
    np.testing.assert_array_equal(by_text, by_number)


def test_flags_are_the_same_levels_in_any_type(rows, rng):
    x, y = rows
    flag = rng.random(N) > 0.5
    frame = pd.DataFrame({"x": x, "b": pd.Categorical(flag)})
    fitted = model().fit(frame, y + 3 * flag)
    np.testing.assert_array_equal(fitted.predict(frame), fitted.predict(frame.assign(b=flag)))


def test_a_level_that_is_not_among_the_sampled_rows_of_files_has_no_effect(
    rng, tmp_path, monkeypatch
):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from dsmgp.data.parquet.dataset import RowStream

    monkeypatch.setattr("dsmgp.data.parquet.dataset.MOST_ROWS", 300)
    levels = rng.choice([f"L{k:02}" for k in range(14)], 2000).astype(object)
    levels[7] = "zz"
    table = {"x": rng.normal(size=2000), "c": levels.tolist(), "y": rng.normal(size=2000)}
    parquet.write_table(pa.table(table), tmp_path / "rows.parquet")
    stream = RowStream.learn(tmp_path / "rows.parquet", ["y"])
    column = stream.schema.columns[1]
    assert column.levels[-1] == "zz"
    assert column.effects[-1] == (0.0,)
    assert np.isfinite(next(stream.reader.batches(stream.pieces[0])).X).all()


def test_texts_of_dates_are_no_levels(rows):
    x, y = rows
    days = np.datetime64("2020-01-01") + np.arange(N)
    frame = pd.DataFrame({"x": x, "day": days.astype(str)})
    assert model().fit(frame, y).remarks_ == ["column 'day': dates, as days since 2020-01-01"]


@pytest.mark.parametrize("options", [{"categories": "all"}, {"missing": "guess"}])
def test_unknown_words_are_refused(tmp_path, options):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"x": [1.0, 2.0], "y": [1.0, 2.0]}), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=f"expected {next(iter(options))} to be one of"):
        model().fit_dataset(tmp_path, "y", **options)
