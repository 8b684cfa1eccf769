"""Numbers as the report writes them."""

from __future__ import annotations

__all__ = ["count", "number"]


def number(value: float) -> str:
    """Write a number with four digits; large ones in full, with commas, rather than with an exponent.

    Examples
    --------
    >>> number(0.123456), number(9135.42), number(252110.4), number(3e12)
    ('0.1235', '9,135', '252,110', '3e+12')
    """
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e10 else f"{value:.4g}"


def count(n: int, noun: str) -> str:
    """Write a number of things.

    Examples
    --------
    >>> count(1, "row"), count(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{n:,} {noun}{'s' * (n != 1)}"
