"""Rows in flight: those whose state at the common position cannot be told from outside.

They are found in the log: changed after the WAL position from before the snapshot, or by a
transaction that the snapshot does not see. Rows of a table without a key are known by all of
their values instead, old and new.
"""

from __future__ import annotations

from typing import TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtide.errors import SourceExhausted
from pgtide.log.schema import CHANGES
from pgtide.log.storage import Storage
from pgtide.spark.compaction import from_old_row
from pgtide.spark.layout import ROW_OPS
from pgtide.spark.paths import spark_path
from pgtide.verify.logged_keys import Window, logged_keys
from pgtide.verify.moment import Moment
from pgtide.verify.planning import TablePlan
from pgtide.verify.postgres_side import InFlight
from pgtide.verify.target_side import TargetTable
from pgtide.verify.targets import Plan

T = TypeVar("T")

MOST = 1_000_000  # they are kept in memory, and sent to the source


def rows_in_flight(
    spark: SparkSession, log: Storage, plan: TablePlan, moment: Moment, target: TargetTable
) -> InFlight:
    """Keys in flight as texts, or hashes of rows of a table without a key.

    The log is to be read after the target's version was pinned: nothing is in that version which
    is not in the log.
    """
    if plan.keys:
        return keys_in_flight(log, plan, Window(moment))
    events = _events(spark, log, plan, moment)
    layout = plan.mirror.layout
    everything = range(len(layout.columns))
    new = from_old_row(events, layout, everything).filter("after IS NOT NULL")
    old = events.withColumn("after", F.col("before")).filter("after IS NOT NULL")
    rows = plan.mirror.project(new).unionByName(plan.mirror.project(old))
    return bounded(plan, target.hashes_of(rows))


def _events(spark: SparkSession, log: Storage, plan: TablePlan, moment: Moment) -> DataFrame:
    frame = spark.read.format("delta").load(spark_path(log.child(CHANGES).root))
    mine = F.col("shape").isin(*plan.logged.ids) & F.col("op").isin(*ROW_OPS)
    # The log's files say which tables they hold.
    mine &= F.col("table").isin(*{table for _, table in plan.logged.names})
    late = F.col("lsn") > int(moment.before)
    unseen = _unseen(moment)
    frame = frame.filter(mine & (late if unseen is None else late | unseen))
    return plan.mirror.layout.align(frame, plan.logged.shapes)


def _unseen(moment: Moment) -> Column | None:
    """Whether the snapshot does not see a transaction that was committed before it was taken."""
    xmax, running = moment.visibility.xmax, moment.visibility.running
    full = F.pmod(F.col("xid") - xmax + 2**31, F.lit(2**32)) - 2**31 + F.lit(xmax)
    unseen = full >= xmax
    if running:
        unseen = unseen | full.isin(*running)
    if moment.oldest is None:
        return unseen
    day = F.col("day") >= F.lit(moment.oldest.date())
    return day & (F.col("committed_at") >= F.lit(moment.oldest)) & unseen


def keys_in_flight(log: Storage, plan: Plan, window: Window) -> list[tuple[str, ...]]:
    """Keys as texts. Needs no Spark."""
    found: set[tuple[str, ...]] = set()
    for key in logged_keys(log.child(CHANGES), plan, window):
        found.add(key)
        if len(found) > MOST:
            break
    return bounded(plan, sorted(found))


def bounded(plan: Plan, found: list[T]) -> list[T]:
    """What was found, or an error if that is too much."""
    if len(found) > MOST:
        raise SourceExhausted(
            "too many rows are being changed to leave them out",
            detail=f"More than {MOST} rows of {'.'.join(plan.table)} changed meanwhile.",
            hint="Try again when less is written: pgtide verify",
        )
    return found
