"""The quarantine: texts of values that a target's type could not hold, kept beside the lake.

One row per value in ``<lake>/_pgtide/quarantine``, with the row's key and position: what was
written as NULL instead can be looked up, and corrected.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, TimestampType

from pgtide.config.sinks import DeltaSettings
from pgtide.pipeline.batch import Batch
from pgtide.sinks.delta.appending import append
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.target import Target
from pgtide.sinks.directories import OWN
from pgtide.sinks.lost_values import TYPE, lost_values, records
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import TableName

COLUMNS = (
    TargetColumn("pipeline", StringType()),
    TargetColumn("schema", StringType()),
    TargetColumn("table", StringType()),
    TargetColumn("column", StringType()),
    TargetColumn("key", StringType()),
    TargetColumn("lsn", LongType()),
    TargetColumn("seq", LongType()),
    TargetColumn("text", StringType()),
    TargetColumn("reason", StringType()),
    TargetColumn("quarantined_at", TimestampType()),
)
IDENTITY = ("pipeline", "schema", "table", "column", "lsn", "seq", "reason")
NOT_SENT = "not sent"  # the source did not send it, and the target has no such row


class Quarantine:
    """The quarantine table of a lake."""

    def __init__(self, spark: SparkSession, settings: DeltaSettings, batch: Batch) -> None:
        path = f"{settings.path.rstrip('/')}/{OWN}/quarantine"
        self._target = Target(spark, path, settings.storage)
        self._batch = batch

    def keep(
        self,
        table: TableName,
        rows: DataFrame,
        reader: CellReader,
        columns: Collection[str] | None = None,
    ) -> None:
        """Add the values of rows of the log that are written as NULL.

        ``columns``: those that are written with their type, if not all.
        """
        if reader.policy == "null":
            values = lost_values(self._batch, table, rows, reader, columns)
            self.add(table, values, TYPE)

    def add(self, table: TableName, values: DataFrame, reason: str) -> None:
        """Add values that are not there yet: ``column, key, lsn, seq, text``."""
        if values.isEmpty():
            return
        self._target.ensure(COLUMNS)
        rows = records(self._batch, table, values, reason)
        same = [F.col(f"new.{name}").eqNullSafe(F.col(f"known.{name}")) for name in IDENTITY]
        known = self._target.frame().alias("known")
        append(self._target, rows.alias("new").join(known, same, "left_anti"), None)
