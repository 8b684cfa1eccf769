"""Fit on a Ray cluster (``dsmgp[ray]``): ``DSMGPRegressor(executor=RayExecutor(...))``."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from dsmgp.distributed.ray_cluster import import_ray, n_free_workers
from dsmgp.distributed.ray_workers import RayWorkers, Traffic
from dsmgp.distributed.sharded import ShardedLeafGPs
from dsmgp.experts.backends.interface import LeafKernel
from dsmgp.experts.interface import LeafGPs
from dsmgp.experts.leaf_data import LeafData
from dsmgp.tree.nodes import Leaf

__all__ = ["RayExecutor"]


class RayExecutor:
    """Computes leaves on the workers (actors) of a Ray cluster.

    Parameters
    ----------
    address : str, optional
        Address of a cluster to join. None joins the one that ``ray.init()`` finds (that of ``RAY_ADDRESS``, or one that runs on this
        machine), or starts one here.
    n_workers : int, optional
        Workers that share the leaves. None: as many as the cluster has free CPUs for, and more when machines join it, from the next stage
        of a fit on.
    resources_per_worker : mapping of str to float, optional
        Resources that Ray reserves for each worker; by default ``{"CPU": 1}``. With ``"GPU"`` leaves are
        computed on that GPU; ``"memory"`` is in bytes; other names are Ray's custom resources.
    wait_seconds : float, default=20
        How long workers may take to start: longer for clusters that add machines on demand.

    Examples
    --------
    >>> from dsmgp import DSMGPRegressor
    >>> with RayExecutor(n_workers=2) as executor:  # doctest: +SKIP
    ...     model = DSMGPRegressor(executor=executor).fit(X, y)
    """

    def __init__(
        self,
        address: str | None = None,
        n_workers: int | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        wait_seconds: float = 20.0,
    ) -> None:
        self.address, self.n_workers = address, n_workers
        self.resources_per_worker, self.wait_seconds = resources_per_worker, wait_seconds
        self._workers: RayWorkers | None = None
        self._lock = threading.Lock()

    @property
    def workers(self) -> RayWorkers:
        """The workers, which are started when first needed."""
        with self._lock:
            if self._workers is None or not self._workers.alive:
                self._workers = self._start()
            return self._workers

    @property
    def _workers_of_stage(self) -> RayWorkers:
        """The workers, with those on machines that have joined since, unless ``n_workers`` was given."""
        if self.n_workers is None:
            self.workers.grow()
        return self.workers

    def _start(self) -> RayWorkers:
        ray = import_ray()
        if not ray.is_initialized():
            # Without an address: whatever cluster there is, or a new one.
            try:
                ray.init(
                    self.address,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    **({} if _is_elsewhere(self.address) else {"include_dashboard": False}),
                )
            except ConnectionError as error:
                raise ConnectionError(
                    f"no Ray cluster answers at {self.address or os.environ.get('RAY_ADDRESS')!r}: {error}; start one with 'ray start --head', or leave address out"
                ) from None
        resources = dict(self.resources_per_worker or {})
        resources.setdefault("CPU", 1.0)
        n_workers = self.n_workers
        if n_workers is None:
            n_workers = max(1, n_free_workers(resources))
        return RayWorkers(n_workers, resources, self.wait_seconds)

    @property
    def traffic(self) -> Traffic:
        """Bytes sent to workers and received from them since they started."""
        return self.workers.traffic

    def close(self) -> None:
        """Stop the workers.

        Models whose leaves they hold can no longer predict afterwards: save them first. The cluster itself
        goes on; one that was started here ends with ``ray.shutdown()`` or with Python.
        """
        if self._workers is not None:
            self._workers.stop()

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"RayExecutor(address={self.address!r}, n_workers={self.n_workers!r}, "
            f"resources_per_worker={self.resources_per_worker!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_workers": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> RayExecutor:
        return self  # a handle on a cluster, of which there is one

    def leaf_device(self, device: str) -> str:
        resources = self.resources_per_worker or {}
        return "cuda" if resources.get("GPU", 0) > 0 else "cpu"

    def worker_pool(self, memory: float, device: str) -> RayWorkers:
        return self._workers_of_stage.limited(memory)

    def leaf_gps(
        self,
        leaves: Sequence[Leaf],
        data: LeafData,
        kernels: Sequence[LeafKernel | Sequence[LeafKernel]],
        memory: float,
        device: str = "cpu",
        dtype: str = "float64",
    ) -> LeafGPs:
        workers = self._workers_of_stage
        return ShardedLeafGPs.send(leaves, data, kernels, workers, memory, dtype)


@cache
def default_executor() -> RayExecutor:
    """Return the executor of ``executor="ray"``: one for all models of this process."""
    return RayExecutor()


def _is_elsewhere(address: str | None) -> bool:
    """Return whether Ray will join a cluster rather than start one; it then refuses the settings of a new one."""
    return (address or os.environ.get("RAY_ADDRESS", "local")) != "local"
