"""The number of threads that leaves are computed on."""

from __future__ import annotations

from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from dsmgp._util.machine import has_torch


@contextmanager
def using_threads(n_threads):
    """Compute on so many threads: where torch is installed by its own setting, otherwise by a limit on BLAS, up to the cores."""
    if not has_torch():
        with threadpool_limits(n_threads):
            yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
