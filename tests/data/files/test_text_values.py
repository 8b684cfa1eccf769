"""Columns of text are read as what they mean, as a whole; a few texts that do not fit are a problem and no category."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsmgp.data.files.text_column import TextFormat
from dsmgp.data.files.text_values import read_columns

NUMBERS = [str(k) for k in range(30)]


def read(values, text=(), form=TextFormat(), commas_group=True):  # noqa: B008
    columns = {"x": pa.chunked_array([values], pa.string())}
    return read_columns(columns, text, form, commas_group)["x"]


@pytest.mark.parametrize(
    "missing",
    ["?", "-", "--", ".", "", " ", "NA", "na", " N/A ", "NaN", "null", "None", "NONE", "#N/A"],
)
def test_marks_among_numbers_and_dates_are_missing_values(missing):
    assert read(["1.5", missing, "$2", None]).values.to_pylist() == [1.5, None, 2, None]
    dates = read(["5 Jan 2020", missing, "6 Jan 2020"]).values
    assert dates.is_null().to_pylist() == [False, True, False]
    assert read(["TRUE", missing, "false"]).values.to_pylist() == [True, None, False]


def test_a_dash_is_a_level_of_a_category():
    assert read(["red", "-", " blue", "NA", None]).values.to_pylist() == [
        "red", "-", "blue", None, None,
    ]  # fmt: skip


def test_a_column_of_missing_values_only_is_empty():
    assert read(["?", "-", "?"]).values.type == pa.null()


def test_texts_of_the_user_are_missing_values_in_any_column():
    form = TextFormat(missing=("unknown",))
    reading = read([*NUMBERS, "Unknown"], form=form)
    assert reading.values[30].as_py() is None
    assert reading.remarks == ("column 'x': 'Unknown' is read as a missing value (1 row)",)
    assert read(["red", "unknown"], form=form).values.to_pylist() == ["red", None]


def test_columns_of_text_stay_text():
    assert read(["01", "$2", " ? "], text=["x"]).values.to_pylist() == ["01", "$2", "?"]


@pytest.mark.parametrize("stray", ["abc", "unknown", "5 kg", "12,34,567"])
def test_few_texts_among_numbers_are_a_problem(stray):
    reading = read([*NUMBERS[:7], stray, *NUMBERS[7:]])
    assert reading.problem.startswith(f"column 'x' holds numbers but for {stray!r} in row 8; ")
    for remedy in (f"--na {stray!r}", "--text 'x'", "--drop 'x'"):
        assert remedy in reading.problem
    assert reading.values[7].as_py() == stray


def test_a_word_that_recurs_among_numbers_is_a_problem():
    reading = read([*NUMBERS, *["unknown"] * 10])
    assert "but for 'unknown' in row 31 and 9 other rows" in reading.problem
    codes = [*NUMBERS, *np.resize(["A1", "B2", "C3"], 10)]
    assert read(codes).problem is None
    months = [str(k % 12 + 1) for k in range(40)]
    assert read([*months, *["other"] * 10]).problem is None  # a category


def test_a_unit_that_all_numbers_have_is_left_out():
    reading = read([f"{k}.5 kg" for k in range(10)])
    assert reading.values.to_pylist() == [k + 0.5 for k in range(10)]
    assert reading.remarks == ("column 'x': '0.5 kg' is read as the number 0.5, in kg",)
    two_units = [f"{k} {'kg' if k % 2 else 'lb'}" for k in range(10)]
    assert read(two_units).values.to_pylist() == two_units


def test_few_texts_among_dates_are_a_problem():
    days = [f"{k} Jan {year}" for year in (2020, 2021) for k in range(1, 32)]
    reading = read([*days, "soon", "soon", "30 Feb 2020"])
    assert "holds dates but for 'soon' in row 63 and 1 other row, '30 Feb 2020' in row 65" in reading.problem  # fmt: skip


def test_many_texts_that_do_not_fit_are_listed_in_part():
    reading = read([str(k) for k in range(200)] + list("abcdef"))
    assert "'a' in row 201, 'b' in row 202, 'c' in row 203, 3 further texts;" in reading.problem


@pytest.mark.parametrize(
    "levels", [["1", "2", "A"], ["01", "02", "X"], ["a1", "b2"], ["10-19", "20-29"], ["yes", "no"]]
)
def test_categories_whose_levels_look_like_numbers_are_categories(levels):
    reading = read(list(np.resize(levels, 60)))
    assert reading.problem is None
    assert pa.types.is_string(reading.values.type)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (["$5", "6 €"], "amounts in different currencies ($, €)"),
        (["5%", "0.3"], "with a percent sign ('5%') and without ('0.3')"),
        (["1,5", "2.5"], "numbers with decimal points but for '1,5' in row 1"),
        (["1,234", "2,345"], "give --decimal . for 1234, --decimal , for 1.234"),
        (["3/4/2020", "4/5/2020"], "order of day and month is ambiguous; give --dayfirst"),
        (["13/4/2020", "4/13/2020"], "dates with the day first and others with the month first"),
        (
            [*[f"9:{k}" for k in range(10, 20)], "noon"],
            "holds times of day but for 'noon' in row 11",
        ),
        (["Jan-20", "Feb-20"], "which may be a day or a year"),
    ],
)
def test_what_can_be_read_in_two_ways_is_a_problem(values, problem):
    assert problem in (read(values, commas_group=False).problem or "")


def test_other_columns_of_the_file_tell_what_a_comma_means():
    def second(*first):
        columns = {
            "a": pa.chunked_array([list(first)]),
            "b": pa.chunked_array([["1,234", "2,345"]]),
        }
        return read_columns(columns, [], TextFormat(), False)["b"].values[0].as_py()

    assert second("1,5", "2") == 1.234
    assert second("1,234.5", "2") == 1234
    assert second("$3", "2") == "1,234"  # as it is: a problem


def test_a_column_of_many_names_is_no_number():
    names = [f"name {k}" for k in range(3000)]
    assert read([*names, "5"]).values.to_pylist() == [*names, "5"]


cells = st.sampled_from(["1", "2.5", "$3,000", "?", "abc", " x", "5 Jan 2020", "NA", "", "7%"]) | st.text(max_size=6)  # fmt: skip


@given(st.lists(st.none() | cells, min_size=1, max_size=40), st.integers(1, 5))
def test_reading_keeps_rows_and_does_not_depend_on_chunks(values, n_chunks):
    """Every row has its text, a meaning of it, or is missing; and a reading does not depend on how the rows are stored."""
    chunks = [part.tolist() for part in np.array_split(np.array(values, dtype=object), n_chunks)]
    columns = {"x": pa.chunked_array(chunks, pa.string())}
    reading = read_columns(columns, [], TextFormat(), True)["x"]
    assert len(reading.values) == len(values)
    assert reading.values.to_pylist() == read(values).values.to_pylist()
    assert all(v is None for v, text in zip(reading.values.to_pylist(), values, strict=True) if text is None)  # fmt: skip


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=30), st.randoms())
def test_the_order_of_rows_does_not_matter(numbers, random):
    texts = [f"€ {number:,.2f}" for number in numbers]
    order = random.sample(range(len(texts)), len(texts))
    there = read(texts).values.to_pylist()
    again = read([texts[k] for k in order]).values.to_pylist()
    assert again == [there[k] for k in order]
    assert there == [float(f"{number:.2f}") for number in numbers]
