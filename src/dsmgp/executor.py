"""Where the leaves of a model are worked on: in this process, or wherever an executor takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.conditioned import Conditioned
from dsmgp.engine import Law
from dsmgp.experts import Experts
from dsmgp.sharded import Hosts, LocalHosts
from dsmgp.tree import Leaf

__all__ = ["Executor", "LocalExecutor"]

Index = NDArray[np.int64]


@runtime_checkable
class Executor(Protocol):
    """What a fit needs of one: ``DSMGPRegressor(executor=...)`` takes any object with these methods.

    Examples
    --------
    >>> from dsmgp.ray import RayExecutor
    >>> isinstance(LocalExecutor(), Executor), issubclass(RayExecutor, Executor)
    (True, True)
    """

    def home(self, device: torch.device) -> torch.device:
        """Where the driver keeps rows, if leaves are to be worked on on a device."""

    def works_on(self, device: torch.device) -> torch.device:
        """Where leaves are worked on, if the user asked for a device: what that costs is reckoned for it."""

    def hosts(self, memory: float, device: torch.device) -> Hosts:
        """Where shards of leaves live whose rows are in files; those on a machine may take so many bytes."""

    def experts(
        self,
        leaves: Sequence[Leaf],
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        memory: float,
        known: Tensor | None = None,
        labels: Index | None = None,
    ) -> Experts:
        """The GPs of leaves; ``labels`` are equal for rows of equal inputs."""

    def condition(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        memory: float,
        leave_out: Index | None = None,
        watched: Index | None = None,
    ) -> Conditioned:
        """Experts that see their rows, and leave each of them out where labels are given.

        ``watched`` are the rows left out that will be asked for."""


class LocalExecutor:
    """Leaves are worked on in this process: on threads, or on its GPU.

    Examples
    --------
    The same as ``executor="local"``, the default:

    >>> from dsmgp import DSMGPRegressor
    >>> model = DSMGPRegressor("rbf", executor=LocalExecutor(), random_state=0)
    >>> model.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).predict([[1.0]]).round(1)
    array([1.])
    """

    def home(self, device: torch.device) -> torch.device:
        return device

    def works_on(self, device: torch.device) -> torch.device:
        return device

    def hosts(self, memory: float, device: torch.device) -> Hosts:
        return LocalHosts(memory, device)

    def experts(
        self,
        leaves: Sequence[Leaf],
        X: Tensor,
        Y: Tensor,
        laws: Sequence[Law | Sequence[Law]],
        memory: float,
        known: Tensor | None = None,
        labels: Index | None = None,
    ) -> Experts:
        return Experts(leaves, X, Y, laws, memory=memory, known=known)

    def condition(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        memory: float,
        leave_out: Index | None = None,
        watched: Index | None = None,
    ) -> Conditioned:
        return Conditioned(experts, naturals, memory, leave_out)
