"""What counts as a time: dates, or numbers in equal steps; names and the order of rows do not matter."""

import numpy as np
import pandas as pd
import pytest

from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.forecasting.time_input import find_time, is_equally_spaced


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
