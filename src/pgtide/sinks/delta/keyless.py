"""Mirrors of tables without a key: rows are told apart by all of their values.

Inserts are appended. Where the source sends whole old rows (REPLICA IDENTITY FULL), an update
or delete takes away one of the equal rows: how often each row is there afterwards follows from
how often it was there and what the events add and take. One MERGE removes what there was of
such rows and writes what there is to be. Rows count as equal as the mirror has them: rules may
leave out or mask what tells them apart at the source.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.errors import PipelineError
from pgtide.pipeline.steps import Rows
from pgtide.postgres.names import identity_full
from pgtide.sinks.delta.columns import DELETED, LSN, SEQ, TargetColumn, comparable
from pgtide.sinks.delta.mirror import GONE, OWN, MirrorPlan
from pgtide.sinks.delta.reached import Portion
from pgtide.sinks.delta.target import Target
from pgtide.spark.compaction import EVENT, from_old_row
from pgtide.spark.keyed_events import counted
from pgtide.spark.sql_text import quoted

COUNT = "_pgtide_count"  # how many of these rows are added, or taken if negative
THERE = "_pgtide_there"  # how many of these rows the mirror has
NEWEST = "_pgtide_newest"  # of equal rows the one of the latest event


def write_keyless(target: Target, plan: MirrorPlan, portion: Portion, events: DataFrame) -> None:
    """Bring one portion into a mirror whose table has no key."""
    step = portion.step
    if not step.traits.removes:
        portion.append(target, _columns(plan, _net(plan, step, events)))
        return
    if plan.layout.shape.replica_identity != "f":
        raise PipelineError(
            "a table without a key cannot be mirrored",
            detail=f"{'.'.join(step.table)} has no key, and the source does not send old rows.",
            hint=f"{identity_full(*step.table)}, or use mode: history.",
        )
    _merge(target, plan, portion, _net(plan, step, events))


def _net(plan: MirrorPlan, step: Rows, events: DataFrame) -> DataFrame:
    """Each distinct row that the events touch, with how many of it they add."""
    events = from_old_row(events.filter("op != 'truncate'"), plan.layout, step.traits.unsent)
    if not step.traits.removes:
        net = events.withColumn(COUNT, F.lit(1))
    else:
        added = counted(events, by=(), newest=("lsn", "seq", "xid", "committed_at", "shape"))
        net = added.withColumnsRenamed({"row": "after", "copies": COUNT}).withColumns(
            {
                "op": F.lit("insert"),
                "before": F.lit(None).cast("array<string>"),
                "unchanged": F.lit(None).cast("array<int>"),
            }
        )
    keep = plan.rules.keep(plan.reader.after(), F.col("op"))
    kept = net if keep is None else net.filter(F.coalesce(keep, F.lit(False)))
    return kept.select(*EVENT, COUNT)


def _columns(plan: MirrorPlan, rows: DataFrame) -> DataFrame:
    return plan.project(rows).select(*[quoted(column.name) for column in plan.columns()])


def _merge(target: Target, plan: MirrorPlan, portion: Portion, net: DataFrame) -> None:
    names = [column.name for column in plan.columns()]
    columns = [column for column in plan.columns() if column.name not in OWN]
    data = [column.name for column in columns]
    rows = _counted(plan.project(net, COUNT), names, data)
    taken = rows.filter(F.col(COUNT) < 0)
    shown = f"{DELETED} IS NOT TRUE" if plan.soft_delete else "true"  # marked while it had a key
    present = target.frame().filter(shown)
    there = present.groupBy(*map(quoted, data)).agg(F.count("*").alias(THERE))
    left = (
        taken.alias("s")
        .join(there.alias("t"), _equal("s", "t", columns))
        .select(
            *[F.col(f"s.{quoted(name)}") for name in names],
            (F.col(THERE) + F.col(COUNT)).alias(COUNT),
        )
    )
    removed = taken.select(*map(quoted, names), F.lit(True).alias(GONE))
    wanted = rows.filter(F.col(COUNT) > 0).union(left.filter(F.col(COUNT) > 0))
    written = wanted.withColumn(COUNT, F.explode(F.sequence(F.lit(1), F.col(COUNT).cast("int"))))
    source = removed.union(written.select(*map(quoted, names), F.lit(False).alias(GONE)))
    with target.idempotent(portion.id):
        (
            target.table()
            .alias("t")
            .merge(source.alias("s"), F.col(f"s.{GONE}") & _equal("s", "t", columns))
            .whenMatchedDelete(f"t.{shown}" if plan.soft_delete else None)
            .whenNotMatchedInsert(
                f"NOT s.{GONE}", values={quoted(name): f"s.{quoted(name)}" for name in names}
            )
            .execute()
        )


def _counted(rows: DataFrame, names: list[str], data: list[str]) -> DataFrame:
    """Each row that the mirror tells apart, with how many of it are added.

    The values are those of the newest, not the group's: grouping makes 0.0 of -0.0.
    """
    newest = F.max_by(F.struct(*map(quoted, names)), F.struct(LSN, SEQ))
    return (
        rows.groupBy(*map(quoted, data))
        .agg(F.sum(COUNT).alias(COUNT), newest.alias(NEWEST))
        .filter(F.col(COUNT) != 0)
        .select(f"{NEWEST}.*", COUNT)
    )


def _equal(one: str, other: str, columns: list[TargetColumn]) -> Column:
    """Whether two rows have the same values, NULL being one."""

    def value(row: str, column: TargetColumn) -> Column:
        return comparable(F.col(f"{row}.{quoted(column.name)}"), column.type)

    pairs = [value(one, column).eqNullSafe(value(other, column)) for column in columns]
    return reduce(Column.__and__, pairs, F.lit(True))
