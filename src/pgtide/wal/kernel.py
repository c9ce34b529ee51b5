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

import numpy as np

from pgtide.wal import layout as f
from pgtide.wal.memory import (
    compiled,
    copy_bytes,
    get_field,
    inlined,
    load8,
    load16_be,
    load32,
    load32_be,
    load64,
    load64_be,
    set_field,
    store8,
    store32,
    store64,
)


@inlined
def _find_slot(relations: f.Relations, mask: int, oid: int) -> int:
    """The slot of a relation in the open-addressing table, or ABSENT."""
    at = (oid * f.HASH_FACTOR) & mask
    key = load64(relations.keys + 8 * at)
    while key != 0:
        if key == oid:
            return load32(relations.slots + 4 * at)
        at = (at + 1) & mask
        key = load64(relations.keys + 8 * at)
    return f.ABSENT


@inlined
def _tuple(
    at: int, end: int, columns: int, state: int, values_at: int, side: f.Side, unchanged: int
) -> int:
    """Append one TupleData to a side; returns where it ends, or -1 with ERROR set."""
    if at + 2 > end:
        set_field(state, f.ERROR, f.TRUNCATED)
        return -1
    if load16_be(at) != columns:
        set_field(state, f.ERROR, f.COLUMN_COUNT)
        return -1
    at += 2
    count = get_field(state, values_at)
    used = get_field(state, values_at + 1)
    for index in range(columns):
        if at >= end:
            set_field(state, f.ERROR, f.TRUNCATED)
            return -1
        kind = load8(at)
        at += 1
        if kind == 116:  # t: text
            if at + 4 > end:
                set_field(state, f.ERROR, f.TRUNCATED)
                return -1
            size = load32_be(at)
            at += 4
            if size > end - at:
                set_field(state, f.ERROR, f.TRUNCATED)
                return -1
            copy_bytes(side.data + used, at, size)
            used += size
            at += size
            store8(side.valid + count, 1)
        elif kind == 110:  # n: null
            store8(side.valid + count, 0)
        elif kind == 117 and values_at == f.AFTER_VALUES:  # u: unchanged TOAST, not sent
            store8(side.valid + count, 0)
            store32(unchanged + 4 * get_field(state, f.UNCHANGED), index)
            set_field(state, f.UNCHANGED, get_field(state, f.UNCHANGED) + 1)
        else:
            set_field(state, f.ERROR, f.VALUE_KIND)
            return -1
        count += 1
        store32(side.offsets + 4 * count, used)
    set_field(state, values_at, count)
    set_field(state, values_at + 1, used)
    return at


@inlined
def _begin(at: int, end: int, state: int) -> bool:
    if end - at != 21:
        set_field(state, f.ERROR, f.TRUNCATED)
        return False
    if get_field(state, f.IN_TRANSACTION) != 0:
        set_field(state, f.ERROR, f.INSIDE_TRANSACTION)
        return False
    lsn = load64_be(at + 1)
    committed_at = load64_be(at + 9)
    if lsn <= 0 or not f.FIRST_TIME <= committed_at < f.LAST_TIME:
        set_field(state, f.ERROR, f.IMPOSSIBLE)
        return False
    set_field(state, f.LSN, lsn)
    set_field(state, f.COMMITTED_AT, committed_at)
    set_field(state, f.XID, load32_be(at + 17))
    set_field(state, f.SEQ, 0)
    set_field(state, f.EMITTED, 0)
    set_field(state, f.EMITTED_HERE, 0)
    set_field(state, f.IN_TRANSACTION, 1)
    # A commit record that starts before V ends at or before it: V is a record boundary.
    set_field(state, f.SKIP, 1 if lsn < get_field(state, f.RESUME) else 0)
    return True


@inlined
def _commit(at: int, end: int, state: int, last: int) -> bool:
    if end - at != 26:
        set_field(state, f.ERROR, f.TRUNCATED)
        return False
    if get_field(state, f.IN_TRANSACTION) == 0:
        set_field(state, f.ERROR, f.OUTSIDE_TRANSACTION)
        return False
    lsn = get_field(state, f.LSN)
    end_lsn = load64_be(at + 10)
    skipped = get_field(state, f.SKIP) == 1
    if load64_be(at + 2) != lsn or end_lsn <= lsn:
        set_field(state, f.ERROR, f.BAD_COMMIT)
        return False
    if skipped != (end_lsn <= get_field(state, f.RESUME)):
        set_field(state, f.ERROR, f.BAD_COMMIT)
        return False
    set_field(state, f.IN_TRANSACTION, 0)
    if skipped:
        return True
    if get_field(state, f.EMITTED_HERE) > 0:
        store8(last + get_field(state, f.ROWS) - 1, 1)
    elif get_field(state, f.EMITTED) > 0:
        set_field(state, f.PATCH, 1)
    set_field(state, f.COMPLETE, get_field(state, f.ROWS))
    set_field(state, f.END, end_lsn)
    return True


