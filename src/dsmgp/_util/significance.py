"""Whether intervals cover as many observations as they should, within what chance explains."""

from __future__ import annotations

import math

__all__ = ["MIN_JUDGED", "chance_range", "interval_grade"]

#: Rows below which coverage is not judged.
MIN_JUDGED = 20


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
