"""Conversions between NumPy arrays and torch tensors, for the torch backend."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dsmgp._util.arrays import Array

__all__ = ["as_numpy", "as_tensor"]


def as_numpy(tensor: Tensor) -> Array:
    """Return a tensor as a float64 array on the CPU, without a copy where possible."""
    return tensor.detach().cpu().numpy().astype(np.float64, copy=False)


def as_tensor(values: Array, like: Tensor | tuple[torch.device, torch.dtype]) -> Tensor:
    """Return an array as a tensor with the device and dtype of ``like``."""
    device, dtype = (like.device, like.dtype) if isinstance(like, Tensor) else like
    numpy_dtype = np.float32 if dtype == torch.float32 else np.float64
    return torch.from_numpy(np.require(values, numpy_dtype, ["C", "W"])).to(device)
