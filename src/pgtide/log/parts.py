"""Parts: data files that are durable before any commit names them.

Whoever writes one gets the ``add`` action for it, and hands that to the commit. ``PartFile``
is one file, row group by row group; ``PartStream`` cuts an endless stream of rows into files
of a good size, in memory that does not grow with it.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from pgtide.log.datafile import (
    add_action,
    file_statistics,
    merged_statistics,
    new_path,
    now_ms,
)
from pgtide.log.storage import Storage

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 * 1024 * 1024  # in memory: it is what a reader must hold at once
FILE_BYTES = 32 * 1024 * 1024  # compressed, at which a stream begins the next file


class PartFile:
    """One Parquet file: in memory until it is saved or, if ``directly``, on the way to its place.

    Directly saves a copy of the whole file; an object store gets it in one piece all the same.
    """

    def __init__(
        self, changes: Storage, day: date, options: dict[str, Any], *, directly: bool = False
    ) -> None:
        self.path = new_path(day)
        self._changes = changes
        self._day = day
        self._options = options
        self._directly = directly and changes.local is not None
        self._sink: Any = changes.begin(self.path) if self._directly else pa.BufferOutputStream()
        self._file: pq.ParquetWriter | None = None
        self._statistics: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        """Bytes so far."""
        return int(self._sink.tell())

    def add(self, rows: pa.Table) -> None:
        """Append one row group: the log's columns, without ``day``."""
        if self._file is None:
            self._file = pq.ParquetWriter(self._sink, rows.schema, **self._options)
        self._file.write_table(rows, row_group_size=max(rows.num_rows, 1))
        statistics = file_statistics(rows)
        if self._statistics is not None:
            statistics = merged_statistics(self._statistics, statistics)
        self._statistics = statistics

    def save(self) -> AddAction:
        """Make it durable in the log's storage."""
        assert self._file is not None, "a part has rows"
        assert self._statistics is not None
        self._file.close()
        size = self.size
        if self._directly:
            self._sink.close()
            self._changes.sync(self.path)
        else:
            self._changes.write(self.path, memoryview(self._sink.getvalue()))
        return add_action(
            self.path, size, self._day, self._statistics,
            logged_at_ms=now_ms(), data_change=True,
        )  # fmt: skip


class PartStream:
    """Rows of one day, in order, as files of about ``FILE_BYTES``."""

    def __init__(self, changes: Storage, day: date, options: dict[str, Any]) -> None:
        self._changes = changes
        self._day = day
        self._options = options
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._file: PartFile | None = None
        self._parts: list[AddAction] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows; they are on disk after ``finish`` at the latest."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._waiting_rows += rows.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES or self._waiting_rows >= ROW_GROUP_ROWS:
            self.end_group()
            self.end_file(FILE_BYTES)

    def end_group(self) -> None:
        """Begin a new row group with the next rows."""
        if not self._waiting:
            return
        if self._file is None:
            self._file = PartFile(self._changes, self._day, self._options, directly=True)
        self._file.add(pa.Table.from_batches(self._waiting))
        self._waiting = []
        self._waiting_bytes = self._waiting_rows = 0

    def end_file(self, least: int) -> None:
        """Begin a new file with the next rows, if this one has that many bytes."""
        if self._file is not None and self._file.size >= least:
            self._parts.append(self._file.save())
            self._file = None

    def finish(self) -> list[AddAction]:
        """Write what is left; all the files of the stream."""
        self.end_group()
        self.end_file(0)
        parts, self._parts = self._parts, []
        return parts
