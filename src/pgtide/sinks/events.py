"""A batch as events: the rows of the log as the rules leave them, still as Postgres texts.

State sinks take a batch apart into steps; sinks of events deliver every row of it, in order.
What comes out has the log's columns, and shapes that describe what the rules made of each
table, so that everything that can read rows of the log (``log/event.py`` and the formats)
reads these.

Rows of a partition are events of the partitioned table. Only its TRUNCATE keeps the
partition's name: the others' rows are still there. A sweep is no event: it tells about targets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.config.patterns import TablePatterns
from pgtide.pipeline.batch import Batch
from pgtide.position import Position
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.shape import Shape
from pgtide.sinks.ruled_shapes import ruled_shape
from pgtide.spark.alignment import of_shapes
from pgtide.spark.cells import CellReader
from pgtide.spark.identity import with_identity
from pgtide.spark.layout import Layout, TableName
from pgtide.spark.positions import at_or_after

COLUMNS = (
    *("lsn", "seq", "xid", "committed_at", "op", "schema", "table", "shape"),
    *("before", "after", "unchanged", "payload", "last"),
)
EVERY_TABLE = ["*.*"]


@dataclass(frozen=True)
class Events:
    """Rows of the log, in no order, and the shapes that they refer to."""

    frame: DataFrame
    shapes: dict[int, Shape]
    most: int  # how many there are before filters

    def after(self, position: Position | None) -> Events:
        """Those behind a position."""
        if position is None:
            return self
        return replace(self, frame=self.frame.filter(at_or_after(position.next)))


@dataclass(frozen=True)
class LayoutRows:
    """Everything in a batch that has one layout: rows and truncates of a table."""

    layout: Layout
    shapes: tuple[Shape, ...]
    changed: tuple[Shape, ...]  # those of rows that were updated or deleted
    unsent: tuple[int, ...]  # columns that some row was not sent
    rows: int
    low: Position

    @property
    def sent(self) -> Layout:
        """The layout with the identity that old rows have, which may not be the root's."""
        told = self.changed or self.shapes
        alone = [shape.id for shape in told] == [self.layout.shape.id]
        return self.layout if alone else with_identity(self.layout, told)

    def reader(self, batch: Batch) -> CellReader:
        return CellReader.of(self.sent, batch.settings)

    def cells(self, batch: Batch) -> tuple[list[Cell], list[Cell]]:
        """The new row and the old one, before any rule."""
        reader = self.reader(batch)
        return reader.after(self.unsent), reader.before()

    def admitted(self, batch: Batch, *, undecided: bool = False) -> DataFrame:
        """The rows that filters and route let through, in the layout's order of columns.

        ``undecided``: also those on which a filter cannot decide, for want of a value.
        """
        rules, op = batch.rules(self.layout.table), F.col("op")
        ids = [shape.id for shape in self.shapes]
        frame = self.layout.align(batch.changes.filter(of_shapes(ids)), self.shapes)
        new, old = (rules.keep(cells, op) for cells in self.cells(batch))
        if new is not None and old is not None:
            # Such an event is not shown to those it may not be meant for.
            decided = F.when(op == "delete", old).otherwise(new)
            frame = frame.filter(F.coalesce(decided, F.lit(undecided)))
        admitted = rules.admits(op)
        return frame if admitted is None else frame.filter(admitted)


# -- which rows -----------------------------------------------------------------------


def stepped_tables(batch: Batch) -> set[TableName]:
    """The tables that the batch does something to."""
    return {step.table for work in batch.work for step in work.steps}


def ddl_tables(batch: Batch) -> set[TableName]:
    """The tables that DDL of the batch names and that are to be delivered."""
    if not any(count.op == "ddl" for count in batch.census.counts):
        return set()
    ddl = (F.col("op") == "ddl") & F.col("table").isNotNull()
    named = batch.frame.filter(ddl).select("schema", "table")
    patterns = TablePatterns(batch.settings.tables)
    found = {_root(batch, (row[0], row[1])) for row in named.distinct().collect()}
    return {
        (schema, table)
        for schema, table in found
        if patterns.matches(schema, table)
        and f"{schema}.{table}" not in batch.parked
        and (batch.only is None or f"{schema}.{table}" in batch.only)
    }


def _root(batch: Batch, table: TableName) -> TableName:
    named = [shape for shape in batch.shapes.values() if (shape.schema, shape.table) == table]
    newest = max(named, key=lambda shape: shape.id, default=None)
    return table if newest is None else newest.home_name


def table_events(batch: Batch, tables: Collection[TableName]) -> Events:
    """Changes and DDL of some tables."""
    parts = [ddl_events(batch, tables)]
    plain: list[LayoutRows] = []
    for rows in layouts(batch, tables):
        if _is_plain(rows, batch.rules(rows.layout.table)):
            plain.append(rows)
        else:
            parts.append(_ruled(batch, rows))
    if plain:
        # All in one part: each part reads the batch.
        shapes = {rows.layout.shape.id: rows.layout.shape for rows in plain}
        frame = batch.changes.filter(F.col("shape").isin(*shapes)).select(*COLUMNS)
        parts.append(Events(frame, shapes, sum(rows.rows for rows in plain)))
    return _together(batch, parts)


def loose_events(batch: Batch) -> Events:
    """Messages, and DDL that names no table.

    A pipeline that was told which tables it takes has none, nor has one that catches up.
    """
    found = [c for c in batch.census.counts if c.shape is None]
    if batch.settings.tables != EVERY_TABLE or batch.only is not None or not found:
        return _together(batch, [])
    frame = batch.frame.filter(F.col("table").isNull()).select(*COLUMNS)
    return Events(frame, {}, sum(count.rows for count in found))


