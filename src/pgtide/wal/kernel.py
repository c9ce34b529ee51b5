"""The hot loop: pgoutput row messages into flat arrays, compiled, without the GIL.

``decode_rows`` walks a chunk of messages and handles what is frequent: Begin,
Commit, Insert, Update, Delete. At anything else, or at a relation it does not
know, it returns; the caller deals with that one message and calls again at the
next index. All reads are checked against the end of their message, so no input
can make it read past its chunk: malformed messages end with a code in ``ERROR``.

Message layout: PostgreSQL manual, "Logical Replication Message Formats",
protocol version 1 with text values.
"""

# Types below are numba's: its integers are not Python's, and it compiles what it is given.
# mypy: disable-error-code="return-value, no-any-return, misc, call-arg, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

# Slots of the state vector, which lives across chunks.
LSN = 0  # commit LSN of the open transaction
XID = 1
COMMITTED_AT = 2  # microseconds since 2000-01-01
SEQ = 3  # next index inside the open transaction
IN_TRANSACTION = 4
SKIP = 5  # 1: the open transaction is in the log already
EMITTED = 6  # rows of the open transaction emitted in earlier chunks
RESUME = 7  # V: what ends at or before this LSN is in the log
END = 8  # end LSN of the last committed transaction
PATCH = 9  # 1: the row kept back from the previous chunk was its transaction's last
ROWS = 10  # rows in the outputs
COMPLETE = 11  # rows in the outputs that belong to committed transactions
BEFORE_VALUES = 12
BEFORE_BYTES = 13
AFTER_VALUES = 14
AFTER_BYTES = 15
UNCHANGED = 16
ERROR = 17
FILTERED = 18  # rows of tables that the configuration leaves out
EMITTED_HERE = 19  # rows of the open transaction emitted in this chunk
STATE_SIZE = 20

# Why decode_rows returned.
DONE = 0
OTHER_MESSAGE = 1
FAILED = 2
ROOM = 3

# Values of ERROR.
TRUNCATED = 1
BAD_TUPLE = 2
UNKNOWN_RELATION = 3
COLUMN_COUNT = 4
OUTSIDE_TRANSACTION = 5
INSIDE_TRANSACTION = 6
BAD_COMMIT = 7
BAD_KIND = 8
TRAILING = 9
VALUE_KIND = 10
IMPOSSIBLE = 11

# Codes of the op column, indexes into pgtide.log.schema.OPS.
INSERT = 0
UPDATE = 1
DELETE = 2

# Commit times that are dates: year 1 to 9999, in microseconds since 2000-01-01.
FIRST_TIME = -63_082_281_600_000_000
LAST_TIME = 252_455_616_000_000_000

UNWANTED = -2  # slot value: the table is left out by configuration
ABSENT = -1  # slot value: no such relation
HASH_FACTOR = 0x9E3779B1

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]


class Relations(NamedTuple):
    """Relation oid to slot, open addressing; a slot's number of columns."""

    keys: Ints
    slots: Int32s
    widths: Int32s


class Side(NamedTuple):
    """One of before and after: lists of texts in Arrow's layout."""

    rows: Int32s  # list offsets, one more than rows
    sent: Bytes  # 1: the list is there
    offsets: Int32s  # text offsets, one more than values
    valid: Bytes
    data: Bytes


class Rows(NamedTuple):
    """The columns that are not lists of texts."""

    op: Bytes
    slot: Int32s
    lsn: Ints
    seq: Ints
    xid: Ints
    committed_at: Ints
    last: Bytes
    unchanged_rows: Int32s
    unchanged: Int32s


