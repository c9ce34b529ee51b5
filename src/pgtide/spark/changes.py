"""The change log for Spark users: a table's changes as typed rows, and its state at any time.

    orders = pgtide.changes(spark, "tide/log", "public.orders")
    orders.filter("op = 'update' AND after.total > before.total").show()
    pgtide.latest(spark, "tide/log", "public.orders", as_of="2026-01-31 12:00:00").show()

Columns are those that the table has now; rows from before a column was added hold in it what
ADD COLUMN gave them, rows from before a rename appear under the new name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from itertools import product

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtide.config.unbounded_numeric import STRING
from pgtide.errors import ConfigError, LogGap
from pgtide.position import Lsn, Position
from pgtide.rules.cells import Cell
from pgtide.spark.alignment import of_shapes
from pgtide.spark.cells import CellReader
from pgtide.spark.change_log import ChangeLog
from pgtide.spark.compaction import Traits, compact
from pgtide.spark.identity import with_identity
from pgtide.spark.layout import ROW_OPS, Layout, Policy, check_policy
from pgtide.spark.logged_table import LoggedTable
from pgtide.spark.moments import until
from pgtide.spark.positions import before
from pgtide.spark.sql_text import case, literal, strings_where
from pgtide.spark.stream_reader import registered
from pgtide.spark.swept_state import sweeps_of

EVENT_OPS = (*ROW_OPS, "truncate")  # a sweep is none: it tells what targets should not have
CHANGE = ("op", "lsn", "seq", "xid", "committed_at")


def changes(
    spark: SparkSession,
    log: str | os.PathLike[str],
    table: str | Sequence[str],
    *,
    stream: bool = False,
    reader: str | None = None,
    on_unrepresentable: Policy = "fail",
    unbounded_numeric: str = STRING,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """One table's changes: ``op, lsn, seq, xid, committed_at, before, after, unchanged``.

    ``before`` holds what the source sent of the old row: its replica identity. A column named
    in ``unchanged`` was not sent and is NULL in ``after``. With ``stream`` the result is a
    streaming frame of everything the log holds and of what comes; when the table's columns
    change it fails and is to be started again, from its checkpoint. With a name for ``reader``
    the log keeps what the query needs, also while it is stopped, until the reader is forgotten.

    A list of tables is read in one pass: ``op, lsn, seq, xid, committed_at, table``, and for
    each table a column of its name with ``before, after, unchanged``, NULL in others' rows.
    """
    check_policy(on_unrepresentable)
    source = ChangeLog.open(spark, log, storage)
    if reader is not None and not stream:
        raise ConfigError("only a stream is a reader", hint="Give stream=True as well.")
    if reader is not None and reader.startswith("pipeline."):
        raise ConfigError(f"{reader} is the name of a pipeline's reader", hint="Give another one.")
    found = source.tables([table] if isinstance(table, str) else table)
    found = [one.sized(unbounded_numeric) for one in found]
    if stream:
        rows = source.stream()
        if reader is not None:
            rows = registered(spark, source.storage, reader, rows)
        rows = _refuse_new_shapes(rows, source, found)
    else:
        rows = source.batch(found)
    ids = [shape for one in found for shape in one.ids]
    rows = rows.filter(F.col("op").isin(*EVENT_OPS) & of_shapes(ids))
    aligned = source.aligned(rows, found)
    if isinstance(table, str):
        return aligned.select(*CHANGE, *_typed(found[0], on_unrepresentable))
    mine = [F.col("shape").isin(*one.ids) for one in found]
    names = [F.when(here, F.lit(one.name)) for here, one in zip(mine, found, strict=True)]
    rest = [
        F.when(here, F.struct(*_typed(one, on_unrepresentable))).alias(one.name)
        for here, one in zip(mine, found, strict=True)
    ]
    return aligned.select(*CHANGE, F.coalesce(*names).alias("table"), *rest)


def latest(
    spark: SparkSession,
    log: str | os.PathLike[str],
    table: str,
    as_of: Position | datetime | str | None = None,
    *,
    on_unrepresentable: Policy = "fail",
    unbounded_numeric: str = STRING,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """The table's rows, rebuilt from the log: now, or as of a position or a time.

    A position is the first that does not count; a time is the last that does. The table is the
    one that had the name at that moment; rows of others that had it before do not count.
    """
    check_policy(on_unrepresentable)
    counted = until(as_of)
    source = ChangeLog.open(spark, log, storage)
    if source.complete_from:
        raise LogGap(
            "the log no longer holds the beginning of the table",
            detail=f"Retention has kept {Position(Lsn(source.complete_from))} and later.",
            hint="Read a mirror instead, or set log.retention higher.",
        )
    found = source.table_at(table, as_of).present.sized(unbounded_numeric)
    source.refuse_dropped(found, table, counted)
    if not found.layout.keys:
        raise ConfigError(
            "the state of a table without a key cannot be told from its changes",
            detail=f"{table} has no primary key and no identity index.",
            hint="Use pgtide.changes(), or give the table a key.",
        )
    rows = source.batch([found]).filter(of_shapes(found.ids) & counted)
    emptied = _emptied(rows, found)
    sweeps = sweeps_of(rows, found)
    traits = Traits(unsent=_unsent(rows, found))
    layout = with_identity(found.layout, found.shapes).under(on_unrepresentable)
    state = compact(source.aligned(rows, [found]), layout, traits)
    kept = state.filter((F.col("op") != "delete") & ~emptied)
    kept = reduce(lambda left, sweep: sweep.apply(left), sweeps, kept)
    cells = CellReader(found.layout, on_unrepresentable).after()
    return kept.select(*[cell.value.alias(cell.name) for cell in cells])


def _typed(table: LoggedTable, policy: Policy) -> list[Column]:
    """``before``, ``after`` and ``unchanged`` of one table's rows."""
    reader = CellReader(table.layout, policy)
    everything = tuple(range(len(table.layout.columns)))
    return [
        _struct("before", reader.before()),
        _struct("after", reader.after(everything)),
        _names("unchanged", table.layout).alias("unchanged"),
    ]


