"""BLAS and LAPACK in place on NumPy arrays, without the interpreter lock.

SciPy's own wrappers hold the lock, so two leaves on two threads would take turns. The same routines are exported for
Cython as function pointers, and ctypes calls those with the lock released; no compiler is needed. A row-major lower
triangle is, to Fortran, a column-major upper one: every routine here works on lower triangles of row-major float64
matrices, whose rows may lie apart but whose columns may not, and ignores what is above the diagonal.

If SciPy does not export a routine in the form expected, :data:`available` is False, and calls raise.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack

from dsmgp.linalg.threads import one_thread

__all__ = [
    "add_to_factor",
    "addresses",
    "available",
    "factorise",
    "invert_factor",
    "solve_lower",
    "solve_rows",
    "solve_transposed",
    "subtract_square",
]

Matrix = NDArray[np.float64]
Routine = Callable[..., None]

# Up to this order a triangle is inverted by LAPACK: with smaller blocks, calls cost more than they save.
BLOCK = 48
# Larger matrices are factorised in blocks: two threads of OpenBLAS write beyond their memory when they factorise some
# 20,000 rows (its issues 352, 1413 and 2562; 12,000 are fine).
MAX_ORDER = 10_000
# Columns of a block in a QR update.
QR_BLOCK = 16


def _export(module: Any, name: str, n_arguments: int) -> Routine:
    """Return an exported routine as a function, all arguments of which are addresses."""
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
    _potrf = _trtri = _lauum = _trmm = _trsm = _trsv = _syrk = _gemm = _tpqrt = _missing

#: Whether the routines were found; if not, callers have to do without them.
available = not _reason

# Fortran takes every argument by address. These live as long as the process.
_letters, _numbers = ctypes.create_string_buffer(b"LRUNT"), (ctypes.c_double * 2)(1.0, -1.0)
_LEFT, _RIGHT, _UPPER, _PLAIN, _TRANSPOSED = (ctypes.addressof(_letters) + k for k in range(5))
_ONE, _MINUS_ONE = (ctypes.addressof(_numbers) + 8 * k for k in range(2))
_integers: dict[int, ctypes.c_int] = {}


@functools.cache
def _ref(value: int) -> int:
    """Return an address that holds this integer: Fortran takes arguments by reference."""
    held = _integers.setdefault(value, ctypes.c_int(value))
    return ctypes.addressof(held)


_UNIT = _ref(1)


class _ArrayStruct(ctypes.Structure):
    """What the capsule ``__array_struct__`` holds, by NumPy's array interface protocol."""

    _fields_ = (
        ("two", ctypes.c_int),
        ("n_dims", ctypes.c_int),
        ("kind", ctypes.c_char),
        ("item_size", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    )


_DATA = _ArrayStruct.data.offset
# A function object of its own: other code may change the argument types of ctypes.pythonapi's.
_get_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _address(a: Matrix) -> int:
    """Return the address of the first element.

    Takes 0.4 us, where ``a.ctypes.data`` and ``a.__array_interface__`` take 0.75: a small solve takes no longer.
    """
    held = a.__array_struct__  # owns the memory that is read
    address: int = ctypes.c_void_p.from_address(_get_pointer(held, None) + _DATA).value  # type: ignore[assignment]
    return address


def _layout(A: Matrix) -> tuple[int, int, int]:
    """Return the address of a square matrix, its order, and the elements from row to row."""
    n = len(A)
    return _address(A), n, max(A.strides[0] // 8, n)


def factorise(A: Matrix, most: int = MAX_ORDER) -> bool:
    """Overwrite a positive definite matrix by its Cholesky factor.

    Parameters
    ----------
    A : ndarray of shape (n, n)
        Overwritten.
    most : int
        Order of the blocks of larger matrices.

    Returns
    -------
    bool
        False if the matrix is not positive definite.
    """
    for offset in range(0, len(A), most):
        here, below = slice(offset, offset + most), A[offset + most :, offset : offset + most]
        if not _factorise(A[here, here]):
            return False
        if len(below):
            solve_rows(A[here, here], below)
        for first in range(0, len(below), most):
            block, rest = below[first : first + most], below[first + most :]
            columns = A[:, offset + most + first :][:, : len(block)]
            subtract_square(columns[offset + most + first :][: len(block)], block)
            if len(rest):
                _subtract_product(columns[len(A) - len(rest) :], rest, block)
    return True


def _factorise(A: Matrix) -> bool:
    start, n, step = _layout(A)
    info = ctypes.c_int(0)
    _potrf(_UPPER, _ref(n), start, _ref(step), ctypes.addressof(info))
    return info.value == 0


def _subtract_product(A: Matrix, B: Matrix, C: Matrix) -> None:
    """Subtract ``B C'`` from A."""
    (m, k), n = B.shape, len(C)
    b, c, a = (_ref(max(M.strides[0] // 8, 1)) for M in (B, C, A))
    _gemm(
        _TRANSPOSED, _PLAIN, _ref(n), _ref(m), _ref(k), _MINUS_ONE,
        _address(C), c, _address(B), b, _ONE, _address(A), a,
    )  # fmt: skip


def invert_factor(A: Matrix) -> None:
    """Overwrite a lower triangular matrix by its inverse.

    Blocks on the diagonal first, then pairs of blocks, so that matrix products do nearly all of the work. OpenBLAS's
    own trtri works on columns and narrow blocks, and is slower, above all for a few hundred rows.
    """
    start, n, step = _layout(A)
    lda, width = _ref(step), n
    while width > BLOCK:
        width = (width + 1) // 2
    width = (width + 3) // 4 * 4
    info = ctypes.c_int(0)
    for offset in range(0, n, width):
        block = start + 8 * offset * (step + 1)
        _trtri(_UPPER, _PLAIN, _ref(min(width, n - offset)), block, lda, ctypes.addressof(info))
    while width < n:
        for offset in range(0, n - width, 2 * width):
            # [A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1, C^-1], and Fortran sees B transposed
            top = start + 8 * offset * (step + 1)
            below, corner = top + 8 * width * step, top + 8 * width * (step + 1)
            m, k = _ref(width), _ref(min(width, n - offset - width))
            _trmm(_LEFT, _UPPER, _PLAIN, _PLAIN, m, k, _MINUS_ONE, top, lda, below, lda)
            _trmm(_RIGHT, _UPPER, _PLAIN, _PLAIN, m, k, _ONE, corner, lda, below, lda)
        width *= 2


def solve_lower(L: Matrix, b: Matrix) -> None:
    """Overwrite the vector b by ``L^-1 b``."""
    start, n, step = _layout(L)
    _trsv(_UPPER, _TRANSPOSED, _PLAIN, _ref(n), start, _ref(step), _address(b), _UNIT)


def solve_transposed(L: Matrix, b: Matrix) -> None:
    """Overwrite the vector b by ``L'^-1 b``."""
    start, n, step = _layout(L)
    _trsv(_UPPER, _PLAIN, _PLAIN, _ref(n), start, _ref(step), _address(b), _UNIT)


def solve_rows(L: Matrix, B: Matrix) -> None:
    """Overwrite every row b of B by ``L^-1 b``."""
    start, n, step = _layout(L)
    m, at = len(B), _address(B)
    _trsm(
        _LEFT, _UPPER, _TRANSPOSED, _PLAIN, _ref(n), _ref(m), _ONE,
        start, _ref(step), at, _ref(max(B.strides[0] // 8, n)),
    )  # fmt: skip


def subtract_square(A: Matrix, B: Matrix) -> None:
    """Subtract ``B B'`` from the lower triangle of A."""
    start, n, step = _layout(A)
    width = B.shape[1]
    _syrk(
        _UPPER, _TRANSPOSED, _ref(n), _ref(width), _MINUS_ONE,
        _address(B), _ref(max(B.strides[0] // 8, width)), _ONE, start, _ref(step),
    )  # fmt: skip


def add_to_factor(L: Matrix, B: Matrix) -> None:
    """Overwrite L by a factor of ``L L' + B B'``, whose diagonal may have either sign; B is overwritten too.

    This is the QR decomposition of L' stacked on B', in blocks and with L known to be triangular: as stable as a new
    factorisation, since all transformations are orthogonal.
    """
    start, n, step = _layout(L)
    width, block = B.shape[1], min(QR_BLOCK, len(L))
    triangles, spare, info = np.empty(block * n), np.empty(block * n), ctypes.c_int(0)
    # In products this small, threads would wait for one another a hundred times longer than they work.
    with one_thread():
        _tpqrt(
            _ref(width), _ref(n), _ref(0), _ref(block), start, _ref(step),
            _address(B), _ref(max(B.strides[0] // 8, width)),
            _address(triangles), _ref(block), _address(spare), ctypes.addressof(info),
        )  # fmt: skip
    assert info.value == 0, f"tpqrt was called wrongly: {info.value}"


@functools.cache
def addresses() -> NDArray[np.int64]:
    """Return the addresses of routines and constants, for compiled code.

    In this order: potrf, trtri, lauum, trmm, trsm, trsv, then L, R, U, N, T, 1.0, -1.0, then syrk, gemm. New ones go
    to the end, since compiled code that is cached on disk relies on the positions.
    """
    if not available:
        _missing()
    routines = [_potrf, _trtri, _lauum, _trmm, _trsm, _trsv, _syrk, _gemm]
    pointers = [ctypes.cast(r, ctypes.c_void_p).value for r in routines]  # type: ignore[arg-type]
    constants = [_LEFT, _RIGHT, _UPPER, _PLAIN, _TRANSPOSED, _ONE, _MINUS_ONE]
    return np.array([*pointers[:6], *constants, *pointers[6:]], dtype=np.int64)
