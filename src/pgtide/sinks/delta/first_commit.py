"""The first commit of a Delta table: its columns and properties, and no rows.

Written as a file of our own: Spark needs half a second for a CREATE TABLE, once for every
table of a database. The content is what Spark would write (Delta protocol, column mapping).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from pyspark.sql.types import StructType

from pgtide.log.storage import Storage
from pgtide.sinks.delta.columns import TargetColumn

FILE = "_delta_log/00000000000000000000.json"
STATE_FILE = "_delta_log/00000000000000000000.crc"
_MAPPING = "delta.columnMapping"
_NTZ = '"timestamp_ntz"'


def create_table(
    storage: Storage, columns: Sequence[TargetColumn], properties: Mapping[str, str]
) -> bool:
    """Make the table appear, unless there is one: False then; on a local path."""
    assert storage.local is not None
    numbers = count(1)
    schema = json.dumps(_mapped(StructType([c.field for c in columns]).jsonValue(), numbers))
    mapped = {**properties, f"{_MAPPING}.maxColumnId": str(next(numbers) - 1)}
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": mapped,
        "createdTime": time.time_ns() // 1_000_000,
    }
    protocol = _protocol(schema)
    (storage.local / FILE).parent.mkdir(parents=True, exist_ok=True)
    if not storage.create(FILE, first_commit(protocol, metadata)):
        return False
    storage.replace(STATE_FILE, first_state(protocol, metadata))
    return True


def first_commit(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """The content of the commit."""
    commit_info = {
        "timestamp": metadata["createdTime"],
        "operation": "CREATE TABLE",
        "operationParameters": {
            "partitionBy": json.dumps(metadata["partitionColumns"]),
            "isManaged": "false",
            "properties": json.dumps(metadata["configuration"]),
        },
        "isBlindAppend": True,
        "engineInfo": "pgtide",
    }
    actions = [{"commitInfo": commit_info}, {"protocol": protocol}, {"metaData": metadata}]
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


def first_state(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """The state of the table after it: Spark then runs no jobs to compute it."""
    state = {
        "tableSizeBytes": 0,
        "numFiles": 0,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [],
        "metadata": metadata,
        "protocol": protocol,
        "allFiles": [],
    }
    return json.dumps(state).encode()


def _mapped(kind: Any, numbers: Iterator[int]) -> Any:
    """A type, as JSON, in which every column has its number and physical name."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": [_mapped_field(field, numbers) for field in kind["fields"]]}
    inner = ("elementType", "keyType", "valueType")
    return {name: _mapped(part, numbers) if name in inner else part for name, part in kind.items()}


def _mapped_field(field: dict[str, Any], numbers: Iterator[int]) -> dict[str, Any]:
    mapping = {
        f"{_MAPPING}.id": next(numbers),
        f"{_MAPPING}.physicalName": f"col-{uuid.uuid4()}",
    }
    metadata = {**field["metadata"], **mapping}
    return {**field, "type": _mapped(field["type"], numbers), "metadata": metadata}


def _protocol(schema: str) -> dict[str, Any]:
    """The versions and features that the columns need."""
    writer = ["columnMapping", "invariants", "appendOnly"]
    if _NTZ not in schema:
        return {"minReaderVersion": 2, "minWriterVersion": 7, "writerFeatures": writer}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["timestampNtz", "columnMapping"],
        "writerFeatures": ["timestampNtz", *writer],
    }
