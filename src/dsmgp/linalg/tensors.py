"""Conversions between NumPy arrays and torch tensors, and retries when a GPU runs out of memory.

On the calling thread, arrays are left to NumPy: for large ones torch would start OpenMP threads, which do not survive
a fork.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from dsmgp._util.arrays import Array, Index
from dsmgp._util.warnings import warn_user

__all__ = ["as_numpy", "as_tensor", "put", "take", "within_memory"]

Result = TypeVar("Result")


def as_numpy(tensor: Tensor) -> Array:
    """Return a tensor as a float64 array on the CPU, without a copy where possible."""
    return tensor.detach().cpu().numpy().astype(np.float64, copy=False)


def as_tensor(values: Array, like: Tensor | tuple[torch.device, torch.dtype]) -> Tensor:
    """Return an array as a tensor with the device and dtype of ``like``."""
    device, dtype = (like.device, like.dtype) if isinstance(like, Tensor) else like
    numpy_dtype = np.float32 if dtype == torch.float32 else np.float64
    return torch.from_numpy(np.require(values, numpy_dtype, ["C", "W"])).to(device)


def take(table: Tensor, rows: Index) -> Tensor:
    """Return ``table[rows]``."""
    if table.device.type == "cpu":
        return torch.from_numpy(table.numpy()[rows])
    return table[torch.from_numpy(rows).to(table.device)]


def put(table: Tensor, rows: Index, values: Tensor) -> None:
    """Set ``table[rows] = values``."""
    if table.device.type == "cpu":
        table.numpy()[rows] = values.numpy()
    else:
        table[torch.from_numpy(rows).to(table.device)] = values


def within_memory(work: Callable[[], Result], take_less: Callable[[], bool]) -> Result:
    """Run ``work``, and again with less memory for as long as the GPU has too little.

    ``take_less`` makes the next attempt smaller; it returns False when it cannot.
    """
    while True:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            message = ". ".join(str(error).split(". ")[:2])
        # Outside of the except block the error is gone, and with it the tensors of the failed attempt.
        torch.cuda.empty_cache()
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
