"""Dates as inputs, and periodic kernels by name."""

import pickle
from datetime import date, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dsmgp import DSMGPRegressor
from dsmgp._util.dates import Dates
from dsmgp.data.input_schema import InputSchema


@pytest.fixture(scope="module")
def days():
    """120 days with a break on the 50th; the second input is a number."""
    rng = np.random.default_rng(0)
    when = pd.date_range("2022-01-01 12:00", periods=120, freq="D")
    y = (np.arange(120) >= 50) + 0.1 * rng.normal(size=120)
    return pd.DataFrame({"when": when, "load": rng.uniform(size=120)}), y


def fitted(X, y):
    return DSMGPRegressor("rbf", structure="changepoint", max_iter=4).fit(X, y)


def test_every_kind_of_date_gives_the_same_model(days):
    frame, y = days
    one = frame[["when"]]

    def fitted(X, y):
        return DSMGPRegressor("rbf", structure="changepoint", optimizer=None).fit(X, y)

    expected = fitted(np.arange(120.0)[:, None], y).predict(np.array([[3.0], [70.5]]))
    new = pd.DataFrame({"when": pd.to_datetime(["2022-01-04 12:00", "2022-03-13 00:00"])})
    kinds = {
        "pandas": lambda f: f,
        "seconds": lambda f: f.astype({"when": "datetime64[s]"}),
        "zone": lambda f: f.assign(
            when=f["when"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
        ),
        "polars": lambda f: pl.DataFrame({"when": f["when"].to_numpy().astype("datetime64[us]")}),
        "numpy": lambda f: f["when"].to_numpy().astype("datetime64[s]")[:, None],
    }
    for name, kind in kinds.items():
        model = fitted(kind(one), y)
        np.testing.assert_allclose(model.predict(kind(new)), expected, rtol=1e-9, err_msg=name)


def test_changes_come_back_as_dates(days):
    frame, y = days
    model = fitted(frame, y)
    (change,) = model.changepoints()
    assert np.datetime64("2022-02-18") < change.position < np.datetime64("2022-02-22")
    assert change.low <= change.position <= change.high
    splits = model.split_posterior("when")
    found = splits.within(np.datetime64("2022-02-15"), np.datetime64("2022-02-25"))
    assert found == pytest.approx(1.0, abs=0.1)
    assert model.split_posterior("load").dates is None


def test_dates_are_kept_to_the_microsecond():
    rng = np.random.default_rng(0)
    stamps = np.datetime64("1960-05-17", "us") + np.cumsum(rng.integers(1, 10**12, size=500))
    dates = Dates(stamps.min())
    np.testing.assert_array_equal(dates.to_dates(dates.to_numbers(stamps)), stamps)


def test_dates_must_be_dates_again(days):
    frame, y = days
    model = fitted(frame, y)
    with pytest.raises(
        ValueError, match=r"'when' holds numbers \('1.0' in row 0\), and held dates"
    ):
        model.predict(frame.assign(when=1.0))
    with pytest.raises(ValueError, match=r"'load' holds dates .* and held numbers"):
        model.predict(frame.assign(load=frame["when"]))
    missing = frame.copy()
    missing.loc[3, "when"] = pd.NaT
    with pytest.raises(ValueError, match="column 'when' orders the rows and has missing values"):
        fitted(missing, y)
    assert len(model.predict(frame)) == 120


def test_a_period_is_found_and_goes_on():
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0, 20, size=200))

    def f(x):
        return np.sin(2 * np.pi * x / 1.3)

    y = f(x) + 0.1 * rng.normal(size=200)
    ahead = np.linspace(20.5, 26, 40)
    for kernel in ("periodic+rbf", "rbf + periodic"):
        model = DSMGPRegressor(kernel, leaf_size=200, sum_children=1, weights="posterior").fit(
            x[:, None], y
        )
        error = np.abs(model.predict(ahead[:, None]) - f(ahead))
        assert error.mean() < 0.3
    smooth = DSMGPRegressor("rbf", leaf_size=200, sum_children=1, weights="posterior")
    assert np.abs(smooth.fit(x[:, None], y).predict(ahead[:, None]) - f(ahead)).mean() > 0.4


@pytest.mark.parametrize("kernel", ["rbf+", "rbf+saw", "+periodic", "auto+rbf"])
def test_unknown_parts_of_a_sum_are_named(kernel, days):
    frame, y = days
    with pytest.raises(ValueError, match="unknown kernel"):
        DSMGPRegressor(kernel).fit(frame, y)


