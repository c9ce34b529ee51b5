"""Events with typed values, for Parquet: rows of one layout as columns and structs.

``before`` has the columns that the source sends of an old row, ``after`` all of them;
``unchanged`` names what was not sent of the new one. Under ``on_unrepresentable: null`` the
texts that no type could hold are in ``unrepresentable``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.config.sinks import PivotSettings
from pgtide.pipeline.batch import Batch
from pgtide.position import Position
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.sinks.chunks import HIDDEN_ORDER, ORDER
from pgtide.sinks.events import Events, LayoutRows, event_names
from pgtide.sinks.lost_values import TYPE, lost_values, records
from pgtide.spark.alignment import of_shapes
from pgtide.spark.cells import CellReader
from pgtide.spark.column_names import target_names
from pgtide.spark.layout import Layout
from pgtide.spark.pivot import changed_rows, pivot_rows, require_old_rows, typed_columns

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


@dataclass(frozen=True)
class Pivoted:
    """Rows of one layout as pivot rows, behind a position."""

    batch: Batch
    rows: LayoutRows
    settings: PivotSettings
    behind: Position | None

    def frame(self) -> DataFrame:
        """A row per changed field; behind its own columns it has the position, out of sight."""
        changed = self.batch.census.changed
        require_old_rows(shape for shape in self.rows.shapes if shape.id in changed)
        carried = dict(zip(HIDDEN_ORDER, ORDER, strict=True))
        return pivot_rows(self._raw(), *self._parts(), carried)

    def lost(self) -> DataFrame | None:
        """Records of values that their types cannot hold, unless such values are refused."""
        if self.batch.settings.on_unrepresentable != "null":
            return None
        table, reader = self.rows.layout.table, self.rows.reader(self.batch)
        columns = typed_columns(*self._parts())
        values = lost_values(self.batch, table, changed_rows(self._raw()), reader, columns)
        return records(self.batch, table, values, TYPE)

    def _raw(self) -> DataFrame:
        layout, shapes = self.rows.layout, self.rows.shapes
        found = self.batch.changes.filter(of_shapes(shape.id for shape in shapes))
        return Events(layout.align(found, shapes), {}, self.rows.rows).after(self.behind).frame

    def _parts(self) -> tuple[Layout, TableRules, CellReader, PivotSettings]:
        layout = self.rows.layout
        return layout, self.batch.rules(layout.table), self.rows.reader(self.batch), self.settings


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
