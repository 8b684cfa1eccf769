"""The estimator on raw frames: missing values, declared categories, missing targets, updates, pipelines and files."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dsmgp import DSMGPRegressor, ModelFileError, load
from tests.support.damage import change_entry, packed, unpacked

QUICK = {"kernel": "rbf", "leaf_size": 60, "max_iter": 3, "random_state": 0}
N = 150


def model_of(**options):
    return DSMGPRegressor(**{**QUICK, **options})


def moments(model, X):
    return np.array(model.predict(X, return_std=True))


@pytest.fixture
def frame(rng):
    """Every kind of column; gaps, an identifier, a constant and an empty column; more than 30 levels."""
    n = N
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "rooms": rng.integers(1, 6, n),
            "colour": rng.choice(np.array(["red", "blue", None], dtype=object), n),
            "shop": [f"s{k}" for k in rng.integers(0, 40, n)],
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "key": [f"id-{k}" for k in range(n)],
            "same": "yes",
            "empty": None,
        }
    )
    return frame.astype({"rooms": "Int64", "colour": "category"})


@pytest.fixture
def y(frame, rng):
    found = np.nan_to_num(frame["size"]) + 2.0 * (frame["colour"] == "red").to_numpy()
    return found + 0.1 * rng.normal(size=N)


def fitted(frame, y, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*left out")
        return model_of(**options).fit(frame, y)


def test_what_becomes_of_columns_is_said(frame, y):
    with pytest.warns(UserWarning, match="left out") as caught:
        model = model_of().fit(frame, y)
    said = {str(warning.message) for warning in caught}
    assert said == {
        "column 'key' has a different text in nearly every row and is left out",
        "column 'same' is constant and left out",
        "column 'empty' is empty and left out",
    }
    assert said < set(model.remarks_)
    assert any("'shop'" in remark and "their effects" in remark for remark in model.remarks_)
    assert any("treated as a level of its own" in remark for remark in model.remarks_)
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.n_features_in_ == 8
    shares = model.feature_importances_
    assert shares.shape == (8,)
    assert not shares[-3:].any()
    assert shares.sum() == pytest.approx(1.0)


# Missing inputs


def test_rows_with_missing_values_are_dropped_as_the_user_would(frame, y):
    chosen = frame[["size", "rooms", "colour"]]
    complete = chosen.notna().all(axis=1).to_numpy()
    with pytest.warns(UserWarning, match=rf"{(~complete).sum()} rows with missing values left out"):
        dropped = model_of(missing="drop").fit(chosen, y)
    by_hand = model_of(missing="drop").fit(chosen[complete], y[complete])
    new = chosen[complete][:20]
    np.testing.assert_array_equal(moments(dropped, new), moments(by_hand, new))
    assert len(dropped.row_ids_) == complete.sum()
    with pytest.raises(ValueError, match=r"'size' has no value in row \d+.*missing='model'"):
        dropped.predict(chosen)


def test_missing_values_are_refused_by_column_and_row(frame, y):
    row = int(np.flatnonzero(frame["size"].isna())[0])
    with pytest.raises(ValueError, match=rf"column 'size' has no value in row {row}, and in .*missing='model'") as refusal:  # fmt: skip
        model_of(missing="error").fit(frame[["size", "rooms", "colour"]], y)
    assert "column 'colour' has no value in row" in str(refusal.value)  # all at once
    model = model_of(missing="error").fit(frame[["rooms"]], y)
    with pytest.raises(ValueError, match="column 'rooms' has no value in row 1"):
        model.predict(pd.DataFrame({"rooms": [1, None]}))
    with pytest.raises(ValueError, match="missing"):
        model_of(missing="ignore").fit(frame, y)


@pytest.mark.parametrize("missing", ["model", "drop"])
def test_arrays_with_missing_values(rng, missing):
    X = rng.normal(size=(N, 3))
    X[::7, 1] = np.nan
    X[:, 2] = np.nan
    y = np.nan_to_num(X[:, 1]) + X[:, 0]
    model = fitted(X, y, missing=missing)
    assert "column 'x2' is empty and left out" in model.remarks_
    assert model.n_features_in_ == 3
    names = ["x0", "x1", "x1 missing"] if missing == "model" else ["x0", "x1"]
    assert model.state_.schema.input_names == names
    assert model.feature_importances_[2] == 0.0
    known = np.where(np.isnan(X), 0.0, X)[:9]
    expected = moments(model, known)
    known[:, 2] = 17.0  # whatever it holds
    np.testing.assert_array_equal(moments(model, known), expected)
    assert np.isfinite(expected).all()
    with pytest.raises(ValueError, match="2 features, but DSMGPRegressor is expecting 3"):
        model.predict(X[:, :2])


def test_an_indicator_is_learned(rng):
    """Missing values that say something about the output are worth an input."""
    X = rng.normal(size=(300, 1))
    X[rng.random(300) < 0.3] = np.nan
    y = np.where(np.isnan(X[:, 0]), 5.0, X[:, 0]) + 0.1 * rng.normal(size=300)
    model = model_of(max_iter=20).fit(X[:250], y[:250])
    assert model.score(X[250:], y[250:]) > 0.98


# Missing targets


@pytest.mark.parametrize(
    "form", [np.asarray, pd.Series, lambda y: pd.Series(y).astype("Float64"), pl.Series, list]
)
def test_rows_without_a_target_are_left_out(rng, form):  # fmt: skip
    X = rng.normal(size=(N, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=N)
    gaps = np.array([3, 77])
    y[gaps] = np.nan
    with pytest.warns(UserWarning, match="2 rows without a target left out"):
        model = model_of().fit(X, form(y))
    by_hand = model_of().fit(np.delete(X, gaps, axis=0), np.delete(y, gaps))
    np.testing.assert_array_equal(moments(model, X), moments(by_hand, X))
    np.testing.assert_array_equal(model.row_ids_, np.delete(np.arange(N), gaps))


def test_a_row_with_one_of_two_targets_missing_is_left_out(rng):
    X = rng.normal(size=(N, 2))
    Y = pd.DataFrame({"up": X[:, 0], "down": -X[:, 1]}).astype("Float64")
    Y.loc[3, "up"], Y.loc[9, "down"] = pd.NA, pd.NA
    with pytest.warns(UserWarning, match="2 rows without a target"):
        model = model_of().fit(X, Y)
    assert len(model.row_ids_) == N - 2
    assert model.state_.schema.output_names == ["up", "down"]


def test_known_noise_follows_the_rows_that_are_left(rng):
    X, noise = rng.normal(size=(N, 1)), rng.uniform(0.01, 1.0, N)
    y = X[:, 0] + np.sqrt(noise) * rng.normal(size=N)
    y[:5] = np.nan
    with pytest.warns(UserWarning, match="5 rows without a target"):
        model = model_of().fit(X, y, noise=noise)
    by_hand = model_of().fit(X[5:], y[5:], noise=noise[5:])
    np.testing.assert_array_equal(moments(model, X), moments(by_hand, X))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (pd.Series(["a", "b", "c"]), r"y holds text \('a' in row 0\); expected numbers"),
        (pd.DataFrame({"t": pd.date_range("2020", periods=3)}), "column 't' of y holds dates"),
        (np.array([1.0, np.inf, 2.0]), "y contains infinity"),
        (np.array([np.nan, np.nan, 2.0]), "1 of 3 rows have a target"),
    ],
)
def test_targets_that_cannot_be_used_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        model_of().fit(np.arange(3.0)[:, None], y)


# Declared categories


@pytest.fixture
def coded(rng):
    codes = rng.integers(1, 5, N)
    y = np.array([0.0, 3.0, -2.0, 1.0])[codes - 1] + 0.1 * rng.normal(size=N)
    return pd.DataFrame({"x": rng.normal(size=N), "code": codes}), y


@pytest.mark.parametrize(
    "declared", [["code"], [1], [False, True], np.array([1]), np.array([False, True]), ("code",)]
)
def test_codes_are_the_same_as_their_texts(coded, declared):  # fmt: skip
    X, y = coded
    as_text = model_of().fit(X.astype({"code": str}), y)
    model = model_of(categorical_features=declared).fit(X, y)
    assert model.state_.schema.input_names == ["x", "code=1", "code=2", "code=3", "code=4"]
    np.testing.assert_array_equal(moments(model, X), moments(as_text, X.astype({"code": str})))
    floats = X.astype(float)
    np.testing.assert_array_equal(moments(model, floats), moments(model, X))
    if not isinstance(declared[0], str):
        of_array = model_of(categorical_features=declared).fit(X.to_numpy(), y)
        # Columns without names are in the order given, others in that of their names.
        named = X.set_axis(["a", "b"], axis=1)
        model = model_of(categorical_features=declared).fit(named, y)
        np.testing.assert_array_equal(moments(of_array, X.to_numpy()), moments(model, named))


def test_codes_that_are_not_declared_are_numbers(coded):
    X, y = coded
    for nothing in ("from_dtype", None, []):
        model = model_of(categorical_features=nothing).fit(X, y)
        assert model.state_.schema.input_names == ["x", "code"]


@pytest.mark.parametrize(
    "wrong", [["colour"], [2], [-1], [True], [True, False, True], [1.5], "code"]
)
def test_declared_columns_that_are_not_there_are_refused(coded, wrong):
    with pytest.raises(ValueError, match="categorical_features"):
        model_of(categorical_features=wrong).fit(*coded)


# Updates


def test_updates_take_frames_as_they_are(frame, y):
    frame = frame[["size", "colour", "sold"]].assign(size=frame["size"].fillna(0.0))
    frame["colour"] = frame["colour"].cat.add_categories("none").fillna("none")
    whole = model_of(optimizer=None, leaf_size=200).fit(frame[:100], y[:100])
    model = clone(whole).fit(frame[:100], y[:100])
    model.partial_fit(frame[100:120], y[100:120], adapt=False)
    model.partial_fit(frame[120:], y[120:], adapt=False)
    whole.partial_fit(frame[100:], y[100:], adapt=False)
    np.testing.assert_allclose(moments(model, frame), moments(whole, frame), rtol=1e-7)
    gaps = y[:4].copy()
    gaps[[0, 2]] = np.nan
    with pytest.warns(UserWarning, match="2 rows without a target .* left out"):
        model.partial_fit(frame[:4], gaps, adapt=False)
    assert len(model.row_ids_) == N + 2
    before = moments(model, frame)
    with pytest.raises(ValueError, match="'sold' holds numbers"):
        model.partial_fit(frame[:2].assign(sold=1.0), y[:2])
    np.testing.assert_array_equal(moments(model, frame), before)
    model.forget(model.row_ids_[-2:], adapt=False)
    np.testing.assert_allclose(moments(model, frame), moments(whole, frame), rtol=1e-6)


def test_updates_leave_out_incomplete_rows_on_demand(rng):
    X = rng.normal(size=(N, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=N)
    model, by_hand = (model_of(missing="drop").fit(X[:100], y[:100]) for _ in range(2))
    gaps = X[100:].copy()
    gaps[::3, 1] = np.nan
    complete = ~np.isnan(gaps).any(axis=1)
    with pytest.warns(UserWarning, match="17 rows .* left out"):
        model.partial_fit(gaps, y[100:])
    by_hand.partial_fit(gaps[complete], y[100:][complete])
    np.testing.assert_array_equal(moments(model, X), moments(by_hand, X))
    ids = model.row_ids_
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(ValueError, match="expected rows with a target"),
    ):
        model.partial_fit(X[:1], [np.nan])
    np.testing.assert_array_equal(model.row_ids_, ids)


def test_new_levels_in_an_update_are_said_and_do_no_harm(coded):
    X, y = coded
    X = X.astype({"code": str})
    model = model_of().fit(X, y)
    with pytest.warns(
        UserWarning, match="'code': 1 row with levels that the training rows do not have .*'9'"
    ):
        model.partial_fit(pd.DataFrame({"x": [0.0], "code": ["9"]}), [1.0])
    assert len(model.row_ids_) == N + 1
    assert np.isfinite(moments(model, X)).all()


# scikit-learn


def test_pipelines_searches_and_clones_take_frames(frame, y):
    frame = frame.drop(columns=["key", "same", "empty"])
    model = model_of(missing="model", categorical_features=["rooms"])
    copy = clone(model)
    assert copy.get_params()["categorical_features"] == ["rooms"]
    assert copy.get_params()["missing"] == "model"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "column 'shop'")  # levels of another fold
        scores = cross_val_score(model, frame, y, cv=3)
        assert scores.min() > 0.5
        pipeline = make_pipeline(FunctionTransformer(lambda X: X), model).fit(frame, y)
        assert pipeline.score(frame, y) > 0.8
        search = GridSearchCV(copy, {"missing": ["model"], "kernel": ["rbf"]}, cv=2).fit(frame, y)
    assert search.best_estimator_.n_features_in_ == 5


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_predictions_come_as_frames(frame, y, library):
    frame = frame[["size", "colour"]].set_index(np.arange(N)[::-1])
    X = frame if library == "pandas" else pl.from_pandas(frame)
    y = pd.Series(y, name="price", index=frame.index)
    model = model_of().fit(X, y).set_output(predict="input")
    predicted = model.predict(X)
    assert type(predicted).__module__.split(".")[0] == library
    assert predicted.name == "price"
    if library == "pandas":
        assert list(predicted.index) == list(frame.index)


# Files


def test_a_model_of_a_frame_comes_back_from_files_and_pickles(frame, y, tmp_path):
    model = fitted(frame, y, categorical_features=["rooms"])
    model.save(tmp_path / "m.dsmgp")
    for again in (load(tmp_path / "m.dsmgp"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(moments(again, frame), moments(model, frame))
        assert again.remarks_ == model.remarks_
        assert list(again.feature_names_in_) == list(frame.columns)
        assert again.get_params()["categorical_features"] == ["rooms"]
        np.testing.assert_array_equal(again.feature_importances_, model.feature_importances_)
        assert again.state_.schema.columns == model.state_.schema.columns
        np.testing.assert_allclose(
            again.kernel_.terms[0].lengthscale, model.kernel_.terms[0].lengthscale
        )


def test_a_model_of_an_array_with_a_column_left_out_comes_back(rng, tmp_path):
    X = rng.normal(size=(60, 3))
    X[:, 1] = np.nan
    model = fitted(X, X[:, 0])
    model.save(tmp_path / "m.dsmgp")
    again = load(tmp_path / "m.dsmgp")
    assert again.n_features_in_ == 3
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table["columns"][0].update(fill="much"),
        lambda table: table["columns"][0].update(kind="date", origin=1.5),
        lambda table: table["columns"][2].update(levels=[]),
        lambda table: table["columns"][3]["effects"].pop(),
        lambda table: table["columns"][3]["effects"].__setitem__(0, [None]),
        lambda table: table["columns"][4].update(quantiles=[1.0]),
        lambda table: table["columns"].pop(),
        lambda table: table["columns"][0].update(name="another"),
    ],
)
def test_a_file_with_a_broken_table_is_refused(frame, y, tmp_path, change):
    model = fitted(frame, y)
    model.save(tmp_path / "m.dsmgp")
    header, arrays = unpacked((tmp_path / "m.dsmgp").read_bytes())
    assert len(header["table"]["columns"]) == 5
    change(header["table"])
    (tmp_path / "broken.dsmgp").write_bytes(packed(header, arrays))
    with pytest.raises(ModelFileError):
        load(tmp_path / "broken.dsmgp")


@pytest.mark.parametrize("n", [60, pytest.param(5_000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:column:UserWarning")
def test_made_up_tables_are_refused_or_predict_finite_numbers(frame, y, tmp_path, rng, n):
    fitted(frame, y).save(tmp_path / "m.dsmgp")
    header, arrays = unpacked((tmp_path / "m.dsmgp").read_bytes())
    new = frame[:6].assign(shop="new", colour=["red", "new", None] * 2)
    outcomes = set()
    for _ in range(n):
        changed = copy.deepcopy(header)
        change_entry(changed["table"], rng)
        (tmp_path / "made-up.dsmgp").write_bytes(packed(changed, arrays))
        try:
            mean, std = load(tmp_path / "made-up.dsmgp").predict(new, return_std=True)
        except ValueError as error:  # ModelFileError, or a value that the columns do not allow
            outcomes.add(type(error))
            continue
        outcomes.add("predicted")
        assert np.isfinite(mean).all()
        assert (std > 0).all()
    assert {ModelFileError, "predicted"} <= outcomes