def test_dates_are_kept_in_files(rng, tmp_path):
    frame = pd.DataFrame({"when": pd.date_range("2021-03-01", periods=80, freq="h")})
    y = np.sin(np.arange(80) / 9) + 0.1 * rng.normal(size=80)
    model = DSMGPRegressor("rbf", leaf_size=40, max_iter=5, random_state=0).fit(frame, y)
    model.save(tmp_path / "dates.dsmgp")
    again = DSMGPRegressor.load(tmp_path / "dates.dsmgp")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    model.partial_fit(frame[:3], y[:3], adapt=False)
    with pytest.raises(ValueError, match="held dates when the model was fitted"):
        model.partial_fit(pd.DataFrame({"when": [0.0]}), [0.0])


@pytest.fixture
def dated(rng):
    frame = pd.DataFrame({"t": pd.date_range("2020-01-01", periods=60), "x": rng.uniform(size=60)})
    y = frame["x"].to_numpy() + 0.1 * rng.normal(size=60)
    return DSMGPRegressor("rbf", leaf_size=30, max_iter=3, random_state=0).fit(frame, y), frame, y


def test_other_columns_than_those_of_the_fit_are_refused(dated):
    model, frame, _ = dated
    for other in (frame.assign(z=frame.t), frame[["x", "t"]], frame[["t"]]):
        with pytest.raises(ValueError, match=r"feature names|features"):
            model.predict(other)


def test_dates_as_python_has_them(rng):
    days = [date(2020, 1, 1) + timedelta(k) for k in range(60)]
    y = np.sin(np.arange(60) / 9) + 0.1 * rng.normal(size=60)
    one = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(pd.DataFrame({"t": days}), y)
    frame = pd.DataFrame({"t": pd.to_datetime(days)})
    two = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(frame, y)
    np.testing.assert_array_equal(
        one.predict(pd.DataFrame({"t": days[:5]})), two.predict(frame[:5])
    )
    months = pd.period_range(
        "2020-01", periods=60, freq="M"
    )  # each is the date that it begins with
    three, four = (
        DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(pd.DataFrame({"t": column}), y)
        for column in (months, months.to_timestamp())
    )
    np.testing.assert_array_equal(
        three.predict(pd.DataFrame({"t": months[:5]})),
        four.predict(pd.DataFrame({"t": months[:5].to_timestamp()})),
    )


def test_months_are_months_in_every_table_to_predict_from(rng):
    """What they could be instead is asked of the training table alone: 2009-10 and 2010-11 look like seasons."""
    months = pd.period_range("2008-01", periods=60, freq="M").astype(str)
    y = np.sin(np.arange(60) / 9) + 0.1 * rng.normal(size=60)
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0)
    model.fit(pd.DataFrame({"t": months}), y)
    together = model.predict(pd.DataFrame({"t": ["2009-10", "2010-11", "2012-05", "2101-01"]}))
    alone = model.predict(pd.DataFrame({"t": ["2009-10", "2010-11"]}))
    np.testing.assert_array_equal(alone, together[:2])
    with pytest.raises(ValueError, match=r"\('2010-13' in row 1\)"):
        model.predict(pd.DataFrame({"t": ["2009-10", "2010-13"]}))


def test_codes_that_look_like_months_of_distant_years_are_levels(rng):
    codes = [f"{part}-{kind:02}" for part in range(4711, 4716) for kind in range(1, 13)]
    frame = pd.DataFrame({"part": codes * 2, "year": [f"{2001 + k % 9}-05" for k in range(120)]})
    schema, _ = InputSchema.learn(frame, rng.normal(size=120))
    assert {c.name: c.kind for c in schema.columns.columns} == {"part": "category", "year": "date"}


def test_pictures_and_reports_of_dates(dated, undrawn):
    pytest.importorskip("matplotlib").use("Agg")
    from dsmgp.report import report_html

    model, frame, y = dated
    assert model.plot_dependence(frame, "x", n_points=5).get_xlabel() == "x"
    assert model.plot_dependence(frame, "t", n_points=5).get_xlabel() == "t"
    assert "Calibration" in report_html(model, frame, y)


def test_places_among_dates_may_be_written(dated):
    model, _, _ = dated
    splits = model.split_posterior("t")
    assert splits.within("2019-01-01", "2021-01-01") == pytest.approx(splits.expected)


def test_periodic_kernels_can_be_pickled(rng):
    X = np.linspace(0, 6, 60)[:, None]
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=60)
    for kernel in ("periodic", "matern32+periodic"):
        model = DSMGPRegressor(kernel, leaf_size=60, max_iter=2, random_state=0).fit(X, y)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
