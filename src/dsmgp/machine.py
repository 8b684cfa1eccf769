"""What this machine has: memory, and caches."""

from __future__ import annotations

import math
import os
from functools import cache

import torch

__all__ = ["cache_numbers", "memory"]

# Bytes of a core's second-level cache where the system does not say.
USUAL_CACHE = 2**19


def memory(device: torch.device | None = None) -> float:
    """Bytes that the machine has, or a GPU."""
    if device is not None and device.type == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * float(os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


@cache
def cache_numbers() -> int:
    """Double precision numbers that a core's second-level cache holds."""
    try:
        found = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (AttributeError, ValueError, OSError):
        found = 0
    return (found if found > 0 else USUAL_CACHE) // 8
