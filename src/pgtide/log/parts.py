"""Parts: data files that are durable before any commit names them.

Whoever writes one gets the ``add`` action for it, and hands that to the commit.
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


class Part:
    """A file on its way: in memory until it is saved or, if ``directly``, to its place.

    Directly saves a copy of the whole file; an object store gets it in one piece all the same.
    """

    def __init__(self, changes: Storage, day: date, *, directly: bool = False) -> None:
        self.path = new_path(day)
        self._changes = changes
        self._day = day
        self._directly = directly and changes.local is not None
        self.sink: Any = changes.begin(self.path) if self._directly else pa.BufferOutputStream()

    def save(self, statistics: dict[str, Any]) -> AddAction:
        """Make what was written durable in the log's storage."""
        size = int(self.sink.tell())
        if self._directly:
            self.sink.close()
            self._changes.sync(self.path)
        else:
            self._changes.write(self.path, memoryview(self.sink.getvalue()))
        return add_action(
            self.path, size, self._day, statistics, logged_at_ms=now_ms(), data_change=True
        )


class PartFile:
    """Rows as one Parquet file."""

    def __init__(self, changes: Storage, day: date, options: dict[str, Any]) -> None:
        self._part = Part(changes, day)
        self._options = options
        self._file: pq.ParquetWriter | None = None
        self._statistics: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        return self._part.path

    def add(self, rows: pa.Table) -> None:
        """Append one row group: the log's columns, without ``day``."""
        if self._file is None:
            self._file = pq.ParquetWriter(self._part.sink, rows.schema, **self._options)
        self._file.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._statistics = merged_statistics(self._statistics, file_statistics(rows))

    def save(self) -> AddAction:
        """Make it durable in the log's storage."""
        assert self._file is not None, "a part has rows"
        assert self._statistics is not None
        self._file.close()
        return self._part.save(self._statistics)
