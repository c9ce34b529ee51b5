"""The hot loop: pgoutput row messages into flat arrays, compiled, without the GIL.

``decode_rows`` walks a chunk of messages and handles what is frequent: Begin,
Commit, Insert, Update, Delete. At anything else, or at a relation it does not
know, it returns; the caller deals with that one message and calls again at the
next index. All reads are checked against the end of their message, so no input
can make it read past its chunk: malformed messages end with a code in ``ERROR``.
Arrays come as addresses, see ``memory``; the outputs are sized for the worst case.

Message layout: PostgreSQL manual, "Logical Replication Message Formats",
protocol version 1 with text values.
"""

# Types below are numba's: its integers are not Python's, and it compiles what it is given.
# mypy: disable-error-code="return-value, no-any-return, misc, call-arg"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pgtide.wal.memory import (
    compiled,
    copy_bytes,
    inlined,
    load8,
    load16_be,
    load32,
    load32_be,
    load64,
    load64_be,
    store8,
    store32,
    store64,
)

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


class Relations(NamedTuple):
    """Relation oid to slot, open addressing; a slot's number of columns."""

    keys: Any  # int64
    slots: Any  # int32
    widths: Any  # int32


class Side(NamedTuple):
    """One of before and after: lists of texts in Arrow's layout."""

    rows: Any  # int32: list offsets, one more than rows
    sent: Any  # uint8, 1: the list is there
    offsets: Any  # int32: text offsets, one more than values
    valid: Any  # uint8
    data: Any  # uint8


class Rows(NamedTuple):
    """The columns that are not lists of texts."""

    op: Any  # uint8
    slot: Any  # int32
    lsn: Any  # int64
    seq: Any  # int64
    xid: Any  # int64
    committed_at: Any  # int64
    last: Any  # uint8
    unchanged_rows: Any  # int32: list offsets
    unchanged: Any  # int32


@inlined
def _get(state: int, field: int) -> int:
    return load64(state + 8 * field)


@inlined
def _set(state: int, field: int, value: int) -> None:
    store64(state + 8 * field, value)


@inlined
def _find_slot(relations: Relations, mask: int, oid: int) -> int:
    """The slot of a relation in the open-addressing table, or ABSENT."""
    at = (oid * HASH_FACTOR) & mask
    key = load64(relations.keys + 8 * at)
    while key != 0:
        if key == oid:
            return load32(relations.slots + 4 * at)
        at = (at + 1) & mask
        key = load64(relations.keys + 8 * at)
    return ABSENT


@inlined
def _tuple(
    at: int, end: int, columns: int, state: int, values_at: int, side: Side, unchanged: int
) -> int:
    """Append one TupleData to a side; returns where it ends, or -1 with ERROR set."""
    if at + 2 > end:
        _set(state, ERROR, TRUNCATED)
        return -1
    if load16_be(at) != columns:
        _set(state, ERROR, COLUMN_COUNT)
        return -1
    at += 2
    count = _get(state, values_at)
    used = _get(state, values_at + 1)
    for index in range(columns):
        if at >= end:
            _set(state, ERROR, TRUNCATED)
            return -1
        kind = load8(at)
        at += 1
        if kind == 116:  # t: text
            if at + 4 > end:
                _set(state, ERROR, TRUNCATED)
                return -1
            size = load32_be(at)
            at += 4
            if size > end - at:
                _set(state, ERROR, TRUNCATED)
                return -1
            copy_bytes(side.data + used, at, size)
            used += size
            at += size
            store8(side.valid + count, 1)
        elif kind == 110:  # n: null
            store8(side.valid + count, 0)
        elif kind == 117:  # u: unchanged TOAST, not sent
            store8(side.valid + count, 0)
            if values_at == AFTER_VALUES:
                store32(unchanged + 4 * _get(state, UNCHANGED), index)
                _set(state, UNCHANGED, _get(state, UNCHANGED) + 1)
        else:
            _set(state, ERROR, VALUE_KIND)
            return -1
        count += 1
        store32(side.offsets + 4 * count, used)
    _set(state, values_at, count)
    _set(state, values_at + 1, used)
    return at


@inlined
def _begin(at: int, end: int, state: int) -> bool:
    if end - at != 21:
        _set(state, ERROR, TRUNCATED)
        return False
    if _get(state, IN_TRANSACTION) != 0:
        _set(state, ERROR, INSIDE_TRANSACTION)
        return False
    lsn = load64_be(at + 1)
    committed_at = load64_be(at + 9)
    if lsn <= 0 or not FIRST_TIME <= committed_at < LAST_TIME:
        _set(state, ERROR, IMPOSSIBLE)
        return False
    _set(state, LSN, lsn)
    _set(state, COMMITTED_AT, committed_at)
    _set(state, XID, load32_be(at + 17))
    _set(state, SEQ, 0)
    _set(state, EMITTED, 0)
    _set(state, EMITTED_HERE, 0)
    _set(state, IN_TRANSACTION, 1)
    # A commit record that starts before V ends at or before it: V is a record boundary.
    _set(state, SKIP, 1 if lsn < _get(state, RESUME) else 0)
    return True


