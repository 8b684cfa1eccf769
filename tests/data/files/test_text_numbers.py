"""Numbers as people write them: each form is read, and nothing else is."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsmgp.data.files.text_numbers import read_numbers

NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "by_point", "by_comma"),
    [
        ("$29,000", 29000, 29),
        ("€ 3.50", 3.5, NAN),
        ("3,50 €", NAN, 3.5),
        ("21%", 21, 21),
        ("21 %", 21, 21),
        ("1 234,5", NAN, 1234.5),
        ("1\u00a0234", 1234, 1234),
        ("1,234.5", 1234.5, NAN),
        ("1'234", 1234, 1234),
        ("1.234.567,8", NAN, 1234567.8),
        ("1,234,567", 1234567, NAN),
        ("(5)", -5, -5),
        ("($1,234.50)", -1234.5, NAN),
        ("-$5", -5, -5),
        ("$-5", -5, -5),
        ("\u22123", -3, -3),
        ("USD 5", 5, 5),
        ("5 CHF", 5, 5),
        ("0,123", NAN, 0.123),
        ("+5", 5, 5),
        (".5", 0.5, NAN),
        ("5.", 5, NAN),
        ("1e5", 1e5, 1e5),
        ("-inf", -np.inf, -np.inf),
    ],
)
def test_numbers_are_read_by_each_decimal_sign(text, by_point, by_comma):
    reading = read_numbers(pa.array([text]))
    np.testing.assert_array_equal(reading.by_point, [by_point])
    np.testing.assert_array_equal(reading.by_comma, [by_comma])


@pytest.mark.parametrize(
    "text",
    ["", "-", ".", ",", "e5", "$", "%", "abc", "1-2", "1 2", "12,34,567", "1,2345,678", "1.2.3", "(-5)", "--5", "3 kg",
     "5 USDX", "0x10", "1_000", "2020-01-01", "12:30"],
)  # fmt: skip
def test_other_texts_are_no_numbers(text):
    assert not read_numbers(pa.array([text])).number_like.any()


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite)
def test_what_python_writes_is_read_exactly(number):
    assert read_numbers(pa.array([repr(number)])).by_point[0] == number


@given(st.decimals(-(10**12), 10**12, places=2, allow_nan=False))
def test_grouped_digits_are_read_by_their_own_decimal_sign(number):
    english = f"{number:,}"
    german = english.translate(str.maketrans(",.", ".,"))
    swiss = english.replace(",", "'")
    reading = read_numbers(pa.array([english, german, swiss, f"${english}"]))
    assert reading.by_point[[0, 2, 3]].tolist() == [float(number)] * 3
    assert reading.by_comma[1] == float(number)


@given(st.text(max_size=12))
def test_no_text_is_an_error(text):
    read_numbers(pa.array([text]))


def test_the_decimal_sign_is_that_by_which_most_rows_are_numbers():
    def decimal(*texts):
        return read_numbers(pa.array(texts)).decimal(np.ones(len(texts), int))

    assert decimal("1,5", "1,234") == ","
    assert decimal("1,234", "1,234,567") == "."
    assert decimal("1,234", "2,345") is None
    assert decimal("5", "1'000") == "."
    assert decimal("1.5", "1,5", "2,5", "abc") == ","


def test_currencies_and_percent_signs_are_told():
    reading = read_numbers(pa.array(["$5", "5 €", "7%", "n/a $"]))
    assert reading.currencies == ["$", "€"]
    assert reading.percent.tolist() == [False, False, True, False]
