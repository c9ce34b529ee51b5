"""Decoded rows on their way into the log: whole transactions, bounded memory.

Rows of committed transactions wait for the next flush. Rows of the transaction
that is still arriving are kept apart. Either kind is written out as parts that
nothing names yet when it outgrows the buffer, by a thread of its own so that
decoding goes on; one part at a time, which bounds the memory. The last row of an
open transaction is held back, because only the Commit message says that it was
the last.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake.transaction import AddAction

from pgtide.capture.faults import fault
from pgtide.log.schema import FILE_SCHEMA, OPS
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from pgtide.wal.decoder import Decoded
from pgtide.wal.relations import Slot

_Part: TypeAlias = "Future[list[AddAction]]"
_OP_NAMES = pa.array(OPS, pa.string())


@dataclass(frozen=True, slots=True)
class Stretch:
    """Parts that make everything true up to a position, once they are written."""

    parts: list[_Part]
    rows: int
    end: Lsn

    @property
    def written(self) -> bool:
        return all(part.done() for part in self.parts)

    def actions(self) -> list[AddAction]:
        """The parts for the commit; waits for them."""
        return [action for part in self.parts for action in part.result()]


class RowBuffer:
    """Collects decoded rows and writes them to the log as parts."""

    def __init__(self, writer: LogWriter, limit: int, encoder: Executor) -> None:
        self._writer = writer
        self._limit = limit
        self._encoder = encoder
        self._complete: list[pa.RecordBatch] = []
        self._open: list[pa.RecordBatch] = []
        self._held: pa.RecordBatch | None = None
        self._open_parts: list[_Part] = []
        self._parts: list[_Part] = []
        self._stretches: list[Stretch] = []
        self._writing: _Part | None = None
        self._complete_bytes = 0
        self._open_bytes = 0
        self.end = Lsn(0)  # up to here everything is either in the log or waiting here
        self.since: float | None = None  # when the oldest waiting transaction was complete
        self._open_rows = 0
        self._complete_rows = 0

    @property
    def full(self) -> bool:
        """Whether committed rows should be flushed for their size."""
        return self._complete_bytes >= self._limit

    @property
    def waiting(self) -> bool:
        """Whether rows of committed transactions wait for the flush."""
        return bool(self._complete or self._parts or self._stretches)

    def add(self, decoded: Decoded, slots: Sequence[Slot]) -> None:
        """Take the rows of one chunk."""
        rows, complete = decoded.rows, decoded.complete
        if decoded.closes_earlier or complete:
            self._close_open(last=decoded.closes_earlier)
        elif self._held is not None and rows.num_rows:
            self._keep_open(self._held)
            self._held = None
        if complete:
            closed = rows.slice(0, complete)
            self._complete.append(closed)
            self._complete_bytes += closed.nbytes
            self._complete_rows += complete
        remaining = rows.num_rows - complete
        if remaining:
            self._keep_open(rows.slice(complete, remaining - 1))
            self._held = rows.slice(rows.num_rows - 1, 1)
        self.end = max(self.end, decoded.end)  # before a spill, which seals what is complete
        if self._open_bytes >= self._limit:
            self._spill(slots)
        if self.since is None and self.waiting:
            self.since = time.monotonic()

    def write_behind(self, slots: Sequence[Slot]) -> None:
        """Begin to write what is committed, without waiting for it."""
        if self._complete:
            self._parts.append(self._write(self._complete, slots))
        if self._parts:
            self._stretches.append(Stretch(self._parts, self._complete_rows, self.end))
        self._complete, self._parts, self._complete_bytes, self._complete_rows = [], [], 0, 0

    def take_written(self) -> list[Stretch]:
        """Hand over what is on disk by now."""
        written = [stretch for stretch in self._stretches if stretch.written]
        self._stretches = self._stretches[len(written) :]  # one thread writes them in order
        if written:
            self.since = time.monotonic() if self.waiting else None
        return written

    def take_all(self, slots: Sequence[Slot]) -> list[Stretch]:
        """Hand over everything that is committed; what is not on disk yet will be soon."""
        self.write_behind(slots)
        stretches, self._stretches, self.since = self._stretches, [], None
        return stretches

    def _close_open(self, *, last: bool) -> None:
        """The transaction that was open is committed: its rows count from now on."""
        if self._held is not None:
            self._keep_open(_with_last(self._held) if last else self._held)
            self._held = None
        self._complete += self._open
        self._complete_bytes += self._open_bytes
        self._complete_rows += self._open_rows
        self._parts += self._open_parts
        self._open, self._open_parts, self._open_bytes, self._open_rows = [], [], 0, 0

    def _keep_open(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._open.append(batch)
            self._open_bytes += batch.nbytes
            self._open_rows += batch.num_rows

    def _spill(self, slots: Sequence[Slot]) -> None:
        if self._complete:  # what comes before it: parts do not overlap
            self.write_behind(slots)
        self._open_parts.append(self._write(self._open, slots))
        self._open, self._open_bytes = [], 0
        fault("in_large_transaction")

    def _write(self, batches: list[pa.RecordBatch], slots: Sequence[Slot]) -> _Part:
        if self._writing is not None:
            self._writing.result()
        names = list(slots)  # more may come while the thread reads them
        self._writing = self._encoder.submit(
            lambda: self._writer.write_part(log_rows(batches, names))
        )
        return self._writing


def _with_last(row: pa.RecordBatch) -> pa.RecordBatch:
    index = row.schema.get_field_index("last")
    return row.set_column(index, row.schema.field(index), pa.array([True]))


def log_rows(batches: Sequence[pa.RecordBatch], slots: Sequence[Slot]) -> pa.Table:
    """Decoded rows with the log's columns: numbers become the names they stand for."""
    table = pa.Table.from_batches(batches)
    slot = table.column("slot").combine_chunks()
    columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    columns["op"] = pa.DictionaryArray.from_arrays(table.column("op").combine_chunks(), _OP_NAMES)
    columns["schema"] = _named(slot, [entry.schema for entry in slots])
    columns["table"] = _named(slot, [entry.table for entry in slots])
    columns["shape"] = pa.array([entry.shape for entry in slots], pa.int64()).take(slot)
    return pa.table([columns[name] for name in FILE_SCHEMA.names], names=FILE_SCHEMA.names)


def _named(slot: pa.Array[Any], names: Sequence[str | None]) -> pa.Array[Any]:
    """Names by slot number, dictionary encoded; Parquet wants nulls in the indexes."""
    dictionary = sorted({name for name in names if name is not None})
    place = {name: index for index, name in enumerate(dictionary)}
    by_slot = pa.array([None if name is None else place[name] for name in names], pa.int32())
    return pa.DictionaryArray.from_arrays(by_slot.take(slot), pa.array(dictionary, pa.string()))
