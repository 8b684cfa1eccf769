"""What a fit is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dsmgp.breaks import ChangePoints
from dsmgp.executor import Executor, LocalExecutor
from dsmgp.machine import memory
from dsmgp.tree import Node

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """What a fit is asked for, already checked. The fields are those of :class:`DSMGPRegressor`."""

    kernel: Any = "auto"
    mean: Any = "zero"
    noise_variance: float | None = None
    structure: str | ChangePoints | Node = "balanced"
    leaf_sizes: Sequence[int] | None = None  # None: "auto", here and below
    sum_children: int | None = None
    product_children: int | None = None
    depth: int | None = None
    weights: str = "gated"
    local_scale: bool = True
    effort: str = "medium"
    optimizer: str | None = "lbfgs"
    objective: str = "surrogate"
    max_iter: int | None = None
    n_restarts: int = 0
    standardize: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float64
    memory_limit: int | None = None
    executor: Executor = field(default_factory=LocalExecutor)

    @property
    def memory(self) -> float:
        """Bytes that matrices may take: half of them factors that are kept, a quarter those that are worked on."""
        return self.memory_limit or 0.25 * memory(self.device)

    @property
    def table_memory(self) -> float:
        """Bytes that the evidences of all segments may take."""
        return self.memory_limit or 0.5 * memory(self.device)
