"""Work on a GPU whose memory is short or shared: smaller batches, and a little patience with other processes.

Torch is asked only where it is loaded: without it, no work runs on a GPU.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from dsmgp._util.machine import gpu_memory
from dsmgp._util.warnings import warn_user

__all__ = ["release_cache", "warn_if_occupied", "within_memory"]

Result = TypeVar("Result")

# Errors of NVIDIA's libraries that cannot allocate what they need beside torch's own memory.
LIBRARY_ERRORS = ("ALLOC_FAILED", "out of memory", "NOT_INITIALIZED")
# Seconds to wait, one after the other, for memory that other processes hold before giving up: fits come in bursts.
PATIENCE = (1.0, 2.0, 4.0, 8.0)
# Share of the GPU's memory that other processes must hold for waiting to make sense.
HELD_BY_OTHERS = 0.2
# Share of the GPU's memory below which the free part is remarked on.
LITTLE_FREE = 0.25


def within_memory(work: Callable[[], Result], take_less: Callable[[], bool]) -> Result:
    """Run ``work``, and again with less memory for as long as the GPU has too little.

    ``take_less`` makes the next attempt smaller; it returns False when it cannot. If other processes hold much of the memory, work
    that cannot be made smaller is tried again a few times, seconds apart.

    Examples
    --------
    >>> within_memory(lambda: 1 + 1, lambda: False)
    2
    """
    waits = iter(PATIENCE)
    while True:
        try:
            return work()
        except RuntimeError as error:
            if not _is_shortage(error):
                raise
            message = ". ".join(str(error).split(". ")[:2])
        # Outside of the except block the error is gone, and with it the tensors of the failed attempt.
        gc.collect()
        release_cache()
        if not take_less():
            wait = next(waits, None) if _held_by_others() > HELD_BY_OTHERS else None
            if wait is None:
                raise MemoryError(
                    f"the GPU has too little free memory even for small batches ({message}); close what else uses it, lower "
                    "leaf_size, or use device='cpu'"
                )
            time.sleep(wait)
        warn_user(
            f"the GPU ran out of memory ({message}); continuing with smaller batches, which takes longer. "
            "A lower memory_limit avoids this.",
            RuntimeWarning,
            topic="memory of the GPU",
        )


def release_cache() -> None:
    """Return memory to the GPU that torch keeps for later, so that other processes can use it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def warn_if_occupied(device: str) -> None:
    """Warn if much of a GPU's memory is in use already, since batches are then smaller."""
    if not device.startswith("cuda"):
        return
    memory = gpu_memory(device)
    if memory.free < LITTLE_FREE * memory.total:
        warn_user(
            f"only {memory.free / 1e9:.1f} of the {memory.total / 1e9:.1f} GB of the GPU are free: batches are smaller, which takes "
            "longer, and a table that fits in one leaf otherwise may be divided",
            RuntimeWarning,
            topic="memory of the GPU in use",
        )


def _is_shortage(error: RuntimeError) -> bool:
    """Whether torch, or a library it calls, could not allocate memory of a GPU."""
    torch = sys.modules.get("torch")
    # An import that failed halfway may leave a module without its names.
    if isinstance(error, getattr(torch, "OutOfMemoryError", ())):
        return True
    text = str(error)
    return text.startswith(("CUDA", "cu")) and any(name in text for name in LIBRARY_ERRORS)


def _held_by_others() -> float:
    """Return the share of the GPU's memory that other processes hold; zero without a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0.0
    memory = gpu_memory("cuda")
    return 1.0 - (memory.free + torch.cuda.memory_allocated()) / memory.total
