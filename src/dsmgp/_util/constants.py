"""Constants used in several packages."""

import math

__all__ = ["EXACT", "LARGEST", "LOG_2PI", "QUANTILE_ROWS"]

LOG_2PI = math.log(2.0 * math.pi)
# Squares of larger numbers overflow.
LARGEST = 1e150
# Not all larger whole numbers are representable in double precision.
EXACT = 2**53
# Of longer columns quantiles are computed from every so many-th row.
QUANTILE_ROWS = 100_000