def compiled(function: Any) -> Any:
    """Compile on first use, keep the machine code on disk, run without the GIL."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the package nor the user's cache can be written
        return njit(nogil=True)(function)


def inlined(function: Any) -> Any:
    """Compile into the caller: a call would count references of every array it passes."""
    return njit(inline="always")(function)


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy between addresses: several times as fast as a loop over array elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder, builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte), args[2], 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@inlined
def _u16(buf: Bytes, at: int) -> int:
    return (np.int64(buf[at]) << 8) | np.int64(buf[at + 1])


@inlined
def _u32(buf: Bytes, at: int) -> int:
    return (
        (np.int64(buf[at]) << 24)
        | (np.int64(buf[at + 1]) << 16)
        | (np.int64(buf[at + 2]) << 8)
        | np.int64(buf[at + 3])
    )


@inlined
def _u64(buf: Bytes, at: int) -> int:
    return (_u32(buf, at) << 32) | _u32(buf, at + 4)


@inlined
def find_slot(keys: Ints, slots: Int32s, oid: int) -> int:
    """The slot of a relation in the open-addressing table, or ABSENT."""
    mask = keys.shape[0] - 1
    at = (oid * HASH_FACTOR) & mask
    while keys[at] != 0:
        if keys[at] == oid:
            return slots[at]
        at = (at + 1) & mask
    return ABSENT


@inlined
def _tuple(
    buf: Bytes, at: int, end: int, columns: int, state: Ints, values_at: int, side: Side,
    unchanged: Int32s,
) -> int:  # fmt: skip
    """Append one TupleData to a side; returns where it ends, or -1 with ERROR set."""
    if at + 2 > end:
        state[ERROR] = TRUNCATED
        return -1
    if _u16(buf, at) != columns:
        state[ERROR] = COLUMN_COUNT
        return -1
    at += 2
    # Looked up once: each access to a tuple's array counts references.
    offsets, valid = side.offsets, side.valid
    source, target = buf.ctypes.data, side.data.ctypes.data
    count = state[values_at]
    used = state[values_at + 1]
    for index in range(columns):
        if at >= end:
            state[ERROR] = TRUNCATED
            return -1
        kind = buf[at]
        at += 1
        if kind == 116:  # t: text
            if at + 4 > end:
                state[ERROR] = TRUNCATED
                return -1
            size = _u32(buf, at)
            at += 4
            if size > end - at:
                state[ERROR] = TRUNCATED
                return -1
            copy_bytes(target + used, source + at, size)
            used += size
            at += size
            valid[count] = 1
        elif kind == 110:  # n: null
            valid[count] = 0
        elif kind == 117:  # u: unchanged TOAST, not sent
            valid[count] = 0
            if values_at == AFTER_VALUES:
                unchanged[state[UNCHANGED]] = index
                state[UNCHANGED] += 1
        else:
            state[ERROR] = VALUE_KIND
            return -1
        count += 1
        offsets[count] = used
    state[values_at] = count
    state[values_at + 1] = used
    return at


@inlined
def _begin(buf: Bytes, at: int, end: int, state: Ints) -> bool:
    if end - at != 21:
        state[ERROR] = TRUNCATED
        return False
    if state[IN_TRANSACTION] != 0:
        state[ERROR] = INSIDE_TRANSACTION
        return False
    state[LSN] = _u64(buf, at + 1)
    state[COMMITTED_AT] = _u64(buf, at + 9)
    if state[LSN] <= 0 or not FIRST_TIME <= state[COMMITTED_AT] < LAST_TIME:
        state[ERROR] = IMPOSSIBLE
        return False
    state[XID] = _u32(buf, at + 17)
    state[SEQ] = 0
    state[EMITTED] = 0
    state[EMITTED_HERE] = 0
    state[IN_TRANSACTION] = 1
    # A commit record that starts before V ends at or before it: V is a record boundary.
    state[SKIP] = 1 if state[LSN] < state[RESUME] else 0
    return True


@inlined
def _commit(buf: Bytes, at: int, end: int, state: Ints, last: Bytes) -> bool:
    if end - at != 26:
        state[ERROR] = TRUNCATED
        return False
    if state[IN_TRANSACTION] == 0:
        state[ERROR] = OUTSIDE_TRANSACTION
        return False
    end_lsn = _u64(buf, at + 10)
    skipped = state[SKIP] == 1
    if _u64(buf, at + 2) != state[LSN] or end_lsn <= state[LSN]:
        state[ERROR] = BAD_COMMIT
        return False
    if skipped != (end_lsn <= state[RESUME]):
        state[ERROR] = BAD_COMMIT
        return False
    state[IN_TRANSACTION] = 0
    if skipped:
        return True
    if state[EMITTED_HERE] > 0:
        last[state[ROWS] - 1] = 1
    elif state[EMITTED] > 0:
        state[PATCH] = 1
    state[COMPLETE] = state[ROWS]
    state[END] = end_lsn
    return True


@inlined
def _row(
    buf: Bytes, at: int, end: int, columns: int, state: Ints, before: Side, after: Side, rows: Rows
) -> bool:  # fmt: skip
    """Append the tuples of one Insert, Update or Delete message as row ``state[ROWS]``."""
    row = state[ROWS]
    kind = buf[at]
    part = buf[at + 5]
    at += 6
    before.sent[row] = 0
    after.sent[row] = 0
    if part == 75 or part == 79:  # K, O: the old key or the old row
        if kind == 73:
            state[ERROR] = BAD_KIND
            return False
        at = _tuple(buf, at, end, columns, state, BEFORE_VALUES, before, rows.unchanged)
        if at < 0:
            return False
        before.sent[row] = 1
        if kind == 85:
            if at >= end:
                state[ERROR] = TRUNCATED
                return False
            part = buf[at]
            at += 1
    if kind != 68:
        if part != 78:  # N: the new row
            state[ERROR] = BAD_KIND
            return False
        at = _tuple(buf, at, end, columns, state, AFTER_VALUES, after, rows.unchanged)
        if at < 0:
            return False
        after.sent[row] = 1
    elif before.sent[row] == 0:
        state[ERROR] = BAD_KIND
        return False
    if at != end:
        state[ERROR] = TRAILING
        return False
    rows.op[row] = INSERT if kind == 73 else (UPDATE if kind == 85 else DELETE)
    return True


@inlined
def _close_row(state: Ints, slot: int, before: Side, after: Side, rows: Rows) -> None:
    """Fill what every row has and count it; its op and tuples are already in place."""
    row = state[ROWS]
    rows.slot[row] = slot
    rows.lsn[row] = state[LSN]
    rows.seq[row] = state[SEQ] - 1
    rows.xid[row] = state[XID]
    rows.committed_at[row] = state[COMMITTED_AT]
    rows.last[row] = 0
    before.rows[row + 1] = state[BEFORE_VALUES]
    after.rows[row + 1] = state[AFTER_VALUES]
    rows.unchanged_rows[row + 1] = state[UNCHANGED]
    state[ROWS] = row + 1
    state[EMITTED_HERE] += 1


@compiled
def close_row(state: Ints, slot: int, before: Side, after: Side, rows: Rows) -> None:
    """The same for rows that do not come from the kernel."""
    _close_row(state, slot, before, after, rows)


@compiled
def decode_rows(
    buf: Bytes, starts: Ints, ends: Ints, first: int, count: int, state: Ints,
    relations: Relations, before: Side, after: Side, rows: Rows,
) -> tuple[int, int]:  # fmt: skip
    """Decode messages [first, count); returns (why it stopped, index of the message there)."""
    cached_oid = np.int64(-1)
    slot = np.int64(ABSENT)
    for index in range(first, count):
        at = starts[index]
        end = ends[index]
        if at >= end:
            state[ERROR] = TRUNCATED
            return FAILED, index
        kind = buf[at]
        if kind == 66:  # B
            if not _begin(buf, at, end, state):
                return FAILED, index
            continue
        if kind == 67:  # C
            if not _commit(buf, at, end, state, rows.last):
                return FAILED, index
            continue
        if kind != 73 and kind != 85 and kind != 68:  # not I, U, D
            return OTHER_MESSAGE, index
        if end - at < 6:
            state[ERROR] = TRUNCATED
            return FAILED, index
        if state[IN_TRANSACTION] == 0:
            state[ERROR] = OUTSIDE_TRANSACTION
            return FAILED, index
        if state[SKIP] == 1:
            continue
        if state[ROWS] >= rows.op.shape[0]:
            return ROOM, index
        oid = _u32(buf, at + 1)
        if oid != cached_oid:
            slot = find_slot(relations.keys, relations.slots, oid)
            cached_oid = oid
        if slot == ABSENT:
            state[ERROR] = UNKNOWN_RELATION
            return FAILED, index
        state[SEQ] += 1
        if slot == UNWANTED:
            state[FILTERED] += 1
            continue
        if not _row(buf, at, end, np.int64(relations.widths[slot]), state, before, after, rows):
            return FAILED, index
        _close_row(state, slot, before, after, rows)
    return DONE, count