@inlined
def _commit(at: int, end: int, state: int, last: int) -> bool:
    if end - at != 26:
        _set(state, ERROR, TRUNCATED)
        return False
    if _get(state, IN_TRANSACTION) == 0:
        _set(state, ERROR, OUTSIDE_TRANSACTION)
        return False
    lsn = _get(state, LSN)
    end_lsn = load64_be(at + 10)
    skipped = _get(state, SKIP) == 1
    if load64_be(at + 2) != lsn or end_lsn <= lsn:
        _set(state, ERROR, BAD_COMMIT)
        return False
    if skipped != (end_lsn <= _get(state, RESUME)):
        _set(state, ERROR, BAD_COMMIT)
        return False
    _set(state, IN_TRANSACTION, 0)
    if skipped:
        return True
    if _get(state, EMITTED_HERE) > 0:
        store8(last + _get(state, ROWS) - 1, 1)
    elif _get(state, EMITTED) > 0:
        _set(state, PATCH, 1)
    _set(state, COMPLETE, _get(state, ROWS))
    _set(state, END, end_lsn)
    return True


@inlined
def _row(
    at: int, end: int, columns: int, state: int, before: Side, after: Side, rows: Rows
) -> bool:
    """Append the tuples of one Insert, Update or Delete message as row ``ROWS``."""
    row = _get(state, ROWS)
    kind = load8(at)
    part = load8(at + 5)
    at += 6
    old = new = 0
    if part == 75 or part == 79:  # K, O: the old key or the old row
        if kind == 73:
            _set(state, ERROR, BAD_KIND)
            return False
        at = _tuple(at, end, columns, state, BEFORE_VALUES, before, rows.unchanged)
        if at < 0:
            return False
        old = 1
        if kind == 85:
            if at >= end:
                _set(state, ERROR, TRUNCATED)
                return False
            part = load8(at)
            at += 1
    if kind != 68:
        if part != 78:  # N: the new row
            _set(state, ERROR, BAD_KIND)
            return False
        at = _tuple(at, end, columns, state, AFTER_VALUES, after, rows.unchanged)
        if at < 0:
            return False
        new = 1
    elif old == 0:
        _set(state, ERROR, BAD_KIND)
        return False
    if at != end:
        _set(state, ERROR, TRAILING)
        return False
    store8(before.sent + row, old)
    store8(after.sent + row, new)
    store8(rows.op + row, INSERT if kind == 73 else (UPDATE if kind == 85 else DELETE))
    return True


@inlined
def _close_row(state: int, slot: int, before: Side, after: Side, rows: Rows) -> None:
    """Fill what every row has and count it; its op and tuples are already in place."""
    row = _get(state, ROWS)
    store32(rows.slot + 4 * row, slot)
    store64(rows.lsn + 8 * row, _get(state, LSN))
    store64(rows.seq + 8 * row, _get(state, SEQ) - 1)
    store64(rows.xid + 8 * row, _get(state, XID))
    store64(rows.committed_at + 8 * row, _get(state, COMMITTED_AT))
    store8(rows.last + row, 0)
    store32(before.rows + 4 * (row + 1), _get(state, BEFORE_VALUES))
    store32(after.rows + 4 * (row + 1), _get(state, AFTER_VALUES))
    store32(rows.unchanged_rows + 4 * (row + 1), _get(state, UNCHANGED))
    _set(state, ROWS, row + 1)
    _set(state, EMITTED_HERE, _get(state, EMITTED_HERE) + 1)


@compiled
def close_row(state: int, slot: int, before: Side, after: Side, rows: Rows) -> None:
    """The same for rows that do not come from the kernel."""
    _close_row(state, slot, before, after, rows)


@compiled
def decode_rows(
    buf: int, starts: int, ends: int, first: int, count: int, state: int,
    relations: Relations, mask: int, before: Side, after: Side, rows: Rows, room: int,
) -> tuple[int, int]:  # fmt: skip
    """Decode messages [first, count); returns (why it stopped, index of the message there)."""
    cached_oid = np.int64(-1)
    slot = np.int64(ABSENT)
    for index in range(first, count):
        at = buf + load64(starts + 8 * index)
        end = buf + load64(ends + 8 * index)
        if at >= end:
            _set(state, ERROR, TRUNCATED)
            return FAILED, index
        kind = load8(at)
        if kind == 66:  # B
            if not _begin(at, end, state):
                return FAILED, index
            continue
        if kind == 67:  # C
            if not _commit(at, end, state, rows.last):
                return FAILED, index
            continue
        if kind != 73 and kind != 85 and kind != 68:  # not I, U, D
            return OTHER_MESSAGE, index
        if end - at < 6:
            _set(state, ERROR, TRUNCATED)
            return FAILED, index
        if _get(state, IN_TRANSACTION) == 0:
            _set(state, ERROR, OUTSIDE_TRANSACTION)
            return FAILED, index
        if _get(state, SKIP) == 1:
            continue
        if _get(state, ROWS) >= room:
            return ROOM, index
        oid = load32_be(at + 1)
        if oid != cached_oid:
            slot = _find_slot(relations, mask, oid)
            cached_oid = oid
        if slot == ABSENT:
            _set(state, ERROR, UNKNOWN_RELATION)
            return FAILED, index
        _set(state, SEQ, _get(state, SEQ) + 1)
        if slot == UNWANTED:
            _set(state, FILTERED, _get(state, FILTERED) + 1)
            continue
        if not _row(at, end, load32(relations.widths + 4 * slot), state, before, after, rows):
            return FAILED, index
        _close_row(state, slot, before, after, rows)
    return DONE, count
