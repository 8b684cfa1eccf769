"""What a Ray cluster has room for."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

__all__ = ["capacity", "import_ray", "n_free_workers", "request_resources", "wait_for_room"]

# Seconds between two looks at a cluster.
POLL_SECONDS = 0.1


def import_ray() -> Any:
    """Import Ray, or raise with the remedy."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError("executor='ray' needs Ray; install it with: pip install 'dsmgp[ray]'")
    import ray

    return ray


def capacity(resources: dict[str, float]) -> int:
    """Return for how many workers the machines have room, if nothing else runs there.

    Parameters
    ----------
    resources : dict of str to float
        What each worker needs.
    """
    needed = [(name, each) for name, each in resources.items() if each > 0]
    return sum(
        int(min(machine["Resources"].get(name, 0.0) // each for name, each in needed))
        for machine in import_ray().nodes()
        if machine["Alive"]
    )


def n_free_workers(resources: dict[str, float]) -> int:
    """Return for how many workers of that size the cluster has free resources now."""
    free = import_ray().available_resources()
    return min(int(free.get(name, 0.0) // each) for name, each in resources.items() if each > 0)


def wait_for_room(n_workers: int, resources: dict[str, float], wait_seconds: float) -> None:
    """Wait until the cluster has room for the workers; raise if that takes too long."""
    ray, deadline, requested = import_ray(), time.monotonic() + wait_seconds, False
    while True:
        missing = _missing_resources(n_workers, resources)
        room = capacity(resources)
        if not missing and room >= n_workers:
            break
        if not requested:  # clusters that start machines on demand hear of it
            request_resources(n_workers, resources)
            requested = True
        if time.monotonic() > deadline:
            request_resources(0, {})
            n_machines = sum(machine["Alive"] for machine in ray.nodes())
            reason = missing or (
                f"its {n_machines} machines have room for {room} of that size, even if nothing else runs there"
            )
            raise RuntimeError(
                f"the Ray cluster has no room for {n_workers} workers: {reason} (after {wait_seconds:g} s). Lower n_workers or "
                "resources_per_worker, stop what else runs there, or raise wait_seconds if machines are about to join"
            )
        time.sleep(POLL_SECONDS)
    if requested:
        request_resources(0, {})


def request_resources(n_workers: int, resources: dict[str, float]) -> None:
    """Tell a cluster that grows on demand what is about to be needed; others ignore it."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(resources)] * n_workers)


def _missing_resources(n_workers: int, resources: dict[str, float]) -> str:
    """Return in words which resources the cluster has too little of; empty if none."""
    ray = import_ray()
    free, total = ray.available_resources(), ray.cluster_resources()
    return "; ".join(
        f"{_amount(name, each * n_workers)} asked for, {_amount(name, free.get(name, 0.0))} free of "
        f"{_amount(name, total.get(name, 0.0))}"
        for name, each in resources.items()
        if each * n_workers > free.get(name, 0.0) + 1e-9
    )


def _amount(name: str, value: float) -> str:
    return f"{value / 1e9:.3g} GB of memory" if name == "memory" else f"{value:g} {name}"
