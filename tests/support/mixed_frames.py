"""Frames with columns of every kind, as hypothesis draws them, and new rows for them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
from hypothesis import strategies as st

LETTERS = np.array(["a", "b", "c", "dd", "é"], dtype=object)
FIRST = np.datetime64("2020-02-28", "us")


def _with_gaps(values, missing, gap=None):
    values = np.array(values, dtype=object)
    values[missing] = gap
    return values


def _letters(rng, n, new):
    return rng.choice(np.append(LETTERS, "new") if new else LETTERS, n)


def _dates(rng, n):
    return FIRST + rng.integers(0, 10**14, n).astype("timedelta64[us]")


#: By kind a function of a generator, a mask of missing values, and whether there may be new levels; it returns a series.
COLUMNS = {
    "float": lambda rng, gaps, new: pd.Series(np.where(gaps, np.nan, rng.normal(size=len(gaps)))),
    "float32": lambda rng, gaps, new: pd.Series(rng.normal(size=len(gaps)).astype(np.float32)),
    "int8": lambda rng, gaps, new: pd.Series(rng.integers(-9, 9, len(gaps)).astype(np.int8)),
    "bool": lambda rng, gaps, new: pd.Series(rng.random(len(gaps)) < 0.5),
    "object": lambda rng, gaps, new: pd.Series(
        _with_gaps(_letters(rng, len(gaps), new), gaps), dtype=object
    ),
    "string": lambda rng, gaps, new: pd.Series(
        _with_gaps(_letters(rng, len(gaps), new), gaps, pd.NA), dtype="string"
    ),
    "category": lambda rng, gaps, new: pd.Series(
        _with_gaps(_letters(rng, len(gaps), new), gaps)
    ).astype("category"),
    "codes": lambda rng, gaps, new: pd.Series(
        rng.integers(0, 5 if new else 4, len(gaps))
    ).astype("category"),
    "many levels": lambda rng, gaps, new: pd.Series(
        [f"k{k}" for k in rng.integers(0, 45 if new else 40, len(gaps))]
    ),
    "Int64": lambda rng, gaps, new: pd.Series(
        _with_gaps(rng.integers(0, 99, len(gaps)), gaps, pd.NA), dtype="Int64"
    ),
    "Float64": lambda rng, gaps, new: pd.Series(
        _with_gaps(rng.normal(size=len(gaps)), gaps, pd.NA), dtype="Float64"
    ),
    "boolean": lambda rng, gaps, new: pd.Series(
        _with_gaps(rng.random(len(gaps)) < 0.5, gaps, pd.NA), dtype="boolean"
    ),
    "datetime": lambda rng, gaps, new: pd.Series(_dates(rng, len(gaps))).mask(gaps),
    "datetime with zone": lambda rng, gaps, new: pd.Series(_dates(rng, len(gaps)))
    .mask(gaps)
    .dt.tz_localize("UTC")
    .dt.tz_convert("America/New_York"),
    "date": lambda rng, gaps, new: pd.Series(
        _with_gaps([date(2019, 12, 30) + timedelta(int(k)) for k in rng.integers(0, 900, len(gaps))], gaps),
        dtype=object,
    ),
    "moments of Python": lambda rng, gaps, new: pd.Series(
        [datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=int(k)) for k in rng.integers(0, 10**7, len(gaps))],
        dtype=object,
    ),
    "text of dates": lambda rng, gaps, new: pd.Series(
        [str(date(2020, 1, 1) + timedelta(int(k))) for k in rng.integers(0, 40, len(gaps))]
    ),
    "decimals": lambda rng, gaps, new: pd.Series(
        _with_gaps([Decimal(int(k)) / 4 for k in rng.integers(-99, 99, len(gaps))], gaps), dtype=object
    ),
    "large whole numbers": lambda rng, gaps, new: pd.Series(2**62 + rng.integers(0, 2**40, len(gaps))),
    "huge and tiny": lambda rng, gaps, new: pd.Series(
        np.where(gaps, np.nan, 10.0 ** rng.integers(-70, 70, len(gaps)))
    ),
    "bytes": lambda rng, gaps, new: pd.Series(
        _with_gaps([t.encode() for t in _letters(rng, len(gaps), new)], gaps), dtype=object
    ),
    "blank texts": lambda rng, gaps, new: pd.Series(
        _with_gaps(rng.choice(np.array(["", " ", "a"], dtype=object), len(gaps)), gaps), dtype=object
    ),
    "texts and numbers": lambda rng, gaps, new: pd.Series(
        ["a", *_with_gaps(rng.choice(np.array(["a", 1, 2.5, True], dtype=object), len(gaps)), gaps)[1:]], dtype=object
    ),
    "intervals": lambda rng, gaps, new: pd.Series(
        pd.cut(np.where(gaps, np.nan, rng.normal(size=len(gaps))), [-np.inf, 0.0, 1.0, np.inf])
    ),
    "empty": lambda rng, gaps, new: pd.Series([None] * len(gaps), dtype=object),
    "constant": lambda rng, gaps, new: pd.Series(["same"] * len(gaps)),
    "constant number": lambda rng, gaps, new: pd.Series([3] * len(gaps)),
}  # fmt: skip


#: Kinds that polars has no type for.
PANDAS_ONLY = ("texts and numbers", "intervals")
POLARS = tuple(kind for kind in COLUMNS if kind not in PANDAS_ONLY)
# Rows are taken by position, whatever the index says.
INDICES = {
    "range": lambda n: pd.RangeIndex(n),
    "repeated": lambda n: pd.Index(np.arange(n) % 3),
    "backwards": lambda n: pd.RangeIndex(n)[::-1],
    "two levels": lambda n: pd.MultiIndex.from_arrays([["a"] * n, range(n)]),
}


@st.composite
def frames(draw, kinds=tuple(COLUMNS)):
    """A frame of up to six columns with an output, new rows with missing values and new levels, and the kinds of its columns."""
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    n, share = draw(st.integers(5, 40)), draw(st.sampled_from([0.0, 0.0, 0.1, 0.5]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    index = INDICES[draw(st.sampled_from(sorted(INDICES)))]

    def frame(n_rows, gaps, new):
        columns = [COLUMNS[kind](rng, rng.random(n_rows) < gaps, new) for kind in chosen]
        joined = pd.DataFrame({f"c{k}": column for k, column in enumerate(columns)})
        return joined.set_axis(index(n_rows))

    X = frame(n, share, False)
    return X, rng.normal(size=n), frame(7, 0.4, True), chosen


def in_library(frame, library):
    return frame if library == "pandas" else pl.from_pandas(frame)
