"""``history``: every change of a table, appended.

A row has the new row's columns, of a delete those of the old row that were sent. NULL stands
for a value that was not sent too: ``_pgtide_unchanged`` names those columns.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, TimestampType

from pgtide.pipeline.steps import Reshaped, Rows
from pgtide.rules.cells import Cell
from pgtide.sinks.delta.columns import (
    COMMITTED_AT,
    LSN,
    RELATION,
    SEQ,
    TargetColumn,
)
from pgtide.sinks.delta.event_table import EventTable
from pgtide.spark.column_names import target_names
from pgtide.spark.identity import left_out, with_old_rows
from pgtide.spark.layout import Layout

OP = "_pgtide_op"
XID = "_pgtide_xid"
UNCHANGED = "_pgtide_unchanged"
BEFORE = "_pgtide_before"

_OWN = (
    TargetColumn(OP, StringType()),
    TargetColumn(LSN, LongType()),
    TargetColumn(SEQ, LongType()),
    TargetColumn(XID, LongType()),
    TargetColumn(COMMITTED_AT, TimestampType()),
    TargetColumn(RELATION, LongType()),
    TargetColumn(UNCHANGED, ArrayType(StringType())),
    TargetColumn(BEFORE, MapType(StringType(), StringType())),
)
_NAMES = [column.name for column in _OWN]


class HistoryTable(EventTable):
    """A table that has every change of one of the source."""

    mode = "history"

    def _columns(self, step: Rows | Reshaped) -> list[TargetColumn]:
        cells = self._cells(step, self._reader(step).after())
        names = target_names(cells, _NAMES)
        data = [TargetColumn(n, c.type, c.attnum) for n, c in zip(names, cells, strict=True)]
        return [*self._own(step.layout), *data]

    def _frame(self, step: Rows, events: DataFrame) -> DataFrame:
        layout, reader = step.layout, self._reader(step)
        partial = left_out(layout)
        unsent = tuple(sorted({*step.traits.unsent, *partial}))
        rules, op = self._batch.rules(step.table), F.col("op")
        raw = reader.after(unsent)
        # What hinges on a value that was not sent stays: nothing says that it may go.
        rows = with_old_rows(events, layout).filter(rules.may_pass(raw, op))
        cells = self._cells(step, raw)
        names = target_names(cells, _NAMES)
        own: Mapping[str, Column] = {
            OP: op,
            LSN: F.col("lsn"),
            SEQ: F.col("seq"),
            XID: F.col("xid"),
            COMMITTED_AT: F.col("committed_at"),
            RELATION: self._relation(step),
            UNCHANGED: _unchanged(cells, names),
            BEFORE: _before(self._cells(step, reader.before()), names),
        }
        return rows.select(
            *[own[column.name].alias(column.name) for column in self._own(layout)],
            *[cell.value.alias(name) for name, cell in zip(names, cells, strict=True)],
        )

    def _typed(self, step: Rows, events: DataFrame) -> tuple[DataFrame, list[str]]:
        rows = with_old_rows(events, step.layout)
        return rows, [column.name for column in step.layout.columns]

    def _cells(self, step: Rows | Reshaped, cells: list[Cell]) -> list[Cell]:
        return self._batch.rules(step.table).apply(cells, F.col("op"))

    def _own(self, layout: Layout) -> list[TargetColumn]:
        """pgtide's columns; only a partitioned table has one for the partition."""
        parts = any(s.root_oid == layout.shape.oid for s in self._batch.shapes.values())
        return [column for column in _OWN if parts or column.name != RELATION]

    def _relation(self, step: Rows) -> Column:
        pairs = [F.lit(number) for shape in step.shapes for number in (shape.id, shape.oid)]
        return F.create_map(*pairs)[F.col("shape")].cast("long")


def _unchanged(cells: list[Cell], names: list[str]) -> Column:
    """Names of the columns that were not sent; NULL when all were."""
    missing = [
        F.when(~cell.sent, F.lit(name))
        for name, cell in zip(names, cells, strict=True)
        if cell.sent is not None
    ]
    if not missing:
        return F.lit(None).cast("array<string>")
    found = F.array_compact(F.array(*missing))
    return F.when(F.size(found) > 0, found)


def _before(cells: list[Cell], names: list[str]) -> Column:
    """Old values that were sent, as Postgres texts by name; NULL when none were."""
    entries = []
    for name, cell in zip(names, cells, strict=True):
        entry = F.struct(F.lit(name).alias("key"), cell.text.alias("value"))
        entries.append(entry if cell.sent is None else F.when(cell.sent, entry))
    old = F.map_from_entries(F.array_compact(F.array(*entries)))
    return F.when(F.col("before").isNotNull(), old)
