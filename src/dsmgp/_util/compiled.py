"""Compiled kernels: loaded from the LLVM code that is shipped with the package, or compiled by numba.

Kernels are written for numba (:mod:`dsmgp._util.numba_arrays`). To compile them takes numba ten seconds, nearly all of them in Python: types are
inferred, and LLVM code is written. That code is the same on every machine, so ``make kernels`` writes it into ``kernels.json.xz``; here LLVM makes
machine code of it for the processor at hand, in about a second, without importing numba. The machine code is kept in a cache (:func:`cache_folder`). Where
anything is in the way (another version of LLVM that cannot read it, an unknown platform), numba compiles the same functions.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import logging
import lzma
import os
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.errors import InputError

__all__ = [
    "LLVM_CODE",
    "Kernel",
    "cache_folder",
    "encode",
    "load_shipped",
    "shipped_code",
    "symbol",
]

logger = logging.getLogger("dsmgp")

#: LLVM code of all kernels.
LLVM_CODE = Path(__file__).with_name("kernels.json.xz")
# A kernel in LLVM code returns a status, which is zero, and takes addresses of its result, of an error, and of the block.
_NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_lock = threading.Lock()


def _renew_lock() -> None:
    """A child that is forked while a thread of its parent loads a kernel would wait for it for ever."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
# LLVM frees machine code with its engine.
_engines: list[Any] = []

Block = NDArray[np.int64]


class Kernel:
    """A compiled function of numbers and arrays, which it overwrites; found when it is first called.

    Parameters
    ----------
    module : str
        Module that defines it for numba.
    name : str
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self._function: Callable[[Block], object] | None = None

    def __call__(self, *values: int | float | NDArray[Any]) -> None:
        function = self._function or self._find()
        function(encode(values))

    def _find(self) -> Callable[[Block], object]:
        shipped = load_shipped(symbol(self.module, self.name))
        self._function = shipped or getattr(importlib.import_module(self.module), self.name)
        return self._function

    def __reduce__(self) -> tuple[type[Kernel], tuple[str, str]]:
        return Kernel, (self.module, self.name)


def symbol(module: str, name: str) -> str:
    """Return the name of a kernel in LLVM code."""
    return f"{module}.{name}"


def encode(values: tuple[int | float | NDArray[Any], ...]) -> Block:
    """Return values as 64-bit integers: an array as its address and shape, a float as its bits."""
    words: list[int] = []
    for value in values:
        if isinstance(value, np.ndarray):
            known = value.itemsize == 8 or value.dtype == np.float32
            if not value.flags.c_contiguous or not known:
                raise InputError(
                    f"expected a contiguous array of 64-bit numbers or of float32, got {value.dtype}, strides {value.strides}"
                )
            words.append(value.__array_interface__["data"][0])
            words += value.shape
        elif isinstance(value, float):
            words += struct.unpack("<q", struct.pack("<d", value))
        else:
            words.append(value)
    return np.array(words, dtype=np.int64)


def load_shipped(name: str) -> Callable[[Block], object] | None:
    """Return a shipped kernel as a function of a block; None where it cannot be used."""
    with _lock:
        return _load_shipped(name)


@cache
def _load_shipped(name: str) -> Callable[[Block], object] | None:
    if os.environ.get("DSMGP_NO_SHIPPED") or sys.maxsize < 2**32:
        return None
    try:
        return _load(name, shipped_code()[name])
    except Exception as error:  # OSError, KeyError, or whatever another version of llvmlite raises
        logger.info("numba compiles %s: its shipped code cannot be used (%s)", name, error)
        return None


@cache
def shipped_code() -> dict[str, str]:
    """Return the LLVM code of kernels by name."""
    kernels: dict[str, str] = json.loads(lzma.decompress(LLVM_CODE.read_bytes()))["kernels"]
    return kernels


def _load(name: str, code: str) -> Callable[[Block], object] | None:
    """Make machine code for this processor, or take it from the cache."""
    import llvmlite.binding as llvm

    for initialise in ("initialize", "initialize_native_target", "initialize_native_asmprinter"):
        with suppress(RuntimeError):  # later versions do it by themselves, and say so
            getattr(llvm, initialise)()
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3, jit=True)
    version = str((llvm.llvm_version_info, triple, cpu, features, code))
    key = hashlib.sha256(version.encode()).hexdigest()[:32]
    empty = llvm.parse_assembly(f'target triple = "{triple}"')
    engine = llvm.create_mcjit_compiler(
        empty, machine
    )  # which makes the process's own symbols known
    machine_code = _read_cache(key)
    if machine_code is None:
        machine_code = _compile(llvm, code, triple, machine)
        if machine_code is None:
            return None
        _write_cache(key, machine_code)
    engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
    engine.finalize_object()
    _engines.append((engine, machine))
    return _function(engine.get_function_address(name))


def _compile(llvm: Any, code: str, triple: str, machine: Any) -> bytes | None:
    """Return machine code; None where it would need a function that this process does not have."""
    module = llvm.parse_assembly(code)
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    # LLVM ends the process when it cannot find one.
    wanted = [
        f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")
    ]
    if not all(llvm.address_of_symbol(name) for name in (*wanted, *LIBRARY)):
        return None
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


# Functions of the C library that LLVM's own may become.
LIBRARY = ("exp", "log", "log1p", "memcpy", "memmove", "memset")


def _function(at: int) -> Callable[[Block], object]:
    native, ignored = _NATIVE(at), (ctypes.c_void_p * 8)()
    result = ctypes.addressof(ignored)

    def call(block: Block) -> None:
        # ctypes releases the interpreter lock.
        status = native(result, result + 16, block.__array_interface__["data"][0])
        if status:
            raise RuntimeError(f"a compiled kernel failed with status {status}")

    call.keeps = ignored  # type: ignore[attr-defined]
    return call


def cache_folder() -> Path | None:
    """Return where machine code is kept; None if no folder can be written.

    ``NUMBA_CACHE_DIR`` if it is set, else ``__pycache__`` beside this file, else the user's folder for caches: where numba keeps its own.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    beside = Path(__file__).parent / "__pycache__"
    for find in (lambda: Path(given),) if given else (lambda: beside, _user_cache):
        try:
            folder = find()
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # the latter of a user without a home
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def _user_cache() -> Path:
    home = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "dsmgp"


def _read_cache(key: str) -> bytes | None:
    folder = cache_folder()
    try:
        content = b"" if folder is None else (folder / f"dsmgp-{key}.o").read_bytes()
    except OSError:
        return None
    # A file that was cut short would end the process.
    checksum, machine_code = content[:32], content[32:]
    return (
        machine_code if machine_code and hashlib.sha256(machine_code).digest() == checksum else None
    )


def _write_cache(key: str, machine_code: bytes) -> None:
    folder = cache_folder()
    if folder is None:
        return
    part = folder / f"dsmgp-{key}.{os.getpid()}.part"
    with suppress(OSError):
        part.write_bytes(hashlib.sha256(machine_code).digest() + machine_code)
        part.replace(folder / f"dsmgp-{key}.o")
