"""What chance explains: when a gain is clear, and whether intervals cover as many observations as they should."""

from __future__ import annotations

import math

__all__ = ["MIN_JUDGED", "chance_range", "interval_grade", "is_clear"]

# A gain is clear beyond so many of its standard errors.
CLEAR = 2.0

#: Rows below which coverage is not judged.
MIN_JUDGED = 20


def is_clear(gain: float, error: float, least: float = 0.0, n_errors: float = CLEAR) -> bool:
    """Return whether a gain exceeds two of its standard errors, or as many as given, and the least gain that counts.

    Examples
    --------
    >>> is_clear(0.05, 0.02), is_clear(0.03, 0.02), is_clear(0.05, 0.02, least=0.1)
    (True, False, False)
    """
    return bool(gain > max(n_errors * error, least))


def interval_grade(coverage: float, n_rows: int, level: float = 0.9) -> str:
    """Return ``"calibrated"``, ``"narrow"``, ``"wide"``, or ``"few"`` if there are too few rows to judge.

    Parameters
    ----------
    coverage : float
        Share of observations in their central intervals.
    n_rows : int
    level : float
        Probability of the intervals.

    Examples
    --------
    >>> interval_grade(0.89, 400), interval_grade(0.7, 400), interval_grade(0.99, 400)
    ('calibrated', 'narrow', 'wide')
    >>> interval_grade(0.5, 8)
    'few'
    """
    if n_rows < MIN_JUDGED:
        return "few"
    low, high = chance_range(n_rows, level)
    if low <= coverage <= high:
        return "calibrated"
    return "narrow" if coverage < level else "wide"


def chance_range(n_rows: int, level: float = 0.9) -> tuple[float, float]:
    """Return the range that contains the coverage of 95% of calibrated models.

    Examples
    --------
    >>> [round(end, 3) for end in chance_range(400)]
    [0.871, 0.929]
    """
    margin = 1.96 * math.sqrt(level * (1.0 - level) / n_rows)
    return level - margin, min(level + margin, 1.0)
