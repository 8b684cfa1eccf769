"""Laws of frames: whatever their columns, predictions are finite or the frame is refused in words; the form of a column does not matter."""

from datetime import timedelta
from uuid import uuid4

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsmgp import DSMGPRegressor
from tests.support.mixed_frames import COLUMNS, POLARS, frames, in_library

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*column:UserWarning"),
    pytest.mark.filterwarnings("ignore::dsmgp._util.warnings.FactorisationWarning"),
]
FIXED = {"kernel": "rbf", "optimizer": None, "random_state": 0, "leaf_size": 20}
CHECKS = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
# Whatever the rows, these columns are inputs.
INFORMATIVE = {"float32", "moments of Python"}


def model_of(X, y, **options):
    return DSMGPRegressor(**{**FIXED, **options}).fit(X, y)


def moments(model, X):
    return np.array(model.predict(X, return_std=True))


@pytest.mark.parametrize("library", ["pandas", "polars"])
@settings(max_examples=60, **CHECKS)
@given(data=st.data())
def test_any_frame_is_predicted_or_refused_in_words(library, data):
    X, y, new, kinds = data.draw(frames(tuple(COLUMNS) if library == "pandas" else POLARS))
    try:
        model = model_of(in_library(X, library), y)
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "no column is left to predict from" in refusal
        assert not INFORMATIVE & set(kinds)
        return
    assert model.n_features_in_ == X.shape[1]
    assert len(model.feature_importances_) == X.shape[1]
    for rows in (X, new, new[:1]):
        rows = in_library(rows, library)
        mean, std = moments(model, rows)
        assert np.isfinite(mean).all()
        assert (std > 0).all()
        distribution = model.predict_dist(rows)
        assert np.isfinite(distribution.logpdf(np.zeros(len(rows)))).all()
        np.testing.assert_allclose(distribution.mean, mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(distribution.std, std, rtol=1e-7)


@settings(max_examples=25, **CHECKS)
@given(drawn=frames(tuple(k for k in POLARS if k not in ("codes", "moments of Python"))))
def test_pandas_and_polars_agree_bit_for_bit(drawn):
    X, y, new, _ = drawn
    X = X.assign(x=np.arange(len(X)) % 7)
    new = new.assign(x=2)
    held = moments(model_of(X, y), new)
    np.testing.assert_array_equal(
        moments(model_of(pl.from_pandas(X), y), pl.from_pandas(new)), held
    )


@settings(max_examples=15, **CHECKS)
@given(drawn=frames(tuple(COLUMNS)), seed=st.integers(0, 99))
def test_the_order_of_rows_and_columns_changes_rounding_only(drawn, seed):
    X, y, new, _ = drawn
    X, new = X.assign(x=np.arange(len(X)) % 7), new.assign(x=2)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(len(X)), rng.permutation(X.shape[1])
    held = moments(model_of(X, y), new)
    moved = moments(model_of(X.iloc[rows, columns], y[rows]), new.iloc[:, columns])
    np.testing.assert_allclose(moved, held, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("is_stacked", [False, True])
def test_names_of_levels_and_orders_do_not_change_a_fit_with_effects(is_stacked, rng):
    """Also where the tree has cuts, or several hypotheses are stacked."""
    n = 90
    X = pd.DataFrame(
        {
            "shop": [f"{k:02}" for k in rng.integers(0, 12, n)],
            "x": rng.normal(size=n),
            "size": rng.choice(["10", "21", "32"], n),
            "z": rng.normal(size=n),
        }
    )
    y = X["shop"].astype(int) / 4 + X["x"] + np.round(rng.normal(size=n), 1)
    options = {"optimizer": "lbfgs", "max_iter": 5}
    if is_stacked:
        options |= {"kernel": "auto", "leaf_size": "auto"}
    held = model_of(X, y, **options)
    assert (held.state_.stacking is not None) == is_stacked
    rows, renamed = rng.permutation(n), X.assign(**{c: X[c].str[::-1] for c in ("shop", "size")})
    moved = model_of(renamed.iloc[rows, ::-1], y.iloc[rows], **options)
    assert moved.loo_score_ == pytest.approx(held.loo_score_, abs=1e-5)
    np.testing.assert_allclose(
        moments(moved, renamed.iloc[:, ::-1]), moments(held, X), rtol=1e-4, atol=1e-5
    )


LEVELS = ["b", "a", "ü", "10", "9"]
FORMS = {
    "object": lambda texts: pd.Series(texts, dtype=object),
    "string": lambda texts: pd.Series(texts, dtype="string"),
    "Arrow string": lambda texts: pd.Series(texts, dtype="string[pyarrow]"),
    "category": lambda texts: pd.Series(texts, dtype="category"),
    "category in another order": lambda texts: pd.Series(
        pd.Categorical(texts, categories=["unused", *LEVELS[::-1]])
    ),
    "ordered category": lambda texts: pd.Series(
        pd.Categorical(texts, categories=LEVELS, ordered=True)
    ),
    "Arrow dictionary": lambda texts: pd.Series(
        texts, dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))
    ),
    "polars": lambda texts: pl.Series(texts),
    "polars categorical": lambda texts: pl.Series(texts, dtype=pl.Categorical),
    "polars enum": lambda texts: pl.Series(texts, dtype=pl.Enum([*LEVELS, "unused"])),
}


def framed(x, column):
    if isinstance(column, pl.Series):
        return pl.DataFrame({"x": x, "c": column})
    return pd.DataFrame({"x": x, "c": column})