@inlined
def _row(
    at: int, end: int, columns: int, state: int, before: f.Side, after: f.Side, rows: f.Rows
) -> bool:
    """Append the tuples of one Insert, Update or Delete message as row ``ROWS``."""
    row = get_field(state, f.ROWS)
    kind = load8(at)
    part = load8(at + 5)
    at += 6
    old = new = 0
    if part == 75 or part == 79:  # K, O: the old key or the old row
        if kind == 73:
            set_field(state, f.ERROR, f.BAD_KIND)
            return False
        at = _tuple(at, end, columns, state, f.BEFORE_VALUES, before, rows.unchanged)
        if at < 0:
            return False
        old = 1
        if kind == 85:
            if at >= end:
                set_field(state, f.ERROR, f.TRUNCATED)
                return False
            part = load8(at)
            at += 1
    if kind != 68:
        if part != 78:  # N: the new row
            set_field(state, f.ERROR, f.BAD_KIND)
            return False
        at = _tuple(at, end, columns, state, f.AFTER_VALUES, after, rows.unchanged)
        if at < 0:
            return False
        new = 1
    elif old == 0:
        set_field(state, f.ERROR, f.BAD_KIND)
        return False
    if at != end:
        set_field(state, f.ERROR, f.TRAILING)
        return False
    store8(before.sent + row, old)
    store8(after.sent + row, new)
    store8(rows.op + row, f.INSERT if kind == 73 else (f.UPDATE if kind == 85 else f.DELETE))
    return True


@inlined
def _close_row(state: int, slot: int, before: f.Side, after: f.Side, rows: f.Rows) -> None:
    """Fill what every row has and count it; its op and tuples are already in place."""
    row = get_field(state, f.ROWS)
    store32(rows.slot + 4 * row, slot)
    store64(rows.lsn + 8 * row, get_field(state, f.LSN))
    store64(rows.seq + 8 * row, get_field(state, f.SEQ) - 1)
    store64(rows.xid + 8 * row, get_field(state, f.XID))
    store64(rows.committed_at + 8 * row, get_field(state, f.COMMITTED_AT))
    store8(rows.last + row, 0)
    store32(before.rows + 4 * (row + 1), get_field(state, f.BEFORE_VALUES))
    store32(after.rows + 4 * (row + 1), get_field(state, f.AFTER_VALUES))
    store32(rows.unchanged_rows + 4 * (row + 1), get_field(state, f.UNCHANGED))
    set_field(state, f.ROWS, row + 1)
    set_field(state, f.EMITTED_HERE, get_field(state, f.EMITTED_HERE) + 1)


@compiled
def close_row(state: int, slot: int, before: f.Side, after: f.Side, rows: f.Rows) -> None:
    """The same for rows that do not come from the kernel."""
    _close_row(state, slot, before, after, rows)


@compiled
def decode_rows(
    buf: int, starts: int, ends: int, first: int, count: int, state: int,
    relations: f.Relations, mask: int, before: f.Side, after: f.Side, rows: f.Rows, room: int,
) -> tuple[int, int]:  # fmt: skip
    """Decode messages [first, count); returns (why it stopped, index of the message there)."""
    cached_oid = np.int64(-1)
    slot = np.int64(f.ABSENT)
    for index in range(first, count):
        at = buf + load64(starts + 8 * index)
        end = buf + load64(ends + 8 * index)
        if at >= end:
            set_field(state, f.ERROR, f.TRUNCATED)
            return f.FAILED, index
        kind = load8(at)
        if kind == 66:  # B
            if not _begin(at, end, state):
                return f.FAILED, index
            continue
        if kind == 67:  # C
            if not _commit(at, end, state, rows.last):
                return f.FAILED, index
            continue
        if kind != 73 and kind != 85 and kind != 68:  # not I, U, D
            return f.OTHER_MESSAGE, index
        if end - at < 6:
            set_field(state, f.ERROR, f.TRUNCATED)
            return f.FAILED, index
        if get_field(state, f.IN_TRANSACTION) == 0:
            set_field(state, f.ERROR, f.OUTSIDE_TRANSACTION)
            return f.FAILED, index
        if get_field(state, f.SKIP) == 1:
            continue
        if get_field(state, f.ROWS) >= room:
            return f.ROOM, index
        oid = load32_be(at + 1)
        if oid != cached_oid:
            slot = _find_slot(relations, mask, oid)
            cached_oid = oid
        if slot == f.ABSENT:
            set_field(state, f.ERROR, f.UNKNOWN_RELATION)
            return f.FAILED, index
        set_field(state, f.SEQ, get_field(state, f.SEQ) + 1)
        if slot == f.UNWANTED:
            set_field(state, f.FILTERED, get_field(state, f.FILTERED) + 1)
            continue
        if not _row(at, end, load32(relations.widths + 4 * slot), state, before, after, rows):
            return f.FAILED, index
        _close_row(state, slot, before, after, rows)
    return f.DONE, count
