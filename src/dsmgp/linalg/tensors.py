"""Conversions between NumPy arrays and torch tensors, for the torch backend.

On the calling thread, arrays are left to NumPy: for large ones torch would start OpenMP threads, which do not survive
a fork.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dsmgp._util.arrays import Array, Index

__all__ = ["as_numpy", "as_tensor", "put", "take"]


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