def all_events(batch: Batch) -> Events:
    """Everything that the pipeline delivers."""
    tables = stepped_tables(batch) | ddl_tables(batch)
    return _together(batch, [table_events(batch, tables), loose_events(batch)])


def layouts(batch: Batch, tables: Collection[TableName]) -> list[LayoutRows]:
    """What the batch holds of some tables, layout by layout, the earliest first."""
    found: dict[Layout, LayoutRows] = {}
    for count in batch.census.counts:
        if count.shape is None or count.op == "sweep":
            continue
        shape = batch.shapes[count.shape]
        layout = Layout.of(shape, batch.shapes)
        if layout.table not in tables:
            continue
        names = [column.name for column in layout.columns]
        unsent = {names.index(shape.columns[index].name) for index in count.unsent}
        known = found.get(layout) or LayoutRows(layout, (), (), (), 0, count.low)
        changes = count.op in ("update", "delete") and shape not in known.changed
        found[layout] = LayoutRows(
            layout,
            known.shapes if shape in known.shapes else (*known.shapes, shape),
            (*known.changed, shape) if changes else known.changed,
            tuple(sorted(unsent.union(known.unsent))),
            known.rows + count.rows,
            min(known.low, count.low),
        )
    return sorted(found.values(), key=lambda rows: rows.low)


def ddl_events(batch: Batch, tables: Collection[TableName]) -> Events:
    """DDL that names one of some tables, or a partition of one."""
    names = {(shape.schema, shape.table) for shape in batch.shapes.values()}
    members = {name for name in names if _root(batch, name) in tables}
    wanted = [
        (F.col("schema") == schema) & (F.col("table") == table)
        for schema, table in sorted({*tables, *members})
    ]
    chosen = reduce(SparkColumn.__or__, wanted, F.lit(False))
    frame = batch.frame.filter((F.col("op") == "ddl") & chosen).select(*COLUMNS)
    return Events(frame, {}, sum(c.rows for c in batch.census.counts if c.op == "ddl"))


def _together(batch: Batch, parts: list[Events]) -> Events:
    filled = [part for part in parts if part.most]
    if not filled:
        return Events(batch.frame.filter(F.lit(False)).select(*COLUMNS), {}, 0)
    return Events(
        frame=reduce(DataFrame.union, (part.frame for part in filled)),
        shapes={id_: shape for part in filled for id_, shape in part.shapes.items()},
        most=sum(part.most for part in filled),
    )


# -- what rules make of them ------------------------------------------------------------


def _is_plain(rows: LayoutRows, rules: TableRules) -> bool:
    """Whether rows go out as they are in the log."""
    same = [shape.id for shape in rows.shapes] == [rows.layout.shape.id]
    return same and not rules.rules and rules.route is None


def _ruled(batch: Batch, rows: LayoutRows) -> Events:
    """Rows with the texts that the rules leave, and the shape of those."""
    rules, op = batch.rules(rows.layout.table), F.col("op")
    new, old = (rules.apply(cells, op) for cells in rows.cells(batch))
    shape = ruled_shape(rows.sent.shape, rules, new)
    schema, table = event_names(batch, rows)
    own = F.when(_of_partition(rows), F.col("shape"))
    frame = rows.admitted(batch).withColumns(
        {
            "schema": schema,
            "table": table,
            "shape": F.coalesce(own, F.lit(shape.id).cast("long")),
            "before": _texts("before", old),
            "after": _texts("after", new),
            "unchanged": F.when(F.col("after").isNotNull(), _unsent(new)),
        }
    )
    shapes = {shape.id: shape}
    for member in rows.shapes:
        if member.id != shape.id:
            shapes[member.id] = replace(
                shape, id=member.id, oid=member.oid, schema=member.schema, table=member.table
            )
    return Events(frame.select(*COLUMNS), shapes, rows.rows)


def event_names(batch: Batch, rows: LayoutRows) -> tuple[SparkColumn, SparkColumn]:
    """Schema and table of each event: where the route leads, but for one partition's TRUNCATE."""
    target = batch.rules(rows.layout.table).target
    kept = _of_partition(rows)
    schema, table = (
        F.when(kept, F.col(name)).otherwise(F.lit(part)).alias(name)
        for name, part in zip(("schema", "table"), target, strict=True)
    )
    return schema, table


def _of_partition(rows: LayoutRows) -> SparkColumn:
    """A TRUNCATE of one partition."""
    root = rows.layout.shape.oid
    members = [shape.id for shape in rows.shapes if shape.oid != root]
    return (F.col("op") == "truncate") & F.col("shape").isin(*members)


def _texts(side: str, cells: list[Cell]) -> SparkColumn:
    # The text of a value that was not sent is NULL already, unless a rule computed one.
    texts = [cell.text if cell.sent is None else F.when(cell.sent, cell.text) for cell in cells]
    return F.when(F.col(side).isNotNull(), F.array(*texts))


def _unsent(cells: list[Cell]) -> SparkColumn:
    missing = [
        F.when(~cell.sent, F.lit(index))
        for index, cell in enumerate(cells)
        if cell.sent is not None
    ]
    if not missing:
        return F.lit(None).cast("array<int>")
    found = F.array_compact(F.array(*missing))
    return F.when(F.size(found) > 0, found)