@pytest.mark.parametrize("with_gaps", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_category_changes_nothing(form, with_gaps, rng):
    texts = rng.choice(np.array([*LEVELS, None] if with_gaps else LEVELS, dtype=object), 60)
    x, y = rng.normal(size=60), rng.normal(size=60)
    new = framed(x[:9], FORMS["object"](texts[:9].tolist()))
    expected = moments(model_of(framed(x, FORMS["object"](texts.tolist())), y), new)
    model = model_of(framed(x, FORMS[form](texts.tolist())), y)
    np.testing.assert_array_equal(moments(model, new), expected)
    again = framed(x[:9], FORMS[form](texts[:9].tolist()))
    np.testing.assert_array_equal(moments(model, again), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "Int64", "float32", "double[pyarrow]", object])
def test_the_type_of_whole_numbers_changes_nothing(dtype, rng):
    numbers, y = rng.integers(0, 50, 60), rng.normal(size=60)
    plain = pd.DataFrame({"a": numbers.astype(float), "b": ["u", "v", "w"] * 20})
    expected = moments(model_of(plain, y), plain)
    other = plain.astype({"a": dtype})
    np.testing.assert_array_equal(moments(model_of(other, y), other), expected)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_unit_of_dates_and_the_zone_change_nothing(unit, rng):
    days, y = pd.date_range("1999-12-31", periods=40, freq="37h"), rng.normal(size=40)
    plain = pd.DataFrame({"t": days, "x": rng.normal(size=40)})
    expected = moments(model_of(plain, y), plain)
    zoned = plain["t"].dt.tz_localize("UTC").dt.tz_convert("Asia/Kolkata")
    for column in (plain["t"].astype(f"datetime64[{unit}]"), zoned):
        other = plain.assign(t=column)
        np.testing.assert_array_equal(moments(model_of(other, y), other), expected)


@pytest.mark.parametrize("unit", ["M", "Q", "W", "D"])
def test_periods_are_the_dates_of_their_first_days(unit, rng):
    periods, y = (
        pd.Series(pd.period_range("2001-04-30", periods=40, freq=unit)),
        rng.normal(size=40),
    )
    plain = pd.DataFrame({"t": periods.dt.to_timestamp(), "x": rng.normal(size=40)})
    expected = moments(model_of(plain, y), plain)
    starts = periods.dt.to_timestamp()
    forms = [periods, periods.astype(object)]
    if unit == "M":
        forms += [starts.dt.strftime(form) for form in ("%Y-%m", "%m/%Y", "%Y/%m")]
    elif unit == "Q":
        forms += [periods.astype(str), periods.dt.strftime("Q%q-%Y")]
    elif unit == "W":
        forms += [starts.dt.strftime("%G-W%V"), starts.dt.strftime("%GW%V")]
    else:
        forms += [starts.dt.strftime("%Y%m%d").astype(int), starts.dt.strftime("%Y-%m-%d")]
    for column in forms:
        other = plain.assign(t=column)
        held = moments(model_of(other, y), other[:3])
        np.testing.assert_allclose(held, expected[:, :3], rtol=1e-9)


def test_spans_of_time_are_numbers_of_days(rng):
    hours, y = rng.integers(0, 500, 40), rng.normal(size=40)
    expected = moments(
        model_of(pd.DataFrame({"c": hours / 24, "x": y}), y), pd.DataFrame({"c": [0.5], "x": 0.0})
    )
    spans = pd.Series(pd.to_timedelta(hours, "h"))
    for column, new in (
        (spans, pd.Series(pd.to_timedelta([12], "h"))),
        (
            pd.Series([timedelta(hours=int(each)) for each in hours], dtype=object),
            pd.Series([timedelta(hours=12)], dtype=object),
        ),
        (pl.from_pandas(spans), pl.Series([timedelta(hours=12)])),
    ):
        library = pl if isinstance(column, pl.Series) else pd
        model = model_of(library.DataFrame({"c": column, "x": y}), y)
        np.testing.assert_allclose(
            moments(model, library.DataFrame({"c": new, "x": [0.0]})), expected, rtol=1e-9
        )


def test_columns_that_hold_no_values_of_a_kind_are_refused_by_name(rng):
    y = rng.normal(size=6)
    for column, message in (
        (pd.Series([uuid4() for _ in range(6)]), "a UUID in column 'c' of X, row 0.*into numbers, texts or dates"),
        (pd.Series([(1, 2)] * 6), "a tuple in column 'c' of X, row 0.*into numbers, texts or dates"),
        (pd.Series(np.arange(6) + 1j), "Complex data not supported: column 'c' of X"),
        (pd.Series([1.0, 2.0, np.inf, 3.0, 4.0, 5.0]), "infinity .* row 2, column 1"),
        (pl.Series([[1]] * 6), "column 'c' of X holds several values in one row"),
        (pl.Series([{"a": 1}] * 6), "column 'c' of X holds several values in one row"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            model_of(framed(np.arange(6.0), column), y)


@pytest.mark.parametrize("labels", [["a", "a"], ["1", 1]])
def test_columns_of_one_name_are_refused_before_they_are_read(labels):
    frame = pd.DataFrame([["u", 1.0], ["v", 2.0]])
    frame.columns = labels
    with pytest.raises(ValueError, match=f"more than one column '{labels[0]}'"):
        model_of(frame, [1.0, 2.0])
