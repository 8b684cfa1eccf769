"""Checks of single values that a model file holds: what is expected, in words, and a function that says whether it holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from sys import float_info
from typing import Any

import numpy as np

from dsmgp.gp.terms import NAMED_KERNELS

__all__ = [
    "ANYTHING", "BOOLEAN", "NOT_NEGATIVE", "NUMBER", "OBJECT", "POSITIVE", "POSITIVE_NUMBER", "TEXT", "Check", "array_of", "count",
    "list_of", "number", "one_of", "values_of",
]  # fmt: skip


@dataclass(frozen=True)
class Check:
    """What values must be, in words for the error message and as a function, and what JSON's value becomes once it has been checked."""

    expected: str
    holds: Callable[[Any], bool]
    as_read: Callable[[Any], Any] = lambda value: value


ANYTHING = Check("anything", lambda value: True)
BOOLEAN = Check("true or false", lambda value: type(value) is bool)
TEXT = Check("text", lambda value: type(value) is str)
# Kernels may be added while the program runs.
KERNEL_NAME = Check(
    "the name of a kernel, or a product of names",
    lambda value: type(value) is str and all(name in NAMED_KERNELS for name in value.split("*")),
)
KERNEL_NAMES = Check(
    "text, or a list of texts",
    lambda value: (
        type(value) is str or (isinstance(value, list) and all(type(each) is str for each in value))
    ),
)
OBJECT = Check("an object", lambda value: isinstance(value, dict))
# JSON has integers of any size.
NUMBER = Check(
    "a number",
    lambda value: type(value) is float or (type(value) is int and abs(value) <= float_info.max),
    float,
)
POSITIVE_NUMBER = Check(
    "a positive number", lambda value: NUMBER.holds(value) and 0 < value < math.inf, float
)
# Of arrays.
POSITIVE = Check("positive", lambda array: bool((array > 0).all()))
NOT_NEGATIVE = Check("at least zero", lambda array: bool((array >= 0).all()))


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """A finite number in a closed range."""

    def holds(value: Any) -> bool:
        return NUMBER.holds(value) and abs(value) < math.inf and low <= value <= high

    words = "a finite number" if high == math.inf else f"a number in [{low:g}, {high:g}]"
    return Check(words, holds, float)


def count(low: int = 0, high: int = 2**53) -> Check:
    """A whole number in a closed range."""
    words = f"a whole number of at least {low}"
    return Check(words, lambda value: type(value) is int and low <= value <= high)


def one_of(*choices: Any) -> Check:
    """One of some texts or numbers."""
    words = f"one of {', '.join(map(repr, choices))}"
    return Check(words, lambda value: any(type(value) is type(c) and value == c for c in choices))


def list_of(check: Check, longest: float = math.inf) -> Check:
    """A list of values that pass a check; it becomes a tuple."""

    def holds(value: Any) -> bool:
        return isinstance(value, list) and len(value) <= longest and all(map(check.holds, value))

    return Check(
        f"a list, each entry {check.expected}", holds, lambda v: tuple(map(check.as_read, v))
    )


def array_of(check: Check) -> Check:
    """A list of numbers that pass a check; it becomes an array."""
    return replace(list_of(check), as_read=lambda v: np.array(list(map(check.as_read, v))))


def values_of(check: Check) -> Check:
    """An object whose values pass a check."""

    def holds(value: Any) -> bool:
        return isinstance(value, dict) and all(map(check.holds, value.values()))

    return Check(f"an object, each value {check.expected}", holds)
