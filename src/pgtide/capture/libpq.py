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
import struct
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from psycopg import pq

from pgtide.errors import EnvironmentMissing
from pgtide.wal.memory import (
    compiled,
    copy_bytes,
    get_field,
    inlined,
    load8,
    load16_be,
    load32_be,
    load64,
    load64_be,
    set_field,
    store64,
)

# Slots of the drain state.
USED = 0  # bytes in the buffer
COUNT = 1  # messages found
PENDING = 2  # address of a message that did not fit, owned by libpq
PENDING_SIZE = 3
REPLY = 4  # 1: the server asked for feedback
HEADER = 5  # 1: the binary COPY header is still to come
KEEPALIVE = 6  # newest position of a keep-alive
TOTAL = 7  # messages received since this was last set to zero
STATE_SIZE = 8

# What the frames of a session are.
STREAMED = 0  # of the streaming protocol
COPIED = 1  # rows of a binary COPY of a single bytea column
LINES = 2  # rows of a COPY in text format

# What drain returns.
WOULD_BLOCK = 0
FULL = 1
FINISHED = 2
BROKEN = 3
MALFORMED = 4

# Binary COPY begins with its signature, no flags and an empty extension area.
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_HEADER_BYTES = len(_COPY_HEADER)
_COPY_HEADER_1, _COPY_HEADER_2 = struct.unpack_from(">qq", _COPY_HEADER)
_XLOG_HEADER_BYTES = 25  # 'w', start, end, send time
_KEEPALIVE_BYTES = 18

# A walsender waits when some 280 small messages fill the buffer of a unix socket, which takes
# it half a millisecond. Drain of 960 000: 2.1 s with naps of 0.2 ms, 3.0 s with 0.5 ms.
NAP_US = 150


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
        self.sleep = _address(ctypes.CDLL(None).usleep)


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


@intrinsic
def _sleep(typingctx: Any, address: Any, microseconds: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(builder, ir.IntType(32), args[0], builder.trunc(args[1], ir.IntType(32)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@inlined
def _register(buf: int, start: int, end: int, starts: int, ends: int, state: int) -> None:
    """Count one message of the plugin's, which is in the buffer."""
    count = get_field(state, COUNT)
    store64(starts + 8 * count, start - buf)
    store64(ends + 8 * count, end - buf)
    set_field(state, COUNT, count + 1)
    set_field(state, TOTAL, get_field(state, TOTAL) + 1)
    set_field(state, USED, end - buf)


@inlined
def _streamed(buf: int, at: int, size: int, starts: int, ends: int, state: int) -> bool:
    """Register one message of the streaming protocol."""
    if size == 0:
        return False
    kind = load8(at)
    if kind == 119 and size >= _XLOG_HEADER_BYTES:  # w: XLogData
        _register(buf, at + _XLOG_HEADER_BYTES, at + size, starts, ends, state)
        return True
    if kind == 107 and size == _KEEPALIVE_BYTES:  # k: keep-alive
        set_field(state, KEEPALIVE, load64_be(at + 1))
        if load8(at + 17) == 1:
            set_field(state, REPLY, 1)
        return True
    return False


@inlined
def _copied(buf: int, at: int, size: int, starts: int, ends: int, state: int) -> bool:
    """Register one row of a binary COPY of a single bytea column."""
    end = at + size
    if get_field(state, HEADER) == 1:
        if size < _COPY_HEADER_BYTES:
            return False
        if load64_be(at) != _COPY_HEADER_1 or load64_be(at + 8) != _COPY_HEADER_2:
            return False
        if load32_be(at + 15) != 0:
            return False
        at += _COPY_HEADER_BYTES
        set_field(state, HEADER, 0)
        if at == end:
            return True
    if end - at < 2:
        return False
    fields = load16_be(at)
    if fields == 65535:  # the trailer
        return end - at == 2
    if fields != 1 or end - at < 6 or load32_be(at + 2) != end - at - 6:
        return False
    _register(buf, at + 6, end, starts, ends, state)
    return True


@inlined
def _line(buf: int, at: int, size: int, starts: int, ends: int, state: int) -> bool:
    """Register one row of a COPY in text format: the server sends each by itself."""
    if size == 0 or load8(at + size - 1) != 10:  # newline
        return False
    _register(buf, at, at + size, starts, ends, state)
    return True


@compiled
def drain(
    get: int, consume: int, free: int, sleep: int, conn: int, cell: int, mode: int,
    naps: int, buf: int, capacity: int, starts: int, ends: int, room: int, state: int,
) -> int:  # fmt: skip
    """Move messages from libpq into the buffer until no more come, or there is no room.

    The walsender sends every message by itself, and waking up for each costs more than all
    the rest: while they keep coming we sleep between two looks, up to ``naps`` times.
    """
    consumed = False
    seen = get_field(state, COUNT)
    while get_field(state, COUNT) < room:
        pointer = get_field(state, PENDING)
        if pointer != 0:
            size = get_field(state, PENDING_SIZE)
        else:
            size = _get_copy_data(get, conn, cell)
            if size == 0:
                if consumed:
                    if naps <= 0 or get_field(state, COUNT) == seen:
                        return WOULD_BLOCK
                    naps -= 1
                    seen = get_field(state, COUNT)
                    _sleep(sleep, NAP_US)
                if _consume_input(consume, conn) == 0:
                    return BROKEN
                consumed = True
                continue
            if size == -1:
                return FINISHED
            if size < 0:
                return BROKEN
            pointer = load64(cell)
        consumed = False
        used = get_field(state, USED)
        if used + size > capacity:
            set_field(state, PENDING, pointer)
            set_field(state, PENDING_SIZE, size)
            return FULL
        copy_bytes(buf + used, pointer, size)
        _free(free, pointer)
        set_field(state, PENDING, 0)
        if mode == STREAMED:
            good = _streamed(buf, buf + used, size, starts, ends, state)
        elif mode == COPIED:
            good = _copied(buf, buf + used, size, starts, ends, state)
        else:
            good = _line(buf, buf + used, size, starts, ends, state)
        if not good:
            return MALFORMED
    return FULL
