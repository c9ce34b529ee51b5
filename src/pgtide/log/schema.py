"""The log's columns, as Arrow, and the names that everyone must spell alike.

``docs/LOG_FORMAT.md`` is the specification; this module is its only copy in code.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

CHANGES = "changes"  # <log>/changes: one row per event, partitioned by day
SHAPES = "shapes"  # <log>/shapes: one row per shape
READERS = "readers"  # <log>/readers: one small JSON file per registered reader

OPS = ("insert", "update", "delete", "truncate", "read", "sweep", "ddl", "message")

TEXT_LIST = pa.list_(pa.field("element", pa.string()))
INT_LIST = pa.list_(pa.field("element", pa.int32()))

# Columns of the Parquet files; ``day`` lives in the partition path.
_FILE_FIELDS: list[pa.Field[Any]] = [
    pa.field("lsn", pa.int64()),
    pa.field("seq", pa.int64()),
    pa.field("xid", pa.int64()),
    pa.field("committed_at", pa.timestamp("us", tz="UTC")),
    pa.field("op", pa.string()),
    pa.field("schema", pa.string()),
    pa.field("table", pa.string()),
    pa.field("shape", pa.int64()),
    pa.field("before", TEXT_LIST),
    pa.field("after", TEXT_LIST),
    pa.field("unchanged", INT_LIST),
    pa.field("payload", pa.string()),
    pa.field("last", pa.bool_()),
]
FILE_SCHEMA = pa.schema(_FILE_FIELDS)

TABLE_SCHEMA = pa.schema([pa.field("day", pa.date32()), *_FILE_FIELDS])

COLUMN_STRUCT = pa.struct(
    [
        pa.field("attnum", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("type_oid", pa.int64()),
        pa.field("typmod", pa.int32()),
        pa.field("type_name", pa.string()),
        pa.field("nullable", pa.bool_()),
        pa.field("key", pa.bool_()),
        pa.field("identity", pa.bool_()),
        pa.field("generated", pa.bool_()),
        pa.field("base_oid", pa.int64()),
        pa.field("base_typmod", pa.int32()),
        pa.field("element_oid", pa.int64()),
    ]
)

_SHAPE_FIELDS: list[pa.Field[Any]] = [
    pa.field("shape", pa.int64()),
    pa.field("since_lsn", pa.int64()),
    pa.field("oid", pa.int64()),
    pa.field("schema", pa.string()),
    pa.field("table", pa.string()),
    pa.field("replica_identity", pa.string()),
    pa.field("root_oid", pa.int64()),
    pa.field("root_schema", pa.string()),
    pa.field("root_table", pa.string()),
    pa.field("columns", pa.list_(pa.field("element", COLUMN_STRUCT))),
]
SHAPES_SCHEMA = pa.schema(_SHAPE_FIELDS)
