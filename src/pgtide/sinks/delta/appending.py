"""Appending rows to a lake table: Spark writes the files, pgtide commits them.

A commit by Spark that carries a transaction id begins with jobs that compute the whole state
of the table, because Spark keeps no ids in memory (a second for four small tables at once,
measured). So Spark appends to a table of the same columns that lasts for this one write, in a
directory of its own below the table; its files then become the table's in one commit, with the
id. A crash before that leaves a directory that no commit names: VACUUM removes its data files.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame

from pgtide.errors import TargetUnavailable
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path
from pgtide.sinks.delta.first_commit import FILE, STATE_FILE, first_commit, first_state
from pgtide.sinks.delta.target import SHARED_FEATURES, Target, features
from pgtide.sinks.target_storage import target_answers

logger = logging.getLogger(__name__)


def append(
    target: Target, rows: DataFrame, id: Transaction | None, marks: Sequence[Transaction] = ()
) -> None:
    """Add rows in one commit; if it has an id, only unless the table has it.

    ``marks`` are further ids that the commit may carry, which nothing depends on.
    """
    table = target.open()
    assert table is not None, "it was made ready"
    if id is not None and target.written(id):
        return
    if not features(table) <= SHARED_FEATURES:
        writer = rows.write.format("delta").mode("append")
        if id is not None:
            writer = writer.option("txnAppId", id.app_id).option("txnVersion", id.version)
        writer.save(target.spark_path)
        return
    staged = _Staged(target)
    try:
        files = staged.write(table, rows)
    except BaseException:
        staged.discard()
        raise
    # From here on the files may be the table's, whatever an error says.
    if files or id is not None:
        _commit(target, table, files, id, marks)
    staged.discard("_delta_log")


def note(target: Target, id: Transaction) -> None:
    """Commit an id alone, unless the table has it."""
    table = target.open()
    assert table is not None, "it was made ready"
    if target.written(id):
        return
    if features(table) <= SHARED_FEATURES:
        _commit(target, table, (), id, ())
    else:
        append(target, target.frame().limit(0), id)


class _Staged:
    """The table that lasts for one write."""

    def __init__(self, target: Target) -> None:
        self._spark = target.spark
        self._name = f"rows-{uuid.uuid4()}"
        self._path = f"{target.spark_path}/{self._name}"
        self._storage = Storage(target.path, dict(target.storage))

    def write(self, table: DeltaTable, rows: DataFrame) -> list[AddAction]:
        """The rows as files, to be committed to ``table``."""
        protocol, metadata = _definition(table)
        with target_answers():
            self._storage.replace(f"{self._name}/{FILE}", first_commit(protocol, metadata))
            self._storage.replace(f"{self._name}/{STATE_FILE}", first_state(protocol, metadata))
        rows.write.format("delta").mode("append").save(self._path)
        self._forget()
        with target_answers():
            # Without rows Spark makes no commit.
            written = self._storage.read(f"{self._name}/{commit_path(1)}") or b""
        actions = [json.loads(line) for line in written.splitlines()]
        return [self._added(action["add"]) for action in actions if "add" in action]

    def _added(self, add: dict[str, Any]) -> AddAction:
        return AddAction(
            path=f"{self._name}/{unquote(add['path'])}",  # delta-rs quotes it
            size=add["size"],
            partition_values=add["partitionValues"],
            modification_time=add["modificationTime"],
            data_change=True,
            stats=add.get("stats"),  # type: ignore[arg-type]  # there may be none
        )

    def _forget(self) -> None:
        """Spark remembers thousands of tables, this one it will not see again."""
        jvm: Any = self._spark.sparkContext._jvm
        session: Any = self._spark
        path = jvm.org.apache.hadoop.fs.Path(self._path)
        jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(session._jsparkSession, path)

    def discard(self, part: str = "") -> None:
        """Delete it, or a part of it: what is left is in nobody's way."""
        try:
            self._storage.filesystem.delete_dir(f"{self._name}/{part}".rstrip("/"))
        except OSError as exc:
            logger.warning("%s was not deleted: %s", self._path, exc.strerror)


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


def _commit(
    target: Target,
    table: DeltaTable,
    files: Sequence[AddAction],
    id: Transaction | None,
    marks: Sequence[Transaction],
) -> None:
    ids = [*([id] if id else ()), *marks]
    try:
        table.create_write_transaction(
            list(files),
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=CommitProperties(app_transactions=ids or None),
        )
    except (DeltaError, OSError) as exc:
        if id is not None and target.written(id):
            return  # only what follows a commit failed, such as the checkpoint
        raise TargetUnavailable(
            "a table of the lake did not take a commit",
            detail=f"{table.table_uri}: {str(exc).splitlines()[0]}",
            hint="Check that the storage answers; only pgtide may write to this table.",
        ) from exc
