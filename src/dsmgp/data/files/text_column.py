"""A column of text by its distinct texts: which of them stand for missing values, what all of them have in common, which do not fit. Needs ``dsmgp[data]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

__all__ = ["N_JUDGED", "ColumnReading", "TextColumn", "TextFormat", "listed"]

# Texts that are missing values among numbers and dates, in any case.
MISSING = (
    "",
    "?",
    "-",
    "--",
    ".",
    "na",
    "n/a",
    "nan",
    "null",
    "none",
    "#n/a",
    "#na",
    "<na>",
    "nat",
)
# Texts that are missing values in a column of text too; a dash may be a level there.
TEXT_MISSING = (*csv.ConvertOptions().null_values, "<NA>")
#: Texts by which the kind of a column with many different ones is judged before all are read.
N_JUDGED = 2000
# Texts of another kind in a column of numbers or dates: the largest share, and the least number of different numbers or dates.
STRAY_SHARE, MIN_REGULAR = 0.05, 8
# The same where all of them are one text or two, such as "unknown".
STRAY_WORDS, STRAY_WORD_SHARE, MIN_REGULAR_BESIDE_WORDS = 2, 0.5, 20
# Texts of another kind that a message lists.
MAX_LISTED = 3
NUMBER_WITH_UNIT = r"^[-+(]?[0-9][0-9., ]*\s*(?P<unit>[\p{L}°][\p{L}°/²³0-9]*)$"


@dataclass(frozen=True)
class TextFormat:
    """How a text file is written, where the file alone does not say it.

    Attributes
    ----------
    encoding : str or None
        Such as "latin-1"; None is UTF-8, or UTF-16 with a byte order mark.
    decimal : ".", "," or None
        The decimal sign of numbers such as 1,234, which may be read in two ways.
    day_first : bool or None
        Whether 03/04/2020 is in April.
    missing : tuple of str
        Further texts that stand for missing values.
    """

    encoding: str | None = None
    decimal: str | None = None
    day_first: bool | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnReading:
    """What became of a column.

    Attributes
    ----------
    values : pyarrow.ChunkedArray or pyarrow.Array
        As text if there is a problem.
    remarks : tuple of str
        How texts were understood, for the user.
    problem : str or None
        Why the column cannot be read, with the remedy.
    decimal : ".", "," or None
        What its numbers say about the decimal sign of the whole file.
    """

    values: pa.ChunkedArray | pa.Array
    remarks: tuple[str, ...] = ()
    problem: str | None = None
    decimal: str | None = None


class TextColumn:
    """A column of text by its distinct texts, without surrounding blanks."""

    def __init__(
        self,
        name: str,
        values: pa.ChunkedArray,
        form: TextFormat,
        texts: pa.Array,
        codes: NDArray[np.int32],
    ) -> None:
        self.name, self.values = name, values
        self.all_texts = pc.utf8_trim_whitespace(texts)
        self.unchanged = self.all_texts.equals(texts)
        lower = pc.utf8_lower(self.all_texts)
        self.user_missing = pc.is_in(
            lower, value_set=pa.array([t.strip().lower() for t in form.missing], pa.string())
        )
        missing = pc.or_(pc.is_in(lower, value_set=pa.array(MISSING)), self.user_missing)
        self.missing = missing.to_numpy(zero_copy_only=False)
        self.all_codes = codes
        self.all_counts = np.bincount(codes[codes >= 0], minlength=len(texts))

    @classmethod
    def of(cls, name: str, values: pa.ChunkedArray, form: TextFormat) -> TextColumn:
        # In one piece: dictionaries of many chunks would be merged again and again.
        whole = values.cast(pa.large_string()) if values.nbytes >= 2**31 else values
        encoded = whole.combine_chunks().dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy()
        return cls(name, values, form, encoded.dictionary.cast(pa.string()), codes)

    @cached_property
    def texts(self) -> pa.Array:
        """Distinct texts that are not missing values."""
        return self.all_texts.filter(pa.array(~self.missing))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """In how many rows each of ``texts`` occurs."""
        return self.all_counts[~self.missing]

    @cached_property
    def has_commas(self) -> bool:
        return bool(pc.any(pc.match_substring(self.texts, ",")).as_py())

    @cached_property
    def unit(self) -> str:
        """A unit that all texts end in, as in "3 kg"; empty if there is none."""
        for texts in (self.texts.slice(0, N_JUDGED), self.texts):
            unit = pc.extract_regex(texts, NUMBER_WITH_UNIT).field("unit").unique()
            if len(self.texts) < MIN_REGULAR or len(unit) != 1 or not unit[0].is_valid:
                return ""
        return str(unit[0])

    @cached_property
    def without_unit(self) -> pa.Array:
        """``texts`` without the unit that all of them have."""
        if not self.unit:
            return self.texts
        return pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(self.texts, 0, -len(self.unit)))

    def strays(self, regular: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        """Return which texts are not regular; None if they are too many to be mistakes."""
        strays = np.flatnonzero(~regular)
        n_strays, n_rows, n_regular = self.counts[strays].sum(), self.counts.sum(), regular.sum()
        few = n_strays <= max(1, STRAY_SHARE * n_rows) and n_regular >= MIN_REGULAR
        few_words = (
            len(strays) <= STRAY_WORDS
            and n_strays <= STRAY_WORD_SHARE * n_rows
            and n_regular >= MIN_REGULAR_BESIDE_WORDS
        )
        return strays if few or few_words or not len(strays) else None

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an array with a value for each row, from one for each of ``texts``; missing ones are NaN or NaT."""
        missing = np.array(["NaT" if values.dtype.kind == "M" else np.nan], dtype=values.dtype)
        table = np.repeat(missing, len(self.all_texts) + 1)
        table[np.flatnonzero(~self.missing)] = values
        return table[self.all_codes]  # the code -1, no text at all, is the last entry

    def as_text(self) -> pa.ChunkedArray | pa.Array:
        """Return the texts without surrounding blanks, and without those that stand for missing values."""
        missing = pc.or_(
            pc.is_in(self.all_texts, value_set=pa.array(TEXT_MISSING)), self.user_missing
        )
        if self.unchanged and not pc.any(missing).as_py():
            return self.values
        texts = pc.if_else(missing, None, self.all_texts)
        codes = pa.array(self.all_codes, mask=self.all_codes < 0)
        return texts.take(codes)

    def missing_remarks(self) -> tuple[str, ...]:
        """Say which texts are read as missing values, but for those that always are."""
        always = pc.is_in(self.all_texts, value_set=pa.array(TEXT_MISSING))
        unusual = np.flatnonzero(self.missing & ~always.to_numpy(zero_copy_only=False))
        texts = [text for text in self.all_texts.take(pa.array(unusual)).to_pylist() if text]
        if not texts:
            return ()
        rows = int(self.all_counts[unusual].sum())
        quoted = listed([repr(text) for text in texts])
        verb = "are read as missing values" if len(texts) > 1 else "is read as a missing value"
        return (f"column {self.name!r}: {quoted} {verb} ({_rows(rows)})",)

    def problem(self, what: str, strays: NDArray[np.int64]) -> ColumnReading:
        """Report texts that do not fit the rest of the column."""
        positions = np.flatnonzero(~self.missing)[strays]
        places = []
        for position, text in zip(positions, self.texts.take(pa.array(strays)).to_pylist(), strict=True):  # fmt: skip
            rows = np.flatnonzero(self.all_codes == position)
            more = f" and {_rows(len(rows) - 1, 'other ')}" if len(rows) > 1 else ""
            places.append(f"{text!r} in row {rows[0] + 1}{more}")
            if len(places) == MAX_LISTED and len(strays) > MAX_LISTED:
                places.append(f"{len(strays) - MAX_LISTED} further texts")
                break
        example = self.texts[int(strays[0])].as_py()
        return self.refused(
            f"holds {what} but for {', '.join(places)}; correct it, give --na {example!r} if it stands for a missing value, "
            f"--text {self.name!r} if the column is a category"
        )

    def refused(self, problem: str) -> ColumnReading:
        """Report a problem of the column, which can always be left out."""
        message = f"column {self.name!r} {problem}, or leave it out with --drop {self.name!r}"
        return ColumnReading(self.as_text(), problem=message)


def listed(words: Sequence[str]) -> str:
    """Return some words with commas, at most :data:`MAX_LISTED` of them."""
    more = ", ..." if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + more


def _rows(n: int, kind: str = "") -> str:
    return f"{n:,} {kind}row{'s' * (n != 1)}"
