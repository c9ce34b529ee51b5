"""Events as bytes, made by the executors and handed to the driver in order, piece by piece.

The driver never holds a whole batch: it takes one partition's chunks after the other. They
are made side by side first, because taking them alone would run one task at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from pgtide.log.event import Event, read_events
from pgtide.log.formats import formatter
from pgtide.log.schema import FILE_SCHEMA
from pgtide.log.source import LogSource
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.sinks.csv_rows import csv_row

PARTITION_ROWS = 20_000  # the driver holds one partition's chunks
CHUNK_BYTES = 1 << 20

_FIELDS: list[tuple[str, pa.DataType]] = [
    ("layout", pa.int64()),
    ("low_lsn", pa.int64()),
    ("low_seq", pa.int64()),
    ("high_lsn", pa.int64()),
    ("high_seq", pa.int64()),
    ("changes", pa.int64()),
    ("data", pa.binary()),
]
_SCHEMA = pa.schema(_FIELDS)
_SPARK_SCHEMA = (
    "layout long, low_lsn long, low_seq long, high_lsn long, high_seq long, changes long, "
    "data binary"
)
NO_LAYOUT = 0  # ids of shapes begin at 1

Maker: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Chunk:
    """Events that follow one another, all of one layout where the form has columns."""

    layout: int
    low: Position
    high: Position
    changes: int  # events of rows, and truncates; DDL and messages are not counted
    data: bytes


def ordered_chunks(frame: DataFrame, maker: Maker, rows: int, scanned: int) -> Iterator[Chunk]:
    """The frame's rows in order of position; ``rows`` it has at most, of ``scanned``."""
    parts = -(-rows // PARTITION_ROWS)
    if parts <= 1:
        # Few rows: worth no shuffle, unless they have to be picked from many.
        one = frame.coalesce(1) if scanned <= PARTITION_ROWS else frame.repartition(1)
        made = one.sortWithinPartitions("lsn", "seq").mapInArrow(maker, _SPARK_SCHEMA)
        yield from (_chunk(row) for row in made.toLocalIterator())
        return
    ranges = frame.repartitionByRange(parts, "lsn", "seq").sortWithinPartitions("lsn", "seq")
    made = ranges.mapInArrow(maker, _SPARK_SCHEMA).persist(StorageLevel.DISK_ONLY)
    try:
        made.count()
        yield from (_chunk(row) for row in made.toLocalIterator(prefetchPartitions=True))
    finally:
        made.unpersist()


def _chunk(row: Any) -> Chunk:
    layout, low_lsn, low_seq, high_lsn, high_seq, changes, data = row
    low, high = Position(Lsn(low_lsn), low_seq), Position(Lsn(high_lsn), high_seq)
    return Chunk(layout, low, high, changes, bytes(data))


def _record(chunk: Chunk) -> pa.RecordBatch:
    low, high = chunk.low, chunk.high
    values = (chunk.layout, int(low.lsn), low.seq, int(high.lsn), high.seq, chunk.changes)
    row = dict(zip(_SCHEMA.names, (*values, chunk.data), strict=True))
    return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


@dataclass
class _Lines:
    """A chunk in the making."""

    layout: int
    low: Position
    high: Position
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    changes: int = 0

    def add(self, event: Event, line: bytes) -> None:
        self.high = event.position
        self.lines.append(line)
        self.size += len(line)
        self.changes += event.shape is not None

    def chunk(self) -> Chunk:
        return Chunk(self.layout, self.low, self.high, self.changes, b"".join(self.lines))


@dataclass(frozen=True)
class LineMaker:
    """Makes lines of text: JSON in one of the envelopes, or CSV. Runs on the executors."""

    shapes: Mapping[int, Shape]
    envelope: str  # a name of log/formats, or "csv"
    source: LogSource
    now: datetime
    most: int = CHUNK_BYTES

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        to_line = self._line()
        open_: _Lines | None = None
        for batch in batches:
            for event in read_events(_as_logged(batch), self.shapes):
                line = to_line(event).encode()
                layout = self._layout(event)
                full = open_ is not None and open_.size + len(line) > self.most
                if open_ is None or full or open_.layout != layout:
                    if open_ is not None:
                        yield _record(open_.chunk())
                    open_ = _Lines(layout, event.position, event.position)
                open_.add(event, line)
        if open_ is not None:
            yield _record(open_.chunk())

    def _line(self) -> Callable[[Event], str]:
        if self.envelope == "csv":
            return csv_row
        to_json, source, now = formatter(self.envelope), self.source, self.now
        encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
        return lambda event: encode(to_json(event, source, now)) + "\n"

    def _layout(self, event: Event) -> int:
        """Only where a file has columns do they matter."""
        return event.shape.id if self.envelope == "csv" and event.shape else NO_LAYOUT


@dataclass(frozen=True)
class ArrowMaker:
    """Makes Arrow streams of typed rows, as they are. Runs on the executors."""

    layout: int
    most: int = CHUNK_BYTES

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                rows = max(1, int(self.most / max(1.0, batch.nbytes / batch.num_rows)))
                for start in range(0, batch.num_rows, rows):
                    yield _record(self._chunk(batch.slice(start, rows)))

    def _chunk(self, rows: pa.RecordBatch) -> Chunk:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, rows.schema) as writer:
            writer.write_batch(rows)
        data = stream.getvalue().to_pybytes()
        changes = rows.num_rows if self.layout != NO_LAYOUT else 0
        return Chunk(self.layout, _at(rows, 0), _at(rows, -1), changes, data)


def _at(rows: pa.RecordBatch, index: int) -> Position:
    at = index % rows.num_rows
    return Position(Lsn(rows.column("lsn")[at].as_py()), rows.column("seq")[at].as_py())


def _as_logged(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the log's types: Spark labels moments with the session's time zone."""
    return batch.cast(FILE_SCHEMA)
