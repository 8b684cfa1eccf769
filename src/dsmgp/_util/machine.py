"""What this machine offers: memory, cache sizes, GPUs, and which optional packages are installed."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import sys
from functools import cache
from typing import NamedTuple

from dsmgp._util.compiled import load_shipped
from dsmgp._util.warnings import warn_user

__all__ = [
    "GPUMemory",
    "cache_numbers",
    "gpu_memory",
    "has_cuda",
    "has_numba",
    "has_torch",
    "memory",
    "require_torch",
]

# The smallest kernel: where it can be loaded, so can all others.
PROBE = "dsmgp.tree.routing_numba.descend"
# Bytes of a core's second-level cache where the system does not report them.
USUAL_CACHE = 2**19
# Libraries of which one is there wherever torch can use a GPU: NVIDIA's driver, AMD's runtime.
GPU_LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libamdhip64.so")
# AMD's kernel driver: torch for ROCm may come with a runtime of its own, which is not among the system's libraries.
AMD_DRIVER = "/dev/kfd"


class GPUMemory(NamedTuple):
    """Bytes of a GPU's memory: what this process may still use, and all of it."""

    free: float
    total: float


def gpu_memory(device: str) -> GPUMemory:
    """Return the memory of a GPU, with what torch keeps in reserve for this process counted as free.

    Parameters
    ----------
    device : str
        ``"cuda"``, or a numbered GPU such as ``"cuda:1"``.
    """
    import torch

    free, total = torch.cuda.mem_get_info(device)
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return GPUMemory(float(free + reserve), float(total))


def memory(device: str = "cpu") -> float:
    """Return the bytes of main memory, or those of a GPU's memory that are free; infinity where unknown.

    A GPU is often shared with other processes, so its size says little.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"``, or a numbered GPU such as ``"cuda:1"``.
    """
    if device.startswith("cuda") and has_cuda():
        return gpu_memory(device).free
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * float(os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


@cache
def cache_numbers() -> int:
    """Return how many double precision numbers a core's second-level cache holds."""
    try:
        n_bytes = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (AttributeError, ValueError, OSError):
        n_bytes = 0
    return (n_bytes if n_bytes > 0 else USUAL_CACHE) // 8


@cache
def has_numba() -> bool:
    """Return whether compiled code can be used; the NumPy code is used otherwise.

    Numba is a core dependency, but it does not exist for every platform and Python version, and fails beside a NumPy that
    is too new for it. It is imported only where the kernels shipped with the package cannot be used, which need LLVM alone
    (:mod:`dsmgp._util.compiled`). Setting the environment variable ``DSMGP_NO_NUMBA`` to any text turns compiled code off.
    """
    if os.environ.get("DSMGP_NO_NUMBA") or importlib.util.find_spec("numba") is None:
        return False
    if load_shipped(PROBE) is not None:
        return True
    try:
        import numba  # noqa: F401
    except ImportError as error:
        warn_user(
            f"numba cannot be used ({error}): leaves are computed in NumPy, which takes longer"
        )
        return False
    return True


@cache
def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None


def has_cuda() -> bool:
    """Return whether torch is installed and has a GPU, without importing torch where there cannot be one.

    Importing torch takes more than a second.
    """
    if not has_torch() or (sys.modules.get("torch") is None and not _has_gpu_driver()):
        return False
    import torch

    return torch.cuda.is_available()


@cache
def _has_gpu_driver() -> bool:
    """Return whether the driver of a GPU is installed; there may still be no GPU."""
    return os.path.exists(AMD_DRIVER) or any(_can_load(name) for name in GPU_LIBRARIES)


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def require_torch(what: str) -> None:
    """Raise ImportError unless torch and gpytorch are installed.

    Parameters
    ----------
    what : str
        What they are needed for, as the user wrote it: the message begins with it.

    Examples
    --------
    >>> require_torch("device='cuda'")  # doctest: +SKIP
    Traceback (most recent call last):
    ImportError: device='cuda' needs torch and gpytorch: pip install 'dsmgp[torch]'
    """
    if not has_torch() or importlib.util.find_spec("gpytorch") is None:
        raise ImportError(f"{what} needs torch and gpytorch: pip install 'dsmgp[torch]'")
