"""The quarantine: texts of values that a target's type could not hold, kept beside the lake.

One row per value in ``<lake>/_pgtide/quarantine``, with the row's key and position: what was
written as NULL instead can be looked up, and corrected.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, TimestampType

from pgtide.config.sinks import DeltaSettings
from pgtide.pipeline.batch import Batch
from pgtide.rules import TableRules
from pgtide.sinks.delta.appending import append
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.target import Target
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import Layout, TableName

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
TYPE = "type"  # the type of the target's column has no such value
NOT_SENT = "not sent"  # the source did not send it, and the target has no such row


class Quarantine:
    """The quarantine table of a lake."""

    def __init__(self, spark: SparkSession, settings: DeltaSettings, batch: Batch) -> None:
        path = f"{settings.path.rstrip('/')}/_pgtide/quarantine"
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

        ``columns``: those that are written with their type, if not all. Rows and columns that a
        rule hides or changes are not among them: the quarantine must not tell them.
        """
        if reader.policy != "null":
            return
        rules, op = self._batch.rules(table), F.col("op")
        everything = tuple(range(len(reader.layout.columns)))
        for condition in (rules.admits(op), rules.keep(reader.after(everything), op)):
            if condition is not None:
                rows = rows.filter(F.coalesce(condition, F.lit(True)))
        shown = _untouched(reader, rules)
        names = shown if columns is None else shown & {*columns}
        self.add(table, unrepresentable(rows, reader, names), TYPE)

    def add(self, table: TableName, values: DataFrame, reason: str) -> None:
        """Add values that are not there yet: ``column, key, lsn, seq, text``."""
        if values.isEmpty():
            return
        self._target.ensure(COLUMNS)
        rows = values.select(
            F.lit(self._batch.mark.pipeline).alias("pipeline"),
            F.lit(table[0]).alias("schema"),
            F.lit(table[1]).alias("table"),
            *("column", "key", "lsn", "seq", "text"),
            F.lit(reason).alias("reason"),
            F.current_timestamp().alias("quarantined_at"),
        )
        same = [F.col(f"new.{name}").eqNullSafe(F.col(f"known.{name}")) for name in IDENTITY]
        known = self._target.frame().alias("known")
        append(self._target, rows.alias("new").join(known, same, "left_anti"), None)


def _untouched(reader: CellReader, rules: TableRules) -> set[str]:
    """Columns that leave as they are, be it under another name."""
    cells = reader.after()
    left = {id(cell.value) for cell in rules.apply(cells, F.col("op"))}
    return {cell.name for cell in cells if id(cell.value) in left}


def unrepresentable(rows: DataFrame, reader: CellReader, columns: Collection[str]) -> DataFrame:
    """The values of rows of the log that the types of these columns cannot hold."""
    found = rows.filter("after IS NOT NULL").select(
        F.explode(reader.unrepresentable(columns)).alias("value"),
        _key_text(reader.layout, columns).alias("key"),
        "lsn",
        "seq",
    )
    return found.select("value.column", "key", "lsn", "seq", "value.text")


def _key_text(layout: Layout, columns: Collection[str]) -> Column:
    """The key of a row as JSON of Postgres texts."""
    row = F.coalesce("after", "before")
    texts = [
        F.get(row, F.lit(index)).alias(name)
        for index, name in zip(layout.keys, layout.key_names, strict=True)
        if name in columns
    ]
    return F.to_json(F.struct(*texts)) if texts else F.lit(None).cast("string")
