"""What this machine offers: memory, cache sizes, and whether compiled code can run."""

from __future__ import annotations

import importlib.util
import math
import os
from functools import cache

import torch

__all__ = ["cache_numbers", "has_numba", "memory"]

# Bytes of a core's second-level cache where the system does not report them.
USUAL_CACHE = 2**19


def memory(device: torch.device | None = None) -> float:
    """Return the bytes of main memory, or of a GPU's memory; infinity where unknown."""
    if device is not None and device.type == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * float(os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


@cache
def cache_numbers() -> int:
    """Return how many double precision numbers a core's second-level cache holds."""
    try:
        n_bytes = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (AttributeError, ValueError, OSError):
        n_bytes = 0
    return (n_bytes if n_bytes > 0 else USUAL_CACHE) // 8


@cache
def has_numba() -> bool:
    """Return whether the extra ``fast`` is installed, and with it compiled code."""
    return importlib.util.find_spec("numba") is not None
