"""Writing the files of a compaction: row groups in, durable data files out.

A file ends where a table ends, once it or the table that follows is large. What is held in
memory is one row group and the compressed bytes of one file.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from pgtide.log.schema import FILE_SCHEMA
from pgtide.log.storage import Storage
from pgtide.log.writer import STATISTICS, file_statistics

FILE_ROWS = 65_536  # a file of so many rows, the next group included, ends where a table ends


def write_files(
    changes: Storage, day: date, groups: Iterable[tuple[bool, pa.Table]]
) -> Iterator[AddAction]:
    """Write row groups, each marked with whether a table begins there; the files are durable."""
    file = _File()
    for begins, rows in groups:
        if file.rows and begins and file.rows + rows.num_rows >= FILE_ROWS:
            yield file.finish(changes, day)
            file = _File()
        file.add(rows)
    if file.rows:
        yield file.finish(changes, day)


class _File:
    def __init__(self) -> None:
        self.rows = 0
        self._sink = pa.BufferOutputStream()
        self._statistics: dict[str, Any] = {}
        self._writer = pq.ParquetWriter(
            self._sink,
            FILE_SCHEMA,
            compression="zstd",
            # The stubs know a bool only.
            use_dictionary=["op", "schema", "table", "xid", "committed_at", "shape"],  # type: ignore[arg-type]
            write_statistics=list(STATISTICS),
            store_schema=False,
        )

    def add(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        self._statistics = _merged(self._statistics, json.loads(file_statistics(rows)))

    def finish(self, changes: Storage, day: date) -> AddAction:
        self._writer.close()
        data = self._sink.getvalue()
        path = f"day={day.isoformat()}/{uuid.uuid4()}.parquet"
        changes.write(path, memoryview(data))
        return AddAction(
            path,
            data.size,
            {"day": day.isoformat()},
            int(time.time() * 1000),
            False,
            json.dumps(self._statistics),
        )


def _merged(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """The statistics of two sets of rows together."""
    if not left:
        return right
    merged: dict[str, Any] = {"numRecords": left["numRecords"] + right["numRecords"]}
    for key, choose in (("minValues", min), ("maxValues", max)):
        merged[key] = {**left[key], **right[key]}
        for name in left[key].keys() & right[key].keys():
            merged[key][name] = choose(left[key][name], right[key][name])
    nulls = {name: count + right["nullCount"][name] for name, count in left["nullCount"].items()}
    return {**merged, "nullCount": nulls}