def _struct(side: str, cells: list[Cell]) -> Column:
    values = F.struct(*[cell.value.alias(cell.name) for cell in cells])
    return F.when(F.col(side).isNotNull(), values).alias(side)


def _names(indexes: str, layout: Layout) -> Column:
    """Names for indexes of columns; spelled out, because a lambda would not be compiled."""
    found = [
        (f"array_contains({indexes}, {index})", literal(column.name))
        for index, column in enumerate(layout.columns)
    ]
    return F.expr(case(f"{indexes} IS NOT NULL", strings_where(found)))


def _refuse_new_shapes(
    rows: DataFrame, source: ChangeLog, tables: Sequence[LoggedTable]
) -> DataFrame:
    """Fail on a row of these tables whose columns were not known when the query began.

    The shapes are looked up anew in every batch, so that a new partition is noticed too.
    """
    facts = F.struct("oid", "root_oid", "schema", "table", "root_schema", "root_table")
    known = source.shapes_frame().select(F.col("shape").alias("known"), facts.alias("facts"))
    mine = F.lit(False)
    for table, prefix in product(tables, ("", "root_")):
        mine = mine | F.col(f"facts.{prefix}oid").isin(*table.relations)
        named = F.struct(f"facts.{prefix}schema", f"facts.{prefix}table")
        # Dropped and created again, it is another relation under the same name.
        mine = mine | (named == F.struct(*map(F.lit, table.layout.table)))
    new = mine & (F.col("shape") > max(source.shapes))  # ids only grow
    refusal = F.raise_error(F.lit("pgtide: the table's columns changed; start the query again"))
    joined = rows.join(F.broadcast(known), F.col("shape") == F.col("known"), "left")
    return joined.withColumn("shape", F.when(new, refusal.cast("long")).otherwise(F.col("shape")))


def _unsent(rows: DataFrame, table: LoggedTable) -> tuple[int, ...]:
    """Columns that some row does not carry; as which of several shapes does not matter."""
    found = rows.select(F.explode("unchanged").alias("index"), "shape").distinct().collect()
    names = [column.name for column in table.layout.columns]
    by_id = {shape.id: shape for shape in table.shapes}
    mine = {column.attnum: column.name for column in table.layout.columns}
    current = set()
    for row in found:
        shape = by_id[row["shape"]]
        column = shape.columns[row["index"]]
        # A partition numbers its columns by itself.
        same = shape.oid == table.layout.shape.oid
        current.add(mine.get(column.attnum, column.name) if same else column.name)
    return tuple(index for index, name in enumerate(names) if name in current)


def _emptied(rows: DataFrame, table: LoggedTable) -> Column:
    """Whether a row was there when its table, or its partition, was last truncated."""
    last = F.max(F.struct("lsn", "seq")).alias("at")
    truncated = rows.filter("op = 'truncate'").groupBy("shape").agg(last)
    by_id = {shape.id: shape for shape in table.shapes}
    gone = F.lit(False)
    for row in truncated.collect():
        relation = by_id[row["shape"]].oid
        ids = [shape.id for shape in table.shapes if shape.oid == relation]
        at = Position(row["at"]["lsn"], row["at"]["seq"])
        gone = gone | (F.col("shape").isin(*ids) & before(at))
    return gone
