"""Leaves on a Ray cluster (``dsmgp[ray]``)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.conditioned import Conditioned
from dsmgp.engine import Law
from dsmgp.experts import Experts
from dsmgp.ray_workers import Traffic, Workers, the_ray
from dsmgp.sharded import ShardedConditioned, ShardedExperts
from dsmgp.tree import Leaf

__all__ = ["RayExecutor"]

Index = NDArray[np.int64]


class RayExecutor:
    """Leaves are worked on by actors of a Ray cluster.

    Parameters
    ----------
    address : str, optional
        Of a cluster to join. None joins the one that ``ray.init()`` would find (that of ``RAY_ADDRESS``, or one that runs on this machine),
        or starts one here.
    n_workers : int, optional
        Actors that share the leaves. None: as many as the cluster has free CPUs for.
    resources_per_worker : mapping of str to float, optional
        What Ray reserves for each: ``{"CPU": 1}`` unless told. With ``"GPU"`` leaves are worked on on that GPU; ``"memory"`` is in
        bytes; other names are Ray's custom resources.
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
        self._workers: Workers | None = None
        self._lock = threading.Lock()

    @property
    def workers(self) -> Workers:
        """Started when first needed."""
        with self._lock:
            if self._workers is None or not self._workers.alive:
                self._workers = self._start()
            return self._workers

    def _start(self) -> Workers:
        ray = the_ray()
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
        asked = dict(self.resources_per_worker or {})
        asked.setdefault("CPU", 1.0)
        n_workers = self.n_workers
        if n_workers is None:
            free = ray.available_resources()
            n_workers = max(1, min(int(free.get(k, 0) // v) for k, v in asked.items() if v > 0))
        return Workers(n_workers, asked, self.wait_seconds)

    @property
    def traffic(self) -> Traffic:
        """What has been sent to workers and back since they started."""
        return self.workers.traffic

    def close(self) -> None:
        """Stop the workers. Models whose leaves they hold can no longer be asked: save them before. The cluster itself goes on,
        until ``ray.shutdown()`` or the end of Python if it was started here."""
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
        return self  # a handle on a cluster, which there is once

    def home(self, device: torch.device) -> torch.device:
        return torch.device("cpu")

    def works_on(self, device: torch.device) -> torch.device:
        asked = self.resources_per_worker or {}
        return torch.device("cuda" if asked.get("GPU", 0) > 0 else "cpu")

    def hosts(self, memory: float, device: torch.device) -> Workers:
        self.workers.hold(memory)
        return self.workers

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
        return ShardedExperts.sent(leaves, X, Y, laws, self.workers, memory, known, labels)

    def condition(
        self,
        experts: Experts,
        naturals: Sequence[Tensor],
        memory: float,
        leave_out: Index | None = None,
        watched: Index | None = None,
    ) -> Conditioned:
        assert isinstance(experts, ShardedExperts)
        return ShardedConditioned(experts, naturals, memory, watched)


@cache
def default_executor() -> RayExecutor:
    """That of ``executor="ray"``: one for all models of this process."""
    return RayExecutor()


def _is_elsewhere(address: str | None) -> bool:
    """Whether Ray will join a cluster rather than start one: it then refuses settings of a new one."""
    return (address or os.environ.get("RAY_ADDRESS", "local")) != "local"
