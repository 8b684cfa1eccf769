"""Types of arrays, used in all packages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Arrays", "Index"]

#: Real numbers in double precision.
Array = NDArray[np.float64]
#: Row numbers, leaf numbers, counts.
Index = NDArray[np.int64]
#: Arrays by name, as a model file holds them.
Arrays = dict[str, NDArray[Any]]
