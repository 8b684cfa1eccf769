"""Frames in, frames out; and how an estimator shows itself in a notebook."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dsmgp import ChangePoints, DSMGPRegressor, load
from tests.support.damage import packed, unpacked


def rows_of(wavy, library):
    X, y = wavy
    frame = library.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    target = pd.Series(y, name="height") if library is pd else pl.Series("height", y)
    return frame, target


@pytest.mark.parametrize("library", [pd, pl])
def test_predictions_are_frames_of_the_kind_of_the_input(wavy, library):
    X, y = rows_of(wavy, library)
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, y)
    plain = model.predict(X)
    assert isinstance(plain, np.ndarray)
    model.set_output(predict="input")
    mean, std = model.predict(X, return_std=True)
    assert isinstance(mean, library.Series)
    assert isinstance(std, library.Series)
    assert mean.name == "height"
    np.testing.assert_array_equal(mean.to_numpy(), plain)
    with pytest.warns(UserWarning, match="feature names"):
        assert isinstance(model.predict(wavy[0]), np.ndarray)
    other = {pd: "polars", pl: "pandas"}[library]
    assert type(model.set_output(predict=other).predict(X)).__module__.startswith(other)
    assert isinstance(clone(model).fit(X, y).predict(X), {pd: pl, pl: pd}[library].Series)
    model.set_output(predict="default")
    assert isinstance(model.predict(X), np.ndarray)


def test_the_index_is_kept_and_several_outputs_make_a_frame(wavy):
    X, y = rows_of(wavy, pd)
    X.index = [f"row {k}" for k in range(len(X))]
    Y = pd.DataFrame({"up": y.to_numpy(), "down": -y.to_numpy()}, index=X.index)
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).set_output(predict="input")
    predicted = model.fit(X, Y).predict(X[5:9])
    assert list(predicted.columns) == ["up", "down"]
    assert list(predicted.index) == ["row 5", "row 6", "row 7", "row 8"]
    assert list(model.fit(X, Y.to_numpy()).predict(X).columns) == ["y0", "y1"]


@pytest.mark.parametrize("library", [pd, pl])
def test_outputs_keep_their_names_however_odd(wavy, library):
    X, y = rows_of(wavy, library)
    Y = library.DataFrame({"": y, " ": -y, "0": y})
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).set_output(predict="input")
    predicted = model.fit(X, Y).predict(X)
    assert list(predicted.columns) == ["", " ", "0"]
    np.testing.assert_allclose(predicted["0"], -predicted[" "], atol=1e-6)


def test_columns_of_one_name_are_refused(wavy):
    """Otherwise one of them would be lost."""
    X, y = wavy
    duplicates = pd.DataFrame(X, columns=["a", "a"])
    with pytest.raises(ValueError, match="X has more than one column 'a'"):
        DSMGPRegressor("rbf").fit(duplicates, y)
    with pytest.raises(ValueError, match="y has more than one column 'a'"):
        DSMGPRegressor("rbf").fit(X, duplicates)


def test_names_of_targets_are_kept_in_files(wavy, tmp_path):
    X, y = rows_of(wavy, pd)
    DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, y).save(tmp_path / "m.dsmgp")
    assert load(tmp_path / "m.dsmgp").set_output(predict="input").predict(X).name == "height"


@pytest.mark.parametrize("output", ["default", "input", "pandas", "polars"])
def test_set_output_is_kept_in_files(wavy, tmp_path, output):
    X, y = rows_of(wavy, pl)
    model = DSMGPRegressor("rbf", optimizer=None, random_state=0).set_output(predict=output)
    model.fit(X, y).save(tmp_path / "m.dsmgp")
    again = load(tmp_path / "m.dsmgp")
    assert type(again.predict(X)) is type(model.predict(X))
    assert type(clone(again).fit(X, y).predict(X)) is type(model.predict(X))


def test_files_without_an_output_setting_give_arrays(wavy, tmp_path):
    X, y = rows_of(wavy, pd)
    path = tmp_path / "m.dsmgp"
    DSMGPRegressor("rbf", optimizer=None).set_output(predict="pandas").fit(X, y).save(path)
    header, arrays = unpacked(path.read_bytes())
    del header["output"]
    path.write_bytes(packed(header, arrays))
    assert isinstance(load(path).predict(X), np.ndarray)


def test_pipelines_may_set_the_output_of_their_steps(wavy):
    X, y = rows_of(wavy, pd)
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).set_output(predict="input")
    pipeline = make_pipeline(StandardScaler(), model).set_output(transform="pandas").fit(X, y)
    assert isinstance(pipeline.predict(X), pd.Series)


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="'default', 'input', 'pandas', 'polars', got 'arrow'"):
        DSMGPRegressor().set_output(predict="arrow")


@pytest.mark.parametrize(
    "structure", ["balanced", "paper", "changepoint", ChangePoints(outliers=True)], ids=str
)
def test_notebooks_show_a_model_of_any_structure(wavy, structure):
    X, y = wavy
    model = DSMGPRegressor("rbf", structure=structure, max_iter=2, random_state=0).fit(X[:, :1], y)
    assert "What was learned" in model._repr_html_()


def test_notebooks_show_the_summary(wavy):
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0)
    assert "What was learned" not in model._repr_html_()
    model.fit(pd.DataFrame(X, columns=["a<b", "c"]), y)
    for text in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
        assert text.count("What was learned") == 1
        assert "a&lt;b" in text
        assert "sk-top-container" in text  # scikit-learn's own diagram
    with config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_()
