# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Arrays at addresses, for compiled code that takes nothing but addresses and numbers. Needs numba.

A kernel (:func:`kernel`) takes one block of 64-bit integers: addresses of arrays, and their lengths. It allocates nothing and raises nothing,
so that its LLVM code depends on nothing of numba's and can be shipped (:mod:`dsmgp._util.compiled`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

__all__ = [
    "address",
    "as_bits",
    "as_number",
    "inlined",
    "integer",
    "integers",
    "kernel",
    "matrix",
    "numbers",
    "put",
    "singles",
    "vector",
]

#: Kernels by module and name.
KERNELS: dict[tuple[str, str], Any] = {}


def inlined(function: Any = None, *, fastmath: Any = False) -> Any:
    """Compile a function that kernels call: without reference counts, and dividing as C does."""
    options = {
        "nogil": True,
        "error_model": "numpy",
        "_nrt": False,
        "fastmath": fastmath,
        "cache": True,
    }
    return njit(**options) if function is None else njit(**options)(function)


def kernel(function: Callable[..., None]) -> Any:
    """Compile a function of a block of integers, which is shipped with the package."""
    dispatcher = njit(nogil=True, error_model="numpy", _nrt=False, cache=True)(function)
    KERNELS[function.__module__, function.__name__] = dispatcher
    return dispatcher


def _view(array: Any, builder_arguments: Any) -> Any:
    """An array of this type at an address, with the given shape."""
    context, builder, given = builder_arguments
    view = make_array(array)(context, builder)
    item_bytes = context.get_constant(types.intp, array.dtype.bitwidth // 8)
    strides = [item_bytes]
    for extent in given[:1:-1]:
        strides.insert(0, builder.mul(strides[0], extent))
    populate_array(
        view,
        data=builder.inttoptr(given[0], view.data.type),
        shape=given[1:],
        strides=strides,
        itemsize=item_bytes,
        meminfo=None,
        parent=None,
    )
    return view._getvalue()


@intrinsic
def vector(context: Any, start: Any, n: Any) -> Any:
    """``vector(start, n)``: n numbers at an address."""
    array = types.Array(types.float64, 1, "C")

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _view(array, (context, builder, given))

    return array(types.int64, types.intp), build


@intrinsic
def matrix(context: Any, start: Any, n: Any, m: Any) -> Any:
    """``matrix(start, n, m)``: n rows of m numbers at an address."""
    array = types.Array(types.float64, 2, "C")

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _view(array, (context, builder, given))

    return array(types.int64, types.intp, types.intp), build


@intrinsic
def singles(context: Any, start: Any, n: Any, m: Any) -> Any:
    """``singles(start, n, m)``: n rows of m numbers in single precision at an address."""
    array = types.Array(types.float32, 2, "C")

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _view(array, (context, builder, given))

    return array(types.int64, types.intp, types.intp), build


@intrinsic
def integers(context: Any, start: Any, n: Any) -> Any:
    """``integers(start, n)``: n 64-bit integers at an address."""
    array = types.Array(types.int64, 1, "C")

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _view(array, (context, builder, given))

    return array(types.int64, types.intp), build


@intrinsic
def address(context: Any, array: Any) -> Any:
    """``address(array)``: the address of its first element."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, given[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), build


@intrinsic
def numbers(context: Any, first: Any, second: Any) -> Any:
    """``numbers(first, second)``: the address of two 32-bit integers, four bytes apart, that live as long as the call."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        pair = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(32), 2))
        start = builder.ptrtoint(pair, ir.IntType(64))
        for k, value in enumerate(given):
            _store(builder, builder.add(start, ir.Constant(ir.IntType(64), 4 * k)), value)
        return start

    return types.int64(types.int64, types.int64), build


@intrinsic
def put(context: Any, at: Any, value: Any) -> Any:
    """``put(at, value)``: store a 32-bit integer at an address."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _store(builder, *given)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), build


@intrinsic
def integer(context: Any, at: Any) -> Any:
    """``integer(at)``: the 32-bit integer at an address."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        pointer = builder.inttoptr(given[0], ir.IntType(32).as_pointer())
        return builder.sext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), build


def _store(builder: Any, at: Any, value: Any) -> None:
    pointer = builder.inttoptr(at, ir.IntType(32).as_pointer())
    builder.store(builder.trunc(value, ir.IntType(32)), pointer)


@intrinsic
def as_bits(context: Any, number: Any) -> Any:
    """``as_bits(number)``: the bits of a float as an integer."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], ir.IntType(64))

    return types.int64(types.float64), build


@intrinsic
def as_number(context: Any, bits: Any) -> Any:
    """``as_number(bits)``: the float with these bits."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], ir.DoubleType())

    return types.float64(types.int64), build
