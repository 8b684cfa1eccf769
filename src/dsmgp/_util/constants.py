"""Constants used in several packages."""

import math

__all__ = ["LOG_2PI"]

LOG_2PI = math.log(2.0 * math.pi)
