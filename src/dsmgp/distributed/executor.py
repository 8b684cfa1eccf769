"""Executors: where the leaves of a model are computed, in this process or on a cluster.

Fitting creates and conditions leaf GPs through its executor only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from dsmgp._util.errors import InputError
from dsmgp.distributed.workers import LocalWorkers, WorkerPool
from dsmgp.experts.backends.interface import LeafKernel
from dsmgp.experts.interface import LeafGPs
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.tree.nodes import Leaf

__all__ = ["Executor", "LocalExecutor", "check_executor"]

# Methods that executors must have, and their names up to version 0.1.
FORMER_NAMES = {
    "leaf_device": "works_on",
    "worker_pool": "hosts",
    "leaf_gps": "experts",
}


@runtime_checkable
class Executor(Protocol):
    """Interface of executors: ``DSMGPRegressor(executor=...)`` takes any object with these methods.

    Examples
    --------
    >>> from dsmgp.ray import RayExecutor
    >>> isinstance(LocalExecutor(), Executor), issubclass(RayExecutor, Executor)
    (True, True)
    """

    def leaf_device(self, device: str) -> str:
        """Return where leaves are computed if the user asked for a device; costs are estimated for it."""

    def worker_pool(self, memory: float, device: str) -> WorkerPool:
        """Return workers for shards of leaves whose rows are in files; shards on a machine may use ``memory`` bytes."""

    def leaf_gps(
        self,
        leaves: Sequence[Leaf],
        data: LeafData,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
        memory: float,
        device: str = "cpu",
        dtype: str = "float64",
    ) -> LeafGPs:
        """Set up the GPs of leaves.

        Parameters
        ----------
        leaves : sequence of Leaf
            With the numbers of their rows.
        data : LeafData
            The training rows, scaled: ``X``, ``Y``, ``known_noise``, ``labels`` (equal for duplicate inputs) and ``row_weights``.
        kernels : sequence
            For each output a kernel for all leaves, or one for each leaf.
        memory : float
            Bytes for matrices that are worked on.
        device : str
            Where to compute, as :meth:`leaf_device` returned it: "cpu", or a GPU by torch's name for it.
        dtype : "float64" or "float32"
            Precision of the computations.
        """


class LocalExecutor:
    """Computes leaves in this process: on threads, or on its GPU.

    Examples
    --------
    The same as ``executor="local"``, the default:

    >>> from dsmgp import DSMGPRegressor
    >>> model = DSMGPRegressor("rbf", executor=LocalExecutor(), random_state=0)
    >>> model.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).predict([[1.0]]).round(1)
    array([1.])
    """

    def leaf_device(self, device: str) -> str:
        return device

    def worker_pool(self, memory: float, device: str) -> WorkerPool:
        return LocalWorkers(memory, device)

    def leaf_gps(
        self,
        leaves: Sequence[Leaf],
        data: LeafData,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
        memory: float,
        device: str = "cpu",
        dtype: str = "float64",
    ) -> LeafGPs:
        return InMemoryLeafGPs(leaves, data, kernels, memory=memory, device=device, dtype=dtype)


def check_executor(executor: Any) -> Executor:
    """Return an object that has the methods of an executor; for any other, raise with the methods that it lacks."""
    missing = [name for name in FORMER_NAMES if not hasattr(executor, name)]
    if missing:
        renamed = [
            f"{FORMER_NAMES[name]} to {name}"
            for name in missing
            if hasattr(executor, FORMER_NAMES[name])
        ]
        raise InputError(
            f"expected executor to be 'local', 'ray', a RayExecutor or an object with the methods of dsmgp.distributed.Executor, "
            f"got {executor!r}, which lacks {', '.join(missing)}"
            + (f"; methods were renamed: rename {', '.join(renamed)}" if renamed else "")
        )
    return executor
