"""Retries with smaller batches when a GPU runs out of memory.

Torch is asked only where it is loaded: without it, no work runs on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from dsmgp._util.warnings import warn_user

__all__ = ["within_memory"]

Result = TypeVar("Result")


def within_memory(work: Callable[[], Result], take_less: Callable[[], bool]) -> Result:
    """Run ``work``, and again with less memory for as long as the GPU has too little.

    ``take_less`` makes the next attempt smaller; it returns False when it cannot.

    Examples
    --------
    >>> within_memory(lambda: 1 + 1, lambda: False)
    2
    """
    while True:
        try:
            return work()
        except _out_of_memory() as error:
            message = ". ".join(str(error).split(". ")[:2])
        # Outside of the except block the error is gone, and with it the tensors of the failed attempt.
        sys.modules["torch"].cuda.empty_cache()
        if not take_less():
            raise MemoryError(
                f"the GPU has too little free memory even for small batches ({message}); close what else uses it, lower leaf_size, "
                "or use device='cpu'"
            )
        warn_user(
            f"the GPU ran out of memory ({message}); going on with smaller batches, which takes longer. "
            "A lower memory_limit avoids this.",
            RuntimeWarning,
            topic="memory of the GPU",
        )


def _out_of_memory() -> type[BaseException] | tuple[()]:
    """Return torch's error if torch is loaded, otherwise nothing to catch.

    Python calls this once an error has been raised, so that torch may also be loaded by the work itself.
    """
    torch = sys.modules.get("torch")
    # An import that failed halfway may leave a module without its names.
    return getattr(torch, "OutOfMemoryError", ())
