"""Events with typed values, for Parquet: rows of one layout as columns and structs.

``before`` has the columns that the source sends of an old row, ``after`` all of them;
``unchanged`` names what was not sent of the new one. Under ``on_unrepresentable: null`` the
texts that no type could hold are in ``unrepresentable``.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.config.sinks import PivotSettings
from pgtide.pipeline.batch import Batch
from pgtide.position import Position
from pgtide.rules.cells import Cell
from pgtide.sinks.chunks import HIDDEN_ORDER, ORDER
from pgtide.sinks.events import Events, LayoutRows, event_names
from pgtide.sinks.target_names import target_names
from pgtide.spark.pivot import pivot_rows, require_old_rows

_OWN = ("lsn", "seq", "xid", "committed_at", "op")


def typed_rows(batch: Batch, rows: LayoutRows) -> DataFrame:
    """Rows of one layout, as the rules leave them."""
    layout, op = rows.sent, F.col("op")
    rules = batch.rules(layout.table)
    new, old = (rules.apply(cells, op) for cells in rows.cells(batch))
    sent = {c.name for c in layout.columns if c.identity or layout.shape.replica_identity == "f"}
    known = {now for was, now in rules.names(c.name for c in layout.columns).items() if was in sent}
    old = [cell for cell in old if cell.name in known]
    columns: list[Column | str] = [*_OWN, *event_names(batch, rows)]
    if old:
        columns.append(_struct("before", old))
    columns += [_struct("after", new), _unchanged(new), "payload"]
    if batch.settings.on_unrepresentable == "null":
        columns.append(F.concat(_lost("before", old), _lost("after", new)).alias("unrepresentable"))
    return rows.admitted(batch).select(*columns)


def untyped_rows(events: Events) -> DataFrame:
    """Events that belong to no row: DDL and messages."""
    return events.frame.select(*_OWN, "schema", "table", "payload")


def pivoted_rows(
    batch: Batch, rows: LayoutRows, settings: PivotSettings, behind: Position | None
) -> DataFrame:
    """A row per changed field; behind its own columns it has the position, out of sight."""
    changed = {count.shape for count in batch.census.counts if count.op in ("update", "delete")}
    require_old_rows(shape for shape in rows.shapes if shape.id in changed)
    ids = [shape.id for shape in rows.shapes]
    found = batch.frame.filter(F.col("shape").isin(*ids))
    raw = Events(rows.layout.align(found, rows.shapes), {}, rows.rows).after(behind).frame
    rules = batch.rules(rows.layout.table)
    carried = dict(zip(HIDDEN_ORDER, ORDER, strict=True))
    return pivot_rows(raw, rows.layout, rules, rows.reader(batch), settings, carried)


def _struct(side: str, cells: list[Cell]) -> Column:
    names = target_names(cells)
    values = [cell.value.alias(name) for name, cell in zip(names, cells, strict=True)]
    return F.when(F.col(side).isNotNull(), F.struct(*values)).alias(side)


def _unchanged(cells: list[Cell]) -> Column:
    names = target_names(cells)
    missing = [
        F.when(~cell.sent, F.lit(name))
        for name, cell in zip(names, cells, strict=True)
        if cell.sent is not None
    ]
    found = F.array_compact(F.array(*missing)) if missing else F.array()
    # Of a row only: there is nothing to be sent of a TRUNCATE.
    found = F.when(F.col("after").isNotNull(), found.cast("array<string>"))
    return found.alias("unchanged")


def _lost(side: str, cells: list[Cell]) -> Column:
    """Side, column and text of each value that its type cannot hold."""
    lost = []
    for cell in cells:
        facts = {"side": F.lit(side), "column": F.lit(cell.name), "text": cell.text}
        value = F.struct(*[fact.alias(name) for name, fact in facts.items()])
        lost.append(F.when(cell.text.isNotNull() & cell.value.isNull(), value))
    if not lost:
        return F.array().cast("array<struct<side:string,column:string,text:string>>")
    return F.array_compact(F.array(*lost))
