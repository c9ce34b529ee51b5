"""``scd2``: every version that a row had, and from when to when.

New versions and the end of those before them are one MERGE: there is nothing between the two.
"""

from __future__ import annotations

from datetime import datetime

from delta.tables import DeltaTable as SparkDeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.pipeline.steps import Reshaped, Rows, Truncated
from pgtide.sinks.delta.columns import LSN, RELATION, SEQ, earlier
from pgtide.sinks.delta.lake_table import LakeTable, shaped_by
from pgtide.sinks.delta.mirror import newer
from pgtide.sinks.delta.reached import REACHED, Portion, writes
from pgtide.sinks.delta.target import Target
from pgtide.sinks.delta.versions import (
    CLOSES,
    END_LSN,
    END_SEQ,
    IS_CURRENT,
    VALID_TO,
    VersionsPlan,
)
from pgtide.spark.cells import CellReader
from pgtide.spark.sql_text import quoted


class VersionsTable(LakeTable):
    """A table that has every version of the rows of one of the source."""

    mode = "scd2"

    def _plan(self, step: Rows | Reshaped) -> VersionsPlan:
        shapes = self._batch.shapes.values()
        root = step.layout.shape.oid
        policy = self._batch.settings.on_unrepresentable
        return VersionsPlan(
            layout=step.layout.under(policy),
            rules=self._batch.rules(step.table),
            reader=CellReader(step.layout, policy),
            relations={shape.id: shape.oid for shape in shapes if shape.root_oid == root},
        )

    def _rows(self, step: Rows, number: int) -> None:
        plan = self._plan(step)
        keys = plan.keys()
        target = self._ready(step, plan.columns())
        if target is None:
            return
        for portion, events in writes(self._batch, target, step, self._work.steps[number + 1 :]):
            self._quarantine.keep(step.table, events, plan.reader)
            changes = plan.changes(events, step.traits, target.frame())
            table = target.open()
            if table is not None and table.file_uris():
                self._merge(target, changes, keys, portion)
            else:
                portion.append(target, changes.filter(f"NOT {CLOSES}").drop(CLOSES))

    def _merge(self, target: Target, changes: DataFrame, keys: list[str], portion: Portion) -> None:
        same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)
        ended = {
            VALID_TO: f"s.{VALID_TO}",
            IS_CURRENT: "false",
            END_LSN: f"s.{LSN}",
            END_SEQ: f"s.{SEQ}",
        }
        names = [name for name in changes.columns if name != CLOSES]
        with target.idempotent(portion.app_id, portion.version):
            (
                SparkDeltaTable.forPath(target.spark, target.path)
                .alias("t")
                .merge(changes.alias("s"), f"{same} AND t.{IS_CURRENT} AND s.{CLOSES}")
                .whenMatchedUpdate(newer("t", "s"), set=dict(ended))
                .whenNotMatchedInsert(
                    f"NOT s.{CLOSES}",
                    values={quoted(name): f"s.{quoted(name)}" for name in names},
                )
                .execute()
            )

    def _truncated(self, step: Truncated, number: int) -> None:
        """End all current versions; done again, it finds none."""
        shape = self._truncated_shape(step)
        target = self._lake.target(self._name(step.table), shape.root_oid or shape.oid)
        if not target.exists() or target.transaction(REACHED) >= step.at.lsn:
            return
        rows = F.col(IS_CURRENT) & earlier(step.at)
        if step.partition:
            rows &= F.col(RELATION) == step.partition
        ended: dict[str, str | Column] = {
            VALID_TO: F.lit(self._committed_at(step)),
            IS_CURRENT: F.lit(False),
            END_LSN: F.lit(int(step.at.lsn)),
            END_SEQ: F.lit(step.at.seq),
        }
        SparkDeltaTable.forPath(target.spark, target.path).update(rows, ended)

    def _committed_at(self, step: Truncated) -> datetime | None:
        at = (F.col("lsn") == int(step.at.lsn)) & (F.col("seq") == step.at.seq)
        found = self._batch.frame.filter(at).select("committed_at").head()
        return found["committed_at"] if found else None

    def _reshaped(self, step: Reshaped, number: int) -> None:
        """A column that was added with a default has it in the current versions."""
        plan = self._plan(step)
        target = self._ready(step, plan.columns())
        if target is None or target.transaction(REACHED) >= step.at.lsn:
            return
        values: dict[str, str | Column] = {
            quoted(column.name): plan.layout.value(column.attnum, step.defaults[column.attnum])
            for column in plan.columns()
            if column.attnum is not None and column.attnum in step.defaults
        }
        if values and shaped_by(target, step):
            rows = F.col(IS_CURRENT) & earlier(step.at)
            SparkDeltaTable.forPath(target.spark, target.path).update(rows, values)
