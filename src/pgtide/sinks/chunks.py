"""Events as bytes, made by the executors and handed to the driver in order, piece by piece.

The driver never holds a whole batch: it takes one partition's chunks after the other. They
are made side by side first, because taking them alone would run one task at a time.

A chunk is the result of an Arrow function at the row of its last event, the rows before it
have none: so one call makes large pieces of many rows, and needs no pandas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from pgtide.log.event import Event, read_events
from pgtide.log.formats import formatter
from pgtide.log.schema import FILE_SCHEMA
from pgtide.log.source import LogSource
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.sinks.csv_rows import csv_line, csv_row

PARTITION_ROWS = 20_000  # the driver holds one partition's chunks
CHUNK_BYTES = 1 << 20

_FIELDS: list[pa.Field[Any]] = [
    pa.field("layout", pa.int64()),
    pa.field("low_lsn", pa.int64()),
    pa.field("low_seq", pa.int64()),
    pa.field("high_lsn", pa.int64()),
    pa.field("high_seq", pa.int64()),
    pa.field("data", pa.binary()),
]
_TYPE = pa.struct(_FIELDS)
_SPARK_TYPE = (
    "struct<layout:long,low_lsn:long,low_seq:long,high_lsn:long,high_seq:long,data:binary>"
)
NO_LAYOUT = 0  # ids of shapes begin at 1
ORDER = ("lsn", "seq")
HIDDEN_ORDER = ("_pgtide_lsn", "_pgtide_seq")  # of rows that do not show their position


@dataclass(frozen=True)
class Chunk:
    """Events that follow one another, all of one layout where the form has columns."""

    layout: int
    low: Position
    high: Position
    data: bytes


class Maker(Protocol):
    """Makes chunks of consecutive rows: each with the number of rows that it holds."""

    def chunks(self, rows: pa.RecordBatch) -> Iterator[tuple[int, Chunk]]: ...


def ordered_chunks(
    frame: DataFrame, maker: Maker, rows: int, scanned: int, order: tuple[str, str] = ORDER
) -> Iterator[Chunk]:
    """The frame's rows in order of position; they come of ``rows`` at most, of ``scanned``.

    ``order``: the names of the columns that have the position.
    """
    parts = -(-rows // PARTITION_ROWS)
    if parts <= 1:
        # Few rows: worth no shuffle, unless they have to be picked from many.
        one = frame.coalesce(1) if scanned <= PARTITION_ROWS else frame.repartition(1)
        yield from (_chunk(row) for row in _made(one, maker, order).toLocalIterator())
        return
    made = _made(frame.repartitionByRange(parts, *order), maker, order)
    made = made.persist(StorageLevel.DISK_ONLY)
    try:
        made.count()
        yield from (_chunk(row) for row in made.toLocalIterator(prefetchPartitions=True))
    finally:
        made.unpersist()


def _made(frame: DataFrame, maker: Maker, order: tuple[str, str]) -> DataFrame:
    # Spark reads these hints; what mypy wants between brackets does not exist at run time.
    def make(rows: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        made: list[dict[str, Any] | None] = []
        structs: Any = rows
        for count, chunk in maker.chunks(pa.RecordBatch.from_struct_array(structs)):
            made += [*[None] * (count - 1), _record(chunk)]
        return pa.array(made, _TYPE)

    udf: Any = arrow_udf  # its stubs know it only with a kind, which it warns about
    # Deterministic functions may be called twice, here and for the filter.
    function = udf(make, _SPARK_TYPE).asNondeterministic()
    ordered = frame.sortWithinPartitions(*order)
    made = ordered.select(function(F.struct(*ordered.columns)).alias("chunk"))
    return made.filter("chunk IS NOT NULL").select("chunk.*")


def _chunk(row: Any) -> Chunk:
    layout, low_lsn, low_seq, high_lsn, high_seq, data = row
    low, high = Position(Lsn(low_lsn), low_seq), Position(Lsn(high_lsn), high_seq)
    return Chunk(layout, low, high, bytes(data))


def _record(chunk: Chunk) -> dict[str, Any]:
    low, high = chunk.low, chunk.high
    values = (chunk.layout, int(low.lsn), low.seq, int(high.lsn), high.seq)
    return dict(zip((field.name for field in _FIELDS), (*values, chunk.data), strict=True))


@dataclass
class _Lines:
    """A chunk in the making."""

    layout: int
    low: Position
    high: Position
    lines: list[bytes] = field(default_factory=list)
    size: int = 0

    def takes(self, layout: int, size: int, most: int) -> bool:
        return layout == self.layout and self.size + size <= most

    def add(self, event: Event, line: bytes) -> None:
        self.high = event.position
        self.lines.append(line)
        self.size += len(line)

    def chunk(self) -> Chunk:
        return Chunk(self.layout, self.low, self.high, b"".join(self.lines))


@dataclass(frozen=True)
class LineMaker:
    """Makes lines of text: JSON in one of the envelopes, or CSV. Runs on the executors."""

    shapes: Mapping[int, Shape]
    envelope: str  # a name of log/formats, or "csv"
    source: LogSource
    now: datetime
    most: int = CHUNK_BYTES

    def chunks(self, rows: pa.RecordBatch) -> Iterator[tuple[int, Chunk]]:
        """Cut where a chunk is full, and where the columns change."""
        to_line = self._line()
        making: _Lines | None = None
        for event in read_events(_as_logged(rows), self.shapes):
            line, layout = to_line(event).encode(), self._layout(event)
            if making is not None and not making.takes(layout, len(line), self.most):
                yield len(making.lines), making.chunk()
                making = None
            if making is None:
                making = _Lines(layout, event.position, event.position)
            making.add(event, line)
        if making is not None:
            yield len(making.lines), making.chunk()

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
    order: tuple[str, str] = ORDER

    def chunks(self, rows: pa.RecordBatch) -> Iterator[tuple[int, Chunk]]:
        """Cut so that each has about as many bytes as it may."""
        step = max(1, int(self.most / max(1.0, rows.nbytes / max(1, rows.num_rows))))
        for start in range(0, rows.num_rows, step):
            piece = rows.slice(start, step)
            yield piece.num_rows, self._chunk(piece)

    def _chunk(self, rows: pa.RecordBatch) -> Chunk:
        low, high = (_at(rows, row, self.order) for row in (0, rows.num_rows - 1))
        shown = rows.drop_columns([*HIDDEN_ORDER]) if self.order == HIDDEN_ORDER else rows
        return Chunk(self.layout, low, high, self._data(shown))

    def _data(self, rows: pa.RecordBatch) -> bytes:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, rows.schema) as writer:
            writer.write_batch(rows)
        return stream.getvalue().to_pybytes()


@dataclass(frozen=True)
class CsvMaker(ArrowMaker):
    """Makes CSV of typed rows."""

    def _data(self, rows: pa.RecordBatch) -> bytes:
        columns = [map(_text, column.to_pylist()) for column in rows.columns]
        return "".join(map(csv_line, zip(*columns, strict=True))).encode()


@dataclass(frozen=True)
class JsonMaker(ArrowMaker):
    """Makes lines of JSON of typed rows."""

    def _data(self, rows: pa.RecordBatch) -> bytes:
        encode = json.JSONEncoder(ensure_ascii=False, default=_text).encode
        return "".join(f"{encode(row)}\n" for row in rows.to_pylist()).encode()


def _text(value: Any) -> str | None:
    """Nearly as Postgres prints it; moments in ISO 8601, in UTC."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return None if value is None else str(value)


def _at(rows: pa.RecordBatch, row: int, order: tuple[str, str]) -> Position:
    lsn, seq = (rows.column(name)[row].as_py() for name in order)
    return Position(Lsn(lsn), seq)


def _as_logged(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the log's types: Spark labels moments with the session's time zone."""
    return batch.cast(FILE_SCHEMA)
