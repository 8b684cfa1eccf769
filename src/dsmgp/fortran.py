# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""LAPACK and BLAS in compiled code, on matrices that lie row after row. Needs numba.

``at`` is what :func:`dsmgp.lapack.addresses` gives. Row after row is column after column of the transpose: a lower
triangle here is an upper one to Fortran.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from dsmgp import lapack

__all__ = ["factorise", "invert_factor", "solve", "solve_rows", "square"]

# Where the routines and constants lie in what lapack.addresses() gives.
_POTRF, _TRTRI, _LAUUM, _TRMM, _TRSM, _TRSV = 0, 1, 2, 3, 4, 5
_LEFT, _RIGHT, _UPPER, _PLAIN, _TRANSPOSED, _ONE, _MINUS_ONE = 6, 7, 8, 9, 10, 11, 12
_SYRK, _GEMM = 13, 14


@intrinsic
def _call(context: Any, address: Any, arguments: Any) -> Any:
    """Call the Fortran routine at an address; its arguments are addresses too.

    The address is an argument, not a constant, so that compiled code can be kept on disk.
    """

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        address, packed = given
        pointer = ir.IntType(8).as_pointer()
        values = [builder.inttoptr(v, pointer) for v in cgutils.unpack_tuple(builder, packed)]
        routine = ir.FunctionType(ir.VoidType(), [pointer] * len(values))
        builder.call(builder.inttoptr(address, routine.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), build


@njit(nogil=True, cache=True)
def _integers(a, b):
    """Two integers, for Fortran to see: the second lies four bytes after the first."""
    pair = np.empty(2, np.int32)
    pair[0], pair[1] = a, b
    return pair


@njit(nogil=True, cache=True)
def factorise(at, K, most=lapack.MOST_AT_ONCE):
    """Cholesky factor of K in its place; False where it has none: see :func:`lapack.factorise`."""
    n, start = len(K), K.ctypes.data
    order, shape, rest = _integers(n, 0), _integers(0, 0), _integers(0, 0)
    lda, width, height, below = (
        order.ctypes.data, shape.ctypes.data, shape.ctypes.data + 4, rest.ctypes.data
    )  # fmt: skip
    for place in range(0, n, most):
        shape[0] = min(most, n - place)
        corner = start + 8 * place * (n + 1)
        _call(at[_POTRF], (at[_UPPER], width, corner, lda, lda + 4))
        if order[1] != 0:
            return False
        first = place + most
        if first < n:
            rest[0] = n - first
            _call(
                at[_TRSM],
                (
                    at[_LEFT], at[_UPPER], at[_TRANSPOSED], at[_PLAIN], width, below, at[_ONE],
                    corner, lda, start + 8 * (first * n + place), lda,
                ),
            )  # fmt: skip
        for row in range(first, n, most):
            shape[1], rest[0] = min(most, n - row), max(n - row - most, 0)
            own, under = start + 8 * (row * n + place), start + 8 * ((row + most) * n + place)
            _call(
                at[_SYRK],
                (
                    at[_UPPER], at[_TRANSPOSED], height, width, at[_MINUS_ONE], own, lda, at[_ONE],
                    start + 8 * row * (n + 1), lda,
                ),
            )  # fmt: skip
            if rest[0]:
                _call(
                    at[_GEMM],
                    (
                        at[_TRANSPOSED], at[_PLAIN], height, below, width, at[_MINUS_ONE], own, lda,
                        under, lda, at[_ONE], start + 8 * ((row + most) * n + row), lda,
                    ),
                )  # fmt: skip
    return True


@njit(nogil=True, cache=True)
def solve(at, L, b):
    """``(L L')^-1 b`` in the place of b."""
    order = _integers(len(L), 1)
    n, L_at, b_at = order.ctypes.data, L.ctypes.data, b.ctypes.data
    _call(at[_TRSV], (at[_UPPER], at[_TRANSPOSED], at[_PLAIN], n, L_at, n, b_at, n + 4))
    _call(at[_TRSV], (at[_UPPER], at[_PLAIN], at[_PLAIN], n, L_at, n, b_at, n + 4))


@njit(nogil=True, cache=True)
def solve_rows(at, L, step, B, m):
    """``L^-1 b`` in the place of each of the first m rows b of B; L is an address, ``step`` from row to row."""
    order, apart = _integers(B.shape[1], m), _integers(step, 0)
    n = order.ctypes.data
    _call(
        at[_TRSM],
        (
            at[_LEFT], at[_UPPER], at[_TRANSPOSED], at[_PLAIN], n, n + 4, at[_ONE],
            L, apart.ctypes.data, B.ctypes.data, n,
        ),
    )  # fmt: skip


@njit(nogil=True, cache=True)
def invert_factor(at, L):
    """L^-1 in the place of L: see :func:`lapack.invert_factor`."""
    n, start = len(L), L.ctypes.data
    order, shape = _integers(n, 0), _integers(0, 0)
    lda, rows = order.ctypes.data, shape.ctypes.data
    width = n
    while width > lapack.BLOCK:
        width = (width + 1) // 2
    width = (width + 3) // 4 * 4
    for place in range(0, n, width):
        shape[0] = min(width, n - place)
        block = start + 8 * place * (n + 1)
        _call(at[_TRTRI], (at[_UPPER], at[_PLAIN], rows, block, lda, lda + 4))
    while width < n:
        for place in range(0, n - width, 2 * width):
            top = start + 8 * place * (n + 1)
            corner, below = top + 8 * width * (n + 1), top + 8 * width * n
            shape[0], shape[1] = width, min(width, n - place - width)
            _call(
                at[_TRMM],
                (
                    at[_LEFT], at[_UPPER], at[_PLAIN], at[_PLAIN], rows, rows + 4, at[_MINUS_ONE],
                    top, lda, below, lda,
                ),
            )  # fmt: skip
            _call(
                at[_TRMM],
                (
                    at[_RIGHT], at[_UPPER], at[_PLAIN], at[_PLAIN], rows, rows + 4, at[_ONE],
                    corner, lda, below, lda,
                ),
            )  # fmt: skip
        width *= 2


@njit(nogil=True, cache=True)
def square(at, L):
    """``L' L`` in the place of L: of an inverse factor, the inverse."""
    order = _integers(len(L), 0)
    n = order.ctypes.data
    _call(at[_LAUUM], (at[_UPPER], n, L.ctypes.data, n, n + 4))
