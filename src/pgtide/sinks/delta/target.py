"""One Delta table of a lake: made, reshaped, renamed and opened, each safe to repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pgtide.log.storage import Storage
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.first_commit import create_table
from pgtide.sinks.directories import table_path
from pgtide.spark.layout import TableName
from pgtide.spark.paths import spark_path
from pgtide.spark.sql_text import quoted

RELATION_PROPERTY = "pgtide.relation"
MODE_PROPERTY = "pgtide.mode"
SHAPED_AT_PROPERTY = "pgtide.shaped_at"  # the position from which on it has these columns
SOURCE_PROPERTY = "pgtide.source"  # the source of the log that it is written from
RENAMED_AT_PROPERTY = "pgtide.renamed_at"  # the position of the rename that gave it its name
PARTLY_PROPERTY = "pgtide.partly"  # the LSN of a transaction that it may have a part of only
_NTZ_FEATURE = "timestampNtz"
# What delta-rs reads and writes without loss.
SHARED_FEATURES = frozenset(
    {"columnMapping", _NTZ_FEATURE, "deletionVectors", "appendOnly", "invariants"}
)
_ALWAYS = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "false"}
_TXN = "spark.databricks.delta.write"


@dataclass
class Target:
    """A table of the lake by its place."""

    spark: SparkSession
    path: str
    storage: Mapping[str, str]

    @classmethod
    def of(
        cls, spark: SparkSession, lake: str, table: TableName, storage: Mapping[str, str]
    ) -> Target:
        """The table's place in a lake."""
        return cls(spark, f"{lake.rstrip('/')}/{table_path(table)}", storage)

    @property
    def spark_path(self) -> str:
        """The place as Spark names it."""
        return spark_path(self.path)

    def table(self) -> SparkDeltaTable:
        """The table as Spark sees it."""
        return SparkDeltaTable.forPath(self.spark, self.spark_path)

    # -- what is there --------------------------------------------------------------

    def open(self) -> DeltaTable | None:
        """The table as delta-rs sees it, None if there is none."""
        try:
            return DeltaTable(self.path, storage_options=dict(self.storage))
        except TableNotFoundError:
            return None

    def exists(self) -> bool:
        return self.open() is not None

    def written(self, id: Transaction) -> bool:
        """Whether a write with this id is there already."""
        return self.transaction(id.app_id) >= id.version

    def transaction(self, app_id: str) -> int:
        """The version of the newest write with this id, -1 if there is none."""
        table = self.open()
        return -1 if table is None else transaction_of(table, app_id)

    def frame(self) -> DataFrame:
        """The rows."""
        return self.spark.read.format("delta").load(self.spark_path)

    @property
    def schema(self) -> StructType:
        table = self.open()
        assert table is not None, "asked for the columns of a table that is not there"
        return StructType.fromJson(json.loads(table.schema().to_json()))

    @property
    def sql(self) -> str:
        """The table's name in SQL."""
        return f"delta.{quoted(self.spark_path)}"

    def properties(self) -> dict[str, str]:
        table = self.open()
        return dict(table.metadata().configuration) if table is not None else {}

    # -- what is to be there ----------------------------------------------------------

    def create(self, columns: Sequence[TargetColumn], properties: Mapping[str, str]) -> bool:
        """Make the table, with what its life may need; one that is there is emptied.

        False: another writer has just made one.
        """
        wanted = {**_ALWAYS, **properties}
        if self.exists():
            self.enable_types(columns)
            schema = StructType([column.field for column in columns])
            # By path, CREATE OR REPLACE insists on the columns that are there.
            empty = self.spark.createDataFrame([], schema).write.format("delta")
            empty.mode("overwrite").option("overwriteSchema", True).save(self.spark_path)
            self.set_properties(wanted)
            return True
        return self._make(columns, wanted)

    def ensure(self, columns: Sequence[TargetColumn]) -> None:
        """Make the table unless there is one, whoever made it."""
        if not self.exists():
            self._make(columns, _ALWAYS)

    def _make(self, columns: Sequence[TargetColumn], wanted: Mapping[str, str]) -> bool:
        storage = Storage(self.path, dict(self.storage))
        if storage.local is not None:
            return create_table(storage, columns, wanted)
        schema = StructType([column.field for column in columns])
        builder = SparkDeltaTable.createIfNotExists(self.spark).location(self.spark_path)
        builder = builder.addColumns(schema)
        for name, value in wanted.items():
            builder = builder.property(name, value)
        builder.execute()
        # Spark does not say whether the table is the one that it was to make.
        made = self.properties()
        return all(made.get(name) == value for name, value in wanted.items())

    def enable_types(self, columns: Sequence[TargetColumn]) -> None:
        """Have the table know what types of columns need that are to be added."""
        table = self.open()
        assert table is not None, "asked to change a table that is not there"
        needed = any("timestamp_ntz" in column.type.simpleString() for column in columns)
        if needed and _NTZ_FEATURE not in features(table):
            feature = f"'delta.feature.{_NTZ_FEATURE}' = 'supported'"
            self.spark.sql(f"ALTER TABLE {self.sql} SET TBLPROPERTIES ({feature})")

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties that are not so already."""
        now = self.properties()
        changed = {name: value for name, value in properties.items() if now.get(name) != value}
        if changed:
            items = ", ".join(f"'{name}' = '{value}'" for name, value in changed.items())
            self.spark.sql(f"ALTER TABLE {self.sql} SET TBLPROPERTIES ({items})")

    @contextmanager
    def idempotent(self, id: Transaction) -> Iterator[None]:
        """Spark's writes in here carry this id, and are passed over if it is there already."""
        names = (f"{_TXN}.txnAppId", f"{_TXN}.txnVersion")
        for name, value in zip(names, (id.app_id, str(id.version)), strict=True):
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in names:
                self.spark.conf.unset(name)


def transaction_of(table: DeltaTable, app_id: str) -> int:
    """The version of the newest write with an id that a table has, -1 if there is none."""
    version = table.transaction_version(app_id)
    return -1 if version is None else version


def features(table: DeltaTable) -> set[str]:
    """What a reader or writer of the table has to know of the protocol."""
    protocol = table.protocol()
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
