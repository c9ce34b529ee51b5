"""Files in the making: chunks of events go into one until it is full or the columns change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pgtide.position import Position
from pgtide.sinks.chunks import Chunk
from pgtide.sinks.ledger import Ledger
from pgtide.sinks.target_storage import target_answers

GROUP_BYTES = 16 << 20  # of a row group, in memory


class _File(Protocol):
    """A file that takes the data of chunks."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Staging:
    """The files of one table and batch, in the order of their events."""

    def __init__(
        self, ledger: Ledger, format: str, rotate: int, header: Callable[[int], str]
    ) -> None:
        """``header``: the first line of a CSV file, by the layout of its rows."""
        self._ledger = ledger
        self._format = format
        self._rotate = rotate
        self._header = header
        self._open: _File | None = None
        self._layout = 0
        self._size = 0
        self._names: list[str] = []
        self.high: Position | None = None

    def add(self, chunk: Chunk) -> None:
        """Append a chunk."""
        # Rows of one event stay in one file, which is named by the first event in it.
        full = self._size + len(chunk.data) > self._rotate and chunk.low != self.high
        with target_answers():
            if self._open is None or full or chunk.layout != self._layout:
                self._begin(chunk)
            assert self._open is not None
            self._open.write(chunk.data)
        self._size += len(chunk.data)
        self.high = chunk.high if self.high is None else max(self.high, chunk.high)

    def close(self) -> list[str]:
        """Complete the last file; the names of all."""
        with target_answers():
            if self._open is not None:
                self._open.close()
        self._open = None
        return self._names

    def _begin(self, chunk: Chunk) -> None:
        self.close()
        name = f"{int(chunk.low.lsn):016X}-{chunk.low.seq:019d}.{self._format}"
        stream = self._ledger.open(name)
        if self._format == "parquet":
            self._open = _ParquetFile(stream)
        else:
            self._open = _TextFile(stream)
            if self._format == "csv":
                self._open.write(self._header(chunk.layout).encode())
        self._names.append(name)
        self._layout, self._size = chunk.layout, 0


class _TextFile:
    """Lines, as they come."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()


class _ParquetFile:
    """Row groups of some size, from Arrow streams."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        rows = pa.ipc.open_stream(data).read_all()
        self._waiting.append(rows)
        self._size += rows.nbytes
        if self._size >= GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        if self._waiting:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        self._stream.close()

    def _flush(self) -> None:
        rows = pa.concat_tables(self._waiting)
        if self._writer is None:
            # Without Arrow's own schema, which names the session's time zone.
            self._writer = pq.ParquetWriter(
                self._stream, rows.schema, compression="zstd", store_schema=False
            )
        self._writer.write_table(rows)
        self._waiting, self._size = [], 0
