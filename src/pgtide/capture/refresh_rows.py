"""Rows of a refresh in the form of decoded rows, with their place in the log.

What is no transaction sits one below its LSN: a commit record may begin exactly there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.log.schema import INT_LIST, OPS, TEXT_LIST
from pgtide.position import Lsn, Position
from pgtide.wal.decoder import Decoded
from pgtide.wal.rows import DECODED_SCHEMA

READ = OPS.index("read")
SWEEP = OPS.index("sweep")
_PAYLOAD_INDEX = DECODED_SCHEMA.get_field_index("payload")


def read_rows(rows: pa.Array[Any], *, slot: int, lsn: Lsn, read_at: datetime) -> pa.RecordBatch:
    """Rows of a table, lists of texts, as they were read."""
    return _rows(READ, rows, [slot] * len(rows), lsn, read_at)


def sweep_rows(
    slots: Sequence[int], payload: dict[str, Any], *, first: int, lsn: Lsn, read_at: datetime
) -> pa.RecordBatch:
    """One sweep for each table, behind ``first`` other rows of the same place."""
    nothing = pa.nulls(len(slots), TEXT_LIST)
    batch = _rows(SWEEP, nothing, slots, lsn, read_at, first)
    texts = pa.array([json.dumps(payload)] * len(slots), pa.string())
    return batch.set_column(_PAYLOAD_INDEX, DECODED_SCHEMA.field("payload"), texts)


def sweep_payload(
    refresh: str,
    older_than: Position,
    *,
    low: str | None = None,
    high: str | None = None,
    keys: Sequence[Sequence[str]] | None = None,
) -> dict[str, Any]:
    """What a sweep says, see docs/LOG_FORMAT.md."""
    return {
        "older_than": str(older_than),
        "low": low,
        "high": high,
        "keys": None if keys is None else [list(key) for key in keys],
        "refresh": refresh,
    }


def as_decoded(batches: Sequence[pa.RecordBatch], lsn: Lsn) -> Decoded:
    """Rows of one place, as if they had been decoded: complete, the last one marked."""
    (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    last = np.zeros(rows.num_rows, np.bool_)
    last[-1] = True
    index = DECODED_SCHEMA.get_field_index("last")
    marked = rows.set_column(index, DECODED_SCHEMA.field(index), pa.array(last))
    return Decoded(marked, rows.num_rows, closes_earlier=False, open=False, end=lsn, messages=0)


def _rows(
    op: int,
    after: pa.Array[Any],
    slots: Sequence[int],
    lsn: Lsn,
    read_at: datetime,
    first: int = 0,
) -> pa.RecordBatch:
    count = len(after)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(count, lsn - 1, np.int64)),
            pa.array(np.arange(first, first + count, dtype=np.int64)),
            pa.nulls(count, pa.int64()),
            pa.repeat(pa.scalar(read_at, pa.timestamp("us", tz="UTC")), count),
            pa.array(np.full(count, op, np.uint8)),
            pa.array(np.array(slots, np.int32)),
            pa.nulls(count, TEXT_LIST),
            after,
            pa.nulls(count, INT_LIST),
            pa.nulls(count, pa.string()),
            pa.array(np.zeros(count, np.bool_)),
        ],
        schema=DECODED_SCHEMA,
    )
