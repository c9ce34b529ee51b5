"""Values that a target's type cannot hold, as rows for the quarantine that keeps their texts."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.pipeline.batch import Batch
from pgtide.rules import TableRules
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import Layout, TableName

TYPE = "type"  # the type of the target's column has no such value


def lost_values(
    batch: Batch,
    table: TableName,
    rows: DataFrame,
    reader: CellReader,
    columns: Collection[str] | None = None,
) -> DataFrame:
    """What the types of columns cannot hold in rows of the log: ``column, key, lsn, seq, text``.

    ``columns``: those that are written with their type, if not all. Rows and columns that a
    rule hides or changes are not among them: a quarantine must not tell them.
    """
    rules, op = batch.rules(table), F.col("op")
    everything = tuple(range(len(reader.layout.columns)))
    passing = rows.filter(rules.may_pass(reader.after(everything), op))
    shown = untouched(reader, rules)
    names = shown if columns is None else shown & {*columns}
    found = passing.filter("after IS NOT NULL").select(
        F.explode(reader.unrepresentable(names)).alias("value"),
        _key_text(reader.layout, shown).alias("key"),
        "lsn",
        "seq",
    )
    return found.select("value.column", "key", "lsn", "seq", "value.text")


def records(batch: Batch, table: TableName, values: DataFrame, reason: str) -> DataFrame:
    """Values as a quarantine has them: whose they are, and why they are there."""
    return values.select(
        F.lit(batch.scope.pipeline).alias("pipeline"),
        F.lit(table[0]).alias("schema"),
        F.lit(table[1]).alias("table"),
        *("column", "key", "lsn", "seq", "text"),
        F.lit(reason).alias("reason"),
        F.current_timestamp().alias("quarantined_at"),
    )


def untouched(reader: CellReader, rules: TableRules) -> set[str]:
    """Columns that leave as they are, be it under another name."""
    cells = reader.after()
    left = {id(cell.value) for cell in rules.apply(cells, F.col("op"))}
    return {cell.name for cell in cells if id(cell.value) in left}


def _key_text(layout: Layout, columns: Collection[str]) -> Column:
    """The key of a row as JSON of Postgres texts."""
    row = F.coalesce("after", "before")
    texts = [
        F.get(row, F.lit(index)).alias(name)
        for index, name in zip(layout.keys, layout.key_names, strict=True)
        if name in columns
    ]
    return F.to_json(F.struct(*texts)) if texts else F.lit(None).cast("string")
