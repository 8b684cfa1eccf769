"""What counts as a time: dates, or numbers in equal steps; names and the order of rows do not matter."""

import numpy as np
import pandas as pd
import pytest

from dsmgp._util.dates import Dates
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.forecasting.time_input import find_time, is_equally_spaced, month_steps


def time_of(table):
    schema, given = InputSchema.learn(table, np.zeros(len(table)), "model", "from_dtype")
    return find_time(given.X, schema)


@pytest.fixture
def days():
    return pd.date_range("2020-01-01", periods=60, freq="D")


def test_a_column_of_dates_is_a_time_wherever_it_is(rng, days):
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.permutation(days)})
    assert time_of(frame) == 1
    assert time_of(frame.assign(b=frame.b.dt.strftime("%Y-%m-%d"))) == 1
    assert time_of(frame.assign(c=days)) is None  # which of them?
    assert time_of(frame[:30]) is None  # too few to forecast any


def test_numbers_in_equal_steps_are_a_time(rng):
    months = 1949 + np.arange(80) / 12
    for values in (months, months[::-1], rng.permutation(np.delete(months, [5, 6, 40]))):
        assert is_equally_spaced(values)
        assert time_of(np.column_stack([rng.normal(size=len(values)), values])) == 1
    assert not is_equally_spaced(np.repeat(months, 2))
    assert not is_equally_spaced(rng.uniform(size=80))
    assert not is_equally_spaced(np.concatenate([months, [2100.0]]))
    assert time_of(np.column_stack([months, np.arange(80)])) is None


@pytest.mark.parametrize("step", ["MonthBegin", "MonthEnd", "QuarterBegin", "YearEnd"])
def test_steps_of_months_are_equal_and_go_on_beyond_the_data(step):
    moments = pd.date_range("2019-02-01 06:00", periods=30, freq=getattr(pd.offsets, step)())
    dates = Dates(moments[0].to_datetime64())
    days = dates.to_numbers(moments.to_numpy())
    warp = month_steps(days[:20], dates)
    steps = np.diff(warp(days))
    np.testing.assert_allclose(steps, steps[0])
    np.testing.assert_allclose(warp.inverse(warp(days)), days, atol=1e-6)
    assert np.ptp(np.diff(days)) > 0


def test_dates_on_different_days_of_their_months_are_no_steps_of_months(days):
    dates = Dates(days[0].to_datetime64())
    for moments in (days, pd.date_range("2020-01-01", periods=60, freq="4W")):
        assert month_steps(dates.to_numbers(moments.to_numpy()), dates) is None
