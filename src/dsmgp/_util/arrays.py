"""Types of arrays, used in all packages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Index"]

#: Real numbers in double precision.
Array = NDArray[np.float64]
#: Row numbers, leaf numbers, counts.
Index = NDArray[np.int64]
