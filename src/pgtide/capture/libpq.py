"""Draining COPY data from libpq in compiled code.

``PGconn.get_copy_data`` in a Python loop costs 3 µs a message; the same libpq
calls from a compiled loop that holds no GIL cost a third of that. The functions
are looked up in the very libpq that psycopg loaded (through its extension
module), so a ``pgconn_ptr`` of psycopg's is valid here.
"""

# Types below are numba's, and its intrinsics take one argument less than their definition.
# mypy: disable-error-code="return-value, no-any-return, misc, call-arg, no-untyped-call"

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from psycopg import pq

from pgtide.errors import EnvironmentMissing
from pgtide.wal.kernel import Bytes, Ints, compiled, copy_bytes

# Slots of the drain state.
USED = 0  # bytes in the buffer
COUNT = 1  # messages found
PENDING = 2  # address of a message that did not fit, owned by libpq
PENDING_SIZE = 3
WAL_END = 4  # newest WAL position the server named
REPLY = 5  # 1: the server asked for feedback
HEADER = 6  # 1: the binary COPY header is still to come
KEEPALIVE = 7  # newest position of a keep-alive
RECEIVED = 8  # bytes received, over all chunks
STATE_SIZE = 9

# What drain returns.
WOULD_BLOCK = 0
FULL = 1
FINISHED = 2
BROKEN = 3
MALFORMED = 4

# Binary COPY begins with its signature, no flags and an empty extension area.
_COPY_HEADER = np.frombuffer(b"PGCOPY\n\xff\r\n\0" + bytes(8), np.uint8)
_XLOG_HEADER_BYTES = 25  # 'w', start, end, send time
_KEEPALIVE_BYTES = 18


class Functions:
    """Addresses of the libpq functions that the compiled loop calls."""

    def __init__(self) -> None:
        if pq.__impl__ == "python":
            raise EnvironmentMissing(
                "psycopg's compiled libpq is not installed",
                hint="Run: pip install 'psycopg[binary]'",
            )
        module = __import__(pq.PGconn.__module__, fromlist=["__file__"])
        # dlsym on the extension module's handle also searches the libpq it is linked with.
        library = ctypes.CDLL(module.__file__)
        self.get = _address(library.PQgetCopyData)
        self.consume = _address(library.PQconsumeInput)
        self.free = _address(library.PQfreemem)


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _call(builder: Any, result: Any, address: Any, *arguments: Any) -> Any:
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.inttoptr(address, signature.as_pointer()), arguments)


@intrinsic
def _get_copy_data(typingctx: Any, address: Any, conn: Any, cell: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        asynchronous = ir.Constant(ir.IntType(32), 1)
        result = _call(builder, ir.IntType(32), args[0], args[1], args[2], asynchronous)
        return builder.sext(result, ir.IntType(64))

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def _consume_input(typingctx: Any, address: Any, conn: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(_call(builder, ir.IntType(32), *args), ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _free(typingctx: Any, address: Any, pointer: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(builder, ir.VoidType(), *args)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled
def _be32(buf: Bytes, at: int) -> int:
    value = np.int64(0)
    for index in range(4):
        value = (value << 8) | np.int64(buf[at + index])
    return value


@compiled
def _be64(buf: Bytes, at: int) -> int:
    return (_be32(buf, at) << 32) | _be32(buf, at + 4)


@compiled
def _streamed(buf: Bytes, at: int, size: int, state: Ints, starts: Ints, ends: Ints) -> bool:
    """Register one message of the streaming protocol."""
    if buf[at] == 119:  # w: XLogData
        if size < _XLOG_HEADER_BYTES:
            return False
        state[WAL_END] = max(state[WAL_END], _be64(buf, at + 9))
        starts[state[COUNT]] = at + _XLOG_HEADER_BYTES
        ends[state[COUNT]] = at + size
        state[COUNT] += 1
        state[USED] = at + size
        return True
    if buf[at] == 107:  # k: keep-alive
        if size != _KEEPALIVE_BYTES:
            return False
        end = _be64(buf, at + 1)
        state[WAL_END] = max(state[WAL_END], end)
        state[KEEPALIVE] = end
        if buf[at + 17] == 1:
            state[REPLY] = 1
        return True
    return False


@compiled
def _copied(buf: Bytes, at: int, size: int, state: Ints, starts: Ints, ends: Ints) -> bool:
    """Register one row of a binary COPY of a single bytea column."""
    end = at + size
    if state[HEADER] == 1:
        if size < _COPY_HEADER.shape[0]:
            return False
        for index in range(_COPY_HEADER.shape[0]):
            if buf[at + index] != _COPY_HEADER[index]:
                return False
        at += _COPY_HEADER.shape[0]
        state[HEADER] = 0
        if at == end:
            return True
    if end - at < 2:
        return False
    fields = (np.int64(buf[at]) << 8) | np.int64(buf[at + 1])
    if fields == 65535:  # the trailer
        return end - at == 2
    if fields != 1 or end - at < 6 or _be32(buf, at + 2) != end - at - 6:
        return False
    starts[state[COUNT]] = at + 6
    ends[state[COUNT]] = end
    state[COUNT] += 1
    state[USED] = end
    return True


@compiled
def drain(
    get: int, consume: int, free: int, conn: int, cell: Ints, streaming: bool,
    buf: Bytes, starts: Ints, ends: Ints, state: Ints,
) -> int:  # fmt: skip
    """Move messages from libpq into the buffer until there are none, or no room."""
    consumed = False
    while state[COUNT] < starts.shape[0]:
        if state[PENDING] != 0:
            size = state[PENDING_SIZE]
            pointer = state[PENDING]
        else:
            size = _get_copy_data(get, conn, cell.ctypes.data)
            if size == 0:
                if consumed:
                    return WOULD_BLOCK
                if _consume_input(consume, conn) == 0:
                    return BROKEN
                consumed = True
                continue
            if size == -1:
                return FINISHED
            if size < 0:
                return BROKEN
            pointer = cell[0]
        consumed = False
        at = state[USED]
        if at + size > buf.shape[0]:
            state[PENDING] = pointer
            state[PENDING_SIZE] = size
            return FULL
        copy_bytes(buf.ctypes.data + at, pointer, size)
        _free(free, pointer)
        state[PENDING] = 0
        state[RECEIVED] += size
        if streaming:
            good = _streamed(buf, at, size, state, starts, ends)
        else:
            good = _copied(buf, at, size, state, starts, ends)
        if not good:
            return MALFORMED
    return FULL
