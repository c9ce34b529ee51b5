"""Memory by address, for compiled loops.

Numba counts references whenever an array is passed on or looked up in a tuple, with
atomic operations: that took nine tenths of the decoder's time. Addresses are integers.
Whoever calls a loop keeps the arrays alive and answers for the bounds.
"""

# Types below are numba's, and its intrinsics take one argument less than their definition.
# mypy: disable-error-code="no-any-return, misc, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_Arrays = TypeVar("_Arrays", bound=NamedTuple)
_INT = ir.IntType(64)


def compiled(function: Any) -> Any:
    """Compile on first use, keep the machine code on disk, run without the GIL."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the package nor the user's cache can be written
        return njit(nogil=True)(function)


def inlined(function: Any) -> Any:
    """Compile into the caller."""
    return njit(inline="always")(function)


def addresses(arrays: _Arrays) -> _Arrays:
    """The same tuple with the address of each array in its place."""
    return type(arrays)(*(array.ctypes.data for array in arrays))


def _load(bits: int, *, big_endian: bool, signed: bool) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()))
        value.align = 1
        if big_endian:
            value = builder.bswap(value)
        if bits == 64:
            return value
        return builder.sext(value, _INT) if signed else builder.zext(value, _INT)

    def load(typingctx: Any, address: Any) -> Any:
        return types.int64(types.int64), generate

    return intrinsic(load)


def _store(bits: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.trunc(args[1], ir.IntType(bits)) if bits < 64 else args[1]
        place = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
        builder.store(value, place).align = 1
        return context.get_dummy_value()

    def store(typingctx: Any, address: Any, value: Any) -> Any:
        return types.void(types.int64, types.int64), generate

    return intrinsic(store)


load8 = _load(8, big_endian=False, signed=False)
load32 = _load(32, big_endian=False, signed=True)
load64 = _load(64, big_endian=False, signed=True)
load16_be = _load(16, big_endian=True, signed=False)
load32_be = _load(32, big_endian=True, signed=False)
load64_be = _load(64, big_endian=True, signed=True)
store8 = _store(8)
store32 = _store(32)
store64 = _store(64)


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy between addresses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder, builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte), args[2], 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def trailing_zeros(typingctx: Any, value: Any) -> Any:
    """How many of the lowest bits are zero; of zero itself, all 64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


@inlined
def get_field(vector: int, field: int) -> int:
    """An element of a vector of int64."""
    return load64(vector + 8 * field)


@inlined
def set_field(vector: int, field: int, value: int) -> None:
    """Change an element of a vector of int64."""
    store64(vector + 8 * field, value)
