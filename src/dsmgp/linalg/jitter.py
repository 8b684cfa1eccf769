"""Jitter: what is added to the diagonal of a covariance matrix that rounding has made indefinite."""

from __future__ import annotations

import math
from collections.abc import Iterator

__all__ = ["JITTER_RANGE", "jitter_ladder"]

#: Least and largest jitter that is tried, relative to the mean diagonal, by the name of the dtype.
JITTER_RANGE = {"float64": (1e-12, 1e-4), "float32": (1e-6, 1e-2)}


def jitter_ladder(scale: float, dtype: str = "float64") -> Iterator[float]:
    """Yield jitters to try in turn, each ten times the one before.

    Parameters
    ----------
    scale : float
        Mean diagonal of the matrix; no jitter is yielded if it is not finite.
    dtype : "float64" or "float32"

    Examples
    --------
    >>> [f"{jitter:.0e}" for jitter in jitter_ladder(1.0, "float32")]
    ['1e-06', '1e-05', '1e-04', '1e-03', '1e-02']
    """
    lowest, highest = JITTER_RANGE[dtype]
    jitter = lowest * scale
    while math.isfinite(scale) and 0.0 < jitter <= 1.01 * highest * scale:
        yield jitter
        jitter *= 10.0
