"""Dates as people write them: each form is read, and the order of day and month is settled by the column."""

from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsmgp.data.files.text_dates import read_dates, read_hours


def dates_of(*texts, day_first=None):
    return read_dates(pa.array(texts), np.ones(len(texts), int), day_first)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("Jan 5, 2020", "2020-01-05"),
        ("January 5 2020", "2020-01-05"),
        ("05-Jan-2020", "2020-01-05"),
        ("05-JAN-20", "2020-01-05"),
        ("05JAN2020", "2020-01-05"),
        ("5-Jan-69", "1969-01-05"),
        ("5 January 2020", "2020-01-05"),
        ("5. Sept. 2020", "2020-09-05"),
        ("Mon, 5 Oct 2020", "2020-10-05"),
        ("September 3rd, 2021", "2021-09-03"),
        ("2020 Jan", "2020-01-01"),
        ("Jan 2020", "2020-01-01"),
        ("2020-Jan-05", "2020-01-05"),
        ("2020/1/5", "2020-01-05"),
        ("2020.01.05", "2020-01-05"),
        ("Jan 5, 2020 4:30 PM", "2020-01-05T16:30"),
        ("5 May 2020 12:05 am", "2020-05-05T00:05"),
        ("2020-01-05T10:00:00.25Z", "2020-01-05T10:00:00.25"),
        ("2020-01-05 10:00 +02:00", "2020-01-05T08:00"),
        ("5 Jan 2020 10:00:00 -0130", "2020-01-05T11:30"),
        ("31.12.2020", "2020-12-31"),
        ("12/31/2020", "2020-12-31"),
        ("12/31/20 23:59", "2020-12-31T23:59"),
        ("05/05/2020", "2020-05-05"),
        ("2020-02", "2020-02-01"),
        ("2/2020", "2020-02-01"),
        ("2020/02", "2020-02-01"),
        ("2020Q2", "2020-04-01"),
        ("q4-2020", "2020-10-01"),
        ("2020-W53", "2020-12-28"),
    ],
)
def test_dates_are_read(text, moment):
    assert dates_of(text).dates[0] == np.datetime64(moment, "us")


@pytest.mark.parametrize(
    "text",
    ["", "May", "hello", "30 Feb 2020", "2020-13-01", "31/31/2020", "5 Maybe 2020", "2020-01-01 25:00", "2020-01-01 13:00 pm",
     "12.5", "1-2", "March 5", "10:30"],
)  # fmt: skip
def test_other_texts_are_no_dates(text):
    assert np.isnat(dates_of(text).dates[0])


def test_a_day_after_the_12th_settles_the_order_of_a_column():
    assert str(dates_of("03/04/2020", "13/04/2020").dates[0])[:10] == "2020-04-03"
    assert str(dates_of("03/04/2020", "04/13/2020").dates[0])[:10] == "2020-03-04"
    ambiguous = dates_of("03/04/2020", "04/05/2020")
    assert ambiguous.day_and_month.all()
    assert np.isnat(ambiguous.dates).all()
    assert str(dates_of("03/04/2020", day_first=True).dates[0])[:10] == "2020-04-03"
    assert str(dates_of("03/04/2020", day_first=False).dates[0])[:10] == "2020-03-04"


def test_seasons_are_no_months():
    assert np.isnat(dates_of("2001-02", "2002-03", "2011-12").dates).all()
    assert not np.isnat(dates_of("2001-02", "2001-03", "2011-12").dates).any()
    assert np.isnat(dates_of("2020-13", "2020-W54", "2020Q5").dates).all()


def test_numbers_with_years_that_no_table_has_are_no_periods():
    assert np.isnat(dates_of("4711-01", "1899-12", "2101Q1", "1/2101", "1899-W03").dates).all()
    assert not np.isnat(dates_of("1900-01", "2100-12", "2100Q4").dates).any()


@given(st.dates(datetime(1900, 1, 7).date(), datetime(2100, 12, 31).date()))
def test_periods_begin_on_or_before_their_days(day):
    month, week = np.datetime64(day, "M"), f"{day:%G-W%V}"
    assert dates_of(str(month)).dates[0] == month
    assert dates_of(f"{day.year}Q{(day.month + 2) // 3}").dates[0] <= np.datetime64(day)
    assert (
        0 <= (np.datetime64(day) - dates_of(week).dates[0]).astype("timedelta64[D]").astype(int) < 7
    )


def test_a_month_with_a_number_is_unclear():
    reading = dates_of("Jan-20", "Feb-21", "20 May")
    assert reading.unclear.all()
    assert np.isnat(reading.dates).all()


moments = st.datetimes(datetime(1970, 1, 1), datetime(2060, 1, 1)).map(
    lambda moment: moment.replace(microsecond=0)
)


@given(moments, st.sampled_from(["%d %B %Y %H:%M:%S", "%b %d, %Y %I:%M:%S %p", "%d-%b-%y %H:%M:%S", "%Y/%m/%d %H:%M:%S"]))  # fmt: skip
def test_every_moment_is_read_in_every_form(moment, form):
    assert dates_of(moment.strftime(form)).dates[0] == np.datetime64(moment, "us")


@given(moments, st.booleans())
def test_a_month_of_days_is_read_in_either_order(moment, day_first):
    form = "%d.%m.%Y" if day_first else "%m/%d/%Y"
    days = [moment.date() + timedelta(k) for k in range(31)]
    reading = dates_of(*(day.strftime(form) for day in days))
    assert reading.dates.astype("datetime64[D]").tolist() == days


@given(st.text(max_size=20))
def test_no_text_is_an_error(text):
    dates_of(text)


@given(moments, st.sampled_from(["%H:%M:%S", "%I:%M:%S %p"]))
def test_times_of_day_are_hours_since_midnight(moment, form):
    hours = read_hours(pa.array([moment.strftime(form)]))[0]
    assert hours == pytest.approx(moment.hour + moment.minute / 60 + moment.second / 3600)
