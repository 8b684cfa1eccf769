"""Numbers that are written as text, such as ``$29,000``, ``1 234,5``, ``(3.50)`` or ``21%``. Needs ``dsmgp[data]``.

Plain numbers are found by the parser of a file already. Here are the others. What a comma means, the decimals or the thousands, is
decided over a whole column: ``1,5`` and ``1,234,567`` settle it, ``1,234`` alone does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dsmgp._util.arrays import Array

__all__ = ["NumberReading", "read_numbers"]

CURRENCY = (
    r"(?:[A-Z]{0,2}[$]|[€£¥₹₽₩₺₪]|(?:USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|NZD|SEK|NOK|DKK|PLN)\b)"
)
# Signs that group digits in threes whatever the decimal sign is: blanks of several kinds, and apostrophes.
GROUPING = "[ '\u2019\u00a0\u2009\u202f]"


def _number_form(decimal: str, thousands: str) -> str:
    """Return the regular expression of numbers with a decimal sign; digits may be grouped in threes."""
    groups = "|".join(f"[1-9][0-9]{{0,2}}(?:{sign}[0-9]{{3}})+" for sign in (thousands, GROUPING))
    digits = rf"(?:(?:[0-9]+|{groups})(?:{decimal}[0-9]*)?|{decimal}[0-9]+)"
    return rf"^[+-]?(?:{digits}(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?))$"


NUMBER_FORMS = {".": _number_form(r"\.", ","), ",": _number_form(",", r"\.")}


@dataclass(frozen=True)
class NumberReading:
    """Texts as numbers.

    Attributes
    ----------
    by_point, by_comma : ndarray of shape (n,)
        The numbers if the decimal sign is a point or a comma; NaN where a text is then not a number.
    percent : ndarray of bool, shape (n,)
        Texts that end in a percent sign.
    currencies : list of str
        The currencies that occur.
    """

    by_point: Array
    by_comma: Array
    percent: NDArray[np.bool_]
    currencies: list[str]

    @property
    def number_like(self) -> NDArray[np.bool_]:
        """Which texts are numbers, by one decimal sign or the other."""
        return ~np.isnan(self.by_point) | ~np.isnan(self.by_comma)

    @property
    def ambiguous(self) -> NDArray[np.bool_]:
        """Which texts are different numbers by one decimal sign and by the other."""
        in_both_ways = ~np.isnan(self.by_point) & ~np.isnan(self.by_comma)
        return in_both_ways & (self.by_point != self.by_comma)

    def decimal(self, counts: NDArray[np.int64]) -> str | None:
        """Return the decimal sign by which most rows are numbers; None if both read as many, and differently."""
        n_point, n_comma = (
            counts[~np.isnan(values)].sum() for values in (self.by_point, self.by_comma)
        )
        if n_point != n_comma:
            return "." if n_point > n_comma else ","
        return None if self.ambiguous.any() else "."

    def numbers(self, decimal: str) -> Array:
        return self.by_comma if decimal == "," else self.by_point


def read_numbers(texts: pa.Array) -> NumberReading:
    """Read the distinct texts of a column as numbers.

    Examples
    --------
    >>> reading = read_numbers(pa.array(["$29,000", "($1,234.50)", "unknown"]))
    >>> print(reading.by_point, reading.by_comma)
    [29000.  -1234.5     nan] [29. nan nan]
    """
    bare = pc.replace_substring(texts, "\u2212", "-")
    bare = pc.replace_substring_regex(bare, r"^\(\s*([^-+]+?)\s*\)$", r"-\1")
    percent = pc.ends_with(bare, "%")
    bare = pc.replace_substring_regex(bare, r"\s*%$", "")
    with_currency = pc.extract_regex(
        bare, rf"^[+-]?\s*(?P<before>{CURRENCY})|(?P<after>{CURRENCY})$"
    )
    bare = pc.replace_substring_regex(bare, rf"^([+-]?)\s*{CURRENCY}\s*", r"\1")
    bare = pc.replace_substring_regex(bare, rf"\s*{CURRENCY}$", "")
    by_point, by_comma = (_parse(bare, decimal) for decimal in NUMBER_FORMS)
    return NumberReading(
        by_point,
        by_comma,
        percent.to_numpy(zero_copy_only=False).astype(bool),
        _currencies(with_currency, ~np.isnan(by_point) | ~np.isnan(by_comma)),
    )


def _parse(texts: pa.Array, decimal: str) -> Array:
    """Return numbers; NaN where a text is not a number with this decimal sign."""
    thousands = "," if decimal == "." else r"\."
    is_number = pc.match_substring_regex(texts, NUMBER_FORMS[decimal])
    plain = pc.replace_substring_regex(texts, rf"{thousands}|{GROUPING}|^\+", "")
    if decimal == ",":
        plain = pc.replace_substring(plain, ",", ".")
    numbers = pc.if_else(is_number, plain, None).cast(pa.float64())
    return numbers.to_numpy(zero_copy_only=False).astype(np.float64)


def _currencies(found: pa.Array, is_number: NDArray[np.bool_]) -> list[str]:
    """Return the different currencies of the texts that are numbers."""
    present = found.filter(pc.and_(pc.is_valid(found), pa.array(is_number)))
    signs = pa.concat_arrays([present.field(0), present.field(1)])
    return [sign for sign in signs.unique().to_pylist() if sign]
