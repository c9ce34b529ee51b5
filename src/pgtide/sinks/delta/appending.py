"""Appending rows to a lake table: Spark writes the files, pgtide commits them.

A commit by Spark that carries a transaction id begins with jobs that compute the whole state
of the table, because Spark keeps no ids in memory (a second for four small tables at once,
measured). So Spark appends to a table of the same columns that lasts for this one write, in a
directory of its own below the table; its files then become the table's in one commit, with the
id. A crash before that leaves a directory that no commit names, which VACUUM removes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame

from pgtide.errors import TargetUnavailable
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path
from pgtide.sinks.delta.first_commit import write_first
from pgtide.sinks.delta.target import SHARED_FEATURES, Target


def append(target: Target, rows: DataFrame, id: Transaction | None) -> None:
    """Add rows in one commit; if it has an id, only unless the table has it."""
    table = target.open()
    assert table is not None, "it was made ready"
    if id is not None and (table.transaction_version(id.app_id) or -1) >= id.version:
        return
    if not features(table) <= SHARED_FEATURES:
        writer = rows.write.format("delta").mode("append")
        if id is not None:
            writer = writer.option("txnAppId", id.app_id).option("txnVersion", id.version)
        writer.save(target.path)
        return
    with _files(target, table, rows) as files:
        _commit(table, files, id)


def features(table: DeltaTable) -> set[str]:
    """What a reader or writer of the table has to know of the protocol."""
    protocol = table.protocol()
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}


@contextmanager
def _files(target: Target, table: DeltaTable, rows: DataFrame) -> Iterator[list[AddAction]]:
    """The rows as files below the table, to be committed."""
    directory = f"rows-{uuid.uuid4()}"
    storage = Storage(target.path, dict(target.storage))
    write_first(storage, f"{directory}/", *_definition(table))
    try:
        rows.write.format("delta").mode("append").save(f"{target.path}/{directory}")
        written = storage.read(f"{directory}/{commit_path(1)}")
        assert written is not None, "Spark committed it"
        actions = [json.loads(line) for line in written.splitlines()]
        yield [_added(directory, action["add"]) for action in actions if "add" in action]
    except BaseException:
        _discard(storage, directory)
        raise
    _discard(storage, f"{directory}/_delta_log")


def _discard(storage: Storage, directory: str) -> None:
    storage.filesystem.delete_dir(directory)


def _definition(table: DeltaTable) -> tuple[dict[str, Any], dict[str, Any]]:
    """The protocol and metadata of a table, as commits have them."""
    protocol, metadata = table.protocol(), table.metadata()
    versions = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }
    return {name: value for name, value in versions.items() if value is not None}, {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.configuration,
        "createdTime": metadata.created_time,
    }


def _added(directory: str, add: dict[str, Any]) -> AddAction:
    return AddAction(
        path=f"{directory}/{add['path']}",
        size=add["size"],
        partition_values=add["partitionValues"],
        modification_time=add["modificationTime"],
        data_change=True,
        stats=add["stats"],
    )


def _commit(table: DeltaTable, files: Sequence[AddAction], id: Transaction | None) -> None:
    try:
        table.create_write_transaction(
            list(files),
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=CommitProperties(app_transactions=[id] if id else None),
        )
    except (DeltaError, OSError) as exc:
        raise TargetUnavailable(
            "a table of the lake did not take a commit",
            detail=f"{table.table_uri}: {str(exc).splitlines()[0]}",
            hint="Check that the storage answers; only pgtide may write to this table.",
        ) from exc
