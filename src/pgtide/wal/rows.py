"""The arrays that the kernel fills, and their way into an Arrow record batch.

A ``Workspace`` is reused from chunk to chunk. Its arrays are sized for the worst
case (every byte a value), which costs address space, not memory: pages that are
never written are never allocated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgtide.log.schema import INT_LIST, TEXT_LIST
from pgtide.wal import kernel
from pgtide.wal import layout as f
from pgtide.wal.memory import addresses
from pgtide.wal.messages import EPOCH_US

NO_TIME = np.iinfo(np.int64).min  # committed_at of what is not a transaction
SPARE_ROWS = 256

# Decoded rows: as the log's columns, with numbers for what is text there.
DECODED_SCHEMA = pa.schema(
    [
        pa.field("lsn", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("xid", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("op", pa.uint8()),
        pa.field("slot", pa.int32()),
        pa.field("before", TEXT_LIST),
        pa.field("after", TEXT_LIST),
        pa.field("unchanged", INT_LIST),
        pa.field("payload", pa.string()),
        pa.field("last", pa.bool_()),
    ]
)


class NotUtf8(ValueError):
    """A value of this row is not UTF-8."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Workspace:
    """Output arrays for chunks of up to ``capacity`` bytes and ``room`` rows."""

    def __init__(self, capacity: int, room: int) -> None:
        self.capacity = capacity
        self.room = room + SPARE_ROWS
        self.before = _side(capacity, self.room)
        self.after = _side(capacity, self.room)
        self.rows = _rows(capacity, self.room)
        self.payloads: dict[int, str] = {}
        self._locate()

    def _locate(self) -> None:
        self.addresses = addresses(self.before), addresses(self.after), addresses(self.rows)

    def grow_rows(self) -> None:
        """Make room for twice as many rows, keeping what is there."""
        self.room *= 2
        for name in ("before", "after"):
            side: f.Side = getattr(self, name)
            setattr(self, name, side._replace(rows=_grown(side.rows), sent=_grown(side.sent)))
        per_row: dict[str, Any] = self.rows._asdict()
        del per_row["unchanged"]
        self.rows = self.rows._replace(**{name: _grown(array) for name, array in per_row.items()})
        self._locate()

    def plain_row(self, state: f.Ints, op: int, slot: int, payload: str | None) -> None:
        """Append a row that has no tuples."""
        row = int(state[f.ROWS])
        if row >= self.room:
            self.grow_rows()
        self.rows.op[row] = op
        self.before.sent[row] = self.after.sent[row] = 0
        if payload is not None:
            self.payloads[row] = payload
        kernel.close_row(state.ctypes.data, slot, *self.addresses)

    def record_batch(self, state: f.Ints, *, copy: bool) -> pa.RecordBatch:
        """The rows as Arrow; without a copy of the texts the workspace is given away."""
        n = int(state[f.ROWS])
        rows = self.rows
        before, after = (
            (int(state[values]), int(state[values + 1]))
            for values in (f.BEFORE_VALUES, f.AFTER_VALUES)
        )
        return pa.RecordBatch.from_arrays(
            [
                pa.array(rows.lsn[:n].copy()),
                pa.array(rows.seq[:n].copy()),
                _xids(rows.xid[:n]),
                _timestamps(rows.committed_at[:n]),
                pa.array(rows.op[:n].copy()),
                pa.array(rows.slot[:n].copy()),
                _texts(self.before, n, *before, copy=copy),
                _texts(self.after, n, *after, copy=copy),
                _indexes(rows, n, int(state[f.UNCHANGED])),
                self._payload_column(n),
                pa.array(rows.last[:n].view(np.bool_)),
            ],
            schema=DECODED_SCHEMA,
        )

    def _payload_column(self, n: int) -> pa.Array[Any]:
        if not self.payloads:
            return pa.nulls(n, pa.string())
        return pa.array([self.payloads.get(row) for row in range(n)], pa.string())


def _side(capacity: int, room: int) -> f.Side:
    # rows[0] and offsets[0] are the zeros that Arrow's offset arrays begin with.
    rows, offsets = np.empty(room + 1, np.int32), np.empty(capacity + 1, np.int32)
    rows[0] = offsets[0] = 0
    return f.Side(
        rows, np.empty(room, np.uint8), offsets,
        np.empty(capacity, np.uint8), np.empty(capacity, np.uint8),
    )  # fmt: skip


def _rows(capacity: int, room: int) -> f.Rows:
    offsets = np.empty(room + 1, np.int32)
    offsets[0] = 0
    return f.Rows(
        op=np.empty(room, np.uint8),
        slot=np.empty(room, np.int32),
        lsn=np.empty(room, np.int64),
        seq=np.empty(room, np.int64),
        xid=np.empty(room, np.int64),
        committed_at=np.empty(room, np.int64),
        last=np.empty(room, np.uint8),
        unchanged_rows=offsets,
        unchanged=np.empty(capacity, np.int32),
    )


def _grown(array: NDArray[Any]) -> NDArray[Any]:
    bigger = np.empty(2 * len(array), array.dtype)
    bigger[: len(array)] = array
    return bigger


def _xids(values: f.Ints) -> pa.Array[Any]:
    missing = values == 0  # no transaction
    return pa.array(values.copy(), mask=missing if missing.any() else None)


def _timestamps(values: f.Ints) -> pa.Array[Any]:
    micros = values + EPOCH_US
    missing = values == NO_TIME
    mask = missing if missing.any() else None
    return pa.array(micros, pa.int64(), mask=mask).cast(pa.timestamp("us", tz="UTC"))


def _buffer(array: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(array.data)


def _bits(flags: f.Bytes) -> pa.Buffer | None:
    """A validity bitmap, None when everything is valid."""
    if flags.all():
        return None
    return _buffer(np.packbits(flags, bitorder="little"))


def _texts(side: f.Side, n: int, values: int, size: int, *, copy: bool) -> pa.Array[Any]:
    offsets, data = side.offsets[: values + 1], side.data[:size]
    texts = pa.StringArray.from_buffers(
        values,
        _buffer(offsets.copy() if copy else offsets),
        _buffer(data.copy() if copy else data),
        _bits(side.valid[:values]),
    )
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raise NotUtf8(_first_invalid(side, n)) from None
    return pa.ListArray.from_buffers(
        TEXT_LIST,
        n,
        [_bits(side.sent[:n]), _buffer(side.rows[: n + 1].copy())],
        children=[texts],
    )


def _first_invalid(side: f.Side, n: int) -> int:
    """The first row with a value that is not UTF-8."""
    for row in range(n):
        for value in range(side.rows[row], side.rows[row + 1]):
            try:
                side.data[side.offsets[value] : side.offsets[value + 1]].tobytes().decode()
            except UnicodeDecodeError:
                return row
    raise AssertionError("Arrow and Python agree on what UTF-8 is")


def _indexes(rows: f.Rows, n: int, count: int) -> pa.Array[Any]:
    if count == 0:
        return pa.nulls(n, INT_LIST)
    offsets = rows.unchanged_rows[: n + 1].copy()
    sent = (offsets[1:] > offsets[:-1]).astype(np.uint8)
    return pa.ListArray.from_buffers(
        INT_LIST,
        n,
        [_bits(sent), _buffer(offsets)],
        children=[pa.array(rows.unchanged[:count].copy(), pa.int32())],
    )
