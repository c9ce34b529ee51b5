"""Writing the files of a compaction: row groups in, durable data files out.

A file ends where a table ends, once it or the table that follows is large. The next one always
overlaps it in positions, so that the files of one compaction are one unit: if they fell apart
where tables were filled one after the other, they would be merged again and again. What is held
in memory is one row group and the compressed bytes of one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from pgtide.log.datafile import (
    PARQUET_OPTIONS,
    add_action,
    file_statistics,
    merged_statistics,
    new_path,
)
from pgtide.log.schema import FILE_SCHEMA
from pgtide.log.storage import Storage

FILE_ROWS = 65_536  # a file of so many rows, the next group included, ends where a table ends


def write_files(
    changes: Storage, day: date, logged_at_ms: int, groups: Iterable[tuple[bool, pa.Table]]
) -> Iterator[AddAction]:
    """Write row groups, each marked with whether a table begins there; the files are durable."""
    file = _File()
    for begins, rows in groups:
        statistics = file_statistics(rows)
        large = file.rows + rows.num_rows >= FILE_ROWS
        if file.rows and begins and large and file.overlaps(statistics):
            yield file.finish(changes, day, logged_at_ms)
            file = _File()
        file.add(rows, statistics)
    if file.rows:
        yield file.finish(changes, day, logged_at_ms)


class _File:
    def __init__(self) -> None:
        self.rows = 0
        self._sink = pa.BufferOutputStream()
        self._statistics: dict[str, Any] = {}
        self._writer = pq.ParquetWriter(self._sink, FILE_SCHEMA, **PARQUET_OPTIONS)

    def overlaps(self, other: dict[str, Any]) -> bool:
        """Whether the range of positions has something in common with these statistics."""
        low, high = _range(self._statistics)
        other_low, other_high = _range(other)
        return low <= other_high and other_low <= high

    def add(self, rows: pa.Table, found: dict[str, Any]) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._statistics = merged_statistics(self._statistics, found) if self.rows else found
        self.rows += rows.num_rows

    def finish(self, changes: Storage, day: date, logged_at_ms: int) -> AddAction:
        self._writer.close()
        data = self._sink.getvalue()
        path = new_path(day)
        changes.write(path, memoryview(data))
        return add_action(
            path,
            data.size,
            day,
            self._statistics,
            logged_at_ms=logged_at_ms,
            data_change=False,
        )


def _range(statistics: dict[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    low, high = statistics["minValues"], statistics["maxValues"]
    return (low["lsn"], low["seq"]), (high["lsn"], high["seq"])
