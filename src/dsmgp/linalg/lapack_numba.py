# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return, call-arg"
"""BLAS and LAPACK for compiled code, in place on row-major matrices (needs numba): see :mod:`.lapack`.

``lib`` is the array of :func:`dsmgp.linalg.lapack.addresses`. A row-major lower triangle is, to Fortran, a
column-major upper one.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dsmgp._util.numba_arrays import address, inlined, integer, numbers, put
from dsmgp.linalg import lapack

__all__ = ["factorise", "invert_factor", "solve", "solve_rows", "square"]

# Positions of routines and constants in lapack.addresses().
_POTRF, _TRTRI, _LAUUM, _TRMM, _TRSM, _TRSV = 0, 1, 2, 3, 4, 5
_LEFT, _RIGHT, _UPPER, _PLAIN, _TRANSPOSED, _ONE, _MINUS_ONE = 6, 7, 8, 9, 10, 11, 12
_SYRK, _GEMM = 13, 14


@intrinsic
def _call(context: Any, address: Any, arguments: Any) -> Any:
    """Call the Fortran routine at an address, with addresses as arguments.

    The address is an argument, not a constant, so that compiled code can be cached on disk.
    """

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        address, packed = given
        pointer = ir.IntType(8).as_pointer()
        values = [builder.inttoptr(v, pointer) for v in cgutils.unpack_tuple(builder, packed)]
        routine = ir.FunctionType(ir.VoidType(), [pointer] * len(values))
        builder.call(builder.inttoptr(address, routine.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), build


@inlined
def factorise(lib, K, most=lapack.MAX_ORDER):
    """Overwrite K, of shape (n, n), by its Cholesky factor; return False if it has none. See :func:`lapack.factorise`."""
    n, start = len(K), address(K)
    lda, width, below = numbers(n, 0), numbers(0, 0), numbers(0, 0)
    height = width + 4
    for offset in range(0, n, most):
        put(width, min(most, n - offset))
        corner = start + 8 * offset * (n + 1)
        _call(lib[_POTRF], (lib[_UPPER], width, corner, lda, lda + 4))
        if integer(lda + 4) != 0:
            return False
        first = offset + most
        if first < n:
            put(below, n - first)
            _call(
                lib[_TRSM],
                (
                    lib[_LEFT], lib[_UPPER], lib[_TRANSPOSED], lib[_PLAIN], width, below, lib[_ONE],
                    corner, lda, start + 8 * (first * n + offset), lda,
                ),
            )  # fmt: skip
        for row in range(first, n, most):
            put(height, min(most, n - row))
            put(below, max(n - row - most, 0))
            left, lower_left = (
                start + 8 * (row * n + offset),
                start + 8 * ((row + most) * n + offset),
            )
            _call(
                lib[_SYRK],
                (
                    lib[_UPPER], lib[_TRANSPOSED], height, width, lib[_MINUS_ONE], left, lda, lib[_ONE],
                    start + 8 * row * (n + 1), lda,
                ),
            )  # fmt: skip
            if n - row > most:
                _call(
                    lib[_GEMM],
                    (
                        lib[_TRANSPOSED], lib[_PLAIN], height, below, width, lib[_MINUS_ONE], left, lda,
                        lower_left, lda, lib[_ONE], start + 8 * ((row + most) * n + row), lda,
                    ),
                )  # fmt: skip
    return True


@inlined
def solve(lib, L, b):
    """Overwrite the vector b, of shape (n,), by ``(L L')^-1 b``."""
    n, L_at, b_at = numbers(len(L), 1), address(L), address(b)
    _call(lib[_TRSV], (lib[_UPPER], lib[_TRANSPOSED], lib[_PLAIN], n, L_at, n, b_at, n + 4))
    _call(lib[_TRSV], (lib[_UPPER], lib[_PLAIN], lib[_PLAIN], n, L_at, n, b_at, n + 4))


@inlined
def solve_rows(lib, L, step, B, m):
    """Overwrite each of the first m rows b of B by ``L^-1 b``; L is an address, with ``step`` elements from row to row."""
    n, apart = numbers(B.shape[1], m), numbers(step, 0)
    _call(
        lib[_TRSM],
        (
            lib[_LEFT], lib[_UPPER], lib[_TRANSPOSED], lib[_PLAIN], n, n + 4, lib[_ONE],
            L, apart, address(B), n,
        ),
    )  # fmt: skip


@inlined
def invert_factor(lib, L):
    """Overwrite L by its inverse: see :func:`lapack.invert_factor`."""
    n, start = len(L), address(L)
    lda, rows = numbers(n, 0), numbers(0, 0)
    width = n
    while width > lapack.BLOCK:
        width = (width + 1) // 2
    width = (width + 3) // 4 * 4
    for offset in range(0, n, width):
        put(rows, min(width, n - offset))
        block = start + 8 * offset * (n + 1)
        _call(lib[_TRTRI], (lib[_UPPER], lib[_PLAIN], rows, block, lda, lda + 4))
    while width < n:
        for offset in range(0, n - width, 2 * width):
            top = start + 8 * offset * (n + 1)
            corner, below = top + 8 * width * (n + 1), top + 8 * width * n
            put(rows, width)
            put(rows + 4, min(width, n - offset - width))
            _call(
                lib[_TRMM],
                (
                    lib[_LEFT], lib[_UPPER], lib[_PLAIN], lib[_PLAIN], rows, rows + 4, lib[_MINUS_ONE],
                    top, lda, below, lda,
                ),
            )  # fmt: skip
            _call(
                lib[_TRMM],
                (
                    lib[_RIGHT], lib[_UPPER], lib[_PLAIN], lib[_PLAIN], rows, rows + 4, lib[_ONE],
                    corner, lda, below, lda,
                ),
            )  # fmt: skip
        width *= 2


@inlined
def square(lib, L):
    """Overwrite L by ``L' L``: of an inverse Cholesky factor, this is the inverse matrix."""
    n = numbers(len(L), 0)
    _call(lib[_LAUUM], (lib[_UPPER], n, address(L), n, n + 4))
