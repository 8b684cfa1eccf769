"""BLAS and LAPACK in place on NumPy arrays, without the interpreter lock.

SciPy's own wrappers hold the lock, so two leaves on two threads would take turns. The same routines are
exported for Cython as function pointers, and ctypes calls those with the lock released. No compiler is
needed. A row-major lower triangle is, to Fortran, a column-major upper one: every routine here takes
and leaves lower triangles of row-major float64 matrices, whose rows may lie apart but whose columns may
not, and never looks at what is above the diagonal.

Where SciPy does not export a routine in the form expected, :data:`available` is False, and calls raise.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack
from threadpoolctl import ThreadpoolController

__all__ = [
    "add_to_factor",
    "addresses",
    "available",
    "factorise",
    "invert_factor",
    "one_thread",
    "solve_lower",
    "solve_rows",
    "solve_transposed",
    "subtract_square",
]

Matrix = NDArray[np.float64]
Foreign = Callable[..., None]

# Up to this order a triangle is inverted by LAPACK: smaller blocks cost more in calls than they save.
BLOCK = 48
# Two threads of OpenBLAS write beyond their memory where they factorise some 20,000 rows (its issues 352, 1413 and 2562; 12,000
# are fine): beyond this order it is done in blocks.
MOST_AT_ONCE = 10_000
# Columns that a QR update works on together.
QR_BLOCK = 16


def _export(module: Any, name: str, n_arguments: int) -> Foreign:
    """A routine's pointer as a function; all its arguments are addresses."""
    capsules = getattr(module, "__pyx_capi__", {})
    if name not in capsules:
        raise ImportError(f"this SciPy does not export {name} from {module.__name__}")
    capsule, python = capsules[name], ctypes.pythonapi
    python.PyCapsule_GetName.restype = ctypes.c_char_p
    python.PyCapsule_GetName.argtypes = [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    signature = python.PyCapsule_GetName(capsule)
    takes = signature.decode().partition("(")[2].rstrip(")").split(", ")
    # A 64-bit integer build, or a changed interface, would be called with the wrong arguments.
    if len(takes) != n_arguments or not {t for t in takes if not t.endswith("_d *")} <= {
        "char *",
        "int *",
    }:
        raise ImportError(
            f"SciPy exports {name} as {signature.decode()}, which is not the form expected"
        )
    pointer = python.PyCapsule_GetPointer(capsule, signature)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(pointer)


def _missing(*_: Any) -> None:
    raise RuntimeError(f"BLAS and LAPACK could not be taken from SciPy: {_reason}")


_reason = ""
try:
    _potrf = _export(cython_lapack, "dpotrf", 5)
    _potri = _export(cython_lapack, "dpotri", 5)
    _trtri = _export(cython_lapack, "dtrtri", 6)
    _lauum = _export(cython_lapack, "dlauum", 5)
    _trmm = _export(cython_blas, "dtrmm", 11)
    _trsm = _export(cython_blas, "dtrsm", 11)
    _trsv = _export(cython_blas, "dtrsv", 8)
    _syrk = _export(cython_blas, "dsyrk", 10)
    _gemm = _export(cython_blas, "dgemm", 13)
    _tpqrt = _export(cython_lapack, "dtpqrt", 12)
except ImportError as error:
    _reason = str(error)
    _potrf = _potri = _trtri = _lauum = _trmm = _trsm = _trsv = _syrk = _gemm = _tpqrt = _missing

#: Whether the routines were found; without them callers have to use torch.
available = not _reason

# Fortran takes every argument by address. These live as long as the process.
_letters, _numbers = ctypes.create_string_buffer(b"LRUNT"), (ctypes.c_double * 2)(1.0, -1.0)
_LEFT, _RIGHT, _UPPER, _PLAIN, _TRANSPOSED = (ctypes.addressof(_letters) + k for k in range(5))
_ONE, _MINUS_ONE = (ctypes.addressof(_numbers) + 8 * k for k in range(2))
_integers: dict[int, ctypes.c_int] = {}


@functools.cache
def _integer(value: int) -> int:
    """An address that holds this integer."""
    held = _integers.setdefault(value, ctypes.c_int(value))
    return ctypes.addressof(held)


_UNIT = _integer(1)


def _address(a: Matrix) -> int:
    return int(torch.from_numpy(a).data_ptr())  # four times as fast as asking NumPy


def _lie(A: Matrix) -> tuple[int, int, int]:
    """Where a square matrix starts, its order, and elements from row to row."""
    n = len(A)
    return _address(A), n, max(A.strides[0] // 8, n)


def factorise(A: Matrix, most: int = MOST_AT_ONCE) -> bool:
    """Overwrite a positive definite matrix by its Cholesky factor; False where it has none."""
    for place in range(0, len(A), most):
        here, below = slice(place, place + most), A[place + most :, place : place + most]
        if not _factorise(A[here, here]):
            return False
        if len(below):
            solve_rows(A[here, here], below)
        for first in range(0, len(below), most):
            own, rest = below[first : first + most], below[first + most :]
            columns = A[:, place + most + first :][:, : len(own)]
            subtract_square(columns[place + most + first :][: len(own)], own)
            if len(rest):
                _subtract_product(columns[len(A) - len(rest) :], rest, own)
    return True


def _factorise(A: Matrix) -> bool:
    start, n, step = _lie(A)
    info = ctypes.c_int(0)
    _potrf(_UPPER, _integer(n), start, _integer(step), ctypes.addressof(info))
    return info.value == 0


def _subtract_product(A: Matrix, B: Matrix, C: Matrix) -> None:
    """Subtract ``B C'`` from A."""
    (m, k), n = B.shape, len(C)
    b, c, a = (_integer(max(M.strides[0] // 8, 1)) for M in (B, C, A))
    _gemm(
        _TRANSPOSED, _PLAIN, _integer(n), _integer(m), _integer(k), _MINUS_ONE,
        _address(C), c, _address(B), b, _ONE, _address(A), a,
    )  # fmt: skip


def invert_factor(A: Matrix) -> None:
    """Overwrite a lower triangular matrix by its inverse.

    Blocks on the diagonal first, then pairs of blocks: matrix products do nearly all of the work. OpenBLAS's own
    trtri goes by columns and narrow blocks, and is slower, most of all for a few hundred rows.
    """
    start, n, step = _lie(A)
    lda, width = _integer(step), n
    while width > BLOCK:
        width = (width + 1) // 2
    width = (width + 3) // 4 * 4
    info = ctypes.c_int(0)
    for place in range(0, n, width):
        block = start + 8 * place * (step + 1)
        _trtri(_UPPER, _PLAIN, _integer(min(width, n - place)), block, lda, ctypes.addressof(info))
    while width < n:
        for place in range(0, n - width, 2 * width):
            # [A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1, C^-1], and Fortran sees B transposed
            top = start + 8 * place * (step + 1)
            below, corner = top + 8 * width * step, top + 8 * width * (step + 1)
            m, k = _integer(width), _integer(min(width, n - place - width))
            _trmm(_LEFT, _UPPER, _PLAIN, _PLAIN, m, k, _MINUS_ONE, top, lda, below, lda)
            _trmm(_RIGHT, _UPPER, _PLAIN, _PLAIN, m, k, _ONE, corner, lda, below, lda)
        width *= 2


def solve_lower(L: Matrix, b: Matrix) -> None:
    """Overwrite the vector b by ``L^-1 b``."""
    start, n, step = _lie(L)
    _trsv(_UPPER, _TRANSPOSED, _PLAIN, _integer(n), start, _integer(step), _address(b), _UNIT)


def solve_transposed(L: Matrix, b: Matrix) -> None:
    """Overwrite the vector b by ``L'^-1 b``."""
    start, n, step = _lie(L)
    _trsv(_UPPER, _PLAIN, _PLAIN, _integer(n), start, _integer(step), _address(b), _UNIT)


def solve_rows(L: Matrix, B: Matrix) -> None:
    """Overwrite every row b of B by ``L^-1 b``."""
    start, n, step = _lie(L)
    m, at = len(B), _address(B)
    _trsm(
        _LEFT, _UPPER, _TRANSPOSED, _PLAIN, _integer(n), _integer(m), _ONE,
        start, _integer(step), at, _integer(max(B.strides[0] // 8, n)),
    )  # fmt: skip


def subtract_square(A: Matrix, B: Matrix) -> None:
    """Subtract ``B B'`` from the lower triangle of A."""
    start, n, step = _lie(A)
    width = B.shape[1]
    _syrk(
        _UPPER, _TRANSPOSED, _integer(n), _integer(width), _MINUS_ONE,
        _address(B), _integer(max(B.strides[0] // 8, width)), _ONE, start, _integer(step),
    )  # fmt: skip


def add_to_factor(L: Matrix, B: Matrix) -> None:
    """Overwrite L by a factor of ``L L' + B B'``, whose diagonal may have either sign. B is overwritten too.

    The QR decomposition of L' stacked on B', blocked and aware that L is triangular: orthogonal transformations
    only, so it is as stable as factorising.
    """
    start, n, step = _lie(L)
    width, block = B.shape[1], min(QR_BLOCK, len(L))
    triangles, spare, info = np.empty(block * n), np.empty(block * n), ctypes.c_int(0)
    with (
        one_thread()
    ):  # in small products threads wait for one another a hundred times longer than they work
        _tpqrt(
            _integer(width), _integer(n), _integer(0), _integer(block), start, _integer(step),
            _address(B), _integer(max(B.strides[0] // 8, width)),
            _address(triangles), _integer(block), _address(spare), ctypes.addressof(info),
        )  # fmt: skip
    assert info.value == 0, f"tpqrt was called wrongly: {info.value}"


@functools.cache
def addresses() -> NDArray[np.int64]:
    """Where routines and constants lie, for compiled code: potrf, trtri, lauum, trmm, trsm, trsv, then
    L, R, U, N, T, 1.0, -1.0, then syrk, gemm. New ones go to the end: code that is kept on disk knows the old places."""
    if not available:
        _missing()
    routines = [_potrf, _trtri, _lauum, _trmm, _trsm, _trsv, _syrk, _gemm]
    pointers = [ctypes.cast(r, ctypes.c_void_p).value for r in routines]  # type: ignore[arg-type]
    constants = [_LEFT, _RIGHT, _UPPER, _PLAIN, _TRANSPOSED, _ONE, _MINUS_ONE]
    return np.array([*pointers[:6], *constants, *pointers[6:]], dtype=np.int64)


def _switches() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """How many threads each OpenBLAS of the process uses, and how to change that.

    threadpoolctl finds the libraries. It lets only one thread of a program set them, and ignores
    all others silently, so they are set here.
    """
    found = []
    for library in ThreadpoolController().lib_controllers:
        if library.internal_api != "openblas":
            continue
        for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
            name = f"{prefix}openblas_{{}}_num_threads{suffix}"
            if hasattr(library.dynlib, name.format("set")):
                found.append(tuple(getattr(library.dynlib, name.format(v)) for v in ("get", "set")))
                break
    return found


class _Guard:
    """Knows who needs BLAS to keep to one thread: the first sets the limit, the last takes it off.

    Each step can be interrupted, and leaving be called again: who is inside is written down before the limit is
    set, and crossed out after it was put back.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: set[object] = set()
        self.switches: list[tuple[Callable[[], int], Callable[[int], None]]] | None = None
        self.before: list[int] = []

    def enter(self, who: object) -> None:
        with self.lock:
            first = not self.inside
            if first:
                if self.switches is None:  # looks through all loaded libraries: once
                    self.switches = _switches()
                self.before = [n_threads() for n_threads, _ in self.switches]
            self.inside.add(who)
            if first:
                self._set([1] * len(self.before))

    def leave(self, who: object) -> None:
        with self.lock:
            if self.inside == {who}:
                self._set(self.before)
            self.inside.discard(who)

    def _set(self, limits: list[int]) -> None:
        for (_, limit), n_threads in zip(self.switches or [], limits, strict=True):
            limit(n_threads)


_guard = _Guard()


def _forget_guard() -> None:
    """A forked child has none of its parent's threads, and so nobody inside."""
    global _guard
    if _guard.inside:
        _guard._set(_guard.before)
    _guard = _Guard()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_guard)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, BLAS uses one thread in every call, so that leaves can run side by side.

    BLAS's limit holds for the whole process. It is counted: any number of threads may be inside, in
    any order, and the last to leave puts back what the first found.

    Examples
    --------
    >>> with one_thread(), one_thread():
    ...     pass
    """
    guard, who = _guard, object()
    try:
        guard.enter(who)
        yield
    finally:
        try:
            guard.leave(who)
        except BaseException:  # Ctrl-C just now
            guard.leave(who)
            raise
