"""The quarantine: texts of values that a target's type could not hold, kept beside the lake.

One row per value in ``<lake>/_pgtide/quarantine``, with the row's key and position: what was
written as NULL instead can be looked up, and corrected.
"""

from __future__ import annotations

from delta.tables import DeltaTable as SparkDeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtide.config.sinks import DeltaSettings
from pgtide.pipeline.batch import Batch
from pgtide.sinks.delta.appending import append
from pgtide.sinks.delta.target import Target, directory
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import Layout, TableName

COLUMNS = {
    "pipeline": "STRING",
    "schema": "STRING",
    "table": "STRING",
    "column": "STRING",
    "key": "STRING",
    "lsn": "BIGINT",
    "seq": "BIGINT",
    "text": "STRING",
    "reason": "STRING",
    "quarantined_at": "TIMESTAMP",
}
TYPE = "type"  # the type of the target's column has no such value
NOT_SENT = "not sent"  # the source did not send it, and the target has no such row


class Quarantine:
    """The quarantine table of a lake."""

    def __init__(self, spark: SparkSession, settings: DeltaSettings, batch: Batch) -> None:
        path = f"{settings.path.rstrip('/')}/_pgtide/quarantine"
        self._target = Target(spark, path, settings.storage)
        self._batch = batch

    def add(self, table: TableName, number: int, values: DataFrame, kind: str) -> None:
        """Add values, once per step: ``column, key, lsn, seq, text``."""
        mark = self._batch.mark
        name = "/".join(directory(part) for part in table)
        app_id = f"{mark.app_id(number)}/{name}/{kind}"
        if self._target.written(app_id, mark.number) or values.isEmpty():
            return
        if not self._target.exists():
            builder = SparkDeltaTable.createIfNotExists(self._target.spark)
            builder = builder.location(self._target.path)
            for name, kind in COLUMNS.items():
                builder = builder.addColumn(name, kind)
            builder.execute()
        rows = values.select(
            F.lit(mark.pipeline).alias("pipeline"),
            F.lit(table[0]).alias("schema"),
            F.lit(table[1]).alias("table"),
            *("column", "key", "lsn", "seq", "text"),
            F.lit(kind).alias("reason"),
            F.current_timestamp().alias("quarantined_at"),
        )
        append(self._target, rows, app_id, mark.number)


def unrepresentable(rows: DataFrame, reader: CellReader) -> DataFrame:
    """The values of rows of the log that their types cannot hold."""
    found = rows.filter("after IS NOT NULL").select(
        F.explode(reader.unrepresentable()).alias("value"),
        key_text(reader.layout).alias("key"),
        "lsn",
        "seq",
    )
    return found.select("value.column", "key", "lsn", "seq", "value.text")


def key_text(layout: Layout) -> Column:
    """The key of a row as JSON of Postgres texts."""
    row = F.coalesce("after", "before")
    names = layout.key_names
    texts = [F.get(row, F.lit(i)).alias(n) for i, n in zip(layout.keys, names, strict=True)]
    return F.to_json(F.struct(*texts)) if texts else F.lit(None).cast("string")
